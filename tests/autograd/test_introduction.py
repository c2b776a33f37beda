"""The worked examples of an introduction to automatic differentiation."""

from __future__ import annotations

import math

import pytest

import lowtide as lt


def test_a_square_and_its_derivative():
    x = lt.tensor(3.0, requires_grad=True)
    y = x**2
    y.backward()
    assert y.item() == 9.0
    assert x.grad.item() == 6.0


def test_a_polynomial_and_its_derivatives():
    x = lt.tensor(2.0, dtype=lt.float64, requires_grad=True)
    y = 3 * x**3 - 2 * x + 1
    (first,) = lt.autograd.grad(y, x, create_graph=True)
    (second,) = lt.autograd.grad(first, x)
    assert (y.item(), first.item(), second.item()) == (21.0, 34.0, 36.0)


def test_two_paths_accumulate():
    x = lt.tensor(2.0, requires_grad=True)
    a = x * 3
    b = x * x
    (a + b).backward()
    assert x.grad.item() == 7.0


def test_gradients_accumulate_until_they_are_cleared():
    x = lt.tensor(2.0, requires_grad=True)
    (x * x).backward()
    (x * x).backward()
    assert x.grad.item() == 8.0
    x.grad = None
    (x * x).backward()
    assert x.grad.item() == 4.0


def test_the_mean_of_a_matrix_product():
    a = lt.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=lt.float64, requires_grad=True)
    b = lt.tensor([[5.0, 6.0], [7.0, 8.0]], dtype=lt.float64, requires_grad=True)
    loss = (a @ b).mean()
    loss.backward()
    assert loss.item() == 33.5
    assert a.grad.tolist() == [[2.75, 3.75], [2.75, 3.75]]
    assert b.grad.tolist() == [[1.0, 1.0], [1.5, 1.5]]


def test_log_times_sine_with_every_intermediate_gradient():
    x = lt.tensor(2.0, dtype=lt.float64, requires_grad=True)
    y = lt.tensor(5.0, dtype=lt.float64, requires_grad=True)
    log = x.log()
    product = x * y
    sine = y.sin()
    total = log + product
    out = total - sine
    for t in (log, product, sine, total, out):
        t.retain_grad()
    out.backward()
    assert out.item() == pytest.approx(math.log(2) + 10 - math.sin(5))
    assert [t.grad.item() for t in (out, total, sine, product, log)] == [1, 1, -1, 1, 1]
    assert x.grad.item() == pytest.approx(5.5)
    assert y.grad.item() == pytest.approx(2 - math.cos(5))


def test_assignment_into_zeros():
    x = lt.tensor([1.0, 2.0, 3.0], dtype=lt.float64, requires_grad=True)
    m = lt.zeros(2, 2, dtype=lt.float64)
    m[0, 0] = x[0] ** 2
    m[0, 1] = x[1] * x[2]
    m[1] = x[1:] * 2
    m.sum().backward()
    assert m.tolist() == [[1.0, 6.0], [4.0, 6.0]]
    assert x.grad.tolist() == [2.0, 5.0, 4.0]


def test_a_jacobian_row_by_row():
    x = lt.tensor([1.0, 2.0, 3.0], dtype=lt.float64, requires_grad=True)
    y = lt.stack([x[0] * x[1], x[1] * x[2]])
    rows = []
    for k in range(2):
        v = lt.zeros(2, dtype=lt.float64)
        v[k] = 1.0
        (row,) = lt.autograd.grad(y, x, v, retain_graph=True)
        rows.append(row.tolist())
    assert rows == [[2.0, 1.0, 0.0], [0.0, 3.0, 2.0]]
    jacobian = lt.autograd.functional.jacobian(lambda x: lt.stack([x[0] * x[1], x[1] * x[2]]), x)
    assert jacobian.tolist() == rows


def test_a_no_grad_middleman_blocks_the_path():
    x = lt.tensor(3.0, requires_grad=True)
    with lt.no_grad():
        middle = x * x
    out = middle * x
    out.backward()
    assert x.grad.item() == 9.0


def test_detach_blocks_one_of_two_paths():
    x = lt.tensor(3.0, requires_grad=True)
    (x * x.detach()).backward()
    assert x.grad.item() == 3.0


def test_control_flow_is_recorded_as_it_ran():
    def f(x: lt.Tensor) -> lt.Tensor:
        y = x * 2
        while y.item() < 100:
            y = y * 2
        return y if y.item() > 120 else y * 3

    x = lt.tensor(1.0, requires_grad=True)
    f(x).backward()
    assert x.grad.item() == 128.0


def test_gradient_descent_finds_the_minimum():
    w = lt.tensor([5.0, -3.0], dtype=lt.float64, requires_grad=True)
    target = lt.tensor([1.0, 2.0], dtype=lt.float64)
    for _ in range(100):
        loss = ((w - target) ** 2).sum()
        w.grad = None
        loss.backward()
        with lt.no_grad():
            w -= 0.1 * w.grad
    assert w.tolist() == pytest.approx([1.0, 2.0], abs=1e-6)


def test_a_softmax_regression_by_hand():
    x = lt.tensor([[1.0, 2.0], [3.0, 1.0]], dtype=lt.float64)
    w = lt.zeros(2, 2, dtype=lt.float64, requires_grad=True)
    logits = x @ w
    probabilities = logits.exp() / logits.exp().sum(1, keepdim=True)
    loss = -(probabilities[0, 0].log() + probabilities[1, 1].log()) / 2
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2))
    # x^T (p - onehot) / n
    assert w.grad.tolist() == [[0.5, -0.5], [-0.25, 0.25]]
