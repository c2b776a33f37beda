"""Compiled loops over windows: max pooling of volumes, and its gradient.

A plane is a volume of depth 1, a signal also of height 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import compiled, inlined


@compiled
def max_pool(
    out: Any, index: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> None:
    """The largest element of each window of (count, depth, height, width), and its number.

    NaN wins. Of equal ones the first counts, of several NaN the last. The lines of a row of windows
    are compared as a whole: that leaves one element in each column, and its number but for the
    column. Then columns are, for all windows that do not reach over an end.
    """
    count, depth, height, width = x.shape
    _, layers, rows, columns = out.shape
    kd, kh, kw = kernel
    dd, dh, dw = dilation
    step, pad = stride[2], padding[2]
    top, numbers = np.empty(width, x.dtype), np.empty(width, np.int32)
    chosen = np.empty(columns, np.int32)
    inner = min(-(-pad // step), columns)
    outer = max(inner, min(columns, (width + pad - (kw - 1) * dw - 1) // step + 1))
    for c in range(count):
        for place in range(layers * rows):
            q, r = place // rows, place % rows
            begun = False
            for i in range(kd * kh):
                z = q * stride[0] - padding[0] + i // kh * dd
                y = r * stride[1] - padding[1] + i % kh * dh
                if z < 0 or z >= depth or y < 0 or y >= height:
                    continue
                line, number = x[c, z, y], np.int32(i * kw)
                if begun:
                    for j in range(width):
                        wins = (line[j] > top[j]) | (line[j] != line[j])
                        top[j] = line[j] if wins else top[j]
                        numbers[j] = number if wins else numbers[j]
                else:
                    for j in range(width):  # twice as fast to compile as ``top[:] = line``
                        top[j] = line[j]
                    for j in range(width):
                        numbers[j] = number
                    begun = True
            for s in range(columns):
                if inner <= s < outer:
                    continue
                first, last = s * step - pad, kw
                skip = (dw - 1 - first) // dw if first < 0 else 0
                if first + (kw - 1) * dw >= width:
                    last = (width - 1 - first) // dw + 1
                best, which = top[first + skip * dw], numbers[first + skip * dw] + skip
                for j in range(skip + 1, last):
                    v, number = top[first + j * dw], numbers[first + j * dw] + j
                    if _wins(v, number, best, which):
                        best, which = v, number
                out[c, q, r, s] = best
                index[c, q, r, s] = which
            if inner == outer:
                continue
            first = inner * step - pad
            largest, here, theirs = out[c, q, r, inner:outer], top[first:], numbers[first:]
            if step == 1:
                _columns(largest, chosen, here, theirs, 1, kw, dw)
            elif step == 2:
                _columns(largest, chosen, here, theirs, 2, kw, dw)
            else:
                _columns(largest, chosen, here, theirs, step, kw, dw)
            for s in range(outer - inner):
                index[c, q, r, inner + s] = chosen[s]


@inlined
def _wins(v: Any, number: Any, best: Any, chosen: Any) -> Any:
    # Whether an element takes the place of the best one further left: of equal ones that of the
    # lesser number, of several NaN that of the greater. No branches: they cannot be predicted.
    larger = (v > best) | ((v == best) & (number < chosen))
    return larger | ((v != v) & ((best == best) | (number > chosen)))


@inlined
def _columns(best: Any, chosen: Any, top: Any, numbers: Any, step: int, kw: int, dw: int) -> None:
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
) -> None:
    """Add each gradient to the element of its window that won."""
    count, layers, rows, columns = grad.shape
    kd, kh, kw = kernel
    height, width = out.shape[2:]
    places = np.empty(kd * kh * kw, np.int64)  # of a window's elements, from its first on
    for k in range(kd * kh * kw):
        z, y = k // (kh * kw) * dilation[0], k // kw % kh * dilation[1]
        places[k] = (z * height + y) * width + k % kw * dilation[2]
    for c in range(count):
        volume = out[c].reshape(-1)
        volume[:] = 0
        for place in range(layers * rows):
            z = place // rows * stride[0] - padding[0]
            y = place % rows * stride[1] - padding[1]
            first = (z * height + y) * width - padding[2]
            which, g = index[c, place // rows, place % rows], grad[c, place // rows, place % rows]
            for s in range(columns):
                volume[first + s * stride[2] + places[which[s]]] += g[s]
