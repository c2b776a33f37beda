"""NumPy's own inner loops, called from compiled code: the same numbers, by several threads.

A ufunc has one loop in C for each combination of dtypes: it takes addresses, a count and steps, and
needs no interpreter for numbers. NumPy finds the loop, checks the arrays and calls it, in one
thread. What is here finds the same loop by the ufunc's public C structure and calls it on parts of
the arrays from threads of the compiled pool, which no lock of the interpreter holds up.

Source:
    ``PyUFuncObject`` and ``PyUFuncGenericFunction`` of the NumPy C API.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from ..compiler import entry
from ..support.jit import compiled, deferred, spelled

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")
cgutils = deferred("numba.core.cgutils")
_TRIAL = 67  # elements of the call that shows whether a loop is what it is taken for


@spelled
def _call_loop(typing: Any, function: Any, data: Any, n: Any, at: Any, steps: Any) -> Any:
    """Call ``function(addresses, &n, steps, data)``, a ufunc's loop."""

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        alloca, pack, unpack = cgutils.alloca_once, cgutils.pack_array, cgutils.unpack_tuple
        words = [pack(b, unpack(b, args[k])) for k in (3, 4)]
        places = [alloca(b, v.type) for v in (words[0], args[2], words[1])]
        for value, place in zip((words[0], args[2], words[1]), places, strict=True):
            b.store(value, place)
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word] * 4)
        given = [b.ptrtoint(p, word) for p in places]
        b.call(b.inttoptr(args[0], kind.as_pointer()), [*given, args[1]])
        return context.get_dummy_value()

    return types.void(function, data, n, at, steps), write


@compiled(signature="i8,i8,i8x3,i8x3,i8x3,i8x3,i8,i8,i8,i8,i8")
def walk(
    function: int, data: int, at: Any, blocks: Any, outer: Any, inner: Any, n: int, rows: int,
    total: int, start: int, stop: int,
) -> None:  # fmt: skip
    """Call a loop for rows ``start`` to ``stop``.

    Args:
        function: Address of the loop.
        data: What it is given.
        at: Addresses of the operands, the results last; three, of which it may need two.
        blocks: Bytes from one block of rows to the next of each.
        outer: Bytes from row to row.
        inner: Bytes from element to element.
        n: Elements of a row.
        rows: Rows of a block.
        total: Elements of all rows: the last one may be shorter.
        start: The first row.
        stop: Behind the last.
    """
    block, row = start // rows, start % rows
    for k in range(start, stop):
        here = (
            at[0] + block * blocks[0] + row * outer[0],
            at[1] + block * blocks[1] + row * outer[1],
            at[2] + block * blocks[2] + row * outer[2],
        )
        _call_loop(function, data, min(n, total - k * n), here, inner)
        row += 1
        if row == rows:
            block, row = block + 1, 0


class _UFunc(ctypes.Structure):
    _fields_ = (
        ("references", ctypes.c_ssize_t),
        ("type", ctypes.c_void_p),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
    )


def address(array: Any) -> int:
    """Return where the first element of an array lies: a tenth of the time of ``ctypes.data``."""
    return int(ctypes.c_int64.from_address(id(array) + entry.DATA).value)


@cache
def loop_of(ufunc: Any, dtype: Any, count: int, out: Any) -> tuple[int, int] | None:
    """Return the address of a ufunc's loop for operands of some dtypes, and its data.

    Args:
        ufunc: Of one or two inputs and one output.
        dtype: Of the inputs.
        count: How many inputs there are.
        out: The dtype of the result.

    Returns:
        None if it has no such loop, or if the loop does not compute what NumPy does: then its
        structure is another one than is known here.
    """
    if count != ufunc.nin or count > 2:
        return None
    found = pointers(ufunc, f"{dtype.char * count}->{out.char}")
    dtypes = (*[dtype] * count, out)
    return found if found is not None and _is_right(ufunc, dtypes, found) else None


def pointers(ufunc: Any, word: str) -> tuple[int, int] | None:
    """Return the address of a ufunc's loop and its data, unchecked.

    Args:
        ufunc: Of one output.
        word: Its dtypes, as in ``ufunc.types``.

    Returns:
        None if it has no such loop, or is built in another way than is known here.
    """
    if ufunc.nout != 1 or word not in ufunc.types:
        return None
    known = _UFunc.from_address(id(ufunc))
    if (known.type, known.nin, known.nout, known.nargs, known.ntypes) != (
        id(np.ufunc), ufunc.nin, 1, ufunc.nargs, ufunc.ntypes
    ):  # fmt: skip
        return None
    k = ufunc.types.index(word)
    found = known.functions[k] or 0, known.data[k] or 0 if known.data else 0
    return found if found[0] else None


def _is_right(ufunc: Any, dtypes: tuple[Any, ...], loop: tuple[int, int]) -> bool:
    arrays = [(np.arange(_TRIAL) % 11 + k + 1).astype(d) for k, d in enumerate(dtypes)]
    with np.errstate(all="ignore"):
        expected = ufunc(*arrays[:-1])
    at = tuple(address(a) for a in (*arrays, arrays[-1])[:3])
    steps = tuple(a.itemsize for a in (*arrays, arrays[-1])[:3])
    walk(*loop, at, (0, 0, 0), (0, 0, 0), steps, _TRIAL, 1, _TRIAL, 0, 1)
    return bool(expected.dtype == dtypes[-1] and expected.tobytes() == arrays[-1].tobytes())
