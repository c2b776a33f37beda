"""Extremes and truth over short rows, which all rows are searched for at once, beside NumPy's."""

import numpy as np
import pytest

import lowtide as lt

SHAPES = [(100, 2), (64, 5), (63, 5), (1000, 16), (300, 17), (70, 32), (65, 33), (3, 40, 7), (3,)]
SHAPES += [(4, 30, 3, 5), (2, 2), (70, 1), (80, 0)]


def drawn(shape, kind, seed=0):
    draws = np.random.default_rng(seed)
    a = (draws.standard_normal(shape) * 50).astype(kind)
    if kind.startswith("f") and a.size:
        a.reshape(-1)[draws.integers(0, a.size, 1 + a.size // 50)] = np.nan
    return a


def dims_of(shape):
    last = len(shape) - 1
    return {(last,), (0,), tuple(range(len(shape))), tuple(range(max(0, last - 1), last + 1))}


@pytest.mark.parametrize("kind", ["f4", "f8", "f2", "i8", "u1"])
@pytest.mark.parametrize("shape", SHAPES)
def test_extremes_of_rows(shape, kind):
    a = drawn(shape, kind)
    for dim in dims_of(shape):
        if 0 in [shape[d] for d in dim]:
            continue
        for keep in (False, True):
            for name, expected in (("amax", np.max), ("amin", np.min)):
                found = getattr(lt.tensor(a), name)(dim, keep).numpy()
                np.testing.assert_array_equal(found, expected(a, axis=dim, keepdims=keep))


@pytest.mark.parametrize("shape", SHAPES)
def test_truth_of_rows(shape):
    a = np.random.default_rng(1).random(shape) > 0.3
    for dim in dims_of(shape):
        for keep in (False, True):
            for name in ("all", "any"):
                found = getattr(lt.tensor(a), name)(dim, keep).numpy()
                np.testing.assert_array_equal(found, getattr(np, name)(a, axis=dim, keepdims=keep))


@pytest.mark.parametrize("kind", ["i8", "i4", "u1", "?"])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_of_integers(shape, kind):
    a = drawn(shape, kind)
    for dim in dims_of(shape):
        for keep in (False, True):
            found = lt.tensor(a).sum(dim, keep)
            assert found.dtype is lt.int64
            expected = np.sum(a, axis=dim, keepdims=keep, dtype=np.int64)
            np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("kind", ["f4", "f8", "i8", "i4"])
def test_the_kth_of_short_and_long_rows(kind):
    for n in (2, 5, 16, 95, 96, 97, 300):
        a = np.round(drawn((20000 // n + 1, n), kind, n) / 20).astype(kind)  # many are equal
        for k in {1, (n + 1) // 2, n}:
            values, indices = lt.tensor(a).kthvalue(k)
            order = np.argsort(a, axis=-1, kind="stable")[:, k - 1]
            np.testing.assert_array_equal(indices.numpy(), order)
            np.testing.assert_array_equal(values.numpy(), a[np.arange(len(a)), order])


def test_rows_that_lie_apart():
    a = drawn((200, 12), "f4")
    for view in (a[:, ::2], a[::3], a.T.copy().T):
        np.testing.assert_array_equal(lt.from_numpy(view).amax(-1).numpy(), view.max(-1))
