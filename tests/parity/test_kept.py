"""No op or layer keeps more for backward than PyTorch's, bytes of shared storages counted once.

Each case is written once and run with both libraries on tensors that nobody else has: what flows in
counts where it is kept. ``MORE`` lists by how many bytes a case may exceed PyTorch's, and why.
"""

import math

import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

ROWS, COLUMNS = 256, 128
S = (ROWS, COLUMNS)
IMAGE, VOLUME, SIGNAL = (4, 8, 16, 16), (2, 4, 8, 8, 8), (4, 8, 64)
CASES = {}  # name -> (shapes of what flows in, function of (library, functional, tensors))


def add(name, shapes, function):
    assert name not in CASES
    CASES[name] = shapes, function


def numbers(lib, *shape):
    count = math.prod(shape)
    return (lib.arange(count, dtype=lib.float32) * 0.618 % 1 * 0.8 + 0.1).reshape(*shape)


def index(lib, *shape, below):
    return (lib.arange(math.prod(shape)) * 7 % below).reshape(*shape)


def mask(lib, *shape):
    return (lib.arange(math.prod(shape)) % 3 == 0).reshape(*shape)


def labels(lib):
    # Five right classes in each row, ended by -1
    return index(lib, *S, below=COLUMNS) * (lib.arange(COLUMNS) < 5) - (
        lib.arange(COLUMNS) >= 5
    ).to(lib.int64)


def of_one(names, of=lambda lib: lib):
    for name in names.split():
        add(name, [S], lambda L, F, x, name=name: getattr(of(L), name)(x))


of_one(
    "abs acos acosh asin asinh atan atanh cos cosh erf erfc erfinv exp exp2 expm1 log log10 log1p "
    "log2 logit reciprocal rsqrt sigmoid sin sinc sinh sqrt square tan tanh prod std var median "
    "nanmedian max min amax amin nansum nanmean nan_to_num lgamma digamma"
)
of_one(
    "celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu "
    "relu6 selu silu softplus softshrink softsign tanhshrink normalize",
    lambda lib: lib.nn.functional,
)
for name in "prod std var amax amin logsumexp softmax cumprod logcumsumexp nanmean".split():
    add(f"{name} along", [S], lambda L, F, x, name=name: getattr(x, name)(dim=-1))
for name in "max min median nanmedian sort mode cummax cummin".split():
    add(f"{name} along", [S], lambda L, F, x, name=name: getattr(x, name)(dim=-1)[0])
add("quantile", [S], lambda L, F, x: x.quantile(0.3, dim=-1))
for name in (
    "mul div pow maximum minimum fmax atan2 hypot copysign fmod remainder logaddexp xlogy ldexp "
    "dist"
).split():
    add(f"{name} of two", [S, S], lambda L, F, x, y, name=name: getattr(L, name)(x, y))
add("xlog1py", [S, S], lambda L, F, x, y: L.special.xlog1py(x, y))
add("clamp", [S, S, S], lambda L, F, x, y, z: L.clamp(x, y, z))
add("where", [S, S], lambda L, F, x, y: L.where(mask(L, *S), x, y))
for p in (1, 2, 3, math.inf):
    add(f"norm {p}", [S], lambda L, F, x, p=p: x.norm(p, -1))
    add(f"cdist {p}", [(64, 16)] * 2, lambda L, F, x, y, p=p: L.cdist(x, y, p))
    add(f"pdist {p}", [(64, 16)], lambda L, F, x, p=p: F.pdist(x, p))
    add(f"pairwise {p}", [S, S], lambda L, F, x, y, p=p: F.pairwise_distance(x, y, p))
# Places
add("mask", [S], lambda L, F, x: x[mask(L, *S)])
add("mask of rows", [S], lambda L, F, x: x[mask(L, ROWS)])
add("index", [S], lambda L, F, x: x[index(L, 64, below=ROWS)])
add("masked_select", [S], lambda L, F, x: x.masked_select(mask(L, *S)))
add("masked_scatter", [S, S], lambda L, F, x, y: x.masked_scatter(mask(L, *S), y))
add("gather", [S], lambda L, F, x: x.gather(1, index(L, ROWS, 64, below=COLUMNS)))
for name in "sum prod mean amax amin".split():
    add(
        f"scatter_reduce {name}",
        [S, S],
        lambda L, F, x, y, name=name: x.scatter_reduce(1, index(L, *S, below=COLUMNS), y, name),
    )
# Products and tables
add("linear", [S, (64, COLUMNS), (64,)], lambda L, F, *xs: F.linear(*xs))
add("bilinear", [(64, 32), (64, 24), (16, 32, 24)], lambda L, F, *xs: F.bilinear(*xs))
add("einsum", [(4, 32, 16), (4, 32, 8)], lambda L, F, *xs: L.einsum("bij,bik->bjk", *xs))
TABLE = (100, 64)
for mode in ("sum", "mean", "max"):
    for padding in (None, 3):
        add(
            f"bag {mode} {padding}",
            [TABLE],
            lambda L, F, w, mode=mode, padding=padding: F.embedding_bag(
                index(L, 64, 16, below=100), w, mode=mode, padding_idx=padding
            ),
        )
    add(
        f"bag {mode} with offsets",
        [TABLE],
        lambda L, F, w, mode=mode: F.embedding_bag(
            index(L, 1024, below=100), w, L.arange(64) * 16, mode=mode
        ),
    )
add(
    "bag weighted",
    [TABLE, (64, 16)],
    lambda L, F, w, f: F.embedding_bag(
        index(L, 64, 16, below=100), w, mode="sum", per_sample_weights=f
    ),
)
for name, call in {"embedding": "embedding", "bag": "embedding_bag"}.items():
    how = {"mode": "sum"} if name == "bag" else {}
    add(
        f"{name} by frequency",
        [TABLE],
        lambda L, F, w, call=call, how=how: getattr(F, call)(
            index(L, 64, 16, below=100), w, scale_grad_by_freq=True, **how
        ),
    )
# Images
for nd, shape in ((1, SIGNAL), (2, IMAGE), (3, VOLUME)):
    channels = shape[1]
    layer = [shape, (channels,), (channels,)]
    add(
        f"conv{nd}d",
        [shape, (8, channels, *[3] * nd), (8,)],
        lambda L, F, *xs, nd=nd: getattr(F, f"conv{nd}d")(*xs, padding=1),
    )
    for name in ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool"):
        size = 3 if "adaptive" in name else 2
        add(
            f"{name}{nd}d",
            [shape],
            lambda L, F, x, name=f"{name}{nd}d", size=size: getattr(F, name)(x, size),
        )
    add(f"batch norm {nd}", layer, lambda L, F, x, w, b: F.batch_norm(x, None, None, w, b, True))
    add(f"group norm {nd}", layer, lambda L, F, x, w, b: F.group_norm(x, 2, w, b))
    for mode in ("constant", "reflect", "replicate", "circular"):
        add(
            f"pad {nd} {mode}",
            [shape],
            lambda L, F, x, nd=nd, mode=mode: F.pad(x, (1, 1) * nd, mode=mode),
        )
    for mode in {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}[nd]:
        add(
            f"interpolate {mode}",
            [shape],
            lambda L, F, x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode),
        )
add("layer norm", [S, (128,), (128,)], lambda L, F, x, w, b: F.layer_norm(x, (128,), w, b))
add("rms norm", [S, (128,)], lambda L, F, x, w: F.rms_norm(x, (128,), w))
for mode in ("bilinear", "nearest", "bicubic"):
    for padding in ("zeros", "border", "reflection"):
        for image, grid in ((IMAGE, (4, 12, 12, 2)), (VOLUME, (2, 6, 6, 6, 3))):
            if mode == "bicubic" and image is VOLUME:
                continue
            for moving in (True, False):
                add(
                    f"grid_sample {len(grid) - 2} {mode} {padding} {moving}",
                    [image, grid] if moving else [image],
                    lambda L, F, x, *g, grid=grid, mode=mode, padding=padding: F.grid_sample(
                        x, g[0] if g else numbers(L, *grid), mode, padding, False
                    ),
                )
add("affine_grid", [(4, 2, 3)], lambda L, F, t: F.affine_grid(t, IMAGE, align_corners=True))
# Losses
for name in ("l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss"):
    add(f"{name} of two", [S, S], lambda L, F, x, y, name=name: getattr(F, name)(x, y))
    add(name, [S], lambda L, F, x, name=name: getattr(F, name)(x, numbers(L, *S)))
for name in (
    "binary_cross_entropy binary_cross_entropy_with_logits multilabel_soft_margin_loss "
    "poisson_nll_loss cross_entropy"
).split():
    add(f"{name} of numbers", [S], lambda L, F, x, name=name: getattr(F, name)(x, numbers(L, *S)))
for name in ("cross_entropy", "nll_loss", "multi_margin_loss"):
    add(name, [S], lambda L, F, x, name=name: getattr(F, name)(x, index(L, ROWS, below=COLUMNS)))
add("multilabel_margin_loss", [S], lambda L, F, x: F.multilabel_margin_loss(x, labels(L)))
add("triplet_margin_loss", [S] * 3, lambda L, F, *xs: F.triplet_margin_loss(*xs, swap=True))
add("cosine_similarity", [S, S], lambda L, F, x, y: F.cosine_similarity(x, y))
add("attention", [(2, 4, 64, 16)] * 3, lambda L, F, *x: F.scaled_dot_product_attention(*x))

# Two numbers for each row; PyTorch keeps a second matrix of the logits' size instead, which here is
# not alive beside the logits.
MORE = {"cross_entropy": 8 * ROWS}


def flowing(lib, name):
    shapes, function = CASES[name]
    leaves = [numbers(lib, *shape).requires_grad_() for shape in shapes]
    return lambda: function(lib, lib.nn.functional, *[x.clone() for x in leaves])


def kept_by_torch(name):
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor  # alive until the result goes, so no address comes twice

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = flowing(torch, name)()
    del result
    return sum(kept.values())


@pytest.mark.parametrize("name", CASES)
def test_it_keeps_at_most_what_pytorch_keeps(name):
    ours = lt.profiling.saved_tensors(flowing(lt, name)).total_bytes
    assert ours <= kept_by_torch(name) + MORE.get(name, 0)
