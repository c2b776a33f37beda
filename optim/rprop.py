"""The Rprop optimizer: resilient backpropagation."""

from __future__ import annotations

from typing import Any

from ..framework.kernels.formula.functions import maximum, minimum
from ..framework.kernels.formula.update import update
from .elementwise import Elementwise, filled, zeros
from .optimizer import check_options, need_pair, number


@update
def rprop_step(
    p: Any,
    g: Any,
    before: Any,
    size: Any,
    *,
    sign: Any,
    shrink: Any,
    grow: Any,
    least: Any,
    most: Any,
) -> Any:
    """A step of ``size`` against the gradient's sign; where that turned, no step, and shrink."""
    d = sign * g
    turned = d * before
    changed = size * grow if turned > 0 else (size * shrink if turned < 0 else size)
    size = minimum(maximum(changed, least), most)
    before = 0 if turned < 0 else d
    p = p - size if before > 0 else (p + size if before < 0 else p)
    return p, before, size


class Rprop(Elementwise):
    """Rprop: step by the gradient's sign with a step size per element; for full batches.

    Where the sign stayed, the size grows; where it turned, it shrinks, no step is made, and the
    next one does not count as a turn: ``p -= sign(g) size``.

    State: ``step``, ``prev`` (the last gradient), ``step_size``: two parameters' size.

    Args:
        params: What to optimize.
        lr: The first step size.
        etas: Factors that shrink and grow the size.
        step_sizes: Least and largest size.
        capturable: Ignored, like ``foreach`` and ``differentiable``.
        foreach: No effect.
        maximize: Climb instead.
        differentiable: No effect.

    Raises:
        ValueError: An option is out of range.

    Source:
        Riedmiller and Braun 1993, in the form PyTorch computes.
    """

    rule = rprop_step

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_options("Rprop", lr)
        need_pair("Rprop", "etas", etas)
        need_pair("Rprop", "step_sizes", step_sizes)
        if not 0 < etas[0] < 1 < etas[1]:
            raise ValueError(
                f"Rprop: Invalid eta values: {etas[0]}, {etas[1]}. The first must be between 0 "
                "and 1, the second above 1."
            )
        defaults = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """No gradient yet; each size is the learning rate."""
        return {"step": 0, "prev": zeros(p), "step_size": filled(p, number(group["lr"]))}

    def advance(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Count the step."""
        state["step"] += 1
        sign = -1.0 if group["maximize"] else 1.0
        (shrink, grow), (least, most) = group["etas"], group["step_sizes"]
        return (state["prev"], state["step_size"]), {
            "sign": sign,
            "shrink": shrink,
            "grow": grow,
            "least": least,
            "most": most,
        }
