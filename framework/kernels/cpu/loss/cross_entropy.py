"""Compiled cross entropy of float32 logits with class numbers, log likelihoods, and gradients.

Classes lie along rows (``rows``), or along the middle of (examples, classes, positions), as an
image's do (``planes``); then a tile of positions goes through its classes together. Of the
exponentials no more exist at a time than a tile. ``weight`` is (1, classes) or (1, 0).

``_cross_entropy`` in ``ops/loss/cross_entropy.py`` says what is computed; class numbers are
checked before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..attention import _largest, _sum, sum_of_products
from ..support.jit import FUSED, SUMS, compiled, inlined
from ..support.vector_math import exp32

_ZERO, _ONE = np.float32(0), np.float32(1)
TILE = 1024  # classes of a row, or positions of a plane, at a time


@compiled
def has_invalid_class(target: Any, classes: int, ignored: int) -> bool:
    """Whether some class number is neither one of ``classes`` nor ``ignored``."""
    found = False
    for i in range(target.size):
        t = target[i]
        found |= ((t < 0) | (t >= classes)) & (t != ignored)
    return found


@inlined
def _all(weight: Any, classes: int) -> Any:
    return _sum(weight[0]) if weight.size else np.float32(classes)


@compiled(fastmath=FUSED)
def rows(
    x: Any,
    out: Any,
    top: Any,
    total: Any,
    target: Any,
    weight: Any,
    ignored: int,
    smoothing: float,
) -> None:
    """The loss of each row, its largest element, and the sum of exponentials beside that."""
    count, n = x.shape
    powers = np.empty(min(n, TILE), np.float32)
    mass, smooth = _all(weight, n), np.float32(smoothing / n)
    rest = np.float32(1 - smoothing)
    for i in range(count):
        row = x[i]
        m = _largest(row)
        s, below = _ZERO, _ZERO
        for start in range(0, n, TILE):
            tile = row[start : start + TILE]
            if smooth != _ZERO:  # not the sum of the elements, which may be large
                for j in range(tile.size):
                    powers[j] = tile[j] - m
                if weight.size:
                    below += sum_of_products(weight[0, start : start + TILE], powers[: tile.size])
                else:
                    below += _sum(powers[: tile.size])
                for j in range(tile.size):
                    powers[j] = exp32(powers[j])
            else:
                for j in range(tile.size):
                    powers[j] = exp32(tile[j] - m)
            s += _sum(powers[: tile.size])
        low = np.log(s)
        top[i], total[i] = m, s
        t = target[i]
        if t == ignored:
            out[i] = _ZERO
            continue
        loss = (m - row[t]) + low
        if weight.size:
            loss *= weight[0, t]
        if smooth != _ZERO:
            loss = loss * rest + (low * mass - below) * smooth
        out[i] = loss


@compiled(fastmath=FUSED, overlaps=False)
def rows_grad(
    out: Any,
    x: Any,
    grad: Any,
    top: Any,
    total: Any,
    target: Any,
    weight: Any,
    ignored: int,
    smoothing: float,
    step: int,
) -> None:
    """The gradient of :func:`rows` in the logits; ``out`` may be ``x``.

    ``step`` is 1; 0 if ``grad`` is one number, which holds for all rows.
    """
    count, n = x.shape
    mass, smooth = _all(weight, n), np.float32(smoothing / n)
    rest = np.float32(1 - smoothing)
    for i in range(count):
        row, made, m, t = x[i], out[i], top[i], target[i]
        g = _ZERO if t == ignored else grad[i * step]
        hit, spread = g * rest, g * smooth
        if weight.size and t != ignored:
            hit *= weight[0, t]
        factor = (hit + spread * mass) / total[i]
        for j in range(n):
            made[j] = exp32(row[j] - m) * factor
        if smooth != _ZERO:
            if weight.size:
                for j in range(n):
                    made[j] -= spread * weight[0, j]
            else:
                for j in range(n):
                    made[j] -= spread
        if t != ignored:
            made[t] -= hit


@compiled(fastmath=FUSED)
def planes(
    x: Any,
    out: Any,
    top: Any,
    total: Any,
    target: Any,
    weight: Any,
    ignored: int,
    smoothing: float,
) -> None:
    """The same as :func:`rows` of each position: ``x`` is (count, classes, positions)."""
    count, n, length = x.shape
    below = np.zeros(TILE, np.float32)
    mass, smooth = _all(weight, n), np.float32(smoothing / n)
    rest = np.float32(1 - smoothing)
    for i in range(count):
        for start in range(0, length, TILE):
            largest, loss = top[i, start : start + TILE], out[i, start : start + TILE]
            sums, first = total[i, start : start + TILE], x[i, 0, start : start + TILE]
            for j in range(largest.size):
                largest[j], sums[j] = first[j], _ZERO
            for k in range(1, n):
                row = x[i, k, start : start + TILE]
                for j in range(largest.size):
                    v, m = row[j], largest[j]
                    largest[j] = v if (v > m) | (v != v) else m
            for k in range(n):
                row = x[i, k, start : start + TILE]
                for j in range(largest.size):
                    sums[j] += exp32(row[j] - largest[j])
            if smooth != _ZERO:
                below[:] = _ZERO
                for k in range(n):
                    row = x[i, k, start : start + TILE]
                    w = weight[0, k] if weight.size else _ONE
                    for j in range(largest.size):
                        below[j] += (row[j] - largest[j]) * w
            for j in range(largest.size):
                low = np.log(sums[j])
                t = target[i, start + j]
                if t == ignored:
                    loss[j] = _ZERO
                    continue
                v = (largest[j] - x[i, t, start + j]) + low
                if weight.size:
                    v *= weight[0, t]
                if smooth != _ZERO:
                    v = v * rest + (low * mass - below[j]) * smooth
                loss[j] = v


@compiled(fastmath=FUSED, overlaps=False)
def planes_grad(
    out: Any,
    x: Any,
    grad: Any,
    top: Any,
    total: Any,
    target: Any,
    weight: Any,
    ignored: int,
    smoothing: float,
) -> None:
    """The gradient of :func:`planes` in the logits; ``out`` may be ``x``."""
    count, n, length = x.shape
    hit, factor = np.empty(TILE, np.float32), np.empty(TILE, np.float32)
    mass, smooth = _all(weight, n), np.float32(smoothing / n)
    rest = np.float32(1 - smoothing)
    for i in range(count):
        for start in range(0, length, TILE):
            m, above = top[i, start : start + TILE], grad[i, start : start + TILE]
            sums = total[i, start : start + TILE]
            for j in range(m.size):
                t = target[i, start + j]
                g = _ZERO if t == ignored else above[j]
                hit[j] = g * rest
                if weight.size and t != ignored:
                    hit[j] *= weight[0, t]
                factor[j] = (hit[j] + g * smooth * mass) / sums[j]
            for k in range(n):
                row, made = x[i, k, start : start + TILE], out[i, k, start : start + TILE]
                for j in range(m.size):
                    made[j] = exp32(row[j] - m[j]) * factor[j]
                if smooth != _ZERO:
                    w = smooth * weight[0, k] if weight.size else smooth
                    for j in range(m.size):
                        g = _ZERO if target[i, start + j] == ignored else above[j]
                        made[j] -= g * w
            for j in range(m.size):
                t = target[i, start + j]
                if t != ignored:
                    out[i, t, start + j] -= hit[j]


@compiled
def picked(x: Any, out: Any, target: Any, weight: Any, ignored: int) -> None:
    """``-x[target] * weight[target]`` of each position of (count, classes, positions)."""
    count, length = out.shape
    for i in range(count):
        for j in range(length):
            t = target[i, j]
            if t == ignored:
                out[i, j] = 0
            elif weight.size:
                out[i, j] = -(x[i, t, j] * weight[0, t])
            else:
                out[i, j] = -x[i, t, j]


@compiled
def picked_grad(out: Any, grad: Any, target: Any, weight: Any, ignored: int) -> None:
    """The gradient of :func:`picked`: zero but at the classes."""
    count, length = grad.shape
    for i in range(count):
        made = out[i].reshape(-1)
        for j in range(made.size):
            made[j] = 0
        for j in range(length):
            t = target[i, j]
            if t != ignored:
                out[i, t, j] = -(grad[i, j] * weight[0, t]) if weight.size else -grad[i, j]


@compiled(fastmath=SUMS)
def mean(out: Any, divisor: Any, loss: Any, target: Any, weight: Any, ignored: int) -> None:
    """``sum(loss) / divisor``; the divisor is the sum of the weights of all classes that count.

    Both sums are formed in float64. All arrays but ``weight`` are flat; ``out`` and ``divisor``
    have one element.
    """
    kind = out.dtype.type
    total, counted = 0.0, 0.0
    for i in range(loss.size):
        total += loss[i]
    if weight.size:
        for i in range(target.size):
            t = target[i]
            if t != ignored:
                counted += weight[0, t]
    else:
        count = 0
        for i in range(target.size):
            count += target[i] != ignored
        counted = float(count)
    divisor[0] = kind(counted)
    out[0] = kind(total) / divisor[0]
