"""Differences, integrals and derivatives: edges and messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.testing import check_gradient, check_second_gradient

X = np.random.default_rng(0).standard_normal((4, 5))
AT = lt.tensor([0.0, 0.5, 2.0, 2.5], dtype=lt.float64)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.diff(2),
        lambda x: lt.trapezoid(x, AT, dim=0),
        lambda x: lt.cumulative_trapezoid(x, x.cumsum(1)),
        lambda x: lt.gradient(x, spacing=(AT,), dim=0, edge_order=2)[0],
        lambda x: lt.vander(x[0]),
    ],
)
def test_two_orders_of_gradient_agree_with_finite_differences(f):
    x = lt.tensor(X, requires_grad=True)
    check_gradient(lambda xs: (f(xs[0]),), [x])
    check_second_gradient(lambda xs: (f(xs[0]),), [x])


def test_parabolas_have_exact_derivatives_at_uneven_points():
    (slope,) = lt.gradient(3 * AT * AT - AT, spacing=(AT,), edge_order=2)
    np.testing.assert_allclose(slope.numpy(), 6 * AT.numpy() - 1)


def test_lines_have_exact_integrals():
    y = 2 * AT + 1
    np.testing.assert_allclose(lt.trapezoid(y, AT).item(), 2.5**2 + 2.5)
    np.testing.assert_allclose(lt.cumulative_trapezoid(y, AT).numpy(), (AT**2 + AT)[1:].numpy())


def test_more_differences_than_elements_leave_nothing():
    assert tuple(lt.ones(2, 3).diff(5).shape) == (2, 0)


def test_differences_of_bools_are_exclusive_or():
    assert lt.tensor([True, True, False]).diff().tolist() == [False, True]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: lt.tensor(1.0).diff(), RuntimeError, "at least one-dimensional"),
        (lambda: lt.ones(3).diff(-1), RuntimeError, "order must be non-negative"),
        (lambda: lt.ones(3).diff(prepend=lt.ones(1, 1)), RuntimeError, "same dimension as input"),
        (lambda: lt.trapezoid(lt.ones(3), lt.ones(4)), RuntimeError, "one `x` value"),
        (lambda: lt.trapezoid(lt.ones(3), lt.ones(3), dx=1), TypeError, "either x or dx"),
        (lambda: lt.gradient(lt.ones(3), edge_order=3), RuntimeError, "edge_order=1 and"),
        (lambda: lt.gradient(lt.ones(1)), RuntimeError, "at least edge_order"),
        (lambda: lt.vander(lt.ones(2, 2)), RuntimeError, "one-dimensional"),
    ],
)
def test_errors_say_the_rule(call, error, message):
    with pytest.raises(error, match=message):
        call()
