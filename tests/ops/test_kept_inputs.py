"""Ops that keep what they were given and make the rest again: bytes, and the results of that.

Indices, weights, pairs and products of elements follow from the inputs, so nothing of them is kept.
The compiled kernels are met here at sizes for which they serve, beside plain compositions.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.ops.vision.grid_sample_composite import composed
from lowtide.framework.testing import check_gradient, check_second_gradient
from tests.ops.test_kept import kept


def numbers(*shape, seed=0, low=-1.0, high=1.0):
    return np.random.default_rng(seed).uniform(low, high, shape)


def leaf(array):
    return lt.tensor(array, requires_grad=True)


def same(ours, plain, *leaves, rtol=1e-9):
    """Whether two functions of leaves agree in values and in gradients."""
    got, wanted = ours(*leaves), plain(*leaves)
    np.testing.assert_allclose(got.detach().numpy(), wanted.detach().numpy(), rtol=rtol, atol=1e-9)
    weight = lt.tensor(numbers(*wanted.shape, seed=9))
    for a, b in zip(
        lt.autograd.grad((got * weight).sum(), leaves),
        lt.autograd.grad((wanted * weight).sum(), leaves),
        strict=True,
    ):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=rtol, atol=1e-9)


# What is kept


def row_numbers(*shape):
    return lt.arange(math.prod(shape)).reshape(*shape) % 50


BAGS = {  # extra arguments, bytes beyond the 8 an entry of the row numbers
    "sum": ({"mode": "sum"}, 0),
    "mean": ({"mode": "mean"}, 0),
    "mean without padding": ({"mode": "mean", "padding_idx": 3}, 0),
    "by frequency": ({"mode": "sum", "scale_grad_by_freq": True}, 0),
}


@pytest.mark.parametrize("name", BAGS)
def test_a_bag_keeps_its_row_numbers(name):
    how, more = BAGS[name]
    found = kept(lambda w: F.embedding_bag(row_numbers(64, 16), w, **how), (50, 8))
    assert found == {"embedding_bag.source": 64 * 16 * 8 + more}

    def with_offsets(w):
        return F.embedding_bag(row_numbers(1024), w, lt.arange(64) * 16, **how)

    assert kept(with_offsets, (50, 8)) == {
        "embedding_bag.source": 64 * 16 * 8,
        "embedding_bag.offsets": 64 * 8,
    }


def test_a_weighted_bag_keeps_weights_and_table():
    def weighted(w, f):
        return F.embedding_bag(row_numbers(64, 16), w, mode="sum", per_sample_weights=f)

    found = kept(weighted, (50, 8), (64, 16))
    assert found == {
        "embedding_bag.source": 64 * 16 * 8,
        "embedding_bag.weights": 64 * 16 * 4,
        "embedding_bag.table": 50 * 8 * 4,
    }


def test_an_embedding_by_frequency_keeps_its_row_numbers():
    found = kept(lambda w: F.embedding(row_numbers(64, 16), w, scale_grad_by_freq=True), (50, 8))
    assert sum(found.values()) == 64 * 16 * 8


def test_bilinear_keeps_its_operands():
    assert kept(F.bilinear, (64, 12), (64, 10), (7, 12, 10), (7,)) == {
        "trilinear.a": 64 * 12 * 4,
        "trilinear.b": 64 * 10 * 4,
        "trilinear.weight": 7 * 120 * 4,
    }


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_samples_of_images_keep_image_and_grid(mode):
    image, grid = (4, 8, 16, 16), (4, 12, 12, 2)
    of_image, of_grid = (4 * math.prod(shape) for shape in (image, grid))

    def sampled(x, at):
        return F.grid_sample(x, at, mode, align_corners=False)

    assert kept(sampled, image, grid) == {
        "grid_sample.input": of_image,
        "grid_sample.grid": of_grid,
    }
    assert kept(lambda x: sampled(x, lt.rand(*grid)), image) == {"grid_sample.grid": of_grid}


def test_an_affine_grid_keeps_nothing():
    assert kept(lambda t: F.affine_grid(t, (4, 1, 9, 7), align_corners=True), (4, 2, 3)) == {}


def test_margins_of_labels_keep_input_and_target():
    def loss(x):
        return F.multilabel_margin_loss(x, lt.arange(320).reshape(32, 10) % 10 - 1)

    assert kept(loss, (32, 10)) == {
        "multilabel_margin.input": 1280,
        "multilabel_margin.target": 2560,
    }


def test_distances_keep_points_and_distances():
    points, pairs = 64 * 16 * 4, 64 * 63 // 2 * 4
    assert kept(F.pdist, (64, 16)) == {"pdist.input": points, "pdist.out": pairs}
    for p in (2.0, 3.0):
        found = kept(lambda x, y, p=p: lt.cdist(x, y, p), (64, 16), (32, 16))
        assert sum(found.values()) == points + points // 2 + 64 * 32 * 4


def test_of_a_mask_the_smaller_is_kept_itself_or_its_places():
    def every(n, count=4000):
        return lt.arange(count) % n == 0

    assert kept(lambda x: x[every(3)], (4000,)) == {"index_masked.mask": 4000}
    assert kept(lambda x: x[every(100)], (4000,)) == {"index.index": 40 * 8}
    assert kept(lambda x: x[every(2, 40)], (40, 100)) == {"index_masked.mask": 40}
    found = kept(lambda x, y: x.masked_scatter(every(3), y), (4000,), (4000,))
    assert found == {"masked_scatter.mask": 4000}


def test_order_statistics_keep_the_places_of_what_they_chose():
    assert kept(lambda x: x.nanmedian(dim=-1)[0], (20, 30)) == {"gather.index": 20 * 8}
    found = kept(lambda x: x.quantile(0.3, dim=-1), (20, 30))
    assert sum(found.values()) <= 20 * (2 * 8 + 4)


def test_an_absolute_error_keeps_two_bits_an_element():
    assert kept(F.l1_loss, (128, 128), (128, 128)) == {
        "absolute_error_with_bitmask.above": 128 * 16,
        "absolute_error_with_bitmask.apart": 128 * 16,
    }
    assert kept(F.l1_loss, (8, 8), (8, 8)) == {
        "absolute_error.input": 256,
        "absolute_error.target": 256,
    }


def test_rarer_products_keep_their_operands():
    assert kept(lt.special.xlog1py, (40,), (40,)) == {"xlog1py.input": 160, "xlog1py.other": 160}
    assert sum(kept(lt.ldexp, (40,), (40,)).values()) == 2 * 160


# What is made again is right


SAMPLINGS = [
    pytest.param(mode, padding, align, volume, marks=pytest.mark.deep if volume else ())
    for mode in ("bilinear", "nearest", "bicubic")
    for padding in ("zeros", "border", "reflection")
    for align in (True, False)
    for volume in (False, True)
    if not (volume and mode == "bicubic")
]


@pytest.mark.parametrize(("mode", "padding", "align", "volume"), SAMPLINGS)
def test_compiled_samples_are_those_of_the_composition(mode, padding, align, volume):
    sizes, to = ((4, 5, 6), (4, 7, 13)) if volume else ((9, 11), (20, 31))  # several tiles
    x = leaf(numbers(2, 3, *sizes))
    grid = leaf(numbers(2, *to, len(sizes), seed=1, low=-1.7, high=1.7))
    how = mode, padding, align
    if mode != "nearest":
        same(lambda *xs: F.grid_sample(*xs, *how), lambda *xs: composed(*xs, *how), x, grid)
        return
    same(lambda x: F.grid_sample(x, grid, *how), lambda x: composed(x, grid, *how), x)
    F.grid_sample(x, grid, *how).sum().backward()
    assert bool((grid.grad == 0).all())


def test_positions_that_are_no_numbers_count_as_pytorchs_do():
    x = leaf(numbers(1, 2, 20, 20))
    grid = numbers(1, 30, 30, 2, seed=1)
    grid[0, 3, 4], grid[0, 5, 6, 0], grid[0, 7, 7, 1] = np.nan, np.inf, -np.inf
    outside = F.grid_sample(x, lt.tensor(grid), padding_mode="zeros", align_corners=True)
    assert bool(outside[0, :, [3, 5, 7], [4, 6, 7]].isnan().all())  # a weight is NaN
    border = F.grid_sample(x, lt.tensor(grid), padding_mode="border", align_corners=True)
    assert bool((border[0, :, 3, 4] == x[0, :, 0, 0]).all())
    assert bool(border.isfinite().all())


def test_second_gradients_of_samples_go_through_the_composition():
    x, grid = leaf(numbers(1, 2, 4, 5)), leaf(numbers(1, 2, 3, 2, seed=1, low=-0.9, high=0.9))

    def sampled(xs):
        return [F.grid_sample(*xs, "bicubic", "zeros", False)]

    check_gradient(sampled, [x, grid])
    check_second_gradient(sampled, [x, grid])


@pytest.mark.parametrize("sizes", [(40, 3, 30, 20), (40, 30, 3, 20), (40, 20, 30, 3), (7, 9, 9, 1)])
def test_bilinear_is_a_sum_over_both_inputs(sizes):
    rows, m, n, o = sizes
    leaves = leaf(numbers(rows, m)), leaf(numbers(rows, n, seed=1)), leaf(numbers(o, m, n, seed=2))
    same(F.bilinear, lambda a, b, w: lt.einsum("ri,rj,kij->rk", a, b, w), *leaves)


def test_bilinear_in_tiles_is_the_same(monkeypatch):
    from lowtide.framework.ops.linalg import bilinear

    leaves = leaf(numbers(10, 4)), leaf(numbers(10, 5, seed=1)), leaf(numbers(3, 4, 5, seed=2))
    monkeypatch.setattr(bilinear, "_ELEMENTS", 30)
    for name in ("_trilinear", "_trilinear_weight"):
        monkeypatch.setattr(bilinear.op.__globals__["OPS"][name], "plans", {})
    same(F.bilinear, lambda a, b, w: lt.einsum("ri,rj,kij->rk", a, b, w), *leaves)


def margins(x, target):
    """The loss of one row, pair by pair."""
    right = []
    for t in target:
        if t < 0:
            break
        right.append(int(t))
    wrong = [j for j in range(len(x)) if j not in right]
    terms = [(1 - x[i] + x[j]).clamp_min(0) for i in right for j in wrong]
    return sum(terms, start=x[0] * 0) / len(x)


@pytest.mark.parametrize("shape", [(3, 5), (70, 60)])  # plain and compiled
def test_margins_of_labels_are_those_of_all_pairs(shape):
    rows, classes = shape
    x, target = leaf(numbers(*shape, low=-2, high=2)), np.full(shape, -1)
    for n in range(rows):
        some = [(3 * n + 2 * k) % classes for k in range(n % 4)]
        target[n, : len(some)] = some
        target[n, classes - 1] = 4 if len(some) < classes - 1 else -1  # after the end
    target[1, :3] = 2, 2, 0  # one class twice
    t = lt.tensor(target)

    def plain(x):
        return lt.stack([margins(row, line) for row, line in zip(x, target, strict=True)])

    same(lambda x: F.multilabel_margin_loss(x, t, reduction="none"), plain, x)


@pytest.mark.parametrize("shape", [(3, 5), (70, 60)])
def test_a_class_out_of_range_is_refused(shape):
    target = lt.full(shape, -1)
    target[-1, 0] = shape[1]
    with pytest.raises(RuntimeError, match=rf"class {shape[1]} in target is out of range"):
        F.multilabel_margin_loss(lt.zeros(*shape), target)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("n", [5, 40])  # plain and compiled
def test_distances_of_pairs_are_the_norms_of_differences(n, p):
    points = numbers(n, 6)
    points[2] = points[1]  # one pair is no distance apart
    x, (first, second) = leaf(points), np.triu_indices(n, 1)
    norms = lambda x: lt.linalg.vector_norm(x[first] - x[second], p, dim=-1)  # noqa: E731
    if p >= 1:
        same(lambda x: F.pdist(x, p), norms, x)
    else:
        np.testing.assert_allclose(F.pdist(x, p).detach(), norms(x).detach(), atol=1e-9)


def test_euclidean_distances_by_a_product_have_the_gradient_of_the_others():
    x, y = leaf(numbers(2, 30, 6)), leaf(numbers(28, 6, seed=1))
    ways = ("use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
    same(*[lambda a, b, w=w: lt.cdist(a, b, compute_mode=w) for w in ways], x, y)


def test_ties_of_an_absolute_error_have_no_slope():
    x, y = numbers(130, 130), numbers(130, 130, seed=1)
    y[::7] = x[::7]
    a, b = leaf(x), leaf(y)
    F.l1_loss(a, b, reduction="sum").backward()
    assert bool((a.grad == lt.tensor(np.sign(x - y))).all())
    assert bool((b.grad == -a.grad).all())


def test_a_mask_changed_after_it_was_read_is_refused():
    x, mask = leaf(numbers(300)), lt.arange(300) % 2 == 0
    y = (x * 2)[mask]
    mask[1] = True
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("how", [{}, {"padding_idx": 3}, {"scale_grad_by_freq": True}])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_are_sums_of_rows(mode, how):
    entries, table = row_numbers(41, 13), leaf(numbers(50, 9))
    weights = entries != how.get("padding_idx", -1)
    counts = lt.zeros(50).scatter_add(0, entries.reshape(-1), lt.ones(41 * 13))

    def plain(table):
        rows = F.embedding(entries, table) * weights.unsqueeze(-1)
        return rows.sum(1) / weights.sum(1, True).clamp_min(1) if mode == "mean" else rows.sum(1)

    offsets = lt.arange(41) * 13
    for bags in (
        lambda table: F.embedding_bag(entries, table, mode=mode, **how),
        lambda table: F.embedding_bag(entries.reshape(-1), table, offsets, mode=mode, **how),
    ):
        if "scale_grad_by_freq" not in how:
            same(bags, plain, table)
            continue
        (got,) = lt.autograd.grad(bags(table).sum(), table)
        (wanted,) = lt.autograd.grad(plain(table).sum(), table)
        np.testing.assert_allclose(got, wanted / counts.unsqueeze(1).double())


def test_bags_without_entries_are_zero_wherever_they_are():
    entries = lt.tensor([4, 1, 4])
    offsets = lt.tensor([0, 0, 2, 2, 3, 3])
    table = leaf(numbers(5, 2))
    bags = F.embedding_bag(entries, table, offsets, mode="sum")
    empty = [0, 2, 4, 5]
    assert bool((bags[empty] == 0).all())
    assert bool((bags[1] == table[4] + table[1]).all())
    assert bool((bags[3] == table[4]).all())
