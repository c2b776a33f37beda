"""Resizing, sampling, patches, unpooling, CTC, bags and heads against PyTorch's, in float64."""

import itertools

import numpy as np
import pytest

import lowtide as lt
from lowtide.nn import functional as ours

torch = pytest.importorskip("torch")

from tests.parity import comparing  # noqa: E402  # it imports torch

theirs = torch.nn.functional
pytestmark = pytest.mark.parity

CLOSE = {"rtol": 1e-9, "atol": 1e-10}


def numbers(*shape, seed=0):
    return np.random.default_rng((*shape, seed)).standard_normal(shape)


def compare(function, *arrays, second=True):
    """``function(F, tensor, *inputs)``: values, first and second gradients agree."""
    comparing.compare(
        lambda m, *xs: function(m.nn.functional, m.tensor, *xs),
        *arrays,
        order=2 if second else 1,
        **CLOSE,
    )


def refused(function, *arrays):
    """Both raise, and the same type."""
    comparing.refuse_alike(lambda m, *xs: function(m.nn.functional, m.tensor, *xs), *arrays)


SIZES = [
    {"size": 3},
    {"size": 9},
    {"size": 1},
    {"scale_factor": 2},
    {"scale_factor": 0.61},
    {"scale_factor": 1.7},
    {"scale_factor": 1.7, "recompute_scale_factor": True},
]
IMAGES = {3: (2, 3, 7), 4: (2, 2, 5, 6), 5: (1, 2, 4, 3, 5)}
MODES = [
    *itertools.product(["nearest", "nearest-exact", "area"], (3, 4, 5), [None]),
    *[("linear", 3, a) for a in (True, False)],
    *[("bilinear", 4, a) for a in (True, False, None)],
    *[("bicubic", 4, a) for a in (True, False)],
    *[("trilinear", 5, a) for a in (True, False)],
]


@pytest.mark.parametrize(("mode", "ndim", "align"), MODES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_interpolate(mode, ndim, align, size):
    compare(
        lambda F, t, x: F.interpolate(x, mode=mode, align_corners=align, **size),
        numbers(*IMAGES[ndim]),
    )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_interpolate_with_antialiasing(mode, align, size):
    compare(
        lambda F, t, x: F.interpolate(x, mode=mode, align_corners=align, antialias=True, **size),
        numbers(2, 2, 9, 6),
    )


@pytest.mark.parametrize("size", [(3, 7), (4, 1)])
def test_nearest_keeps_integers(size):
    x = np.arange(48, dtype=np.uint8).reshape(1, 2, 4, 6)
    mine = ours.interpolate(lt.tensor(x), size)
    np.testing.assert_array_equal(mine.numpy(), theirs.interpolate(torch.tensor(x), size).numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_breaks_ties_alike(mode, dtype):
    for n, m in itertools.product(range(1, 24), repeat=2):
        x = np.arange(n, dtype=dtype).reshape(1, 1, n)
        mine = ours.interpolate(lt.tensor(x), m, mode=mode)
        other = theirs.interpolate(torch.tensor(x), m, mode=mode)
        np.testing.assert_array_equal(mine.numpy(), other.numpy())


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"size": 2, "scale_factor": 2},
        {"size": (2, 2, 2)},
        {"scale_factor": (2.0,)},
        {"size": 2.5},
        {"size": 0},
        {"size": 2, "recompute_scale_factor": True},
        {"size": 2, "align_corners": True},
        {"size": 2, "mode": "linear"},
        {"size": 2, "mode": "unheard of"},
        {"size": 2, "antialias": True},
    ],
    ids=str,
)
def test_interpolate_refuses_the_same(wrong):
    refused(lambda F, t, x: F.interpolate(x, **{"size": None, **wrong}), numbers(1, 1, 3, 4))


@pytest.mark.parametrize("name", ["upsample", "upsample_nearest", "upsample_bilinear"])
def test_old_names_warn_and_resize(name):
    x = numbers(1, 2, 3, 4)
    with pytest.warns(UserWarning, match="deprecated"):
        mine = getattr(ours, name)(lt.tensor(x), 5)
    with pytest.warns(UserWarning, match="deprecated"):
        other = getattr(theirs, name)(torch.tensor(x), 5)
    comparing.close(mine, other, **CLOSE)


GRIDS = [((2, 3, 5, 6), (4, 3)), ((2, 2, 3, 4, 5), (2, 3, 2)), ((1, 2, 1, 4), (3, 3))]


@pytest.mark.parametrize(("image", "out"), GRIDS)
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [True, False])
def test_grid_sample(image, out, mode, padding, align):
    if mode == "bicubic" and len(image) == 5:
        return refused(
            lambda F, t, x, g: F.grid_sample(x, g, mode, padding, align),
            numbers(*image),
            numbers(image[0], *out, len(out)),
        )
    return compare(
        lambda F, t, x, g: F.grid_sample(x, g, mode, padding, align),
        numbers(*image),
        1.5 * numbers(image[0], *out, len(out)),
        second=False,
    )


@pytest.mark.parametrize("size", [(2, 1, 3, 4), (2, 1, 3, 4, 2), (2, 1, 1, 4)])
@pytest.mark.parametrize("align", [True, False])
@pytest.mark.filterwarnings("ignore:Since version 1.3.0")
def test_affine_grid(size, align):
    n = len(size) - 2
    compare(lambda F, t, theta: F.affine_grid(theta, size, align), numbers(2, n, n + 1))


@pytest.mark.parametrize("kernel", [2, (3, 2), 1])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("padding", [0, (1, 2)])
@pytest.mark.parametrize("stride", [1, (2, 3)])
def test_unfold_and_fold(kernel, dilation, padding, stride):
    compare(lambda F, t, x: F.unfold(x, kernel, dilation, padding, stride), numbers(2, 3, 6, 7))
    columns = theirs.unfold(torch.tensor(numbers(2, 3, 6, 7)), kernel, dilation, padding, stride)
    compare(lambda F, t, x: F.fold(x, (6, 7), kernel, dilation, padding, stride), columns.numpy())


def test_fold_refuses_what_no_image_gives():
    refused(lambda F, t, x: F.fold(x, (4, 4), 2), numbers(1, 8, 8))
    refused(lambda F, t, x: F.fold(x, (4, 4), 2), numbers(1, 7, 9))
    refused(lambda F, t, x: F.unfold(x, 5), numbers(1, 1, 4, 4))


def test_shuffles():
    compare(lambda F, t, x: F.pixel_shuffle(x, 2), numbers(2, 8, 3, 5))
    compare(lambda F, t, x: F.pixel_unshuffle(x, 2), numbers(2, 8, 4, 6))
    compare(lambda F, t, x: F.channel_shuffle(x, 4), numbers(2, 8, 4))
    refused(lambda F, t, x: F.pixel_shuffle(x, 3), numbers(1, 8, 3, 3))
    refused(lambda F, t, x: F.pixel_unshuffle(x, 3), numbers(1, 8, 4, 3))
    refused(lambda F, t, x: F.channel_shuffle(x, 3), numbers(1, 8, 4))


@pytest.mark.parametrize("nd", [1, 2, 3])
@pytest.mark.parametrize("size", [None, 7])
def test_max_unpool(nd, size):
    wanted = None if size is None else (size,) * nd
    length = size or 6
    unpool, pool = f"max_unpool{nd}d", f"max_pool{nd}d"

    def both(F, t, x):
        out, where = getattr(F, pool)(x, 2, return_indices=True)
        return getattr(F, unpool)(out, where, 2, output_size=wanted)

    compare(both, numbers(2, 3, *[length] * nd))


@pytest.mark.parametrize("name", [f"{a}max_pool{n}d" for a in ("", "adaptive_") for n in (1, 2, 3)])
def test_pooling_with_indices(name):
    x = numbers(2, 3, *[7] * int(name[-2]))
    mine = getattr(ours, name + "_with_indices")(lt.tensor(x), 3)
    other = getattr(theirs, name + "_with_indices")(torch.tensor(x), 3)
    for a, b in zip(mine, other, strict=True):
        comparing.close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("blank", [0, 2, 4])
@pytest.mark.parametrize("padded", [False, True])
def test_ctc_loss(reduction, zero_infinity, blank, padded):
    lengths, ends = [7, 5, 2 if zero_infinity else 4], [3, 0, 2]
    rows = np.random.default_rng(0).choice([c for c in range(5) if c != blank], (3, 3))
    rows[0, 1] = rows[0, 0]
    rows[2] = rows[2, 0] if zero_infinity else rows[2]
    targets = rows if padded else np.concatenate([r[:n] for r, n in zip(rows, ends, strict=True)])
    compare(
        lambda F, t, x: F.ctc_loss(
            x.log_softmax(-1), t(targets), t(lengths), t(ends), blank, reduction, zero_infinity
        ),
        numbers(7, 3, 5),
        second=False,
    )


BAGS = np.array([1, 4, 4, 0, 2, 3, 1])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 4])
@pytest.mark.parametrize("last", [False, True])
def test_embedding_bag_of_unequal_bags(mode, padding, last):
    compare(
        lambda F, t, w: F.embedding_bag(
            t(BAGS),
            w,
            t([0, 3, 3, 6, 7][: 5 if last else 4]),
            mode=mode,
            include_last_offset=last,
            padding_idx=padding,
        ),
        numbers(5, 3),
        second=False,
    )


def test_embedding_bag_refuses_the_same():
    w = numbers(5, 3)
    refused(lambda F, t, w: F.embedding_bag(t(BAGS), w, t([0]), None, 2, True, "max"), w)
    refused(lambda F, t, w: F.embedding_bag(t(BAGS), w, t([1])), w)
    refused(lambda F, t, w: F.embedding_bag(t(BAGS), w, t([0, 9])), w)
    refused(lambda F, t, w: F.embedding_bag(t(BAGS), w), w)
    refused(lambda F, t, w: F.embedding_bag(t(BAGS + 1), w, t([0])), w)
    refused(lambda F, t, w: F.embedding_bag(t(BAGS[None]), w, t([0])), w)


def test_embedding_bag_with_factors():
    compare(
        lambda F, t, w, f: F.embedding_bag(t(BAGS), w, t([0, 3]), mode="sum", per_sample_weights=f),
        numbers(5, 3),
        numbers(7),
        second=False,
    )


def heads(**options):
    """A call with projections of size 6, for 2 heads."""

    def call(F, t, q, k, v, *rest):
        found = dict(zip(options.get("given", ()), rest, strict=True))
        fixed = {n: t(a) for n, a in options.get("masks", {}).items()}
        flags = options.get("flags", {})
        arguments = {
            "in_proj_weight": None,
            "in_proj_bias": None,
            "bias_k": None,
            "bias_v": None,
            "add_zero_attn": False,
            "dropout_p": 0.0,
            "out_proj_weight": None,
            "out_proj_bias": None,
            **found,
            **fixed,
            **flags,
        }
        out, weights = F.multi_head_attention_forward(q, k, v, 6, 2, **arguments)
        return out if weights is None else out.sum() * weights

    return call


PROJECTED = {
    "in_proj_weight": (18, 6),
    "in_proj_bias": (18,),
    "out_proj_weight": (6, 6),
    "out_proj_bias": (6,),
}
HIDDEN = np.triu(np.ones((4, 5), bool), 2)
PADDED = np.array([[False] * 5, [False] * 4 + [True]])


@pytest.mark.parametrize("need", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("masked", ["no", "bool", "float"])
def test_multi_head_attention(need, average, zero, bias, masked):
    shapes = PROJECTED | ({"bias_k": (1, 1, 6), "bias_v": (1, 1, 6)} if bias else {})
    masks = {}
    if masked == "bool":
        masks = {"attn_mask": HIDDEN, "key_padding_mask": PADDED}
    elif masked == "float":
        masks = {"attn_mask": numbers(4, 4, 5)}
    call = heads(
        given=list(shapes),
        masks=masks,
        flags={"need_weights": need, "average_attn_weights": average, "add_zero_attn": zero},
    )
    arrays = [numbers(*s) for s in shapes.values()]
    compare(
        call, numbers(4, 2, 6), numbers(5, 2, 6), numbers(5, 2, 6, seed=1), *arrays, second=False
    )


def test_multi_head_attention_with_separate_projections_of_one_sequence():
    shapes = {
        "out_proj_weight": (6, 6),
        "q_proj_weight": (6, 6),
        "k_proj_weight": (6, 3),
        "v_proj_weight": (6, 2),
    }
    call = heads(given=list(shapes), flags={"use_separate_proj_weight": True})
    arrays = [numbers(*s) for s in shapes.values()]
    compare(call, numbers(4, 6), numbers(5, 3), numbers(5, 2), *arrays, second=False)


def test_multi_head_attention_refuses_the_same():
    call = heads(flags={"is_causal": True})
    refused(call, numbers(4, 2, 6), numbers(5, 2, 6), numbers(5, 2, 6))
    refused(heads(), numbers(4, 2, 6), numbers(5, 6), numbers(5, 6))
    refused(heads(), numbers(4, 2, 6), numbers(5, 2, 6), numbers(5, 2, 6))
