"""Edges of pooling: what is kept, ties, messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad
from lowtide.framework.dtypes import tolerance
from lowtide.framework.ops.pooling import primitives
from lowtide.framework.ops.registry import OPS
from lowtide.nn import functional as F


def numbers(*shape):
    return lt.tensor(np.random.default_rng(len(shape)).standard_normal(shape), requires_grad=True)


def test_max_pool_keeps_one_byte_per_result_and_not_its_input():
    out = F.max_pool2d(numbers(2, 3, 8, 8), 2)
    (kept,) = out.grad_fn.saved
    assert (kept.label, kept.nbytes) == ("_max_pool.index", out.numel())


def test_a_window_of_more_than_256_elements_takes_two_bytes():
    out = F.max_pool2d(numbers(1, 1, 17, 17), 17)
    (kept,) = out.grad_fn.saved
    assert kept.nbytes == 2 * out.numel()


def test_averages_keep_nothing():
    for out in (
        F.avg_pool2d(numbers(1, 2, 6, 6), 2),
        F.adaptive_avg_pool2d(numbers(1, 2, 6, 6), 4),
    ):
        assert not out.grad_fn.saved


def test_the_first_of_equal_elements_wins():
    x = lt.ones(1, 1, 4, requires_grad=True)
    (g,) = grad(F.max_pool1d(x, 2).sum(), [x])
    assert g.tolist() == [[[1.0, 0.0, 1.0, 0.0]]]


def test_overlapping_windows_add_up():
    x = lt.tensor([[[0.0, 5.0, 1.0]]], requires_grad=True)
    (g,) = grad(F.max_pool1d(x, 2, 1).sum(), [x])
    assert g.tolist() == [[[0.0, 2.0, 0.0]]]


def test_integers_can_be_pooled():
    assert F.max_pool1d(lt.tensor([[1, 3, 2, 2]]), 2).tolist() == [[3, 2]]


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ((2, 3, 8, 8), {"kernel_size": 2, "padding": 2}, "at most half"),
        ((2, 3, 8, 8), {"kernel_size": 0}, "greater than zero"),
        ((8, 8), {"kernel_size": 2}, "Expected 3D or 4D"),
        ((2, 3, 2, 8), {"kernel_size": 3}, "Output size is too small"),
    ],
)
def test_mistakes_are_named(shape, arguments, message):
    for function in (F.max_pool2d, F.avg_pool2d):
        with pytest.raises(RuntimeError, match=message):
            function(numbers(*shape), **arguments)


def test_adaptive_sizes_are_checked():
    with pytest.raises(RuntimeError, match="must have 2 elements"):
        F.adaptive_avg_pool2d(numbers(1, 2, 4, 4), (1, 2, 3))
    with pytest.raises(RuntimeError, match="divisor must be not zero"):
        F.avg_pool2d(numbers(1, 2, 4, 4), 2, divisor_override=0)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("dtype", [lt.float32, lt.float64])
@pytest.mark.compiled
def test_the_compiled_kernel_equals_the_plain_one(padding, dilation, dtype, monkeypatch):
    x = numbers(2, 4, 50, 51).detach().to(dtype)
    x[0, 0, 3, 4] = float("nan")
    x.requires_grad_()
    found = []
    for kernels in (None, {}):
        for op in (primitives._max_pool.op, primitives._max_pool_grad.op):
            op.plans.clear()
            if kernels is not None:
                monkeypatch.setattr(op, "kernels", kernels)
        out, index = F.max_pool2d(x, (3, 2), 2, padding, dilation, True, True)
        found.append([out, index, *grad(out, [x], [lt.ones_like(out)])])
        for op in (primitives._max_pool.op, primitives._max_pool_grad.op):
            op.plans.clear()
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def plainly(function, monkeypatch):
    """A function's result with no compiled kernel."""
    with monkeypatch.context() as m:
        for op in OPS.values():
            m.setattr(op, "kernels", {})
            m.setattr(op, "plans", {})
        return function()


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [lt.float32, lt.float64])
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((3, 4, 41, 43), (5, 7)),
        ((2, 4, 50, 60), (5, 6)),
        ((2, 3, 60, 51), 1),
        ((3, 4, 3001), 7),
        ((2, 3, 13, 17, 19), (3, 4, 5)),
        ((40, 7, 9, 8), (11, 3)),
        ((3, 4, 41, 43), (41, 43)),
    ],
)
@pytest.mark.compiled
def test_compiled_adaptive_pooling_equals_the_plain_one(shape, size, dtype, monkeypatch):
    nd = len(shape) - 2
    rng = np.random.default_rng(0)
    values = rng.integers(-4, 5, shape).astype(np.float64)  # many are equal
    values[rng.random(shape) < 0.02] = np.nan
    values[rng.random(shape) < 0.02] = -np.inf
    values[rng.random(shape) < 0.02] = -0.0
    x = lt.tensor(values, dtype=dtype, requires_grad=True)
    largest, mean = (getattr(F, f"adaptive_{kind}_pool{nd}d") for kind in ("max", "avg"))

    def results():
        out, index = largest(x, size, return_indices=True)
        weights = lt.arange(out.numel()).reshape(out.shape).to(dtype)
        finite = mean(x.nan_to_num(1.0, 2.0, 3.0), size)
        slopes = grad(out, [x], [weights]), grad(mean(x, size), [x], [weights])
        return [v.detach().numpy() for v in (out, index, finite, *slopes[0], *slopes[1])]

    fast, plain = results(), plainly(results, monkeypatch)
    for a, b in zip(fast[:2], plain[:2], strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        assert a.dtype == b.dtype
    rtol, atol = tolerance(dtype)
    for a, b in zip(fast[2:], plain[2:], strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        ((2, 2), (2, 2), (0, 0), (1, 1)),
        ((3, 3), (1, 1), (1, 1), (1, 1)),
        ((3, 4), (2, 3), (1, 2), (2, 3)),
        ((20, 30), (20, 30), (0, 0), (1, 1)),
        ((5, 1), (1, 7), (2, 0), (3, 1)),
        ((1, 6), (4, 1), (0, 3), (1, 5)),
    ],
)
@pytest.mark.compiled
def test_compiled_windows_of_ties_and_nan_are_the_plain_ones(
    kernel, stride, padding, dilation, dtype, monkeypatch
):
    rng = np.random.default_rng(1)
    shape = (6, 61, 63)
    values = rng.integers(-2, 3, shape).astype(dtype)
    values[rng.random(shape) < 0.05] = np.nan
    values[rng.random(shape) < 0.2] = -np.inf
    x = lt.tensor(values, requires_grad=True)

    def results():
        out, index = F.max_pool2d(
            x, kernel, stride, padding, dilation, ceil_mode=True, return_indices=True
        )
        weights = lt.arange(out.numel()).reshape(out.shape).to(x.dtype)
        return [v.detach().numpy() for v in (out, index, *grad(out, [x], [weights]))]

    for a, b in zip(results(), plainly(results, monkeypatch), strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "dilation"),
    [
        ((3, 5, 1501), 3, 2, 1, 1),
        ((2, 9001), 4, 1, 2, 3),
        ((2, 9001), 7, 7, 0, 1),
        ((2, 3, 17, 19, 23), 2, 2, 0, 1),
        ((3, 17, 19, 23), (3, 2, 4), (2, 3, 1), (1, 0, 2), 1),
        ((5, 17, 19, 23), (2, 3, 3), (1, 1, 3), (1, 1, 1), (3, 1, 2)),
    ],
)
def test_compiled_windows_of_signals_and_volumes_are_the_plain_ones(
    shape, kernel, stride, padding, dilation, dtype, monkeypatch
):
    rng = np.random.default_rng(2)
    values = rng.integers(-2, 3, shape).astype(dtype)
    values[rng.random(shape) < 0.05] = np.nan
    values[rng.random(shape) < 0.2] = -np.inf
    x = lt.tensor(values, requires_grad=True)
    pool = F.max_pool1d if len(shape) < 4 else F.max_pool3d

    def results():
        out, index = pool(x, kernel, stride, padding, dilation, ceil_mode=True, return_indices=True)
        weights = lt.arange(out.numel()).reshape(out.shape).to(x.dtype)
        return [v.detach().numpy() for v in (out, index, *grad(out, [x], [weights]))]

    for a, b in zip(results(), plainly(results, monkeypatch), strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def test_means_of_integers_are_cut_off_towards_zero():
    x = lt.tensor([[[-7, 0, 7, 0]]])
    assert F.avg_pool1d(x, 2).tolist() == [[[-3, 3]]]


def test_only_the_batch_may_be_empty():
    assert F.max_pool1d(lt.zeros(0, 2, 4), 2).shape == (0, 2, 2)
    for pool in (F.max_pool1d, F.avg_pool1d):
        with pytest.raises(RuntimeError, match="0 dim batch"):
            pool(lt.zeros(2, 0, 4), 2)
    with pytest.raises(ValueError, match="3D or 4D"):
        F.adaptive_avg_pool2d(lt.zeros(2, 2), (1, 1))


def test_the_divisors_of_windows_are_the_elements_that_they_cover():
    draws = np.random.default_rng(3)
    for _ in range(300):
        n, k, s = (int(v) for v in draws.integers(1, 9, 3))
        k = min(k, n)
        p = int(draws.integers(0, k // 2 + 1))
        ceil, include = (bool(v) for v in draws.integers(0, 2, 2))
        m = primitives._pooled_size(n, k, s, p, 1, ceil)
        spans = []
        for o in range(m):
            padded = [i for i in range(o * s - p, o * s - p + k) if i < n + p]
            spans.append(len(padded) if include else sum(0 <= i < n for i in padded))
        found = primitives._counts(np, (n,), (m,), (k,), (s,), (p,), include, None, "float32")
        assert np.array_equal(np.broadcast_to(found, m), spans)
        both = primitives._counts(
            np, (n, 4), (m, 2), (k, 2), (s, 2), (p, 0), include, None, "float32"
        )
        assert np.array_equal(np.broadcast_to(both, (m, 2)), np.outer(spans, [2, 2]))
