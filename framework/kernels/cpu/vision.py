"""Compiled sampling of images at computed positions, and its two gradients.

Images are (batch, channels, elements), gradients (batch, channels, positions), positions
(batch, positions, dims) with the last dim of an image first. For a tile of positions at a time the
elements that are read and their weights are made, then every channel is walked. Positions are
computed in the type of the grid, as the plain ops do.

What a tile needs stays in the nearest cache, and within a fixed number of bytes a thread: the more
taps a position has, the fewer positions a tile has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .support.jit import FUSED, compiled

LINEAR, NEAREST, CUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2
TILE = 256  # positions, at most
TAPS = 2048  # numbers that describe the taps of a tile, at most: 16 KiB in float64


@compiled
def image(out: Any, x: Any, grid: Any, sizes: Any, mode: int, padding: int, align: bool) -> None:
    """Weighted sums of the elements around each position."""
    index, weight, slope = _workspace(grid, len(sizes), mode, 0)
    tile = index.shape[1]
    for n in range(out.shape[0]):
        for start in range(0, grid.shape[1], tile):
            here = grid[n, start : start + tile]
            _set_taps(index, weight, slope, here, sizes, mode, padding, align, True)
            for c in range(out.shape[1]):
                line, source = out[n, c, start : start + tile], x[n, c]
                line[:] = 0
                for k in range(index.shape[0]):
                    _gather(line, source, index[k], weight[k])


@compiled
def image_grad(
    out: Any, grad: Any, grid: Any, sizes: Any, mode: int, padding: int, align: bool
) -> None:
    """Each gradient, times the weights, added to the elements around its position."""
    index, weight, slope = _workspace(grid, len(sizes), mode, 0)
    tile = index.shape[1]
    out[:] = 0
    for n in range(out.shape[0]):
        for start in range(0, grid.shape[1], tile):
            here = grid[n, start : start + tile]
            _set_taps(index, weight, slope, here, sizes, mode, padding, align, False)
            for c in range(out.shape[1]):
                line, target = grad[n, c, start : start + tile], out[n, c]
                for k in range(index.shape[0]):
                    _spread(target, line, index[k], weight[k])


@compiled
def grid_grad(
    out: Any, grad: Any, x: Any, grid: Any, sizes: Any, mode: int, padding: int, align: bool
) -> None:
    """The elements around a position, times the gradient and the slopes of their weights."""
    nd = len(sizes)
    index, weight, slope = _workspace(grid, nd, mode, nd)
    tile = index.shape[1]
    agreed = np.empty_like(weight[0])
    out[:] = 0
    for n in range(out.shape[0]):
        for start in range(0, grid.shape[1], tile):
            here, to = grid[n, start : start + tile], out[n, start : start + tile]
            _set_taps(index, weight, slope, here, sizes, mode, padding, align, True)
            for k in range(index.shape[0]):
                agreed[:] = 0
                for c in range(x.shape[1]):
                    _agree(agreed, x[n, c], grad[n, c, start : start + tile], index[k])
                for d in range(nd):
                    for p in range(to.shape[0]):
                        to[p, d] += agreed[p] * slope[d, k, p]


@compiled(fastmath=FUSED)
def _gather(line: Any, source: Any, index: Any, weight: Any) -> None:
    for p in range(line.size):
        line[p] += weight[p] * source[index[p]]


@compiled(fastmath=FUSED)
def _spread(target: Any, line: Any, index: Any, weight: Any) -> None:
    for p in range(line.size):
        target[index[p]] += weight[p] * line[p]


@compiled(fastmath=FUSED)
def _agree(agreed: Any, source: Any, line: Any, index: Any) -> None:
    for p in range(line.size):
        agreed[p] += source[index[p]] * line[p]


@compiled
def _workspace(grid: Any, nd: int, mode: int, slopes: int) -> tuple[Any, Any, Any]:
    # (index, weight, slope by dim of the grid) of the taps of a tile
    taps = (4 if mode == CUBIC else 1 if mode == NEAREST else 2) ** nd
    tile = min(TILE, TAPS // (taps * (2 + slopes)))
    return (
        np.empty((taps, tile), np.int64),
        np.empty((taps, tile), grid.dtype),
        np.empty((slopes, taps, tile), grid.dtype),
    )


@compiled
def _set_taps(
    index: Any,
    weight: Any,
    slope: Any,
    grid: Any,
    sizes: Any,
    mode: int,
    padding: int,
    align: bool,
    values: bool,
) -> None:
    # The taps of all dims are multiplied out, one dim after the other.
    nd, count, m = len(sizes), 1, grid.shape[0]
    steps = 4 if mode == CUBIC else 1 if mode == NEAREST else 2
    place = np.empty((steps, m), weight.dtype)
    w, bend = np.empty_like(place), np.empty_like(place)
    index[0, :m], weight[0, :m] = 0, 1
    for e in range(slope.shape[0]):
        slope[e, 0, :m] = 1
    for d in range(nd):
        n, e = sizes[d], nd - 1 - d  # the grid's last component is the first dim's
        _set_axis(place, w, bend, grid[:, e], n, mode, padding, align, values)
        for s in range(steps - 1, -1, -1):  # the first takes the place of what there was
            for k in range(count):
                j = k + s * count
                for p in range(m):
                    index[j, p] = index[k, p] * n + int(place[s, p])
                for f in range(slope.shape[0]):
                    factor = bend[s] if f == e else w[s]
                    for p in range(m):
                        slope[f, j, p] = slope[f, k, p] * factor[p]
                for p in range(m):
                    weight[j, p] = weight[k, p] * w[s, p]
        count *= steps


@compiled
def _set_axis(
    place: Any,
    w: Any,
    bend: Any,
    grid: Any,
    n: int,
    mode: int,
    padding: int,
    align: bool,
    values: bool,
) -> None:
    # (element, weight, slope of the weight) of each tap along one dim
    kind = w.dtype.type
    zero, one = kind(0), kind(1)
    last, low, span = kind(n - 1), zero if align else kind(-0.5), kind(n - align)
    scale, shift = kind((n - align) / 2), zero if align else kind(0.5)
    for p in range(grid.size):
        at = (grid[p] + one) * scale - shift
        turn = one
        if mode != CUBIC and padding != ZEROS:
            at, turn = _placed(at, last, low, span, one, zero, padding)
        first = np.rint(at) if mode == NEAREST else np.floor(at)
        place[0, p], w[0, p], bend[0, p] = first, one, zero
        if mode == LINEAR:
            t = at - first
            place[1, p], w[0, p], w[1, p] = first + one, one - t, t
            bend[0, p], bend[1, p] = -turn * scale, turn * scale
        elif mode == CUBIC:
            for s in range(4):
                to = first + kind(s - 1)
                if padding != ZEROS:
                    to, _ = _placed(to, last, low, span, one, zero, padding)
                place[s, p], w[s, p] = to, _cubic(at - first, s, one)
                bend[s, p] = _cubic_slope(at - first, s, one) * scale
    for s in range(place.shape[0]):
        for p in range(grid.size):
            inside = (place[s, p] >= zero) & (place[s, p] <= last)
            place[s, p] = place[s, p] if inside else zero
            # Outside is 0, but what has no place at all, NaN or infinity, has no value either.
            keeps = values & (w[s, p] != w[s, p])
            w[s, p] = w[s, p] if inside | keeps else zero
            keeps = values & (bend[s, p] != bend[s, p])
            bend[s, p] = bend[s, p] if inside | keeps else zero


@compiled
def _placed(
    at: Any, last: Any, low: Any, span: Any, one: Any, zero: Any, padding: int
) -> tuple[Any, Any]:
    # (position with the padding mode applied, its slope)
    slope = one
    if padding == REFLECTION:
        if span == zero:
            return zero, zero
        off = at - low
        if off < zero:
            off, slope = -off, -one
        turns = np.floor(off / span)
        rest = off - turns * span
        if turns % 2 == 0:
            at = rest + low
        else:
            at, slope = span - rest + low, -slope
    if padding != ZEROS:
        if at >= last:
            return last, zero
        if not at > zero:
            return zero, zero
    return at, slope


@compiled
def _cubic(t: Any, s: int, one: Any) -> Any:
    # Weight of tap s in 0..3, at distance |t + 1 - s|; a = -3/4
    a = -(one + one + one) / (one + one + one + one)
    two, three = one + one, one + one + one
    if s == 1 or s == 2:
        x = t if s == 1 else one - t
        return ((a + two) * x - (a + three)) * x * x + one
    x = t + one if s == 0 else two - t
    return ((a * x - (two + three) * a) * x + (two + three + three) * a) * x - (two + two) * a


@compiled
def _cubic_slope(t: Any, s: int, one: Any) -> Any:
    a = -(one + one + one) / (one + one + one + one)
    two, three = one + one, one + one + one
    if s == 1 or s == 2:
        x = t if s == 1 else one - t
        found = (three * (a + two) * x - two * (a + three)) * x
        return found if s == 1 else -found
    x = t + one if s == 0 else two - t
    found = (three * a * x - (two * (two + three)) * a) * x + (two + three + three) * a
    return found if s == 0 else -found
