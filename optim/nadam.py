"""The NAdam optimizer: Adam with Nesterov momentum."""

from __future__ import annotations

from typing import Any

from .elementwise import Elementwise, gradient, zeros
from .optimizer import check_betas, check_options, number


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

    loop = "nadam"

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
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """Both means are zero, the product is one."""
        return {"step": 0, "mu_product": 1.0, "exp_avg": zeros(p), "exp_avg_sq": zeros(p)}

    def advance(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Count the step."""
        step = state["step"] = state["step"] + 1
        (b1, b2), psi = group["betas"], group["momentum_decay"]
        lr, decay, decoupled = (
            number(group["lr"]), group["weight_decay"], group["decoupled_weight_decay"]
        )  # fmt: skip
        mu, after = (b1 * (1 - 0.5 * 0.96 ** (k * psi)) for k in (step, step + 1))
        product = state["mu_product"] = state["mu_product"] * mu
        numbers = (
            -1.0 if group["maximize"] else 1.0,
            0.0 if decoupled else decay,
            1 - lr * decay if decoupled else 1.0,
            b1, 1 - b1, b2, 1 - b2, (1 - b2**step) ** -0.5, group["eps"],
            lr * (1 - mu) / (1 - product), lr * after / (1 - product * after),
        )  # fmt: skip
        return (state["exp_avg"], state["exp_avg_sq"]), numbers

    @staticmethod
    def plain(
        p: Any, g: Any, m: Any, v: Any, sign: Any, decay: Any, keep: Any, b1: Any, a1: Any,
        b2: Any, a2: Any, root: Any, eps: Any, rate: Any, mean_rate: Any,
    ) -> None:  # fmt: skip
        """The recurrence in tensor ops."""
        d = gradient(p, g, sign, decay)
        if keep != 1:
            p.mul_(keep)
        m.mul_(b1).add_(d, alpha=a1)
        v.mul_(b2).addcmul_(d, d, value=a2)
        below = v.sqrt().mul_(root).add_(eps)
        p.addcdiv_(d, below, value=-rate).addcdiv_(m, below, value=-mean_rate)
