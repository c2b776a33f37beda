"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from typing import Any

from . import fused
from .optimizer import Optimizer, own


class SGD(Optimizer):
    """Follow the gradient, with momentum.

    ``g += weight_decay * p; buf = momentum * buf + (1 - dampening) * g; p -= lr * buf``, where
    Nesterov's form uses ``g + momentum * buf`` instead of ``buf``.

    Args:
        params: What to optimize.
        lr: Learning rate.
        momentum: Share of the last step that is kept.
        dampening: Share of the gradient that does not enter the buffer.
        weight_decay: L2 penalty.
        nesterov: Look ahead.
        maximize: Climb instead.

    Source:
        Sutskever et al. 2013, with the learning rate outside the buffer, as PyTorch has it.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if value < 0:
                raise ValueError(f"SGD needs {name} >= 0; got {value}.")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening.")
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """One step for one parameter."""
        momentum = group["momentum"]
        buffer = state.get("momentum_buffer")
        if momentum and buffer is not None and fused.fits(self.elements, p, g, buffer):
            fused.momentum(p, g, buffer, group)
            return
        if group["maximize"]:
            g = -g
        if group["weight_decay"]:
            g = g.add(p, alpha=group["weight_decay"])
        if momentum:
            if buffer is None:
                buffer = state["momentum_buffer"] = own(g.clone())
            else:
                buffer.mul_(momentum).add_(g, alpha=1 - group["dampening"])
            g = g.add(buffer, alpha=momentum) if group["nesterov"] else buffer
        p.add_(g, alpha=-group["lr"])
