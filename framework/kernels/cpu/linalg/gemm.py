"""BLAS's matrix product as a job of the pool in compiled code: one call of BLAS for each chunk.

A job is a product of matrices, or of stacks of them whose matrices lie evenly. It is cut into
ranges of the stack, of rows and of columns; each chunk is a range of each. The bias is added to a
chunk while that is in its core's cache.
"""

from __future__ import annotations

from array import array
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np

from ...runtime import blas
from ..support.atomics import load
from ..support.jit import compiled, deferred, spelled
from ..support.work_pool import available, run

ir, types = deferred("llvmlite.ir"), deferred("numba.core.types")
_array = deferred("numba", "carray")
UNIT = 16  # rows or columns that are not divided: a chunk's edges fall where BLAS's tiles do
_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112

# A job's words, in this order: BLAS's function; the shape of the product and its stack; of each
# array its address, whether it is transposed, elements between rows (columns of a transposed one),
# bytes between matrices; the bias, and elements between its numbers; how often each range is cut.
(
    _BLAS, _M, _N, _K, _STACK, _A, _TA, _LDA, _STEP_A, _B, _TB, _LDB, _STEP_B, _OUT, _LDO,
    _STEP_OUT, _BIAS, _EACH, _STACKS, _ROWS, _COLUMNS,
) = range(0, 8 * 21, 8)  # fmt: skip


@spelled
def call_gemm(typing: Any, function: Any, ints: Any, one: Any, zero: Any) -> Any:
    """Call BLAS: (transposed a, b, m, n, k, a, lda, b, ldb, out, ldo)."""

    def write(context: Any, b: Any, signature: Any, args: Any) -> Any:
        number, enum = args[2].type, ir.IntType(32)
        words = [b.extract_value(args[1], i) for i in range(11)]
        word = ir.IntType(64)
        kinds = [enum, enum, enum, *[word] * 3, number, *[word] * 4, number, word, word]
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
        call_gemm(load(job + _BLAS), sizes, one, zero)
        if bias:
            added = _array(_pointer(bias + size * c0 * each, one), ((c1 - c0) * each + 1 - each,))
            for r in range(r1 - r0):
                line = _array(_pointer(z + size * r * ldo, one), (c1 - c0,))
                if each == 1:
                    for c in range(c1 - c0):
                        line[c] += added[c]
                else:
                    for c in range(c1 - c0):
                        line[c] += added[c * each]


@compiled(signature="i8,i8")
def _sgemm(job: Any, chunk: Any) -> Any:
    _product(job, chunk, np.float32(1), np.float32(0), 4)
    return 0


@compiled(signature="i8,i8")
def _dgemm(job: Any, chunk: Any) -> Any:
    _product(job, chunk, np.float64(1), np.float64(0), 8)
    return 0


_CHUNKS = {"f": _sgemm, "d": _dgemm}


@cache
def _function(kind: str) -> int:
    return blas.gemm(kind)


@lru_cache(maxsize=4096)
def plan(
    kind: str,
    workers: int,
    cuts: tuple[int, int, int],
    bias: tuple[int, int] | None,
    shape: tuple[int, ...],
    *operands: tuple[tuple[int, ...], tuple[int, ...]],
) -> tuple[Any, Any, int] | None:
    """Prepare the job of products of one shape, whose addresses are still to be filled in.

    Args:
        kind: The dtype's character.
        workers: Threads at most.
        cuts: Into how many ranges the stack, the rows and the columns are cut.
        bias: Its elements and its stride in bytes; None without one.
        shape: Of the result: (M, N) or (S, M, N).
        *operands: Shape and strides of ``a``, ``b`` and the result, the strides in bytes.

    Returns:
        The job's words, the function of a chunk, the number of chunks. None if BLAS cannot
        take the operands as they lie, or has no such function, or threads cannot share the job.
    """
    if workers > 1 and not available():
        return None
    function = _function(kind)
    size = np.dtype(kind).itemsize
    lying = [_lies(*operand, size) for operand in operands]
    if not function or None in lying or lying[2][0] != _PLAIN:  # type: ignore[index]
        return None
    (ta, lda, step_a), (tb, ldb, step_b), (_, ldo, step_out) = lying  # type: ignore[misc]
    m, n = shape[-2:]
    stack = shape[0] if len(shape) == 3 else 1
    each = 0
    if bias is not None and (bias[0] > 1 or n == 1):
        each = bias[1] // size
        if bias[1] % size or bias[1] < 0:
            return None
    words = [
        function, m, n, operands[0][0][-1], stack, 0, ta, lda, step_a, 0, tb, ldb, step_b, 0, ldo,
        step_out, 0, each, *cuts,
    ]  # fmt: skip
    return array("q", words), _CHUNKS[kind], prod(cuts)


def _lies(
    shape: tuple[int, ...], strides: tuple[int, ...], size: int
) -> tuple[int, int, int] | None:
    # (transposed, elements between lines, bytes between matrices) of rows or columns without gaps.
    (m, n), (row, column) = shape[-2:], strides[-2:]
    if row % size or column % size:
        return None
    step = strides[0] if len(shape) == 3 and shape[0] > 1 else 0
    if (column == size or n == 1) and (row >= n * size or m == 1):
        return _PLAIN, row // size if m > 1 else n, step
    if (row == size or m == 1) and (column >= m * size or n == 1):
        return _TRANSPOSED, column // size if n > 1 else m, step
    return None


def multiply(
    planned: tuple[Any, Any, int], a: Any, b: Any, out: Any, bias: Any, workers: int
) -> None:
    """Compute ``out = a @ b + bias``, as planned for such arrays."""
    words, chunk, chunks = planned
    job = words[:]
    job[_A // 8], job[_B // 8], job[_OUT // 8] = _address(a), _address(b), _address(out)
    if bias is not None:
        job[_BIAS // 8] = _address(bias)
    if workers > 1:
        run(chunk.address, job.buffer_info()[0], chunks, workers)
    else:
        for k in range(chunks):
            chunk(job.buffer_info()[0], k)


def _address(x: Any) -> Any:
    return x.__array_interface__["data"][0]
