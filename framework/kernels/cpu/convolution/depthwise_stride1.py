"""Compiled depthwise convolution of planes with neighboring windows, in registers.

Where windows are one apart, a group of neighbors of the result is met by groups of neighbors of the
image: :func:`_slide` adds up the products of a whole window for some lines of such groups at once,
:func:`_meet` those of two planes for some elements of a window. Both are written in LLVM's words
(see ``kernels/cpu/support/microkernel.py``). Elements outside of the image are left out, not
multiplied by zero.

A group is read whole, so one that would reach beyond the array is left to loops of its own. Other
strides, signals and volumes take the loops of ``depthwise.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiler.processor import register_bytes
from ..support.jit import FUSED, compiled, deferred, inlined, spelled
from ..support.microkernel import copy
from ..support.vectors import GROUP, Groups

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")

# Lines of the result at once. With registers of 32 bytes, two for each: 14 GFLOP/s here, 10 with 8.
LINES = 8 if register_bytes() == GROUP else 6
TAPS = 3  # elements of a window at once, in the gradient of the weight


@spelled
def _slide(
    typing: Any, sums: Any, x: Any, here: Any, line: Any, weight: Any, first: Any, taps: Any,
    steps: Any, turns: Any, column: Any, width: Any, given: Any, fresh: Any,
) -> Any:  # fmt: skip
    """Add to ``sums`` (LINES, a group), or to ``given`` if it is ``fresh``, products of windows.

    Line ``r``, element ``(b, e)`` of the window meets ``x[here + r * line + b * steps[0] + e *
    steps[1]]`` and its neighbors, of which the first is in column ``column + e * steps[1]`` of
    ``width``, with ``weight[first + b * turns[0] + e * turns[1]]``. ``taps`` are its sizes.
    """
    signature = types.void(
        sums, x, here, line, weight, first, taps, steps, turns, column, width, given, fresh
    )
    return signature, _write_slide


def _write_slide(context: Any, b: Any, signature: Any, args: Any) -> Any:
    say = Groups(context, b, signature, args)
    sums, x, weight = say.array(0), say.array(1), say.array(4)
    here, line, first, column, width = (args[k] for k in (2, 3, 5, 9, 10))
    (high, wide), (down, across), (below, beside) = (
        [b.extract_value(args[k], d) for d in (0, 1)] for k in (6, 7, 8)
    )
    given, fresh = (
        say.everywhere(args[11]),
        context.is_true(b, signature.args[12], args[12]),
    )
    kept = [b.select(fresh, given, say.load(sums, say.index(r * say.lanes))) for r in range(LINES)]
    before = b.block
    turn, body, turned, after = (
        b.append_basic_block(n) for n in ("turn", "body", "turned", "after")
    )
    b.branch(turn)

    b.position_at_end(turn)
    i, at, w = b.phi(say.integer), b.phi(say.integer), b.phi(say.integer)
    outer = [b.phi(say.vector) for _ in kept]
    b.branch(body)

    b.position_at_end(body)
    e, here_now, w_now, column_now = (b.phi(say.integer) for _ in range(4))
    total = [b.phi(say.vector) for _ in kept]
    where = say.inside(column_now, width)
    scalar = say.everywhere(b.load(b.gep(weight, [w_now])))
    new, place = [], here_now
    for r in range(LINES):
        new.append(say.add(scalar, say.load(x, place), total[r], where))
        place = b.add(place, line)
    e_next = b.add(e, say.index(1))
    following = [b.add(here_now, across), b.add(w_now, beside), b.add(column_now, across)]
    b.cbranch(b.icmp_signed("<", e_next, wide), body, turned)

    b.position_at_end(turned)
    ends = [b.add(i, say.index(1)), b.add(at, down), b.add(w, below)]
    b.cbranch(b.icmp_signed("<", ends[0], high), turn, after)

    starts = [say.index(0), here, first, *kept]
    for phi, start, end in zip([i, at, w, *outer], starts, [*ends, *new], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(end, turned)
    phis, starts = (
        [e, here_now, w_now, column_now, *total],
        [say.index(0), at, w, column, *outer],
    )
    for phi, start, end in zip(phis, starts, [e_next, *following, *new], strict=True):
        phi.add_incoming(start, turn)
        phi.add_incoming(end, body)

    b.position_at_end(after)
    for r in range(LINES):
        say.store(new[r], sums, say.index(r * say.lanes))
    return context.get_dummy_value()


@spelled
def _meet(
    typing: Any,
    sums: Any,
    grad: Any,
    there: Any,
    x: Any,
    here: Any,
    steps: Any,
    lines: Any,
    apart: Any,
    live: Any,
    column: Any,
    width: Any,
) -> Any:
    """Set ``sums`` (TAPS, a group) to sums over lines: ``grad`` times ``x``, neighbor by neighbor.

    Line ``q`` of ``grad`` begins at ``there + q * steps[0]``, and what element ``e`` of the window
    meets at ``here + q * steps[1] + e * apart``, in column ``column + e * apart`` of ``width``. Of
    the neighbors ``live`` are wanted.
    """
    signature = types.void(sums, grad, there, x, here, steps, lines, apart, live, column, width)
    return signature, _write_meet


def _write_meet(context: Any, b: Any, signature: Any, args: Any) -> Any:
    say = Groups(context, b, signature, args)
    sums, grad, x = say.array(0), say.array(1), say.array(3)
    there, here, lines, apart, live, column, width = (args[k] for k in (2, 4, 6, 7, 8, 9, 10))
    one, other = (b.extract_value(args[5], d) for d in (0, 1))
    wanted, where, shift = say.inside(say.index(0), live), [], []
    for e in range(TAPS):
        shift.append(b.mul(apart, say.index(e)))
        where.append(b.and_(wanted, say.inside(b.add(column, shift[e]), width)))
    zero = say.filled(0.0)
    before = b.block
    body, after = b.append_basic_block("body"), b.append_basic_block("after")
    b.branch(body)

    b.position_at_end(body)
    q, g, at = (b.phi(say.integer) for _ in range(3))
    total = [b.phi(say.vector) for _ in range(TAPS)]
    line = say.load(grad, g)
    new = [
        say.add(line, say.load(x, b.add(at, s)), t, w)
        for s, t, w in zip(shift, total, where, strict=True)
    ]
    ends = [b.add(q, say.index(1)), b.add(g, one), b.add(at, other), *new]
    b.cbranch(b.icmp_signed("<", ends[0], lines), body, after)
    starts = [say.index(0), there, here, *[zero] * TAPS]
    for phi, start, end in zip([q, g, at, *total], starts, ends, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(end, body)

    b.position_at_end(after)
    for e in range(TAPS):
        say.store(new[e], sums, say.index(e * say.lanes))
    return context.get_dummy_value()


@compiled
def _window(line: int, padding: int, dilation: int, high: int, taps: int) -> Any:
    """Which elements of a column of the window, at a line of the result, are in the image."""
    begin = padding - line
    first = max(0, (begin + dilation - 1) // dilation) if begin > 0 else 0
    end = (high - 1 + begin) // dilation + 1 if high - 1 + begin >= 0 else 0
    return first, max(first, min(taps, end))


@inlined
def _lines_alike(seen: Any, q: int) -> int:
    """How many lines from ``q`` on, at most LINES, meet the same elements of the window."""
    count = 1
    while count < LINES and q + count < seen.shape[0]:
        if seen[q + count, 0] != seen[q, 0] or seen[q + count, 1] != seen[q, 1]:
            break
        count += 1
    return count


@inlined
def _slide_at_edge(
    sums: Any,
    x: Any,
    line: int,
    weight: Any,
    first: int,
    counts: Any,
    steps: Any,
    turns: Any,
    column: int,
    width: int,
    some: int,
) -> None:
    """Add what :func:`_slide` adds, number by number: a group would reach beyond ``x``.

    ``line`` is where the first line begins, ``counts`` are the lines and the sizes of the window,
    and ``some`` of the group are wanted. The other arguments are those of :func:`_slide`.
    """
    lanes = sums.size // LINES
    for r in range(counts[0]):
        for b in range(counts[1]):
            for e in range(counts[2]):
                scale = weight[first + b * turns[0] + e * turns[1]]
                begin = column + e * steps[1]
                at = line + r * width + b * steps[0] + begin
                for j in range(max(0, -begin), min(some, width - begin)):
                    sums[r * lanes + j] += scale * x[at + j]


@compiled(fastmath=FUSED)
def slide(
    out: Any,
    x: Any,
    weight: Any,
    bias: Any,
    padding: Any,
    dilation: Any,
    back: bool,
    start: int,
    stop: int,
) -> None:
    """Fill some channels of ``out``: of the result, or with ``back`` of the input's gradient.

    Args:
        out: (images, channels, height, width), as ``x``.
        x: The images, or with ``back`` the result's gradient.
        weight: (filters, height, width) of the windows.
        bias: Of the length 0 if there is none.
        padding: Before the first line and column; of the adjoint with ``back``, and maybe negative.
        dilation: Of the window.
        back: Whether windows are turned around, and a channel's filters added up.
        start: The first channel of ``out``.
        stop: The one after the last.
    """
    images, channels, lines, wide = out.shape
    planes, height, width = x.shape[1], x.shape[2], x.shape[3]
    kh, kw = weight.shape[1], weight.shape[2]
    lanes = GROUP // x.itemsize
    sums = np.empty(LINES * lanes, x.dtype)
    zero, one = x.dtype.type(0), np.int64(1)
    flat, source, windows = out.reshape(-1), x.reshape(-1), weight.reshape(-1)
    filters = planes // channels if back else 1
    turns = (-kw, -1) if back else (kw, 1)
    seen = np.empty((lines, 2), np.int64)
    for q in range(lines):
        seen[q, 0], seen[q, 1] = _window(q, padding[0], dilation[0], height, kh)
    for n in range(images):
        for o in range(start, stop):
            given = bias[o] if bias.size else zero
            target = (n * channels + o) * lines * wide
            q = 0
            while q < lines:
                first, last = seen[q, 0], seen[q, 1]
                rows = _lines_alike(seen, q)
                y = q + first * dilation[0] - padding[0]
                far = (LINES - 1 + (last - first - 1) * dilation[0]) * width
                far += (kw - 1) * dilation[1] + lanes
                for s in range(0, wide, lanes):
                    s = min(s, max(0, wide - lanes))
                    some = min(lanes, wide - s)
                    if last == first:
                        sums[:] = given
                    for k in range(filters if last > first else 0):
                        filter = o * filters + k
                        plane = filter if back else o * planes // channels
                        line = ((n * planes + plane) * height + y) * width
                        here = line + s - padding[1]
                        w = filter * kh * kw
                        w += (kh - 1 - first) * kw + kw - 1 if back else first * kw
                        if here >= 0 and here + far <= source.size:
                            _slide(
                                sums,
                                source,
                                here,
                                width,
                                windows,
                                w,
                                (last - first, kw),
                                (dilation[0] * width, dilation[1]),
                                turns,
                                s - padding[1],
                                width,
                                given,
                                k == 0,
                            )
                            continue
                        if k == 0:
                            sums[:] = given
                        _slide_at_edge(
                            sums,
                            source,
                            line,
                            windows,
                            w,
                            (rows, last - first, kw),
                            (dilation[0] * width, dilation[1]),
                            turns,
                            s - padding[1],
                            width,
                            some,
                        )
                    at = target + q * wide + s
                    for r in range(rows):
                        copy(flat, at, one, sums, r * lanes, one, some)
                        at += wide
                q += rows


@compiled
def _whole_lines(here: int, lines: int, room: Any, steps: Any) -> Any:
    """Which of ``lines`` :func:`_meet` can take: from the first to one after the last.

    Args:
        here: Where the first begins in the image.
        lines: How many there are.
        room: How far from its beginning the last one may begin, in the gradient and in the image.
        steps: From line to line, in both.
    """
    skip, more = 0, lines
    while more > 0 and ((more - 1) * steps[0] > room[0] or (more - 1) * steps[1] > room[1]):
        more -= 1
    while skip < more and here + skip * steps[1] < 0:
        skip += 1
    return skip, more


@compiled(fastmath=FUSED)
def _add_lanes(totals: Any, sums: Any) -> None:
    """Add each group of ``sums`` up, in float64, to an element of ``totals``."""
    lanes = sums.size // totals.size
    for t in range(totals.size):
        total = 0.0
        for j in range(lanes):
            total += sums[t * lanes + j]
        totals[t] += total


@compiled(fastmath=FUSED)
def _meet_at_edge(
    totals: Any,
    grad: Any,
    there: int,
    x: Any,
    here: int,
    steps: Any,
    bounds: Any,
    apart: int,
    some: int,
    column: int,
    taps: int,
) -> None:
    """Add the products of the lines that :func:`_meet` cannot take, number by number.

    ``bounds`` are the lines that it takes, from and to, and how many there are. The other
    arguments are those of :func:`_meet`.
    """
    skip, more, lines = bounds
    for q in range(lines):
        if skip <= q < more:
            continue
        for t in range(taps):
            c = column + t * apart
            at = here + q * steps[1] + t * apart
            for j in range(max(0, -c), min(some, steps[1] - c)):
                totals[t] += grad[there + q * steps[0] + j] * x[at + j]


@compiled(fastmath=FUSED)
def slide_weight(
    out: Any, x: Any, grad: Any, padding: Any, dilation: Any, start: int, stop: int
) -> None:
    """Fill the filters ``start:stop`` of the weight's gradient; sums of planes are in float64.

    The arguments are those of :func:`slide`, with ``out`` as its ``weight``.
    """
    images, channels, height, width = x.shape
    planes, lines, wide = grad.shape[1], grad.shape[2], grad.shape[3]
    kh, kw = out.shape[1], out.shape[2]
    lanes = GROUP // x.itemsize
    sums = np.empty(TAPS * lanes, x.dtype)
    flat, source = grad.reshape(-1), x.reshape(-1)
    totals = np.empty(kh * kw, np.float64)
    kinds = np.empty(TAPS, np.float64)
    for o in range(start, stop):
        totals[:] = 0
        for n in range(images):
            target = (n * planes + o) * lines * wide
            plane = (n * channels + o * channels // planes) * height * width
            for b in range(kh):
                top = max(0, padding[0] - b * dilation[0])
                bottom = min(lines, height + padding[0] - b * dilation[0])
                if bottom <= top:
                    continue
                y = top + b * dilation[0] - padding[0]
                for e in range(0, kw, TAPS):
                    taps = min(TAPS, kw - e)
                    kinds[:] = 0
                    for s in range(0, wide, lanes):
                        some = min(lanes, wide - s)
                        column = s - padding[1] + e * dilation[1]
                        there = target + top * wide + s
                        here = plane + y * width + column
                        # The last lines may lie where a group would reach beyond the arrays.
                        far = (TAPS - 1) * dilation[1] + lanes
                        room = (flat.size - lanes - there, source.size - far - here)
                        skip, more = _whole_lines(here, bottom - top, room, (wide, width))
                        if more > skip:
                            _meet(
                                sums,
                                flat,
                                there + skip * wide,
                                source,
                                here + skip * width,
                                (wide, width),
                                more - skip,
                                dilation[1],
                                some,
                                column,
                                width,
                            )
                            _add_lanes(kinds, sums)
                        if more - skip < bottom - top:
                            _meet_at_edge(
                                kinds,
                                flat,
                                there,
                                source,
                                here,
                                (wide, width),
                                (skip, more, bottom - top),
                                dilation[1],
                                some,
                                column,
                                taps,
                            )
                    for t in range(taps):
                        totals[b * kw + e + t] += kinds[t]
        for b in range(kh):
            for e in range(kw):
                out[o, b, e] = totals[b * kw + e]
