"""Compiled distances between all pairs of rows, ``(0, 1), (0, 2), ...``, and their gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import SUMS, compiled


@compiled(fastmath=SUMS)
def lengths(out: Any, x: Any, p: float) -> None:
    """The ``p``-norms of the differences."""
    kind, pair = x.dtype.type, 0
    power, root = kind(p), kind(1 / p if p > 0 else 0)
    for i in range(x.shape[0]):
        for j in range(i + 1, x.shape[0]):
            a, b, total = x[i], x[j], kind(0)
            if p == 2:
                for c in range(a.size):
                    total += (a[c] - b[c]) * (a[c] - b[c])
                total = np.sqrt(total)
            elif p == 1:
                for c in range(a.size):
                    total += abs(a[c] - b[c])
            elif p == np.inf:
                for c in range(a.size):
                    d = abs(a[c] - b[c])
                    if total == total and not d <= total:  # NaN comes and stays
                        total = d
            elif p == 0:
                for c in range(a.size):
                    total += kind(a[c] != b[c])
            else:
                for c in range(a.size):
                    total += abs(a[c] - b[c]) ** power
                total = total**root
            out[pair] = total
            pair += 1


@compiled
def slopes(out: Any, grad: Any, x: Any, sizes: Any, p: float) -> None:
    """The gradient in ``x`` of distances ``sizes``; 0 where two rows are one."""
    kind, pair = x.dtype.type, 0
    power = kind(p - 1)
    out[:] = 0
    for i in range(x.shape[0]):
        for j in range(i + 1, x.shape[0]):
            a, b, size, g = x[i], x[j], sizes[pair], grad[pair]
            pair += 1
            if size == 0 or p == 0:
                continue
            if p == 2:
                g /= size
            elif p != 1 and p != np.inf:
                g /= size**power
            for c in range(a.size):
                d = a[c] - b[c]
                if p == 2:
                    slope = g * d
                elif p == np.inf:  # each of several largest, as PyTorch
                    slope = g * np.sign(d) if abs(d) == size else kind(0)
                elif p == 1 or d == 0:
                    slope = g * np.sign(d)
                else:
                    slope = g * np.sign(d) * abs(d) ** power
                out[i, c] += slope
                out[j, c] -= slope
