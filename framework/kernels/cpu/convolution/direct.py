"""Compiled convolution without columns: products are summed up where they are read.

All arithmetic is :func:`~microkernel.accumulate`. For the result, and for the gradient of the
input, its rows are filters, its steps channels and elements of the window, and neighbors are
positions. For the gradient of the weight the steps are positions, and neighbors are channels.
A panel is eight rows, whose sums stay in registers.

So that no step meets an edge, an image is first laid out with its padding, a tile at a time. Where
windows are ``stride`` apart, it is dealt out into as many phases, and within each the windows' next
elements are neighbors again. A group that reaches beyond the end of a line computes what nothing
reads: of the two kinds of waste, between lines and after each, :func:`_after` finds the smaller.

Sums of some 700 products are added to the result; so errors grow as those of products in tiles do.
All is three-dimensional; a signal is a volume with two sizes of 1. Numbers are written as
``np.int64`` where they are arguments: a function is compiled anew for each literal.

Not optimal: of eight rows fewer may be wanted, as for a result of three channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import compiled, inlined
from ..support.microkernel import GROUP, ROWS, TOGETHER, accumulate, copy, move_rows, transpose
from .depthwise import reach


@compiled
def _after(at: Any, count: int, box: Any, extent: Any) -> Any:
    """The first position from ``at`` on that is in the ``extent`` of a box; -1 beyond them all."""
    line, w = at // box[2], at % box[2]
    if w >= extent[2]:
        line, w = line + 1, 0
    plane, h = line // box[1], line % box[1]
    if h >= extent[1]:
        plane, h, w = plane + 1, 0, 0
    image, d = plane // box[0], plane % box[0]
    if d >= extent[0]:
        image, d, h, w = image + 1, 0, 0, 0
    return ((image * box[0] + d) * box[1] + h) * box[2] + w if image < count else -1


@inlined
def _zero(buffer: Any, first: int, last: int) -> None:
    # A loop: most are shorter than an assignment to a slice is worth.
    for k in range(first, last):
        buffer[k] = 0


@compiled
def _lay(
    buffer: Any,
    x: Any,
    channel: int,
    channels: int,
    image: int,
    count: int,
    firsts: Any,
    step: Any,
    box: Any,
) -> None:
    """Fill ``buffer`` (channels, phases, images, *box) with what is there, 0 outside of ``x``.

    Element ``p`` of phase ``f`` along a dimension is the image's ``p * step + firsts[f]``.
    """
    _, _, depth, height, width = x.shape
    flat = x.reshape(-1)
    wide, s = box[2], step[2]
    at: Any = np.int64(0)
    phases = firsts.shape[0]
    for k in range(channels * phases):
        c, f = channel + k // phases, k % phases
        shift = firsts[f, 2]
        low, high = reach(shift, width, wide, s)
        for i in range(image, image + count):
            for a in range(box[0]):
                z = a * step[0] + firsts[f, 0]
                for b in range(box[1]):
                    y = b * step[1] + firsts[f, 1]
                    if z < 0 or z >= depth or y < 0 or y >= height or low == high:
                        buffer[at : at + wide] = 0
                    else:
                        _zero(buffer, at, at + low)
                        _zero(buffer, at + high, at + wide)
                        here = ((i * x.shape[1] + c) * depth + z) * height + y
                        here = here * width + low * s + shift
                        copy(buffer, at + low, np.int64(1), flat, here, s, high - low)
                    at += wide


@compiled
def _pack(
    packed: Any, weight: Any, base: int, strides: Any, channels: int, live: int, which: Any
) -> None:
    """Fill ``packed`` (channels, window, rows) with the elements ``which`` of the weight's windows.

    ``strides`` are the weight's, between rows and between channels; rows beyond ``live`` are 0.
    """
    taps = which.size
    whole = taps > 0 and which[taps - 1] - which[0] == taps - 1  # it is sorted
    if live < ROWS:
        packed[: channels * taps * ROWS] = 0
    if whole and strides[1] == taps:
        transpose(
            packed,
            np.int64(0),
            np.int64(ROWS),
            weight,
            base + which[0],
            strides[0],
            live,
            channels * taps,
        )
        return
    k = 0
    for i in range(channels):
        at = base + i * strides[1]
        for t in range(taps):
            if live == ROWS:
                move_rows(packed, k, 1, weight, at + which[t], strides[0])
            else:
                for r in range(live):
                    packed[k + r] = weight[at + which[t] + r * strides[0]]
            k += ROWS


@compiled
def _hand_out(
    out: Any,
    sums: Any,
    image: int,
    count: int,
    row: int,
    live: int,
    origin: Any,
    to: Any,
    box: Any,
    extent: Any,
) -> None:
    """Copy sums, in groups as :func:`_after` finds them, to the lines of ``out`` they belong to."""
    lanes = GROUP // out.itemsize
    pitch = sums.size // ROWS
    _, channels, depth, height, width = out.shape
    flat = out.reshape(-1)
    n, step = extent[2], to[2]
    for r in range(live):
        v, start = r * pitch, 0
        for i in range(count):
            for a in range(extent[0]):
                for b in range(extent[1]):
                    place = ((i * box[0] + a) * box[1] + b) * box[2]
                    line = ((image + i) * channels + row + r) * depth + origin[0] + a * to[0]
                    line = (line * height + origin[1] + b * to[1]) * width + origin[2]
                    if place >= start + lanes:
                        v += lanes
                        start = place
                    copy(flat, line, step, sums, v + place - start, np.int64(1), n)
                    beyond = (place - start + n - 1) // lanes  # groups of a line have no gaps
                    v += beyond * lanes
                    start += beyond * lanes


@compiled
def _accumulate_tile(
    sums: Any,
    pitch: int,
    packed: Any,
    room: int,
    x: Any,
    panels: int,
    channels: int,
    step: int,
    offsets: Any,
    place: Any,
) -> None:
    """Add the products of some channels to the sums of all positions of some panels.

    Args:
        sums: (panels, rows, positions), of which the rows are ``pitch`` apart.
        pitch: From row to row.
        packed: (panels, channels, window, rows), of which the panels are ``room`` apart.
        room: From panel to panel.
        x: The channels of the image, as :func:`_lay` fills them.
        panels: How many.
        channels: How many, ``step`` apart in ``x``.
        step: From channel to channel.
        offsets: What each element of the window adds to a position.
        place: Images, their box, and the extent of the positions, as :func:`_after` takes them.
    """
    count, box, extent = place
    lanes = GROUP // x.itemsize
    position: Any = np.int64(0)
    v: Any = np.int64(0)
    while position >= 0:
        one = position
        two = _after(one + lanes, count, box, extent)
        three = _after(two + lanes, count, box, extent) if two >= 0 else -1
        position = _after(three + lanes, count, box, extent) if three >= 0 else -1
        for p in range(panels):
            accumulate(
                sums,
                p * ROWS * pitch + v,
                pitch,
                packed,
                p * room,
                x,
                one,
                max(two, 0),
                max(three, 0),
                channels,
                step,
                offsets,
            )
        v += TOGETHER * lanes


@compiled
def convolve(
    out: Any, buffer: Any, sums: Any, packed: Any, x: Any, weight: Any, bias: Any, groups: int,
    images: Any, panels: Any, beside: int, strides: Any, firsts: Any, step: Any, box: Any,
    which: Any, offsets: Any, phases: Any, to: Any,
) -> None:  # fmt: skip
    """Fill some of ``out`` with the products of windows: a tile of it, some panels of rows.

    Several panels are beside each other: what they read of the image is then in a cache.

    Args:
        out: (images, channels, depth, height, width), as ``x``.
        buffer: For ``x`` with its padding, as :func:`_lay` fills it, and a group.
        sums: For (panels, rows, positions).
        packed: For (panels, channels, window, rows); its size says how many channels at a time.
        x: The images.
        weight: Flat.
        bias: Of the length 0 if there is none.
        groups: Of channels, that do not mix.
        images: First and last.
        panels: First and last of the panels of rows (channels of ``out``) in all groups.
        beside: How many panels are taken at a time.
        strides: Of weight, from row to row and from channel to channel of ``x``.
        firsts: (phases of x, 3); see :func:`_lay`, as for the next two.
        step: Of ``x``.
        box: Of one image in one phase.
        which: Elements of the window, one phase of ``out`` after another.
        offsets: What each of them adds to a position.
        phases: (phases of out, 8): elements from and to; first index in out; extent.
        to: From a position to the next, in ``out``.
    """
    image, count = images[0], images[1] - images[0]
    rows, channels = out.shape[1] // groups, x.shape[1] // groups
    per = (rows + ROWS - 1) // ROWS
    pitch = sums.size // (beside * ROWS)
    room = packed.size // beside
    span = count * box[0] * box[1] * box[2]
    zero = x.dtype.type(0)
    for g in range(panels[0] // per, (panels[1] + per - 1) // per):
        _lay(buffer, x, g * channels, channels, image, count, firsts, step, box)
        for q in range(phases.shape[0]):
            begin, end = phases[q, 0], phases[q, 1]
            taps = end - begin
            extent = (phases[q, 5], phases[q, 6], phases[q, 7])
            if extent[0] <= 0 or extent[1] <= 0 or extent[2] <= 0:
                continue
            most = min(channels, room // (ROWS * max(taps, 1)))
            last = min(panels[1], (g + 1) * per)
            for panel in range(max(panels[0], g * per), last, beside):
                row = (panel - g * per) * ROWS
                some_panels = min(beside, last - panel)
                for r in range(some_panels * ROWS):
                    given = row + r < rows and bias.size > 0
                    sums[r * pitch : (r + 1) * pitch] = bias[g * rows + row + r] if given else zero
                for c in range(0, channels if taps > 0 else 0, most):
                    some = min(most, channels - c)
                    for p in range(some_panels):
                        first_row = row + p * ROWS
                        base = g * (weight.size // groups) + first_row * strides[0] + c * strides[1]
                        _pack(
                            packed[p * room :],
                            weight,
                            base,
                            strides,
                            some,
                            min(ROWS, rows - first_row),
                            which[begin:end],
                        )
                    tail = buffer[c * firsts.shape[0] * span :]
                    _accumulate_tile(
                        sums,
                        pitch,
                        packed,
                        room,
                        tail,
                        some_panels,
                        some,
                        firsts.shape[0] * span,
                        offsets[begin:end],
                        (count, box, extent),
                    )
                for p in range(some_panels):
                    first_row = row + p * ROWS
                    _hand_out(
                        out,
                        sums[p * ROWS * pitch : (p + 1) * ROWS * pitch],
                        image,
                        count,
                        g * rows + first_row,
                        min(ROWS, rows - first_row),
                        phases[q, 2:5],
                        to,
                        box,
                        extent,
                    )


@compiled
def _lay_last(
    buffer: Any, x: Any, channel: int, channels: int, image: int, count: int, first: Any, box: Any
) -> None:
    """Fill ``buffer`` (images, *box, channels) with ``x`` from the index ``first`` on."""
    _, _, depth, height, width = x.shape
    plane = depth * height * width
    flat = x.reshape(-1)
    wide, shift = box[2], first[2]
    low, high = reach(shift, width, wide, 1)
    at: Any = np.int64(0)
    for i in range(image, image + count):
        for a in range(box[0]):
            z = a + first[0]
            for b in range(box[1]):
                y = b + first[1]
                if z < 0 or z >= depth or y < 0 or y >= height or low == high:
                    buffer[at : at + wide * channels] = 0
                else:
                    first_one, end = at + low * channels, at + high * channels
                    buffer[at:first_one] = 0
                    buffer[end : at + wide * channels] = 0
                    here = (
                        (((i * x.shape[1] + channel) * depth + z) * height + y) * width
                        + low
                        + shift
                    )
                    for c in range(0, channels, ROWS):
                        transpose(
                            buffer,
                            first_one + c,
                            channels,
                            flat,
                            here,
                            plane,
                            min(ROWS, channels - c),
                            high - low,
                        )
                        here += ROWS * plane
                at += wide * channels


@compiled
def sum_windows(
    sums: Any, buffer: Any, packed: Any, x: Any, grad: Any, groups: int, images: Any, panels: Any,
    first: Any, step: Any, box: Any, origin: Any, extent: Any, starts: Any, offsets: Any,
) -> None:  # fmt: skip
    """Add to the gradient of the weight what a tile of ``grad`` gives.

    Args:
        sums: (panels, rows, groups of neighbors), flat.
        buffer: For ``x`` with its padding, channels last, and a group.
        packed: For the tile: (positions, rows).
        x: (images, channels, depth, height, width), as ``grad``.
        grad: Its channels are the rows.
        groups: Of channels, that do not mix.
        images: First and last.
        panels: First and last of the panels.
        first: Where the box begins in ``x``.
        step: From a window to the next.
        box: Of one image.
        origin: Where the tile begins in ``grad``.
        extent: Of the tile.
        starts: Where groups of neighbors, along the window and the channels, begin.
        offsets: What positions of a line add to that.
    """
    image, count = images[0], images[1] - images[0]
    rows, channels = grad.shape[1] // groups, x.shape[1] // groups
    per = (rows + ROWS - 1) // ROWS
    lanes = GROUP // x.itemsize
    pitch = starts.size * lanes
    plane = extent[1] * extent[2]
    _, _, deep, high, wide = grad.shape
    flat = grad.reshape(-1)
    for g in range(panels[0] // per, (panels[1] + per - 1) // per):
        _lay_last(buffer, x, g * channels, channels, image, count, first, box)
        for panel in range(max(panels[0], g * per), min(panels[1], (g + 1) * per)):
            row = (panel - g * per) * ROWS
            live = min(ROWS, rows - row)
            k: Any = np.int64(0)
            for i in range(image, image + count):
                for a in range(extent[0]):
                    for b in range(extent[1]):
                        if live < ROWS:
                            packed[k : k + extent[2] * ROWS] = 0
                        z, y, w = a + origin[0], b + origin[1], origin[2]
                        here = (
                            ((i * grad.shape[1] + g * rows + row) * deep + z) * high + y
                        ) * wide + w
                        transpose(
                            packed,
                            k,
                            np.int64(ROWS),
                            flat,
                            here,
                            deep * high * wide,
                            live,
                            extent[2],
                        )
                        k += extent[2] * ROWS
            for v in range(0, starts.size, TOGETHER):
                for i in range(count):
                    for a in range(extent[0]):
                        here = (i * box[0] + a * step[0]) * box[1] * box[2] * channels
                        accumulate(
                            sums,
                            (panel - panels[0]) * ROWS * pitch + v * lanes,
                            pitch,
                            packed,
                            (i * extent[0] + a) * plane * ROWS,
                            buffer[here:],
                            starts[v],
                            starts[v + 1],
                            starts[v + 2],
                            extent[1],
                            step[1] * box[2] * channels,
                            offsets,
                        )


@compiled
def collect(out: Any, sums: Any, groups: int, panels: Any, places: Any, pitch: int) -> None:
    """Fill panels of rows of ``out`` (rows, channels, window) with the totals over ``sums``.

    Element ``t`` of the window begins at ``places[t]`` of a row.
    """
    rows = out.shape[0] // groups
    per = (rows + ROWS - 1) // ROWS
    for panel in range(panels[0], panels[1]):
        row = panel % per * ROWS
        for r in range(min(ROWS, rows - row)):
            o = panel // per * rows + row + r
            base = ((panel - panels[0]) * ROWS + r) * pitch
            for c in range(out.shape[1]):
                for t in range(out.shape[2]):
                    total = sums[0, base + places[t] + c]
                    for k in range(1, sums.shape[0]):
                        total += sums[k, base + places[t] + c]
                    out[o, c, t] = total
