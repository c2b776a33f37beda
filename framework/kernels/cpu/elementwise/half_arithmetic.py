"""Compiled sums, differences, products and quotients where an operand is a float16 or a bfloat16.

One pass: widen, compute in float32, round once. Types as in ``copy.py``: int16 stands for
bfloat16, uint16 for float16. A result may be float32, if an operand is. Vectors are written out,
because a compiler makes none where the result is an operand too, in place.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..support.jit import compiled, deferred, spelled
from .copy import LANES, Place, array, converted, recast, splat, widened

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")
cgutils = deferred("numba.core.cgutils")
ADD, SUB, MUL, DIV = range(4)
_INSTRUCTIONS = ("fadd", "fsub", "fmul", "fdiv")


@cache
def combiner(out: Any, a: Any, b: Any) -> Any:
    """``combine(out, a, b, kind)`` for three NumPy dtypes: arrays of one shape of three dims.

    ``kind`` is ``ADD`` or another of these. The last dim of ``out`` has no gaps; that of ``a`` and
    ``b`` has none either, or repeats one element.
    """
    signature = f"{array(out, 3)},{array(a, 3)}r,{array(b, 3)}r,i8"
    return compiled(_combine, signature=signature)


def _computed(b: Any, kind: Any, x: Any, y: Any) -> Any:
    slot = cgutils.alloca_once(b, x.type)
    for number, name in enumerate(_INSTRUCTIONS):
        with b.if_then(b.icmp_signed("==", kind, ir.Constant(kind.type, number))):
            b.store(getattr(b, name)(x, y), slot)
    return b.load(slot)


def _vector_code(typing: Any, out: Any, a: Any, b: Any, kind: Any, p: Any, j: Any, k: Any) -> Any:
    """``LANES`` neighbors at (p, j, k). An operand is an array, or a float32 for all of them."""

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        at = args[4:]
        operands = []
        for t, value in ((a, args[1]), (b, args[2])):
            if isinstance(t, types.Array):
                place = Place(context, build, t, value, at)
                value = recast(build, place.load(place.row, 0, LANES), t.dtype, types.float32)
            else:
                value = splat(build, value)
            operands.append(value)
        made = recast(build, _computed(build, args[3], *operands), types.float32, out.dtype)
        place = Place(context, build, out, args[0], at)
        place.store(made, place.row, 0)
        return context.get_dummy_value()

    return types.void(out, a, b, kind, p, j, k), generate


def _scalar_code(typing: Any, x: Any, y: Any, kind: Any) -> Any:
    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        return _computed(build, args[2], args[0], args[1])

    return x(x, y, kind), generate


_vector: Any = spelled(_vector_code)
_scalar: Any = spelled(_scalar_code)


def _combine(out: Any, a: Any, b: Any, kind: int) -> None:
    planes, rows, columns = out.shape
    whole = columns - columns % 16
    for p in range(planes):
        for j in range(rows):
            if a.strides[2] == 0:
                x = widened(a[p, j, 0])
                for k in range(0, whole, 16):
                    _vector(out, x, b, kind, p, j, k)
            elif b.strides[2] == 0:
                y = widened(b[p, j, 0])
                for k in range(0, whole, 16):
                    _vector(out, a, y, kind, p, j, k)
            else:
                for k in range(0, whole, 16):
                    _vector(out, a, b, kind, p, j, k)
            for k in range(whole, columns):
                x, y = widened(a[p, j, k]), widened(b[p, j, k])
                out[p, j, k] = converted(out, _scalar(x, y, kind))
