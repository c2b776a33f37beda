"""Compiled convolution with windows of 3 x 3, by Winograd's transformation.

A tile of 2 x 2 results needs 4 x 4 pixels. Both tile and window are transformed to 4 x 4 numbers;
products of these, summed over channels, are transformed to the results. That is 16 multiplications
a channel instead of 36. Tiles lie side by side in a register, so that transformations are sums of
registers, and the sums over channels are 16 products of matrices (``support/microkernel.py``).

A block is some lines of tiles: its pixels, transformed, and its sums stay in the second-level
cache. A tile's results do not depend on the tiles beside it.

A number reaches all results of a tile, also those whose windows do not meet it. Where it is much
larger than the others, its rounding is what they show; where it is not finite, they are not. So the
kernel notes what an image's numbers are and marks those with such results, and the caller computes
these images in another way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import compiled
from ..support.microkernel import GROUP, ROWS, TOGETHER, accumulate, copy
from ..support.rooms import enter, leave
from .tile_transforms import APART, NUMBERS, transform_pixels, transform_sums, transform_window

STEPS = 256  # channels that are added up in registers: for accuracy
LARGEST, SUM, COUNT = 0, 1, 2  # what is noted of an image's numbers: see note


@compiled
def transform_windows(
    room: Any, weight: Any, back: bool, first: int, count: int, start: int, stop: int
) -> None:
    """Transform the windows of the panels ``start:stop`` of ROWS rows.

    Args:
        room: (NUMBERS, panels, steps, ROWS), flat. Rows are filters, and steps channels.
        weight: (filters, channels, 3, 3).
        back: Whether rows are channels, steps are filters, and windows are turned around.
        first: The first row.
        count: How many there are.
        start: The first panel of these rows.
        stop: Behind the last.
    """
    rows, steps = (weight.shape[1], weight.shape[0]) if back else (weight.shape[0], weight.shape[1])
    panels = (count + ROWS - 1) // ROWS
    g, flat = np.zeros(9 * ROWS, weight.dtype), weight.reshape(-1)
    of_row, of_step = (9, 9 * rows) if back else (9 * steps, 9)
    to = np.int64(panels * steps * ROWS)
    for p in range(start, stop):
        some = min(ROWS, count - p * ROWS)
        if some < ROWS:
            g[:] = 0
        for c in range(steps):
            at = c * of_step + (first + p * ROWS) * of_row
            for r in range(some):
                for k in range(9):
                    g[k * ROWS + r] = flat[at + r * of_row + (8 - k if back else k)]
            transform_window(room, np.int64((p * steps + c) * ROWS), to, g)


@compiled
def note(noted: Any, bits: Any) -> None:
    """Note the largest exponent of numbers, the sum of those that are not 0, and their count.

    The numbers are given as integers of 32 bits.
    """
    largest, total, count = np.int32(0), np.int32(0), np.int32(0)
    for k in range(bits.size):
        exponent = (bits[k] >> np.int32(23)) & np.int32(255)
        largest = max(largest, exponent)
        total += exponent
        count += np.int32(exponent != 0)
    noted[LARGEST] = max(noted[LARGEST], np.int64(largest))
    noted[SUM] += total
    noted[COUNT] += count


@compiled
def _lay_lines(
    room: Any,
    noted: Any,
    x: Any,
    bits: Any,
    plane: int,
    y: int,
    count: int,
    own: int,
    sizes: Any,
    left: int,
    pitch: int,
) -> None:
    """Copy ``count`` lines of a plane of ``x``, which is flat, from line ``y`` on, to ``room``.

    They are ``pitch`` apart, and zero where there is no line. What is left and right of a line's
    pixels is zero already. ``bits`` are the same pixels. The first ``own`` lines are noted; the
    others belong to the next block.
    """
    height, width = sizes
    one = np.int64(1)
    skip, to = max(0, -left), max(0, left)
    some = np.int64(min(width - skip, pitch - to))
    for k in range(count):
        here = np.int64(k * pitch + to)
        if y + k < 0 or y + k >= height:
            room[here : here + some] = 0
        else:
            line = np.int64((plane * height + y + k) * width + skip)
            copy(room, here, one, x, line, one, some)
            if k < own:
                note(noted, bits[line : line + some])


@compiled
def winograd(
    out: Any,
    source: Any,
    bits: Any,
    windows: Any,
    bias: Any,
    rooms: Any,
    taken: Any,
    marked: Any,
    noted: Any,
    padding: Any,
    block: int,
    rows: Any,
    parts: int,
    start: int,
    stop: int,
) -> None:
    """Fill the units ``start:stop`` of a convolution's result, or of some rows of it.

    Args:
        out: (images, rows, height, width).
        source: (images, steps, height, width).
        bits: The same memory as integers of 32 bits, flat.
        windows: As :func:`transform_windows` leaves them.
        bias: Of the length 0 if there is none.
        rooms: (threads, elements).
        taken: Which rooms are (``support/rooms.py``).
        marked: For each image, set to 1 if a result is not finite.
        noted: (blocks, images of a block, 3): of the lines of pixels of each, see ``note``.
        padding: Before the first line and column.
        block: Lines of tiles of a block, counted over all images.
        rows: The first, and how many.
        parts: Of these, of which a unit has one.
        start: Unit ``block * parts + part``.
        stop: Behind the last.
    """
    number = enter(taken)
    room = rooms[number]
    images, of_image, height, width = out.shape
    first_row, count = rows
    steps = source.shape[1]
    lanes = np.int64(GROUP // out.itemsize)
    high, wide = (height + 1) // 2, (width + 1) // 2
    panels = (count + ROWS - 1) // ROWS
    together = TOGETHER * lanes
    tiles = (block * wide + together - 1) // together * together
    flat, pixels = out.reshape(-1), source.reshape(-1)
    step, apart = steps * tiles + APART, panels * ROWS * tiles + APART
    transformed, sums = room, room[NUMBERS * step :]
    lines = sums[NUMBERS * apart + lanes :]
    pitch = 2 * (wide + 1 + lanes)
    size = (2 * min(high, block) + 2) * pitch
    made = lines[size:]
    checks = made[4 * lanes :]
    held = block // high + 2  # images of a block, at most
    lines[:size] = 0  # what no pixel fills
    offsets = np.empty(steps, np.int64)
    for c in range(steps):
        offsets[c] = c * tiles
    one, zero = np.int64(1), out.dtype.type(0)
    laid = -1  # the block whose pixels are transformed
    for unit in range(start, stop):
        this, part = unit // parts, unit % parts
        begin, end = this * block, min((this + 1) * block, images * high)
        low, behind = panels * part // parts, panels * (part + 1) // parts
        earliest = begin // high
        checks[: held * lanes] = 0
        if this != laid:
            noted[this] = 0
            for c in range(steps):
                i = begin
                while i < end:  # the lines of an image
                    n, first = i // high, i % high
                    some = min(high - first, end - i)
                    y = 2 * first - padding[0]
                    plane = n * steps + c
                    _lay_lines(
                        lines,
                        noted[this, n - earliest],
                        pixels,
                        bits,
                        plane,
                        y,
                        2 * some + 2,
                        2 * some + (2 if first + some == high else 0),
                        source.shape[2:],
                        padding[1],
                        pitch,
                    )
                    for k in range(some):
                        at = c * tiles + (i + k - begin) * wide
                        here = np.int64(2 * k * pitch)
                        for j in range(0, wide, lanes):
                            transform_pixels(transformed, at + j, step, lines, here + 2 * j, pitch)
                    i += some
            laid = this
        live = (end - begin) * wide
        used = (live + together - 1) // together * together
        for k in range(NUMBERS):
            here = k * apart
            for c in range(steps if used > live else 0):  # denormal numbers would be slow
                transformed[k * step + c * tiles + live : k * step + c * tiles + used] = 0
            for r in range(low * ROWS, behind * ROWS):
                sums[here + r * tiles : here + r * tiles + used] = 0
            for t in range(0, used, together):
                for p in range(low, behind):
                    for c in range(0, steps, STEPS):
                        a = k * step + t
                        accumulate(
                            sums,
                            here + p * ROWS * tiles + t,
                            tiles,
                            windows,
                            ((k * panels + p) * steps + c) * ROWS,
                            transformed,
                            a,
                            a + lanes,
                            a + 2 * lanes,
                            one,
                            one,
                            offsets[c : c + STEPS],
                        )
        for r in range(low * ROWS, min(behind * ROWS, count)):
            given = bias[first_row + r] if bias.size else zero
            for i in range(begin, end):
                n, y = i // high, 2 * (i % high)
                at = ((n * of_image + first_row + r) * height + y) * width
                first = r * tiles + (i - begin) * wide
                check = (n - earliest) * lanes
                for j in range(0, wide, lanes):
                    transform_sums(
                        made,
                        0,
                        2 * lanes,
                        sums,
                        first + j,
                        apart,
                        given,
                        checks,
                        check,
                        wide - j,
                    )
                    columns = np.int64(min(2 * lanes, width - 2 * j))
                    copy(flat, at + 2 * j, one, made, np.int64(0), one, columns)
                    if y + 1 < height:
                        to = at + width + 2 * j
                        copy(flat, to, one, made, 2 * lanes, one, columns)
        for n in range(earliest, (end - 1) // high + 1):
            for k in range((n - earliest) * lanes, (n - earliest + 1) * lanes):
                if checks[k] != 0:
                    marked[n] = 1
    leave(taken, number)
