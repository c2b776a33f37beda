"""Compiled binary cross entropy of logits with a weight for each class, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, compiled, inlined
from ..support.vector_math import exp32, log1p32

_ZERO, _ONE = np.float32(0), np.float32(1)


@inlined
def _weighted(v: Any, t: Any, w: Any) -> Any:
    high = _ZERO if v > _ZERO else -v
    factor = (w - _ONE) * t + _ONE
    return factor * (log1p32(exp32(-abs(v))) + high) + (_ONE - t) * v


@inlined
def _weighted_slope(v: Any, t: Any, w: Any) -> Any:
    factor = (w - _ONE) * t + _ONE
    return _ONE - t - factor / (_ONE + exp32(v))


@compiled(fastmath=FUSED)
def bce_weighted(out: Any, x: Any, target: Any, weight: Any) -> None:
    """``(1 - t) x + (1 + (w - 1) t) log(1 + exp(-x))`` of (examples, classes, elements).

    ``weight`` is (1, classes).
    """
    count, classes, size = x.shape
    for i in range(count):
        if size == 1:
            row, t, made, w = x[i].reshape(-1), target[i].reshape(-1), out[i].reshape(-1), weight[0]
            for j in range(row.size):
                made[j] = _weighted(row[j], t[j], w[j])
            continue
        for c in range(classes):
            row, t, made, w = x[i, c], target[i, c], out[i, c], weight[0, c]
            for j in range(row.size):
                made[j] = _weighted(row[j], t[j], w)


@compiled(fastmath=FUSED)
def bce_weighted_grad(out: Any, grad: Any, x: Any, target: Any, weight: Any) -> None:
    """``grad * (1 - t - (1 + (w - 1) t) / (1 + exp(x)))``; ``grad`` may be one number."""
    count, classes, size = x.shape
    for i in range(count):
        if size == 1:
            row, t, made, w = x[i].reshape(-1), target[i].reshape(-1), out[i].reshape(-1), weight[0]
            for j in range(row.size):
                made[j] = _weighted_slope(row[j], t[j], w[j])
        else:
            for c in range(classes):
                row, t, made, w = x[i, c], target[i, c], out[i, c], weight[0, c]
                for j in range(row.size):
                    made[j] = _weighted_slope(row[j], t[j], w)
        made = out[i].reshape(-1)
        if grad.size == 1:
            g = grad[0, 0, 0]
            for j in range(made.size):
                made[j] *= g
        else:
            above = grad[i].reshape(-1)
            for j in range(made.size):
                made[j] *= above[j]
