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


@pytest.mark.parametrize("seed", range(300))
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


def functions_of(m: Any) -> tuple[Any, Any]:
    class Triple(m.autograd.Function):
        """Returns its input as it is."""

        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 3

    class ProductAndSum(m.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            out = a * b
            ctx.save_for_backward(a, b, out)
            return out, out.sum()

        @staticmethod
        def backward(ctx, g, g_sum):
            a, b, out = ctx.saved_tensors
            total = (g + g_sum) * (out / (a * b))
            return total * b, total * a

    return Triple, ProductAndSum


def _returned_as_is(m: Any, x: Any) -> Any:
    y = functions_of(m)[0].apply(x)
    (y * y).sum().backward()
    return y is x, x.grad.tolist()


def _view_returned_as_is(m: Any, x: Any) -> Any:
    functions_of(m)[0].apply((x * 1)[:2]).sum().backward()
    return x.grad.tolist()


def _several_outputs(m: Any, x: Any) -> Any:
    a, b = functions_of(m)[1].apply(x, x * 2)
    (a.sum() * b).backward()
    return x.grad.tolist()


def _second_derivative(m: Any, x: Any) -> Any:
    _, b = functions_of(m)[1].apply(x, x * 2)
    (g,) = m.autograd.grad(b, x, create_graph=True)
    g.sum().backward()
    return g.tolist(), x.grad.tolist()


def _function_under_no_grad(m: Any, x: Any) -> Any:
    with m.no_grad():
        y = functions_of(m)[0].apply(x * 1)
    return y.requires_grad


def _hessian(m: Any, x: Any) -> Any:
    return m.autograd.functional.hessian(lambda t: (t * t * t).sum(), x).tolist()


def _jvp(m: Any, x: Any) -> Any:
    out, product = m.autograd.functional.jvp(lambda t: t * t, x, x.detach() * 2)
    return out.tolist(), product.tolist(), out.requires_grad, product.requires_grad


def _nested_grad(m: Any, x: Any) -> Any:
    def cubes(t: Any) -> Any:
        return (t * t * t).sum()

    return m.func.grad(lambda t: m.func.grad(cubes)(t).sum())(x.detach()).tolist()


def _pullback(m: Any, x: Any) -> Any:
    out, pull = m.func.vjp(lambda t: (t * t, t.sum()), x.detach())
    found = pull((x.detach(), x.detach().sum()))
    return [t.tolist() for t in out], [t.tolist() for t in found]


@pytest.mark.parametrize(
    "program",
    [
        _returned_as_is,
        _view_returned_as_is,
        _several_outputs,
        _second_derivative,
        _function_under_no_grad,
        _hessian,
        _jvp,
        _nested_grad,
        _pullback,
    ],
    ids=lambda program: program.__name__,
)
def test_functions_and_transforms_agree(program):
    ours = program(lt, lt.tensor([1.0, 2.0, 4.0], dtype=lt.float64, requires_grad=True))
    theirs = program(torch, torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64, requires_grad=True))
    assert ours == theirs
