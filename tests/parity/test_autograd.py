"""Random programs of ops, views and writes in place: PyTorch's gradients, or PyTorch's refusal."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

ROWS, COLUMNS = 3, 4
STEPS = 14


def _write_under_no_grad(m: Any, a: Any) -> None:
    with m.no_grad():
        a.mul_(0.5)


def _set_row(m: Any, a: Any, b: Any) -> None:
    a[1] = b[0]


def _set_block(m: Any, a: Any, b: Any) -> None:
    a[:2, 1:3] = b[1:, :2]


def _add_to_column(m: Any, a: Any, b: Any) -> None:
    a[:, 1] += b[:, 2]


# Each takes (module, tensors...) of shape (ROWS, COLUMNS) and returns one of that shape, or None.
MAKE: list[Callable[..., Any]] = [
    lambda m, a, b: a * b,
    lambda m, a, b: a + b,
    lambda m, a, b: -a,
    lambda m, a, b: a * 0.5 + b,
    lambda m, a, b: a * b.sum(0, keepdim=True) * 0.1,
    lambda m, a, b: a.sum(1, keepdim=True).expand(ROWS, COLUMNS) * b,
    lambda m, a, b: (a @ b.t()) @ b * 0.1,
    lambda m, a, b: a.detach() * b,
    lambda m, a, b: m.zeros(ROWS, COLUMNS, dtype=m.float64),
    lambda m, a, b: a.clone(),
]
VIEW: list[Callable[..., Any]] = [
    lambda m, a: a.view(ROWS, COLUMNS),
    lambda m, a: a.t().t(),
    lambda m, a: a.view(COLUMNS, ROWS).view(ROWS, COLUMNS),
    lambda m, a: a[:],
    lambda m, a: a.reshape(-1).view(ROWS, COLUMNS),
    lambda m, a: a.detach(),
]
WRITE: list[Callable[..., Any]] = [
    lambda m, a, b: a.mul_(b),
    lambda m, a, b: a.add_(b),
    lambda m, a, b: a.neg_(),
    lambda m, a, b: a.mul_(3),
    lambda m, a, b: a[0].mul_(b[1]),
    lambda m, a, b: a[1:].add_(b[:1]),
    lambda m, a, b: a.t()[1].mul_(b.t()[2]),
    lambda m, a, b: a.copy_(b),
    lambda m, a, b: a[2].zero_(),
    lambda m, a, b: _set_row(m, a, b),
    lambda m, a, b: _set_block(m, a, b),
    lambda m, a, b: _add_to_column(m, a, b),
    lambda m, a, b: _write_under_no_grad(m, a),
]


OVERWRITE = 7  # the position of copy_


def attempt(run: Callable[[], Any]) -> tuple[Any, type[Exception] | None]:
    """The result, or the type of the error."""
    try:
        return run(), None
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return None, RuntimeError if isinstance(error, RuntimeError) else type(error)


class Both:
    """The same program in both libraries."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        values = np.random.default_rng(seed).uniform(0.5, 1.5, (3, ROWS, COLUMNS))
        self.ours = [
            lt.tensor(v, dtype=lt.float64, requires_grad=k < 2) for k, v in enumerate(values)
        ]
        self.theirs = [torch.tensor(v, requires_grad=k < 2) for k, v in enumerate(values)]
        self.leaves = list(zip(self.ours[:2], self.theirs[:2], strict=True))
        self.log: list[str] = []

    def step(self) -> None:
        kind = self.random.choices(["make", "view", "write"], [3, 2, 3])[0]
        table = {"make": MAKE, "view": VIEW, "write": WRITE}[kind]
        n = self.random.randrange(len(table))
        # Later tensors more often, so that histories grow.
        a = max(self.random.randrange(len(self.ours)), self.random.randrange(len(self.ours)))
        b = self.random.randrange(len(self.ours))
        which = (a,) if kind == "view" else (a, b)
        if kind == "write" and self.ours[a]._storage is self.ours[b]._storage:
            return  # lowtide keeps the old values and PyTorch refuses: tests/autograd/test_inplace
        self.log.append(f"{kind} {n} {which}")
        for t in self.theirs:  # PyTorch notices a rewritten history only when it is asked
            _ = t.grad_fn
        ours, our_error = attempt(lambda: table[n](lt, *[self.ours[k] for k in which]))
        theirs, their_error = attempt(lambda: table[n](torch, *[self.theirs[k] for k in which]))
        assert our_error == their_error, self.log
        if kind != "write" and our_error is None:
            self.ours.append(ours)
            self.theirs.append(theirs)

    def compare_values(self) -> None:
        for k, (ours, theirs) in enumerate(zip(self.ours, self.theirs, strict=True)):
            assert ours.requires_grad == theirs.requires_grad, (self.log, k)
            assert ours.is_leaf == theirs.is_leaf, (self.log, k)
            np.testing.assert_allclose(ours.tolist(), theirs.tolist(), rtol=1e-9, err_msg=str(k))

    def backward(self, create: bool) -> None:
        def run(tensors: list[Any]) -> Any:
            total = tensors[0].sum()
            for t in tensors[1:]:
                total = total + (t * t).sum()
            total.backward(create_graph=create)

        _, our_error = attempt(lambda: run(self.ours))
        _, their_error = attempt(lambda: run(self.theirs))
        overwritten = any(s.startswith(f"write {OVERWRITE} ") for s in self.log)
        if our_error is None and their_error is not None and overwritten:
            return  # what made an overwritten value gets no gradient here, zeros in PyTorch
        assert our_error == their_error, self.log
        if our_error is None:
            self.compare_gradients()

    def compare_gradients(self) -> None:
        for ours, theirs in self.leaves:
            assert (ours.grad is None) == (theirs.grad is None), self.log
            if ours.grad is not None:
                np.testing.assert_allclose(
                    ours.grad.tolist(), theirs.grad.tolist(), rtol=1e-8, err_msg=str(self.log)
                )


@pytest.mark.parametrize("seed", range(200))
def test_random_programs_agree(seed):
    both = Both(seed)
    for _ in range(STEPS):
        both.step()
    both.compare_values()
    both.backward(create=False)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("seed", range(1000, 1030))
def test_random_programs_agree_in_second_derivatives(seed):
    both = Both(seed)
    for _ in range(8):
        both.step()
    both.backward(create=True)
    for k, (ours, theirs) in enumerate(both.leaves):
        if ours.grad is None or not theirs.grad.requires_grad:
            continue
        a, our_error = attempt(
            lambda x=ours: lt.autograd.grad(x.grad.sum(), x, retain_graph=True, allow_unused=True)
        )
        b, their_error = attempt(
            lambda x=theirs: torch.autograd.grad(
                x.grad.sum(), x, retain_graph=True, allow_unused=True
            )
        )
        assert our_error == their_error, both.log
        if our_error is None and b[0] is not None:
            np.testing.assert_allclose(
                a[0].tolist(), b[0].tolist(), rtol=1e-8, err_msg=f"{both.log} {k}"
            )


def both_raise(program: Callable[[Any], Any], phrase: str) -> None:
    for module in (lt, torch):
        with pytest.raises(RuntimeError, match=phrase):
            program(module)


@pytest.mark.parametrize(
    ("program", "phrase"),
    [
        (lambda m: m.ones(3).sum().backward(), "does not require grad and does not have a grad_fn"),
        (
            lambda m: (m.ones(3, requires_grad=True) * 2).backward(),
            "grad can be implicitly created only for scalar outputs",
        ),
        (lambda m: m.ones(3, requires_grad=True).add_(1), "a leaf Variable that requires grad"),
        (
            lambda m: m.ones(3, requires_grad=True)[0].add_(1),
            "a view of a leaf Variable that requires grad",
        ),
        (
            lambda m: m.autograd.grad(
                m.ones(3, requires_grad=True).sum(), m.ones(3, requires_grad=True)
            ),
            "allow_unused",
        ),
        (lambda m: m.ones(3, dtype=m.int64).requires_grad_(), "floating point"),
        (lambda m: (m.ones(3, requires_grad=True) * 2).requires_grad_(False), "leaf"),
        (lambda m: m.ones(3).retain_grad(), "retain_grad on Tensor that has requires_grad=False"),
        (lambda m: m.ones(3).register_hook(print), "that doesn't require gradient"),
        (lambda m: m.ones(3).mul_(m.ones(2)), "size|shape"),
    ],
)
def test_the_same_mistake_raises_the_same_type_and_phrase(program, phrase):
    both_raise(program, phrase)


def test_a_second_backward_and_an_overwritten_value_raise_the_same_phrases():
    def twice(m: Any) -> None:
        x = m.ones(3, requires_grad=True)
        y = (x * x).sum()
        y.backward()
        y.backward()

    def overwritten(m: Any) -> None:
        x = m.ones(3, requires_grad=True) * 1
        y = x * x
        x.add_(1)
        y.sum().backward()

    both_raise(twice, "retain_graph")
    both_raise(overwritten, "modified by an inplace operation")
