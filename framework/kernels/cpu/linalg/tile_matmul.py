"""Compiled products of bfloat16 matrices in tile registers, for CPUs that have them (AMX-BF16).

A tile register holds 16 rows of 64 bytes. One instruction multiplies a tile of 16 rows and 32
columns with one of 16 pairs of rows and 16 columns, and adds the products to 16 x 16 float32 sums:
eight times as many products a cycle as the instruction of ``bfloat16_matmul.py``, whose panels of
the right matrix are used here, too. The left matrix is read as it lies where its rows have no gaps
and a number of columns that 32 divides. Else rows of it are laid out so first, with zeros behind.

``ROWS`` rows and 32 columns of the result, four tiles, are summed in registers over the whole
contracted dim, and rounded once. Sums do not depend on how the work is cut. The instruction takes
subnormal numbers as zeros.

A process has to ask the kernel for the registers once (:func:`in_hardware`).

Source:
    Intel's Software Developer's Manual, volume 1, chapter 18, ``TDPBF16PS``.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from typing import Any

import numpy as np

from ..elementwise.copy import recast, transposed
from ..support.jit import compiled, deferred, has, part, spelled
from .bfloat16_matmul import COLUMNS, bring, gather, load, number, pair, store, units_of, widen

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")
cgutils = deferred("numba.core.cgutils")
ROWS = 32  # of the result, at a time
INNER = 32  # elements of the contracted dim in a tile
_LANES = 16
_SIDE = 16  # rows of a tile, and 32-bit words of one
_ARCH_PRCTL, _ASK, _TILE_DATA = 158, 0x1023, 18  # Linux on x86-64: ARCH_REQ_XCOMP_PERM


@cache
def in_hardware() -> bool:
    """True if this CPU has the registers, and the system lets this process use them."""
    if not (has("amx-bf16") and has("amx-tile") and has("avx512f")):
        return False
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    # Given to the process, its threads and its forks. Refused where a signal stack is too small.
    answer: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK, _TILE_DATA)
    return answer == 0


def _code(b: Any, name: str, kinds: list[Any], *values: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), kinds)
    b.call(cgutils.get_or_insert_function(b.module, kind, f"llvm.x86.{name}"), values)


def _register(k: int) -> Any:
    return ir.Constant(ir.IntType(8), k)


def _configure_code(typing: Any) -> Any:
    """Make all eight registers tiles of 16 rows of 64 bytes, and empty."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        words = [0] * 64
        words[0] = 1  # the palette; bytes of a row from 16 on, rows from 48
        for k in range(8):
            words[16 + 2 * k], words[48 + k] = 64, _SIDE
        kind = ir.ArrayType(ir.IntType(8), 64)
        place = cgutils.alloca_once_value(b, ir.Constant(kind, words))
        pointer = ir.IntType(8).as_pointer()
        _code(b, "ldtilecfg", [pointer], b.bitcast(place, pointer))
        return context.get_dummy_value()

    return types.void(), generate


def _release_code(typing: Any) -> Any:
    """Give the registers back: the system saves them no longer."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _code(b, "tilerelease", [])
        return context.get_dummy_value()

    return types.void(), generate


def _tiles_code(
    typing: Any, out: Any, step: Any, left: Any, row: Any, right: Any, count: Any, bias: Any
) -> Any:
    """``ROWS`` rows and 32 columns of the result, by addresses; steps are in bytes.

    ``count`` is of tiles along the contracted dim; ``bias`` has 32 numbers of float32.
    """

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        to, step, a, row, panel, count, added = args
        byte, long = ir.IntType(8), ir.IntType(64)
        pointer = byte.as_pointer()
        sum_of = ir.VectorType(ir.FloatType(), _LANES)
        room = cgutils.alloca_once(b, ir.ArrayType(ir.FloatType(), ROWS * 2 * _LANES))
        room.align = 64

        def at(address: Any, offset: Any) -> Any:
            return b.inttoptr(b.add(address, offset), pointer)

        for k in range(4):
            _code(b, "tilezero", [byte], _register(k))
        line = number(4 * COLUMNS)
        below = b.mul(row, number(_SIDE))
        with cgutils.for_range(b, count) as loop:
            here, there = (b.mul(loop.index, number(n)) for n in (64, 4 * COLUMNS * _SIDE))
            operands = (
                (4, at(a, here), row),
                (5, at(a, b.add(here, below)), row),
                (6, at(panel, there), line),
                (7, at(panel, b.add(there, number(64))), line),
            )
            for k, place, apart in operands:
                _code(b, "tileloadd64", [byte, pointer, long], _register(k), place, apart)
            for k in range(4):
                registers = [_register(r) for r in (k, 4 + k // 2, 6 + k % 2)]
                _code(b, "tdpbf16ps", [byte] * 3, *registers)
        sums = b.ptrtoint(room, long)
        for k in range(4):
            first = at(sums, number(k // 2 * _SIDE * 128 + k % 2 * 64))
            _code(b, "tilestored64", [byte, pointer, long], _register(k), first, number(128))
        biases = [load(b, sum_of, added, number(64 * c), 4) for c in range(2)]
        with cgutils.for_range(b, number(ROWS)) as loop:
            source, target = b.mul(loop.index, number(128)), b.mul(loop.index, step)
            for c, more in enumerate(biases):
                value = load(b, sum_of, sums, b.add(source, number(64 * c)), 64)
                value = recast(b, b.fadd(value, more), types.float32, types.int16)
                store(b, value, to, b.add(target, number(32 * c)), 2)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate


def _turn_code(typing: Any, to: Any, step: Any, source: Any) -> Any:
    """Transpose 16 x 16 words, from lines of 32 to lines that are ``step`` bytes apart."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(ir.IntType(32), _LANES)
        lines = [load(b, kind, args[2], number(128 * k), 64) for k in range(_SIDE)]
        for r, line in enumerate(transposed(b, lines)):
            store(b, line, b.add(args[0], b.mul(args[1], number(r))), number(0), 4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


def _clear_code(typing: Any, place: Any) -> Any:
    """Write zeros to a line of 32 words."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 32), [0] * 32)
        store(b, zeros, args[0], number(0), 64)
        return context.get_dummy_value()

    return types.void(types.int64), generate


_configure: Any = spelled(_configure_code)
_release: Any = spelled(_release_code)
_tiles: Any = spelled(_tiles_code)
_turn: Any = spelled(_turn_code)
_clear: Any = spelled(_clear_code)


@part
def _lay_out(packed: Any, left: Any, room: int, b: int, first: int, size: int) -> None:
    # Rows ``first`` to ``first + size`` as rows without gaps, zeros behind: (rows, pairs) of words.
    # ``room`` is the address of 16 x 32 words.
    count, width = left.shape[2] // 2, packed.shape[2]
    row, column = left.strides[1], left.strides[2]
    source = left.ctypes.data + b * left.strides[0] + first * row
    if column == 2:
        for i in range(size):
            for k in range(count):
                here = source + i * row + 4 * k
                pair(packed.ctypes.data + 4 * (i * width + k), here, here + 2)
            for k in range(count, width):
                packed[0, i, k] = 0
        return
    # Neighbors of 32 rows are brought together, 16 pairs at a time, then turned.
    for top in range(0, count, 16):
        pairs = min(16, count - top)
        for k in range(pairs, 16):
            _clear(room + 128 * k)
        for start in range(0, size, 32):
            i = min(start, size - 32)
            bring(room, source + 2 * top * column + i * row, column, pairs, 32)
            for c in range(0, 32, 16):
                _turn(packed.ctypes.data + 4 * ((i + c) * width + top), 4 * width, room + 4 * c)


@cache
def products() -> Any:
    """``products(out, left, right, words, bias, packed, panel, chunks, start, stop)``.

    Units as in ``bfloat16_matmul.py``. Args of it, all but ``words``, ``packed`` and ``panel`` with
    bfloat16 in int16:
        out: (B, M, N), with M at least ``ROWS``, N at least ``COLUMNS``, the last dim without gaps.
        left: (B, M, K), K even and at least ``INNER``, one of the last two dims without gaps.
        right: (B, K, N), likewise.
        words: Where that dim is K: ``right`` as (B, K // 2, N) of uint32, else an empty one.
        bias: (N,), (1,) or (0,).
        packed: Rooms for ``ROWS`` or more rows of ``left``: (chunks, rows, P) of uint32, where P is
            K // 2 rounded up to a multiple of 16.
        panel: Rooms for a panel of ``right``, on a cache line: (chunks, P, COLUMNS) of uint32.
        chunks: Into how many ranges all units are cut.
    """
    stacks, line = "i2:3A,i2:3Ar,i2:3Ar,u4:3Ar", "i2:1Cr"
    return compiled(_products, signature=f"{stacks},{line},u4:3C,u4:3C,i8,i8,i8")


def _products(
    out: Any, left: Any, right: Any, words: Any, bias: Any, packed: Any, panel: Any, chunks: int,
    start: int, stop: int,
) -> None:  # fmt: skip
    if start == stop:
        return
    rows, columns = out.shape[1], out.shape[2]
    room, first_matrix, last_matrix, first_column, last_column = units_of(out, chunks, start, stop)
    packed, panel = packed[room : room + 1], panel[room : room + 1]
    pairs, tiles = left.shape[2] // 2, panel.shape[1] // 16
    laid = left.strides[2] != 2 or tiles * 16 != pairs
    most = packed.shape[1] if laid else rows
    added = np.empty(64, np.float32)
    for k in range(pairs, 16 * tiles):
        for c in range(64):
            panel[0, k, c] = 0
    _configure()
    for b in range(first_matrix, last_matrix):
        for row_tile in range(0, rows, most):
            first = max(0, min(row_tile, rows - 32))  # some rows again rather than too few
            size = min(first + most, rows) - first
            source = left.ctypes.data + b * left.strides[0] + first * left.strides[1]
            row = left.strides[1]
            if laid:
                _lay_out(packed, left, panel.ctypes.data, b, first, size)
                source, row = packed.ctypes.data, 4 * panel.shape[1]
            for k in range(first_column, last_column, 64):
                j = min(k, columns - 64)  # likewise
                gather(panel, right, words, b, j, pairs)
                widen(added, bias, j)
                to = out.ctypes.data + b * out.strides[0] + first * out.strides[1] + 2 * j
                for i in range(0, size, 32):
                    top = min(i, size - 32)
                    for c in range(0, 64, 32):
                        _tiles(
                            to + top * out.strides[1] + 2 * c,
                            out.strides[1],
                            source + top * row,
                            row,
                            panel.ctypes.data + 4 * c,
                            tiles,
                            added.ctypes.data + 4 * c,
                        )
    _release()
