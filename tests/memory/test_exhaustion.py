"""Memory runs out at any allocation: the books stay exact, and everything there stays usable.

Each scenario runs once for each allocation it makes, and that allocation is refused.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend

Leaves = list[lt.Tensor]


def loss_of(w: Leaves) -> lt.Tensor:
    return ((w[0] * w[1]).exp() * w[0]).sum()


def backward(w: Leaves) -> None:
    loss_of(w).backward()


def accumulated(w: Leaves) -> None:
    for _ in range(3):
        loss_of(w).backward()


def in_place(w: Leaves) -> None:
    y = w[0] * w[1]
    y.mul_(w[0])
    y[0].add_(w[1][0])
    y.t()[1].mul_(y[:, 2].clone())
    y.sum().backward()


def views(w: Leaves) -> None:
    base = w[0] * 2
    rows = base[1:3]
    rows.mul_(w[1][1:3])
    flat = base.view(-1)
    flat.add_(1.0)
    base.mul_(base)
    (base.sum() + rows.sum() + flat.sum()).backward()


def second_order(w: Leaves) -> None:
    (g,) = lt.autograd.grad(loss_of(w), w[0], create_graph=True)
    (g * g).sum().backward()


def composed(w: Leaves) -> None:
    ((w[0] @ w[1]).softmax(-1).log() @ w[0].t()).mean().backward()


def converted(w: Leaves) -> None:
    y = (w[0].half() @ w[1].half()).softmax(-1).float()
    y[1:].copy_(w[0][1:].double())
    y.double().add_(w[1]).sum().backward()


def hooked(w: Leaves) -> None:
    y = w[0] * w[1]
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    y.exp().sum().backward()


def packed(w: Leaves) -> None:
    with lt.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        y = (w[0] * w[1]).exp() * w[0]
        y.mul_(w[1])
    y.sum().backward()


class Both(lt.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: lt.Tensor, y: lt.Tensor) -> Any:
        ctx.save_for_backward(x, y)
        return x * y + x, y.exp()

    @staticmethod
    def backward(ctx: Any, g: lt.Tensor, h: lt.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g * y + g, g * x + h * y.exp()


def function(w: Leaves) -> None:
    a, b = Both.apply(w[0], w[1])
    (a * b).sum().backward()


SCENARIOS = [
    backward, accumulated, in_place, views, second_order, composed, converted, hooked, packed,
    function,
]  # fmt: skip


def leaves() -> Leaves:
    lt.manual_seed(0)
    return [lt.randn(4, 4, requires_grad=True) for _ in range(2)]


@contextmanager
def refusing(number: int) -> Iterator[list[int]]:
    """Refuse the allocation of that number; what is yielded counts them."""
    be = backend(lt.device("cpu"))
    plain, made = type(be).empty, [0]

    def empty(spec: Any, role: int = 0) -> Any:
        made[0] += 1
        if made[0] == number:
            be.ledger.refuse(spec.nbytes)
        return plain(be, spec, role)

    be.empty = empty  # type: ignore[method-assign]
    try:
        yield made
    finally:
        del be.empty


def gradients(w: Leaves) -> list[Any]:
    return [None if x.grad is None else x.grad.numpy().copy() for x in w]


def fails(run: Callable[[Leaves], None], w: Leaves) -> bool:
    try:
        run(w)
    except lt.OutOfMemoryError:
        return True
    return False


@pytest.mark.parametrize("run", SCENARIOS, ids=lambda run: run.__name__)
def test_at_every_allocation_of(run: Callable[[Leaves], None]) -> None:
    ledger = backend(lt.device("cpu")).ledger
    w = leaves()
    with refusing(0) as made:
        run(w)
    expected = gradients(w)
    values = [x.detach().numpy().copy() for x in w]
    del w
    gc.collect()
    gc.disable()
    try:
        start = ledger.live
        for number in range(1, made[0] + 1):
            w = leaves()
            with refusing(number):
                failed = fails(run, w)
            assert failed
            assert sum(ledger.roles) == ledger.live
            assert sum(ledger.peak_roles) == ledger.peak
            kept = sum(x.nbytes + (x.grad.nbytes if x.grad is not None else 0) for x in w)
            assert ledger.live == start + kept
            for x, value in zip(w, values, strict=True):
                np.testing.assert_array_equal(x.detach().numpy(), value)
                x.grad = None
            run(w)
            for g, right in zip(gradients(w), expected, strict=True):
                np.testing.assert_array_equal(g, right)
            del w, x, g
        assert ledger.live == start
    finally:
        gc.enable()
    assert made[0] > 4
