"""The ASGD optimizer: averaged stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from ..framework.kernels.formula.update import update
from .elementwise import Elementwise, first_numbers, penalized, zeros
from .optimizer import check_options, number


@update
def asgd_step(
    p: Any, g: Any, mean: Any, *, sign: Any, decay: Any, keep: Any, rate: Any, share: Any
) -> Any:
    """``p = keep p - rate d; mean += share (p - mean)``, and ``mean = p`` where share is 1."""
    p = keep * p - rate * penalized(g, p, sign=sign, decay=decay)
    mean = p if share == 1 else mean + share * (p - mean)
    return p, mean


class ASGD(Elementwise):
    """Averaged SGD: a decaying learning rate, and a running average of the parameters.

    ``p = (1 - lambd eta) p - eta d; ax += mu (p - ax)``; then ``eta = lr / (1 + lambd lr t)^alpha``
    and ``mu = 1 / max(1, t - t0)`` for the next step. The average ``ax`` is in the state; it is p
    itself until t0.

    State: ``step``, ``eta``, ``mu``, ``ax``: one parameter's size.

    Args:
        params: What to optimize.
        lr: Learning rate.
        lambd: Decay of the parameter and of the rate.
        alpha: Power of the rate's fall.
        t0: Step after which to average.
        weight_decay: L2 penalty: ``d = g + weight_decay p``.
        foreach: Ignored, like ``differentiable`` and ``capturable``.
        maximize: Climb instead.
        differentiable: No effect.
        capturable: No effect.

    Raises:
        ValueError: An option is out of range.

    Source:
        Polyak and Juditsky 1992, with the schedule of Bottou's ASGD, as PyTorch has it.
    """

    rule = asgd_step

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_options("ASGD", lr, weight_decay=weight_decay)
        defaults = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """The rate is the group's, the average is still empty."""
        return {"step": 0, "eta": number(group["lr"]), "mu": 1.0, "ax": zeros(p)}

    def advance(self, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Count the step; this one uses the rate that the last one set."""
        step = state["step"] = state["step"] + 1
        lr, lambd = number(group["lr"]), group["lambd"]
        eta, mu = state["eta"], state["mu"]
        state["eta"] = lr / (1 + lambd * lr * step) ** group["alpha"]
        state["mu"] = 1 / max(1, step - group["t0"])
        numbers = {**first_numbers(group), "keep": 1 - lambd * eta, "rate": eta, "share": mu}
        return (state["ax"],), numbers
