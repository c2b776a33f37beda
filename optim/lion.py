"""The Lion optimizer."""

from __future__ import annotations

from typing import Any

from ..framework.kernels.formula.update import update
from .elementwise import Elementwise, sign_of, zeros
from .optimizer import check_betas, check_options, number


@update
def lion_step(
    p: Any, g: Any, m: Any, *, sign: Any, keep: Any, b1: Any, a1: Any, b2: Any, a2: Any, rate: Any
) -> Any:
    """``p = keep p - rate sign(b1 m + a1 d); m = b2 m + a2 d``."""
    d = sign * g
    p = keep * p - rate * sign_of(b1 * m + a1 * d)
    m = b2 * m + a2 * d
    return p, m


class Lion(Elementwise):
    """Lion: step by the sign of a mix of momentum and gradient, with half of Adam's state.

    ``p -= lr (sign(b1 m + (1 - b1) d) + weight_decay p); m = b2 m + (1 - b2) d``.

    State: ``step``, ``exp_avg`` (m): one parameter's size. PyTorch has no Lion; names and checks
    follow its AdamW. Rates are to be three to ten times smaller than AdamW's, decay as much larger.

    Args:
        params: What to optimize.
        lr: Learning rate: how far every element moves.
        betas: Weight of the momentum in the step, and its decay.
        weight_decay: Share of the parameter, times ``lr``, taken away at each step.
        maximize: Climb instead.
        foreach: Ignored, like ``capturable``, ``differentiable`` and ``fused``.
        capturable: No effect.
        differentiable: No effect.
        fused: No effect.

    Raises:
        ValueError: An option is out of range.

    Source:
        Chen et al. 2023, program 1 (arXiv 2302.06675).
    """

    rule = lion_step

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_options("Lion", lr, weight_decay=weight_decay)
        betas = check_betas("Lion", betas)
        defaults = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """The momentum is zero."""
        return {"step": 0, "exp_avg": zeros(p)}

    def advance(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Count the step."""
        state["step"] += 1
        (b1, b2), lr = group["betas"], number(group["lr"])
        sign, keep = (-1.0 if group["maximize"] else 1.0), 1 - lr * group["weight_decay"]
        return (state["exp_avg"],), {
            "sign": sign,
            "keep": keep,
            "b1": b1,
            "a1": 1 - b1,
            "b2": b2,
            "a2": 1 - b2,
            "rate": lr,
        }
