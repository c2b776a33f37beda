"""Compiled steps of Adafactor: three passes over a parameter and its gradient, no temporaries.

The first pass moves the mean squares on, the second measures the update, the third applies it. An
element of the update is computed twice, which is cheaper than to keep it. One thread runs them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import SUMS, compiled


@compiled(fastmath=SUMS)
def matrices(
    p: Any,
    g: Any,
    rows: Any,
    columns: Any,
    share: Any,
    least: Any,
    floor: Any,
    keep: Any,
    rate: Any,
    clip: Any,
) -> None:
    """One step for a stack of matrices.

    Args:
        p: Parameter, (b, n, m).
        g: Gradient, the same.
        rows: Mean squares of rows, (b, n).
        columns: Of columns, (b, m).
        share: Of the new square in the means.
        least: Least square to divide by is its square.
        floor: Least root mean square of p.
        keep: Factor of decoupled decay.
        rate: Relative step, negative to maximize.
        clip: Root mean square above which the update is scaled down.
    """
    count, n, m = p.shape
    size = max(np.float64(floor), np.sqrt(_mean_square(p.reshape(-1))))
    for b in range(count):
        for j in range(m):
            columns[b, j] *= 1 - share
        each = share / n
        for i in range(n):
            total = 0.0
            for j in range(m):
                square = g[b, i, j] * g[b, i, j]
                total += square
                columns[b, j] += each * square
            rows[b, i] = rows[b, i] * (1 - share) + share * (total / m)
    total = 0.0
    for b in range(count):
        mean = max(rows[b].sum() / n, least)
        for i in range(n):
            row = rows[b, i] / mean
            inner = 0.0
            for j in range(m):
                square = max(row * columns[b, j], least * least)
                inner += g[b, i, j] * g[b, i, j] / square
            total += inner
    scale = p.dtype.type(rate * size / max(1.0, np.sqrt(total / p.size) / clip))
    for b in range(count):
        mean = max(rows[b].sum() / n, least)
        for i in range(n):
            row = rows[b, i] / mean
            for j in range(m):
                square = max(row * columns[b, j], least * least)
                p[b, i, j] = p[b, i, j] * keep - scale * (g[b, i, j] / np.sqrt(square))


@compiled(fastmath=SUMS)
def vector(
    p: Any,
    g: Any,
    squares: Any,
    share: Any,
    least: Any,
    floor: Any,
    keep: Any,
    rate: Any,
    clip: Any,
) -> None:
    """One step for a vector, whose mean square is kept completely."""
    size = max(np.float64(floor), np.sqrt(_mean_square(p)))
    total = 0.0
    for i in range(p.size):
        square = squares[i] * (1 - share) + share * g[i] * g[i]
        squares[i] = square
        total += g[i] * g[i] / max(square, least * least)
    scale = p.dtype.type(rate * size / max(1.0, np.sqrt(total / max(p.size, 1)) / clip))
    for i in range(p.size):
        square = max(squares[i], least * least)
        p[i] = p[i] * keep - scale * (g[i] / np.sqrt(square))


@compiled(fastmath=SUMS)
def _mean_square(x: Any) -> Any:
    total = 0.0
    for i in range(x.size):
        total += x[i] * x[i]
    return total / max(x.size, 1)
