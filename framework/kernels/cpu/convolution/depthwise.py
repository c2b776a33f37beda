"""Compiled depthwise convolution: each channel with windows of its own, without columns.

All is three-dimensional, as in ``direct.py``. The arrays are planes: of the input (batch,
channels), of the result (batch, channels * filters); filter ``k`` of channel ``c`` is number
``c * filters + k``. Channels are independent: each thread takes a chunk.
"""

from __future__ import annotations

from typing import Any

from ..support.jit import FUSED, SUMS, compiled, inlined


@inlined
def reach(offset: int, n: int, out: int, stride: int) -> Any:
    """Positions ``first:last`` for which ``position * stride + offset`` is in ``0:n``."""
    if stride == 1:
        first, last = -offset, n - offset
    else:
        first, last = (stride - 1 - offset) // stride, (n - 1 - offset) // stride + 1
    first = min(max(first, 0), out)
    return first, max(min(last, out), first)


@compiled(fastmath=FUSED)
def depthwise(
    out: Any,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    start: int,
    stop: int,
) -> None:
    """Fill the channels ``start:stop`` of ``out``; ``bias`` has a length of 0 if there is none."""
    batch, channels, depth, height, width = x.shape
    _, planes, deep, lines, wide = out.shape
    _, kd, kh, kw = weight.shape
    zero = x.dtype.type(0)
    step = stride[2]
    for n in range(batch):
        for o in range(start, stop):
            c = o * channels // planes
            out[n, o] = bias[o] if bias.size else zero
            for a in range(kd):
                for b in range(kh):
                    drop = b * dilation[1] - padding[1]
                    top, bottom = reach(drop, height, lines, stride[1])
                    for e in range(kw):
                        w = weight[o, a, b, e]
                        shift = e * dilation[2] - padding[2]
                        first, last = reach(shift, width, wide, step)
                        if first == last:
                            continue
                        for p in range(deep):
                            z = p * stride[0] + a * dilation[0] - padding[0]
                            if z < 0 or z >= depth:
                                continue
                            for q in range(top, bottom):
                                y = q * stride[1] + drop
                                here = out[n, o, p, q, first:last]
                                there = x[n, c, z, y, first * step + shift :]
                                if step == 1:
                                    for s in range(here.size):
                                        here[s] += w * there[s]
                                else:
                                    for s in range(here.size):
                                        here[s] += w * there[s * step]


@compiled(fastmath=FUSED)
def depthwise_input_grad(
    out: Any,
    grad: Any,
    weight: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    start: int,
    stop: int,
) -> None:
    """Fill the channels ``start:stop`` of ``out``, the gradient of the input."""
    batch, channels, depth, height, width = out.shape
    _, planes, deep, lines, wide = grad.shape
    _, kd, kh, kw = weight.shape
    filters = planes // channels
    step = stride[2]
    for n in range(batch):
        for o in range(start * filters, stop * filters):
            c = o // filters
            if o % filters == 0:
                out[n, c] = 0
            for a in range(kd):
                for b in range(kh):
                    drop = b * dilation[1] - padding[1]
                    top, bottom = reach(drop, height, lines, stride[1])
                    for e in range(kw):
                        w = weight[o, a, b, e]
                        shift = e * dilation[2] - padding[2]
                        first, last = reach(shift, width, wide, step)
                        if first == last:
                            continue
                        for p in range(deep):
                            z = p * stride[0] + a * dilation[0] - padding[0]
                            if z < 0 or z >= depth:
                                continue
                            for q in range(top, bottom):
                                y = q * stride[1] + drop
                                here = grad[n, o, p, q, first:last]
                                there = out[n, c, z, y, first * step + shift :]
                                if step == 1:
                                    for s in range(here.size):
                                        there[s] += w * here[s]
                                else:
                                    for s in range(here.size):
                                        there[s * step] += w * here[s]


@compiled(fastmath=SUMS)
def depthwise_weight_grad(
    out: Any, x: Any, grad: Any, stride: Any, padding: Any, dilation: Any, start: int, stop: int
) -> None:
    """Fill the filters ``start:stop`` of ``out``; sums of lines are added in float64."""
    batch, channels, depth, height, width = x.shape
    _, planes, deep, lines, wide = grad.shape
    _, kd, kh, kw = out.shape
    zero = x.dtype.type(0)
    step = stride[2]
    for o in range(start, stop):
        c = o * channels // planes
        for a in range(kd):
            for b in range(kh):
                drop = b * dilation[1] - padding[1]
                top, bottom = reach(drop, height, lines, stride[1])
                for e in range(kw):
                    shift = e * dilation[2] - padding[2]
                    first, last = reach(shift, width, wide, step)
                    end = bottom if last > first else top
                    total = 0.0
                    for n in range(batch):
                        for p in range(deep):
                            z = p * stride[0] + a * dilation[0] - padding[0]
                            if z < 0 or z >= depth:
                                continue
                            for q in range(top, end):
                                y = q * stride[1] + drop
                                here = grad[n, o, p, q, first:last]
                                there = x[n, c, z, y, first * step + shift :]
                                line = zero
                                if step == 1:
                                    for s in range(here.size):
                                        line += here[s] * there[s]
                                else:
                                    for s in range(here.size):
                                        line += here[s] * there[s * step]
                                total += line
                    out[o, a, b, e] = total
