"""BLAS's matrix product as a job of the pool in compiled code: one call of BLAS for each chunk.

A job is a product of matrices, or of stacks of them whose matrices lie evenly. It is cut into
ranges of the stack, of rows and of columns; each chunk is a range of each. The bias is added to a
chunk while that is in its core's cache.
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types

from ...runtime import blas
from ..support.atomics import WORD, load
from ..support.jit import compiled
from ..support.microkernel import spelled
from ..support.work_pool import available, run

_array: Any = numba.carray  # type: ignore[attr-defined]
UNIT = 16  # rows or columns that are not divided: a chunk's edges fall where BLAS's tiles do
NAMES = {"f": "scipy_cblas_sgemm64_", "d": "scipy_cblas_dgemm64_"}
_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112

# A job's words, in this order: BLAS's function; the shape of the product and its stack; of each
# array its address, whether it is transposed, elements between rows (columns of a transposed one),
# bytes between matrices; the bias, and elements between its numbers; how often each range is cut.
(
    _BLAS, _M, _N, _K, _STACK, _A, _TA, _LDA, _STEP_A, _B, _TB, _LDB, _STEP_B, _OUT, _LDO,
    _STEP_OUT, _BIAS, _EACH, _STACKS, _ROWS, _COLUMNS,
) = range(0, 8 * 21, 8)  # fmt: skip


@spelled
def _gemm(typing: Any, function: Any, ints: Any, one: Any, zero: Any) -> Any:
    """Call BLAS: (transposed a, b, m, n, k, a, lda, b, ldb, out, ldo)."""

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        number, enum = args[2].type, ir.IntType(32)
        words = [b.extract_value(args[1], i) for i in range(11)]
        kinds = [enum, enum, enum, *[WORD] * 3, number, *[WORD] * 4, number, WORD, WORD]
        kind = ir.FunctionType(ir.VoidType(), kinds)
        order = ir.Constant(enum, _ROW_MAJOR)
        ta, tb = (b.trunc(w, enum) for w in words[:2])
        b.call(
            b.inttoptr(args[0], kind.as_pointer()),
            [order, ta, tb, *words[2:5], args[2], *words[5:9], args[3], *words[9:]],
        )
        return context.get_dummy_value()

    return types.void(function, ints, one, zero), write


@spelled
def _pointer(typing: Any, address: Any, like: Any) -> Any:
    """Return a pointer to numbers of the type of ``like``."""

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.inttoptr(args[0], args[1].type.as_pointer())

    pointer: Any = types.CPointer
    return pointer(like)(address, like), write


@compiled
def _range(n: Any, parts: Any, k: Any, unit: Any) -> Any:
    units = (n + unit - 1) // unit
    return min(n, units * k // parts * unit), min(n, units * (k + 1) // parts * unit)


@compiled
def _product(job: Any, chunk: Any, one: Any, zero: Any, size: Any) -> Any:
    rows, columns = load(job + _ROWS), load(job + _COLUMNS)
    s0, s1 = _range(load(job + _STACK), load(job + _STACKS), chunk // (rows * columns), 1)
    r0, r1 = _range(load(job + _M), rows, chunk // columns % rows, UNIT)
    c0, c1 = _range(load(job + _N), columns, chunk % columns, UNIT)
    ta, lda, tb, ldb = load(job + _TA), load(job + _LDA), load(job + _TB), load(job + _LDB)
    ldo, bias, each = load(job + _LDO), load(job + _BIAS), load(job + _EACH)
    a = load(job + _A) + size * (r0 * lda if ta == _PLAIN else r0)
    b = load(job + _B) + size * (c0 if tb == _PLAIN else c0 * ldb)
    out = load(job + _OUT) + size * (r0 * ldo + c0)
    for s in range(s0, s1):
        x, y = a + s * load(job + _STEP_A), b + s * load(job + _STEP_B)
        z = out + s * load(job + _STEP_OUT)
        sizes = (ta, tb, r1 - r0, c1 - c0, load(job + _K), x, lda, y, ldb, z, ldo)
        _gemm(load(job + _BLAS), sizes, one, zero)
        if bias:
            added = _array(_pointer(bias + size * c0 * each, one), ((c1 - c0) * each + 1 - each,))
            for r in range(r1 - r0):
                line = _array(_pointer(z + size * r * ldo, one), (c1 - c0,))
                if each:
                    for c in range(c1 - c0):
                        line[c] += added[c]
                else:
                    for c in range(c1 - c0):
                        line[c] += added[0]


def _sgemm(job: Any, chunk: Any) -> Any:
    _product(job, chunk, np.float32(1), np.float32(0), 4)
    return 0


def _dgemm(job: Any, chunk: Any) -> Any:
    _product(job, chunk, np.float64(1), np.float64(0), 8)
    return 0


_CHUNKS = {"f": _sgemm, "d": _dgemm}


@cache
def _functions(kind: str) -> tuple[int, int, Any]:
    # Addresses of BLAS's function and of the chunk's, and what keeps the latter; else zeros.
    found = blas.symbol(NAMES[kind]) if available() and kind in NAMES else 0
    if not found:
        return 0, 0, None
    make: Any = numba.cfunc(types.int64(types.int64, types.int64), cache=True, error_model="numpy")
    chunk = make(_CHUNKS[kind])
    return found, int(chunk.address), chunk


def supports(kind: str) -> bool:
    """Whether products of a dtype, by its character, can be jobs here."""
    return _functions(kind)[0] != 0


def multiply(a: Any, b: Any, out: Any, bias: Any, cuts: tuple[int, int, int], workers: int) -> None:
    """Compute ``out = a @ b + bias`` by several threads.

    Args:
        a: (M, K) or (S, M, K), rows or columns without gaps.
        b: (K, N) or (S, K, N), likewise.
        out: (M, N) or (S, M, N), rows without gaps.
        bias: (N,) or (1,), or None.
        cuts: Into how many ranges the stack, the rows and the columns are cut.
        workers: Threads at most.
    """
    function, chunk, _ = _functions(out.dtype.char)
    size = out.itemsize
    m, n = out.shape[-2:]
    stack = out.shape[0] if out.ndim == 3 else 1
    added = (0, 0) if bias is None else (_address(bias), int(bias.size > 1 or n == 1))
    job = array(
        "q",
        [
            function, m, n, a.shape[-1], stack, *_operand(a, size), *_operand(b, size),
            _address(out), out.strides[-2] // size if m > 1 else n, _step(out), *added, *cuts,
        ],
    )  # fmt: skip
    run(chunk, job.buffer_info()[0], cuts[0] * cuts[1] * cuts[2], workers)


def _operand(x: Any, size: int) -> tuple[int, int, int, int]:
    row, column = x.strides[-2] // size, x.strides[-1] // size
    m, n = x.shape[-2:]
    if column == 1 and (row >= n or m == 1):
        return _address(x), _PLAIN, max(row, n) if m > 1 else n, _step(x)
    return _address(x), _TRANSPOSED, max(column, m) if n > 1 else m, _step(x)


def _step(x: Any) -> int:
    return int(x.strides[0]) if x.ndim == 3 and x.shape[0] > 1 else 0


def _address(x: Any) -> int:
    return int(x.__array_interface__["data"][0])
