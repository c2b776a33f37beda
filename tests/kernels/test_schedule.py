"""Elementwise kernels give the same bits in parts, on several threads, as in one go."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.kernels.common import shared_ufuncs
from lowtide.framework.kernels.runtime import threads, thresholds
from lowtide.framework.modes import run_kernel
from lowtide.framework.ops.registry import OPS

ELEMENTWISE = sorted(name for name, op in OPS.items() if op.elementwise is True)
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 1e30, -1e30, 1.0, -1.0)


@pytest.fixture(scope="module")
def pool():
    """Where two more threads wait, for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "LIMIT", 3)
        patch.setattr(threads, "_pool", None)
        return threads._threads()


@pytest.fixture
def three(pool, monkeypatch):
    """Three threads, however many cores there are."""
    monkeypatch.setattr(threads, "LIMIT", 3)
    monkeypatch.setattr(threads, "_wanted", 3)
    monkeypatch.setattr(threads, "_pool", pool)


@pytest.fixture(params=["loops", "slices"])
def tiny(three, request, monkeypatch):
    """Every call is cut as finely as can be, in compiled code or by threads of Python."""
    for name in ("NUMPY_THREADS", "SHARED_UFUNC"):
        monkeypatch.setattr(thresholds, name, 2)
    for name in ("THREAD", "SHARED", "UFUNC_THREAD", "CHUNK"):
        monkeypatch.setattr(thresholds, name, 1)
    for name, value in (("_FEW", 2), ("_LINE", 2), ("_SHORT", 1)):
        monkeypatch.setattr(shared_ufuncs, name, value)
    if request.param == "slices":
        monkeypatch.setattr(shared_ufuncs, "rows_known", lambda: False)
    shared_ufuncs._rows.cache_clear()
    shared_ufuncs._line.cache_clear()
    yield request.param
    shared_ufuncs._rows.cache_clear()
    shared_ufuncs._line.cache_clear()


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def results(op, inputs, attributes):
    op.plans.clear()
    out = testing.call(op, inputs, attributes)
    op.plans.clear()
    outs = out if isinstance(out, tuple) else (out,)
    return [np.array(t.detach().array, copy=True) for t in outs]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_sample_in_parts(name, tiny, monkeypatch):
    op = OPS[name]
    for inputs, attributes in testing.samples(op, testing.Make(lt.float64)):
        inputs = testing.place(inputs)
        cut = results(op, inputs, attributes)
        with monkeypatch.context() as whole:
            whole.setattr(thresholds, "SHARED_UFUNC", 1 << 60)
            expected = results(op, inputs, attributes)
        assert all(same_bits(a, b) for a, b in zip(cut, expected, strict=True))


def test_the_families_take_part():
    assert {"_add", "mul", "exp", "erf", "_where", "masked_fill", "eq", "pow"} <= set(ELEMENTWISE)


@pytest.mark.quick(8)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "name",
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfinv lgamma sigmoid sqrt rsqrt reciprocal square abs neg sign floor".split(),
)
@pytest.mark.compiled
def test_functions_do_not_depend_on_where_an_element_lies(name, dtype, three, monkeypatch):
    n = thresholds.NUMPY_THREADS + 37  # no vector's width divides a part
    x = np.random.default_rng(0).standard_normal(n).astype(dtype) * 3
    x[: len(SPECIAL)] = x[-len(SPECIAL) :] = x[n // 3 : n // 3 + len(SPECIAL)] = SPECIAL
    t = lt.tensor(x)
    assert threads.workers(n, n) > 1
    cut = getattr(t, name)().numpy()
    monkeypatch.setattr(threads, "_wanted", 1)
    assert same_bits(cut, getattr(t, name)().numpy())


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1025, 513), (513,)),
        ((1025, 513), (1025, 1)),
        ((1, 1025, 513), (1025, 513)),
        ((3, 174763), (3, 1)),
        ((2, 3, 300, 301), (3, 1, 1)),
        ((1025, 513), ()),
    ],
)
def test_broadcasting_and_strides(left, right, three):
    random = np.random.default_rng(0)
    x = random.standard_normal(left).astype(np.float32)
    y = random.standard_normal(right).astype(np.float32)
    a, b = lt.tensor(x), lt.tensor(y)
    assert same_bits((a - b).numpy(), x - y)
    assert same_bits((b / a).numpy(), y / x)
    a_t, x_t = a.mT, np.swapaxes(x, -1, -2)
    assert same_bits((a_t * a_t).numpy(), np.ascontiguousarray(x_t * x_t))
    assert same_bits(lt.where(a > b, a, b).numpy(), np.where(x > y, x, y))
    assert same_bits(a.flip(-1)[..., ::2].exp().numpy(), np.exp(x[..., ::-1][..., ::2]))


def test_in_place_and_through_views(three):
    x = np.random.default_rng(0).standard_normal((1100, 1000)).astype(np.float32)
    a = lt.tensor(x)
    a.mul_(a).masked_fill_(a > 1, 0.5)
    expected = x * x
    expected[expected > 1] = 0.5
    assert same_bits(a.numpy(), expected)
    a[:, 100:].add_(1.0)
    expected[:, 100:] += np.float32(1)
    assert same_bits(a.numpy(), expected)


def test_half_and_mixed_types(three):
    x = np.random.default_rng(0).standard_normal(thresholds.NUMPY_THREADS + 5).astype(np.float32)
    half = lt.tensor(x).to(lt.bfloat16)
    wide = half.to(lt.float32).numpy()
    assert same_bits((half * half).to(lt.float32).numpy(), rounded(wide * wide))
    count = lt.arange(len(x))
    assert same_bits((lt.tensor(x) + count).numpy(), x + np.arange(len(x)).astype(np.float32))
    assert same_bits((count // 3 * 2 + 2**70).numpy(), np.arange(len(x)) // 3 * 2)


def rounded(x):
    return lt.tensor(x).to(lt.bfloat16).to(lt.float32).numpy()


def test_a_division_by_zero_is_silent_on_every_thread(three):
    x = np.zeros((2, thresholds.NUMPY_THREADS), np.float32).T[:, :1]  # no rows: slices
    helped = threading.Event()

    def divide(a, b, out):
        if threading.current_thread() is threading.main_thread():
            helped.wait(600)  # so that another thread has a part
        np.true_divide(a, b, out)
        if threading.current_thread() is not threading.main_thread():
            helped.set()

    out = np.empty_like(x)
    assert run_kernel(shared_ufuncs._by_slices, divide, (x, x), out)
    assert helped.is_set()
    assert np.isnan(out).all()


def test_an_estimate_counts_the_operations_and_bytes_of_a_call_in_parts(three):
    from lowtide.profiling import estimate

    def step_of(n):
        x = lt.ones(n, 1024, requires_grad=True)

        def step():
            x.grad = None
            (x * 2).exp().sigmoid().sum().backward()

        return step

    small, large = estimate(step_of(32)), estimate(step_of(1024))  # 2**15 and 2**20 elements
    each = {k: v / (32 * 1024) for k, v in small.flops_by_op.items()}
    assert each == {k: v / (1024 * 1024) for k, v in large.flops_by_op.items()}
    lt.reset_peak_memory_stats()
    step_of(1024)()
    assert lt.max_memory_allocated() == large.peak_bytes
