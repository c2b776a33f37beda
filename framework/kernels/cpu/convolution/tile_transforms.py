"""Winograd's transformations of tiles, in registers, in LLVM's words.

A tile is 2 x 2 results of windows of 3 x 3, which meet 4 x 4 pixels. The result is the transform of
products: ``A (G g G' * B d B') A'`` for a window ``g`` and pixels ``d``. Gradients are the adjoints
of that: of the window, ``G' (A' y A * B d B') G`` for a tile of the result's gradient, ``y``.

Source:
    A. Lavin, S. Gray: Fast Algorithms for Convolutional Neural Networks, 2015; F(2 x 2, 3 x 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..support.jit import deferred, spelled
from ..support.microkernel import ROWS
from ..support.vectors import Vectors

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")

NUMBERS = 16  # of a transformed tile
APART = 80  # elements that keep the beginnings of 16 arrays in different sets of the cache


def square(
    words: Vectors, base: Any, index: Any, size: int, pitch: Any, line: Any
) -> Iterator[list[Any]]:
    """Read rows of registers, one after the other: ``pitch`` apart, and rows ``line`` apart."""
    for _ in range(size):
        here, row = index, []
        for _ in range(size):
            row.append(words.load(base, here))
            here = words.b.add(here, pitch)
        yield row
        index = words.b.add(index, line)


def both_ways(transform: Any, numbers: Iterable[list[Any]]) -> list[list[Any]]:
    """Transform each row of a matrix, and then each column.

    A row is transformed when it has been read: reading all of them first takes more registers, and
    a convolution a tenth more time.
    """
    rows = [transform(row) for row in numbers]
    columns = [transform([row[k] for row in rows]) for k in range(len(rows[0]))]
    return [[column[k] for column in columns] for k in range(len(columns[0]))]


def transformed_pixels(b: Any, pixels: Iterable[list[Any]]) -> list[list[Any]]:
    """Transform 4 x 4 pixels."""

    def differences(d: list[Any]) -> list[Any]:
        return [b.fsub(d[0], d[2]), b.fadd(d[1], d[2]), b.fsub(d[2], d[1]), b.fsub(d[1], d[3])]

    return both_ways(differences, pixels)


@spelled
def transform_pixels(
    typing: Any, target: Any, at: Any, step: Any, lines: Any, here: Any, pitch: Any
) -> Any:
    """Transform a register of tiles: number ``k`` of each goes to ``target[at + k * step]``.

    The first tile's first pixel is ``lines[here]``, and four lines of pixels are ``pitch`` apart.
    """
    return types.void(target, at, step, lines, here, pitch), _write_pixels


def _write_pixels(context: Any, b: Any, signature: Any, args: Any) -> Any:
    words = Vectors(context, b, signature, args)
    target, lines = words.array(0), words.array(3)
    at, step, here, pitch = (args[k] for k in (1, 2, 4, 5))
    lanes = words.lanes

    def every_other(here: Any, first: int) -> list[Any]:
        # Pixels 0, 2, 4 ... from `first` on, and 1, 3, 5 ...
        pair = [words.load(lines, words.after(here, first + k * lanes)) for k in range(2)]
        return [words.shuffled(pair, range(k, 2 * lanes, 2)) for k in range(2)]

    def rows(here: Any) -> Iterator[list[Any]]:
        for _ in range(4):
            yield [*every_other(here, 0), *every_other(here, 2)]
            here = b.add(here, pitch)

    words.store_all(transformed_pixels(b, rows(here)), target, at, step)
    return context.get_dummy_value()


@spelled
def transform_sums(
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
    return signature, _write_sums


def _write_sums(context: Any, b: Any, signature: Any, args: Any) -> Any:
    words = Vectors(context, b, signature, args)
    target, sums, checks = words.array(0), words.array(3), words.array(7)
    at, below, first, step, check, live = (args[k] for k in (1, 2, 4, 5, 8, 9))
    lanes = words.lanes
    bias = words.everywhere(args[6])

    def totals(m: list[Any]) -> list[Any]:
        return [b.fadd(b.fadd(m[0], m[1]), m[2]), b.fsub(b.fsub(m[1], m[2]), m[3])]

    line = b.mul(step, words.index(4))
    numbers = square(words, sums, first, 4, step, line)
    results = both_ways(totals, numbers)
    halves = [
        [k // 2 + lanes * (k % 2) for k in range(part * lanes, (part + 1) * lanes)]
        for part in range(2)
    ]
    numbers = ir.VectorType(words.integer, lanes)
    first_lanes = words.everywhere(live, numbers)
    wanted = b.icmp_signed("<", ir.Constant(numbers, [*range(lanes)]), first_lanes)
    zero = words.filled(0.0)
    checked = words.load(checks, check)
    for place, line in ((at, 0), (below, 1)):
        pair = [b.fadd(x, bias) for x in results[line]]
        for found in pair:
            checked = b.fadd(checked, b.select(wanted, b.fsub(found, found), zero))
        for part, order in enumerate(halves):
            words.store(words.shuffled(pair, order), target, words.after(place, part * lanes))
    words.store(checked, checks, check)
    return context.get_dummy_value()


@spelled
def transform_window(typing: Any, room: Any, at: Any, step: Any, g: Any) -> Any:
    """Transform ROWS windows side by side: number ``k`` of each goes to ``room[at + k * step]``."""
    return types.void(room, at, step, g), _write_window


def _write_window(context: Any, b: Any, signature: Any, args: Any) -> Any:
    words = Vectors(context, b, signature, args, ROWS)
    room, g = words.array(0), words.array(3)
    at, half = args[1], words.filled(0.5)

    def sides(d: list[Any]) -> list[Any]:
        outer, inner = b.fmul(b.fadd(d[0], d[2]), half), b.fmul(d[1], half)
        return [d[0], b.fadd(outer, inner), b.fsub(outer, inner), d[2]]

    start = words.index(0)
    found = [words.load(g, words.after(start, k * ROWS)) for k in range(9)]
    windows = [found[3 * y : 3 * y + 3] for y in range(3)]
    words.store_all(both_ways(sides, windows), room, at, args[2])
    return context.get_dummy_value()


@spelled
def transform_tile(
    typing: Any, target: Any, at: Any, step: Any, pixels: Any, here: Any, pitch: Any, line: Any
) -> Any:
    """Transform a tile of a register of channels: number ``k`` goes to ``target[at + k * step]``.

    The first pixel is ``pixels[here]``; columns are ``pitch`` apart, and lines ``line``.
    """
    return types.void(target, at, step, pixels, here, pitch, line), _write_tile


def _write_tile(context: Any, b: Any, signature: Any, args: Any) -> Any:
    words = Vectors(context, b, signature, args)
    target, source = words.array(0), words.array(3)
    at, step, here, pitch, line = (args[k] for k in (1, 2, 4, 5, 6))
    found = square(words, source, here, 4, pitch, line)
    words.store_all(transformed_pixels(b, found), target, at, step)
    return context.get_dummy_value()


@spelled
def transform_gradients(
    typing: Any, target: Any, at: Any, step: Any, grad: Any, here: Any, pitch: Any, line: Any
) -> Any:
    """Transform 2 x 2 gradients of results of ROWS filters, as :func:`transform_tile` does."""
    return types.void(target, at, step, grad, here, pitch, line), _write_gradients


def _write_gradients(context: Any, b: Any, signature: Any, args: Any) -> Any:
    words = Vectors(context, b, signature, args, ROWS)
    target, grad = words.array(0), words.array(3)
    at, step, here, pitch, line = (args[k] for k in (1, 2, 4, 5, 6))

    def spread(d: list[Any]) -> list[Any]:
        return [d[0], b.fadd(d[0], d[1]), b.fsub(d[0], d[1]), b.fsub(words.filled(-0.0), d[1])]

    found = square(words, grad, here, 2, pitch, line)
    words.store_all(both_ways(spread, found), target, at, step)
    return context.get_dummy_value()


@spelled
def transform_totals(typing: Any, target: Any, totals: Any, first: Any, step: Any) -> Any:
    """Transform totals over tiles to windows of a register of channels.

    Number ``k`` is at ``totals[first + k * step]``. The nine elements go to ``target``.
    """
    return types.void(target, totals, first, step), _write_totals


def _write_totals(context: Any, b: Any, signature: Any, args: Any) -> Any:
    words = Vectors(context, b, signature, args)
    target, totals = words.array(0), words.array(1)
    first, step, half = args[2], args[3], words.filled(0.5)

    def gathered(m: list[Any]) -> list[Any]:
        outer, inner = b.fmul(b.fadd(m[1], m[2]), half), b.fmul(b.fsub(m[1], m[2]), half)
        return [b.fadd(m[0], outer), inner, b.fadd(outer, m[3])]

    line = b.mul(step, words.index(4))
    found = both_ways(gathered, square(words, totals, first, 4, step, line))
    start = words.index(0)
    words.store_all(found, target, start, words.index(words.lanes))
    return context.get_dummy_value()
