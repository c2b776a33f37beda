"""The Adam and AdamW optimizers."""

from __future__ import annotations

from typing import Any

from ..framework.kernels.formula.functions import sqrt
from ..framework.kernels.formula.update import update
from .elementwise import Elementwise, decay_numbers, larger, penalized, zeros
from .optimizer import check_betas, check_options, number


@update
def adam_step(
    p: Any, g: Any, m: Any, v: Any, top: Any, *, sign: Any, decay: Any, keep: Any, b1: Any,
    a1: Any, b2: Any, a2: Any, root: Any, eps: Any, rate: Any, amsgrad: Any,
) -> Any:  # fmt: skip
    """Adam, AdamW: ``p = keep p - rate m / (root sqrt(v) + eps)``; ``top`` is AMSGrad's."""
    d = penalized(g, p, sign=sign, decay=decay)
    m = b1 * m + a1 * d
    v = b2 * v + a2 * d * d
    if amsgrad:
        top = larger(top, v)
        below = root * sqrt(top) + eps
    else:
        below = root * sqrt(v) + eps
    p = keep * p - rate * (m / below)
    return p, m, v, top


class Adam(Elementwise):
    """Adam: scale each step by running means of the gradient and of its square.

    ``m = b1 m + (1 - b1) d; v = b2 v + (1 - b2) d^2; p -= lr m^ / (sqrt(v^) + eps)``, where m^
    and v^ are m and v divided by ``1 - b1^t`` and ``1 - b2^t``. With ``amsgrad`` the largest v so
    far takes the place of v.

    State: ``step``, ``exp_avg`` (m), ``exp_avg_sq`` (v), and ``max_exp_avg_sq`` with ``amsgrad``:
    two or three parameters' size.

    Args:
        params: What to optimize.
        lr: Learning rate.
        betas: Decay of the two means, b1 and b2.
        eps: Added to the denominator.
        weight_decay: L2 penalty, added to the gradient: ``d = g + weight_decay p``.
        amsgrad: Let no step grow because v fell.
        foreach: Ignored, like ``capturable``, ``differentiable`` and ``fused``.
        maximize: Climb instead.
        capturable: No effect.
        differentiable: No effect.
        fused: No effect.
        decoupled_weight_decay: Shrink the parameter by ``lr weight_decay p`` instead, as AdamW.

    Raises:
        ValueError: An option is out of range.

    Source:
        Kingma and Ba 2015, in the form PyTorch computes; Reddi et al. 2018 for ``amsgrad``, whose
        maximum is taken before the correction, as PyTorch does.
    """

    rule = adam_step

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        check_options(type(self).__name__, lr, epsilon=eps, weight_decay=weight_decay)
        betas = check_betas(type(self).__name__, betas)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """Both means are zero."""
        state = {"step": 0, "exp_avg": zeros(p), "exp_avg_sq": zeros(p)}
        if group["amsgrad"]:
            state["max_exp_avg_sq"] = zeros(p)
        return state

    def advance(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Count the step."""
        top = state["max_exp_avg_sq"] if group["amsgrad"] else None
        numbers = count_step(state, group)
        numbers["amsgrad"] = top is not None
        return (state["exp_avg"], state["exp_avg_sq"], top), numbers


def count_step(state: dict[str, Any], group: dict[str, Any]) -> dict[str, float]:
    """Count a step of Adam, and return the numbers of its update."""
    step = state["step"] = state["step"] + 1
    b1, b2 = group["betas"]
    lr = number(group["lr"])
    numbers = decay_numbers(group, lr, group.get("decoupled_weight_decay", False))
    numbers |= {
        "b1": b1,
        "a1": 1 - b1,
        "b2": b2,
        "a2": 1 - b2,
        "root": (1 - b2**step) ** -0.5,
        "eps": group["eps"],
        "rate": lr / (1 - b1**step),
    }
    return numbers


class AdamW(Adam):
    """AdamW: Adam with decoupled weight decay.

    Args:
        params: What to optimize.
        lr: Learning rate.
        betas: Decay of the two means.
        eps: Added to the denominator.
        weight_decay: Share of the parameter, times ``lr``, taken away at each step.
        amsgrad: Let no step grow because the mean square fell.
        maximize: Climb instead.
        foreach: Ignored, like ``capturable``, ``differentiable`` and ``fused``.
        capturable: No effect.
        differentiable: No effect.
        fused: No effect.

    Raises:
        ValueError: An option is out of range.

    Source:
        Loshchilov and Hutter 2019, without their separate schedule multiplier, as PyTorch.
    """

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )
