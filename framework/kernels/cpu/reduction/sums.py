"""Compiled sums of float32: of each row, of columns, of everything.

NumPy adds rows up eight elements at a time, and needs four times as long. Here some thousand
elements are added up in lanes of float32, and these sums in float64, so that the rounding of a long
row does not grow with it. Every sum has one order, which no number of threads changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import SUMS, compiled

TILE = 1 << 8  # elements that are added up in float32
WIDE = 128  # columns that are added up together


@compiled(fastmath=SUMS)
def _of_tile(x: Any) -> Any:
    total = np.float32(0)
    for j in range(x.size):
        total += x[j]
    return total


@compiled
def _of_row(x: Any) -> Any:
    total = 0.0
    for first in range(0, x.size, TILE):
        total += np.float64(_of_tile(x[first : first + TILE]))
    return total


@compiled(signature="f4:1C,f4:2Cr")
def of_rows(out: Any, x: Any) -> None:
    """Add up each row of (rows, n)."""
    short = x.shape[1] <= TILE
    for i in range(out.size):
        out[i] = _of_tile(x[i]) if short else np.float32(_of_row(x[i]))


@compiled(signature="f4:2C,f4:4Cr,i8,i8")
def of_lines(out: Any, x: Any, start: int, stop: int) -> None:
    """Add up (count, n, lines, length) over ``n`` and ``length``, for some lines.

    Args:
        out: (count, lines).
        x: (count, n, lines, length).
        start: The first line, counted over all of ``count``.
        stop: Behind the last.
    """
    _, n, lines, length = x.shape
    short = length <= TILE
    for k in range(start, stop):
        i, line = k // lines, k % lines
        found = 0.0
        for r in range(n):
            row = x[i, r, line]
            found += np.float64(_of_tile(row)) if short else _of_row(row)
        out[i, line] = np.float32(found)


@compiled(signature="f8:1C,f4:1Cr,i8,i8,i8")
def of_parts(out: Any, x: Any, part: int, start: int, stop: int) -> None:
    """Add up parts ``start`` to ``stop`` of ``part`` elements each; the last may be shorter."""
    for k in range(start, stop):
        out[k] = _of_row(x[k * part : (k + 1) * part])


@compiled(signature="f4:2C,f4:3Cr,i8,i8")
def of_columns(out: Any, x: Any, start: int, stop: int) -> None:
    """Add up the rows of each matrix of (count, n, columns), for some blocks of columns.

    Args:
        out: (count, columns).
        x: (count, n, columns).
        start: The first block of ``WIDE`` columns, counted over all matrices.
        stop: Behind the last.
    """
    _, n, columns = x.shape
    blocks = (columns + WIDE - 1) // WIDE
    for k in range(start, stop):
        i, first = k // blocks, k % blocks * WIDE
        behind = min(first + WIDE, columns)
        total = out[i, first:behind]
        for j in range(total.size):
            total[j] = 0
        whole = n - n % 4
        for r in range(0, whole, 4):
            a, b = x[i, r, first:behind], x[i, r + 1, first:behind]
            c, d = x[i, r + 2, first:behind], x[i, r + 3, first:behind]
            for j in range(total.size):
                total[j] += (a[j] + b[j]) + (c[j] + d[j])
        for r in range(whole, n):
            a = x[i, r, first:behind]
            for j in range(total.size):
                total[j] += a[j]
