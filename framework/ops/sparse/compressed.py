"""The compressed layouts: CSR and CSC, matrices whose rows (or columns) are stored one by one.

``compressed[i]:compressed[i + 1]`` is where row ``i`` stands in ``plain`` (its columns) and in the
values. CSC is the same of the transpose. Each op turns them into a COO tensor, which costs eight
bytes a value while it runs.
"""

from __future__ import annotations

from typing import Any

from ...dtypes import int32, int64
from ...memory_format import sparse_coo, sparse_csc, sparse_csr
from ...tensor import Tensor
from ..creation.factory import dtype_of, place_of, shape_of
from ..creation.from_data import as_tensor, tensor
from ..creation.ranges import arange
from ..indexing.nonzero import searchsorted
from ..manipulation.cat import stack
from ..reduction.sort import argsort
from ..registry import function
from .coo import as_values, check_indices, coalesce, refuse_layout
from .sparse_tensor import SparseTensor, assembled

_NAMES = {sparse_csr: ("crow_indices", "col_indices"), sparse_csc: ("ccol_indices", "row_indices")}


@function()
def sparse_compressed_tensor(
    compressed_indices: Any,
    plain_indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """Create a sparse matrix of the CSR or CSC layout.

    Args:
        compressed_indices: (rows + 1,): where each row begins, and at last nnz. For CSC columns.
        plain_indices: (nnz,): the columns; sorted and distinct within a row. For CSC rows.
        values: (nnz,).
        size: (rows, columns); by default the least that holds all.
        dtype: Of the values; by default their own.
        layout: ``lowtide.sparse_csr`` or ``lowtide.sparse_csc``.
        device: Where; by default that of the values.
        pin_memory: Accepted.
        requires_grad: The result is a leaf with a gradient.
        check_invariants: Accepted: indices are always checked, for compiled loops read by them.

    Raises:
        RuntimeError: The parts do not fit together.
        NotImplementedError: Another layout, or batches of matrices.

    Example:
        >>> import lowtide as lt
        >>> lt.sparse_csr_tensor([0, 1, 2], [2, 0], [3.0, 4.0], (2, 3)).to_dense().tolist()
        [[0.0, 0.0, 3.0], [4.0, 0.0, 0.0]]
    """
    if layout not in _NAMES:
        raise NotImplementedError(
            f"sparse_compressed_tensor: layout {layout} is not supported. Use sparse_csr or "
            "sparse_csc."
        )
    if device is None and isinstance(values, Tensor):
        device = values.device
    where = place_of(device)
    indexing = []
    for name, given in zip(_NAMES[layout], (compressed_indices, plain_indices), strict=True):
        part = as_tensor(given, device=where).detach()
        if not part.numel():
            part = part.to(int64)
        if part.dtype not in (int32, int64):
            raise RuntimeError(
                f"{name} must be int32 or int64; got {part.dtype}. Convert with .to(lowtide.int64)."
            )
        if part.ndim != 1:
            raise NotImplementedError(
                f"{name} must be 1-D: batches of sparse matrices are not supported; got shape "
                f"{tuple(part.shape)}. Keep a list of matrices."
            )
        indexing.append(part)
    first, plain_part = indexing
    held = values if isinstance(values, Tensor) else tensor(values, device=where)
    held = held.to(device=where, dtype=None if dtype is None else dtype_of("dtype", dtype))
    if held.ndim != 1:
        raise NotImplementedError(
            f"values must be 1-D: layouts of blocks or dense dims are not supported; got shape "
            f"{tuple(held.shape)}. Use the COO layout."
        )
    lines = first.shape[0] - 1
    if size is None:
        most = int(plain_part.max().item()) + 1 if plain_part.numel() else 0
        size = (lines, most) if layout is sparse_csr else (most, lines)
    shape = shape_of("sparse_compressed_tensor", (tuple(size),))
    _check(layout, first, plain_part, held, shape)
    return assembled(shape, (first, plain_part), as_values(held, requires_grad), layout)


def _check(layout, first, plain_part, held, shape):
    c_name, p_name = _NAMES[layout]
    if len(shape) != 2:
        raise RuntimeError(
            f"a {layout.name} tensor has two dims; got size {tuple(shape)}. Use the COO layout."
        )
    lines, across = shape if layout is sparse_csr else shape[::-1]
    if first.shape[0] != lines + 1:
        raise RuntimeError(
            f"{c_name} must have one element more than there are lines, {lines + 1}; got "
            f"{first.shape[0]} for size {tuple(shape)}."
        )
    if plain_part.shape[0] != held.shape[0]:
        raise RuntimeError(
            f"number of {p_name} and values must be equal; got {plain_part.shape[0]} and "
            f"{held.shape[0]}."
        )
    if first.device.type == "meta":
        return
    ends = int(first[0].item()), int(first[-1].item())
    if ends != (0, held.shape[0]) or not bool((first[1:] >= first[:-1]).all()):
        raise RuntimeError(
            f"{c_name} must begin with 0, never fall, and end with nnz, {held.shape[0]}; it goes "
            f"from {ends[0]} to {ends[1]}."
        )
    check_indices(plain_part.unsqueeze(0), (across,))
    numbers = _lines(first, plain_part.shape[0]) * across + plain_part
    if not bool((numbers[1:] > numbers[:-1]).all()):
        raise RuntimeError(
            f"{p_name} must be sorted and distinct within each line. Make a COO tensor, and "
            f"convert it with .to_{layout.name}()."
        )


@function()
def sparse_csr_tensor(
    crow_indices: Any,
    col_indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """Create a sparse matrix of the CSR layout; see ``sparse_compressed_tensor``."""
    return sparse_compressed_tensor(
        crow_indices,
        col_indices,
        values,
        size,
        dtype=dtype,
        layout=sparse_csr,
        device=device,
        requires_grad=requires_grad,
    )


@function()
def sparse_csc_tensor(
    ccol_indices: Any,
    row_indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """Create a sparse matrix of the CSC layout; see ``sparse_compressed_tensor``."""
    return sparse_compressed_tensor(
        ccol_indices,
        row_indices,
        values,
        size,
        dtype=dtype,
        layout=sparse_csc,
        device=device,
        requires_grad=requires_grad,
    )


def _lines(first: Tensor, nnz: int) -> Tensor:
    # The line of each value: how many lines end at or before it.
    at = arange(nnz, device=first.device)
    return searchsorted(first[1:].to(int64), at, right=True)


def _compressed(lines: Tensor, count: int) -> Tensor:
    # Where each of ``count`` lines begins, of sorted line numbers; and the end.
    return searchsorted(lines.contiguous(), arange(count + 1, device=lines.device))


@function(method=True, public=False)
def to_sparse_coo(input):
    """Convert to the COO layout; itself if it has it."""
    if not isinstance(input, SparseTensor):
        return input.to_sparse()
    if input.layout is sparse_coo:
        return input
    first, plain_part = input._indexing
    lines = _lines(first, plain_part.shape[0])
    pair = (lines, plain_part.to(int64))
    if input.layout is sparse_csr:
        return assembled(input.shape, (stack(pair),), input._value, sparse_coo, True)
    return coalesce(assembled(input.shape, (stack(pair[::-1]),), input._value, sparse_coo, False))


@function(method=True, public=False)
def to_sparse_csr(input, dense_dim=None):
    """Convert a matrix to the CSR layout; itself if it has it."""
    if isinstance(input, SparseTensor) and input.layout is sparse_csr:
        return input
    found, held = _matrix(input, "to_sparse_csr", dense_dim)
    first = _compressed(found[0], input.shape[0])
    return assembled(input.shape, (first, found[1].contiguous()), held, sparse_csr)


@function(method=True, public=False)
def to_sparse_csc(input, dense_dim=None):
    """Convert a matrix to the CSC layout; itself if it has it."""
    if isinstance(input, SparseTensor) and input.layout is sparse_csc:
        return input
    found, held = _matrix(input, "to_sparse_csc", dense_dim)
    order = argsort(found[1], stable=True)
    first = _compressed(found[1].index_select(0, order), input.shape[1])
    plain_part = found[0].index_select(0, order)
    return assembled(input.shape, (first, plain_part), held.index_select(0, order), sparse_csc)


def _matrix(input, name, dense_dim):
    if input.ndim != 2 or dense_dim or input.dense_dim() not in (0, 2):
        raise NotImplementedError(
            f"{name} takes a matrix without dense dims; got shape {tuple(input.shape)} with "
            f"dense_dim {dense_dim or input.dense_dim()}. Use .to_sparse(), the COO layout."
        )
    s = coalesce(to_sparse_coo(input))
    return s._indexing[0], s._value


def as_layout(s, layout):
    """Return a COO tensor in another layout."""
    if layout is sparse_coo:
        return s
    return to_sparse_csr(s) if layout is sparse_csr else to_sparse_csc(s)


def _part(name: str, layout: Any, place: int, kind: str) -> None:
    def read(input: Any) -> Any:
        if not isinstance(input, SparseTensor) or input.layout is not layout:
            refuse_layout(
                input, name, f"sparse {kind} compressed tensor layout", f".to_{layout.name}()"
            )
        return input._indexing[place].detach()

    read.__name__ = read.__qualname__ = name
    read.__doc__ = f"Return the {name.replace('_', ' ')} of a {layout.name} tensor."
    function(method=True, public=False)(read)


_part("crow_indices", sparse_csr, 0, "row")
_part("col_indices", sparse_csr, 1, "row")
_part("ccol_indices", sparse_csc, 0, "column")
_part("row_indices", sparse_csc, 1, "column")
