"""The RMSprop optimizer."""

from __future__ import annotations

from typing import Any

from ..framework.kernels.formula.functions import sqrt
from ..framework.kernels.formula.update import update
from .elementwise import Elementwise, first_numbers, penalized, zeros
from .optimizer import check_options, number


@update
def rmsprop_step(
    p: Any, g: Any, v: Any, mean: Any, buffer: Any, *, sign: Any, decay: Any, alpha: Any,
    rest: Any, keep: Any, eps: Any, rate: Any, centered: Any,
) -> Any:  # fmt: skip
    """``p -= rate d / (sqrt(v - mean^2) + eps)``; with ``keep``, the quotient's sum in ``buffer``.

    Without ``centered``, ``mean`` counts as 0.
    """
    d = penalized(g, p, sign=sign, decay=decay)
    v = alpha * v + rest * d * d
    if centered:
        mean = alpha * mean + rest * d
        step = d / (sqrt(v - mean * mean) + eps)
    else:
        step = d / (sqrt(v) + eps)
    if keep > 0:
        buffer = keep * buffer + step
        p = p - rate * buffer
    else:
        p = p - rate * step
    return p, v, mean, buffer


class RMSprop(Elementwise):
    """RMSprop: divide each step by the running root mean square of the gradient.

    ``v = alpha v + (1 - alpha) d^2; s = d / (sqrt(v) + eps); p -= lr s``. ``centered`` subtracts
    the square of the gradient's own running mean from v under the root; with momentum,
    ``buf = momentum buf + s`` takes the place of s.

    State: ``step``, ``square_avg`` (v), ``momentum_buffer`` with momentum, ``grad_avg`` if
    centered: one to three parameters' size.

    Args:
        params: What to optimize.
        lr: Learning rate.
        alpha: Decay of the means.
        eps: Added to the denominator, outside the root.
        weight_decay: L2 penalty: ``d = g + weight_decay p``.
        momentum: Share of the last step that is kept.
        centered: Divide by the standard deviation instead.
        capturable: Ignored, like ``foreach`` and ``differentiable``.
        foreach: No effect.
        maximize: Climb instead.
        differentiable: No effect.

    Raises:
        ValueError: An option is out of range.

    Source:
        Tieleman and Hinton 2012; Graves 2013 for ``centered``, with eps where PyTorch has it.
    """

    rule = rmsprop_step

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_options(
            "RMSprop", lr, epsilon=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha
        )
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
            "capturable": capturable,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """All means are zero."""
        state = {"step": 0, "square_avg": zeros(p)}
        if group["momentum"] > 0:
            state["momentum_buffer"] = zeros(p)
        if group["centered"]:
            state["grad_avg"] = zeros(p)
        return state

    def advance(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Count the step."""
        state["step"] += 1
        alpha, momentum = group["alpha"], group["momentum"]
        held = (
            state["square_avg"],
            state["grad_avg"] if group["centered"] else None,
            state["momentum_buffer"] if momentum > 0 else None,
        )
        return held, {
            **first_numbers(group),
            "alpha": alpha,
            "rest": 1 - alpha,
            "keep": momentum,
            "eps": group["eps"],
            "rate": number(group["lr"]),
            "centered": group["centered"],
        }
