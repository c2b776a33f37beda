"""Compiled loops over rows: layer and RMS normalization, its gradient, sums of repeated rows.

Each makes one or two passes over a row while it is in the first cache, where the plain kernels
pass over the whole array once per operation.

A row's gradient is its own business, that of weight and bias a sum over rows. So there are two
loops, one in chunks of rows and one in chunks of columns; a single thread calls them
in turn on a few rows at a time. The order of every sum is that of the rows either way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.schedule import parallel_range
from ...runtime import threads, thresholds
from ..support.jit import FUSED, SUMS, compiled

_TILE = 16  # rows that stay in the cache between the two loops
_LINE = 128  # columns that no chunk parts: less of a row is slow to read


@compiled
def add_rows(out: Any, grad: Any, index: Any) -> None:
    """Add row ``k`` of ``grad`` to row ``index[k]`` of ``out``, in order."""
    for k in range(index.size):
        row = index[k]
        for j in range(grad.shape[1]):
            out[row, j] += grad[k, j]


def normalize(*arrays: Any) -> None:
    """Run :func:`layer_norm` on several threads if it pays; all arguments but the last two."""
    out = arrays[0]
    parallel_range(layer_norm, out.size, out.shape[0], *arrays)


@compiled(fastmath=SUMS)
def layer_norm(
    out: Any,
    mean: Any,
    rstd: Any,
    x: Any,
    weight: Any,
    bias: Any,
    eps: float,
    start: int,
    stop: int,
) -> None:
    """Normalize rows ``start:stop``; an absent weight or bias has a length of 0.

    ``mean`` has one for RMS normalization, which does not center.
    """
    n = x.shape[1]
    zero = x.dtype.type(0)
    inverse = x.dtype.type(1.0 / n)
    for i in range(start, stop):
        m = zero
        if mean.size:
            total = zero
            for j in range(n):
                total += x[i, j]
            m = total * inverse
            mean[i] = m
        total = zero
        for j in range(n):
            d = x[i, j] - m
            total += d * d
        r = x.dtype.type(1.0 / np.sqrt(total * inverse + eps))
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


def normalize_grad(
    dx: Any, dw: Any, db: Any, g: Any, x: Any, weight: Any, mean: Any, rstd: Any
) -> None:
    """The gradients of :func:`normalize`, on several threads if it pays.

    ``dx`` may be ``g`` or ``x``: it is written when the other gradients have read them.
    """
    rows, n = x.shape
    if threads.workers(x.size, rows, thresholds.SHARED) <= 1:
        _grad(dx, dw, db, g, x, weight, mean, rstd)
        return
    dw[:] = 0
    db[:] = 0
    parallel_range(_grad_of_lines, x.size, -(-n // _LINE), dw, db, g, x, mean, rstd)
    parallel_range(_grad_of_rows, x.size, rows, dx, g, x, weight, mean, rstd)


@compiled
def _grad(dx: Any, dw: Any, db: Any, g: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> None:
    rows, n = x.shape
    dw[:] = x.dtype.type(0)
    db[:] = x.dtype.type(0)
    for start in range(0, rows, _TILE):
        stop = min(start + _TILE, rows)
        _grad_of_columns(dw, db, g, x, mean, rstd, start, stop, 0, n)
        _grad_of_rows(dx, g, x, weight, mean, rstd, start, stop)


@compiled(fastmath=SUMS, overlaps=False)
def _grad_of_rows(
    dx: Any, g: Any, x: Any, weight: Any, mean: Any, rstd: Any, start: int, stop: int
) -> None:
    n = x.shape[1]
    zero = x.dtype.type(0)
    inverse = x.dtype.type(1.0 / n)
    centered = mean.size > 0
    for i in range(start, stop):
        m = mean[i] if centered else zero
        r = rstd[i]
        a, b = zero, zero
        if weight.size:
            for j in range(n):
                v = g[i, j] * weight[j]
                a += v
                b += v * ((x[i, j] - m) * r)
        else:
            for j in range(n):
                v = g[i, j]
                a += v
                b += v * ((x[i, j] - m) * r)
        a = a * inverse if centered else zero
        b *= inverse
        if weight.size:
            for j in range(n):
                dx[i, j] = (g[i, j] * weight[j] - a - (x[i, j] - m) * r * b) * r
        else:
            for j in range(n):
                dx[i, j] = (g[i, j] - a - (x[i, j] - m) * r * b) * r


@compiled(fastmath=FUSED)
def _grad_of_columns(
    dw: Any,
    db: Any,
    g: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    start: int,
    stop: int,
    first: int,
    last: int,
) -> None:
    # Add rows start:stop; dw has a length of 0 where there is no weight. Slices, because an index
    # that might be negative keeps the compiler from vectorizing.
    of_weight, of_bias = dw[first:last], db[first:last]
    for i in range(start, stop):
        m = mean[i] if mean.size else x.dtype.type(0)
        r = rstd[i]
        up, row = g[i, first:last], x[i, first:last]
        if dw.size:
            for j in range(up.size):
                of_weight[j] += up[j] * ((row[j] - m) * r)
        for j in range(up.size):
            of_bias[j] += up[j]


@compiled
def _grad_of_lines(
    dw: Any, db: Any, g: Any, x: Any, mean: Any, rstd: Any, first: int, last: int
) -> None:
    # All rows; columns by lines of _LINE.
    rows, n = x.shape
    _grad_of_columns(dw, db, g, x, mean, rstd, 0, rows, first * _LINE, min(last * _LINE, n))
