"""Distances of all pairs: tiles change nothing, and no matrix of differences is made."""

import math

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.ops.linalg import cdist

EXACT = "donot_use_mm_for_euclid_dist"


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("tile", [1, 7, 40, 1000])
def test_results_do_not_depend_on_the_tile(p, tile, monkeypatch):
    monkeypatch.setattr(cdist, "_ELEMENTS", tile)
    monkeypatch.setattr(thresholds, "COMPILED_HEAVY", 1 << 60)
    # Sizes of its own for each tile: a plan remembers the workspace.
    check_distances(p, {1: 3, 7: 4, 40: 5, 1000: 6}[tile], 4, 3)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
# Several blocks of points, and pairs of points with several tiles of coordinates, too
@pytest.mark.parametrize("sizes", [(4, 5, 2), (3, 5000, 2), (40, 30, 100), (7, 6, 2500)])
def test_compiled_distances(p, sizes):
    check_distances(p, *sizes)


def check_distances(p, points, others, coordinates):
    rng = np.random.default_rng(points)
    x = rng.standard_normal((2, points, coordinates))
    y = rng.standard_normal((2, others, coordinates))
    y[0, 0] = x[0, 0]  # one distance of zero
    a, b = lt.tensor(x, requires_grad=True), lt.tensor(y, requires_grad=True)
    out = lt.cdist(a, b, p, EXACT)
    d = x[:, :, None] - y[:, None]
    np.testing.assert_allclose(
        out.detach().numpy(), np.linalg.norm(d, p, axis=-1), rtol=1e-12, atol=1e-12
    )
    g = rng.standard_normal(out.shape)
    ga, gb = grad(out, [a, b], lt.tensor(g))
    length = np.linalg.norm(d, p, axis=-1)[..., None]
    with np.errstate(all="ignore"):
        if p == np.inf:
            slope = np.sign(d) * (np.abs(d) == length)
        else:
            slope = np.sign(d) * np.abs(d) ** (p - 1) * length ** (1 - p)
    slope = np.where(d == 0, 0, slope) * (p != 0)
    np.testing.assert_allclose(ga.numpy(), (g[..., None] * slope).sum(2), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gb.numpy(), -(g[..., None] * slope).sum(1), rtol=1e-9, atol=1e-12)


def test_compiled_loops_make_nothing_but_the_results():
    x, y = lt.zeros(200, 64, requires_grad=True), lt.ones(100, 64)
    lt.reset_peak_memory_stats()
    before = lt.memory_allocated()
    out = lt.cdist(x, y, 3.0)
    assert lt.max_memory_allocated() - before == out.nbytes
    g = lt.ones_like(out)
    lt.reset_peak_memory_stats()
    before = lt.memory_allocated()
    (gx,) = grad(out, [x], g)
    assert lt.max_memory_allocated() - before == gx.nbytes


def test_the_workspace_is_one_tile_forward_and_backward(monkeypatch):
    monkeypatch.setattr(thresholds, "COMPILED_HEAVY", 1 << 60)
    x = lt.zeros(201, 64, requires_grad=True)
    y = lt.ones(100, 64)
    whole = 201 * 100 * 64 * 4
    tile = (cdist._ELEMENTS // 6400) * 6400 * 4
    lt.reset_peak_memory_stats()
    before = lt.memory_allocated()
    out = lt.cdist(x, y, 3.0)
    assert lt.max_memory_allocated() - before == out.nbytes + tile
    assert lt.memory_allocated() - before == out.nbytes
    lt.reset_peak_memory_stats()
    before = lt.memory_allocated()
    (gx,) = grad(out.sum(), [x])
    assert lt.max_memory_allocated() - before < 3 * tile + gx.nbytes + 3 * out.nbytes < whole


def test_leading_dims_broadcast():
    x, y = lt.randn(3, 1, 4, 2, dtype=lt.float64), lt.randn(2, 5, 2, dtype=lt.float64)
    out = lt.cdist(x, y, 1.0)
    expected = np.abs(x.numpy()[..., :, None, :] - y.numpy()[..., None, :, :]).sum(-1)
    np.testing.assert_allclose(out.numpy(), expected)
    assert lt.cdist(lt.zeros(2, 0), lt.zeros(3, 0)).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("sizes", [(40, 3), (3000, 2), (6, 40)])  # blocks of points, and pairs
def test_distances_of_all_pairs_are_those_of_two_sets(p, sizes):
    rng = np.random.default_rng(sizes[0])
    x = lt.tensor(rng.standard_normal(sizes), requires_grad=True)
    first, second = np.triu_indices(sizes[0], 1)
    between = lt.cdist(x, x.detach(), p, EXACT)
    listed = lt.nn.functional.pdist(x, p)
    np.testing.assert_allclose(listed.tolist(), between.detach().numpy()[first, second])
    g = rng.standard_normal(len(first))
    both = np.zeros((sizes[0], sizes[0]))
    both[first, second] = both[second, first] = g
    (found,) = grad(listed, [x], lt.tensor(g))
    (expected,) = grad(between, [x], lt.tensor(both))
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", [lt.float32, lt.float64], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_distances_by_products_are_finished_in_one_pass(shape, dtype):
    x, y = lt.randn(*shape, 70, 5, dtype=dtype), lt.randn(*shape, 60, 5, dtype=dtype)
    x[..., 3, 2], y[..., 7, 0], y[..., 8, :] = math.nan, math.inf, x[..., 9, :]
    found = lt.cdist(x, y, compute_mode="use_mm_for_euclid_dist")
    square = (x * x).sum(-1, True), (y * y).sum(-1, True)
    expected = (((x @ y.mT) * -2 + square[0]) + square[1].mT).clamp(min=0).sqrt()
    assert lt.equal(found.isnan(), expected.isnan())
    assert lt.allclose(found, expected, rtol=1e-5, atol=1e-3, equal_nan=True)
    assert found.isnan()[..., 3, :].all()


def test_gradients_by_products_where_points_coincide():
    x, g = lt.randn(2, 70, 5, dtype=lt.float64), lt.randn(2, 70, 70, dtype=lt.float64)
    found = []
    for mode in ("use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist"):
        a, b = x.clone().requires_grad_(), lt.zeros(2, 70, 5, dtype=lt.float64, requires_grad=True)
        lengths = lt.cdist(a - a.detach(), b, compute_mode=mode)  # all are zero
        lengths.backward(g)
        assert not lengths.any()
        assert not a.grad.any()
        assert not b.grad.any()
        c, d = x.clone().requires_grad_(), x.flip(1).clone().requires_grad_()
        lt.cdist(c * 3, d, compute_mode=mode).backward(g)
        found.append((c.grad, d.grad))
    for one, other in zip(*found, strict=True):
        assert lt.allclose(one, other, rtol=1e-6, atol=1e-9)
    for k in range(2):  # of one set alone
        points = [(x * 3).requires_grad_(k == 0), x.flip(1).requires_grad_(k == 1)]
        lt.cdist(*points, compute_mode="use_mm_for_euclid_dist").backward(g)
        expected = found[0][k] / (3 if k == 0 else 1)
        assert lt.allclose(points[k].grad, expected)
        assert points[1 - k].grad is None
