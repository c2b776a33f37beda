"""Values and two orders of gradient where formulas meet 0 / 0, infinity, NaN or a bend.

The numbers are those of PyTorch 2.13 on the CPU, which
``tests/parity/test_edge_values.py`` compares on a grid; for sinc those of its series, where PyTorch
has no second gradient.
"""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework import testing

INF, NAN = float("inf"), float("nan")
SMALL = 5e-324


def orders(function, *numbers):
    """Return the value, and by argument the first and the second gradient."""
    leaves = [lt.tensor([v], dtype=lt.float64, requires_grad=True) for v in numbers]
    out = function(*leaves).sum()
    firsts = lt.autograd.grad(out, leaves, create_graph=True)
    seconds = [
        lt.autograd.grad(g.sum(), [x], retain_graph=True, allow_unused=True)[0]
        if g.requires_grad
        else None
        for g, x in zip(firsts, leaves, strict=True)
    ]
    return (
        out.item(),
        [g.item() for g in firsts],
        [0.0 if g is None else g.item() for g in seconds],
    )


@pytest.mark.parametrize(
    ("function", "numbers", "first", "second"),
    [
        (lt.atan2, (0.0, 0.0), [0, 0], [NAN, NAN]),
        (lt.atan2, (0.0, SMALL), [0, 0], [NAN, NAN]),
        (lt.atan2, (1.0, 0.0), [0, -1], [0, 0]),
        (lt.sinc, (0.0,), [0], [-(np.pi**2) / 3]),
        (lt.sinc, (SMALL,), [-(np.pi**2) / 3 * SMALL], [-(np.pi**2) / 3]),
        (lt.sinc, (1e-200,), [-(np.pi**2) / 3 * 1e-200], [-(np.pi**2) / 3]),
        (lambda x: x.clamp(-1, 1), (NAN,), [0], [0]),
        (lambda x: x.clamp(-1, 1), (1.0,), [1], [0]),
        (lambda x: x.clamp(min=0), (INF,), [1], [0]),
        (lambda x: lt.clamp(x, lt.tensor([NAN])), (1.0,), [0], [0]),
        (F.hardsigmoid, (NAN,), [0], [0]),
        (F.hardtanh, (NAN,), [0], [0]),
        (F.leaky_relu, (NAN,), [0.01], [0]),
        (F.relu, (NAN,), [1], [0]),
        (F.elu, (NAN,), [NAN], [NAN]),
        (F.elu, (0.0,), [1], [0]),
        (F.celu, (-0.0,), [1], [0]),
        (F.hardshrink, (NAN,), [0], [0]),
        (F.softshrink, (NAN,), [0], [0]),
        (F.hardswish, (3.0,), [1], [0]),
        (F.hardswish, (NAN,), [NAN], [0]),
        (F.mish, (1e308,), [1], [NAN]),
        (lambda x: F.softplus(x, 2, 6), (3.0,), [0.9975273768433652], [0]),
        (lt.logit, (-0.5,), [NAN], [0]),
        (lt.acosh, (-1.5,), [0.8944271909999159], [1.073312629199899]),
        (lt.special.i1, (SMALL,), [0.5], [0]),
        (lambda x, y: F.huber_loss(x, y, delta=0.5), (0.5, 0.0), [0.5, -0.5], [0, 0]),
    ],
)
def test_gradients_at_edges(function, numbers, first, second):
    _, found, twice = orders(function, *numbers)
    np.testing.assert_allclose(found, first, rtol=1e-9)
    np.testing.assert_allclose(twice, second, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("weight", [1.0, lt.tensor(1.0), lt.tensor([1.0, 1.0])])
def test_lerp_ends_at_its_end(weight):
    assert lt.lerp(lt.tensor([1e8, -INF]), lt.tensor([1.0, 2.0]), weight).tolist()[0] == 1
    start, end = lt.tensor([1e8, 3e38]), lt.tensor([1.0, 1.0])
    assert lt.lerp(start, end, weight).tolist() == [1, 1]


def test_lerp_counts_from_the_nearer_end():
    x, y = lt.tensor([1e16, 1.0], dtype=lt.float64), lt.tensor([1.0, 1e16], dtype=lt.float64)
    assert lt.lerp(x, y, 0.0).tolist() == x.tolist()
    weights = lt.tensor([0.25, 0.75], dtype=lt.float64)
    apart = [lt.lerp(x[k], y[k], weights[k].item()).item() for k in range(2)]
    assert lt.lerp(x, y, weights).tolist() == apart
    half = lt.tensor([INF, 1.0])
    assert lt.lerp(half, lt.tensor([1.0, 3.0]), 0.5).tolist() == [INF, 2]


def test_lerp_has_gradients_on_both_sides_of_a_half():
    x, y = (lt.rand(4, dtype=lt.float64, requires_grad=True) for _ in range(2))
    w = lt.tensor([0.1, 0.49, 0.6, 0.9], dtype=lt.float64, requires_grad=True)
    testing.check_second_gradient(lambda xs: (lt.lerp(*xs),), [x, y, w])


def test_logsumexp_of_infinity():
    # exp(x - logsumexp(x)) is exp(inf - inf) at the infinite one.
    x = lt.tensor([INF, 1.0], requires_grad=True)
    y = x.logsumexp(0)
    (g,) = lt.autograd.grad(y, [x])
    assert y.item() == INF
    np.testing.assert_array_equal(g.numpy(), [NAN, 0])


def test_large_tensors_have_the_same_slope_at_nan():
    # From 16384 elements on, bits are kept, and compiled loops run.
    x = lt.full((20000,), NAN, requires_grad=True)
    for function, slope in (
        (lambda v: v.clamp(-1, 1), 0),
        (F.hardtanh, 0),
        (F.hardsigmoid, 0),
        (F.relu, 1),
        (lambda v: F.leaky_relu(v, 0.5), 0.5),
        (F.softshrink, 0),
        (F.hardshrink, 0),
        (lambda v: F.threshold(v, 0, 0), 1),
    ):
        (g,) = lt.autograd.grad(function(x).sum(), [x])
        assert g.eq(slope).all(), function


def test_a_step_at_nan_is_zero():
    assert lt.heaviside(lt.tensor([NAN, 0.0, 1.0]), lt.tensor(0.5)).tolist() == [0, 0.5, 1]


def test_a_scaled_product_overflows_where_the_scaled_factor_does():
    big = lt.tensor(3e38)
    assert lt.addcmul(lt.tensor(0.0), big, lt.tensor(2.0), value=0.5).item() == big.item()
    assert lt.addcdiv(lt.tensor(0.0), big, lt.tensor(0.5), value=0.5).item() == big.item()


def test_pooling_of_zeros_has_a_gradient():
    x = lt.zeros(1, 1, 4, requires_grad=True)
    (g,) = lt.autograd.grad(F.lp_pool1d(x, 2, 2).sum(), [x], create_graph=True)
    assert g.tolist() == [[[0, 0, 0, 0]]]


@pytest.mark.parametrize("p", [INF, -INF])
def test_infinite_norms_of_nan_have_a_gradient(p):
    x = lt.tensor([[0.0, NAN, 2.0]], requires_grad=True)
    (g,) = lt.autograd.grad(lt.linalg.vector_norm(x, p, 1).sum(), [x])
    assert g.tolist() == [[0, 0, 0]]


def test_running_sums_and_products_pass_infinity():
    x = lt.tensor([[0.0, INF, 0.0]], requires_grad=True)
    (g,) = lt.autograd.grad(x.logcumsumexp(1).sum(), [x])
    assert g.tolist()[0][0] == 1
    x = lt.tensor([[0.0, INF]], requires_grad=True)
    (g,) = lt.autograd.grad(x.prod(1).sum(), [x], create_graph=True)
    assert lt.autograd.grad(g.sum(), [x])[0].tolist() == [[1, 1]]


def test_signs_of_subnormal_complex_numbers():
    assert lt.complex(lt.tensor([0.0]), lt.tensor([-1e-45])).sgn().item() == -1j


@pytest.mark.parametrize("side", [1, 80])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_of_positions_far_away(side, mode):
    image = lt.arange(1.0, 7.0).reshape(1, 1, 2, 3)
    grid = lt.zeros(1, side, side, 2)
    grid[..., 1] = float(np.finfo(np.float32).max)
    grid.requires_grad_()
    out = F.grid_sample(image, grid, mode=mode, align_corners=False)
    assert not out.detach().any()
    (g,) = lt.autograd.grad(out.sum(), [grid], create_graph=True)
    assert not g.detach().any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [0.3, 0.5, 0.6])
def test_second_gradients_of_norms_of_the_largest_numbers(p, dtype):
    """A norm is homogeneous: its second gradient at ``c * x`` is the one at ``x``, over ``c``."""

    def second(x):
        leaf = lt.tensor(x, requires_grad=True)
        out = lt.linalg.vector_norm(leaf, p, 1)
        (first,) = lt.autograd.grad(out.sum(), [leaf], create_graph=True)
        (g,) = lt.autograd.grad(first[:, 0].sum(), [leaf])
        return g.numpy().astype("f8")

    # The small numbers leave the norm below the dtype's limit; a power of 2 changes no digit.
    small = np.random.default_rng(3).uniform(0.0, 2.0**-40, 9)
    x = np.stack([np.ones(9), small], 1).astype(dtype)
    scale = 2.0 ** (np.finfo(dtype).maxexp - 1)
    large = second((x * scale).astype(dtype))
    assert np.isfinite(large).all()
    # The largest number's own is a difference of two terms, one of which is below the limit.
    np.testing.assert_allclose(large[:, 1] * scale, second(x)[:, 1], rtol=1e-3)
