"""Compiled gradient of windows of 3 x 3, by the adjoint of Winograd's transformation.

Pixels of 4 x 4 and the gradients of 2 x 2 results are transformed to 4 x 4 numbers. Their products,
summed over tiles, are transformed to the window's gradient. Channels lie side by side in a
register, and the sums over tiles are 16 products of matrices, of filters and channels.

A block is some lines of tiles, as in ``winograd.py``. Its sums are added to totals, which stay in
the cache too: so filters are computed in parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import compiled
from ..support.microkernel import GROUP, ROWS, TOGETHER, accumulate, accumulate_two, transpose
from ..support.rooms import enter, leave
from .tile_transforms import APART, NUMBERS, transform_gradients, transform_tile, transform_totals
from .winograd import COUNT, LARGEST, SUM, note

STEPS = 128  # tiles that are added up in registers: for accuracy


@compiled
def _lay_side_by_side(
    room: Any,
    noted: Any,
    x: Any,
    bits: Any,
    plane: int,
    y: int,
    count: int,
    sizes: Any,
    left: int,
    channels: int,
    shape: Any,
) -> None:
    """Copy ``count`` lines of some channels of ``x``, which is flat, from line ``y`` on.

    In ``room`` a pixel's channels lie side by side, as many as ``shape`` says, and lines have as
    many pixels. Lines that are not there are zero; what else no pixel fills is zero already.

    Args:
        room: Where to.
        noted: See ``note``.
        x: Planes of all images and channels.
        bits: The same memory as integers.
        plane: The first channel's.
        y: The first line.
        count: How many lines.
        sizes: Of a plane.
        left: Pixels before the first column.
        channels: How many there are.
        shape: Pixels of a line, and channels of a pixel, in ``room``.
    """
    height, width = sizes
    pixels, pitch = shape
    skip, to = max(0, -left), max(0, left)
    some = np.int64(min(width - skip, pixels - to))
    step, size = np.int64(pitch), np.int64(height * width)
    for k in range(count):
        here = np.int64((k * pixels + to) * pitch)
        if y + k < 0 or y + k >= height:
            room[here : here + some * pitch] = 0
            continue
        line = np.int64((plane * height + y + k) * width + skip)
        for c in range(0, channels, ROWS):
            live = np.int64(min(ROWS, channels - c))
            transpose(room, here + c, step, x, line + c * size, size, live, some)
            for r in range(live):
                at = line + (c + r) * size
                note(noted, bits[at : at + some])


@compiled
def _transform_lines(
    target: Any, step: int, lines: Any, first: int, count: int, wide: int, pitch: int
) -> None:
    """Transform the pixels of ``count`` lines of tiles, of which the first tile is ``first``."""
    lanes = GROUP // target.itemsize
    line = np.int64((2 * wide + 2) * pitch)
    for q in range(count):
        for j in range(wide):
            to, here = (first + q * wide + j) * pitch, 2 * (q * line + j * pitch)
            for c in range(0, pitch, lanes):
                transform_tile(target, to + c, step, lines, here + c, pitch, line)


@compiled
def _transform_results(
    target: Any, step: int, results: Any, at: int, count: int, wide: int
) -> None:
    """Transform the gradients of ``count`` lines of tiles of ROWS filters, to ``at`` and on."""
    pitch, line = np.int64(ROWS), np.int64(2 * wide * ROWS)
    for q in range(count):
        for j in range(wide):
            to, here = np.int64(at + (q * wide + j) * ROWS), 2 * (q * line + j * pitch)
            transform_gradients(target, to, step, results, here, pitch, line)


@compiled
def _add_tiles(
    totals: Any,
    to: int,
    pitch: int,
    scalars: Any,
    first: int,
    x: Any,
    at: int,
    groups: int,
    offsets: Any,
) -> None:
    """Add products to ROWS rows of ``totals``, ``pitch`` apart, of so many groups of channels."""
    lanes, one = np.int64(GROUP // x.itemsize), np.int64(1)
    while groups > 0:
        some: Any = 2 if groups == 2 or groups == 4 else TOGETHER
        if some == 2:
            accumulate_two(totals, to, pitch, scalars, first, x, at, at + lanes, offsets)
        else:
            accumulate(
                totals,
                to,
                pitch,
                scalars,
                first,
                x,
                at,
                at + lanes,
                at + 2 * lanes,
                one,
                one,
                offsets,
            )
        groups, to, at = groups - some, to + some * lanes, at + some * lanes


@compiled
def winograd_weight(
    out: Any,
    x: Any,
    x_bits: Any,
    grad: Any,
    grad_bits: Any,
    rooms: Any,
    taken: Any,
    marked: Any,
    above: int,
    padding: Any,
    block: int,
    rows: int,
    parts: int,
    start: int,
    stop: int,
) -> None:
    """Compute the units ``start:stop``: totals of some filters, over a part of the blocks.

    Args:
        out: The gradient, (filters, channels, 3, 3); it is filled if all blocks are one part.
        x: (images, channels, height, width).
        x_bits: The same memory as integers of 32 bits, flat.
        grad: Of the results, (images, filters, lines, columns).
        grad_bits: Likewise.
        rooms: (threads, elements), or of a room for each part. It begins with the totals.
        taken: Which rooms are (``support/rooms.py``).
        marked: Its element is set to 1 if the gradient is not to be used.
        above: Powers of two by which the largest number of an image may be above the mean.
        padding: Before the first line and column.
        block: Lines of tiles of a block, counted over all images.
        rows: Filters of a unit; a multiple of ROWS.
        parts: Of the blocks.
        start: Unit ``filters' number * parts + part``.
        stop: Behind the last.
    """
    images, filters, height, width = grad.shape
    channels = x.shape[1]
    lanes = np.int64(GROUP // x.itemsize)
    groups = max(2, (channels + lanes - 1) // lanes)
    pitch = groups * lanes
    high, wide = (height + 1) // 2, (width + 1) // 2
    tiles = block * wide
    blocks = (images * high + block - 1) // block
    apart, step, along = rows * pitch + APART, tiles * pitch + APART, tiles * rows + APART
    pixels, columns = 2 * wide + 2, 2 * wide
    source, given = x.reshape(-1), grad.reshape(-1)
    held = block // high + 2  # images of a block, at most
    noted = np.empty((held, 2, 3), np.int64)
    offsets = np.arange(tiles) * pitch
    for unit in range(start, stop):
        part, first_row = unit % parts, unit // parts * rows
        count = min(rows, filters - first_row)
        panels = (count + ROWS - 1) // ROWS
        number = part if parts > 1 else enter(taken)
        room = rooms[number]
        totals, transformed = room, room[NUMBERS * apart :]
        others = transformed[NUMBERS * step :]
        lines = others[NUMBERS * along :]
        results = lines[(2 * min(high, block) + 2) * pixels * pitch :]
        totals[: NUMBERS * apart] = 0
        lines[:] = 0  # what no pixel fills, and in `results` no gradient
        for k in range(blocks * part // parts, blocks * (part + 1) // parts):
            begin, end = k * block, min((k + 1) * block, images * high)
            noted[:] = 0
            i = begin
            while i < end:  # the lines of an image
                n, first = i // high, i % high
                some = min(high - first, end - i)
                seen = noted[n - begin // high]
                _lay_side_by_side(
                    lines,
                    seen[0],
                    source,
                    x_bits,
                    n * channels,
                    2 * first - padding[0],
                    2 * some + 2,
                    x.shape[2:],
                    padding[1],
                    channels,
                    (pixels, pitch),
                )
                _transform_lines(transformed, step, lines, (i - begin) * wide, some, wide, pitch)
                for p in range(panels):
                    row = first_row + p * ROWS
                    live = min(ROWS, first_row + count - row)
                    _lay_side_by_side(
                        results,
                        seen[1],
                        given,
                        grad_bits,
                        n * filters + row,
                        2 * first,
                        2 * some,
                        grad.shape[2:],
                        0,
                        live,
                        (columns, ROWS),
                    )
                    at = (p * tiles + (i - begin) * wide) * ROWS
                    _transform_results(others, along, results, at, some, wide)
                i += some
            for n in range(held):
                for w in range(2):
                    largest, total, numbers = (
                        noted[n, w, LARGEST],
                        noted[n, w, SUM],
                        noted[n, w, COUNT],
                    )
                    if (largest - above) * numbers > total:
                        marked[0] = 1
            used = (end - begin) * wide
            for m in range(NUMBERS):
                for p in range(panels):
                    at = m * apart + p * ROWS * pitch
                    for t in range(0, used, STEPS):
                        _add_tiles(
                            totals,
                            at,
                            pitch,
                            others,
                            m * along + (p * tiles + t) * ROWS,
                            transformed,
                            m * step,
                            groups,
                            offsets[t : min(t + STEPS, used)],
                        )
        if parts == 1:
            _finish(out, marked, totals, first_row, count, apart, pitch, transformed)
            leave(taken, number)


@compiled
def _finish(
    out: Any,
    marked: Any,
    totals: Any,
    first: int,
    count: int,
    apart: int,
    pitch: int,
    room: Any,
) -> None:
    """Fill rows of ``out`` from totals."""
    channels = out.shape[1]
    lanes = GROUP // out.itemsize
    flat = out.reshape(-1)
    spoilt = out.dtype.type(0)
    for r in range(count):
        for c in range(0, channels, lanes):
            transform_totals(room, totals, np.int64(r * pitch + c), np.int64(apart))
            at = ((first + r) * channels + c) * 9
            for k in range(min(lanes, channels - c)):
                for t in range(9):
                    v = room[t * lanes + k]
                    spoilt += v - v
                    flat[at + k * 9 + t] = v
    if spoilt != 0:
        marked[0] = 1


@compiled
def finish_weight(
    out: Any, marked: Any, rooms: Any, rows: int, pitch: int, start: int, stop: int
) -> None:
    """Fill panels of ROWS filters of ``out`` from the totals of all parts, which are in ``rooms``.

    Args:
        out: The gradient.
        marked: Its element is set to 1 if it is not to be used.
        rooms: (parts, elements): each begins with its totals of all filters.
        rows: Filters, a multiple of ROWS.
        pitch: Elements of a filter's numbers.
        start: The first panel.
        stop: Behind the last.
    """
    apart = rows * pitch + APART
    totals = rooms[0]
    room = np.empty(9 * GROUP // out.itemsize, out.dtype)
    for p in range(start, stop):
        first = p * ROWS
        for m in range(NUMBERS):
            at = m * apart + first * pitch
            to = at + ROWS * pitch
            for part in range(1, rooms.shape[0]):
                more = rooms[part]
                for k in range(at, to):
                    totals[k] += more[k]
        count = min(ROWS, out.shape[0] - first)
        _finish(out, marked, totals[first * pitch :], first, count, apart, pitch, room)
