"""Compiled products of bfloat16 matrices, for CPUs with an instruction for that (AVX512-BF16).

One instruction multiplies 16 pairs of neighbors along the contracted dim with one pair, and adds
both products to 16 float32 sums. It goes through twice as many numbers as its float32 sister. So
the contracted dim is taken two at a time: where its neighbors do not lie side by side they are
brought together first, and the right matrix always is, a panel of ``COLUMNS`` columns
at a time.

``ROWS`` rows of a panel of the result are summed in registers over the whole contracted dim, and
rounded once; no sum is ever stored. Sums do not depend on how the work is cut. The
instruction takes subnormal numbers as zeros, and rounds the sum of two products once.

Not optimal: the left matrix is read once for each panel, and a contracted dim of tens of thousands
makes a panel larger than a core's cache.

Source:
    Intel's Intrinsics Guide, ``VDPBF16PS``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..elementwise.copy import recast, splat, tile, widened
from ..support.jit import compiled, deferred, has, part, spelled

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")
cgutils = deferred("numba.core.cgutils")
ROWS, COLUMNS = 6, 64
_LANES = 16


@cache
def _bfloat() -> Any:
    # LLVM's bfloat, which llvmlite has no class for.
    class BFloat(ir.Type):  # type: ignore[misc,name-defined]
        def _to_string(self) -> str:
            return "bfloat"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, BFloat)

        def __hash__(self) -> int:
            return hash(BFloat)

    return BFloat()


@cache
def in_hardware() -> bool:
    """True if this CPU multiplies bfloat16."""
    return has("avx512bf16")


def _at(b: Any, kind: Any, address: Any, offset: Any) -> Any:
    return b.inttoptr(b.add(address, offset), kind.as_pointer())


def load(b: Any, kind: Any, address: Any, offset: Any, align: int) -> Any:
    """Read a value ``offset`` bytes behind an address."""
    value = b.load(_at(b, kind, address, offset))
    value.align = align
    return value


def store(b: Any, value: Any, address: Any, offset: Any, align: int) -> None:
    """Write one."""
    b.store(value, _at(b, value.type, address, offset)).align = align


def number(v: int) -> Any:
    """Return a constant of 64 bits."""
    return ir.Constant(ir.IntType(64), v)


def _panel_rows_code(
    typing: Any,
    out: Any,
    step: Any,
    left: Any,
    row: Any,
    pair: Any,
    right: Any,
    count: Any,
    bias: Any,
) -> Any:
    """``ROWS`` rows of a panel of the result, by addresses; steps are in bytes."""
    across = COLUMNS // _LANES

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        to, step, a, row, pair, panel, count, added = args
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        sum_of = ir.VectorType(ir.FloatType(), _LANES)
        pairs = ir.VectorType(_bfloat(), 2 * _LANES)
        kind = ir.FunctionType(sum_of, [sum_of, pairs, pairs])
        multiply = cgutils.get_or_insert_function(b.module, kind, name)
        zero = ir.Constant(sum_of, [0.0] * _LANES)
        sums = [[cgutils.alloca_once(b, sum_of) for _ in range(across)] for _ in range(ROWS)]
        for line in sums:
            for s in line:
                b.store(zero, s)
        rows = [b.add(a, b.mul(row, number(r))) for r in range(ROWS)]
        with cgutils.for_range(b, count) as loop:
            at = b.mul(loop.index, number(4 * COLUMNS))
            others = [
                load(b, pairs, panel, b.add(at, number(4 * _LANES * c)), 64) for c in range(across)
            ]
            here = b.mul(loop.index, pair)
            for first, line in zip(rows, sums, strict=True):
                one = b.bitcast(splat(b, load(b, ir.IntType(32), first, here, 2)), pairs)
                for s, other in zip(line, others, strict=True):
                    b.store(b.call(multiply, [b.load(s), one, other]), s)
        for r, line in enumerate(sums):
            first = b.add(to, b.mul(step, number(r)))
            for c, s in enumerate(line):
                value = b.fadd(b.load(s), load(b, sum_of, added, number(4 * _LANES * c), 4))
                value = recast(b, value, types.float32, types.int16)
                store(b, value, first, number(2 * _LANES * c), 2)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), generate


def _pair_code(typing: Any, out: Any, first: Any, second: Any) -> Any:
    """The elements at two addresses side by side."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        for k, address in enumerate(args[1:]):
            value = load(b, ir.IntType(16), address, number(0), 2)
            store(b, value, args[0], number(2 * k), 2)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


def _zip_code(typing: Any, out: Any, first: Any, second: Any) -> Any:
    """Interleave the 32 elements at two addresses."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(ir.IntType(16), 32)
        one, two = (load(b, kind, k, number(0), 2) for k in args[1:])
        for half in (0, 1):
            order = [k // 2 + 16 * half + 32 * (k % 2) for k in range(32)]
            mask = ir.Constant(ir.VectorType(ir.IntType(32), 32), order)
            store(b, b.shuffle_vector(one, two, mask), args[0], number(64 * half), 2)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


_panel_rows: Any = spelled(_panel_rows_code)
_zip: Any = spelled(_zip_code)
pair: Any = spelled(_pair_code)


@cache
def products() -> Any:
    """``products(out, left, right, words, bias, packed, panel, chunks, start, stop)``.

    It computes units ``start`` to ``stop`` of a stack of products: its matrices or, of one matrix,
    panels of ``COLUMNS`` columns. Args of it, all but ``words`` with bfloat16 in int16:
        out: (B, M, N), with M at least ``ROWS``, N at least ``COLUMNS``, the last dim without gaps.
        left: (B, M, K), K even, one of the last two dims without gaps.
        right: (B, K, N), likewise.
        words: Where that dim is K: ``right`` as (B, K // 2, N) of uint32, else an empty one.
        bias: (N,), (1,) or (0,).
        packed: Rooms for ``ROWS`` or more rows of ``left``: (chunks, rows * K).
        panel: Rooms for a panel of ``right``, on a cache line: (chunks, K // 2, COLUMNS) of uint32.
        chunks: Into how many ranges all units are cut.
    """
    stacks, line = "i2:3A,i2:3Ar,i2:3Ar,u4:3Ar", "i2:1Cr"
    return compiled(_products, signature=f"{stacks},{line},i2:2C,u4:3C,i8,i8,i8")


@part
def bring(to: int, source: int, step: int, count: int, columns: int) -> None:
    """Bring rows 2k and 2k + 1 together, element by element: (count, columns, 2).

    Addresses and bytes.
    """
    for k in range(count):
        first = source + 2 * k * step
        for j in range(0, columns - 31, 32):
            _zip(to + 4 * (k * columns + j), first + 2 * j, first + step + 2 * j)
        if columns % 32:
            if columns > 32:
                j = columns - 32
                _zip(to + 4 * (k * columns + j), first + 2 * j, first + step + 2 * j)
            else:
                for j in range(columns):
                    pair(to + 4 * (k * columns + j), first + 2 * j, first + step + 2 * j)


@part
def gather(panel: Any, right: Any, words: Any, b: int, j: int, count: int) -> None:
    """Bring neighbors of columns ``j`` to ``j + 64`` of a matrix together, ``count`` pairs."""
    to, columns, step = panel.ctypes.data, right.strides[2], right.strides[1]
    source = right.ctypes.data + b * right.strides[0] + j * columns
    if columns == 2:
        bring(to, source, step, count, 64)
    elif words.size:
        whole = count - count % 16
        here = words[b : b + 1, :, j : j + 64]
        for k in range(0, whole, 16):
            for c in range(0, 64, 16):
                tile(panel, here, 0, k, c)
        for k in range(whole, count):
            for c in range(64):
                panel[0, k, c] = here[0, k, c]
    else:
        for k in range(count):
            for c in range(64):
                first = source + c * columns + 2 * k * step
                pair(to + 4 * (k * 64 + c), first, first + step)


@part
def widen(added: Any, bias: Any, j: int) -> None:
    """Write the bias of a panel's columns, from ``j`` on, as float32."""
    for c in range(added.size):  # -0.0 leaves every number as it is, zeros too
        added[c] = np.float32(-0.0)
        if bias.size:
            added[c] = widened(bias[j + c if bias.size > 1 else 0])


@part
def units_of(out: Any, chunks: int, start: int, stop: int) -> Any:
    """Return the number of a chunk's room, and its matrices and columns: from, to."""
    units = out.shape[0] if out.shape[0] > 1 else (out.shape[2] + 63) // 64
    room = (start * chunks + units - 1) // units
    if out.shape[0] > 1:
        return room, start, stop, 0, out.shape[2]
    return room, 0, 1, 64 * start, min(64 * stop, out.shape[2])


def _products(
    out: Any, left: Any, right: Any, words: Any, bias: Any, packed: Any, panel: Any, chunks: int,
    start: int, stop: int,
) -> None:  # fmt: skip
    if start == stop:
        return
    rows, columns, inner = out.shape[1], out.shape[2], left.shape[2]
    count = inner // 2
    room, first_matrix, last_matrix, first_column, last_column = units_of(out, chunks, start, stop)
    packed, panel = packed[room], panel[room : room + 1]
    turned = left.strides[2] != 2
    most = packed.size // inner if turned else rows
    added = np.empty(64, np.float32)
    for b in range(first_matrix, last_matrix):
        for row_tile in range(0, rows, most):
            first = max(0, min(row_tile, rows - 6))  # some rows again rather than too few
            size = min(first + most, rows) - first
            source = left.ctypes.data + b * left.strides[0] + first * left.strides[1]
            row, pair = left.strides[1], 4
            if turned:
                bring(packed.ctypes.data, source, left.strides[2], count, size)
                source, row, pair = packed.ctypes.data, 4, 4 * size
            for k in range(first_column, last_column, 64):
                j = min(k, columns - 64)  # likewise
                gather(panel, right, words, b, j, count)
                widen(added, bias, j)
                to = out.ctypes.data + b * out.strides[0] + first * out.strides[1] + 2 * j
                for i in range(0, size, 6):
                    top = min(i, size - 6)
                    _panel_rows(
                        to + top * out.strides[1],
                        out.strides[1],
                        source + top * row,
                        row,
                        pair,
                        panel.ctypes.data,
                        count,
                        added.ctypes.data,
                    )
