"""Compiled copies of strided arrays, with or without a conversion between float32 and 16-bit types.

An array is seen as (planes, rows, columns), the result's columns next to each other. Where the
source's rows are, the copy is a transposition. Then 16 vectors of 16 elements, one cache line each
of float32, are read, transposed in registers by log2(16) rounds of pairwise exchange, and written
as lines: neither side meets a line twice. (Elements of eight bytes: 8 by 8.) Else whole vectors are
moved, or one element is spread. NumPy takes up to fifteen times as long for a transposition, and up
to forty for a float16.

Element types: unsigned integers stand for whatever has their size; beside float32, uint16 holds a
float16 and int16 a bfloat16. Rounding is to nearest, ties to even; a NaN stays one.

The loops take any strides, so one signature for each pair of types is all there is.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from typing import Any

from ..support.atomics import call_words
from ..support.jit import compiled, deferred, has, spelled

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")
LANES = 16


@cache
def float16_in_hardware() -> bool:
    """True if this CPU converts float16; else the compiler would call a library that may not be."""
    arm = platform.machine() in ("aarch64", "arm64")
    return arm or has("f16c")


def array(dtype: Any, ndim: int) -> str:
    """An array of any strides, in the words of a kernel's signature."""
    return f"{dtype.kind}{dtype.itemsize}:{ndim}A"


@cache
def mover(out: Any, x: Any) -> Any:
    """The compiled copy ``move(out, x)`` for two NumPy dtypes: arrays of three dims.

    The last dim of ``out`` has no gaps; ``x`` has its shape and any strides.
    """
    return compiled(_move, signature=f"{array(out, 3)},{array(x, 3)}r")


# What follows generates instructions, for one element and for a vector of them alike.


def recast(b: Any, value: Any, source: Any, target: Any) -> Any:
    """Convert ``value`` between the types that two element types stand for."""
    if source == target:
        return value
    many = value.type.count if isinstance(value.type, ir.VectorType) else 0

    def kind(t: Any) -> Any:
        return ir.VectorType(t, many) if many else t

    def number(v: int) -> Any:
        return ir.Constant(kind(ir.IntType(32)), [v] * many if many else v)

    if source == types.int16:  # bfloat16 is the upper half of a float32
        bits = b.shl(b.zext(value, kind(ir.IntType(32))), number(16))
        return b.bitcast(bits, kind(ir.FloatType()))
    if source == types.uint16:
        return b.fpext(b.bitcast(value, kind(ir.HalfType())), kind(ir.FloatType()))
    if target == types.uint16:
        return b.bitcast(b.fptrunc(value, kind(ir.HalfType())), kind(ir.IntType(16)))
    bits = b.bitcast(value, kind(ir.IntType(32)))
    odd = b.and_(b.lshr(bits, number(16)), number(1))
    rounded = b.add(b.add(bits, number(0x7FFF)), odd)
    nan = b.or_(b.and_(bits, number(0x80000000)), number(0x7FC00000))
    bits = b.select(b.fcmp_unordered("uno", value, value), nan, rounded)
    return b.trunc(b.lshr(bits, number(16)), kind(ir.IntType(16)))


def splat(b: Any, value: Any) -> Any:
    """A vector of ``LANES`` times the same value."""
    line = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    line = b.insert_element(line, value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return b.shuffle_vector(line, line, zeros)


class Place:
    """The address of an element of an array of three dims."""

    def __init__(self, context: Any, b: Any, kind: Any, array: Any, at: Any) -> None:
        view = context.make_array(kind)(context, b, array)
        strides = [b.extract_value(view.strides, k) for k in range(3)]
        self.b, self.row = b, strides[1]
        offset = b.mul(at[0], strides[0])
        for i, s in zip(at[1:], strides[1:], strict=True):
            offset = b.add(offset, b.mul(i, s))
        self.first = b.gep(b.bitcast(view.data, ir.IntType(8).as_pointer()), [offset])
        self.align = kind.dtype.bitwidth // 8
        self.element = context.get_value_type(kind.dtype)

    def after(self, step: Any, count: int, lanes: int) -> Any:
        """The address of a vector ``count`` steps (in bytes) further on."""
        p = self.b.gep(self.first, [self.b.mul(step, ir.Constant(ir.IntType(64), count))])
        return self.b.bitcast(p, ir.VectorType(self.element, lanes).as_pointer())

    def load(self, step: Any, count: int, lanes: int) -> Any:
        """Read such a vector."""
        value = self.b.load(self.after(step, count, lanes))
        value.align = self.align
        return value

    def store(self, value: Any, step: Any, count: int) -> None:
        """Write one."""
        made = self.b.store(value, self.after(step, count, value.type.count))
        made.align = self.align


def _masks(lanes: int, distance: int) -> Any:
    # Of vectors a and b, what the two of a round are: elements whose number has the bit
    # `distance` change places with those of the other that have it not.
    kind = ir.VectorType(ir.IntType(32), lanes)
    low = [lanes + (k ^ distance) if k & distance else k for k in range(lanes)]
    high = [lanes + k if k & distance else k | distance for k in range(lanes)]
    return ir.Constant(kind, low), ir.Constant(kind, high)


def transposed(b: Any, lines: list[Any]) -> list[Any]:
    """Transpose a square of vectors."""
    lines, distance = list(lines), 1
    while distance < len(lines):
        low, high = _masks(len(lines), distance)
        for r in range(len(lines)):
            if not r & distance:
                pair = lines[r], lines[r | distance]
                lines[r] = b.shuffle_vector(*pair, low)
                lines[r | distance] = b.shuffle_vector(*pair, high)
        distance *= 2
    return lines


def _tile_code(typing: Any, out: Any, x: Any, p: Any, j: Any, k: Any) -> Any:
    """Copy the square of ``side`` rows and columns at (p, j, k); x's rows are neighbors."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        to = Place(context, b, out, args[0], args[2:])
        source = Place(context, b, x, args[1], args[2:])
        view = context.make_array(x)(context, b, args[1])
        column = b.extract_value(view.strides, 2)
        side = _side(x.dtype.bitwidth // 8)
        lines = [recast(b, source.load(column, k, side), x.dtype, out.dtype) for k in range(side)]
        for r, line in enumerate(transposed(b, lines)):
            to.store(line, to.row, r)
        return context.get_dummy_value()

    return types.void(out, x, *[types.int64] * 3), generate


def _vector_code(typing: Any, out: Any, x: Any, p: Any, j: Any, k: Any) -> Any:
    """Copy ``LANES`` neighbors at (p, j, k)."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        to = Place(context, b, out, args[0], args[2:])
        source = Place(context, b, x, args[1], args[2:])
        value = recast(b, source.load(to.row, 0, LANES), x.dtype, out.dtype)
        to.store(value, to.row, 0)
        return context.get_dummy_value()

    return types.void(out, x, *[types.int64] * 3), generate


def _fill_code(typing: Any, out: Any, value: Any, p: Any, j: Any, k: Any) -> Any:
    """Write ``value`` to ``LANES`` neighbors at (p, j, k)."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        to = Place(context, b, out, args[0], args[2:])
        to.store(splat(b, args[1]), to.row, 0)
        return context.get_dummy_value()

    return types.void(out, value, *[types.int64] * 3), generate


def _converted_code(typing: Any, out: Any, value: Any) -> Any:
    """Convert ``value`` to what ``out`` holds."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return recast(b, args[1], value, out.dtype)

    return out.dtype(out, value), generate


def _widened_code(typing: Any, value: Any) -> Any:
    """Convert ``value`` to float32."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return recast(b, args[0], value, types.float32)

    return types.float32(value), generate


def _side(itemsize: int) -> int:
    return 16 if itemsize <= 4 else 8


tile: Any = spelled(_tile_code)
_vector: Any = spelled(_vector_code)
_fill: Any = spelled(_fill_code)
converted: Any = spelled(_converted_code)
widened: Any = spelled(_widened_code)


@compiled(signature="i8,i8x3,i8x3,i8,i8,i8,i8,i8")
def copy_rows(
    function: int, out: Any, x: Any, rows: int, n: int, total: int, start: int, stop: int
) -> None:
    """Copy rows ``start`` to ``stop`` as they are.

    Args:
        function: Address of C's ``memcpy``.
        out: Address of the first row of the result; bytes from plane to plane, from row to row.
        x: The same of the source.
        rows: Rows of a plane.
        n: Bytes of a row.
        total: Of all rows: the last one may be shorter.
        start: The first row, counted over all planes.
        stop: Behind the last.
    """
    plane, row = start // rows, start % rows
    for k in range(start, stop):
        to = out[0] + plane * out[1] + row * out[2]
        source = x[0] + plane * x[1] + row * x[2]
        call_words(function, (to, source, min(n, total - k * n)))
        row += 1
        if row == rows:
            plane, row = plane + 1, 0


@cache
def memcpy() -> int:
    """Return the address of C's ``memcpy``."""
    return ctypes.cast(ctypes.CDLL(None).memcpy, ctypes.c_void_p).value or 0


def _move(out: Any, x: Any) -> None:
    planes, rows, columns = out.shape
    size = x.itemsize
    whole = columns - columns % 16
    if x.strides[2] == size:
        for p in range(planes):
            for j in range(rows):
                for k in range(0, whole, 16):
                    _vector(out, x, p, j, k)
                for k in range(whole, columns):
                    out[p, j, k] = converted(out, x[p, j, k])
    elif x.strides[2] == 0 and columns > 0:
        for p in range(planes):
            for j in range(rows):
                value = converted(out, x[p, j, 0])
                for k in range(0, whole, 16):
                    _fill(out, value, p, j, k)
                for k in range(whole, columns):
                    out[p, j, k] = value
    else:
        side = 16 if size <= 4 else 8
        squares = columns - columns % side
        high = rows - rows % side
        if x.strides[1] != size:
            high = 0
        for p in range(planes):
            for j in range(0, high, side):
                for k in range(0, squares, side):
                    tile(out, x, p, j, k)
                for i in range(j, j + side):
                    for k in range(squares, columns):
                        out[p, i, k] = converted(out, x[p, i, k])
            for j in range(high, rows):
                for k in range(columns):
                    out[p, j, k] = converted(out, x[p, j, k])
