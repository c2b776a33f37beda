"""Compiled running sums, products, extremes and recurrences of (count, n, columns) arrays.

They run along ``n``, from its end if ``reverse``; the columns beside each other are what a
processor does at once. With a single column there is nothing beside, and an element waits for the
one before it: there four rows are taken together, which wait side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, SUMS, compiled

_WIDE = 256  # columns at a time where a pass needs a number for each


@compiled
def cumsum(out: Any, x: Any, reverse: bool) -> None:
    """Add up the elements so far, in float64."""
    count, n, columns = x.shape
    if columns == 1:
        whole = count - count % 4
        for i in range(0, whole, 4):
            a = b = c = d = np.float64(0)
            for step in range(n):
                k = n - 1 - step if reverse else step
                a += x[i, k, 0]
                b += x[i + 1, k, 0]
                c += x[i + 2, k, 0]
                d += x[i + 3, k, 0]
                out[i, k, 0], out[i + 1, k, 0] = a, b
                out[i + 2, k, 0], out[i + 3, k, 0] = c, d
        for i in range(whole, count):
            a = np.float64(0)
            for step in range(n):
                k = n - 1 - step if reverse else step
                a += x[i, k, 0]
                out[i, k, 0] = a
        return
    so_far = np.empty(min(_WIDE, columns))
    for i in range(count):
        for first in range(0, columns, _WIDE):
            here = so_far[: columns - first]
            here[:] = 0
            for step in range(n):
                k = n - 1 - step if reverse else step
                row, target = x[i, k, first : first + _WIDE], out[i, k, first : first + _WIDE]
                for j in range(row.size):
                    here[j] += row[j]
                    target[j] = here[j]


@compiled
def cumprod(out: Any, x: Any, reverse: bool) -> None:
    """Multiply the elements so far, in float64."""
    count, n, columns = x.shape
    if columns == 1:
        whole = count - count % 4
        for i in range(0, whole, 4):
            a = b = c = d = np.float64(1)
            for step in range(n):
                k = n - 1 - step if reverse else step
                a *= x[i, k, 0]
                b *= x[i + 1, k, 0]
                c *= x[i + 2, k, 0]
                d *= x[i + 3, k, 0]
                out[i, k, 0], out[i + 1, k, 0] = a, b
                out[i + 2, k, 0], out[i + 3, k, 0] = c, d
        for i in range(whole, count):
            a = np.float64(1)
            for step in range(n):
                k = n - 1 - step if reverse else step
                a *= x[i, k, 0]
                out[i, k, 0] = a
        return
    so_far = np.empty(min(_WIDE, columns))
    for i in range(count):
        for first in range(0, columns, _WIDE):
            here = so_far[: columns - first]
            here[:] = 1
            for step in range(n):
                k = n - 1 - step if reverse else step
                row, target = x[i, k, first : first + _WIDE], out[i, k, first : first + _WIDE]
                for j in range(row.size):
                    here[j] *= row[j]
                    target[j] = here[j]


@compiled(fastmath=FUSED)
def recurrence(out: Any, x: Any, factor: Any, reverse: bool) -> None:
    """``out[k] = x[k] + factor[k] * out[k - 1]``."""
    count, n, columns = x.shape
    first = 0
    if columns == 1:
        first = count - count % 4
        for i in range(0, first, 4):
            a = b = c = d = x.dtype.type(0)
            for step in range(n):
                k = n - 1 - step if reverse else step
                if step == 0:  # nothing times infinity is no number
                    a, b = x[i, k, 0], x[i + 1, k, 0]
                    c, d = x[i + 2, k, 0], x[i + 3, k, 0]
                else:
                    a = x[i, k, 0] + factor[i, k, 0] * a
                    b = x[i + 1, k, 0] + factor[i + 1, k, 0] * b
                    c = x[i + 2, k, 0] + factor[i + 2, k, 0] * c
                    d = x[i + 3, k, 0] + factor[i + 3, k, 0] * d
                out[i, k, 0], out[i + 1, k, 0] = a, b
                out[i + 2, k, 0], out[i + 3, k, 0] = c, d
    for i in range(first, count):
        for step in range(n):
            k = n - 1 - step if reverse else step
            before = (k + 1 if reverse else k - 1) if step else k
            if step == 0:
                for j in range(columns):
                    out[i, k, j] = x[i, k, j]
            else:
                for j in range(columns):
                    out[i, k, j] = x[i, k, j] + factor[i, k, j] * out[i, before, j]


@compiled(fastmath=SUMS)
def product(out: Any, x: Any) -> None:
    """The product of each row of (count, n), in an order that suits the processor."""
    for i in range(x.shape[0]):
        row = x[i]
        total = x.dtype.type(1)
        for k in range(row.size):
            total *= row[k]
        out[i] = total


@compiled
def others(out: Any, x: Any) -> None:
    """The product of all elements but each one: those before it times those after it."""
    count, n, columns = x.shape
    one = x.dtype.type(1)
    if columns == 1:
        whole = count - count % 4
        for i in range(0, whole, 4):
            a = b = c = d = one
            for k in range(n):
                out[i, k, 0], out[i + 1, k, 0] = a, b
                out[i + 2, k, 0], out[i + 3, k, 0] = c, d
                a, b = a * x[i, k, 0], b * x[i + 1, k, 0]
                c, d = c * x[i + 2, k, 0], d * x[i + 3, k, 0]
            a = b = c = d = one
            for k in range(n - 1, -1, -1):
                out[i, k, 0] *= a
                out[i + 1, k, 0] *= b
                out[i + 2, k, 0] *= c
                out[i + 3, k, 0] *= d
                a, b = a * x[i, k, 0], b * x[i + 1, k, 0]
                c, d = c * x[i + 2, k, 0], d * x[i + 3, k, 0]
        for i in range(whole, count):
            a = one
            for k in range(n):
                out[i, k, 0] = a
                a *= x[i, k, 0]
            a = one
            for k in range(n - 1, -1, -1):
                out[i, k, 0] *= a
                a *= x[i, k, 0]
        return
    after = np.empty(_WIDE, x.dtype)
    for i in range(count):
        for start in range(0, columns, _WIDE):
            stop = min(start + _WIDE, columns)
            out[i, 0, start:stop] = one
            for k in range(1, n):
                for j in range(start, stop):
                    out[i, k, j] = out[i, k - 1, j] * x[i, k - 1, j]
            after[:] = one
            for k in range(n - 2, -1, -1):
                for j in range(start, stop):
                    after[j - start] *= x[i, k + 1, j]
                    out[i, k, j] *= after[j - start]


@compiled
def extreme(values: Any, indices: Any, x: Any, largest: bool) -> None:
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
