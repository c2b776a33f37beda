"""The Adamax optimizer: Adam with the infinity norm."""

from __future__ import annotations

from typing import Any

from ..framework.kernels.formula.update import update
from .elementwise import Elementwise, first_numbers, larger, penalized, zeros
from .optimizer import check_betas, check_options, number


@update
def adamax_step(
    p: Any,
    g: Any,
    m: Any,
    u: Any,
    *,
    sign: Any,
    decay: Any,
    b1: Any,
    a1: Any,
    b2: Any,
    eps: Any,
    rate: Any,
) -> Any:
    """``u = max(b2 u, |d| + eps); p -= rate m / u``."""
    d = penalized(g, p, sign=sign, decay=decay)
    m = b1 * m + a1 * d
    u = larger(b2 * u, abs(d) + eps)
    p = p - rate * (m / u)
    return p, m, u


class Adamax(Elementwise):
    """Adamax: scale each step by a running maximum of the gradient's magnitude.

    ``m = b1 m + (1 - b1) d; u = max(b2 u, |d| + eps); p -= lr / (1 - b1^t) m / u``.

    State: ``step``, ``exp_avg`` (m), ``exp_inf`` (u): two parameters' size.

    Args:
        params: What to optimize.
        lr: Learning rate.
        betas: Decay of the mean and of the maximum, b1 and b2.
        eps: Added to the gradient's size.
        weight_decay: L2 penalty: ``d = g + weight_decay p``.
        foreach: Ignored, like ``differentiable`` and ``capturable``.
        maximize: Climb instead.
        differentiable: No effect.
        capturable: No effect.

    Raises:
        ValueError: An option is out of range.

    Source:
        Kingma and Ba 2015, section 7.1; eps is PyTorch's.
    """

    rule = adamax_step

    def __init__(
        self,
        params: Any,
        lr: Any = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_options("Adamax", lr, epsilon=eps, weight_decay=weight_decay)
        betas = check_betas("Adamax", betas)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """Mean and maximum are zero."""
        return {"step": 0, "exp_avg": zeros(p), "exp_inf": zeros(p)}

    def advance(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Count the step."""
        step = state["step"] = state["step"] + 1
        b1, b2 = group["betas"]
        rate = number(group["lr"]) / (1 - b1**step)
        numbers = {
            **first_numbers(group),
            "b1": b1,
            "a1": 1 - b1,
            "b2": b2,
            "eps": group["eps"],
            "rate": rate,
        }
        return (state["exp_avg"], state["exp_inf"]), numbers
