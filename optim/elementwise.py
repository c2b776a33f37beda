"""Base of elementwise optimizers: one update, on every device.

A subclass says what state a parameter has (:meth:`Elementwise.start`), which numbers this step
takes (:meth:`Elementwise.advance`), and the update of an element (``@update``), of which
``framework/updates.py`` makes compiled loops and calls of NumPy. A step whose state exists takes no
memory on the CPU, and cannot fail half-way on any device.

In all updates ``sign`` is -1 to maximize, ``decay`` the L2 penalty that enters the gradient,
``keep`` the factor of decoupled decay, ``a1`` is 1 - b1.

Complex parameters are stepped as pairs of real numbers, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..framework.kernels.formula.formula import formula
from ..framework.kernels.formula.update import Update
from ..framework.ops.creation.fill import full_like, zeros_like
from ..framework.updates import planned_update
from .optimizer import SCALARS, Optimizer, number, own


class Elementwise(Optimizer):
    """Base class of optimizers that update each element independently.

    Attributes:
        rule: The update of a parameter, its gradient and its state.
    """

    rule: Update

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """Return the initial state of a parameter; subclasses define it."""
        raise NotImplementedError

    def advance(
        self, state: dict[str, Any], group: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, float]]:
        """Count the step; return the state tensors and the numbers that the update takes."""
        raise NotImplementedError

    def prepare(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Prepare the step of one parameter."""
        if not state:
            state.update(self.start(p, group))
        held, numbers = self.advance(state, group)
        return self.planned(self.rule, (p, g, *held), numbers)

    def planned(self, rule: Update, tensors: Sequence[Any], numbers: dict[str, float]) -> Any:
        """Return the call of an update of a parameter, its gradient and its state."""
        return planned_update(rule, tensors, numbers, self.elements)

    def state_shape(self, key: str, p: Any) -> tuple[int, ...] | None:
        """Return the parameter's own shape, but for counters."""
        return None if key in SCALARS else tuple(p.shape)


def zeros(p: Any) -> Any:
    """Return zero state of a parameter's shape and dtype."""
    return own(zeros_like(p), p)


def filled(p: Any, value: float) -> Any:
    """Return state filled with ``value``, in both parts for a complex parameter."""
    return own(full_like(p, complex(value, value) if p.is_complex() else value), p)


def first_numbers(group: dict[str, Any]) -> dict[str, float]:
    """Return ``sign`` and ``decay`` of a group whose weight decay is an L2 penalty."""
    sign = -1.0 if group["maximize"] else 1.0
    return {"sign": sign, "decay": number(group["weight_decay"])}


def decay_numbers(group: dict[str, Any], lr: float, decoupled: bool) -> dict[str, float]:
    """Return ``sign``, ``decay`` and ``keep`` of a group whose weight decay may be decoupled."""
    decay = group["weight_decay"]
    return {
        "sign": -1.0 if group["maximize"] else 1.0,
        "decay": 0.0 if decoupled else decay,
        "keep": 1 - lr * decay if decoupled else 1.0,
    }


@formula
def penalized(g: Any, p: Any, *, sign: Any, decay: Any) -> Any:
    """The gradient with its sign and the L2 penalty."""
    return sign * g + decay * p if decay != 0 else sign * g  # 0 times infinity is not 0


@formula
def larger(a: Any, b: Any) -> Any:
    """The larger of two numbers; NaN if one is NaN."""
    return a if a > b or a != a else b


@formula
def sign_of(x: Any) -> Any:
    """-1, 0 or 1; 0 for NaN."""
    return 1 if x > 0 else (-1 if x < 0 else 0)
