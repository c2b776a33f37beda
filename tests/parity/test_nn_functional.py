"""``lowtide.nn.functional`` against PyTorch's: values, first and second gradients in float64."""

import inspect
import itertools

import numpy as np
import pytest

import lowtide as lt
from lowtide.modules.functional import __all__ as FUNCTIONS
from lowtide.nn import functional as ours

torch = pytest.importorskip("torch")

from tests.parity import comparing  # noqa: E402  # it imports torch

theirs = torch.nn.functional
pytestmark = pytest.mark.parity

CLOSE = {"rtol": 1e-7, "atol": 1e-8}


def numbers(*shape, seed=0):
    return np.random.default_rng((*shape, seed)).standard_normal(shape)


def chance(*shape, seed=0):
    return np.random.default_rng((*shape, seed)).uniform(0.05, 0.95, shape)


def compare(function, *arrays, second=True):
    """``function(F, tensor, *inputs)`` gives the same under both."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        comparing.compare(
            lambda m, *xs: function(m.nn.functional, m.tensor, *xs),
            *arrays,
            order=2 if second else 1,
            **CLOSE,
        )


def grid(**axes):
    """Every combination of the values of some arguments."""
    return [dict(zip(axes, v, strict=True)) for v in itertools.product(*axes.values())]


def ids(case):
    return ",".join(f"{k}={v}" for k, v in case.items())


CONVOLUTIONS = [
    c
    for c in grid(
        stride=[1, 2, (2, 1)], padding=[0, (2, 1), "same"], dilation=[1, (1, 2)], groups=[1, 2]
    )
    if not (c["padding"] == "same" and c["stride"] != 1)
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=ids)
def test_conv2d_matches(case):
    x, b = numbers(2, 4, 9, 10), numbers(6)
    for kernel in ((1, 1), (3, 3), (3, 5)):
        w = numbers(6, 4 // case["groups"], *kernel)
        compare(lambda F, t, x, w, b: F.conv2d(x, w, b, **case), x, w, b)


@pytest.mark.parametrize(
    "case", grid(stride=[1, 2], padding=[0, 1], dilation=[1, 2], groups=[1, 4]), ids=ids
)
def test_conv1d_and_conv3d_match(case):
    w = numbers(8, 4 // case["groups"], 3)
    compare(lambda F, t, x, w: F.conv1d(x, w, **case), numbers(2, 4, 9), w)
    compare(lambda F, t, x, w: F.conv1d(x, w, **case), numbers(4, 9), w)
    w = numbers(4, 4 // case["groups"], 2, 2, 1)
    compare(lambda F, t, x, w: F.conv3d(x, w, **case), numbers(1, 4, 5, 4, 5), w)


@pytest.mark.parametrize(
    "case",
    grid(stride=[2, (2, 3)], padding=[0, 1], output_padding=[0, 1], groups=[1, 2], dilation=[1, 2]),
    ids=ids,
)
def test_transposed_convolutions_match(case):
    w, b = numbers(4, 3, 3, 2), numbers(3 * case["groups"])
    compare(lambda F, t, x, w, b: F.conv_transpose2d(x, w, b, **case), numbers(2, 4, 4, 5), w, b)
    line = case | {"stride": 2}
    compare(lambda F, t, x, w: F.conv_transpose1d(x, w, **line), numbers(2, 4, 5), numbers(4, 3, 3))


POOLS = grid(
    kernel_size=[2, (3, 2)], stride=[None, 1, (2, 1)], padding=[0, 1], ceil_mode=[False, True]
)


@pytest.mark.parametrize("case", POOLS, ids=ids)
def test_pooling_matches(case):
    x = numbers(2, 3, 9, 8)
    for dilation in (1, 2):
        compare(lambda F, t, x, d=dilation: F.max_pool2d(x, dilation=d, **case), x)
        mine = ours.max_pool2d(lt.tensor(x), dilation=dilation, return_indices=True, **case)[1]
        other = theirs.max_pool2d(torch.tensor(x), dilation=dilation, return_indices=True, **case)[
            1
        ]
        np.testing.assert_array_equal(mine.numpy(), other.numpy())
    for include, divisor in ((True, None), (False, None), (True, 5)):
        compare(
            lambda F, t, x, i=include, d=divisor: F.avg_pool2d(
                x, count_include_pad=i, divisor_override=d, **case
            ),
            x,
        )
    if isinstance(case["kernel_size"], int) and not isinstance(case["stride"], tuple):
        compare(lambda F, t, x: F.max_pool1d(x, **case), numbers(3, 9))
        compare(lambda F, t, x: F.avg_pool1d(x, **case), numbers(2, 3, 9))
        compare(lambda F, t, x: F.max_pool3d(x, **case), numbers(1, 2, 4, 5, 4))


@pytest.mark.parametrize("size", [1, 3, (3, 4), (5, 7), (None, 2)])
def test_adaptive_pooling_matches(size):
    x = numbers(2, 3, 9, 8)
    compare(lambda F, t, x: F.adaptive_avg_pool2d(x, size), x)
    compare(lambda F, t, x: F.adaptive_max_pool2d(x, size), x)
    mine = ours.adaptive_max_pool2d(lt.tensor(x), size, return_indices=True)[1]
    other = theirs.adaptive_max_pool2d(torch.tensor(x), size, return_indices=True)[1]
    np.testing.assert_array_equal(mine.numpy(), other.numpy())
    if isinstance(size, int):
        compare(lambda F, t, x: F.adaptive_avg_pool1d(x, size), numbers(2, 3, 8))
        compare(lambda F, t, x: F.adaptive_max_pool1d(x, size), numbers(2, 3, 8))


@pytest.mark.parametrize("p", [2, 3.0])
def test_lp_pool_matches(p):
    compare(lambda F, t, x: F.lp_pool2d(x * x + 0.1, p, 2), numbers(2, 3, 6, 5))
    compare(lambda F, t, x: F.lp_pool1d(x * x + 0.1, p, 3, 2), numbers(2, 3, 9))


def test_max_pool_lets_nan_win():
    x = np.array([[[1, np.nan, 3, 2, np.nan, np.nan], [-np.inf] * 6]])
    for kernel, stride, padding in ((2, 2, 1), (3, 1, 0)):
        mine = ours.max_pool1d(lt.tensor(x), kernel, stride, padding).numpy()
        other = theirs.max_pool1d(torch.tensor(x), kernel, stride, padding).numpy()
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
    ("shape", "last"), [((4, 6), (6,)), ((2, 3, 4), (3, 4)), ((2, 3, 4), (4,)), ((5,), (5,))]
)
def test_layer_and_rms_norm_match(shape, last):
    x, w, b = numbers(*shape), numbers(*last, seed=1), numbers(*last, seed=2)
    compare(lambda F, t, x, w, b: F.layer_norm(x, last, w, b), x, w, b)
    compare(lambda F, t, x, w: F.layer_norm(x, last, w, eps=0.1), x, w)
    compare(lambda F, t, x: F.layer_norm(x, last), x)
    compare(lambda F, t, x, w: F.rms_norm(x, last, w), x, w)
    compare(lambda F, t, x: F.rms_norm(x, last, eps=0.1), x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_epsilon_of_rms_norm_is_that_of_the_dtype_that_computes(dtype):
    x = np.array([[0.01, 0.02, 0.03], [1e-3, 2e-3, -1e-3]])
    mine = ours.rms_norm(lt.tensor(x).to(getattr(lt, dtype)), (3,))
    other = torch.nn.functional.rms_norm(torch.tensor(x).to(getattr(torch, dtype)), (3,))
    np.testing.assert_allclose(mine.double().numpy(), other.double().numpy(), rtol=4e-3)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (2, 4, 3, 3)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_and_its_running_averages_match(shape, training):
    mean, var = numbers(4), numbers(4, seed=1) ** 2 + 0.1
    kept = {}

    def function(F, tensor, x, w, b):
        kept[F] = tensor(mean), tensor(var)
        return F.batch_norm(x, *kept[F], w, b, training, 0.3, 1e-3)

    compare(function, numbers(*shape), numbers(4, seed=2), numbers(4, seed=3))
    for a, b in zip(kept[ours], kept[theirs], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 4, 3, 3)])
def test_group_and_instance_norm_match(shape):
    x, w, b = numbers(*shape), numbers(4, seed=2), numbers(4, seed=3)
    for groups in (1, 2, 4):
        compare(lambda F, t, x, w, b, g=groups: F.group_norm(x, g, w, b), x, w, b)
    compare(lambda F, t, x: F.group_norm(x, 2), x)
    compare(lambda F, t, x, w, b: F.instance_norm(x, weight=w, bias=b), x, w, b)
    kept = {}

    def running(F, tensor, x):
        kept[F] = tensor(numbers(4)), tensor(numbers(4) ** 2)
        return F.instance_norm(x, *kept[F], momentum=0.4)

    compare(running, x)
    for a, b in zip(kept[ours], kept[theirs], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)


def test_normalize_and_local_response_norm_match():
    compare(lambda F, t, x: F.normalize(x), numbers(3, 4))
    compare(lambda F, t, x: F.normalize(x, 3.0, -1), numbers(2, 3, 4))
    for size in (2, 3):
        compare(lambda F, t, x, s=size: F.local_response_norm(x, s, 0.1), numbers(2, 5, 3))


INDICES = np.array([[0, 4, 4], [1, 0, 2]])


@pytest.mark.parametrize(
    "case", grid(padding_idx=[None, 4, -1], scale_grad_by_freq=[False, True]), ids=ids
)
def test_embedding_matches(case):
    # PyTorch's second gradient forgets to scale.
    second = not case["scale_grad_by_freq"]
    compare(lambda F, t, w: F.embedding(t(INDICES), w, **case), numbers(5, 3), second=second)


def test_embedding_shrinks_rows_as_pytorch_does():
    w, v = lt.tensor(3 * numbers(5, 3)), torch.tensor(3 * numbers(5, 3))
    a = ours.embedding(lt.tensor(INDICES), w, max_norm=1.0)
    b = theirs.embedding(torch.tensor(INDICES), v, max_norm=1.0)
    np.testing.assert_allclose(a.numpy(), b.numpy(), **CLOSE)
    np.testing.assert_allclose(w.numpy(), v.numpy(), **CLOSE)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag_of_equal_bags_matches(mode):
    mine = ours.embedding_bag(lt.tensor(INDICES), lt.tensor(numbers(5, 3)), mode=mode)
    other = theirs.embedding_bag(torch.tensor(INDICES), torch.tensor(numbers(5, 3)), mode=mode)
    np.testing.assert_allclose(mine.numpy(), other.numpy(), **CLOSE)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 3), (2, 5, 3, 2), (5,)])
def test_cross_entropy_matches(shape, reduction):
    where = () if len(shape) == 1 else (shape[0], *shape[2:])
    classes = np.random.default_rng(1).integers(0, 4, where)
    soft = chance(*shape)
    for case in grid(ignore_index=[-100, 2], label_smoothing=[0.0, 0.1]):
        for weight in (None, chance(5)):
            if where == () and case["ignore_index"] == classes:
                continue

            def function(F, t, x, weight=weight, case=case):
                w = None if weight is None else t(weight)
                return F.cross_entropy(x, t(classes), w, reduction=reduction, **case)

            compare(function, numbers(*shape))

            def likelihood(F, t, x, weight=weight, case=case):
                w = None if weight is None else t(weight)
                index = case["ignore_index"]
                return F.nll_loss(x, t(classes), w, ignore_index=index, reduction=reduction)

            compare(likelihood, numbers(*shape))

            def probabilities(F, t, x, p, weight=weight, case=case):
                w = None if weight is None else t(weight)
                smoothing = case["label_smoothing"]
                return F.cross_entropy(x, p, w, label_smoothing=smoothing, reduction=reduction)

            compare(probabilities, numbers(*shape), soft)


REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
SIGNS = np.array([1.0, -1.0, -1.0, 1.0])


@REDUCTIONS
def test_losses_of_differences_match(reduction):
    x, y, w = numbers(4, 3), numbers(4, 3, seed=1), chance(4, 3)
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        compare(lambda F, t, x, y, n=name: getattr(F, n)(x, y, reduction=reduction), x, y)
    compare(lambda F, t, x, y: F.smooth_l1_loss(x, y, reduction=reduction, beta=0.3), x, y)
    compare(lambda F, t, x, y: F.smooth_l1_loss(x, y, reduction=reduction, beta=0.0), x, y)
    compare(lambda F, t, x, y: F.huber_loss(x, y, reduction=reduction, delta=0.3), x, y)
    for name in ("mse_loss", "l1_loss", "huber_loss"):
        compare(
            lambda F, t, x, y, n=name: getattr(F, n)(x, y, reduction=reduction, weight=t(w)), x, y
        )


@REDUCTIONS
def test_binary_cross_entropies_match(reduction):
    x, p, target = numbers(4, 3), chance(4, 3, seed=1), chance(4, 3, seed=2)
    for weight in (None, chance(4, 3), chance(3)):

        def probabilities(F, t, p, weight=weight):
            w = None if weight is None else t(weight)
            return F.binary_cross_entropy(p, t(target), w, reduction=reduction)

        compare(probabilities, p)
        for positive in (None, 2 * chance(3)):

            def logits(F, t, x, weight=weight, positive=positive):
                w = None if weight is None else t(weight)
                v = None if positive is None else t(positive)
                return F.binary_cross_entropy_with_logits(
                    x, t(target), w, reduction=reduction, pos_weight=v
                )

            compare(logits, x)
    compare(
        lambda F, t, x, y: F.binary_cross_entropy_with_logits(x, y, reduction=reduction), x, target
    )


@REDUCTIONS
@pytest.mark.filterwarnings("ignore:reduction")
def test_losses_of_distributions_match(reduction):
    x, p, q = numbers(4, 3), chance(4, 3, seed=1), chance(4, 3, seed=2)
    compare(lambda F, t, x, p: F.kl_div(x, p, reduction=reduction), x, p)
    compare(lambda F, t, x, y: F.kl_div(x, y, reduction=reduction, log_target=True), x, q)
    compare(lambda F, t, x: F.kl_div(x, t(p), reduction="batchmean"), x)
    counts = np.array([0.0, 1.0, 3.0])
    for full in (False, True):
        compare(
            lambda F, t, x, f=full: F.poisson_nll_loss(x, t(counts), full=f, reduction=reduction), x
        )
        compare(
            lambda F, t, p, f=full: F.poisson_nll_loss(p, t(counts), False, f, reduction=reduction),
            p,
        )
        compare(
            lambda F, t, x, v, f=full: F.gaussian_nll_loss(x, t(q), v, f, reduction=reduction), x, p
        )
    compare(lambda F, t, x, v: F.gaussian_nll_loss(x, t(q), v, reduction=reduction), x, p[:, :1])


@REDUCTIONS
def test_losses_of_margins_match(reduction):
    x, y, z = numbers(4, 3), numbers(4, 3, seed=1), numbers(4, 3, seed=2)
    signs = SIGNS[:, None]
    compare(
        lambda F, t, x, y: F.cosine_embedding_loss(x, y, t(SIGNS), 0.1, reduction=reduction), x, y
    )
    compare(
        lambda F, t, x, y: F.margin_ranking_loss(x, y, t(signs), 0.1, reduction=reduction), x, y
    )
    compare(lambda F, t, x: F.hinge_embedding_loss(x, t(signs), reduction=reduction), x)
    compare(
        lambda F, t, x: F.soft_margin_loss(
            x, t(signs + 0 * x.detach().numpy()), reduction=reduction
        ),
        x,
    )
    for swap in (False, True):
        compare(
            lambda F, t, x, y, z, s=swap: F.triplet_margin_loss(
                x, y, z, swap=s, reduction=reduction
            ),
            x,
            y,
            z,
        )
    classes = np.array([0, 2, 1, 1])
    for p in (1, 2):
        for weight in (None, chance(3)):

            def multi(F, t, x, p=p, weight=weight):
                w = None if weight is None else t(weight)
                return F.multi_margin_loss(x, t(classes), p, weight=w, reduction=reduction)

            compare(multi, x, second=False)  # PyTorch has none
    labels = np.array([[0, 2, -1], [1, -1, 0], [2, 1, 0], [-1, 0, 0]])
    compare(
        lambda F, t, x: F.multilabel_margin_loss(x, t(labels), reduction=reduction),
        x,
        second=False,
    )
    compare(
        lambda F, t, x: F.multilabel_soft_margin_loss(
            x, t((labels > 0) * 1.0), t(chance(3)), reduction=reduction
        ),
        x,
    )


def test_distances_match():
    x, y = numbers(4, 3), numbers(4, 3, seed=1)
    for dim in (0, 1):
        compare(lambda F, t, x, y, d=dim: F.cosine_similarity(x, y, d), x, y)
    compare(lambda F, t, x, y: F.cosine_similarity(x, y, -1), x, y[:1])
    for p in (1.0, 2.0, 3.0):
        compare(lambda F, t, x, y, p=p: F.pairwise_distance(x, y, p, keepdim=p == 3), x, y)


@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (40, 40), (40, 9)])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)])
def test_attention_matches(lead, rows, columns):
    q, k, v = numbers(*lead, rows, 6), numbers(*lead, columns, 6), numbers(*lead, columns, 5)
    seen = np.random.default_rng(0).random((rows, columns)) > 0.3
    seen[:, 0] = True
    bias = numbers(rows, columns)
    attend = "scaled_dot_product_attention"
    compare(lambda F, t, q, k, v: getattr(F, attend)(q, k, v), q, k, v)
    compare(lambda F, t, q, k, v: getattr(F, attend)(q, k, v, is_causal=True, scale=0.3), q, k, v)
    compare(lambda F, t, q, k, v: getattr(F, attend)(q, k, v, t(seen)), q, k, v)
    compare(lambda F, t, q, k, v, m: getattr(F, attend)(q, k, v, m), q, k, v, bias)


def test_attention_of_shared_heads_and_of_narrow_masks_matches():
    q, k, v = numbers(2, 6, 5, 4), numbers(2, 2, 7, 4), numbers(2, 2, 7, 3)
    attend = "scaled_dot_product_attention"
    compare(lambda F, t, q, k, v: getattr(F, attend)(q, k, v, enable_gqa=True), q, k, v)
    for shape in ((7,), (1, 7), (2, 1, 1, 7), (6, 5, 7), (6, 1, 7), (2, 6, 5, 7), (5, 1)):
        if len(shape) < 2:
            continue
        compare(
            lambda F, t, q, k, v, m: getattr(F, attend)(q, k, v, m, enable_gqa=True),
            q,
            k,
            v,
            numbers(*shape),
        )


def test_a_row_that_sees_nothing_is_zero_as_in_pytorch():
    seen = np.array([[True, False], [False, False]])
    q = numbers(1, 2, 3)
    mine = ours.scaled_dot_product_attention(*[lt.tensor(q)] * 3, lt.tensor(seen))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        other = theirs.scaled_dot_product_attention(*[torch.tensor(q)] * 3, torch.tensor(seen))
    np.testing.assert_allclose(mine.numpy(), other.numpy(), **CLOSE)


PLAIN = [
    "relu", "relu6", "elu", "selu", "celu", "silu", "mish", "leaky_relu", "hardtanh", "hardswish",
    "hardsigmoid", "gelu", "sigmoid", "tanh", "logsigmoid", "softplus", "softsign", "softshrink",
    "hardshrink", "tanhshrink", "glu",
]  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_activations_match(name):
    second = name != "hardsigmoid"  # PyTorch has none
    compare(lambda F, t, x: getattr(F, name)(x), 2 * numbers(4, 6), second=second)


INPLACE = ["relu", "relu6", "elu", "selu", "celu", "silu", "mish", "leaky_relu", "hardtanh"]


@pytest.mark.parametrize("name", [*INPLACE, "hardswish", "hardsigmoid"])
def test_activations_in_place_match(name):
    def function(F, t, x):
        y = x * 1.0
        assert getattr(F, name)(y, inplace=True) is y
        return y

    compare(function, 2 * numbers(4, 6), second=False)


def test_random_slopes_lie_between_their_bounds():
    x = lt.tensor(-np.ones((50, 50)), requires_grad=True)
    out = ours.rrelu(x, 0.2, 0.3, training=True)
    assert -0.3 <= out.min().item() < out.max().item() <= -0.2
    np.testing.assert_allclose(ours.rrelu(x, 0.2, 0.3).detach().numpy(), -0.25)


def test_softmax_functions_and_prelu_match():
    x = numbers(3, 4)
    for name in ("softmax", "log_softmax", "softmin"):
        compare(lambda F, t, x, n=name: getattr(F, n)(x, dim=1), x)
    compare(lambda F, t, x, w: F.prelu(x, w), x, numbers(4))
    compare(lambda F, t, x: F.threshold(x, 0.1, 2.0), x)
    compare(lambda F, t, x: F.gelu(x, approximate="tanh"), x)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_signatures_are_pytorchs(name):
    try:
        wanted = inspect.signature(getattr(theirs, name)).parameters
    except ValueError:
        pytest.skip("PyTorch's function has no signature to read")
    if list(wanted) == ["args", "kwargs"]:
        pytest.skip("PyTorch's function chooses among others")
    found = inspect.signature(getattr(ours, name)).parameters
    assert list(found)[: len(wanted)] == list(wanted)
    for key, p in wanted.items():
        assert found[key].default == p.default or p.default is inspect.Parameter.empty, key
