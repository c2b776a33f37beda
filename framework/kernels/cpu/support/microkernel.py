"""Sums of products, copies and transposes in registers, in LLVM's words.

:func:`accumulate` is a matrix product's inner loop, with a table that says where each step reads:
it adds up ``scalars[step, row] * x[start + offsets[step]]`` for eight rows and three groups of
neighbors at once, which are 24 registers of sums, and uses each number that it reads several times.
The compiler's own choice of registers for such a loop is poor, so it is spelled out here.

A group is a register. Of 64 bytes there are 32: eight rows by three groups are 24 sums, three
numbers and one scalar. Of 32 bytes there are 16: four rows by three are 12 sums, so the rows are
taken in two halves, which read the same, some steps at a time. With fewer sums each step would wait
for the one before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiler.processor import register_bytes
from .jit import compiled, deferred, spelled

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")
cgutils = deferred("numba.core.cgutils")
GROUP = register_bytes()  # bytes of neighbors that stay together
ROWS = 8
TOGETHER = 3  # groups that a step takes
_AT_ONCE = ROWS if GROUP == 64 else ROWS // 2  # rows
_STEPS = 128  # of half the rows at a time: what they read stays in the first-level cache


def fused_add(b: Any, vector: Any, size: int) -> Any:
    """LLVM's ``a * b + c``, rounded once, for vectors of numbers of ``size`` bytes."""
    declare: Any = cgutils.get_or_insert_function
    kind = ir.FunctionType(vector, [vector] * 3)
    return declare(b.module, kind, f"llvm.fma.v{vector.count}f{size * 8}")


@spelled
def _products(
    typing: Any,
    sums: Any,
    places: Any,
    pitch: Any,
    scalars: Any,
    first: Any,
    x: Any,
    starts: Any,
    outer: Any,
    step: Any,
    offsets: Any,
) -> Any:
    """Add to ``sums[place + row * pitch]`` and its neighbors, a register for each start.

    The steps are ``outer`` times those of ``offsets``, to which ``step`` is added each time; their
    scalars begin at ``scalars[first]``. ``places`` and ``starts`` are tuples of one length.
    """
    signature = types.void(sums, places, pitch, scalars, first, x, starts, outer, step, offsets)
    return signature, _write_products


def _write_products(context: Any, b: Any, signature: Any, args: Any) -> Any:
    # LLVM's instructions for it: two loops whose variables are the sums.
    def pointer(k: int) -> Any:
        return context.make_array(signature.args[k])(context, b, args[k])

    def constant(n: int) -> Any:
        return ir.Constant(integer, n)

    pitch, first, outer, step = (args[k] for k in (2, 4, 7, 8))
    integer = pitch.type
    sums, scalars, x, offsets = (pointer(k).data for k in (0, 3, 5, 9))
    inner = b.extract_value(pointer(9).shape, 0)
    item = context.get_data_type(signature.args[0].dtype)
    size = signature.args[0].dtype.bitwidth // 8
    lanes = GROUP // size
    vector = ir.VectorType(item, lanes)
    fused = fused_add(b, vector, size)
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
    kept = [b.phi(vector) for _ in range(_AT_ONCE * count)]
    b.branch(body)

    b.position_at_end(body)
    t, now = b.phi(integer), b.phi(scalars.type)
    total = [b.phi(vector) for _ in range(_AT_ONCE * count)]
    offset = b.add(shift, b.load(b.gep(offsets, [t])))
    neighbors = [load(h, offset) for h in here]
    new = []
    for r in range(_AT_ONCE):
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
    for r in range(_AT_ONCE):
        for k in range(count):
            index = b.add(b.extract_value(args[1], k), b.mul(pitch, constant(r)))
            found = b.fadd(load(sums, index), new[r * count + k])
            target = b.bitcast(b.gep(sums, [index]), vector.as_pointer())
            b.store(found, target).align = size
    return context.get_dummy_value()


@spelled
def move(typing: Any, target: Any, i: Any, source: Any, j: Any) -> Any:
    """Copy the group of neighbors at ``source[j]`` to ``target[i]``."""
    return types.void(target, i, source, j), _write_neighbors(1)


@spelled
def _move_even(typing: Any, target: Any, i: Any, source: Any, j: Any) -> Any:
    """Make a group of every other element from ``source[j]`` on."""
    return types.void(target, i, source, j), _write_neighbors(2)


@spelled
def _move_apart(typing: Any, target: Any, i: Any, to: Any, source: Any, j: Any, by: Any) -> Any:
    """Copy as many as a group has: number ``i + k * to`` becomes ``source[j + k * by]``."""
    return types.void(target, i, to, source, j, by), _write_apart(None)


@spelled
def move_rows(typing: Any, target: Any, i: Any, to: Any, source: Any, j: Any, by: Any) -> Any:
    """Copy ROWS elements, as :func:`_move_apart` does."""
    return types.void(target, i, to, source, j, by), _write_apart(ROWS)


def _write_neighbors(by: int) -> Any:
    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        target, source = (
            context.make_array(signature.args[k])(context, b, args[k]).data for k in (0, 2)
        )
        size = signature.args[0].dtype.bitwidth // 8
        lanes = GROUP // size
        whole = ir.VectorType(context.get_data_type(signature.args[0].dtype), lanes)

        def at(base: Any, index: Any) -> Any:
            return b.bitcast(b.gep(base, [index]), whole.as_pointer())

        found = b.load(at(source, args[3]))
        found.align = size
        if by == 2:  # the second half from where it overlaps: nothing beyond is read
            rest = b.load(at(source, b.add(args[3], ir.Constant(args[3].type, lanes - 1))))
            rest.align = size
            order = [*range(0, lanes, 2), *range(lanes + 1, 2 * lanes, 2)]
            kind = ir.VectorType(ir.IntType(32), lanes)
            found = b.shuffle_vector(found, rest, ir.Constant(kind, order))
        b.store(found, at(target, args[1])).align = size
        return context.get_dummy_value()

    return write


def _write_apart(count: int | None) -> Any:
    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        target, source = (
            context.make_array(signature.args[k])(context, b, args[k]).data for k in (0, 3)
        )
        i, to, j, by = (args[k] for k in (1, 2, 4, 5))
        for k in range(count or GROUP // (signature.args[0].dtype.bitwidth // 8)):
            if k:
                i, j = b.add(i, to), b.add(j, by)
            b.store(b.load(b.gep(source, [j])), b.gep(target, [i]))
        return context.get_dummy_value()

    return write


@spelled
def _turn(typing: Any, target: Any, i: Any, to: Any, source: Any, j: Any, by: Any) -> Any:
    """Transpose a square of ROWS lines: ``by`` apart in ``source``, ``to`` in ``target``."""
    return types.void(target, i, to, source, j, by), _write_turn


def _write_turn(context: Any, b: Any, signature: Any, args: Any) -> Any:
    # For each bit of an index, lines that differ in it exchange what lies off the diagonal.
    target, source = (
        context.make_array(signature.args[k])(context, b, args[k]).data for k in (0, 3)
    )
    i, to, j, by = (args[k] for k in (1, 2, 4, 5))
    size = signature.args[0].dtype.bitwidth // 8
    line = ir.VectorType(context.get_data_type(signature.args[0].dtype), ROWS).as_pointer()
    order = ir.VectorType(ir.IntType(32), ROWS)
    lines = []
    for k in range(ROWS):
        lines.append(b.load(b.bitcast(b.gep(source, [j]), line)))
        lines[k].align = size
        j = b.add(j, by)
    bit = 1
    while bit < ROWS:
        for k in range(ROWS):
            if not k & bit:
                one, other = lines[k], lines[k | bit]
                low = [m if not m & bit else ROWS + m - bit for m in range(ROWS)]
                high = [m + bit if not m & bit else ROWS + m for m in range(ROWS)]
                lines[k] = b.shuffle_vector(one, other, ir.Constant(order, low))
                lines[k | bit] = b.shuffle_vector(one, other, ir.Constant(order, high))
        bit *= 2
    for found in lines:
        b.store(found, b.bitcast(b.gep(target, [i]), line)).align = size
        i = b.add(i, to)
    return context.get_dummy_value()


@compiled
def transpose(
    target: Any, i: Any, to: Any, source: Any, j: Any, by: Any, rows: Any, n: Any
) -> None:
    """Copy lines of ``n`` elements, at most ROWS, to columns: element k goes to ``i + k * to``."""
    if rows == ROWS and n >= ROWS:
        k = 0
        while k < n:
            k = min(k, n - ROWS)  # the last square may overlap the one before
            _turn(target, i + k * to, to, source, j + k, by)
            k += ROWS
        return
    one = to // to
    for r in range(rows):
        copy(target, i + r, to, source, j + r * by, one, n)


@compiled
def copy(target: Any, i: Any, to: Any, source: Any, j: Any, by: Any, n: Any) -> None:
    """Copy ``n`` elements that are ``by`` apart to places that are ``to`` apart."""
    lanes = GROUP // source.itemsize
    k = 0
    if n < lanes:
        if n >= ROWS:
            move_rows(target, i, to, source, j, by)
            k = n - ROWS
            move_rows(target, i + k * to, to, source, j + k * by, by)
            return
        for k in range(n):
            target[i + k * to] = source[j + k * by]
        return
    while k < n:
        k = min(k, n - lanes)  # the last group may overlap the one before
        if to == 1 and by == 1:
            move(target, i + k, source, j + k)
        elif to == 1 and by == 2:
            _move_even(target, i + k, source, j + 2 * k)
        else:
            _move_apart(target, i + k * to, to, source, j + k * by, by)
        k += lanes


@compiled
def accumulate(
    sums: Any,
    at: Any,
    pitch: Any,
    scalars: Any,
    first: Any,
    x: Any,
    a: Any,
    b: Any,
    c: Any,
    outer: Any,
    step: Any,
    offsets: Any,
) -> None:
    """Add products to ``sums[at + row * pitch]``, and to its neighbors in three groups.

    Args:
        sums: Flat, as all arrays here.
        at: Of the first row and group; the other groups follow.
        pitch: From row to row.
        scalars: (steps, ROWS).
        first: Where the first step's begin.
        x: What they are multiplied with: GROUP bytes of it for each group and step.
        a: Where the first group begins.
        b: Where the second does.
        c: Where the third does.
        outer: How often all of ``offsets`` are stepped through.
        step: What is added to them each time.
        offsets: What a step adds to ``a``, ``b`` and ``c``.
    """
    group = GROUP // x.itemsize
    some = outer if _AT_ONCE == ROWS else max(1, _STEPS // offsets.size)
    for i in range(0, outer, some):
        turns, begin, d = min(some, outer - i), first + i * offsets.size * ROWS, i * step
        starts = a + d, b + d, c + d
        for row in range(0, ROWS, _AT_ONCE):
            k = at + row * pitch
            places = k, k + group, k + 2 * group
            _products(sums, places, pitch, scalars, begin + row, x, starts, turns, step, offsets)


@compiled
def accumulate_two(
    sums: Any, at: Any, pitch: Any, scalars: Any, first: Any, x: Any, a: Any, b: Any, offsets: Any
) -> None:
    """Add products as :func:`accumulate` does, to two groups, and step once through ``offsets``."""
    group, one = GROUP // x.itemsize, np.int64(1)
    for row in range(0, ROWS, _AT_ONCE):
        k = at + row * pitch
        _products(sums, (k, k + group), pitch, scalars, first + row, x, (a, b), one, one, offsets)
