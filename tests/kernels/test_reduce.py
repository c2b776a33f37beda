"""Sums and extremes: NumPy's own bits, whoever computes which part."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.common import reduce
from lowtide.framework.kernels.runtime import threads, thresholds

PAIRS = {"total": np.sum, "average": np.mean, "largest": np.max, "smallest": np.min}


def layouts(x):
    """The same values as they lie, in another order in memory, backwards, and repeated."""
    yield x
    yield np.ascontiguousarray(x.T).T
    yield x[..., ::-1]
    yield np.broadcast_to(x[:1], (3, *x.shape[1:]))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((257, 131), (0,)),
        ((257, 131), (1,)),
        ((131, 17, 40), (1,)),
        ((131, 17, 40), (0, 2)),
        ((3, 64, 17, 19), (0, 2, 3)),
        ((2, 40, 3, 257), (1, 2)),
        ((40009, 2), (0,)),
        ((2, 40009), (1,)),
        ((300, 100), (0, 1)),
        ((300, 100), ()),
    ],
)
def test_shared_out_it_gives_the_bits_of_numpy(name, shape, axes, monkeypatch):
    monkeypatch.setattr(thresholds, "COMPILED_SUM", 1 << 60)
    monkeypatch.setattr(thresholds, "NUMPY_THREADS", 1)
    monkeypatch.setattr(thresholds, "THREAD", 1 << 8)
    monkeypatch.setattr(thresholds, "CHUNK", 1 << 7)
    monkeypatch.setattr(threads, "LIMIT", 3)
    monkeypatch.setattr(threads, "_wanted", 3)
    monkeypatch.setattr(threads, "_pool", None)
    random = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for x in layouts(random.standard_normal(shape).astype(dtype)):
            for keepdims in (True, False):
                like = np.sum(x, axis=axes, keepdims=keepdims)
                out, expected = (np.empty(like.shape, dtype) for _ in range(2))
                getattr(reduce, name)(np, x, axes, out, keepdims)
                PAIRS[name](x, axis=axes, keepdims=keepdims, out=expected)
                assert out.tobytes() == expected.tobytes()


def test_nan_is_the_largest_and_the_smallest_wherever_it_lies(monkeypatch):
    monkeypatch.setattr(threads, "_wanted", 2)
    x = np.zeros((1100, 1000), np.float32)
    x[3, 999] = x[1099, 0] = np.nan
    for find in (reduce.largest, reduce.smallest):
        out = np.empty((1, 1000), np.float32)
        find(np, x, 0, out)
        assert np.flatnonzero(np.isnan(out)).tolist() == [0, 999]


def test_nothing_averages_to_nan_and_adds_up_to_zero():
    assert lt.ones(0, 3).mean(0).isnan().all()
    assert lt.ones(0, 3).sum(0).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(IndexError, match="non-zero size"):
        lt.ones(0, 3).amax(0)


def test_large_reductions_of_tensors_on_threads(monkeypatch):
    monkeypatch.setattr(threads, "LIMIT", 3)
    monkeypatch.setattr(threads, "_pool", None)
    x = np.random.default_rng(0).standard_normal((2048, 1031)).astype(np.float32)
    results = []
    for wanted in (1, 3):
        monkeypatch.setattr(threads, "_wanted", wanted)
        t = lt.tensor(x, requires_grad=True)
        found = [t.sum(0), t.mean(1), t.amax(0), t.var(1), t.logsumexp(0), t.norm(dim=1)]
        results.append([f.detach().numpy().tobytes() for f in found])
    assert threads._pool is not None
    assert results[0] == results[1]
    np.testing.assert_array_equal(lt.tensor(x).amax(0).numpy(), x.max(0))


SUMS = [
    ((40000,), 0),
    ((3, 20000), 1),
    ((20000, 3), 0),
    ((300, 129), 0),
    ((300, 129), 1),
    ((300, 129), (0, 1)),
    ((5, 64, 257), 1),
    ((5, 64, 257), (0, 1)),
    ((5, 64, 257), (1, 2)),
    ((5, 64, 257), (0, 2)),
    ((7, 1, 4099), 1),
    ((9, 40, 2), (0, 2)),
    ((3, 5, 7, 11), (0, 2, 3)),
    ((3, 5, 7, 300), (1, 3)),
    ((3, 5, 7, 2, 9), (1, 2, 4)),
    ((3, 5, 7, 2, 9), (0, 2, 4)),
    ((1, 33, 1, 999), (0, 1)),
]


@pytest.mark.parametrize(("shape", "axis"), SUMS)
def test_compiled_sums_are_float64s_and_no_thread_changes_a_bit(shape, axis, monkeypatch):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = x.astype(np.float64).sum(axis)
    bound = 2e-6 * np.abs(x).astype(np.float64).sum(axis) / np.sqrt(x.size / expected.size) + 1e-6
    monkeypatch.setattr(thresholds, "COMPILED_SUM", 1)
    found = []
    lines, run = [], reduce._sum_of_lines
    monkeypatch.setattr(reduce, "_sum_of_lines", lambda *a: lines.append(run(*a)) or lines[-1])
    for wanted in (1, 2, 2):
        monkeypatch.setattr(threads, "_wanted", wanted)
        out = np.empty(expected.shape, np.float32)
        reduce.total(np, x, axis, out, keepdims=False)
        found.append(out)
    assert (np.abs(found[0] - expected) <= bound).all()
    assert all(out.tobytes() == found[0].tobytes() for out in found)
    apart = isinstance(axis, tuple) and axis[-1] - axis[0] >= len(axis)
    assert lines == [axis != (0, 2, 4)] * 3 * apart  # three groups of dims are NumPy's


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
def test_compiled_sums_of_what_is_not_finite(axis, monkeypatch):
    monkeypatch.setattr(thresholds, "COMPILED_SUM", 1)
    x = np.ones((130, 300), np.float32)
    x[3, 7], x[5, 7], x[5, 9], x[9, 9] = np.inf, -np.inf, np.inf, np.inf
    x[70, 200] = np.nan
    with np.errstate(invalid="ignore"):
        expected = x.sum(axis)
    out = np.empty_like(expected)
    reduce.total(np, x, axis, out, keepdims=False)
    np.testing.assert_array_equal(out, expected)


def test_a_large_sum_is_exact_where_float32_is_not():
    x = np.full(1 << 25, 1.0, np.float32)  # one after the other they would stop at 2**24
    out = np.empty((), np.float32)
    reduce.total(np, x, 0, out, keepdims=False)
    assert out == 1 << 25
