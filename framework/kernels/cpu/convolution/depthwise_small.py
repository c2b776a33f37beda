"""Compiled depthwise convolution of small planes: a group of channels side by side.

Lines of a small plane do not fill a register. So planes of as many channels as a group has are
transposed: the same pixel of each channel lies side by side, and a group holds one pixel of all of
them. Then each element of the window is a loop over pixels without masks, for any stride and
dilation. Elements of the window that lie outside of the image are left out, not multiplied by zero.

A plane of 8 x 8 in float32 takes a third of the time of ``depthwise_stride1.py``, whose groups are
neighbors in a line, and one of 4 x 4 a tenth.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, compiled, inlined
from ..support.microkernel import ROWS, copy, transpose
from ..support.rooms import enter, leave
from ..support.vectors import GROUP
from .depthwise import reach
from .pixel_loops import add_scaled, sum_products

PAGE = 4096


@compiled
def _side_by_side(room: Any, x: Any, first: int, filters: int, some: int, size: int) -> None:
    """Copy planes of ``size`` pixels to ``room``, of which pixel p of lane k is ``p * lanes + k``.

    Lane k has plane ``(first + k) // filters``; of ``x``, which is flat. ``some`` lanes are wanted.
    """
    lanes, one = np.int64(GROUP // x.itemsize), np.int64(1)
    k = 0
    while k < some:
        if filters == 1 and some - k >= ROWS:
            at = (first + k) * size
            transpose(room, np.int64(k), lanes, x, np.int64(at), np.int64(size), ROWS, size)
            k += ROWS
        else:
            at = (first + k) // filters * size
            copy(room, np.int64(k), lanes, x, np.int64(at), one, np.int64(size))
            k += 1


@compiled
def _apart(out: Any, room: Any, first: int, some: int, size: int) -> None:
    """Copy ``some`` lanes of ``room`` to planes of ``out``, which is flat, from ``first`` on."""
    lanes = np.int64(GROUP // out.itemsize)
    at, step = np.int64(first * size), np.int64(size)
    p = 0
    while p < size:
        rows = min(ROWS, size - p)
        if size >= ROWS:
            p, rows = min(p, size - ROWS), ROWS  # the last square may overlap the one before
        transpose(out, at + p, step, room, p * lanes, lanes, np.int64(rows), np.int64(some))
        p += rows


@inlined
def _behind(size: int, lanes: int) -> int:
    """Where the second of two planes begins whose first has ``size`` elements.

    Half a page more or less: a processor takes a load for one of what was just stored if their
    addresses agree in the lowest twelve bits.
    """
    page = lanes * (PAGE // GROUP)
    return size + (page // 2 - size) % page


@compiled
def _windows(room: Any, weight: Any, first: int, step: int, some: int, taps: int) -> None:
    """Copy windows to ``room``, element by element: lane k has number ``first + k * step``."""
    lanes = GROUP // weight.itemsize
    for k in range(some):
        at = (first + k * step) * taps
        for t in range(taps):
            room[t * lanes + k] = weight[at + t]


@inlined
def _met(ends: Any, taps: int, n: int, out: int, steps: Any) -> None:
    """Note for each element of a window's line which positions of the result meet it, from and to.

    ``steps`` are the stride, the padding and the dilation along the line.
    """
    for t in range(taps):
        ends[t, 0], ends[t, 1] = reach(t * steps[2] - steps[1], n, out, steps[0])


@compiled
def _add_windows(
    made: Any, given: Any, windows: Any, met: Any, widths: Any, steps: Any, back: bool
) -> None:
    """Add a group of planes, times each element of its windows, to the planes that these meet.

    Args:
        made: The planes that are added to: of the result, or with ``back`` of the input.
        given: The other ones.
        windows: Groups, an element after the other.
        met: For lines and columns, which positions of the result an element meets, from and to.
        widths: Of the result, and of the input.
        steps: Strides, paddings and dilations.
        back: Whether the result's gradient is handed back to the input.
    """
    (rows, columns), (wide, width), (stride, padding, dilation) = met, widths, steps
    lanes = GROUP // made.itemsize
    of_result = wide * lanes, lanes
    of_input = stride[0] * width * lanes, stride[1] * lanes
    for b in range(len(rows)):
        for e in range(len(columns)):
            q, s = rows[b, 0], columns[e, 0]
            counts = rows[b, 1] - q, columns[e, 1] - s
            if counts[0] <= 0 or counts[1] <= 0:
                continue
            y = q * stride[0] + b * dilation[0] - padding[0]
            x = s * stride[1] + e * dilation[1] - padding[1]
            there, here = (q * wide + s) * lanes, (y * width + x) * lanes
            at = (b * len(columns) + e) * lanes
            if back:
                add_scaled(made, here, of_input, given, there, of_result, windows, at, counts)
            else:
                add_scaled(made, there, of_result, given, here, of_input, windows, at, counts)


@compiled(fastmath=FUSED)
def small_planes(
    out: Any,
    x: Any,
    weight: Any,
    bias: Any,
    rooms: Any,
    taken: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    start: int,
    stop: int,
) -> None:
    """Fill the parts ``start:stop`` of the result: an image of a group of channels each.

    Args:
        out: (images, channels, height, width), as ``x``.
        x: The images.
        weight: (filters, height, width) of the windows.
        bias: Of the length 0 if there is none.
        rooms: (threads, elements): for a group of planes of ``x``, of ``out``, and of windows.
        taken: Which rooms are (``support/rooms.py``).
        stride: From window to window.
        padding: Before the first line and column.
        dilation: Of the window.
        start: Part ``group * images + image``.
        stop: The one after the last.
    """
    images, channels, lines, wide = out.shape
    planes, height, width = x.shape[1], x.shape[2], x.shape[3]
    kh, kw = weight.shape[1], weight.shape[2]
    number = enter(taken)
    room = rooms[number]
    lanes = GROUP // x.itemsize
    given, made = room, room[_behind(height * width * lanes, lanes) :]
    windows = made[lines * wide * lanes :]
    added = np.zeros(lanes, x.dtype)
    flat, source, filters = out.reshape(-1), x.reshape(-1), weight.reshape(-1)
    rows, columns = np.empty((kh, 2), np.int64), np.empty((kw, 2), np.int64)
    _met(rows, kh, height, lines, (stride[0], padding[0], dilation[0]))
    _met(columns, kw, width, wide, (stride[1], padding[1], dilation[1]))
    steps = stride, padding, dilation
    group = -1
    for part in range(start, stop):
        n = part % images
        first = part // images * lanes
        some = min(lanes, channels - first)
        if group != first:
            group = first
            windows[: kh * kw * lanes] = 0
            _windows(windows, filters, first, 1, some, kh * kw)
            for k in range(some if bias.size else 0):
                added[k] = bias[first + k]
        planes_before = n * planes * (channels // planes)
        _side_by_side(
            given, source, planes_before + first, channels // planes, some, height * width
        )
        for p in range(lines * wide):
            for k in range(lanes):
                made[p * lanes + k] = added[k]
        _add_windows(made, given, windows, (rows, columns), (wide, width), steps, False)
        _apart(flat, made, n * channels + first, some, lines * wide)
    leave(taken, number)


@compiled(fastmath=FUSED)
def small_planes_back(
    out: Any,
    grad: Any,
    weight: Any,
    rooms: Any,
    taken: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    start: int,
    stop: int,
) -> None:
    """Fill the parts ``start:stop`` of the input's gradient; see :func:`small_planes`.

    A room is for a group of planes of ``out``, of ``grad``, and of windows.
    """
    images, channels, height, width = out.shape
    planes, lines, wide = grad.shape[1], grad.shape[2], grad.shape[3]
    kh, kw = weight.shape[1], weight.shape[2]
    number = enter(taken)
    room = rooms[number]
    lanes, filters, one = GROUP // grad.itemsize, planes // channels, np.int64(1)
    made, given = room, room[_behind(height * width * lanes, lanes) :]
    windows = given[lines * wide * lanes :]
    flat, source, elements = out.reshape(-1), grad.reshape(-1), weight.reshape(-1)
    rows, columns = np.empty((kh, 2), np.int64), np.empty((kw, 2), np.int64)
    _met(rows, kh, height, lines, (stride[0], padding[0], dilation[0]))
    _met(columns, kw, width, wide, (stride[1], padding[1], dilation[1]))
    steps = stride, padding, dilation
    group = -1
    for part in range(start, stop):
        n = part % images
        first = part // images * lanes
        some = min(lanes, channels - first)
        made[: height * width * lanes] = 0
        for f in range(filters):
            if group != first or filters > 1:
                group = first
                windows[: kh * kw * lanes] = 0
                _windows(windows, elements, first * filters + f, filters, some, kh * kw)
            if filters == 1:
                _side_by_side(given, source, n * planes + first, 1, some, lines * wide)
            else:
                for k in range(some):
                    plane = n * planes + (first + k) * filters + f
                    at = np.int64(plane * lines * wide)
                    copy(
                        given, np.int64(k), np.int64(lanes), source, at, one, np.int64(lines * wide)
                    )
            _add_windows(made, given, windows, (rows, columns), (wide, width), steps, True)
        _apart(flat, made, n * channels + first, some, height * width)
    leave(taken, number)


@compiled(fastmath=FUSED)
def small_planes_weight(
    out: Any,
    x: Any,
    grad: Any,
    rooms: Any,
    taken: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    start: int,
    stop: int,
) -> None:
    """Fill the groups of filters ``start:stop`` of the weight's gradient.

    Sums of planes are in float64. A room is for a group of planes of ``x``, of ``grad``, and
    of a pixel.
    """
    images, channels, height, width = x.shape
    planes, lines, wide = grad.shape[1], grad.shape[2], grad.shape[3]
    kh, kw = out.shape[1], out.shape[2]
    number = enter(taken)
    room = rooms[number]
    lanes, filters = GROUP // x.itemsize, planes // channels
    seen, given = room, room[_behind(height * width * lanes, lanes) :]
    sums = given[lines * wide * lanes :]
    source, others = x.reshape(-1), grad.reshape(-1)
    rows, columns = np.empty((kh, 2), np.int64), np.empty((kw, 2), np.int64)
    _met(rows, kh, height, lines, (stride[0], padding[0], dilation[0]))
    _met(columns, kw, width, wide, (stride[1], padding[1], dilation[1]))
    steps = wide * lanes, lanes
    strides = stride[0] * width * lanes, stride[1] * lanes
    totals = np.empty(kh * kw * lanes, np.float64)
    for part in range(start, stop):
        first = part * lanes
        some = min(lanes, planes - first)
        totals[:] = 0
        for n in range(images):
            _side_by_side(seen, source, n * planes + first, filters, some, height * width)
            _side_by_side(given, others, n * planes + first, 1, some, lines * wide)
            for b in range(kh):
                for e in range(kw):
                    q, s = rows[b, 0], columns[e, 0]
                    counts = rows[b, 1] - q, columns[e, 1] - s
                    if counts[0] > 0 and counts[1] > 0:
                        y = q * stride[0] + b * dilation[0] - padding[0]
                        column = s * stride[1] + e * dilation[1] - padding[1]
                        sum_products(
                            sums,
                            given,
                            (q * wide + s) * lanes,
                            steps,
                            seen,
                            (y * width + column) * lanes,
                            strides,
                            counts,
                        )
                        at = (b * kw + e) * lanes
                        for k in range(lanes):
                            totals[at + k] += sums[k]
        for k in range(some):
            for b in range(kh):
                for e in range(kw):
                    out[first + k, b, e] = totals[(b * kw + e) * lanes + k]
    leave(taken, number)
