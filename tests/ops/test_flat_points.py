"""At zeros and at ties, an op's jvp is the transpose of its gradient.

A jvp is the gradient of the gradient with respect to what flows backward. A rule such as
``where(x == 0, 0, g * slope)`` is right for the gradient. If ``slope`` is NaN there, its own
gradient with respect to ``g`` is NaN. At drawn numbers nothing shows that, so these tests are at
zeros and at whole numbers, which have many ties.
"""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.autograd.engine import grad
from tests.samples import over_samples

# Errors that say that a point is outside of what an op takes: singular matrices.
OUTSIDE = (lt.linalg.LinAlgError, ValueError)


def dense(x):
    return np.array(x.detach().to_dense().numpy())


def at(point, x):
    values = dense(x)
    values = np.zeros_like(values) if point == "zeros" else np.round(values)
    return lt.tensor(values).to(x.dtype).requires_grad_()


def pairing(found, directions):
    """The inner product of gradients, or of what a jvp gives, with directions."""
    sums = [
        (g.to_dense() * v.conj()).sum()
        for g, v in zip(found, directions, strict=True)
        if g is not None
    ]
    return sum(float(s.detach().real) for s in sums)


@over_samples(of=lambda op: bool(op.rules))
@pytest.mark.parametrize("point", ["zeros", "whole numbers"])
def test_jvp_is_the_transpose_of_the_gradient(op, inputs, attributes, point):
    inputs = testing.place(inputs, "cpu", op)
    chosen = testing.differentiable(op, inputs)
    moved = {id(x): at(point, x) for x in chosen}
    try:
        outputs = testing.call(op, [moved.get(id(x), x) for x in inputs], attributes)
    except OUTSIDE:
        return
    outputs = [o for o in outputs if o.requires_grad]
    if not outputs:
        return
    draws = np.random.default_rng(0)
    weights = [
        lt.tensor(draws.standard_normal(o.shape)).to(o.dtype).requires_grad_() for o in outputs
    ]
    gradients = grad(outputs, list(moved.values()), weights, create_graph=True, allow_unused=True)
    linear = [g for g in gradients if g is not None and g.requires_grad]
    if not linear or not all(np.isfinite(dense(g)).all() for g in linear):
        return
    directions = [lt.tensor(draws.standard_normal(g.shape)).to(g.dtype) for g in linear]
    tangents = grad(linear, weights, directions, allow_unused=True)
    np.testing.assert_allclose(
        pairing(tangents, weights), pairing(linear, directions), rtol=1e-8, atol=1e-9
    )


@pytest.mark.parametrize("x", [0.0, 1e-300, 1e-9, 1e-3, 0.0318, 0.0319, 0.3])
def test_sinc_has_three_derivatives_near_zero(x):
    x = lt.tensor(x, dtype=lt.float64, requires_grad=True)
    found, y = [], x.sinc()
    for _ in range(3):
        (y,) = grad(y, [x], create_graph=True)
        found.append(y.item())
    a, t = np.pi, np.pi * x.item()  # of sin(t) / t = 1 - t ** 2 / 6 + t ** 4 / 120 - ...
    terms = [(-1) ** k / float(np.prod(np.arange(1.0, 2 * k + 2))) for k in range(12)]
    expected = []
    series = np.polynomial.Polynomial([x for c in terms for x in (c, 0.0)])
    for order in range(1, 4):
        expected.append(a**order * series.deriv(order)(t))
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-300)


def test_sinc_has_exact_gradients_near_zero_in_float32():
    x = (lt.arange(1, 200) * 1e-4).requires_grad_()
    (found,) = grad(x.sinc().sum(), [x])
    t = np.pi * x.detach().numpy().astype(np.float64)
    np.testing.assert_allclose(found.numpy(), np.pi * (-t / 3 + t**3 / 30 - t**5 / 840), rtol=1e-6)


def test_hardshrink_that_shrinks_nothing_has_a_gradient_everywhere():
    x = lt.tensor([-1.0, 0.0, 0.3], requires_grad=True)
    lt.nn.functional.hardshrink(x, -0.5).sum().backward()
    assert x.grad.tolist() == [1, 1, 1]
