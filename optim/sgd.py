"""The SGD optimizer."""

from __future__ import annotations

from typing import Any

from ..framework.kernels.formula.update import update
from . import sparse_rows
from .elementwise import Call, Elementwise, first_numbers, penalized, zeros
from .optimizer import check_options, number
from .sparse_rows import is_sparse


@update
def sgd_step(p: Any, g: Any, *, sign: Any, decay: Any, rate: Any) -> Any:
    """``p -= rate d``; d is the gradient."""
    return p - rate * penalized(g, p, sign=sign, decay=decay)


@update
def momentum_step(
    p: Any,
    g: Any,
    buffer: Any,
    *,
    sign: Any,
    decay: Any,
    keep: Any,
    add: Any,
    look: Any,
    rate: Any,
) -> Any:
    """``buffer = keep buffer + add d; p -= rate buffer``, or ``rate (d + look buffer)``."""
    d = penalized(g, p, sign=sign, decay=decay)
    buffer = keep * buffer + add * d
    p = p - rate * (d + look * buffer if look != 0 else buffer)
    return p, buffer


class SGD(Elementwise):
    """Stochastic gradient descent, with optional momentum.

    ``d = g + weight_decay p; buf = momentum buf + (1 - dampening) d; p -= lr buf``, where the first
    ``buf`` is d itself, and Nesterov's form steps by ``d + momentum buf`` instead of ``buf``.

    State: ``momentum_buffer``, one parameter's size, only with momentum.

    Args:
        params: What to optimize.
        lr: Learning rate.
        momentum: Share of the last step that is kept.
        dampening: Share of the gradient that does not enter the buffer.
        weight_decay: L2 penalty.
        nesterov: Look ahead.
        maximize: Climb instead.
        foreach: Ignored, like ``differentiable`` and ``fused``.
        differentiable: No effect.
        fused: No effect.

    Raises:
        ValueError: An option is out of range; Nesterov without momentum or with dampening.

    Source:
        Sutskever et al. 2013, with the learning rate outside the buffer, as PyTorch has it.
    """

    _takes_sparse = True
    _listed = True

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_options("SGD", lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                "SGD: Nesterov momentum requires a momentum and zero dampening; got momentum "
                f"{momentum} and dampening {dampening}."
            )
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def prepare(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Prepare the step of one parameter."""
        if is_sparse(g):
            return sparse_rows.sgd(p, g, state, group)
        first = group["momentum"] != 0 and state.get("momentum_buffer") is None
        if first:
            state["momentum_buffer"] = zeros(p)
        rule, held, numbers = self._step(state, group)
        if first:  # the buffer is the gradient itself
            numbers |= {"keep": 0.0, "add": 1.0}
        return self.planned(rule, (p, g, *held), numbers)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """Nothing: the buffer is made by the first step with momentum."""
        return {}

    def call(self, state: dict[str, Any], group: dict[str, Any]) -> Call | None:
        """Return the step of a parameter; the first one with momentum is another."""
        if group["momentum"] != 0 and state.get("momentum_buffer") is None:
            return None
        return self._step(state, group)

    def _step(self, state: dict[str, Any], group: dict[str, Any]) -> Call:
        share, numbers = group["momentum"], first_numbers(group)
        numbers["rate"] = number(group["lr"])
        if share == 0:
            return sgd_step, (), numbers
        look = share if group["nesterov"] else 0.0
        numbers |= {"keep": share, "add": 1 - group["dampening"], "look": look}
        return momentum_step, (state["momentum_buffer"],), numbers
