"""Compiled batch normalization of (batch, channels): channels lie side by side.

Rows are read as they lie, a tile of channels wide, and the sums of its channels are kept in
float64. In ``batch_norm.py``, where a channel's elements lie together, a channel comes after the
other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import SUMS, compiled

TILE = 256  # channels whose sums stay in the first cache


@compiled(fastmath=SUMS)
def batch_norm(
    out: Any,
    mean: Any,
    var: Any,
    rstd: Any,
    x: Any,
    weight: Any,
    bias: Any,
    eps: float,
    first: int,
    last: int,
) -> None:
    """Normalize blocks ``first:last`` of ``TILE`` channels.

    An absent weight or bias has a length of 0.
    """
    batch = x.shape[0]
    kind = x.dtype.type
    total = np.empty(TILE)
    scale, shift = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
    for block in range(first, last):
        begin = block * TILE
        width = min(TILE, x.shape[1] - begin)
        m = mean[begin : begin + width]
        total[:] = 0.0
        for n in range(batch):
            row = x[n, begin : begin + width]
            for j in range(width):
                total[j] += row[j]
        for j in range(width):
            m[j] = total[j] / batch
        total[:] = 0.0
        for n in range(batch):
            row = x[n, begin : begin + width]
            for j in range(width):
                d = row[j] - m[j]
                total[j] += d * d
        for j in range(width):
            c = begin + j
            v = kind(total[j] / batch)
            r = kind(1.0 / np.sqrt(v + eps))
            var[c] = v
            rstd[c] = r
            scale[j] = r * weight[c] if weight.size else r
            shift[j] = bias[c] if bias.size else kind(0)
        for n in range(batch):
            row, y = x[n, begin : begin + width], out[n, begin : begin + width]
            for j in range(width):
                y[j] = (row[j] - m[j]) * scale[j] + shift[j]


@compiled(fastmath=SUMS, overlaps=False)
def batch_norm_grad(
    dx: Any,
    dw: Any,
    db: Any,
    g: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    first: int,
    last: int,
) -> None:
    """The gradients of :func:`batch_norm`; ``dx`` may be ``g`` or ``x``.

    ``dw`` is left alone where there is no weight.
    """
    batch = x.shape[0]
    kind = x.dtype.type
    a, b = np.empty(TILE), np.empty(TILE)
    low, slope = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
    scale = np.empty(TILE, x.dtype)
    for block in range(first, last):
        begin = block * TILE
        width = min(TILE, x.shape[1] - begin)
        m = mean[begin : begin + width]
        a[:] = 0.0
        b[:] = 0.0
        for n in range(batch):
            row, up = x[n, begin : begin + width], g[n, begin : begin + width]
            for j in range(width):
                a[j] += up[j]
            for j in range(width):
                b[j] += up[j] * (row[j] - m[j])
        for j in range(width):
            c = begin + j
            r = rstd[c]
            b[j] *= r
            db[c] = a[j]
            scale[j] = r
            if weight.size:
                dw[c] = b[j]
                scale[j] = r * weight[c]
            low[j], slope[j] = kind(a[j] / batch), kind(b[j] / batch) * r
        for n in range(batch):
            row, up = x[n, begin : begin + width], g[n, begin : begin + width]
            down = dx[n, begin : begin + width]
            for j in range(width):
                down[j] = (up[j] - low[j] - (row[j] - m[j]) * slope[j]) * scale[j]
