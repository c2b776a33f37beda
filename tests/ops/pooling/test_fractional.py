"""Fractional max pooling against a loop over its windows."""

from itertools import product

import numpy as np
import pytest

import lowtide as lt
from lowtide.nn import functional as F


def starts(u, n, k, m):
    if m == 1:
        return [n - k]
    step = (n - k) / (m - 1)
    return [int((i + u) * step) - int(u * step) for i in range(m - 1)] + [n - k]


def pooled(plane, u, kernel, size):
    """Values and flat indices of one plane; ``u`` in the order of the dims."""
    at = [starts(*a) for a in zip(u, plane.shape, kernel, size, strict=True)]
    values, indices = np.empty(size), np.empty(size, np.int64)
    for place in product(*map(range, size)):
        corner = [at[d][i] for d, i in enumerate(place)]
        window = plane[tuple(slice(c, c + k) for c, k in zip(corner, kernel, strict=True))]
        best = np.unravel_index(window.argmax(), window.shape)
        values[place] = window[best]
        indices[place] = np.ravel_multi_index(np.add(corner, best), plane.shape)
    return values, indices


@pytest.mark.parametrize(
    ("shape", "kernel", "size"),
    [
        ((2, 3, 9, 8), (3, 2), (4, 5)),
        ((1, 1, 4, 4), (2, 2), (1, 3)),
        ((1, 2, 6, 7, 5), (2, 3, 1), (3, 4, 5)),
    ],
)
def test_every_window_of_every_plane(shape, kernel, size):
    rng = np.random.default_rng(0)
    nd = len(kernel)
    x, u = rng.standard_normal(shape), rng.random((*shape[:2], nd))
    pool = {2: F.fractional_max_pool2d, 3: F.fractional_max_pool3d}[nd]
    t = lt.tensor(x, requires_grad=True)
    out, index = pool(
        t, kernel, output_size=size, return_indices=True, _random_samples=lt.tensor(u)
    )
    order = u[..., ::-1] if nd == 2 else u  # in two dims the width comes first
    for n, c in product(range(shape[0]), range(shape[1])):
        values, where = pooled(x[n, c], order[n, c], kernel, size)
        np.testing.assert_array_equal(out[n, c].detach().numpy(), values)
        np.testing.assert_array_equal(index[n, c].numpy(), where)
    out.sum().backward()
    expected = np.zeros((*shape[:2], int(np.prod(shape[2:]))))
    for n, c in product(range(shape[0]), range(shape[1])):
        np.add.at(expected[n, c], index[n, c].numpy().ravel(), 1)
    np.testing.assert_array_equal(t.grad.numpy(), expected.reshape(shape))


def test_the_places_are_drawn_anew_and_repeat_with_the_seed():
    x = lt.randn(1, 4, 20, 20)
    lt.manual_seed(1)
    first = F.fractional_max_pool2d(x, 2, output_ratio=0.7)
    second = F.fractional_max_pool2d(x, 2, output_ratio=0.7)
    lt.manual_seed(1)
    again = F.fractional_max_pool2d(x, 2, output_ratio=0.7)
    assert first.shape == (1, 4, 14, 14)
    assert not first.equal(second)
    assert first.equal(again)
    assert len(F.fractional_max_pool2d_with_indices(x, 2, output_size=3)) == 2


def test_nan_wins():
    x = lt.zeros(1, 1, 4, 4)
    x[0, 0, 1, 1] = float("nan")
    assert F.fractional_max_pool2d(x, 4, output_size=1).isnan().all()


def test_what_cannot_be_is_refused():
    x = lt.zeros(1, 1, 4, 4)
    with pytest.raises(ValueError, match="not both"):
        F.fractional_max_pool2d(x, 2)
    with pytest.raises(ValueError, match="between 0 and 1"):
        F.fractional_max_pool2d(x, 2, output_ratio=1.5)
    with pytest.raises(RuntimeError, match="too large"):
        F.fractional_max_pool2d(x, 3, output_size=3)
    with pytest.raises(RuntimeError, match="non-zero channels"):
        F.fractional_max_pool2d(lt.zeros(1, 0, 4, 4), 2, output_size=1)
    with pytest.raises(RuntimeError, match="for each plane"):
        F.fractional_max_pool2d(x, 2, output_size=2, _random_samples=lt.zeros(1, 1, 3))
