"""The RAdam optimizer: rectified Adam."""

from __future__ import annotations

from typing import Any

from ..framework.kernels.formula.functions import sqrt
from ..framework.kernels.formula.update import update
from .elementwise import Elementwise, decay_numbers, penalized, zeros
from .optimizer import check_betas, check_options, number


@update
def radam_step(
    p: Any, g: Any, m: Any, v: Any, *, sign: Any, decay: Any, keep: Any, b1: Any, a1: Any, b2: Any,
    a2: Any, adaptive: Any, eps: Any, rate: Any,
) -> Any:  # fmt: skip
    """``p = keep p - rate m``, m divided by ``sqrt(v) + eps`` if ``adaptive``."""
    d = penalized(g, p, sign=sign, decay=decay)
    m = b1 * m + a1 * d
    v = b2 * v + a2 * d * d
    p = keep * p - rate * (m / (sqrt(v) + eps) if adaptive else m)
    return p, m, v


class RAdam(Elementwise):
    """Rectified Adam: no division until the variance of the second moment is small.

    ``rho_inf = 2 / (1 - b2) - 1; rho_t = rho_inf - 2 t b2^t / (1 - b2^t)``. While rho_t is at most
    5, ``p -= lr m^``; then ``p -= lr r m^ / ((sqrt(v) + eps) / sqrt(1 - b2^t))``, with
    ``r = sqrt((rho_t - 4)(rho_t - 2) rho_inf / ((rho_inf - 4)(rho_inf - 2) rho_t))`` and Adam's m
    and v, of which only m is corrected.

    State: ``step``, ``exp_avg`` (m), ``exp_avg_sq`` (v): two parameters' size.

    Args:
        params: What to optimize.
        lr: Learning rate.
        betas: Decay of the two means, b1 and b2.
        eps: Added to the denominator.
        weight_decay: L2 penalty, or share of the parameter if decoupled.
        decoupled_weight_decay: Shrink the parameter, as AdamW, instead of adding to the gradient.
        foreach: Ignored, like ``capturable`` and ``differentiable``.
        maximize: Climb instead.
        capturable: No effect.
        differentiable: No effect.

    Raises:
        ValueError: An option is out of range.

    Source:
        Liu et al. 2020; the threshold is 5, as in PyTorch, where the paper has 4.
    """

    rule = radam_step

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_options("RAdam", lr, epsilon=eps, weight_decay=weight_decay)
        betas = check_betas("RAdam", betas)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "decoupled_weight_decay": decoupled_weight_decay,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """Both means are zero."""
        return {"step": 0, "exp_avg": zeros(p), "exp_avg_sq": zeros(p)}

    def advance(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Count the step."""
        t = state["step"] = state["step"] + 1
        b1, b2 = group["betas"]
        lr = number(group["lr"])
        rate, seen = lr / (1 - b1**t), 1 - b2**t
        infinite = 2 / (1 - b2) - 1
        rho = infinite - 2 * t * b2**t / seen
        adaptive = rho > 5
        if adaptive:
            above = (rho - 4) * (rho - 2) * infinite
            rate *= (above / ((infinite - 4) * (infinite - 2) * rho) * seen) ** 0.5
        numbers = {
            **decay_numbers(group, lr, group["decoupled_weight_decay"]),
            "b1": b1,
            "a1": 1 - b1,
            "b2": b2,
            "a2": 1 - b2,
            "adaptive": adaptive,
            "eps": group["eps"],
            "rate": rate,
        }
        return (state["exp_avg"], state["exp_avg_sq"]), numbers
