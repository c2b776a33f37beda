"""Adam and AdamW."""

from __future__ import annotations

import math
from typing import Any

from ..framework.ops.creation import zeros_like
from . import fused
from .optimizer import Optimizer, own


class Adam(Optimizer):
    """Scale each step by running means of the gradient and of its square.

    ``m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr * m^ / (sqrt(v^) + eps)``, where m^
    and v^ are m and v divided by ``1 - b1^t`` and ``1 - b2^t``.

    Args:
        params: What to optimize.
        lr: Learning rate.
        betas: Decay of the two means.
        eps: Added to the denominator.
        weight_decay: L2 penalty, added to the gradient.

    Source:
        Kingma and Ba 2015, in the form PyTorch computes.
    """

    decoupled = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0:
            raise ValueError(
                f"Adam needs lr, eps and weight_decay >= 0; got {lr}, {eps}, {weight_decay}."
            )
        if not all(0 <= b < 1 for b in betas):
            raise ValueError(f"Adam needs betas in [0, 1); got {betas}.")
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def update(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """One step for one parameter."""
        if not state:
            state["step"] = 0
            state["exp_avg"] = own(zeros_like(p))
            state["exp_avg_sq"] = own(zeros_like(p))
        state["step"] += 1
        step, (b1, b2) = state["step"], group["betas"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        if fused.fits(self.elements, p, g, m, v):
            fused.adam(p, g, m, v, step, group, self.decoupled)
            return
        if group["weight_decay"]:
            if self.decoupled:
                p.mul_(1 - group["lr"] * group["weight_decay"])
            else:
                g = g.add(p, alpha=group["weight_decay"])
        m.mul_(b1).add_(g, alpha=1 - b1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)
        denominator = v.sqrt().mul_(1 / math.sqrt(1 - b2**step)).add_(group["eps"])
        p.addcdiv_(m, denominator, value=-group["lr"] / (1 - b1**step))


class AdamW(Adam):
    """Adam with weight decay applied to the parameter instead of the gradient.

    Args:
        params: What to optimize.
        lr: Learning rate.
        betas: Decay of the two means.
        eps: Added to the denominator.
        weight_decay: Share of the parameter, times ``lr``, taken away at each step.

    Source:
        Loshchilov and Hutter 2019.
    """

    decoupled = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
