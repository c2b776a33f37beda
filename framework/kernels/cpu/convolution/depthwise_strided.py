"""Compiled depthwise convolution of planes with a stride, in registers.

Columns that are a stride apart are a phase. A plane is copied by phases, so that what neighbors of
the result meet are neighbors, and the loops of ``depthwise_stride1.py`` add up the products, a call
for each phase. The input's gradient is made by phases of its own: each meets a part of the window's
elements, in neighboring lines and columns of the result's gradient. The copies have room around,
so a group that reaches beyond a line reads what is not used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, compiled, inlined
from ..support.microkernel import copy
from .depthwise_stride1 import (
    GROUP,
    LINES,
    TAPS,
    _add_lanes,
    _lines_alike,
    _meet,
    _slide,
    _window,
)


@inlined
def _phase(f: int, k: int, stride: int, padding: int) -> Any:
    """The elements of a window's line that meet phase ``f``: the first, how many, and where.

    The first one is met ``shift`` columns behind the result's.
    """
    first = (f + padding) % stride
    count = max(0, (k - first + stride - 1) // stride)
    return first, count, (first - padding - f) // stride


@compiled
def _part(room: Any, margin: int, x: Any, plane: int, sizes: Any, stride: int, pitch: int) -> None:
    """Copy a plane of ``x``, which is flat, by phases, of which each has lines of ``pitch``."""
    height, width = sizes
    one = np.int64(1)
    for f in range(stride):
        count = (width - f + stride - 1) // stride
        for y in range(height if count > 0 else 0):
            at, there = margin + (f * height + y) * pitch, (plane * height + y) * width + f
            copy(room, at, one, x, there, stride, count)


@compiled(fastmath=FUSED)
def slide_strided(
    out: Any,
    x: Any,
    weight: Any,
    bias: Any,
    room: Any,
    stride: Any,
    padding: Any,
    start: int,
    stop: int,
) -> None:
    """Fill the channels ``start:stop`` of the result; see ``depthwise_stride1.slide``.

    ``room`` is for the phases of a plane; the route says of what size.
    """
    images, channels, lines, wide = out.shape
    planes, height, width = x.shape[1], x.shape[2], x.shape[3]
    kh, kw = weight.shape[1], weight.shape[2]
    lanes = GROUP // x.itemsize
    sums = np.empty(LINES * lanes, x.dtype)
    zero, one = x.dtype.type(0), np.int64(1)
    flat, source, windows = out.reshape(-1), x.reshape(-1), weight.reshape(-1)
    margin, pitch = padding[1] + kw + lanes, (width + stride[1] - 1) // stride[1]
    seen = np.empty((lines, 2), np.int64)
    for q in range(lines):
        seen[q, 0], seen[q, 1] = _window(q * stride[0], padding[0], 1, height, kh)
    for n in range(images):
        copied = -1
        for o in range(start, stop):
            plane = o * planes // channels
            if plane != copied:
                at = n * planes + plane
                _part(room, margin, source, at, (height, width), stride[1], pitch)
                copied = plane
            given = bias[o] if bias.size else zero
            q = 0
            while q < lines:
                first, last = seen[q, 0], seen[q, 1]
                rows = _lines_alike(seen, q)
                y = q * stride[0] + first - padding[0]
                for s in range(0, wide, lanes):
                    fresh = True
                    for f in range(stride[1] if last > first else 0):
                        e, count, shift = _phase(f, kw, stride[1], padding[1])
                        if count == 0:
                            continue
                        _slide(
                            sums,
                            room,
                            margin + (f * height + y) * pitch + s + shift,
                            stride[0] * pitch,
                            windows,
                            (o * kh + first) * kw + e,
                            (last - first, count),
                            (pitch, one),
                            (kw, stride[1]),
                            s + shift,
                            (width - f + stride[1] - 1) // stride[1],
                            given,
                            fresh,
                        )
                        fresh = False
                    if fresh:
                        sums[:] = given
                    at = ((n * channels + o) * lines + q) * wide + s
                    for r in range(rows):
                        copy(flat, at, one, sums, r * lanes, one, min(lanes, wide - s))
                        at += wide
                q += rows


@compiled(fastmath=FUSED)
def slide_strided_back(
    out: Any,
    grad: Any,
    weight: Any,
    room: Any,
    stride: Any,
    padding: Any,
    start: int,
    stop: int,
) -> None:
    """Fill the channels ``start:stop`` of the input's gradient.

    ``room`` is for planes of the result's gradient, one for each filter of a channel.
    """
    images, channels, height, width = out.shape
    planes, lines, wide = grad.shape[1], grad.shape[2], grad.shape[3]
    kh, kw = weight.shape[1], weight.shape[2]
    lanes, filters = GROUP // grad.itemsize, planes // channels
    sums = np.empty(LINES * lanes, grad.dtype)
    zero, one = grad.dtype.type(0), np.int64(1)
    flat, windows = out.reshape(-1), weight.reshape(-1)
    size, margin = lines * wide, kw + padding[1] + lanes
    seen = np.empty((height, 2), np.int64)
    for n in range(images):
        for o in range(start, stop):
            for k in range(filters):
                room[margin + k * size : margin + (k + 1) * size] = grad[
                    n, o * filters + k
                ].reshape(-1)
            for u in range(stride[0]):
                # Line `u + stride * j` meets element `a + stride * t` in line `j + lift - t`.
                a = (u + padding[0]) % stride[0]
                high, lift = (
                    max(0, (kh - a + stride[0] - 1) // stride[0]),
                    (u + padding[0]) // stride[0],
                )
                count = max(0, (height - u + stride[0] - 1) // stride[0])
                for j in range(count):
                    seen[j, 0] = max(0, j + lift - lines + 1)
                    seen[j, 1] = max(seen[j, 0], min(high, j + lift + 1))
                for v in range(stride[1]):
                    e = (v + padding[1]) % stride[1]
                    across = max(0, (kw - e + stride[1] - 1) // stride[1])
                    shift = (v + padding[1]) // stride[1] - (across - 1)
                    some = max(0, (width - v + stride[1] - 1) // stride[1])
                    j = 0
                    while j < count:
                        low, top = seen[j, 0], seen[j, 1]
                        rows = _lines_alike(seen[:count], j)
                        for s in range(0, some, lanes):
                            fresh = True
                            for k in range(filters if top > low and across > 0 else 0):
                                line = j + lift - (top - 1)
                                w = ((o * filters + k) * kh + a + stride[0] * (top - 1)) * kw
                                _slide(
                                    sums,
                                    room,
                                    margin + k * size + line * wide + s + shift,
                                    wide,
                                    windows,
                                    w + e + stride[1] * (across - 1),
                                    (top - low, across),
                                    (wide, one),
                                    (-stride[0] * kw, -stride[1]),
                                    s + shift,
                                    wide,
                                    zero,
                                    fresh,
                                )
                                fresh = False
                            if fresh:
                                sums[:] = zero
                            for r in range(rows):
                                at = (n * channels + o) * height + u + stride[0] * (j + r)
                                at = at * width + v + stride[1] * s
                                taken = min(lanes, some - s)
                                copy(flat, at, stride[1], sums, r * lanes, one, taken)
                        j += rows


@compiled(fastmath=FUSED)
def slide_strided_weight(
    out: Any,
    x: Any,
    grad: Any,
    room: Any,
    given: Any,
    stride: Any,
    padding: Any,
    start: int,
    stop: int,
) -> None:
    """Fill the filters ``start:stop`` of the weight's gradient; sums of planes are in float64.

    ``room`` is for the phases of a plane, ``given`` for a plane of the result's gradient.
    """
    images, channels, height, width = x.shape
    planes, lines, wide = grad.shape[1], grad.shape[2], grad.shape[3]
    kh, kw = out.shape[1], out.shape[2]
    lanes = GROUP // x.itemsize
    sums, source = np.empty(TAPS * lanes, x.dtype), x.reshape(-1)
    margin, pitch = padding[1] + kw + lanes, (width + stride[1] - 1) // stride[1]
    totals, kinds = np.empty(kh * kw, np.float64), np.empty(TAPS, np.float64)
    for o in range(start, stop):
        totals[:] = 0
        for n in range(images):
            at = n * channels + o * channels // planes
            _part(room, margin, source, at, (height, width), stride[1], pitch)
            given[: lines * wide] = grad[n, o].reshape(-1)
            for a in range(kh):
                lead = padding[0] - a
                top = max(0, (lead + stride[0] - 1) // stride[0])
                bottom = min(lines, (height - 1 + lead) // stride[0] + 1)
                if bottom <= top:
                    continue
                y = top * stride[0] - lead
                for f in range(stride[1]):
                    e, count, shift = _phase(f, kw, stride[1], padding[1])
                    for u in range(0, count, TAPS):
                        kinds[:] = 0
                        for s in range(0, wide, lanes):
                            column = s + shift + u
                            _meet(
                                sums,
                                given,
                                top * wide + s,
                                room,
                                margin + (f * height + y) * pitch + column,
                                (wide, stride[0] * pitch),
                                bottom - top,
                                1,
                                min(lanes, wide - s),
                                column,
                                (width - f + stride[1] - 1) // stride[1],
                            )
                            _add_lanes(kinds, sums)
                        for t in range(min(TAPS, count - u)):
                            totals[a * kw + e + stride[1] * (u + t)] += kinds[t]
        for b in range(kh):
            for e in range(kw):
                out[o, b, e] = totals[b * kw + e]
