"""Compiled loops over windows: max pooling of planes, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from .compiler import compiled


@compiled
def max_pool(
    out: Any, index: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> None:  # pragma: no cover - compiled
    """The largest element of each window of (planes, height, width), and its number; NaN wins.

    Of equal ones the first counts, of several NaN the last. The lines of a row of windows are
    compared as a whole; then each window has one element in each column, and the line it is from.
    """
    planes, height, width = x.shape
    rows, columns = out.shape[1], out.shape[2]
    kh, kw = kernel
    dh, dw = dilation
    top, lines = np.empty(width, x.dtype), np.empty(width, np.int32)
    for c in range(planes):
        for r in range(rows):
            begun = False
            for i in range(kh):
                y = r * stride[0] - padding[0] + i * dh
                if y < 0 or y >= height:
                    continue
                line, number = x[c, y], np.int32(i)
                if begun:
                    for z in range(width):
                        wins = (line[z] > top[z]) | (line[z] != line[z])
                        top[z] = line[z] if wins else top[z]
                        lines[z] = number if wins else lines[z]
                else:
                    top[:] = line
                    lines[:] = number
                    begun = True
            for s in range(columns):
                first, last = s * stride[1] - padding[1], kw
                skip = (dw - 1 - first) // dw if first < 0 else 0
                if first + (kw - 1) * dw >= width:
                    last = (width - 1 - first) // dw + 1
                best, row, column = top[first + skip * dw], lines[first + skip * dw], skip
                for j in range(skip + 1, last):
                    v, number = top[first + j * dw], lines[first + j * dw]
                    wins = v > best or (v == best and number < row)
                    if wins or (v != v and (best == best or number >= row)):
                        best, row, column = v, number, j
                out[c, r, s] = best
                index[c, r, s] = row * kw + column


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
