"""Compiled prelu of (examples, channels, elements), float32, and its gradients.

``weight`` is (1, channels). A single weight is that of one channel, which has all elements. The
arriving gradient may be one number for all: then it is (1, 1, 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import SUMS, compiled

_ZERO = np.float32(0)
TILE = 4096  # elements that are summed in single precision


@compiled
def prelu(out: Any, x: Any, weight: Any) -> None:
    """``x`` above zero, else ``weight * x``."""
    count, channels, size = x.shape
    for i in range(count):
        if size == 1:
            row, made, slopes = x[i].reshape(-1), out[i].reshape(-1), weight[0]
            for j in range(row.size):
                made[j] = row[j] if row[j] > _ZERO else row[j] * slopes[j]
            continue
        for c in range(channels):
            row, made, slope = x[i, c], out[i, c], weight[0, c]
            for j in range(row.size):
                made[j] = row[j] if row[j] > _ZERO else row[j] * slope


@compiled
def prelu_grad(out: Any, grad: Any, x: Any, weight: Any) -> None:
    """``grad`` where x is above zero, else ``weight * grad``."""
    count, channels, size = x.shape
    for i in range(count):
        if size == 1 and grad.size > 1:
            row, made, above = x[i].reshape(-1), out[i].reshape(-1), grad[i].reshape(-1)
            slopes = weight[0]
            for j in range(row.size):
                made[j] = above[j] if row[j] > _ZERO else above[j] * slopes[j]
            continue
        for c in range(channels):
            row, made, slope = x[i, c], out[i, c], weight[0, c]
            if grad.size == 1:
                g = grad[0, 0, 0]
                low = g * slope
                for j in range(row.size):
                    made[j] = g if row[j] > _ZERO else low
                continue
            above = grad[i, c]
            for j in range(row.size):
                made[j] = above[j] if row[j] > _ZERO else above[j] * slope


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
