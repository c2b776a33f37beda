"""Quantiles, modes, histograms, distances: edges, ties, messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.testing import check_gradient, check_second_gradient

X = np.random.default_rng(0).standard_normal((4, 5))


def leaf(values=X):
    return lt.tensor(values, requires_grad=True)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.quantile(0.3, 1),
        lambda x: x.nanquantile(lt.tensor([0.2, 0.7], dtype=lt.float64)),
        lambda x: x.nanmedian(0)[0],
        lambda x: x.cov(),
        lambda x: x.corrcoef(),
        lambda x: x.renorm(2, 0, 1.0),
        lambda x: lt.cdist(x, x[:2] + 3.0),
        lambda x: lt.cdist(x, x[:2] + 3.0, compute_mode="use_mm_for_euclid_dist"),
        lambda x: lt.pdist(x, 3),
        lambda x: lt.combinations(x[0]),
    ],
)
def test_two_orders_of_gradient_agree_with_finite_differences(f):
    check_gradient(lambda xs: (f(xs[0]),), [leaf()])
    check_second_gradient(lambda xs: (f(xs[0]),), [leaf()])


def test_a_quantile_of_two_values_lies_between_them():
    x = lt.tensor([1.0, 3.0])
    ways = ("linear", "lower", "higher", "midpoint", "nearest")
    found = [x.quantile(0.25, interpolation=w).item() for w in ways]
    assert found == [1.5, 1.0, 3.0, 2.0, 1.0]


def test_the_smallest_of_the_most_frequent_values_is_the_mode():
    values, indices = lt.tensor([[3, 1, 3, 1], [4, 3, 2, 1]]).mode()
    assert values.tolist() == [1, 1]
    assert indices.tolist() == [3, 3]


def test_equal_medians_share_the_gradient():
    x = lt.tensor([2.0, float("nan"), 2.0, 5.0, 1.0, 2.0], requires_grad=True)
    x.nanmedian().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.array([1, 0, 1, 0, 0, 1]) / 3, rtol=1e-6)


def test_the_last_interval_has_both_ends():
    x = lt.tensor([0.0, 1.0, 2.0, 3.0, 3.5])
    assert lt.histc(x, 3, 0, 3).tolist() == [1.0, 1.0, 2.0]
    hist, edges = lt.histogram(x, lt.tensor([0.0, 1.0, 3.0]))
    assert (hist.tolist(), edges.tolist()) == ([1.0, 3.0], [0.0, 1.0, 3.0])


def test_equal_points_are_zero_apart_and_have_a_finite_gradient():
    x = leaf(np.ones((30, 3)))
    far = lt.cdist(x, x)
    far.sum().backward()
    assert not far.any()
    assert not x.grad.any()


def test_nan_is_in_no_set():
    x = lt.tensor([1.0, float("nan")])
    assert lt.isin(x, x).tolist() == [True, False]


def test_coordinates_lead_back_to_the_place():
    places = lt.arange(24).reshape(4, 6)
    a, b, c = lt.unravel_index(places, (2, 3, 4))
    assert (a * 12 + b * 4 + c).equal(places)


def test_renorm_writes_in_place():
    x = lt.ones(2, 4)
    assert x.renorm_(2, 0, 1.0) is x
    np.testing.assert_allclose(x.numpy(), 0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: lt.ones(0).quantile(0.5), RuntimeError, "must be non-empty"),
        (lambda: lt.ones(3).quantile(2.0), RuntimeError, "range \\[0, 1\\]"),
        (lambda: lt.arange(3).quantile(0.5), RuntimeError, "float or double"),
        (lambda: lt.ones(3).histc(0), RuntimeError, "bins must be > 0"),
        (lambda: lt.ones(3).histc(3, 2, 1), RuntimeError, "max must be larger"),
        (lambda: lt.ones(2, 2, 2).cov(), RuntimeError, "two or fewer dimensions"),
        (lambda: lt.ones(2).renorm(2, 0, 1.0), RuntimeError, "at least 2 dimensions"),
        (lambda: lt.cdist(lt.ones(2, 2), lt.ones(2, 3)), RuntimeError, "same number of columns"),
        (lambda: lt.pdist(lt.ones(2)), RuntimeError, "only supports 2D"),
        (lambda: lt.combinations(lt.ones(2, 2)), RuntimeError, "Expect a 1D vector"),
        (lambda: lt.isin(1, 2), TypeError, "at least one Tensor"),
        (lambda: lt.unravel_index(lt.ones(2), (2,)), TypeError, "integer dtype"),
    ],
)
def test_errors_say_the_rule(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_too_few_observations_are_warned_of():
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert lt.ones(2, 1).cov().isnan().all()


def test_unique_consecutive_compares_slices_of_a_dim():
    x = lt.tensor([[1, 1, 2], [1, 1, 2], [0, 0, 2], [1, 1, 2]])
    rows, inverse, counts = lt.unique_consecutive(x, True, True, dim=0)
    assert rows.tolist() == [[1, 1, 2], [0, 0, 2], [1, 1, 2]]
    assert inverse.tolist() == [0, 0, 1, 2]
    assert counts.tolist() == [2, 1, 1]
    assert lt.unique_consecutive(x, dim=-1).tolist() == [[1, 2], [1, 2], [0, 2], [1, 2]]
    with pytest.raises(RuntimeError, match="0 sized dimensions"):
        lt.unique_consecutive(lt.ones(2, 0), dim=0)


def test_searching_nothing():
    assert lt.searchsorted(lt.ones(2, 0), lt.ones(2, 3)).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert lt.searchsorted(lt.ones(0, 3), lt.ones(0, 2)).shape == (0, 2)


@pytest.mark.parametrize("name", ["sort", "topk", "kthvalue", "median"])
def test_pairs_go_into_out(name):
    x = lt.tensor([3.0, 1.0, 2.0])
    args = {"sort": (), "topk": (2,), "kthvalue": (2,), "median": (0,)}[name]
    f = getattr(lt, name)
    out = (lt.empty(0), lt.empty(0, dtype=lt.int64))
    values, indices = f(x, *args, out=out)
    assert values is out[0]
    assert indices is out[1]
    assert [t.tolist() for t in out] == [t.tolist() for t in f(x, *args)]
    with pytest.raises(RuntimeError, match="dtype lowtide.int64, but got lowtide.float32"):
        f(x, *args, out=(lt.empty(0), lt.empty(0)))
    with pytest.raises(RuntimeError, match="cannot refer to any of the output memory"):
        f(x, *args, out=(x, lt.empty(0, dtype=lt.int64)))


def test_points_are_counted_in_a_grid():
    points = np.random.default_rng(0).standard_normal((50, 2))
    weight = np.arange(50.0)
    hist, edges = lt.histogramdd(lt.tensor(points), [3, 4], weight=lt.tensor(weight), density=True)
    expected, expected_edges = np.histogramdd(points, [3, 4], weights=weight, density=True)
    np.testing.assert_allclose(hist.numpy(), expected)
    for ours, theirs in zip(edges, expected_edges, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs)
    bins = [lt.tensor([-1.0, 0.0, 2.0]).double(), lt.tensor([0.0, 0.5, 0.7, 1.0]).double()]
    hist = lt.histogramdd(lt.tensor(points), bins).hist
    np.testing.assert_array_equal(
        hist.numpy(), np.histogramdd(points, [b.numpy() for b in bins])[0]
    )
    with pytest.raises(RuntimeError, match="4 elements"):
        lt.histogramdd(lt.tensor(points), 3, range=(0.0, 1.0))
    with pytest.raises(RuntimeError, match="at least 2"):
        lt.histogramdd(lt.tensor(points[0]), 3)


def test_a_histogram_of_half_precision_counts_in_float32():
    x = lt.full((300,), 1.0, dtype=lt.bfloat16)
    got = lt.histc(x, 2, 0, 2)
    assert got.dtype is lt.bfloat16
    assert got.tolist() == [0.0, 300.0]
