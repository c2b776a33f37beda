"""Compiled adaptive pooling of (planes, depth, height, width), and sums into places of planes.

Cell ``i`` of ``m`` that divide ``n`` elements begins at ``i * n // m``; cells may overlap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import SUMS, compiled, inlined

_LINE = 1024  # elements added up in their own precision


@inlined
def reach(i: int, n: int, m: int) -> Any:
    """Where cell ``i`` begins and ends."""
    return i * n // m, ((i + 1) * n + m - 1) // m


@inlined
def _add_lines(sums: Any, x: Any, depths: Any, lines: Any) -> None:
    """Set ``sums`` to the sum of some lines of some planes of ``x``."""
    sums[:] = 0
    for d in range(depths[0], depths[1]):
        for y in range(lines[0], lines[1]):
            line = x[d, y]
            for z in range(sums.size):
                sums[z] += line[z]


@inlined
def _add_to(out: Any, depths: Any, lines: Any, columns: Any, share: Any) -> None:
    """Add ``share`` to some columns of some lines of some planes of ``out``."""
    for d in range(depths[0], depths[1]):
        for y in range(lines[0], lines[1]):
            line = out[d, y, columns[0] : columns[1]]
            for z in range(line.size):
                line[z] += share


@compiled(fastmath=SUMS)
def average(out: Any, x: Any) -> None:
    """The mean of each cell: whole lines are added up first, then parts of their sum."""
    planes, depth, height, width = x.shape
    zero = x.dtype.type(0)
    if out[0].size == 1:
        for c in range(planes):
            volume, mean = x[c].reshape(-1), 0.0
            for start in range(0, volume.size, _LINE):
                tile = volume[start : start + _LINE]
                total = zero
                for z in range(tile.size):
                    total += tile[z]
                mean += total / volume.size
            out[c, 0, 0, 0] = mean
        return
    sums = np.empty(width, x.dtype)
    for c in range(planes):
        for p in range(out.shape[1]):
            d0, d1 = reach(p, depth, out.shape[1])
            for q in range(out.shape[2]):
                y0, y1 = reach(q, height, out.shape[2])
                _add_lines(sums, x[c], (d0, d1), (y0, y1))
                for r in range(out.shape[3]):
                    z0, z1 = reach(r, width, out.shape[3])
                    total = zero
                    for z in range(z0, z1):
                        total += sums[z]
                    count = (d1 - d0) * (y1 - y0) * (z1 - z0)
                    out[c, p, q, r] = total / x.dtype.type(count)


@compiled
def average_grad(out: Any, grad: Any) -> None:
    """Give each element of a cell its share of the cell's gradient."""
    planes, depth, height, width = out.shape
    for c in range(planes):
        out[c] = 0
        for p in range(grad.shape[1]):
            d0, d1 = reach(p, depth, grad.shape[1])
            for q in range(grad.shape[2]):
                y0, y1 = reach(q, height, grad.shape[2])
                for r in range(grad.shape[3]):
                    z0, z1 = reach(r, width, grad.shape[3])
                    count = (d1 - d0) * (y1 - y0) * (z1 - z0)
                    share = grad[c, p, q, r] / out.dtype.type(count)
                    _add_to(out[c], (d0, d1), (y0, y1), (z0, z1), share)


@compiled
def largest(out: Any, index: Any, x: Any) -> None:
    """The largest element of each cell and its first place in the volume; the last NaN wins.

    Whole lines are compared first; what they leave in each column says which line it is from.
    """
    planes, depth, height, width = x.shape
    top, lines = np.empty(width, x.dtype), np.empty(width, np.int32)
    for c in range(planes):
        for p in range(out.shape[1]):
            d0, d1 = reach(p, depth, out.shape[1])
            for q in range(out.shape[2]):
                y0, y1 = reach(q, height, out.shape[2])
                for d in range(d0, d1):
                    for y in range(y0, y1):
                        begins = d == d0 and y == y0
                        _larger(top, lines, x[c, d, y], d * height + y, begins)
                _winners(out[c, p, q], index[c, p, q], top, lines)


@compiled
def _larger(top: Any, lines: Any, line: Any, number: int, begins: bool) -> None:
    this = np.int32(number)
    for z in range(line.size):
        wins = (line[z] > top[z]) | (line[z] != line[z]) | begins
        top[z] = line[z] if wins else top[z]
        lines[z] = this if wins else lines[z]


@compiled
def _winners(out: Any, index: Any, top: Any, lines: Any) -> None:
    for r in range(out.size):
        first, last = reach(r, top.size, out.size)
        best, line, column = top[first], lines[first], first
        for z in range(first + 1, last):
            v, number = top[z], lines[z]
            wins = v > best or (v == best and number < line)
            if wins or (v != v and (best == best or number >= line)):
                best, line, column = v, number, z
        out[r] = best
        index[r] = line * top.size + column


@compiled
def scatter(out: Any, values: Any, index: Any) -> None:
    """Add each value where ``index`` points in its row, in order."""
    for c in range(out.shape[0]):
        out[c] = 0
        for k in range(values.shape[1]):
            out[c, index[c, k]] += values[c, k]
