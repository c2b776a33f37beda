"""The compiled gradient of prelu's weight, from float32 (examples, channels, elements).

A single weight is that of one channel, which has all elements. The arriving gradient may be one
number for all: then it is (1, 1, 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import SUMS, compiled

_ZERO = np.float32(0)
TILE = 4096  # elements that are summed in single precision


@compiled(fastmath=SUMS)
def _below(grad: Any, x: Any) -> Any:
    total = _ZERO
    if grad.size == 1:
        g = grad[0]
        for j in range(x.size):
            total += _ZERO if x[j] > _ZERO else x[j] * g
    else:
        for j in range(x.size):
            total += _ZERO if x[j] > _ZERO else x[j] * grad[j]
    return total


@compiled
def weight_grad(out: Any, grad: Any, x: Any) -> None:
    """The sum of ``grad * x`` where x is not above zero, for each channel."""
    count, channels, size = x.shape
    totals = np.zeros(channels, np.float64)
    for i in range(count):
        if size == 1:
            for c in range(channels):
                g = grad[0, 0, 0] if grad.size == 1 else grad[i, c, 0]
                totals[c] += _ZERO if x[i, c, 0] > _ZERO else x[i, c, 0] * g
            continue
        for c in range(channels):
            above = grad[0, 0] if grad.size == 1 else grad[i, c]
            for start in range(0, size, TILE):
                g_tile = above if above.size == 1 else above[start : start + TILE]
                totals[c] += _below(g_tile, x[i, c, start : start + TILE])
    for c in range(channels):
        out[c] = np.float32(totals[c])
