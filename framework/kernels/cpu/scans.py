"""Compiled running sums, products, extremes and recurrences of (count, n, columns) arrays.

They run along ``n``, from its end if ``reverse``; the columns beside each other are what a
processor does at once. With a single column there is nothing beside, and an element waits for the
one before it.
"""

from __future__ import annotations

from typing import Any

from .compiler import FUSED, compiled


@compiled
def cumsum(out: Any, x: Any, reverse: bool) -> None:  # pragma: no cover - compiled
    """Add up the elements so far."""
    count, n, columns = x.shape
    for i in range(count):
        if columns == 1:
            total = x.dtype.type(0)
            for step in range(n):
                k = n - 1 - step if reverse else step
                total += x[i, k, 0]
                out[i, k, 0] = total
            continue
        for step in range(n):
            k = n - 1 - step if reverse else step
            before = (k + 1 if reverse else k - 1) if step else k
            for j in range(columns):
                out[i, k, j] = x[i, k, j] + out[i, before, j] if step else x[i, k, j]


@compiled
def cumprod(out: Any, x: Any, reverse: bool) -> None:  # pragma: no cover - compiled
    """Multiply the elements so far."""
    count, n, columns = x.shape
    for i in range(count):
        if columns == 1:
            total = x.dtype.type(1)
            for step in range(n):
                k = n - 1 - step if reverse else step
                total *= x[i, k, 0]
                out[i, k, 0] = total
            continue
        for step in range(n):
            k = n - 1 - step if reverse else step
            before = (k + 1 if reverse else k - 1) if step else k
            for j in range(columns):
                out[i, k, j] = x[i, k, j] * out[i, before, j] if step else x[i, k, j]


@compiled(fastmath=FUSED)
def recurrence(out: Any, x: Any, factor: Any, reverse: bool) -> None:  # pragma: no cover - compiled
    """``out[k] = x[k] + factor[k] * out[k - 1]``."""
    count, n, columns = x.shape
    for i in range(count):
        for step in range(n):
            k = n - 1 - step if reverse else step
            before = (k + 1 if reverse else k - 1) if step else k
            if step == 0:
                for j in range(columns):
                    out[i, k, j] = x[i, k, j]
            else:
                for j in range(columns):
                    out[i, k, j] = x[i, k, j] + factor[i, k, j] * out[i, before, j]


@compiled
def extreme(
    values: Any, indices: Any, x: Any, largest: bool
) -> None:  # pragma: no cover - compiled
    """The largest (or smallest) so far and where it was last; NaN wins over all."""
    count, n, columns = x.shape
    for i in range(count):
        for k in range(n):
            if k == 0:
                for j in range(columns):
                    values[i, 0, j] = x[i, 0, j]
                    indices[i, 0, j] = 0
                continue
            for j in range(columns):
                v, m = x[i, k, j], values[i, k - 1, j]
                wins = ((v >= m) if largest else (v <= m)) | (v != v)
                values[i, k, j] = v if wins else m
                indices[i, k, j] = k if wins else indices[i, k - 1, j]
