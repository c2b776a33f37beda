"""Compiled distances between points, and their gradients: of two sets, or of all pairs of one.

Mostly points have few coordinates, so the inner loops run over points: a block of them is
transposed first and each of its rows, one coordinate of all, is compared with a coordinate of one
other point. Where coordinates are as many as points, they run over the coordinates of a pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import SUMS, compiled, inlined

_BLOCK = 1 << 13  # elements of a block: it stays in the first cache
_LONG = 1  # coordinates for each point, from which the inner loops run over them


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


@inlined
def _term(d: Any, p: float, power: Any, one: Any) -> Any:
    """What a difference adds to the power of a length, p < inf. ``one`` is of its type."""
    if p == 2:
        return d * d
    if p == 1:
        return abs(d)
    if p == 0:
        return one if d != 0 else one - one
    return abs(d) ** power


@inlined
def _larger(most: Any, d: Any) -> Any:
    """The larger size, for p = inf; NaN comes and stays."""
    return abs(d) if (most == most) & (not abs(d) <= most) else most


@inlined
def _root(total: Any, p: float, power: Any) -> Any:
    """The length, from its power."""
    if p == 2:
        return np.sqrt(total)
    if p == 1 or p == 0:
        return total
    return total**power


@inlined
def _slope(d: Any, size: Any, p: float, power: Any, zero: Any) -> Any:
    """The slope of a length by a difference, up to ``_factor``."""
    if p == 2:
        return d
    if p == np.inf:  # each of several largest, as PyTorch
        return np.sign(d) if abs(d) == size else zero
    if p == 1 or d == 0:
        return np.sign(d)
    return np.sign(d) * abs(d) ** power


@inlined
def _factor(g: Any, size: Any, p: float, power: Any, zero: Any) -> Any:
    """What slopes are multiplied with, from the gradient; 0 where two points are one."""
    if size == 0:
        return zero
    if p == 2:
        return g / size
    if p == 1 or p == np.inf:
        return g
    return g / size**power


@compiled(fastmath=SUMS)
def _set_lengths(out: Any, point: Any, block: Any, begin: int, p: float) -> None:
    # Between a point and those of a block, from ``begin`` on.
    kind = out.dtype.type
    power, root, one = kind(p), kind(1 / p if p > 0 else 0), kind(1)
    for j in range(out.size):
        out[j] = kind(0)
    for c in range(point.size):
        v, row = point[c], block[c, begin : begin + out.size]
        if p == np.inf:
            for j in range(out.size):
                out[j] = _larger(out[j], v - row[j])
        else:
            for j in range(out.size):
                out[j] += _term(v - row[j], p, power, one)
    if p != np.inf:
        for j in range(out.size):
            out[j] = _root(out[j], p, root)


@compiled(fastmath=SUMS)
def _length(a: Any, b: Any, p: float) -> Any:
    # Between two points of many coordinates.
    kind = a.dtype.type
    total, power, one = kind(0), kind(p), kind(1)
    if p == np.inf:
        for c in range(a.size):
            total = _larger(total, a[c] - b[c])
        return total
    for c in range(a.size):
        total += _term(a[c] - b[c], p, power, one)
    return _root(total, p, kind(1 / p if p > 0 else 0))


@compiled(fastmath=SUMS)
def _add_slopes(out: Any, back: Any, a: Any, b: Any, g: Any, size: Any, p: float) -> None:
    # Of two points of many coordinates: added to ``out``, subtracted from ``back`` if it has any.
    power, zero = a.dtype.type(p - 1), a.dtype.type(0)
    if back.size:
        for c in range(a.size):
            slope = g * _slope(a[c] - b[c], size, p, power, zero)
            out[c] += slope
            back[c] -= slope
    else:
        for c in range(a.size):
            out[c] += g * _slope(a[c] - b[c], size, p, power, zero)


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
    if coordinates >= _LONG * others:
        for k in range(start, stop):
            n, i = k // rows, k % rows
            for j in range(others):
                out[n, i, j] = _length(x1[n, i], x2[n, j], p)
        return
    width = _width(others, coordinates)
    block = np.empty((coordinates, width), x2.dtype)
    for n in range(start // rows, (stop + rows - 1) // rows):
        low, high = max(start - n * rows, 0), min(stop - n * rows, rows)
        for first in range(0, others, width):
            last = min(first + width, others)
            _transpose(block, x2[n], first, last)
            for i in range(low, high):
                _set_lengths(out[n, i, first:last], x1[n, i], block, 0, p)


@compiled
def lengths_of_products(out: Any, squares1: Any, squares2: Any, start: int, stop: int) -> None:
    """Euclidean distances in the place of products of points: ``sqrt(a a - 2 a b + b b)``.

    Args:
        out: (rows, points): products; rows are the first points of all examples.
        squares1: (rows,): products of the first points with themselves.
        squares2: (examples, points): those of the second.
        start: The first row.
        stop: The one after the last.
    """
    nothing, twice = out.dtype.type(0), out.dtype.type(-2)
    rows = out.shape[0] // squares2.shape[0]
    for i in range(start, stop):
        own, example = squares1[i], i // rows
        for j in range(out.shape[1]):
            v = out[i, j] * twice + own + squares2[example, j]
            out[i, j] = np.sqrt(nothing if v < nothing else v)


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
    factors, size = np.empty(width, x2.dtype), np.empty(width, x2.dtype)
    power, zero = x2.dtype.type(p - 1), x2.dtype.type(0)
    long = coordinates >= _LONG * others
    for n in range(start // rows, (stop + rows - 1) // rows):
        low, high = max(start - n * rows, 0), min(stop - n * rows, rows)
        for first in range(0, others, width):
            last = min(first + width, others)
            if not long:
                _transpose(block, x2[n], first, last)
            for i in range(low, high):
                g, s = factors[: last - first], size[: last - first]
                for j in range(g.size):
                    if turned:
                        g[j], s[j] = grad[n, first + j, i], sizes[n, first + j, i]
                    else:
                        g[j], s[j] = grad[n, i, first + j], sizes[n, i, first + j]
                for j in range(g.size):
                    g[j] = _factor(g[j], s[j], p, power, zero)
                if long:
                    _add_pairs(out[n, i], x1[n, i], x2[n], g, s, first, p)
                else:
                    _add_products(out[n, i], x1[n, i], block, g, s, first == 0, p)


@inlined
def _add_pairs(
    out: Any, point: Any, others: Any, factors: Any, sizes: Any, first: int, p: float
) -> None:
    if first == 0:
        for c in range(out.size):
            out[c] = out.dtype.type(0)
    for j in range(factors.size):
        _add_slopes(out, out[:0], point, others[first + j], factors[j], sizes[j], p)


@compiled(fastmath=SUMS)
def _add_products(
    out: Any, point: Any, block: Any, factors: Any, sizes: Any, begins: bool, p: float
) -> None:
    power, zero = out.dtype.type(p - 1), out.dtype.type(0)
    for c in range(out.size):
        total, v, row = zero, point[c], block[c]
        for j in range(factors.size):
            total += factors[j] * _slope(v - row[j], sizes[j], p, power, zero)
        out[c] = total if begins else out[c] + total


@compiled(fastmath=SUMS)
def lengths(out: Any, x: Any, p: float) -> None:
    """The ``p``-norms of the differences of all pairs of points, ``(0, 1), (0, 2), ...``."""
    count, coordinates = x.shape
    if coordinates >= _LONG * count:
        pair = 0
        for i in range(count):
            for j in range(i + 1, count):
                out[pair] = _length(x[i], x[j], p)
                pair += 1
        return
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
def _slopes_of_long(out: Any, grad: Any, x: Any, sizes: Any, p: float) -> None:
    count, pair = x.shape[0], 0
    power, zero = x.dtype.type(p - 1), x.dtype.type(0)
    for i in range(count if p != 0 else 0):
        for j in range(i + 1, count):
            g = _factor(grad[pair], sizes[pair], p, power, zero)
            _add_slopes(out[i], out[j], x[i], x[j], g, sizes[pair], p)
            pair += 1


@compiled(fastmath=SUMS)
def _total(v: Any, row: Any, factors: Any, sizes: Any, back: Any, p: float) -> Any:
    # The sum of the slopes by one coordinate of a point, each of which is subtracted from ``back``.
    power, zero = factors.dtype.type(p - 1), factors.dtype.type(0)
    total = zero
    for k in range(factors.size):
        slope = factors[k] * _slope(v - row[k], sizes[k], p, power, zero)
        back[k] -= slope
        total += slope
    return total


@compiled(fastmath=SUMS)
def slopes(out: Any, grad: Any, x: Any, sizes: Any, p: float) -> None:
    """The gradient in ``x`` of all pairs' distances ``sizes``; 0 where two points are one."""
    count, coordinates = x.shape
    power, zero = x.dtype.type(p - 1), x.dtype.type(0)
    for i in range(count):
        for c in range(coordinates):
            out[i, c] = zero
    if coordinates >= _LONG * count:
        _slopes_of_long(out, grad, x, sizes, p)
        return
    width = _width(count, coordinates)
    block, back = np.empty((coordinates, width), x.dtype), np.empty((coordinates, width), x.dtype)
    factors = np.empty(width, x.dtype)
    for first in range(0, count if p != 0 else 0, width):
        last = min(first + width, count)
        _transpose(block, x, first, last)
        for c in range(coordinates):
            for j in range(width):
                back[c, j] = zero
        for i in range(last - 1):
            j = max(first, i + 1)
            pair = i * (2 * count - i - 1) // 2 + j - i - 1
            g, size = factors[: last - j], sizes[pair : pair + last - j]
            for k in range(g.size):
                g[k] = _factor(grad[pair + k], size[k], p, power, zero)
            for c in range(coordinates):
                row, behind = block[c, j - first :], back[c, j - first :]
                out[i, c] += _total(x[i, c], row, g, size, behind, p)
        for c in range(coordinates):
            for j in range(first, last):
                out[j, c] += back[c, j - first]
