"""The NAdam optimizer: Adam with Nesterov momentum."""

from __future__ import annotations

from typing import Any

from ..framework.kernels.formula.functions import sqrt
from ..framework.kernels.formula.update import update
from .elementwise import Elementwise, decay_numbers, penalized, zeros
from .optimizer import check_betas, check_options, number


@update
def nadam_step(
    p: Any, g: Any, m: Any, v: Any, *, sign: Any, decay: Any, keep: Any, b1: Any, a1: Any, b2: Any,
    a2: Any, root: Any, eps: Any, rate: Any, mean_rate: Any,
) -> Any:  # fmt: skip
    """``p = keep p - (rate d + mean_rate m) / (root sqrt(v) + eps)``."""
    d = penalized(g, p, sign=sign, decay=decay)
    m = b1 * m + a1 * d
    v = b2 * v + a2 * d * d
    p = keep * p - (rate * d + mean_rate * m) / (root * sqrt(v) + eps)
    return p, m, v


class NAdam(Elementwise):
    """NAdam: Adam with Nesterov momentum.

    With ``mu_t = b1 (1 - 0.96^(t psi) / 2)``, psi the momentum's decay, and M_t the product of all
    mu up to t: ``m = b1 m + (1 - b1) d; v = b2 v + (1 - b2) d^2; p -= lr ((1 - mu_t) / (1 - M_t) d
    + mu_(t+1) / (1 - M_(t+1)) m) / (sqrt(v / (1 - b2^t)) + eps)``.

    State: ``step``, ``mu_product`` (M), ``exp_avg`` (m), ``exp_avg_sq`` (v): two parameters' size.
    M is a Python number, in double precision; PyTorch rounds it to float32.

    Args:
        params: What to optimize.
        lr: Learning rate.
        betas: Decay of the two means, b1 and b2.
        eps: Added to the denominator.
        weight_decay: L2 penalty, or share of the parameter if decoupled.
        momentum_decay: psi.
        decoupled_weight_decay: Shrink the parameter, as AdamW, instead of adding to the gradient.
        foreach: Ignored, like ``capturable`` and ``differentiable``.
        maximize: Climb instead.
        capturable: No effect.
        differentiable: No effect.

    Raises:
        ValueError: An option is out of range.

    Source:
        Dozat 2016, in the form PyTorch computes.
    """

    rule = nadam_step

    def __init__(
        self,
        params: Any,
        lr: Any = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_options(
            "NAdam", lr, epsilon=eps, weight_decay=weight_decay, momentum_decay=momentum_decay
        )
        betas = check_betas("NAdam", betas)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """Both means are zero, the product is one."""
        return {"step": 0, "mu_product": 1.0, "exp_avg": zeros(p), "exp_avg_sq": zeros(p)}

    def advance(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Count the step."""
        step = state["step"] = state["step"] + 1
        (b1, b2), psi = group["betas"], group["momentum_decay"]
        lr = number(group["lr"])
        mu, after = (b1 * (1 - 0.5 * 0.96 ** (k * psi)) for k in (step, step + 1))
        product = state["mu_product"] = state["mu_product"] * mu
        numbers = {
            **decay_numbers(group, lr, group["decoupled_weight_decay"]),
            "b1": b1,
            "a1": 1 - b1,
            "b2": b2,
            "a2": 1 - b2,
            "root": (1 - b2**step) ** -0.5,
            "eps": group["eps"],
            "rate": lr * (1 - mu) / (1 - product),
            "mean_rate": lr * after / (1 - product * after),
        }
        return (state["exp_avg"], state["exp_avg_sq"]), numbers
