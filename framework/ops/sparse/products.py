"""Products with a sparse matrix: with a dense one, and the values of a dense product at places.

Two ops, each the other's gradient: ``_sparse_matmul`` adds up ``values[k] * dense[column k]`` into
row ``row k``, and ``_sampled_matmul`` computes ``a[row k] @ b[column k]`` for each place. Neither
takes memory beside its result, whatever the sizes.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import int64
from ...kernels.common.layout import contiguous
from ...kernels.runtime import thresholds
from ...spec import Spec
from ..creation.from_data import tensor
from ..creation.ranges import arange
from ..elementwise.arithmetic import conjugate
from ..indexing.index_put import check_bounds
from ..indexing.nonzero import searchsorted
from ..manipulation.cat import stack
from ..manipulation.repeat import repeat_interleave
from ..registry import op
from .coo import coalesce, keys, parts, places
from .sparse_tensor import assembled

_TILE = 1 << 12  # numbers at a time on the host


def _step(xp, columns):
    # Entries at a time, of so many numbers
    most = _TILE if xp is np else thresholds.tile_elements(False)
    return max(1, most // max(1, columns))


def _entries(name, places_spec):
    if places_spec.ndim != 2 or places_spec.shape[0] != 2:
        raise RuntimeError(
            f"{name}: a sparse operand must be a matrix of two sparse dims; got "
            f"{places_spec.shape[0]}. Use .to_dense()."
        )


def _product_infer(values, places, dense, *, rows):
    _entries("matmul", places)
    return Spec((rows, dense.shape[1]), dense.dtype)


def _at(n, rows, columns):
    return tensor([[k * k % rows for k in range(n)], [k % columns for k in range(n)]])


def _product_samples(make):
    for values, dense, rows in (
        (make(3), make(2, 4), 3),
        (make(5), make(2, 1), 4),
        (make(120), make(3, 5), 3),
    ):
        yield (values, _at(values.shape[0], rows, dense.shape[0]), dense), {"rows": rows}
    yield (make(0), tensor([[], []]).to(int64), make(2, 4)), {"rows": 3}


def _wide(a, b, places):
    count = places.shape[1] * a.shape[1]
    return a.dtype.name in ("float32", "float64") and count >= thresholds.COMPILED_MOVE


@op(
    infer=_product_infer,
    promote=("same", ("values", "dense")),
    layout=contiguous,
    tensors=("values", "places", "dense"),
    samples=_product_samples,
    flops=lambda values, places, dense, **_: 2 * values.numel * dense.shape[1],
)
def _sparse_matmul(xp, out, values, places, dense, *, rows):
    """Multiply a sparse matrix (values, and their rows and columns) and a dense one."""
    check_bounds(xp, places, (rows, dense.shape[0]), (0, 1))
    out.fill(0)
    step = _step(xp, dense.shape[1])
    for start in range(0, values.shape[0], step):
        here = slice(start, start + step)
        xp.add.at(out, places[0, here], dense[places[1, here]] * values[here, None])


@_sparse_matmul.kernel(
    "cpu",
    when=lambda values, places, dense, *, rows: (
        dense.dtype.name in ("float32", "float64")
        and values.numel * dense.shape[1] >= thresholds.COMPILED_MOVE
    ),
    layout=contiguous,
)
def _(xp, out, values, places, dense, *, rows):
    from ...kernels.cpu.linalg.sparse import add_rows

    check_bounds(xp, places, (rows, dense.shape[0]), (0, 1))
    out.fill(0)
    add_rows(out, values, places[0], places[1], dense)


@_sparse_matmul.vjp("values")
def _(g, places, dense):
    return _sampled_matmul(g, conjugate(dense), places)


@_sparse_matmul.vjp("dense")
def _(g, values, places, dense_spec):
    return _sparse_matmul(conjugate(values), places.flip(0), g, rows=dense_spec.shape[0])


def _sampled_infer(a, b, places):
    _entries("sampled_matmul", places)
    return Spec((places.shape[1],), a.dtype)


def _sampled_samples(make):
    for a, b, n in ((make(3, 4), make(2, 4), 5), (make(3, 5), make(3, 5), 120)):
        yield (a, b, _at(n, a.shape[0], b.shape[0])), {}
    yield (make(3, 4), make(2, 4), tensor([[], []]).to(int64)), {}


@op(
    infer=_sampled_infer,
    promote=("same", ("a", "b")),
    layout=contiguous,
    tensors=("a", "b", "places"),
    samples=_sampled_samples,
    flops=lambda a, b, places: 2 * places.shape[1] * a.shape[1],
)
def _sampled_matmul(xp, out, a, b, places):
    """Compute ``a[row] @ b[column]`` for each place: (rows, n), (columns, n) give (nnz,)."""
    check_bounds(xp, places, (a.shape[0], b.shape[0]), (0, 1))
    step = _step(xp, a.shape[1])
    for start in range(0, out.shape[0], step):
        here = slice(start, start + step)
        both = a[places[0, here]] * b[places[1, here]]
        xp.sum(both, axis=1, out=out[here])


@_sampled_matmul.kernel("cpu", when=_wide, layout=contiguous)
def _(xp, out, a, b, places):
    from ...kernels.cpu.linalg.sparse import dot_rows

    check_bounds(xp, places, (a.shape[0], b.shape[0]), (0, 1))
    dot_rows(out, a, b, places[0], places[1])


@_sampled_matmul.vjp("a")
def _(g, b, places, a_spec):
    return _sparse_matmul(g, places, conjugate(b), rows=a_spec.shape[0])


@_sampled_matmul.vjp("b")
def _(g, a, places, b_spec):
    return _sparse_matmul(g, places.flip(0), conjugate(a), rows=b_spec.shape[0])


def times_dense(s, dense, name="matmul"):
    """Multiply a sparse matrix (M, K) and a dense matrix or vector of K rows.

    Raises:
        RuntimeError: The shapes do not fit.
    """
    found, held = parts(s, name)
    if s.ndim != 2 or held.ndim != 1 or dense.ndim not in (1, 2):
        raise RuntimeError(
            f"{name} takes a sparse matrix without dense dims, and a dense matrix or vector; got "
            f"{tuple(s.shape)} ({held.ndim - 1} of them dense) and {tuple(dense.shape)}. Use "
            ".to_dense(), or reshape the other."
        )
    if s.shape[1] != dense.shape[0]:
        raise RuntimeError(
            f"{name} contracts input.shape[1] with other.shape[0]; got input {tuple(s.shape)} "
            f"(sparse) and other {tuple(dense.shape)}. To multiply by the transpose, pass .t()."
        )
    if dense.ndim == 1:
        return _sparse_matmul(held, found, dense.unsqueeze(1), rows=s.shape[0]).squeeze(1)
    return _sparse_matmul(held, found, dense, rows=s.shape[0])


def times_sparse(a, b, name="matmul"):
    """Multiply two sparse matrices: a coalesced sparse matrix.

    Every pair of a value of ``a`` and one of the row of ``b`` that it meets is a term; terms of
    one place are added up.

    Memory:
        Some 40 bytes for each term while it runs.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or a.dense_dim() or b.dense_dim():
        raise RuntimeError(
            f"{name} contracts input.shape[1] with other.shape[0]; got {tuple(a.shape)} and "
            f"{tuple(b.shape)}, both sparse. To multiply by the transpose, pass .t()."
        )
    if a.dtype is not b.dtype:
        raise RuntimeError(
            f"{name}: expected its inputs to have the same dtype; got {a.dtype} and {b.dtype}. "
            "Convert one with .to()."
        )
    b = coalesce(b)
    (at, left), (bt, right) = parts(a, name), parts(b, name)
    inner, across = b.shape
    first = searchsorted(bt[0].contiguous(), arange(inner + 1, device=bt.device))
    counts = (first[1:] - first[:-1]).index_select(0, at[1])
    terms = repeat_interleave(arange(at.shape[1], device=at.device), counts)
    before = counts.cumsum(0) - counts
    offset = first.index_select(0, at[1]) - before
    other = arange(terms.shape[0], device=at.device) + offset.index_select(0, terms)
    numbers = at[0].index_select(0, terms) * across + bt[1].index_select(0, other)
    shape = (a.shape[0], across)
    held = left.index_select(0, terms) * right.index_select(0, other)
    return coalesce(assembled(shape, (places(numbers, shape),), held, coalesced=False))


def stacks(s, dense):
    """Multiply stacks of matrices: sparse (B, M, K) and dense (B, K, N), as one sparse matrix."""
    b, m, k = s.shape
    if dense.shape[:2] != (b, k) or s.dense_dim():
        raise RuntimeError(
            f"bmm contracts (B, M, K) with (B, K, N); got {tuple(s.shape)} (sparse) and "
            f"{tuple(dense.shape)}."
        )
    found, held = parts(s, "bmm")
    at = stack((keys(found[:2], (b, m)), keys(stack((found[0], found[2])), (b, k))))
    flat = _sparse_matmul(held, at, dense.reshape(b * k, dense.shape[2]), rows=b * m)
    return flat.reshape(b, m, dense.shape[2])
