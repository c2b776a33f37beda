"""Compiled CPU kernels give what the plain kernels give, for sizes that no vector width divides.

Each case runs an op twice: as dispatched, and with its CPU kernels taken away.
"""

import threading

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.dtypes import tolerance
from lowtide.framework.kernels.common.schedule import parallel_rows
from lowtide.framework.kernels.runtime import blas, threads, thresholds
from lowtide.framework.ops.registry import OPS

N = 1 << 14  # where compiled kernels begin
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 100.0, -100.0, 1e-30)


def values(*shape, seed=0, dtype=np.float32, special=False):
    """Normal values with NaN, infinities and extremes among them, if wanted."""
    array = np.random.default_rng(seed).standard_normal(shape).astype(dtype) * 3
    if special:
        array.reshape(-1)[: len(SPECIAL)] = SPECIAL
    return array


@pytest.fixture
def plainly(monkeypatch):
    """A function that runs another with no compiled kernel."""

    def run(function):
        with monkeypatch.context() as m:
            for op in OPS.values():
                m.setattr(op, "kernels", {})
                m.setattr(op, "plans", {})
            return function()

    return run


def both(function, arrays, plainly):
    """(results and gradients as dispatched, the same from plain kernels), as arrays."""

    def run():
        inputs = [lt.tensor(a).requires_grad_(a.dtype.kind == "f") for a in arrays]
        lt.manual_seed(0)
        out = function(*inputs)
        weights = values(*out.shape, seed=9, dtype=out.detach().numpy().dtype) if out.ndim else 1.0
        (out * lt.tensor(weights)).sum().backward()
        grads = [x.grad.numpy() for x in inputs if x.requires_grad]
        return [out.detach().numpy(), *grads]

    return run(), plainly(run)


def assert_same(fast, plain, scale=1.0):
    """Values, dtypes and the places of NaN agree."""
    for a, b in zip(fast, plain, strict=True):
        assert a.dtype == b.dtype
        rtol, atol = tolerance(lt.float32 if a.dtype == np.float32 else lt.float64)
        np.testing.assert_allclose(a, b, rtol=rtol * scale, atol=atol * scale)


ACTIVATIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.7),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "softsign": F.softsign,
    "mish": F.mish,
    "softplus": lambda x: F.softplus(x, 1.5, 9.0),
    "logsigmoid": F.logsigmoid,
    "sigmoid": lt.sigmoid,
    "erf": lt.erf,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "prelu": lambda x: F.prelu(x, lt.tensor([0.3])),
    "hardtanh": lambda x: F.hardtanh(x, -0.7, 0.3),
    "threshold": lambda x: F.threshold(x, 0.2, -3.0),
    "clamp": lambda x: x.clamp(-0.7, 0.3),
    "clamp_max": lambda x: x.clamp(max=0.3),
    "glu": lambda x: F.glu(x[: len(x) // 2 * 2]),
    "glu of rows": lambda x: F.glu(x[: len(x) // 64 * 64].reshape(-1, 64)),
    "glu along a dim": lambda x: F.glu(x[: len(x) // 64 * 64].reshape(4, -1, 8), 1),
}


@pytest.mark.quick(15)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("count", [N, N + 13])
def test_activations_are_those_of_the_plain_kernels(name, count, plainly):
    assert_same(*both(ACTIVATIONS[name], [values(count)], plainly))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_treat_nan_and_infinity_as_the_plain_kernels(name, plainly):
    def gradient(x):
        return ACTIVATIONS[name](x)

    with np.errstate(all="ignore"):
        assert_same(*both(gradient, [values(N + 3, special=True)], plainly))


def test_activations_of_a_transposed_input_are_those_of_the_plain_kernels(plainly):
    assert_same(*both(lambda x: F.gelu(x.t()), [values(131, 129)], plainly))


NORMS = {
    "batch": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), 7),
    "group": (lambda x, w, b: F.group_norm(x, 2, w, b), 6),
    "instance": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), 7),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.compiled
def test_normalization_is_that_of_the_plain_kernels(name, affine, dtype, plainly):
    norm, channels = NORMS[name]
    arrays = [values(5, channels, 23, 29, dtype=dtype)]
    if affine:
        arrays += [values(channels, seed=1, dtype=dtype), values(channels, seed=2, dtype=dtype)]
        assert_same(*both(norm, arrays, plainly), scale=20)  # sums of 3335 terms, in other orders
    else:
        assert_same(*both(lambda x: norm(x, None, None), arrays, plainly), scale=20)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("channels", [5, 128, 133])
@pytest.mark.compiled
def test_batch_norm_of_features_is_that_of_the_plain_kernel(
    channels, affine, dtype, plainly, monkeypatch
):
    arrays = [values(16000 // channels + 200, channels, dtype=dtype)]
    if affine:
        arrays += [values(channels, seed=1, dtype=dtype), values(channels, seed=2, dtype=dtype)]

    def norm(x, weight=None, bias=None):
        return F.batch_norm(x, None, None, weight, bias, training=True)

    alone = both(norm, arrays, plainly)
    assert_same(*alone, scale=20)
    monkeypatch.setattr(thresholds, "THREAD", 1)
    monkeypatch.setattr(threads, "_wanted", 2)
    for a, b in zip(both(norm, arrays, plainly)[0], alone[0], strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(("shape", "dim"), [((131, 127), 1), ((131, 127), 0), ((7, 61, 43), 1)])
@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
def test_softmax_is_that_of_the_plain_kernel(function, shape, dim, plainly):
    assert_same(*both(lambda x: function(x, dim=dim), [values(*shape)], plainly), scale=4)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
def test_softmax_keeps_nan_and_infinity_in_their_rows(function, dim, plainly):
    x = values(129, 131)
    x[0, 3], x[1, 0], x[2, 5], x[4] = np.nan, np.inf, -np.inf, -np.inf
    x[5, 1] = -np.float32(np.nan)
    x = np.ascontiguousarray(x if dim else x.T)
    fast = function(lt.tensor(x), dim=dim).numpy()
    plain = plainly(lambda: function(lt.tensor(x), dim=dim).numpy())
    assert_same([fast], [plain])


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_cross_entropy_is_that_of_the_plain_kernel(reduction, plainly):
    x, y = values(257, 67), np.random.default_rng(3).integers(0, 67, 257)
    y[5] = -100

    def loss(x):
        return F.cross_entropy(x, lt.tensor(y), reduction=reduction)

    assert_same(*both(loss, [x], plainly), scale=4)


def test_compiled_cross_entropy_refuses_a_class_out_of_range():
    y = np.zeros(257, np.int64)
    y[100] = 67
    with pytest.raises(IndexError, match="Target 67 is out of bounds"):
        F.cross_entropy(lt.tensor(values(257, 67)), lt.tensor(y))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(
    ("queries", "keys", "shared"), [(65, 65, 1), (130, 67, 1), (33, 90, 2), (700, 700, 1)]
)
def test_attention_is_that_of_the_plain_kernel(causal, p, queries, keys, shared, plainly):
    arrays = [
        values(2, 4, queries, 8) / 3,
        values(2, 4 // shared, keys, 8, seed=1) / 3,
        values(2, 4 // shared, keys, 5, seed=2),
    ]

    def attend(q, k, v):
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, dropout_p=p, enable_gqa=shared > 1
        )

    assert_same(*both(attend, arrays, plainly), scale=20)


def run_steps(optimizer, options, size, device="cpu"):
    """The parameter after three steps."""
    p = lt.tensor(values(size), device=device).requires_grad_()
    made = optimizer([p], **options)
    for k in range(3):
        p.grad = lt.tensor(values(size, seed=k + 1), device=device)
        made.step()
    return p


OPTIMIZERS = [
    (lt.optim.Adam, {}),
    (lt.optim.Adam, {"weight_decay": 0.1, "lr": 0.01}),
    (lt.optim.AdamW, {"weight_decay": 0.1, "lr": 0.01}),
    (lt.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (lt.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (lt.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}),
]


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
def test_fused_steps_are_the_plain_steps(optimizer, options, monkeypatch):
    from lowtide.framework import updates

    fast = run_steps(optimizer, options, N + 7).detach().numpy()
    monkeypatch.setattr(updates, "flat_arrays", lambda *_: None)
    plain = run_steps(optimizer, options, N + 7).detach().numpy()
    assert_same([fast], [plain])


@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
def test_fused_steps_peak_at_the_same_bytes_on_meta(optimizer, options):
    def peak(device):
        before = lt.memory_allocated(device)
        lt.reset_peak_memory_stats(device)
        run_steps(optimizer, options, N + 7, device)
        return lt.max_memory_allocated(device) - before

    assert peak("meta") == peak("cpu")


def test_a_fused_step_counts_as_a_write():
    p = run_steps(lt.optim.Adam, {}, N)
    assert p._version == 3


def test_parts_of_arrays_meet_every_element_once():
    n = thresholds.THREAD * 3 + 5
    out, x = np.zeros(n, np.float32), np.arange(n, dtype=np.float32)

    def increase(out, x, amount):
        out += x + amount

    parallel_rows(increase, n, n, out, x, 1)
    np.testing.assert_array_equal(out, x + 1)


def test_shares_of_a_range_meet_every_number_once():
    met = np.zeros(23, int)

    def visit(part, start, stop):
        met[start:stop] += part + 1

    threads.parallel_chunks(visit, 23, 4)
    assert sorted(set(met)) == [1, 2, 3, 4]
    assert (np.diff(met) >= 0).all()


def test_a_failed_share_raises_after_all_have_ended(monkeypatch):
    monkeypatch.setattr(threads, "_wanted", 3)
    ended = []

    def fail(part, start, stop):
        if part == 1:
            raise ValueError("share 1")
        ended.append(part)

    with pytest.raises(ValueError, match="share 1"):
        threads.parallel_chunks(fail, 9, 3)
    assert sorted(ended) == [0, 2]


def test_an_overflow_in_another_thread_is_a_result(monkeypatch):
    monkeypatch.setattr(threads, "_wanted", 2)
    out = np.zeros(4, np.float32)
    big = np.full(4, 3e38, np.float32)
    both = threading.Barrier(2)

    def share(part, start, stop):
        both.wait(600)  # so neither thread runs both
        if threading.current_thread() is not threading.main_thread():
            np.add(big, big, out=out)

    threads.parallel_chunks(share, 4, 2)
    assert np.isinf(out).all()


def test_a_section_with_one_thread_of_blas_puts_the_number_back():
    if not blas.controllable():
        pytest.skip("NumPy's BLAS is none whose threads can be set")
    get, put = blas.NUMPY.controls()
    before = get()
    put(2)
    try:
        assert blas.alone(lambda: (get(), blas.alone(get), get())) == (1, 1, 1)
        assert get() == 2
        with pytest.raises(ValueError, match="inside"):
            blas.alone(int, "inside")
        assert get() == 2
        blas.alone(blas.set_num_threads, 1)  # it holds from the end of the section on
        assert get() == 1
    finally:
        put(before)
