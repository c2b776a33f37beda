"""The Adagrad optimizer."""

from __future__ import annotations

from typing import Any

from ..framework.kernels.formula.functions import sqrt
from ..framework.kernels.formula.update import update
from . import sparse_rows
from .elementwise import Elementwise, filled, first_numbers, penalized
from .optimizer import check_options, number
from .sparse_rows import is_sparse


@update
def adagrad_step(p: Any, g: Any, total: Any, *, sign: Any, decay: Any, eps: Any, rate: Any) -> Any:
    """``total += d^2; p -= rate d / (sqrt(total) + eps)``."""
    d = penalized(g, p, sign=sign, decay=decay)
    total = total + d * d
    p = p - rate * (d / (sqrt(total) + eps))
    return p, total


class Adagrad(Elementwise):
    """Adagrad: divide each step by the root of the sum of squared gradients.

    ``s += d^2; p -= lr / (1 + (t - 1) lr_decay) d / (sqrt(s) + eps)``.

    State: ``step``, ``sum`` (s): one parameter's size. It is made at the first step, where PyTorch
    makes it with the optimizer.

    Args:
        params: What to optimize.
        lr: Learning rate.
        lr_decay: How fast the rate falls.
        weight_decay: L2 penalty: ``d = g + weight_decay p``.
        initial_accumulator_value: s before the first step.
        eps: Added to the denominator.
        foreach: Ignored, like ``differentiable`` and ``fused``.
        maximize: Climb instead.
        differentiable: No effect.
        fused: No effect.

    Raises:
        ValueError: An option is out of range.

    Source:
        Duchi et al. 2011, the diagonal form.
    """

    rule = adagrad_step
    _takes_sparse = True
    _listed = True

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_options(
            "Adagrad",
            lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            epsilon=eps,
        )
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def prepare(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Prepare the step of one parameter."""
        if not is_sparse(g):
            return super().prepare(p, g, state, group)
        if not state:
            state.update(self.start(p, group))
        return sparse_rows.adagrad(p, g, state, group)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """Start the sum at ``initial_accumulator_value``."""
        return {"step": 0, "sum": filled(p, group["initial_accumulator_value"])}

    def advance(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Count the step."""
        step = state["step"] = state["step"] + 1
        rate = number(group["lr"]) / (1 + (step - 1) * group["lr_decay"])
        return (state["sum"],), {**first_numbers(group), "eps": group["eps"], "rate": rate}
