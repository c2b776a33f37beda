"""The Muon optimizer: orthogonalized momentum."""

from __future__ import annotations

import math
from typing import Any

from ..framework.dtypes import bfloat16
from ..framework.kernels.formula.update import update
from ..framework.ops.creation.fill import empty
from ..framework.ops.linalg.addmm import addmm
from ..framework.ops.linalg.matmul import matmul
from ..framework.ops.views.tiled import tiles
from ..framework.updates import planned_update
from .elementwise import zeros
from .optimizer import Optimizer, check_options, number

ADJUSTMENTS = (None, "original", "match_rms_adamw")


class Muon(Optimizer):
    """Muon: orthogonalized momentum, for the 2-d weights of hidden layers only.

    ``buf = momentum buf + (1 - momentum) g; O = orthogonal(buf)``, or of
    ``(1 - momentum) g + momentum buf`` with Nesterov; ``p = (1 - lr weight_decay) p - c lr O``. The
    ratio c is ``sqrt(max(1, rows / columns))`` ("original"), or ``0.2 sqrt(max(rows, columns))``
    ("match_rms_adamw": steps of the size of AdamW's). ``orthogonal`` normalizes X and repeats
    ``X = a X + (b A + c A^2) X`` with ``A = X X^T``: Newton-Schulz iterations that drive all
    singular values near 1.

    State: ``momentum_buffer``, one parameter's size.

    Memory: the iterations run in bfloat16, as PyTorch's, and the CPU computes each product in
    float32 workspace: a step takes up to 30 bytes an element of the largest square parameter, less
    of a long one. All of it is counted, and freed before the next parameter but O, two bytes an
    element of each: no parameter moves before all are known.

    Args:
        params: Matrices.
        lr: Learning rate.
        weight_decay: Share of the parameter, times ``lr``, taken away at each step.
        momentum: Share of the past in the buffer.
        nesterov: Look ahead.
        ns_coefficients: a, b and c of the iteration.
        eps: Least norm to divide by.
        ns_steps: How many iterations; below 100.
        adjust_lr_fn: How c follows from the shape; None means "original".

    Raises:
        ValueError: An option is out of range, or a parameter is no matrix.
        RuntimeError: A parameter is complex.

    Source:
        Jordan et al. 2024 (kellerjordan.github.io/posts/muon); Liu et al. 2025 for the second
        ratio. The buffer is a mean, and the orders of operations are PyTorch's.
    """

    reads_whole = True

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        check_options("Muon", lr, momentum=momentum, weight_decay=weight_decay)
        if adjust_lr_fn not in ADJUSTMENTS:
            raise ValueError(
                f"Muon: Adjust learning rate function {adjust_lr_fn} is not supported. "
                f"Use one of {', '.join(map(str, ADJUSTMENTS))}."
            )
        if ns_steps >= 100:
            raise ValueError(
                f"Muon: Number of steps must be less than 100 for computational efficiency; got "
                f"{ns_steps}."
            )
        if len(ns_coefficients) != 3:
            raise ValueError(
                "Muon: Coefficients must be a tuple of exactly 3 values; got "
                f"{len(ns_coefficients)}."
            )
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, defaults)

    def check_parameter(self, p: Any) -> None:
        """Raise an error unless the parameter is a matrix.

        Raises:
            ValueError: It is none.
        """
        super().check_parameter(p)
        if p.ndim != 2:
            raise ValueError(
                "Muon only supports 2D parameters whereas we found a parameter with size: "
                f"{tuple(p.shape)}. Give the others to AdamW."
            )

    def state_shape(self, key: str, p: Any) -> tuple[int, ...] | None:
        """Return the parameter's shape for its momentum."""
        return tuple(p.shape) if key == "momentum_buffer" else None

    def prepare(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Prepare the step of one parameter."""
        if p.is_complex():
            raise RuntimeError("Muon does not support complex parameters. Use another optimizer.")
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = zeros(p)
        buffer, share = state["momentum_buffer"], group["momentum"]
        x = _looking(g, buffer, share, group["nesterov"])
        x = orthogonal(x, group["ns_coefficients"], group["ns_steps"], group["eps"])
        lr = number(group["lr"])
        rate = lr * _ratio(group["adjust_lr_fn"], *p.shape)
        numbers = {"share": share, "keep": 1 - lr * group["weight_decay"], "rate": rate}
        return planned_update(muon_step, (p, g, buffer, x), numbers, self.elements)


@update
def muon_step(p: Any, g: Any, buffer: Any, x: Any, *, share: Any, keep: Any, rate: Any) -> Any:
    """``buffer = share buffer + (1 - share) g; p = keep p - rate x``."""
    buffer = share * buffer + (1 - share) * g
    p = keep * p - rate * x
    return p, buffer


def orthogonal(x: Any, coefficients: Any, steps: int, eps: float) -> Any:
    """Orthogonalize a matrix approximately in bfloat16: singular values from 0.7 to 1.2.

    Args:
        x: Matrix; it is overwritten.
        coefficients: a, b and c of the iteration.
        steps: How many iterations.
        eps: Least norm to divide by.
    """
    a, b, c = coefficients
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x.div_(x.norm().clamp_(min=eps))
    for _ in range(steps):
        gram = matmul(x, x.T)
        x = addmm(x, addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def _looking(g: Any, buffer: Any, share: float, ahead: bool) -> Any:
    """Return the momentum after this step, with Nesterov's lookahead, in bfloat16."""
    x = empty(g.shape, dtype=bfloat16, device=g.device)
    for part, d, b in tiles(x, g, buffer):
        m = b.mul(share).add_(d, alpha=1 - share)
        part.copy_(d.mul(1 - share).add_(m, alpha=share) if ahead else m)
    return x


def _ratio(rule: str | None, rows: int, columns: int) -> float:
    if rule == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / max(columns, 1)))
