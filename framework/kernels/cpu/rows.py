"""Compiled loops over rows: layer normalization, its gradient, and sums of repeated rows.

Each makes one or two passes over a row while it is in the first cache, where the plain kernels
pass over the whole array once per operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .compiler import SUMS, compiled


@compiled
def add_rows(out: Any, grad: Any, index: Any) -> None:  # pragma: no cover - compiled
    """Add row ``k`` of ``grad`` to row ``index[k]`` of ``out``, in order."""
    for k in range(index.size):
        row = index[k]
        for j in range(grad.shape[1]):
            out[row, j] += grad[k, j]


@compiled(fastmath=SUMS)
def layer_norm(
    out: Any, mean: Any, rstd: Any, x: Any, weight: Any, bias: Any, eps: float
) -> None:  # pragma: no cover - compiled
    """Normalize each row; ``weight`` and ``bias`` have a length of 0 where there is none."""
    rows, n = x.shape
    zero = x.dtype.type(0)
    share = x.dtype.type(1.0 / n)
    for i in range(rows):
        total = zero
        for j in range(n):
            total += x[i, j]
        m = total * share
        total = zero
        for j in range(n):
            d = x[i, j] - m
            total += d * d
        r = x.dtype.type(1.0 / np.sqrt(total * share + eps))
        mean[i] = m
        rstd[i] = r
        if weight.size:
            for j in range(n):
                out[i, j] = (x[i, j] - m) * r * weight[j]
        else:
            for j in range(n):
                out[i, j] = (x[i, j] - m) * r
        if bias.size:
            for j in range(n):
                out[i, j] += bias[j]


@compiled(fastmath=SUMS)
def layer_norm_grad(
    dx: Any, dw: Any, db: Any, g: Any, x: Any, weight: Any, mean: Any, rstd: Any
) -> None:  # pragma: no cover - compiled
    """The gradients of :func:`layer_norm`; ``dw`` is left alone where there is no weight."""
    rows, n = x.shape
    zero = x.dtype.type(0)
    share = x.dtype.type(1.0 / n)
    weighted = weight.size > 0
    db[:] = zero
    if weighted:
        dw[:] = zero
    for i in range(rows):
        m, r = mean[i], rstd[i]
        a, b = zero, zero
        if weighted:
            for j in range(n):
                h = (x[i, j] - m) * r
                v = g[i, j] * weight[j]
                dw[j] += g[i, j] * h
                db[j] += g[i, j]
                a += v
                b += v * h
        else:
            for j in range(n):
                h = (x[i, j] - m) * r
                v = g[i, j]
                db[j] += v
                a += v
                b += v * h
        a *= share
        b *= share
        if weighted:
            for j in range(n):
                dx[i, j] = (g[i, j] * weight[j] - a - (x[i, j] - m) * r * b) * r
        else:
            for j in range(n):
                dx[i, j] = (g[i, j] - a - (x[i, j] - m) * r * b) * r
