"""Compiled batch, group and instance normalization of (batch, channels, length) arrays.

Two passes over a channel or a group, a line at a time; sums of lines are added in float64. Threads
share channels or groups, and no sum is shared between them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.schedule import parallel_range
from ..support.jit import SUMS, compiled


def batch_norm(*arrays: Any) -> None:
    """Normalize each channel: ``out, mean, var, rstd, x, weight, bias, eps``.

    ``weight`` and ``bias`` have a length of 0 where there is none.
    """
    x = arrays[4]
    parallel_range(_batch_norm, x.size, x.shape[1], *arrays)


@compiled(fastmath=SUMS)
def _batch_norm(
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
    batch, _, length = x.shape
    kind = x.dtype.type
    zero = kind(0)
    count = batch * length
    for c in range(first, last):
        total = 0.0
        for n in range(batch):
            line = zero
            for j in range(length):
                line += x[n, c, j]
            total += line
        m = kind(total / count)
        total = 0.0
        for n in range(batch):
            line = zero
            for j in range(length):
                d = x[n, c, j] - m
                line += d * d
            total += line
        v = kind(total / count)
        r = kind(1.0 / np.sqrt(v + eps))
        mean[c] = m
        var[c] = v
        rstd[c] = r
        scale = r * weight[c] if weight.size else r
        shift = bias[c] if bias.size else zero
        for n in range(batch):
            for j in range(length):
                out[n, c, j] = (x[n, c, j] - m) * scale + shift


def batch_norm_grad(*arrays: Any) -> None:
    """The gradients of :func:`batch_norm`: ``dx, dw, db, g, x, weight, mean, rstd``.

    ``dx`` may be ``g`` or ``x``. ``dw`` is left alone where there is no weight.
    """
    x = arrays[4]
    parallel_range(_batch_norm_grad, x.size, x.shape[1], *arrays)


@compiled(fastmath=SUMS, overlaps=False)
def _batch_norm_grad(
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
    batch, _, length = x.shape
    kind = x.dtype.type
    zero = kind(0)
    count = batch * length
    for c in range(first, last):
        m, r = mean[c], rstd[c]
        a, b = 0.0, 0.0
        for n in range(batch):
            one, two = zero, zero
            for j in range(length):
                one += g[n, c, j]
                two += g[n, c, j] * (x[n, c, j] - m)
            a += one
            b += two
        b *= r
        db[c] = a
        scale = r
        if weight.size:
            dw[c] = b
            scale = r * weight[c]
        low, slope = kind(a / count), kind(b / count) * r
        for n in range(batch):
            for j in range(length):
                dx[n, c, j] = (g[n, c, j] - low - (x[n, c, j] - m) * slope) * scale


def group_norm(*arrays: Any) -> None:
    """Normalize each group of (batch, groups, channels, length).

    Takes ``out, mean, rstd, x, weight, bias, eps``; weight is (groups * channels).
    """
    x = arrays[3]
    units = x.shape[0] * x.shape[1]
    parallel_range(_group_norm, x.size, units, *arrays)


@compiled(fastmath=SUMS)
def _group_norm(
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
    _, groups, channels, length = x.shape
    kind = x.dtype.type
    zero = kind(0)
    count = channels * length
    for unit in range(start, stop):
        n, k = unit // groups, unit % groups
        total = 0.0
        for c in range(channels):
            line = zero
            for j in range(length):
                line += x[n, k, c, j]
            total += line
        m = kind(total / count)
        total = 0.0
        for c in range(channels):
            line = zero
            for j in range(length):
                d = x[n, k, c, j] - m
                line += d * d
            total += line
        r = kind(1.0 / np.sqrt(total / count + eps))
        mean[n, k] = m
        rstd[n, k] = r
        for c in range(channels):
            scale = r * weight[k * channels + c] if weight.size else r
            shift = bias[k * channels + c] if bias.size else zero
            for j in range(length):
                out[n, k, c, j] = (x[n, k, c, j] - m) * scale + shift


def group_norm_grad(*arrays: Any) -> None:
    """The gradients of :func:`group_norm`: ``dx, dw, db, g, x, weight, mean, rstd``.

    ``dx`` may be ``g`` or ``x``. ``dw`` is left alone where there is no weight.
    """
    x = arrays[4]
    parallel_range(_group_norm_grad, x.size, x.shape[1], *arrays)


@compiled(fastmath=SUMS, overlaps=False)
def _group_norm_grad(
    dx: Any,
    dw: Any,
    db: Any,
    g: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    start: int,
    stop: int,
) -> None:
    batch, _, channels, length = x.shape
    kind = x.dtype.type
    zero, one = kind(0), kind(1)
    count = channels * length
    db[start * channels : stop * channels] = zero
    dw[start * channels : stop * channels] = zero
    for k in range(start, stop):
        for n in range(batch):
            m, r = mean[n, k], rstd[n, k]
            a, b = 0.0, 0.0
            for c in range(channels):
                first, second = zero, zero
                for j in range(length):
                    first += g[n, k, c, j]
                    second += g[n, k, c, j] * (x[n, k, c, j] - m)
                second *= r
                which = k * channels + c
                db[which] += first
                if weight.size:
                    dw[which] += second
                    a += first * weight[which]
                    b += second * weight[which]
                else:
                    a += first
                    b += second
            low, slope = kind(a / count), kind(b / count) * r
            for c in range(channels):
                w = weight[k * channels + c] if weight.size else one
                for j in range(length):
                    dx[n, k, c, j] = (g[n, k, c, j] * w - low - (x[n, k, c, j] - m) * slope) * r
