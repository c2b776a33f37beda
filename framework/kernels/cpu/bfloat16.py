"""Compiled products of bfloat16 matrices, for CPUs with an instruction for that (AVX512-BF16).

One instruction multiplies 16 pairs of neighbors along the contracted dim with one pair, and adds
both products to 16 float32 sums. It goes through twice as many numbers as its float32 sister. So
the contracted dim is taken two at a time: where its neighbors do not lie side by side they are
brought together first (``pairs``), and the right matrix always is, a panel of ``COLUMNS`` columns
at a time.

A block of ``ROWS`` rows of a panel is summed in registers over the whole contracted dim, and
rounded once; no sum is ever stored. Sums do not depend on how the work is shared out. The
instruction takes subnormal numbers as zeros, and rounds the sum of two products once.

Not optimal: the left matrix is read once for each panel, and a contracted dim of tens of thousands
makes a panel larger than a core's cache.

Source:
    Intel's Intrinsics Guide, ``VDPBF16PS``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

from .compiler import compiled
from .moves import recast

cgutils: Any = _cgutils
ROWS, COLUMNS = 6, 64
_LANES = 16

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_SUMS = ir.VectorType(ir.FloatType(), _LANES)


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no class for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_PAIRS = ir.VectorType(_BFloat(), 2 * _LANES)


@cache
def in_hardware() -> bool:
    """True if this CPU multiplies bfloat16."""
    return bool(binding.get_host_cpu_features().get("avx512bf16"))


def _data(context: Any, b: Any, kind: Any, array: Any) -> Any:
    return b.bitcast(context.make_array(kind)(context, b, array).data, _I8.as_pointer())


def _load(b: Any, kind: Any, first: Any, offset: Any, align: int) -> Any:
    value = b.load(b.bitcast(b.gep(first, [offset]), kind.as_pointer()))
    value.align = align
    return value


def _store(b: Any, value: Any, first: Any, offset: Any, align: int) -> None:
    b.store(value, b.bitcast(b.gep(first, [offset]), value.type.as_pointer())).align = align


def _number(v: int) -> Any:
    return ir.Constant(_I64, v)


def _block_code(
    typing: Any, out: Any, start: Any, step: Any, left: Any, row: Any, pair: Any, right: Any,
    count: Any, bias: Any,
) -> Any:  # fmt: skip
    """Rows ``start:start + ROWS`` of a panel of ``out``; steps are in bytes."""
    across = COLUMNS // _LANES

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _, start, step, _, row, pair, _, count, _ = args
        to, a, panel, added = (_data(context, b, signature.args[k], args[k]) for k in (0, 3, 6, 8))
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        kind = ir.FunctionType(_SUMS, [_SUMS, _PAIRS, _PAIRS])
        multiply = cgutils.get_or_insert_function(b.module, kind, name)
        zero = ir.Constant(_SUMS, [0.0] * _LANES)
        sums = [[cgutils.alloca_once_value(b, zero) for _ in range(across)] for _ in range(ROWS)]
        for line in sums:
            for s in line:
                b.store(zero, s)
        rows = [b.gep(a, [b.mul(row, b.add(start, _number(r)))]) for r in range(ROWS)]
        zeros = ir.Constant(ir.VectorType(_I32, _LANES), [0] * _LANES)
        empty = ir.Constant(ir.VectorType(_I32, _LANES), ir.Undefined)
        with cgutils.for_range(b, count) as loop:
            at = b.mul(loop.index, _number(4 * COLUMNS))
            others = [
                _load(b, _PAIRS, panel, b.add(at, _number(4 * _LANES * c)), 64)
                for c in range(across)
            ]
            here = b.mul(loop.index, pair)
            for first, line in zip(rows, sums, strict=True):
                one = _load(b, _I32, first, here, 2)
                one = b.shuffle_vector(
                    b.insert_element(empty, one, ir.Constant(_I32, 0)), empty, zeros
                )
                one = b.bitcast(one, _PAIRS)
                for s, other in zip(line, others, strict=True):
                    b.store(b.call(multiply, [b.load(s), one, other]), s)
        for r, line in enumerate(sums):
            first = b.gep(to, [b.mul(step, b.add(start, _number(r)))])
            for c, s in enumerate(line):
                value = b.fadd(b.load(s), _load(b, _SUMS, added, _number(4 * _LANES * c), 4))
                value = recast(b, value, types.float32, types.int16)
                _store(b, value, first, _number(2 * _LANES * c), 2)
        return context.get_dummy_value()

    index = types.int64
    return types.void(out, index, index, left, index, index, right, index, bias), generate


def _zip_code(typing: Any, out: Any, at: Any, x: Any, first: Any, second: Any) -> Any:
    """Interleave two runs of 32 elements that lie ``first`` and ``second`` bytes into ``x``."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        to, source = (_data(context, b, signature.args[k], args[k]) for k in (0, 2))
        kind = ir.VectorType(_I16, 32)
        one, two = (_load(b, kind, source, k, 2) for k in args[3:])
        for half in (0, 1):
            order = [k // 2 + 16 * half + 32 * (k % 2) for k in range(32)]
            mask = ir.Constant(ir.VectorType(_I32, 32), order)
            place = b.add(args[1], _number(64 * half))
            _store(b, b.shuffle_vector(one, two, mask), to, place, 2)
        return context.get_dummy_value()

    return types.void(out, types.int64, x, types.int64, types.int64), generate


_block: Any = intrinsic(_block_code)
_zip: Any = intrinsic(_zip_code)

_halves = types.Array(types.int16, 2, "A")
_source = types.Array(types.int16, 2, "A", readonly=True)
_pairs = types.Array(types.int16, 3, "C")
_floats = types.Array(types.float32, 1, "C")


@cache
def pairs() -> Any:
    """``pairs(out, x)``: bring the rows 2k and 2k + 1 of x together, element by element.

    ``x`` is (K, N) with neighbors in the last dim, ``out`` (K // 2, N, 2).
    """
    return compiled(_bring, signature=types.void(_pairs, _source))


@cache
def panel() -> Any:
    """``panel(out, left, row, pair, right, bias)``: a product with ``COLUMNS`` columns.

    ``left`` is where the left matrix starts; its next row is ``row`` bytes away, its next pair in
    the contracted dim ``pair`` bytes. ``right`` is (K // 2, COLUMNS, 2), aligned to a cache line.
    ``bias`` has an element for each column.
    """
    index = types.int64
    return compiled(
        _multiply, signature=types.void(_halves, _source, index, index, _pairs, _floats)
    )


def _bring(out: Any, x: Any) -> None:  # pragma: no cover - compiled
    count, columns = out.shape[0], out.shape[1]
    whole = columns - columns % 32
    step = x.strides[0]
    for k in range(count):
        for j in range(0, whole, 32):
            first = 2 * k * step + 2 * j
            _zip(out, 4 * (k * columns + j), x, first, first + step)
        for j in range(whole, columns):
            out[k, j, 0] = x[2 * k, j]
            out[k, j, 1] = x[2 * k + 1, j]


def _multiply(
    out: Any, left: Any, row: Any, pair: Any, right: Any, bias: Any
) -> None:  # pragma: no cover - compiled
    rows, count = out.shape[0], right.shape[0]
    step = out.strides[0]
    for i in range(0, rows, 6):
        start = min(i, rows - 6)  # the last block does some rows again
        _block(out, start, step, left, row, pair, right, count, bias)
