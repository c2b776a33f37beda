"""Compiled convolution without columns: products are summed in registers, where they are read.

One loop, :func:`_products`, does all the arithmetic: it adds up ``scalars[step, row] * x[here +
offsets[step]]`` for eight rows and three groups of neighbors at once, which are 24 registers of
sums, and meets each number that it reads several times. For a result (and for the gradient of the
input) the rows are filters, the steps channels and window elements, and the neighbors positions.
For the gradient of the weight the steps are positions, and the neighbors channels.

So that no step meets an edge, an image is first laid out with its padding, a part at a time. Where
windows are ``stride`` apart, it is dealt out into as many phases, and within each the windows' next
elements are neighbors again. A group that reaches beyond the end of a line computes what nobody
reads: of the two kinds of waste, between lines and after each, :func:`_after` finds the smaller.

Sums of some 500 products are added to the result; so errors grow as those of blocked products do.
The loop is written in LLVM's words, as the compiler's own choice of registers for it is poor. It is
tuned for registers of 64 bytes, of which there are 32; with 32 bytes it takes one group at a time.
All is three-dimensional; a signal is a volume with two sizes of 1.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import njit
from numba.core import cgutils
from numba.extending import intrinsic

from .compiler import compiled
from .depthwise import reach

GROUP = 64  # bytes of neighbors that stay together
ROWS = 8
TOGETHER = 3  # groups that the plans count with
_REGISTER = 64 if binding.get_host_cpu_features().get("avx512f") else 32  # bytes
_GROUPS = TOGETHER if _REGISTER == GROUP else 1  # at once


@intrinsic
def _products(
    typing: Any, sums: Any, at: Any, pitch: Any, scalars: Any, first: Any, x: Any, starts: Any,
    outer: Any, step: Any, offsets: Any,
) -> Any:  # pragma: no cover - compiled  # fmt: skip
    """Add to ``sums[at + row * pitch]`` and its neighbors, for each row and each of ``starts``.

    The steps are ``outer`` times those of ``offsets``, to which ``step`` is added each time; their
    scalars begin at ``scalars[first]``. ``starts`` is a tuple.
    """
    from numba import types

    signature = types.void(sums, at, pitch, scalars, first, x, starts, outer, step, offsets)
    return signature, _write_products


def _write_products(context: Any, b: Any, signature: Any, args: Any) -> Any:
    # LLVM's instructions for it: two loops whose variables are the sums.
    def pointer(k: int) -> Any:
        return context.make_array(signature.args[k])(context, b, args[k])

    def constant(n: int) -> Any:
        return ir.Constant(integer, n)

    at, pitch, first, outer, step = (args[k] for k in (1, 2, 4, 7, 8))
    integer = at.type
    sums, scalars, x, offsets = (pointer(k).data for k in (0, 3, 5, 9))
    inner = b.extract_value(pointer(9).shape, 0)
    item = context.get_data_type(signature.args[0].dtype)
    size = signature.args[0].dtype.bitwidth // 8
    lanes = _REGISTER // size
    vector = ir.VectorType(item, lanes)
    fused = cgutils.get_or_insert_function(
        b.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{lanes}f{size * 8}"
    )
    undefined = ir.Constant(vector, ir.Undefined)
    lowest = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)

    def load(base: Any, index: Any) -> Any:
        found = b.load(b.bitcast(b.gep(base, [index]), vector.as_pointer()))
        found.align = size
        return found

    count = len(signature.args[6])
    here = [b.gep(x, [b.extract_value(args[6], k)]) for k in range(count)]
    origin = b.gep(scalars, [first])
    zero = ir.Constant(vector, [0.0] * lanes)
    before = b.block
    turn, body, turned, after = (
        b.append_basic_block(n) for n in ("turn", "body", "turned", "after")
    )
    b.branch(turn)

    b.position_at_end(turn)
    i, shift, begin = b.phi(integer), b.phi(integer), b.phi(scalars.type)
    kept = [b.phi(vector) for _ in range(ROWS * count)]
    b.branch(body)

    b.position_at_end(body)
    t, now = b.phi(integer), b.phi(scalars.type)
    total = [b.phi(vector) for _ in range(ROWS * count)]
    offset = b.add(shift, b.load(b.gep(offsets, [t])))
    neighbors = [load(h, offset) for h in here]
    new = []
    for r in range(ROWS):
        scalar = b.load(b.gep(now, [constant(r)]))
        scalar = b.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
        scalar = b.shuffle_vector(scalar, undefined, lowest)
        for k in range(count):
            new.append(b.call(fused, [scalar, neighbors[k], total[r * count + k]]))
    following, then = b.add(t, constant(1)), b.gep(now, [constant(ROWS)])
    b.cbranch(b.icmp_signed("<", following, inner), body, turned)

    b.position_at_end(turned)
    i_next, shift_next = b.add(i, constant(1)), b.add(shift, step)
    b.cbranch(b.icmp_signed("<", i_next, outer), turn, after)

    entering = [constant(0), constant(0), origin, *[zero] * len(kept)]
    ending = [i_next, shift_next, then, *new]
    for phi, start, end in zip([i, shift, begin, *kept], entering, ending, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(end, turned)
    entering, ending = [constant(0), begin, *kept], [following, then, *new]
    for phi, start, end in zip([t, now, *total], entering, ending, strict=True):
        phi.add_incoming(start, turn)
        phi.add_incoming(end, body)

    b.position_at_end(after)
    for r in range(ROWS):
        for k in range(count):
            index = b.add(at, b.add(b.mul(pitch, constant(r)), constant(k * (GROUP // size))))
            found = b.fadd(load(sums, index), new[r * count + k])
            target = b.bitcast(b.gep(sums, [index]), vector.as_pointer())
            b.store(found, target).align = size
    return context.get_dummy_value()


@compiled
def _step(
    sums: Any, at: int, pitch: int, scalars: Any, first: int, x: Any, a: int, b: int, c: int,
    outer: int, step: int, offsets: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """:func:`_products` for three groups, as many at a time as there are registers for."""
    if _GROUPS == TOGETHER:
        _products(sums, at, pitch, scalars, first, x, (a, b, c), outer, step, offsets)
        return
    lanes = _REGISTER // x.itemsize
    for part in range(0, GROUP // x.itemsize, lanes):
        k = at + part
        for start in (a, b, c):
            _products(sums, k, pitch, scalars, first, x, (start + part,), outer, step, offsets)
            k += GROUP // x.itemsize


@njit(inline="always")
def _after(at: int, count: int, box: Any, extent: Any) -> int:  # pragma: no cover - compiled
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


@compiled
def _lay(
    buffer: Any, x: Any, channel: int, channels: int, image: int, count: int, firsts: Any,
    step: Any, box: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """Fill ``buffer`` (channels, phases, images, *box) with what is there, 0 outside of ``x``.

    Element ``p`` of phase ``f`` along a dimension is the image's ``p * step + firsts[f]``.
    """
    _, _, depth, height, width = x.shape
    wide, s = box[2], step[2]
    at = 0
    for c in range(channel, channel + channels):
        for f in range(firsts.shape[0]):
            shift = firsts[f, 2]
            low, high = reach(shift, width, wide, s)
            for i in range(image, image + count):
                for a in range(box[0]):
                    z = a * step[0] + firsts[f, 0]
                    for b in range(box[1]):
                        y = b * step[1] + firsts[f, 1]
                        line = buffer[at : at + wide]
                        at += wide
                        if z < 0 or z >= depth or y < 0 or y >= height or low == high:
                            line[:] = 0
                            continue
                        line[:low] = 0
                        line[high:] = 0
                        here, there = line[low:high], x[i, c, z, y, low * s + shift :]
                        if s == 1:
                            for k in range(here.size):
                                here[k] = there[k]
                        elif s == 2:
                            for k in range(here.size):
                                here[k] = there[2 * k]
                        else:
                            for k in range(here.size):
                                here[k] = there[k * s]


@compiled
def convolve(
    out: Any, buffer: Any, sums: Any, packed: Any, x: Any, weight: Any, bias: Any, groups: int,
    images: Any, blocks: Any, strides: Any, firsts: Any, step: Any, box: Any, which: Any,
    offsets: Any, phases: Any, to: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """Fill some of ``out`` with the products of windows: a tile of it, some blocks of rows.

    Args:
        out: (images, channels, depth, height, width), as ``x``.
        buffer: For ``x`` with its padding, as :func:`_lay` fills it, and a group.
        sums: For (rows, positions).
        packed: For (channels, window, rows); what it holds says how many channels at a time.
        x: The images.
        weight: Flat.
        bias: Of the length 0 if there is none.
        groups: Of channels, that do not mix.
        images: First and last.
        blocks: First and last of the blocks of rows (channels of ``out``) in all groups.
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
    lanes = GROUP // x.itemsize
    pitch = sums.size // ROWS
    span = count * box[0] * box[1] * box[2]
    zero = x.dtype.type(0)
    for g in range(blocks[0] // per, (blocks[1] + per - 1) // per):
        _lay(buffer, x, g * channels, channels, image, count, firsts, step, box)
        for q in range(phases.shape[0]):
            begin, end = phases[q, 0], phases[q, 1]
            taps = end - begin
            top, left, right = phases[q, 2], phases[q, 3], phases[q, 4]
            extent = (phases[q, 5], phases[q, 6], phases[q, 7])
            if extent[0] <= 0 or extent[1] <= 0 or extent[2] <= 0:
                continue
            chunk = min(channels, packed.size // (ROWS * max(taps, 1)))
            for block in range(max(blocks[0], g * per), min(blocks[1], (g + 1) * per)):
                row = (block - g * per) * ROWS
                live = min(ROWS, rows - row)
                for r in range(ROWS):
                    given = r < live and bias.size > 0
                    sums[r * pitch : (r + 1) * pitch] = bias[g * rows + row + r] if given else zero
                for c in range(0, channels if taps > 0 else 0, chunk):
                    some = min(chunk, channels - c)
                    k = 0
                    base = g * (weight.size // groups) + row * strides[0] + c * strides[1]
                    for i in range(some):
                        for t in range(begin, end):
                            for r in range(ROWS):
                                w = base + i * strides[1] + which[t] + r * strides[0]
                                packed[k] = weight[w] if r < live else zero
                                k += 1
                    tail = buffer[c * firsts.shape[0] * span :]
                    position, v = 0, 0
                    while position >= 0:
                        one = position
                        two = _after(one + lanes, count, box, extent)
                        three = _after(two + lanes, count, box, extent) if two >= 0 else -1
                        position = _after(three + lanes, count, box, extent) if three >= 0 else -1
                        _step(
                            sums, v, pitch, packed, 0, tail, one, max(two, 0), max(three, 0),
                            some, firsts.shape[0] * span, offsets[begin:end],
                        )  # fmt: skip
                        v += TOGETHER * lanes
                for r in range(live):
                    v, start = r * pitch, 0
                    for i in range(count):
                        for a in range(extent[0]):
                            for b in range(extent[1]):
                                place = ((i * box[0] + a) * box[1] + b) * box[2]
                                line = out[
                                    image + i, g * rows + row + r, top + a * to[0],
                                    left + b * to[1], right:,
                                ]  # fmt: skip
                                done = 0
                                while done < extent[2]:
                                    if place + done >= start + lanes:
                                        v += lanes
                                        start = place + done
                                    more = min(extent[2] - done, start + lanes - place - done)
                                    here = sums[v + place + done - start :]
                                    there = line[done * to[2] :]
                                    if to[2] == 1:
                                        for k in range(more):
                                            there[k] = here[k]
                                    elif to[2] == 2:
                                        for k in range(more):
                                            there[2 * k] = here[k]
                                    else:
                                        for k in range(more):
                                            there[k * to[2]] = here[k]
                                    done += more


@compiled
def _lay_last(
    buffer: Any, x: Any, channel: int, channels: int, image: int, count: int, first: Any, box: Any
) -> None:  # pragma: no cover - compiled
    """Fill ``buffer`` (images, *box, channels) with ``x`` from the index ``first`` on."""
    _, _, depth, height, width = x.shape
    wide, shift = box[2], first[2]
    low, high = reach(shift, width, wide, 1)
    at = 0
    for i in range(image, image + count):
        for a in range(box[0]):
            z = a + first[0]
            for b in range(box[1]):
                y = b + first[1]
                line = buffer[at : at + wide * channels]
                at += wide * channels
                if z < 0 or z >= depth or y < 0 or y >= height or low == high:
                    line[:] = 0
                    continue
                line[: low * channels] = 0
                line[high * channels :] = 0
                for c in range(0, channels, 16):
                    end = min(channels, c + 16)
                    for w in range(low, high):
                        for k in range(c, end):
                            line[w * channels + k] = x[i, channel + k, z, y, w + shift]


@compiled
def sum_windows(
    sums: Any, buffer: Any, packed: Any, x: Any, grad: Any, groups: int, images: Any, blocks: Any,
    first: Any, step: Any, box: Any, origin: Any, extent: Any, starts: Any, offsets: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """Add to the gradient of the weight what a tile of ``grad`` gives.

    Args:
        sums: (blocks of rows in all groups, rows, groups of neighbors), flat.
        buffer: For ``x`` with its padding, channels last, and a group.
        packed: For the tile: (positions, rows).
        x: (images, channels, depth, height, width), as ``grad``.
        grad: Its channels are the rows.
        groups: Of channels, that do not mix.
        images: First and last.
        blocks: First and last of the blocks.
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
    zero = x.dtype.type(0)
    for g in range(blocks[0] // per, (blocks[1] + per - 1) // per):
        _lay_last(buffer, x, g * channels, channels, image, count, first, box)
        for block in range(max(blocks[0], g * per), min(blocks[1], (g + 1) * per)):
            row = (block - g * per) * ROWS
            live = min(ROWS, rows - row)
            k = 0
            for i in range(image, image + count):
                for a in range(extent[0]):
                    for b in range(extent[1]):
                        z, y, w = a + origin[0], b + origin[1], origin[2]
                        for r in range(ROWS):
                            target = packed[k + r :]
                            if r < live:
                                line = grad[i, g * rows + row + r, z, y, w : w + extent[2]]
                                for p in range(line.size):
                                    target[p * ROWS] = line[p]
                            else:
                                for p in range(extent[2]):
                                    target[p * ROWS] = zero
                        k += extent[2] * ROWS
            for v in range(0, starts.size, TOGETHER):
                for i in range(count):
                    for a in range(extent[0]):
                        here = (i * box[0] + a * step[0]) * box[1] * box[2] * channels
                        _step(
                            sums, block * ROWS * pitch + v * lanes, pitch, packed,
                            (i * extent[0] + a) * plane * ROWS, buffer[here:], starts[v],
                            starts[v + 1], starts[v + 2], extent[1], step[1] * box[2] * channels,
                            offsets,
                        )  # fmt: skip


@compiled
def collect(
    out: Any, sums: Any, groups: int, places: Any, pitch: int
) -> None:  # pragma: no cover - compiled
    """Fill ``out`` (rows, channels, window) with the sums over ``sums``' first dimension."""
    rows = out.shape[0] // groups
    per = (rows + ROWS - 1) // ROWS
    for o in range(out.shape[0]):
        g, row = o // rows, o % rows
        base = ((g * per + row // ROWS) * ROWS + row % ROWS) * pitch
        for c in range(out.shape[1]):
            for t in range(out.shape[2]):
                total = sums[0, base + places[t] + c]
                for k in range(1, sums.shape[0]):
                    total += sums[k, base + places[t] + c]
                out[o, c, t] = total
