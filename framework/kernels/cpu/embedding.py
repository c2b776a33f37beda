"""Compiled weighted sums of rows or elements that indices name, and their adjoints.

What is added to an element comes in the order of the indices, so a repeated run gives the same
bits. Indices are in range: the caller has checked.
"""

from __future__ import annotations

from typing import Any

from .support.jit import FUSED, SUMS, compiled

# Bags of rows


@compiled(fastmath=FUSED)
def bag(out: Any, table: Any, factors: Any, source: Any, target: Any) -> None:
    """``out[target[i]] += factors[i] * table[source[i]]``, from zero."""
    out[:] = 0
    for i in range(source.size):
        f, row, sums = factors[i], table[source[i]], out[target[i]]
        for j in range(row.size):
            sums[j] += f * row[j]


@compiled(fastmath=SUMS)
def products(out: Any, a: Any, b: Any, source: Any, target: Any) -> None:
    """``out[i]`` is the scalar product of ``a[source[i]]`` and ``b[target[i]]``."""
    for i in range(source.size):
        x, y = a[source[i]], b[target[i]]
        total = a.dtype.type(0)
        for j in range(x.size):
            total += x[j] * y[j]
        out[i] = total


@compiled
def winners(out: Any, best: Any, table: Any, source: Any, target: Any, counts: Any) -> None:
    """Which row is the largest of each bag, per column; the first of equals, or the last NaN."""
    out[:] = -1
    for i in range(source.size):
        if counts[i] == 0:
            continue
        row, top, place = table[source[i]], best[target[i]], out[target[i]]
        for j in range(row.size):
            v = row[j]
            wins = (place[j] < 0) | (v > top[j]) | (v != v)
            top[j] = v if wins else top[j]
            place[j] = source[i] if wins else place[j]


# Samples of images: (batch, channels, elements), taps (batch, taps, positions)


@compiled(fastmath=FUSED)
def taps(out: Any, x: Any, weight: Any, index: Any) -> None:
    """``out[n, c, p] = sum_k weight[n, k, p] * x[n, c, index[n, k, p]]``."""
    batch, channels, positions = out.shape
    for n in range(batch):
        for c in range(channels):
            line, image = out[n, c], x[n, c]
            for k in range(index.shape[1]):
                at, w = index[n, k], weight[n, k]
                if k == 0:
                    for p in range(positions):
                        line[p] = w[p] * image[at[p]]
                else:
                    for p in range(positions):
                        line[p] += w[p] * image[at[p]]


@compiled(fastmath=FUSED)
def taps_spread(out: Any, grad: Any, weight: Any, index: Any) -> None:
    """``out[n, c, index[n, k, p]] += weight[n, k, p] * grad[n, c, p]``, from zero."""
    batch, channels, positions = grad.shape
    for n in range(batch):
        for c in range(channels):
            line, image = grad[n, c], out[n, c]
            image[:] = 0
            for k in range(index.shape[1]):
                at, w = index[n, k], weight[n, k]
                for p in range(positions):
                    image[at[p]] += w[p] * line[p]


@compiled(fastmath=FUSED)
def taps_agreement(out: Any, x: Any, grad: Any, index: Any) -> None:
    """``out[n, k, p] = sum_c x[n, c, index[n, k, p]] * grad[n, c, p]``."""
    batch, channels, positions = grad.shape
    for n in range(batch):
        for k in range(index.shape[1]):
            at, line = index[n, k], out[n, k]
            line[:] = 0
            for c in range(channels):
                image, g = x[n, c], grad[n, c]
                for p in range(positions):
                    line[p] += image[at[p]] * g[p]


# Resizing of the middle dim of (count, n, columns)


@compiled(fastmath=FUSED)
def resize(out: Any, x: Any, index: Any, weight: Any) -> None:
    """``out[i, p] = sum_k weight[k, p] * x[i, index[k, p]]``."""
    count, positions, columns = out.shape
    depth = index.shape[0]
    for i in range(count):
        if columns == 1:
            for p in range(positions):
                total = weight[0, p] * x[i, index[0, p], 0]
                for k in range(1, depth):
                    total += weight[k, p] * x[i, index[k, p], 0]
                out[i, p, 0] = total
            continue
        for p in range(positions):
            line = out[i, p]
            for k in range(depth):
                w, source = weight[k, p], x[i, index[k, p]]
                if k == 0:
                    for j in range(columns):
                        line[j] = w * source[j]
                elif w != 0:
                    for j in range(columns):
                        line[j] += w * source[j]
