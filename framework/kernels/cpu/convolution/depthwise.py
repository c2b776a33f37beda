"""Compiled depthwise convolution: each channel with separate windows, without columns.

All is three-dimensional, as in ``direct.py``. The arrays are planes: of the input (batch,
channels), of the result (batch, channels * filters); filter ``k`` of channel ``c`` is number
``c * filters + k``. Channels are independent: each thread takes a chunk.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, SUMS, compiled, inlined

unsigned = np.uint64  # an index of this type is not tested for being below 0


@inlined
def reach(offset: int, n: int, out: int, stride: int) -> Any:
    """Positions ``first:last`` for which ``position * stride + offset`` is in ``0:n``."""
    if stride == 1:
        first, last = -offset, n - offset
    else:
        first, last = (stride - 1 - offset) // stride, (n - 1 - offset) // stride + 1
    first = min(max(first, 0), out)
    return first, max(min(last, out), first)


@inlined
def met(out: Any, x: Any, offsets: Any, stride: Any) -> Any:
    """Where an element of the window meets the image: (planes, lines, columns) of ``out``.

    Args:
        out: One channel of the result, three-dimensional, as ``x``.
        x: One channel of the image.
        offsets: From a position of ``out``, times ``stride``, to what the element meets there.
        stride: From a window to the next.
    """
    planes = reach(offsets[0], x.shape[0], out.shape[0], stride[0])
    lines = reach(offsets[1], x.shape[1], out.shape[1], stride[1])
    columns = reach(offsets[2], x.shape[2], out.shape[2], stride[2])
    return planes, lines, columns


@inlined
def _add_met(out: Any, x: Any, w: Any, offsets: Any, stride: Any) -> None:
    """Add ``w`` times what an element of the window meets to a channel of the result."""
    planes, lines, (first, last) = met(out, x, offsets, stride)
    step = stride[2]
    if first == last:
        return
    for p in range(planes[0], planes[1]):
        for q in range(lines[0], lines[1]):
            here = out[unsigned(p), unsigned(q), first:last]
            z = unsigned(p * stride[0] + offsets[0])
            y = unsigned(q * stride[1] + offsets[1])
            there = x[z, y, first * step + offsets[2] :]
            if step == 1:
                for s in range(here.size):
                    here[s] += w * there[s]
            else:
                for s in range(here.size):
                    here[s] += w * there[s * step]


@inlined
def _give_back(out: Any, grad: Any, w: Any, offsets: Any, stride: Any) -> None:
    """Add ``w`` times a channel of the gradient to what an element of the window has met."""
    planes, lines, (first, last) = met(grad, out, offsets, stride)
    step = stride[2]
    if first == last:
        return
    for p in range(planes[0], planes[1]):
        for q in range(lines[0], lines[1]):
            here = grad[unsigned(p), unsigned(q), first:last]
            z = unsigned(p * stride[0] + offsets[0])
            y = unsigned(q * stride[1] + offsets[1])
            there = out[z, y, first * step + offsets[2] :]
            if step == 1:
                for s in range(here.size):
                    there[s] += w * here[s]
            else:
                for s in range(here.size):
                    there[s * step] += w * here[s]


@inlined
def _sum_products(total: Any, grad: Any, x: Any, offsets: Any, stride: Any) -> Any:
    """Return ``total`` plus the products of a channel of the gradient and what it has met.

    Lines are added up in their own precision, and their sums in float64.
    """
    planes, lines, (first, last) = met(grad, x, offsets, stride)
    step, zero = stride[2], x.dtype.type(0)
    if first == last:
        return total
    for p in range(planes[0], planes[1]):
        for q in range(lines[0], lines[1]):
            here = grad[unsigned(p), unsigned(q), first:last]
            z = unsigned(p * stride[0] + offsets[0])
            y = unsigned(q * stride[1] + offsets[1])
            there = x[z, y, first * step + offsets[2] :]
            line = zero
            if step == 1:
                for s in range(here.size):
                    line += here[s] * there[s]
            else:
                for s in range(here.size):
                    line += here[s] * there[s * step]
            total += line
    return total


@inlined
def _offsets(a: int, b: int, e: int, padding: Any, dilation: Any) -> Any:
    front, drop = a * dilation[0] - padding[0], b * dilation[1] - padding[1]
    return front, drop, e * dilation[2] - padding[2]


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
    _, kd, kh, kw = weight.shape
    zero = x.dtype.type(0)
    for n in range(x.shape[0]):
        for o in range(start, stop):
            result, image = out[n, o], x[n, o * x.shape[1] // out.shape[1]]
            result[...] = bias[o] if bias.size else zero
            for a in range(kd):
                for b in range(kh):
                    for e in range(kw):
                        offsets = _offsets(a, b, e, padding, dilation)
                        _add_met(result, image, weight[o, a, b, e], offsets, stride)


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
    _, kd, kh, kw = weight.shape
    filters = grad.shape[1] // out.shape[1]
    for n in range(out.shape[0]):
        for o in range(start * filters, stop * filters):
            image, given = out[n, o // filters], grad[n, o]
            if o % filters == 0:
                image[...] = 0
            for a in range(kd):
                for b in range(kh):
                    for e in range(kw):
                        offsets = _offsets(a, b, e, padding, dilation)
                        _give_back(image, given, weight[o, a, b, e], offsets, stride)


@compiled(fastmath=SUMS)
def depthwise_weight_grad(
    out: Any, x: Any, grad: Any, stride: Any, padding: Any, dilation: Any, start: int, stop: int
) -> None:
    """Fill the filters ``start:stop`` of ``out``."""
    _, kd, kh, kw = out.shape
    for o in range(start, stop):
        c = o * x.shape[1] // grad.shape[1]
        for a in range(kd):
            for b in range(kh):
                for e in range(kw):
                    offsets = _offsets(a, b, e, padding, dilation)
                    total = 0.0
                    for n in range(x.shape[0]):
                        total = _sum_products(total, grad[n, o], x[n, c], offsets, stride)
                    out[o, a, b, e] = total
