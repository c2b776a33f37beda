"""Compiled convolution with windows of 3 x 3, by Winograd's transformation.

A tile of 2 x 2 results needs 4 x 4 pixels. Both tile and window are transformed to 4 x 4 numbers;
products of these, summed over channels, are transformed to the results. That is 16 multiplications
a channel instead of 36. Tiles lie side by side in a register, so that transformations are sums of
registers, and the sums over channels are 16 products of matrices (``support/microkernel.py``).

A block is some lines of tiles: its pixels, transformed, and its sums stay in the second-level
cache. A tile's results do not depend on the tiles beside it.

A number reaches all results of a tile, also those whose windows do not meet it. Where it is much
larger than the others, its rounding is what they show; where it is not finite, they are not. So the
kernel marks images in which that is so, and the caller computes these in another way.

Source:
    A. Lavin, S. Gray: Fast Algorithms for Convolutional Neural Networks, 2015; F(2 x 2, 3 x 3).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import compiled, deferred, spelled
from ..support.microkernel import GROUP, ROWS, TOGETHER, accumulate, copy
from ..support.rooms import enter, leave

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")

NUMBERS = 16  # of a transformed tile
APART = 80  # elements that keep the beginnings of 16 arrays in different sets of the cache
STEPS = 256  # channels that are added up in registers: for accuracy
LARGEST, SUM, COUNT = 0, 1, 2  # what is noted of an image's numbers: see _note


class _Vectors:
    # A register of neighbors, read and written at an index of a flat array.

    def __init__(self, context: Any, b: Any, signature: Any, args: Any) -> None:
        self.context, self.b, self.signature, self.args = context, b, signature, args
        kind = signature.args[0].dtype
        self.size = kind.bitwidth // 8
        self.lanes = GROUP // self.size
        self.vector = ir.VectorType(context.get_data_type(kind), self.lanes)

    def array(self, k: int) -> Any:
        make = self.context.make_array(self.signature.args[k])
        return make(self.context, self.b, self.args[k]).data

    def after(self, index: Any, n: int) -> Any:
        return self.b.add(index, ir.Constant(index.type, n))

    def shuffled(self, pair: list[Any], order: Any) -> Any:
        order = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [*order])
        return self.b.shuffle_vector(*pair, order)

    def load(self, base: Any, index: Any) -> Any:
        b = self.b
        found = b.load(b.bitcast(b.gep(base, [index]), self.vector.as_pointer()))
        found.align = self.size
        return found

    def store(self, value: Any, base: Any, index: Any) -> None:
        b = self.b
        place = b.bitcast(b.gep(base, [index]), self.vector.as_pointer())
        b.store(value, place).align = self.size


@spelled
def _transform_pixels(
    typing: Any, target: Any, at: Any, step: Any, lines: Any, here: Any, pitch: Any
) -> Any:
    """Transform a register of tiles: number ``k`` of each goes to ``target[at + k * step]``.

    The first tile's first pixel is ``lines[here]``, and four lines of pixels are ``pitch`` apart.
    """
    return types.void(target, at, step, lines, here, pitch), _write_transform_pixels


def _write_transform_pixels(context: Any, b: Any, signature: Any, args: Any) -> Any:
    words = _Vectors(context, b, signature, args)
    target, lines = words.array(0), words.array(3)
    at, step, here, pitch = (args[k] for k in (1, 2, 4, 5))
    lanes = words.lanes

    def every_other(first: int) -> list[Any]:
        # Pixels 0, 2, 4 ... from `first` on, and 1, 3, 5 ...
        pair = [words.load(lines, words.after(here, first + k * lanes)) for k in range(2)]
        return [words.shuffled(pair, range(k, 2 * lanes, 2)) for k in range(2)]

    def differences(d: list[Any]) -> list[Any]:
        return [b.fsub(d[0], d[2]), b.fadd(d[1], d[2]), b.fsub(d[2], d[1]), b.fsub(d[1], d[3])]

    rows = []
    for _ in range(4):
        rows.append(differences([*every_other(0), *every_other(2)]))
        here = b.add(here, pitch)
    columns = [differences([row[k] for row in rows]) for k in range(4)]
    for r in range(4):
        for column in columns:
            words.store(column[r], target, at)
            at = b.add(at, step)
    return context.get_dummy_value()


@spelled
def _transform_sums(
    typing: Any,
    target: Any,
    at: Any,
    below: Any,
    sums: Any,
    first: Any,
    step: Any,
    bias: Any,
    checks: Any,
    check: Any,
    live: Any,
) -> Any:
    """Transform a register of tiles back: two lines of results, each of two registers.

    They go to ``target[at]`` and ``target[below]``. Number ``k`` is at ``sums[first + k * step]``.
    Zeros are added to the register ``checks[check]``; NaN, if a result of the first ``live`` tiles
    is not finite.
    """
    signature = types.void(target, at, below, sums, first, step, bias, checks, check, live)
    return signature, _write_transform_sums


def _write_transform_sums(context: Any, b: Any, signature: Any, args: Any) -> Any:
    words = _Vectors(context, b, signature, args)
    target, sums, checks = words.array(0), words.array(3), words.array(7)
    at, below, first, step, check, live = (args[k] for k in (1, 2, 4, 5, 8, 9))
    lanes = words.lanes
    undefined = ir.Constant(words.vector, ir.Undefined)
    bias = b.insert_element(undefined, args[6], ir.Constant(ir.IntType(32), 0))
    bias = words.shuffled([bias, undefined], [0] * lanes)

    def totals(m: list[Any]) -> list[Any]:
        return [b.fadd(b.fadd(m[0], m[1]), m[2]), b.fsub(b.fsub(m[1], m[2]), m[3])]

    rows = []
    for _ in range(4):
        found = []
        for _ in range(4):
            found.append(words.load(sums, first))
            first = b.add(first, step)
        rows.append(totals(found))
    columns = [totals([row[k] for row in rows]) for k in range(2)]
    halves = [
        [k // 2 + lanes * (k % 2) for k in range(part * lanes, (part + 1) * lanes)]
        for part in range(2)
    ]
    number = ir.VectorType(at.type, lanes)
    every = b.insert_element(ir.Constant(number, ir.Undefined), live, ir.Constant(at.type, 0))
    lowest = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    every = b.shuffle_vector(every, ir.Constant(number, ir.Undefined), lowest)
    wanted = b.icmp_signed("<", ir.Constant(number, [*range(lanes)]), every)
    zero = ir.Constant(words.vector, [0.0] * lanes)
    checked = words.load(checks, check)
    for place, line in ((at, 0), (below, 1)):
        pair = [b.fadd(column[line], bias) for column in columns]
        for found in pair:
            checked = b.fadd(checked, b.select(wanted, b.fsub(found, found), zero))
        for part, order in enumerate(halves):
            words.store(words.shuffled(pair, order), target, words.after(place, part * lanes))
    words.store(checked, checks, check)
    return context.get_dummy_value()


@spelled
def _transform_window(typing: Any, room: Any, at: Any, step: Any, g: Any) -> Any:
    """Transform ROWS windows side by side: number ``k`` of each goes to ``room[at + k * step]``."""
    return types.void(room, at, step, g), _write_transform_window


def _write_transform_window(context: Any, b: Any, signature: Any, args: Any) -> Any:
    words = _Vectors(context, b, signature, args)
    words.vector = ir.VectorType(words.vector.element, ROWS)
    room, g = words.array(0), words.array(3)
    at, step = args[1], args[2]
    half = ir.Constant(words.vector, [0.5] * ROWS)

    def sides(d: list[Any]) -> list[Any]:
        outer, inner = b.fmul(b.fadd(d[0], d[2]), half), b.fmul(d[1], half)
        return [d[0], b.fadd(outer, inner), b.fsub(outer, inner), d[2]]

    index = ir.Constant(at.type, 0)
    found = [words.load(g, words.after(index, k * ROWS)) for k in range(9)]
    rows = [sides(found[3 * y : 3 * y + 3]) for y in range(3)]
    columns = [sides([row[k] for row in rows]) for k in range(4)]
    for r in range(4):
        for column in columns:
            words.store(column[r], room, at)
            at = b.add(at, step)
    return context.get_dummy_value()


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
            _transform_window(room, np.int64((p * steps + c) * ROWS), to, g)


@compiled
def _note(noted: Any, bits: Any) -> None:
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
    sizes: Any,
    left: int,
    pitch: int,
) -> None:
    """Copy ``count`` lines of a plane of ``x``, which is flat, from line ``y`` on, to ``room``.

    They are ``pitch`` apart, and zero where there is no line. What is left and right of a line's
    pixels is zero already. ``bits`` are the same pixels.
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
            _note(noted, bits[line : line + some])


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
    above: int,
    padding: Any,
    block: int,
    rows: Any,
    start: int,
    stop: int,
) -> None:
    """Fill the blocks ``start:stop`` of a convolution's result, or of some rows of it.

    Args:
        out: (images, rows, height, width).
        source: (images, steps, height, width).
        bits: The same memory as integers of 32 bits, flat.
        windows: As :func:`transform_windows` leaves them.
        bias: Of the length 0 if there is none.
        rooms: (threads, elements).
        taken: Which rooms are (``support/rooms.py``).
        marked: For each image, set to 1 if the result is not to be used.
        above: Powers of two by which the largest number of an image may be above the mean.
        padding: Before the first line and column.
        block: Lines of tiles of a block, counted over all images.
        rows: The first, and how many.
        start: The first block.
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
    made = lines[(2 * min(high, block) + 2) * pitch :]
    checks = made[4 * lanes :]
    held = block // high + 2  # images of a block, at most
    noted = np.empty((held, 3), np.int64)
    room[:] = 0  # also what no tile fills: it is added up with the rest
    offsets = np.empty(steps, np.int64)
    for c in range(steps):
        offsets[c] = c * tiles
    one, zero = np.int64(1), out.dtype.type(0)
    for unit in range(start, stop):
        begin, end = unit * block, min((unit + 1) * block, images * high)
        earliest = begin // high
        noted[:] = 0
        checks[: held * lanes] = 0
        for c in range(steps):
            i = begin
            while i < end:  # the lines of an image
                n, first = i // high, i % high
                some = min(high - first, end - i)
                y = 2 * first - padding[0]
                plane = n * steps + c
                _lay_lines(
                    lines,
                    noted[n - earliest],
                    pixels,
                    bits,
                    plane,
                    y,
                    2 * some + 2,
                    source.shape[2:],
                    padding[1],
                    pitch,
                )
                for k in range(some):
                    at = c * tiles + (i + k - begin) * wide
                    here = np.int64(2 * k * pitch)
                    for j in range(0, wide, lanes):
                        _transform_pixels(transformed, at + j, step, lines, here + 2 * j, pitch)
                i += some
        used = ((end - begin) * wide + together - 1) // together * together
        for k in range(NUMBERS):
            here = k * apart
            for r in range(panels * ROWS):
                sums[here + r * tiles : here + r * tiles + used] = 0
            for t in range(0, used, together):
                for p in range(panels):
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
        for r in range(count):
            given = bias[first_row + r] if bias.size else zero
            for i in range(begin, end):
                n, y = i // high, 2 * (i % high)
                at = ((n * of_image + first_row + r) * height + y) * width
                first = r * tiles + (i - begin) * wide
                check = (n - earliest) * lanes
                for j in range(0, wide, lanes):
                    _transform_sums(
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
            largest, total, numbers = noted[n - earliest]
            if (largest - above) * numbers > total:
                marked[n] = 1
            for k in range((n - earliest) * lanes, (n - earliest + 1) * lanes):
                if checks[k] != 0:
                    marked[n] = 1
    leave(taken, number)
