"""Compiled products with a sparse matrix, given by the row and column of each value."""

from __future__ import annotations

from typing import Any

from ..support.jit import SUMS, compiled


@compiled
def add_rows(out: Any, values: Any, rows: Any, columns: Any, dense: Any) -> None:
    """Add ``values[k] * dense[columns[k]]`` to ``out[rows[k]]``, in order."""
    n = dense.shape[1]
    for k in range(values.size):
        value, row, column = values[k], rows[k], columns[k]
        for j in range(n):
            out[row, j] += value * dense[column, j]


@compiled(fastmath=SUMS)
def dot_rows(out: Any, a: Any, b: Any, rows: Any, columns: Any) -> None:
    """``out[k] = a[rows[k]] @ b[columns[k]]``."""
    n = a.shape[1]
    for k in range(out.size):
        row, column, total = rows[k], columns[k], a.dtype.type(0)
        for j in range(n):
            total += a[row, j] * b[column, j]
        out[k] = total
