"""Compiled loops over windows: max pooling of planes, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .compiler import compiled


@compiled
def max_pool(
    out: Any, index: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> None:  # pragma: no cover - compiled
    """The largest element of each window of (planes, height, width), and its number; NaN wins.

    Of equal ones the first counts, of several NaN the last. The lines of a row of windows are
    compared as a whole: that leaves one element in each column, and its number but for the column.
    Then columns are, for all windows that do not reach over an end.
    """
    planes, height, width = x.shape
    rows, columns = out.shape[1], out.shape[2]
    kh, kw = kernel
    dh, dw = dilation
    top, numbers = np.empty(width, x.dtype), np.empty(width, np.int32)
    chosen = np.empty(columns, np.int32)
    inner = min(-(-padding[1] // stride[1]), columns)
    outer = max(inner, min(columns, (width + padding[1] - (kw - 1) * dw - 1) // stride[1] + 1))
    for c in range(planes):
        for r in range(rows):
            begun = False
            for i in range(kh):
                y = r * stride[0] - padding[0] + i * dh
                if y < 0 or y >= height:
                    continue
                line, number = x[c, y], np.int32(i * kw)
                if begun:
                    for z in range(width):
                        wins = (line[z] > top[z]) | (line[z] != line[z])
                        top[z] = line[z] if wins else top[z]
                        numbers[z] = number if wins else numbers[z]
                else:
                    top[:] = line
                    numbers[:] = number
                    begun = True
            for s in range(columns):
                if inner <= s < outer:
                    continue
                first, last = s * stride[1] - padding[1], kw
                skip = (dw - 1 - first) // dw if first < 0 else 0
                if first + (kw - 1) * dw >= width:
                    last = (width - 1 - first) // dw + 1
                best, which = top[first + skip * dw], numbers[first + skip * dw] + skip
                for j in range(skip + 1, last):
                    v, number = top[first + j * dw], numbers[first + j * dw] + j
                    if _wins(v, number, best, which):
                        best, which = v, number
                out[c, r, s] = best
                index[c, r, s] = which
            if inner == outer:
                continue
            first = inner * stride[1] - padding[1]
            largest, here, theirs = out[c, r, inner:outer], top[first:], numbers[first:]
            if stride[1] == 1:
                _columns(largest, chosen, here, theirs, 1, kw, dw)
            elif stride[1] == 2:
                _columns(largest, chosen, here, theirs, 2, kw, dw)
            else:
                _columns(largest, chosen, here, theirs, stride[1], kw, dw)
            for s in range(outer - inner):
                index[c, r, inner + s] = chosen[s]


@njit(inline="always")
def _wins(v: Any, number: Any, best: Any, chosen: Any) -> Any:  # pragma: no cover - compiled
    # Whether an element takes the place of the best one further left: of equal ones that of the
    # lesser number, of several NaN that of the greater. No branches: nobody can foretell which
    # would be taken.
    larger = (v > best) | ((v == best) & (number < chosen))
    return larger | ((v != v) & ((best == best) | (number > chosen)))


@njit(inline="always")
def _columns(
    best: Any, chosen: Any, top: Any, numbers: Any, step: int, kw: int, dw: int
) -> None:  # pragma: no cover - compiled
    for s in range(best.size):
        best[s] = top[s * step]
    for s in range(best.size):
        chosen[s] = numbers[s * step]
    for j in range(1, kw):
        one = np.int32(j)
        values, others = top[j * dw :], numbers[j * dw :]
        for s in range(best.size):
            v, number = values[s * step], others[s * step] + one
            wins = _wins(v, number, best[s], chosen[s])
            best[s] = v if wins else best[s]
            chosen[s] = number if wins else chosen[s]


@compiled
def max_pool_grad(
    out: Any, grad: Any, index: Any, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> None:  # pragma: no cover - compiled
    """Add each gradient to the element of its window that won."""
    planes, rows, columns = grad.shape
    kh, kw = kernel
    width = out.shape[2]
    places = np.empty(kh * kw, np.int64)  # of a window's elements, from its first on
    for k in range(kh * kw):
        places[k] = k // kw * dilation[0] * width + k % kw * dilation[1]
    for c in range(planes):
        plane = out[c].reshape(-1)
        plane[:] = 0
        for r in range(rows):
            first = (r * stride[0] - padding[0]) * width - padding[1]
            for s in range(columns):
                plane[first + s * stride[1] + places[index[c, r, s]]] += grad[c, r, s]
