"""Compiled losses of pairs of numbers, and their gradients: one pass each.

Arrays are flat and alike. The arriving gradient may be one number for all, which is what the mean
and the sum of a loss send back: then it has one element, and nobody spells it out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, SUMS, compiled, inlined
from ..support.vector_math import exp32, log1p32, log32

_ZERO, _ONE = np.float32(0), np.float32(1)
TILE = 4096  # losses that exist at a time where only their sum is wanted
_LEAST, _TINY = np.float32(-100), np.float32(1e-12)


@compiled
def squared_error(out: Any, x: Any, y: Any) -> None:
    """``(x - y) ** 2``."""
    for i in range(out.size):
        d = x[i] - y[i]
        out[i] = d * d


@compiled
def squared_error_grad(out: Any, grad: Any, x: Any, y: Any) -> None:
    """``grad * 2 (x - y)``."""
    two = out.dtype.type(2)
    if grad.size == 1:
        g = grad[0]
        for i in range(out.size):
            out[i] = (x[i] - y[i]) * two * g
    else:
        for i in range(out.size):
            out[i] = (x[i] - y[i]) * two * grad[i]


@compiled
def bent_error(out: Any, x: Any, y: Any, bend: float, slope: float) -> None:
    """``slope / (2 bend) d^2`` of differences ``d`` below ``bend``, then a line of that slope."""
    kind = out.dtype.type
    half, most, factor = kind(0.5), kind(0.5 * bend), kind(2 * slope / bend)
    for i in range(out.size):
        d = abs(x[i] - y[i])
        h = d * half
        h = most if h > most else h
        out[i] = (d - h) * h * factor


@inlined
def _clipped(v: Any, most: Any) -> Any:
    v = -most if v < -most else v
    return most if v > most else v


@compiled
def bent_error_grad(out: Any, grad: Any, x: Any, y: Any, bend: float, slope: float) -> None:
    """``grad`` times the derivative of :func:`bent_error`."""
    most, factor = out.dtype.type(slope), out.dtype.type(slope / bend)
    if grad.size == 1:
        g = grad[0]
        for i in range(out.size):
            out[i] = _clipped((x[i] - y[i]) * factor, most) * g
    else:
        for i in range(out.size):
            out[i] = _clipped((x[i] - y[i]) * factor, most) * grad[i]


@compiled(fastmath=FUSED)
def bce_logits(out: Any, x: Any, target: Any) -> None:
    """``log(1 + exp(x)) - x * target`` of float32; the logarithm is added last."""
    for i in range(out.size):
        v = x[i]
        low = v if v < _ZERO else _ZERO
        out[i] = ((_ONE - target[i]) * v - low) + log1p32(exp32(-abs(v)))


@compiled(fastmath=FUSED)
def bce_logits_grad(out: Any, grad: Any, x: Any, target: Any) -> None:
    """``grad * (1 / (1 + exp(-x)) - target)`` of float32."""
    if grad.size == 1:
        g = grad[0]
        for i in range(out.size):
            out[i] = (_ONE / (_ONE + exp32(-x[i])) - target[i]) * g
    else:
        for i in range(out.size):
            out[i] = (_ONE / (_ONE + exp32(-x[i])) - target[i]) * grad[i]


@compiled(fastmath=FUSED)
def bce(out: Any, x: Any, target: Any) -> None:
    """``-(target log(x) + (1 - target) log(1 - x))`` of float32, logarithms at least -100."""
    for i in range(out.size):
        v, t = x[i], target[i]
        rest = _ONE - v
        lost = (_ONE - rest) - v  # what rounding took from the rest
        high = log32(v)
        low = log32(rest) + (lost / rest if rest > _ZERO else _ZERO)
        high = _LEAST if high < _LEAST else high
        low = _LEAST if low < _LEAST else low
        out[i] = (t - _ONE) * low - high * t


@inlined
def _bce_slope(v: Any, t: Any) -> Any:
    d = (_ONE - v) * v
    return (v - t) / (_TINY if d < _TINY else d)


@compiled(fastmath=FUSED)
def bce_grad(out: Any, grad: Any, x: Any, target: Any) -> None:
    """``grad * (x - target) / ((1 - x) x)``, the divisor at least 1e-12."""
    if grad.size == 1:
        g = grad[0]
        for i in range(out.size):
            out[i] = _bce_slope(x[i], target[i]) * g
    else:
        for i in range(out.size):
            out[i] = _bce_slope(x[i], target[i]) * grad[i]


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


@compiled(fastmath=SUMS)
def _total(tile: Any) -> Any:
    total = tile.dtype.type(0)
    for j in range(tile.size):
        total += tile[j]
    return total


@compiled
def squared_error_sums(first: int, last: int, sums: Any, x: Any, y: Any) -> None:
    """Sums of :func:`squared_error`, of the tiles from ``first`` to ``last``."""
    tile = np.empty(TILE, x.dtype)
    for c in range(first, last):
        a, b = x[c * TILE : (c + 1) * TILE], y[c * TILE : (c + 1) * TILE]
        squared_error(tile[: a.size], a, b)
        sums[c] = _total(tile[: a.size])


@compiled
def bent_error_sums(
    first: int, last: int, sums: Any, x: Any, y: Any, bend: float, slope: float
) -> None:
    """Sums of :func:`bent_error`, of the tiles from ``first`` to ``last``."""
    tile = np.empty(TILE, x.dtype)
    for c in range(first, last):
        a, b = x[c * TILE : (c + 1) * TILE], y[c * TILE : (c + 1) * TILE]
        bent_error(tile[: a.size], a, b, bend, slope)
        sums[c] = _total(tile[: a.size])


@compiled
def bce_with_logits_sums(first: int, last: int, sums: Any, x: Any, y: Any) -> None:
    """Sums of :func:`bce_logits`, of the tiles from ``first`` to ``last``."""
    tile = np.empty(TILE, x.dtype)
    for c in range(first, last):
        a, b = x[c * TILE : (c + 1) * TILE], y[c * TILE : (c + 1) * TILE]
        bce_logits(tile[: a.size], a, b)
        sums[c] = _total(tile[: a.size])


@compiled
def binary_cross_entropy_sums(first: int, last: int, sums: Any, x: Any, y: Any) -> None:
    """Sums of :func:`bce`, of the tiles from ``first`` to ``last``."""
    tile = np.empty(TILE, x.dtype)
    for c in range(first, last):
        a, b = x[c * TILE : (c + 1) * TILE], y[c * TILE : (c + 1) * TILE]
        bce(tile[: a.size], a, b)
        sums[c] = _total(tile[: a.size])
