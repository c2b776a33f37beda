"""The Adadelta optimizer."""

from __future__ import annotations

from typing import Any

from ..framework.kernels.formula.functions import sqrt
from ..framework.kernels.formula.update import update
from .elementwise import Elementwise, first_numbers, penalized, zeros
from .optimizer import check_options, number


@update
def adadelta_step(
    p: Any,
    g: Any,
    v: Any,
    w: Any,
    *,
    sign: Any,
    decay: Any,
    rho: Any,
    rest: Any,
    eps: Any,
    rate: Any,
) -> Any:
    """``s = sqrt(w + eps) / sqrt(v + eps) d; w = rho w + rest s^2; p -= rate s``."""
    d = penalized(g, p, sign=sign, decay=decay)
    v = rho * v + rest * d * d
    step = sqrt(w + eps) / sqrt(v + eps) * d
    w = rho * w + rest * step * step
    p = p - rate * step
    return p, v, w


class Adadelta(Elementwise):
    """Adadelta: scale each step by the ratio of past step size to past gradient size.

    ``v = rho v + (1 - rho) d^2; s = sqrt(w + eps) / sqrt(v + eps) d; w = rho w + (1 - rho) s^2;
    p -= lr s``.

    State: ``step``, ``square_avg`` (v), ``acc_delta`` (w): two parameters' size.

    Args:
        params: What to optimize.
        lr: Factor of each step; the method itself needs none.
        rho: Decay of the two means.
        eps: Added under both roots.
        weight_decay: L2 penalty: ``d = g + weight_decay p``.
        foreach: Ignored, like ``capturable`` and ``differentiable``.
        capturable: No effect.
        maximize: Climb instead.
        differentiable: No effect.

    Raises:
        ValueError: An option is out of range.

    Source:
        Zeiler 2012.
    """

    rule = adadelta_step

    def __init__(
        self,
        params: Any,
        lr: Any = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_options("Adadelta", lr, rho=rho, epsilon=eps, weight_decay=weight_decay)
        if rho > 1:
            raise ValueError(f"Adadelta: Invalid rho value: {rho}. It must be in [0, 1].")
        defaults = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "capturable": capturable,
            "foreach": foreach,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """Both means are zero."""
        return {"step": 0, "square_avg": zeros(p), "acc_delta": zeros(p)}

    def advance(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Count the step."""
        state["step"] += 1
        rho = group["rho"]
        numbers = {
            **first_numbers(group),
            "rho": rho,
            "rest": 1 - rho,
            "eps": group["eps"],
            "rate": number(group["lr"]),
        }
        return (state["square_avg"], state["acc_delta"]), numbers
