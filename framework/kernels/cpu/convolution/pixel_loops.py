"""Loops over pixels of which each is a group of channels, in LLVM's words.

Two arrays are gone through at once: pixels are lines and columns of groups, with steps of their own
in each array. What is done with each pair of groups stays in registers.
"""

from __future__ import annotations

from typing import Any

from ..support.jit import deferred, spelled
from ..support.vectors import Groups

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")

_CHAINS = 4  # sums of products that do not wait for each other


@spelled
def add_scaled(
    typing: Any,
    sums: Any,
    at: Any,
    steps: Any,
    x: Any,
    here: Any,
    strides: Any,
    weight: Any,
    first: Any,
    counts: Any,
) -> Any:
    """Add pixels of ``x``, times one element of the window, to pixels of ``sums``.

    Pixel ``(i, j)`` of ``counts`` lines and columns is the group at ``at + i * steps[0] + j *
    steps[1]``; so it is in ``x`` with ``here`` and ``strides``. The group of ``weight`` begins at
    ``first``. Neither count is 0.
    """
    signature = types.void(sums, at, steps, x, here, strides, weight, first, counts)
    return signature, _write_add_scaled


def _write_add_scaled(context: Any, b: Any, signature: Any, args: Any) -> Any:
    words = Groups(context, b, signature, args)
    sums, x, weight = words.array(0), words.array(3), words.array(6)
    factor = words.load(weight, args[7])

    def add(at: Any, here: Any, totals: list[Any]) -> list[Any]:
        found = b.call(words.fused, [factor, words.load(x, here), words.load(sums, at)])
        words.store(found, sums, at)
        return totals

    _write_pixels(words, (args[1], args[4]), (args[2], args[5]), args[8], add, [])
    return context.get_dummy_value()


@spelled
def sum_products(
    typing: Any,
    sums: Any,
    grad: Any,
    at: Any,
    steps: Any,
    x: Any,
    here: Any,
    strides: Any,
    counts: Any,
) -> Any:
    """Set the group ``sums`` to the sum over pixels of ``grad`` times ``x``.

    The pixels are those of :func:`add_scaled`, ``grad`` in the place of its ``sums``.
    """
    signature = types.void(sums, grad, at, steps, x, here, strides, counts)
    return signature, _write_sum_products


def _write_sum_products(context: Any, b: Any, signature: Any, args: Any) -> Any:
    words = Groups(context, b, signature, args)
    sums, grad, x = words.array(0), words.array(1), words.array(4)

    def add(at: Any, here: Any, totals: list[Any]) -> list[Any]:
        # Each chain has its turn.
        found = b.call(words.fused, [words.load(grad, at), words.load(x, here), totals[0]])
        return [*totals[1:], found]

    zero = words.filled(0.0)
    starts = [zero] * _CHAINS
    totals = _write_pixels(words, (args[2], args[5]), (args[3], args[6]), args[7], add, starts)
    while len(totals) > 1:
        totals = [b.fadd(*totals[k : k + 2]) for k in range(0, len(totals), 2)]
    words.store(totals[0], sums, words.index(0))
    return context.get_dummy_value()


def _write_pixels(
    words: Groups, starts: Any, steps: Any, counts: Any, body: Any, totals: list[Any]
) -> list[Any]:
    # Two loops over lines and columns, with two places that move along and numbers that
    # `body(place, other place, numbers)` returns anew.
    b = words.b
    lines, columns = (b.extract_value(counts, d) for d in (0, 1))
    moves = [[b.extract_value(s, d) for d in (0, 1)] for s in steps]
    before = b.block
    line, pixel, after_line, after = (
        b.append_basic_block(n) for n in ("line", "pixel", "after_line", "after")
    )
    b.branch(line)

    b.position_at_end(line)
    i, *begin = (b.phi(words.integer) for _ in range(3))
    outer = [b.phi(words.vector) for _ in totals]
    b.branch(pixel)

    b.position_at_end(pixel)
    j, *at = (b.phi(words.integer) for _ in range(3))
    inner = [b.phi(words.vector) for _ in totals]
    found: list[Any] = body(*at, inner)
    ends = [b.add(j, words.index(1))]
    ends += [b.add(place, move[1]) for place, move in zip(at, moves, strict=True)]
    b.cbranch(b.icmp_signed("<", ends[0], columns), pixel, after_line)
    nothing = words.index(0)
    for phi, start, end in zip(
        [j, *at, *inner], [nothing, *begin, *outer], [*ends, *found], strict=True
    ):
        phi.add_incoming(start, line)
        phi.add_incoming(end, pixel)

    b.position_at_end(after_line)
    ends = [b.add(i, words.index(1))]
    ends += [b.add(place, move[0]) for place, move in zip(begin, moves, strict=True)]
    b.cbranch(b.icmp_signed("<", ends[0], lines), line, after)
    for phi, start, end in zip(
        [i, *begin, *outer], [nothing, *starts, *totals], [*ends, *found], strict=True
    ):
        phi.add_incoming(start, before)
        phi.add_incoming(end, after_line)

    b.position_at_end(after)
    return found
