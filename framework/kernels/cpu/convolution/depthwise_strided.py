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
from ..support.vectors import GROUP
from .depthwise_stride1 import (
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
def _slide_back(
    out: Any,
    at: int,
    to: Any,
    counts: Any,
    sums: Any,
    room: Any,
    planes: Any,
    windows: Any,
    first: int,
    window: Any,
    seen: Any,
) -> None:
    """Fill a phase of a channel of the input's gradient.

    Args:
        out: The gradient, flat.
        at: Where the phase begins in it.
        to: From a line, and from a column, to the next of the phase.
        counts: Its lines and columns.
        sums: Room for LINES groups.
        room: Planes of the result's gradient.
        planes: Where the first begins, its size, the length of a line, and which line the first of
            the phase meets with the first of its elements of the window.
        windows: The weight, flat.
        first: The first of the phase's elements of the channel's first filter.
        window: The column of the phase in the padded image, the stride, the window's sizes, and the
            filters of a channel.
        seen: For each line, which of the phase's elements meet lines that exist.
    """
    margin, size, wide, lift = planes
    column, down, beside, high, broad, filters = window
    lanes, zero, one = sums.size // LINES, sums.dtype.type(0), np.int64(1)
    e = column % beside
    across = max(0, (broad - e + beside - 1) // beside)
    shift = column // beside - (across - 1)
    j = 0
    while j < counts[0]:
        low, top = seen[j, 0], seen[j, 1]
        rows = min(counts[0] - j, _lines_alike(seen, j))
        here = margin + (j + lift - (top - 1)) * wide + shift
        w = first + down * (top - 1) * broad + e + beside * (across - 1)
        for s in range(0, counts[1], lanes):
            fresh = True
            for k in range(filters if top > low and across > 0 else 0):
                _slide(
                    sums,
                    room,
                    here + k * size + s,
                    wide,
                    windows,
                    w + k * high * broad,
                    (top - low, across),
                    (wide, one),
                    (-down * broad, -beside),
                    s + shift,
                    wide,
                    zero,
                    fresh,
                )
                fresh = False
            if fresh:
                sums[:] = zero
            for r in range(rows):
                there = at + (j + r) * to[0] + s * to[1]
                copy(out, there, to[1], sums, r * lanes, one, min(lanes, counts[1] - s))
        j += rows


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
    flat, source, windows = out.reshape(-1), grad.reshape(-1), weight.reshape(-1)
    one = np.int64(1)
    size, margin = lines * wide, kw + padding[1] + lanes
    seen = np.empty((height, 2), np.int64)
    for n in range(images):
        for o in range(start, stop):
            for k in range(filters):
                at = (n * planes + o * filters + k) * size
                copy(room, margin + k * size, one, source, at, one, size)
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
                    at = ((n * channels + o) * height + u) * width + v
                    some = max(0, (width - v + stride[1] - 1) // stride[1])
                    _slide_back(
                        flat,
                        at,
                        (stride[0] * width, stride[1]),
                        (count, some),
                        sums,
                        room,
                        (margin, size, wide, lift),
                        windows,
                        (o * filters * kh + a) * kw,
                        (v + padding[1], stride[0], stride[1], kh, kw, filters),
                        seen,
                    )


@compiled(fastmath=FUSED)
def _meet_phase(
    totals: Any,
    kinds: Any,
    sums: Any,
    grad: Any,
    there: int,
    room: Any,
    here: int,
    steps: Any,
    counts: Any,
    shift: int,
    width: int,
) -> None:
    """Add to ``totals`` the products of a plane with what elements of a window's line meet.

    Args:
        totals: Of the elements that meet the phase.
        kinds: Room for TAPS sums in float64.
        sums: Room for TAPS groups.
        grad: The plane, flat.
        there: Where its first line begins.
        room: Phases of the image.
        here: Where the first line begins in the phase.
        steps: From line to line, in both.
        counts: How many lines, and how many elements.
        shift: Which column the first column meets with the first element.
        width: Columns of the phase.
    """
    lanes, wide = sums.size // TAPS, steps[0]
    for u in range(0, counts[1], TAPS):
        kinds[:] = 0
        for s in range(0, wide, lanes):
            column = s + shift + u
            at, live = here + column, min(lanes, wide - s)
            _meet(sums, grad, there + s, room, at, steps, counts[0], 1, live, column, width)
            _add_lanes(kinds, sums)
        for t in range(min(TAPS, counts[1] - u)):
            totals[u + t] += kinds[t]


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
    sums, one = np.empty(TAPS * lanes, x.dtype), np.int64(1)
    source, others = x.reshape(-1), grad.reshape(-1)
    margin, pitch = padding[1] + kw + lanes, (width + stride[1] - 1) // stride[1]
    totals, kinds = np.empty(kh * kw, np.float64), np.empty(TAPS, np.float64)
    for o in range(start, stop):
        totals[:] = 0
        for n in range(images):
            at = n * channels + o * channels // planes
            _part(room, margin, source, at, (height, width), stride[1], pitch)
            copy(given, 0, one, others, (n * planes + o) * lines * wide, one, lines * wide)
            for a in range(kh):
                lead = padding[0] - a
                top = max(0, (lead + stride[0] - 1) // stride[0])
                bottom = min(lines, (height - 1 + lead) // stride[0] + 1)
                if bottom <= top:
                    continue
                y = top * stride[0] - lead
                for f in range(stride[1]):
                    e, count, shift = _phase(f, kw, stride[1], padding[1])
                    if count > 0:
                        _meet_phase(
                            totals[a * kw + e :: stride[1]],
                            kinds,
                            sums,
                            given,
                            top * wide,
                            room,
                            margin + (f * height + y) * pitch,
                            (wide, stride[0] * pitch),
                            (bottom - top, count),
                            shift,
                            (width - f + stride[1] - 1) // stride[1],
                        )
        for b in range(kh):
            for e in range(kw):
                out[o, b, e] = totals[b * kw + e]
