"""Jacobians, Hessians and products with them, against what can be written down by hand."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp


def t(*values: float) -> lt.Tensor:
    return lt.tensor(list(values), dtype=lt.float64)


def square(x: lt.Tensor) -> lt.Tensor:
    return x * x


def cubes(x: lt.Tensor) -> lt.Tensor:
    return (x * x * x).sum()


def mixed(x: lt.Tensor, y: lt.Tensor) -> lt.Tensor:
    return (x * x * y).sum()


def test_vjp():
    out, product = vjp(square, t(1.0, 2.0), t(1.0, 10.0))
    assert out.tolist() == [1.0, 4.0]
    assert product.tolist() == [2.0, 40.0]
    assert not out.requires_grad
    assert not product.requires_grad


def test_vjp_of_a_scalar_needs_no_vector():
    _, product = vjp(cubes, t(1.0, 2.0))
    assert product.tolist() == [3.0, 12.0]
    with pytest.raises(RuntimeError, match="v can only be None"):
        vjp(square, t(1.0, 2.0))


def test_vjp_with_tuples():
    (a, b), (gx, gy) = vjp(lambda x, y: (x * y, x + y), (t(2.0), t(3.0)), (t(1.0), t(10.0)))
    assert (a.tolist(), b.tolist()) == ([6.0], [5.0])
    assert (gx.tolist(), gy.tolist()) == ([13.0], [12.0])


def test_jvp():
    out, product = jvp(square, t(1.0, 2.0), t(1.0, 10.0))
    assert out.tolist() == [1.0, 4.0]
    assert product.tolist() == [2.0, 40.0]


def test_jvp_with_tuples():
    _, (pa, pb) = jvp(lambda x, y: (x * y, x + y), (t(2.0), t(3.0)), (t(1.0), t(10.0)))
    assert (pa.tolist(), pb.tolist()) == ([23.0], [11.0])


def test_jvp_of_a_linear_function():
    _, product = jvp(lambda x: x * 3, t(1.0, 2.0), t(1.0, 10.0))
    assert product.tolist() == [3.0, 30.0]


def test_jacobian():
    assert jacobian(square, t(1.0, 2.0)).tolist() == [[2.0, 0.0], [0.0, 4.0]]


def test_jacobian_has_the_shapes_of_output_and_input():
    x = lt.ones(2, 3, dtype=lt.float64)
    assert jacobian(lambda x: x.sum(1), x).shape == (2, 2, 3)
    assert jacobian(lambda x: x.sum(), x).shape == (2, 3)
    assert jacobian(lambda x: x, lt.ones(0, 3)).shape == (0, 3, 0, 3)


def test_jacobian_with_tuples():
    found = jacobian(lambda x, y: (x * y, x + y), (t(2.0), t(3.0)))
    assert [[block.tolist() for block in row] for row in found] == [
        [[[3.0]], [[2.0]]],
        [[[1.0]], [[1.0]]],
    ]


def test_jacobian_can_be_differentiated():
    x = t(1.0, 2.0).requires_grad_()
    found = jacobian(lambda x: x * x * x, x, create_graph=True)
    found.sum().backward()
    assert x.grad.tolist() == [6.0, 12.0]
    assert not jacobian(square, x).requires_grad


def test_hessian():
    assert hessian(cubes, t(1.0, 2.0)).tolist() == [[6.0, 0.0], [0.0, 12.0]]


def test_hessian_with_tuples():
    ((xx, xy), (yx, yy)) = hessian(mixed, (t(2.0), t(3.0)))
    assert (xx.tolist(), xy.tolist()) == ([[6.0]], [[4.0]])
    assert (yx.tolist(), yy.tolist()) == ([[4.0]], [[0.0]])


def test_hessian_of_a_linear_function_is_zero():
    assert hessian(lambda x: (x * 2).sum(), t(1.0, 2.0)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_hessian_needs_a_scalar():
    with pytest.raises(RuntimeError, match="single element"):
        hessian(square, t(1.0, 2.0))


@pytest.mark.parametrize("product", [vhp, hvp])
def test_products_with_the_hessian(product):
    out, found = product(cubes, t(1.0, 2.0), t(1.0, 10.0))
    assert out.item() == 9.0
    assert found.tolist() == [6.0, 120.0]
    _, (px, py) = product(mixed, (t(2.0), t(3.0)), (t(1.0), t(10.0)))
    assert (px.tolist(), py.tolist()) == ([46.0], [4.0])


@pytest.mark.parametrize("product", [vhp, hvp])
def test_products_with_the_hessian_can_be_differentiated(product):
    x = t(2.0).requires_grad_()
    _, found = product(lambda x: (x * x * x * x).sum(), x, t(1.0), create_graph=True)
    assert found.tolist() == [48.0]
    found.sum().backward()
    assert x.grad.tolist() == [48.0]


def test_strict_refuses_independence():
    x, y = t(1.0), t(2.0)
    with pytest.raises(RuntimeError, match="does not require gradients"):
        jacobian(lambda x: x.detach() * 2, x, strict=True)
    with pytest.raises(RuntimeError, match="independent of input 1"):
        jacobian(lambda x, y: x * 2, (x, y), strict=True)
    with pytest.raises(RuntimeError, match="independent"):
        hessian(lambda x: (x * 2).sum(), x, strict=True)
    assert jacobian(lambda x, y: x * 2, (x, y))[1].tolist() == [[0.0]]


def test_inputs_are_tensors():
    with pytest.raises(TypeError, match="index 1 has type float"):
        jacobian(lambda x, y: x * y, (t(1.0), 2.0))


def test_vectors_have_the_shapes_asked_for():
    with pytest.raises(RuntimeError, match="invalid size"):
        vjp(square, t(1.0, 2.0), t(1.0))
    with pytest.raises(RuntimeError, match="invalid length"):
        vjp(square, t(1.0, 2.0), (t(1.0, 2.0), t(1.0, 2.0)))


def test_nothing_is_accumulated():
    x = t(1.0, 2.0).requires_grad_()
    jacobian(square, x)
    hessian(cubes, x)
    assert x.grad is None


def test_works_under_no_grad():
    with lt.no_grad():
        assert jacobian(square, t(3.0)).tolist() == [[6.0]]
