"""Compiled kernels that run along a dim or follow indices give what the plain kernels give."""

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.autograd.engine import grad
from lowtide.framework.dtypes import tolerance
from lowtide.framework.ops.registry import OPS


def values(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng((*shape, seed)).standard_normal(shape).astype(dtype)


def run(function, arrays):
    """Results and gradients of a function of tensors."""
    inputs = [lt.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    out = function(*inputs)
    out = out if isinstance(out, tuple) else (out,)
    real = [o for o in out if o.requires_grad]
    ones = [lt.tensor(values(*o.shape, seed=5, dtype=o.detach().numpy().dtype)) for o in real]
    found = grad(real, [x for x in inputs if x.requires_grad], ones, allow_unused=True)
    return [t.detach().numpy() for t in (*out, *found) if t is not None]


def compare(function, arrays, monkeypatch, scale=1.0):
    """The compiled kernels against the plain ones."""
    fast = run(function, arrays)
    for op in OPS.values():
        monkeypatch.setattr(op, "kernels", {})
        monkeypatch.setattr(op, "plans", {})
    for a, b in zip(fast, run(function, arrays), strict=True):
        assert a.dtype == b.dtype
        rtol, atol = (t * scale for t in tolerance(lt.as_tensor(a).dtype))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


SHAPES = [((130, 131), 0), ((130, 131), 1), ((3, 90, 67), 1), ((20000,), 0)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.compiled
def test_running_sums_and_extremes(shape, dim, dtype, monkeypatch):
    x = values(*shape, dtype=dtype)
    x.reshape(-1)[[5, 77]] = 0.25  # equal ones

    def all_of(x):
        top, low = x.cummax(dim), x.cummin(dim)
        return x.cumsum(dim), top.values, low.values, top.indices, low.indices

    compare(all_of, [x], monkeypatch, scale=50)


@pytest.mark.parametrize(("shape", "dim"), [((16, 1200), 0), ((1200, 16), 1), ((30, 16, 60), 1)])
def test_running_products(shape, dim, monkeypatch):
    x = 1 + values(*shape, dtype=np.float64) / 4
    x.reshape(-1)[[3, 700]] = 0.0  # where dividing by an element would fail
    compare(lambda x: x.cumprod(dim), [x], monkeypatch, scale=100)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "dim"), [*SHAPES, ((2, 9000), 1), ((30, 600), None)])
@pytest.mark.compiled
def test_products_and_their_slopes(shape, dim, dtype, monkeypatch):
    x = (1 + values(*shape, dtype=dtype) / 64).astype(dtype)
    x.reshape(-1)[[3, 5]] = 0.0  # where dividing the product by an element would fail
    compare(lambda x: x.prod() if dim is None else x.prod(dim), [x], monkeypatch, scale=100)


def test_a_large_product_of_one_row_and_its_slope_are_exact():
    x = np.ones((3, 8192), np.float32)
    x[0, [0, 100, 8191]] = 2, 0.5, 8
    x[1, [7, 8000]] = 0, 3
    x[2, [1, 2]] = 0, 0
    t = lt.tensor(x, requires_grad=True)
    out = t.prod(1)
    (g,) = grad(out, [t], [lt.ones_like(out)])
    assert out.tolist() == [8, 0, 0]
    assert (g[0].numpy() == 8 / x[0]).all()
    assert g[1].nonzero().tolist() == [[7]]
    assert g[1, 7].item() == 3
    assert not g[2].any()


def test_the_slope_of_a_large_product_has_a_slope():
    x = 1 + values(5, 3300, dtype=np.float64) / 100
    t = lt.tensor(x, requires_grad=True)
    out = t.prod(1)
    (g,) = grad(out, [t], [lt.ones_like(out)], create_graph=True)
    (second,) = grad(g, [t], [lt.ones_like(g)])
    reciprocal = 1 / x  # the sum over all but i of P / (x_i x_j)
    expected = (
        x.prod(1, keepdims=True) * reciprocal * (reciprocal.sum(1, keepdims=True) - reciprocal)
    )
    np.testing.assert_allclose(second.numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("reverse", [False, True])
def test_rows_four_by_four_and_the_rest_are_each_scanned_alone(reverse, monkeypatch):
    from lowtide.framework.ops.reduction.scan import cumprod_along, cumsum_along

    x = 1 + values(7, 2500) / 64
    x[5, 17] = np.inf
    t = lt.tensor(x)
    flipped = x[:, ::-1] if reverse else x
    for op, scan in ((cumsum_along, np.cumsum), (cumprod_along, np.cumprod)):
        found = op(t, dim=1, dtype=lt.float32, reverse=reverse).numpy()
        expected = scan(flipped, axis=1, dtype=np.float64).astype(np.float32)
        assert np.array_equal(found, expected[:, ::-1] if reverse else expected)


def test_running_extremes_of_nan_and_ties_are_the_newest():
    x = np.zeros((2, 20000), np.float32)
    x[0, 7], x[0, 9], x[1, 19999] = 3, 3, np.nan
    found, where = lt.tensor(x).cummax(1)
    assert where[0, :12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 7, 9, 9, 9]
    assert where[1, -2:].tolist() == [19998, 19999]
    assert np.isnan(found.numpy()[1, -1])
    assert not np.isnan(found.numpy()[:, :-1]).any()


def test_a_running_extreme_allocates_its_results_only():
    for device in ("cpu", "meta"):
        x = lt.ones(20000, device=device)
        before = lt.memory_allocated(device)
        lt.reset_peak_memory_stats(device)
        found = x.cummax(0)
        peak = lt.max_memory_allocated(device) - before
        assert peak == found.values.nbytes + found.indices.nbytes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode, dtype, monkeypatch):
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, 50, 700)
    offsets = np.sort(np.concatenate([[0], rng.integers(0, 700, 60)]))

    def reduce(w):
        return F.embedding_bag(lt.tensor(numbers), w, lt.tensor(offsets), mode=mode, padding_idx=3)

    compare(reduce, [values(50, 33, dtype=dtype)], monkeypatch, scale=10)


def test_a_bag_of_nan_has_the_last_one():
    w = values(40, 200)
    w[7, 5] = w[9, 5] = np.nan
    x = lt.tensor(w, requires_grad=True)
    F.embedding_bag(lt.tensor([[7, 9, 11]] * 30), x, mode="max").sum().backward()
    assert x.grad.numpy()[:, 5].tolist() == [30.0 if k == 9 else 0.0 for k in range(40)]


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_of_images(mode, padding, monkeypatch):
    x = values(3, 5, 37, 41, dtype=np.float64)
    grid = np.random.default_rng(2).uniform(-1.2, 1.2, (3, 29, 31, 2))
    compare(
        lambda x, g: F.grid_sample(x, g, mode, padding, False), [x, grid], monkeypatch, scale=100
    )


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("linear", {}),
        ("bilinear", {"align_corners": True}),
        ("bilinear", {"antialias": True}),
        ("bicubic", {}),
        ("nearest", {}),
        ("trilinear", {}),
    ],
)
@pytest.mark.parametrize("factor", [1.7, 0.6])
def test_resizing(mode, options, factor, monkeypatch):
    shapes = {"linear": (3, 5, 1201), "trilinear": (2, 3, 15, 17, 19)}
    x = values(*shapes.get(mode, (3, 5, 37, 41)))
    compare(
        lambda x: F.interpolate(x, scale_factor=factor, mode=mode, **options),
        [x],
        monkeypatch,
        scale=10,
    )


def test_gradients_of_gather_with_indices_that_repeat(monkeypatch):
    x = values(60, 7, 50, dtype=np.float64)
    index = np.random.default_rng(3).integers(0, 7, (60, 9, 50))
    compare(lambda x: x.gather(1, lt.tensor(index)), [x], monkeypatch)


@pytest.mark.parametrize("kind", ["f4", "f8", "i8", "u1", "?"])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extremes_of_every_dtype_and_length(name, kind):
    draws = np.random.default_rng(5)
    for shape in ((7,), (50,), (3, 40), (40, 3), (2, 33, 5), (70, 32), (4, 1), (5, 0, 3)):
        a = (draws.standard_normal(shape) * 3).astype(kind)
        if kind.startswith("f") and a.size:
            a.reshape(-1)[draws.integers(0, a.size, 2)] = np.nan
        for dim in range(len(shape)):
            values, indices = getattr(lt.tensor(a), name)(dim)
            x, found = np.moveaxis(a, dim, 0), np.moveaxis(values.numpy(), dim, 0)
            places = np.moveaxis(indices.numpy(), dim, 0)
            for k in range(len(x)):
                so_far = x[: k + 1].astype("f8")
                best = (np.max if name == "cummax" else np.min)(so_far, axis=0)
                np.testing.assert_array_equal(found[k], best)
                same = (so_far == best) | np.isnan(so_far) & np.isnan(best)
                last = k - np.argmax(same[::-1], axis=0)  # the newest of equal ones
                np.testing.assert_array_equal(places[k], last)


@pytest.mark.parametrize("shape", [(200_000,), (3, 20_000), (5000, 8), (4, 3000, 300)])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_many_float32_are_accumulated_in_float64(name, shape):
    x = lt.rand(*shape) if name == "cumsum" else 1 + lt.randn(*shape) * 1e-4
    dim = 0 if len(shape) == 1 else 1 if shape[1] > 1000 else 0
    found, exact = getattr(x, name)(dim), getattr(x.double(), name)(dim)
    assert ((found.double() - exact).abs() <= exact.abs() * 2.0**-24).all()  # rounded once
