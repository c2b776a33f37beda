"""Matrix products on our own threads, each call of BLAS on one.

A product is cut along its stack, or along rows and columns of the result, never along the dimension
that is summed over. Where it is cut depends on its shape and the number of threads that may take
part: the same numbers come out, bit for bit, whichever of them do. A large product has more chunks
than threads: a thread that the system does not schedule leaves its share to the others.

Each chunk packs its operands anew, which costs its share of ``1 / rows + 1 / columns``; so chunks
are as square as they can be. Chunks of float32 and float64 are handed out in compiled code
(``kernels/cpu/linalg/gemm.py``), where a thread is woken in a microsecond; with MKL
(``kernels/runtime/mkl.py``) large products of one thread go there as well. Products with a vector,
of other dtypes, and of stacks that lie unevenly go to Python's threads, from where that pays. A
matrix times its own transpose has half as much to compute, which only NumPy's call knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ..cuda import matmul as on_gpu
from ..cuda.kernel import has_cuda
from ..runtime import blas, mkl, threads, thresholds

UNIT = 16  # rows or columns that are not divided
FINE = 1 << 28  # operations for each thread from which it has two chunks


def divides(shape: Sequence[int], inner: int) -> bool:
    """True if BLAS would cut a product among threads of its own, or it is worth ours.

    Args:
        shape: Of the result, without dims that its operands do not have.
        inner: The size that is summed over.
    """
    if len(shape) < 2 or min(shape[-2:]) == 1:
        return prod(shape) * inner >= thresholds.BLAS_VECTOR
    one = prod(shape[-2:]) * inner
    return one >= thresholds.BLAS_MATRIX or 2 * prod(shape) * inner >= thresholds.PRODUCT


def matmul_into(xp: Any, a: Any, b: Any, out: Any) -> Any:
    """Compute ``out = a @ b`` and return it, for kernels of any array module."""
    if xp is np:
        if divides(out.shape, a.shape[-1]):
            multiply(a, b, out)
        else:
            np.matmul(a, b, out=out)
    elif not (has_cuda(xp) and on_gpu.multiply(xp, a, b, out)):
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
    workers = threads.workers(work, work, thresholds.PRODUCT)
    matrices = a.ndim > 1 and b.ndim > 1 and not _symmetric(a, b)
    in_one_call = work >= thresholds.PRODUCT and (bias is not None or mkl.used())
    if matrices and (workers > 1 or in_one_call):
        cuts = _cuts(out.shape, workers * (2 if work >= workers * FINE and workers > 1 else 1))
        if _compiled(a, b, out, bias, cuts, workers):
            return
        if workers > 1 and work >= 2 * thresholds.PRODUCT_THREAD and blas.controllable():
            threads.parallel_calls(_chunk, _chunks(a, b, out, bias, cuts), workers)
            return
    _chunk(a, b, out, bias)


def _symmetric(a: Any, b: Any) -> bool:
    return (
        a.ndim == b.ndim == 2
        and a.strides == b.strides[::-1]
        and a.shape == b.shape[::-1]
        and a.__array_interface__["data"] == b.__array_interface__["data"]
    )


def _compiled(
    a: Any, b: Any, out: Any, bias: Any, cuts: tuple[int, int, int], workers: int
) -> bool:
    shape, kind = out.shape, out.dtype.char
    if kind not in "fd" or shape[-1] == 1 or shape[-2] == 1:
        return False
    if len(shape) > 3:
        a, b, out = (_as_one_stack(x, shape[:-2]) for x in (a, b, out))
        if a is None or b is None or out is None:
            return False
    from ..cpu.linalg import gemm

    lying = (a.shape, a.strides), (b.shape, b.strides), (out.shape, out.strides)
    added = None if bias is None else (bias.size, bias.strides[-1] if bias.ndim else 0)
    planned = gemm.plan(kind, workers, cuts, added, out.shape, *lying)
    if planned is None:
        return False
    gemm.multiply(planned, a, b, out, bias, workers)
    return True


def _as_one_stack(x: Any, stack: tuple[int, ...]) -> Any:
    # (*stack, M, N) as (S, M, N) or (M, N), without a copy; None if it does not lie so.
    if x.ndim == 2 or prod(x.shape[:-2]) == 1:
        return x.reshape(x.shape[-2:])
    if x.shape[:-2] != stack:
        return None
    dims = [(n, s) for n, s in zip(x.shape[:-2], x.strides[:-2], strict=True) if n > 1]
    even = all(s == t * m for (_, s), (m, t) in pairwise(dims))
    return x.reshape(-1, *x.shape[-2:]) if even else None


@lru_cache(maxsize=4096)
def _cuts(shape: Sequence[int], chunks: int) -> tuple[int, int, int]:
    # Into how many ranges stack, rows and columns are cut, so that least is packed twice.
    stack, rows, columns = prod(shape[:-2]), shape[-2], shape[-1]
    if stack >= chunks:
        return chunks, 1, 1
    ways = [(p, chunks // p) for p in range(1, chunks + 1) if chunks % p == 0]
    fitting = [w for w in ways if _fits(rows, w[0]) and _fits(columns, w[1])]
    if not fitting:
        most = [min(chunks, -(-n // UNIT)) for n in (rows, columns)]
        return (1, most[0], 1) if rows > columns else (1, 1, most[1])
    return (1, *min(fitting, key=lambda w: w[0] * columns + w[1] * rows))


def _fits(size: int, parts: int) -> bool:
    return parts == 1 or size // parts >= UNIT


def _chunks(
    a: Any, b: Any, out: Any, bias: Any, cuts: tuple[int, int, int]
) -> list[tuple[Any, ...]]:
    # The same chunks as operands of NumPy's matmul.
    if out.ndim > 2 and cuts[0] > 1:
        axis = max(range(out.ndim - 2), key=out.shape.__getitem__)
        edges = threads.bounds(out.shape[axis], min(cuts[0], out.shape[axis]))
        parts = [slice(*edge) for edge in edges]
        return [(*(_cut(x, axis - out.ndim, s) for x in (a, b, out)), bias) for s in parts]
    whole = bias is None or bias.size == 1
    return [
        (a[..., r, :], b[..., c], out[..., r, c], bias if whole else bias[c])
        for r in _slices(out.shape[-2], cuts[1])
        for c in _slices(out.shape[-1], cuts[2])
    ]


def _cut(array: Any, axis: int, part: slice) -> Any:
    # Along a dim counted from the end; a stack that broadcasts there is taken whole.
    before = array.ndim + axis
    if before < 0 or array.shape[axis] == 1:
        return array
    return array[(*(slice(None),) * before, part)]


def _slices(size: int, parts: int) -> list[slice]:
    edges = threads.bounds(-(-size // UNIT), parts)
    return [slice(UNIT * start, min(size, UNIT * stop)) for start, stop in edges]


def _chunk(a: Any, b: Any, out: Any, bias: Any) -> None:
    np.matmul(a, b, out=out)
    if bias is not None:  # while the chunk is in this core's cache
        np.add(out, bias, out=out)
