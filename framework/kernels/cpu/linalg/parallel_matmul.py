"""Matrix products on our own threads, each call of BLAS on one.

A product is cut along a dimension of the stack, or along rows and columns of the result, never
along the dimension that is summed over. A chunk's numbers are those of the whole product, bit for
bit (``tests/kernels/test_parallel_matmul.py``), so it does not matter into how many chunks it is
cut, nor who computes them. A large product has more chunks than threads: a thread that the system
does not schedule leaves its share to the others.

Each chunk packs its operands anew, which costs its share of ``1 / rows + 1 / columns``; so chunks
are as square as they can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ...runtime import blas, threads, thresholds

# From so many multiplications OpenBLAS starts threads of its own: for two matrices, for a vector.
BLAS_MATRIX = 1 << 18
BLAS_VECTOR = 1 << 13
UNIT = 16  # rows or columns that are not divided: a chunk's edges fall where BLAS's tiles do
FINE = 1 << 27  # operations from which there are two chunks for each thread


def divides(shape: Sequence[int], inner: int) -> bool:
    """True if BLAS would cut a product among threads of its own, or it is worth ours.

    Args:
        shape: Of the result, without dims that its operands do not have.
        inner: The size that is summed over.
    """
    if len(shape) < 2 or min(shape[-2:]) == 1:
        return prod(shape) * inner >= BLAS_VECTOR
    one = prod(shape[-2:]) * inner
    return one >= BLAS_MATRIX or prod(shape) * inner >= thresholds.PRODUCT_THREAD


def matmul_into(xp: Any, a: Any, b: Any, out: Any) -> Any:
    """Compute ``out = a @ b`` and return it, for kernels of any array module."""
    if xp is np and divides(out.shape, a.shape[-1]):
        multiply(a, b, out)
    else:
        xp.matmul(a, b, out=out)
    return out


def multiply(a: Any, b: Any, out: Any, bias: Any = None) -> None:
    """Compute ``out = a @ b + bias``, cut into chunks if that is worth it.

    Args:
        a: (*, M, K) or (K,).
        b: (*, K, N) or (K,).
        out: (*, M, N), without the dimensions of vectors.
        bias: (N,) or (1,), or None.
    """
    blas.alone(_multiply, a, b, out, bias)


def _multiply(a: Any, b: Any, out: Any, bias: Any) -> None:
    work = 2 * out.size * a.shape[-1]
    several = threads.workers(work, work, thresholds.PRODUCT_THREAD)
    if several <= 1 or a.ndim == 1 or b.ndim == 1 or not blas.controllable():
        return _chunk(a, b, out, bias)
    chunks = several * (1 + (work >= several * FINE))
    axis = max(range(out.ndim - 2), key=out.shape.__getitem__, default=None)
    if axis is not None and out.shape[axis] >= chunks:
        back = axis - out.ndim
        edges = threads.bounds(out.shape[axis], chunks)
        calls = [
            (_cut(a, back, s), _cut(b, back, s), _cut(out, back, s), bias)
            for s in (slice(*edge) for edge in edges)
        ]
    else:
        rows, columns = _grid(out.shape[-2], out.shape[-1], chunks)
        calls = [
            (a[..., r, :], b[..., c], out[..., r, c], bias if one else bias[c])
            for one in (bias is None or bias.size == 1,)
            for r in _slices(out.shape[-2], rows)
            for c in _slices(out.shape[-1], columns)
        ]
    threads.parallel_calls(_chunk, calls, several)
    return None


def _chunk(a: Any, b: Any, out: Any, bias: Any) -> None:
    np.matmul(a, b, out=out)
    if bias is not None:  # while the chunk is in this core's cache
        np.add(out, bias, out=out)


def _cut(array: Any, axis: int, part: slice) -> Any:
    # Along a dim counted from the end; a stack that broadcasts there is taken whole.
    before = array.ndim + axis
    if before < 0 or array.shape[axis] == 1:
        return array
    return array[(*(slice(None),) * before, part)]


def _grid(rows: int, columns: int, chunks: int) -> tuple[int, int]:
    # Into how many parts rows and columns are cut, so that least is packed twice.
    ways = [(p, chunks // p) for p in range(1, chunks + 1) if chunks % p == 0]
    fitting = [w for w in ways if _fits(rows, w[0]) and _fits(columns, w[1])]
    if not fitting:
        ways = [(min(chunks, -(-rows // UNIT)), 1), (1, min(chunks, -(-columns // UNIT)))]
        return ways[rows <= columns]
    return min(fitting, key=lambda w: w[0] * columns + w[1] * rows)


def _fits(size: int, parts: int) -> bool:
    return parts == 1 or size // parts >= UNIT


def _slices(size: int, parts: int) -> list[slice]:
    units = -(-size // UNIT)
    edges = [min(size, UNIT * (units * k // parts)) for k in range(parts + 1)]
    return [slice(*edge) for edge in pairwise(edges)]
