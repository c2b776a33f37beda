"""Compiled distances between points, and their gradients: of two sets, or of all pairs of one.

Points have few coordinates, so the inner loops run over points: a block of them is transposed first
and each of its rows, one coordinate of all, is compared with a coordinate of one other point.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import SUMS, compiled, inlined

_BLOCK = 1 << 13  # elements of a block: it stays in the first cache


@inlined
def _width(points: int, coordinates: int) -> Any:
    """How many points a block has."""
    return max(1, min(points, max(16, _BLOCK // max(1, coordinates))))


@inlined
def _transpose(block: Any, x: Any, first: int, last: int) -> None:
    for c in range(x.shape[1]):
        row = block[c]
        for j in range(last - first):
            row[j] = x[first + j, c]


@compiled(fastmath=SUMS)
def _add_powers(sums: Any, v: Any, row: Any, p: float, power: Any) -> None:
    # Add the power of each difference; for p = inf keep the largest, for p = 0 count.
    if p == 2:
        for j in range(sums.size):
            sums[j] += (v - row[j]) * (v - row[j])
    elif p == 1:
        for j in range(sums.size):
            sums[j] += abs(v - row[j])
    elif p == np.inf:
        for j in range(sums.size):
            d, most = abs(v - row[j]), sums[j]
            sums[j] = d if (most == most) & (not d <= most) else most  # NaN comes and stays
    elif p == 0:
        for j in range(sums.size):
            sums[j] += sums.dtype.type(v != row[j])
    else:
        for j in range(sums.size):
            sums[j] += abs(v - row[j]) ** power


@inlined
def _set_lengths(out: Any, point: Any, block: Any, begin: int, p: float) -> None:
    # Between a point and those of a block, from ``begin`` on.
    kind = out.dtype.type
    power, root = kind(p), kind(1 / p if p > 0 else 0)
    out[:] = 0
    for c in range(point.size):
        _add_powers(out, point[c], block[c, begin : begin + out.size], p, power)
    if p == 2:
        for j in range(out.size):
            out[j] = np.sqrt(out[j])
    elif p != 0 and p != 1 and p != np.inf:
        for j in range(out.size):
            out[j] = out[j] ** root


@compiled(fastmath=SUMS)
def _set_slopes(slopes: Any, v: Any, row: Any, sizes: Any, p: float, power: Any) -> None:
    # Those of the lengths' powers by one coordinate, up to the factors of ``_set_factors``.
    if p == 2:
        for j in range(slopes.size):
            slopes[j] = v - row[j]
    elif p == np.inf:  # each of several largest, as PyTorch
        for j in range(slopes.size):
            d = v - row[j]
            slopes[j] = np.sign(d) if abs(d) == sizes[j] else slopes.dtype.type(0)
    elif p == 1:
        for j in range(slopes.size):
            slopes[j] = np.sign(v - row[j])
    else:
        for j in range(slopes.size):
            d = v - row[j]
            slopes[j] = np.sign(d) if d == 0 else np.sign(d) * abs(d) ** power


@compiled(fastmath=SUMS)
def _set_factors(factors: Any, sizes: Any, p: float, power: Any) -> None:
    # From gradients: what slopes are multiplied with. 0 where two points are one.
    nothing = factors.dtype.type(0)
    for j in range(factors.size):
        g, size = factors[j], sizes[j]
        if p == 2:
            g = g / size
        elif p != 1 and p != np.inf:
            g = g / size**power
        factors[j] = nothing if size == 0 else g


@compiled(fastmath=SUMS)
def lengths_between(out: Any, x1: Any, x2: Any, p: float, start: int, stop: int) -> None:
    """The ``p``-norms of differences between points of two sets.

    Args:
        out: (batch, rows, others).
        x1: (batch, rows, coordinates).
        x2: (batch, others, coordinates).
        p: Of the norm.
        start: The first of the rows, counted over all of the batch.
        stop: Behind the last.
    """
    rows, others, coordinates = x1.shape[1], x2.shape[1], x2.shape[2]
    width = _width(others, coordinates)
    block = np.empty((coordinates, width), x2.dtype)
    for n in range(start // rows, (stop + rows - 1) // rows):
        low, high = max(start - n * rows, 0), min(stop - n * rows, rows)
        for first in range(0, others, width):
            last = min(first + width, others)
            _transpose(block, x2[n], first, last)
            for i in range(low, high):
                _set_lengths(out[n, i, first:last], x1[n, i], block, 0, p)


@compiled(fastmath=SUMS)
def slopes_between(
    out: Any,
    grad: Any,
    x1: Any,
    x2: Any,
    sizes: Any,
    turned: bool,
    p: float,
    start: int,
    stop: int,
) -> None:
    """The gradient in ``x1`` of distances ``sizes``; the arguments are as above.

    Args:
        out: (batch, rows, coordinates).
        grad: (batch, rows, others); with ``turned`` (batch, others, rows).
        x1: (batch, rows, coordinates).
        x2: (batch, others, coordinates).
        sizes: Shaped as ``grad``.
        turned: The last dims of these two are exchanged.
        p: Of the norm, not 0.
        start: The first of the rows, counted over all of the batch.
        stop: Behind the last.
    """
    rows, others, coordinates = x1.shape[1], x2.shape[1], x2.shape[2]
    width = _width(others, coordinates)
    block = np.empty((coordinates, width), x2.dtype)
    factors, slope = np.empty(width, x2.dtype), np.empty(width, x2.dtype)
    size = np.empty(width, x2.dtype)
    power = x2.dtype.type(p - 1)
    for n in range(start // rows, (stop + rows - 1) // rows):
        low, high = max(start - n * rows, 0), min(stop - n * rows, rows)
        for first in range(0, others, width):
            last = min(first + width, others)
            _transpose(block, x2[n], first, last)
            for i in range(low, high):
                g, s = factors[: last - first], size[: last - first]
                for j in range(g.size):
                    if turned:
                        g[j], s[j] = grad[n, first + j, i], sizes[n, first + j, i]
                    else:
                        g[j], s[j] = grad[n, i, first + j], sizes[n, i, first + j]
                _set_factors(g, s, p, power)
                _add_products(out[n, i], x1[n, i], block, g, s, slope, first == 0, p)


@inlined
def _add_products(
    out: Any,
    point: Any,
    block: Any,
    factors: Any,
    sizes: Any,
    slopes: Any,
    begins: bool,
    p: float,
) -> None:
    power = out.dtype.type(p - 1)
    here = slopes[: factors.size]
    for c in range(out.size):
        total, v, row = out.dtype.type(0), point[c], block[c]
        if p == 2:  # in one loop, for few points
            for j in range(here.size):
                total += factors[j] * (v - row[j])
        else:
            _set_slopes(here, v, row, sizes, p, power)
            for j in range(here.size):
                total += factors[j] * here[j]
        out[c] = total if begins else out[c] + total


@compiled(fastmath=SUMS)
def lengths(out: Any, x: Any, p: float) -> None:
    """The ``p``-norms of the differences of all pairs of points, ``(0, 1), (0, 2), ...``."""
    count, coordinates = x.shape
    width = _width(count, coordinates)
    block = np.empty((coordinates, width), x.dtype)
    for first in range(0, count, width):
        last = min(first + width, count)
        _transpose(block, x, first, last)
        for i in range(last - 1):
            j = max(first, i + 1)
            pair = i * (2 * count - i - 1) // 2 + j - i - 1
            _set_lengths(out[pair : pair + last - j], x[i], block, j - first, p)


@compiled(fastmath=SUMS)
def _total_of_products(slopes: Any, factors: Any, back: Any) -> Any:
    # The sum of the products, each of which is subtracted from ``back``.
    total = slopes.dtype.type(0)
    for k in range(slopes.size):
        v = slopes[k] * factors[k]
        back[k] -= v
        total += v
    return total


@compiled(fastmath=SUMS)
def slopes(out: Any, grad: Any, x: Any, sizes: Any, p: float) -> None:
    """The gradient in ``x`` of all pairs' distances ``sizes``; 0 where two points are one."""
    count, coordinates = x.shape
    width = _width(count, coordinates)
    block = np.empty((coordinates, width), x.dtype)
    back = np.empty((coordinates, width), x.dtype)
    factors, slope = np.empty(width, x.dtype), np.empty(width, x.dtype)
    power = x.dtype.type(p - 1)
    out[:] = 0
    for first in range(0, count if p != 0 else 0, width):
        last = min(first + width, count)
        _transpose(block, x, first, last)
        back[:] = 0
        for i in range(last - 1):
            j = max(first, i + 1)
            pair = i * (2 * count - i - 1) // 2 + j - i - 1
            g, size = factors[: last - j], sizes[pair : pair + last - j]
            for k in range(g.size):
                g[k] = grad[pair + k]
            _set_factors(g, size, p, power)
            for c in range(coordinates):
                here, row = slope[: g.size], block[c, j - first : last - first]
                _set_slopes(here, x[i, c], row, size, p, power)
                out[i, c] += _total_of_products(here, g, back[c, j - first : last - first])
        for c in range(coordinates):
            for j in range(first, last):
                out[j, c] += back[c, j - first]
