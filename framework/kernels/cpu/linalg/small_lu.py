"""Compiled elimination for stacks of small matrices, where calls of LAPACK take longer than work.

Rows are exchanged for the largest pivot, as LAPACK does. Matrices come with their number in the
stack as the last dimension, so that one compiled form serves them and their transposes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import compiled, inlined


@inlined
def _pivot(w: Any, j: int) -> Any:
    # The row of the largest element of column j on or below the diagonal.
    best = j
    for i in range(j + 1, w.shape[0]):
        if abs(w[i, j]) > abs(w[best, j]):
            best = i
    return best


@compiled
def determinants(out: Any, a: Any, first: int, last: int) -> None:
    """The determinants of matrices ``first:last`` of ``a``, (n, n, count)."""
    n = a.shape[0]
    w = np.empty((n, n), out.dtype)
    for m in range(first, last):
        for i in range(n):
            for j in range(n):
                w[i, j] = a[i, j, m]
        product = 1.0  # float64 holds the product of eight float32
        for j in range(n):
            best = _pivot(w, j)
            if best != j:
                product = -product
                for c in range(j, n):
                    w[j, c], w[best, c] = w[best, c], w[j, c]
            product *= w[j, j]
            if w[j, j] == 0:
                break
            for i in range(j + 1, n):
                factor = w[i, j] / w[j, j]
                for c in range(j + 1, n):
                    w[i, c] -= factor * w[j, c]
        out[m] = product


@compiled
def solutions(info: Any, out: Any, a: Any, b: Any, inverts: bool, first: int, last: int) -> None:
    """Solve for systems ``first:last``; a singular one gets NaN and the number of its zero pivot.

    Args:
        info: (count,), int32; 0 where there is a solution.
        out: (n, k, count).
        a: (n, n, count).
        b: (n, k, count).
        inverts: Whether to take an identity in place of each b.
        first: Of the systems.
        last: One past it.
    """
    n, k, _ = out.shape
    w, x = np.empty((n, n), out.dtype), np.empty((n, k), out.dtype)
    for m in range(first, last):
        for i in range(n):
            for j in range(n):
                w[i, j] = a[i, j, m]
            for j in range(k):
                x[i, j] = i == j if inverts else b[i, j, m]
        info[m] = 0
        for j in range(n):
            best = _pivot(w, j)
            if w[best, j] == 0:
                info[m] = j + 1
                x[:] = np.nan
                break
            if best != j:
                for c in range(n):
                    w[j, c], w[best, c] = w[best, c], w[j, c]
                for c in range(k):
                    x[j, c], x[best, c] = x[best, c], x[j, c]
            for i in range(j + 1, n):
                factor = w[i, j] / w[j, j]
                for c in range(j + 1, n):
                    w[i, c] -= factor * w[j, c]
                for c in range(k):
                    x[i, c] -= factor * x[j, c]
        if info[m] == 0:
            for j in range(n - 1, -1, -1):
                for c in range(k):
                    x[j, c] /= w[j, j]
                for i in range(j):
                    for c in range(k):
                        x[i, c] -= w[i, j] * x[j, c]
        for i in range(n):
            for j in range(k):
                out[i, j, m] = x[i, j]
