"""Shapes of sparse tensors: transpose, cat, stack, select, index_select, unsqueeze."""

from __future__ import annotations

from typing import Any

from ...memory_format import sparse_coo
from ...tensor import Tensor
from ..creation.fill import zeros
from ..indexing.nonzero import searchsorted
from ..manipulation.cat import cat, stack
from ..views.slice import _amid_zeros
from .calls import rule
from .coo import parts, to_dense
from .sparse_tensor import SparseTensor, assembled


@rule("_permute")
def _permute(inputs: Any, *, dims: Any, named: Any) -> Any:
    (s,) = inputs
    found, held = parts(s, "permute")
    n = found.shape[0]
    if sorted(dims[:n]) != list(range(n)):
        raise RuntimeError(
            "sparse transpose: transposed dimensions must be sparse Got sparse_dim: "
            f"{n}, order {tuple(dims)}. Use .to_dense()."
        )
    order = list(dims[:n])
    rows = found.flip(0) if order == list(range(n))[::-1] else stack([found[d] for d in order])
    if order == list(range(n)):
        rows = found
    values = held.permute(0, *[d - n + 1 for d in dims[n:]])
    shape = [s.shape[d] for d in dims]
    same = order == list(range(n))
    sorted_still = s._coalesced and (same or found.shape[1] < 2)
    return assembled(shape, (rows,), values, sparse_coo, sorted_still)


@rule("_cat")
def _cat(inputs: Any, *, dim: int) -> Any:
    for k, x in enumerate(inputs):
        if not isinstance(x, SparseTensor):
            raise RuntimeError(
                "Concatenating sparse tensors, but a dense tensor was found at position "
                f"{k}. Convert it with .to_sparse(), or the others with .to_dense()."
            )
    first = inputs[0]
    dims = first.sparse_dim()
    rest = [n for k, n in enumerate(first.shape) if k != dim]
    for k, x in enumerate(inputs):
        if x.sparse_dim() != dims or [n for j, n in enumerate(x.shape) if j != dim] != rest:
            raise RuntimeError(
                "cat: sizes of sparse tensors must match except in dimension "
                f"{dim}, and so must their sparse dims; got {tuple(first.shape)} ({dims} sparse) "
                f"and {tuple(x.shape)} ({x.sparse_dim()} sparse) for tensor number {k} in the list."
            )
    if dim >= dims:
        return NotImplemented
    columns, held, start = [], [], 0
    for x in inputs:
        found, values = parts(x, "cat")
        row = zeros((dims, 1), dtype=found.dtype, device=found.device)
        row[dim] = start
        columns.append(found + row)
        held.append(values)
        start += x.shape[dim]
    shape = (*first.shape[:dim], start, *first.shape[dim + 1 :])
    return assembled(shape, (cat(columns, 1),), cat(held), sparse_coo, False)


@rule("_stack")
def _stack(inputs: Any, *, dim: int) -> Any:
    if not all(isinstance(x, SparseTensor) for x in inputs):
        return NotImplemented
    return cat([x.unsqueeze(dim) for x in inputs], dim)


@rule("_view")
def _view(inputs: Any, *, shape: Any, named: Any) -> Any:
    (s,) = inputs
    found, held = parts(s, "view")
    if tuple(shape) == tuple(s.shape):
        return s._with(held)
    if named != "Unsqueeze":
        return NotImplemented
    old = tuple(s.shape)
    dim = next(k for k in range(len(shape)) if shape[k] == 1 and shape[:k] + shape[k + 1 :] == old)
    n = found.shape[0]
    if dim > n:
        return assembled(shape, (found,), held.unsqueeze(dim - n + 1), sparse_coo, s._coalesced)
    none = zeros((1, found.shape[1]), dtype=found.dtype, device=found.device)
    rows = cat((found[:dim], none, found[dim:]))
    return assembled(shape, (rows,), held, sparse_coo, s._coalesced)


@rule("_select")
def _select(inputs: Any, *, dim: int, named: Any) -> Any:
    s, index = inputs
    found, held = parts(s, "select")
    n = found.shape[0]
    size = s.shape[dim]
    if not -size <= index < size:
        raise IndexError(f"select(): index {index} out of range for dimension {dim} of size {size}")
    index %= size
    shape = [m for k, m in enumerate(s.shape) if k != dim]
    if dim >= n:
        values = held.select(dim - n + 1, index)
        return assembled(shape, (found,), values, sparse_coo, s._coalesced)
    kept = found[dim].eq(index).nonzero().reshape(-1)
    values = held.index_select(0, kept)
    if n == 1:
        return values.sum(0)  # nothing is sparse any more
    rows = cat((found[:dim], found[dim + 1 :])).index_select(1, kept)
    return assembled(shape, (rows,), values, sparse_coo, s._coalesced)


@rule("_index")
def _index(inputs: Any, *, dims: Any, at: int) -> Any:
    s, index = inputs
    if isinstance(index, SparseTensor) or len(dims) != 1 or index.ndim != 2 or at != dims[0]:
        return NotImplemented
    return selected(s, dims[0], index[0])


def selected(s: Any, dim: int, index: Tensor) -> Tensor:
    """Return the slices ``index`` along ``dim``, one of each that it names as often as it does."""
    found, held = parts(s, "index_select")
    n = found.shape[0]
    size = s.shape[dim]
    if index.numel() and not bool(((index >= -size) & (index < size)).all()):
        raise IndexError(f"index_select(): index out of range for dimension {dim} of size {size}")
    index = index.remainder(max(size, 1))
    shape = (*s.shape[:dim], index.shape[0], *s.shape[dim + 1 :])
    if dim >= n:
        values = held.index_select(dim - n + 1, index)
        return assembled(shape, (found,), values, sparse_coo, s._coalesced)
    # Every pair of a wanted slice and an entry in it.
    by_slice = found[dim].argsort(stable=True)
    order = found[dim].index_select(0, by_slice)
    first = searchsorted(order, index)
    counts = searchsorted(order, index, right=True) - first
    wanted = counts.new_zeros(0)
    places = wanted
    if index.shape[0]:
        from_numbers = _ranges(first, counts)
        places = by_slice.index_select(0, from_numbers)
        wanted = _owners(counts)
    rows = [found[k].index_select(0, places) if k != dim else wanted for k in range(n)]
    values = held.index_select(0, places)
    return assembled(shape, (stack(rows),), values, sparse_coo, places.shape[0] < 2)


def _owners(counts: Tensor) -> Tensor:
    from_zero = counts.new_ones(counts.shape[0]).cumsum(0) - 1
    return from_zero.repeat_interleave(counts)


def _ranges(first: Tensor, counts: Tensor) -> Tensor:
    # first[0], first[0] + 1, ... (counts[0] of them), first[1], ...
    before = counts.cumsum(0) - counts
    offset = (first - before).repeat_interleave(counts)
    return offset.new_ones(offset.shape[0]).cumsum(0) - 1 + offset


@rule("_amid_zeros")
def _dense_amid_zeros(inputs: Any, *, dim: int, size: int) -> Any:
    """The gradient of a view of a part, which is dense: a leaf takes it as it is."""
    s, start = inputs
    return _amid_zeros(to_dense(s), start, dim=dim, size=size)


@rule("_narrow")
def _narrow(inputs: Any, *, dim: int, length: int, named: Any) -> Any:
    s, start = inputs
    found, held = parts(s, "narrow")
    n = found.shape[0]
    shape = (*s.shape[:dim], length, *s.shape[dim + 1 :])
    if dim >= n:
        values = held.narrow(dim - n + 1, start, length)
        return assembled(shape, (found,), values, sparse_coo, s._coalesced)
    row = found[dim]
    kept = ((row >= start) & (row < start + length)).nonzero().reshape(-1)
    shift = zeros((n, 1), dtype=found.dtype, device=found.device)
    shift[dim] = start
    rows = found.index_select(1, kept) - shift
    return assembled(shape, (rows,), held.index_select(0, kept), sparse_coo, s._coalesced)
