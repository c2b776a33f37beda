"""The COO layout: a column of indices for each value; conversion to and from dense tensors.

All of it is composed of ops on the indices and the values, so gradients flow through the values,
and second ones too. Indices are checked when a tensor is made: compiled loops read by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

from ...dtypes import int64
from ...memory_format import sparse_coo, sparse_csc, sparse_csr, strided
from ...spec import Size
from ...tensor import Tensor
from ..creation.factory import dtype_of, place_of, shape_of
from ..creation.fill import zeros
from ..creation.from_data import as_tensor, tensor
from ..indexing.index_put import _index, _index_sum
from ..indexing.nonzero import nonzero, searchsorted
from ..manipulation.cat import stack
from ..reduction.sort import unique
from ..registry import function
from .sparse_tensor import SparseTensor, assembled, layout_name, plain


@function()
def sparse_coo_tensor(
    indices: Any = None,
    values: Any = None,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
    pin_memory: bool = False,
    layout: Any = None,
) -> SparseTensor:
    """Create a sparse tensor of the COO layout: ``out[indices[:, k]] = values[k]``, else zero.

    Args:
        indices: (sparse dims, nnz), integers; may come in any order, and more than once: then the
            values are added.
        values: (nnz, *dense sizes).
        size: The shape: the sizes of the sparse dims, then ``dense sizes``. By default the least
            that holds all indices.
        dtype: Of the values; by default their own.
        device: Where; by default that of the values.
        requires_grad: The result is a leaf with a gradient. Else, if ``values`` has one, gradients
            flow there.
        check_invariants: Also check ``is_coalesced``. That indices fit is always checked.
        is_coalesced: The indices are sorted, and none comes twice.
        pin_memory: Accepted.
        layout: Accepted.

    Returns:
        Tensor of ``layout`` ``lowtide.sparse_coo``; it shares the memory of ``indices`` (int64)
        and ``values``.

    Raises:
        RuntimeError: Shapes do not fit, an index is out of range, or the indices are not sorted
            and distinct with ``is_coalesced``.

    Example:
        >>> import lowtide as lt
        >>> lt.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3)).to_dense().tolist()
        [[0.0, 0.0, 3.0], [4.0, 0.0, 0.0]]
    """
    if isinstance(indices, list | tuple) and values is None and size is None:
        indices, size = None, indices
    if indices is None:
        if size is None:
            raise TypeError("sparse_coo_tensor needs indices and values, or size.")
        shape = shape_of("sparse_coo_tensor", (tuple(size),))
        return empty_coo(shape, dtype, device, requires_grad)
    if device is None and isinstance(values, Tensor):
        device = values.device
    where = place_of(device)
    found = as_tensor(indices, device=where).detach()
    if found.dtype.is_floating_point and not found.numel():
        found = found.to(int64)
    if found.dtype.category > 1 or found.dtype.name == "bool":
        raise RuntimeError(
            f"sparse_coo_tensor: indices must be an int64 tensor; got {found.dtype}. Convert them "
            "with .to(lowtide.int64)."
        )
    found = found.to(int64)
    if found.ndim != 2:
        raise RuntimeError(
            f"indices must be sparse_dim x nnz, but got: {list(found.shape)}. Stack one row of "
            "indices for each sparse dim."
        )
    held = values if isinstance(values, Tensor) else tensor(values, device=where)
    held = held.to(device=where, dtype=None if dtype is None else dtype_of("dtype", dtype))
    if not held.ndim:
        held = held.reshape(1)
    shape = _checked_shape(found, held, size)
    coalesced = found.shape[1] < 2 if is_coalesced is None else bool(is_coalesced)
    if is_coalesced and not _sorted_and_distinct(found, shape):
        raise RuntimeError(
            "cannot set is_coalesced to true if indices correspond to uncoalesced COO tensor. "
            "Leave is_coalesced out, and call .coalesce()."
        )
    return assembled(shape, (found,), as_values(held, requires_grad), sparse_coo, coalesced)


def as_values(held: Tensor, requires_grad: bool) -> Tensor:
    """Return values for a new sparse tensor: a separate leaf, or part of the graph of these."""
    if requires_grad or not held.requires_grad:
        return held.detach().requires_grad_(requires_grad)
    return held.view_as(held)


def empty_coo(shape: Any, dtype: Any, device: Any, requires_grad: bool = False) -> SparseTensor:
    """Make a COO tensor in which nothing is stored."""
    indices = zeros((len(shape), 0), dtype=int64, device=device)
    values = zeros((0,), dtype=dtype, device=device, requires_grad=requires_grad)
    return assembled(shape, (indices,), values, sparse_coo, True)


def _checked_shape(indices: Tensor, values: Tensor, size: Any) -> tuple[int, ...]:
    dims, nnz = indices.shape
    if values.shape[0] != nnz:
        raise RuntimeError(
            "indices and values must have same nnz, but got nnz from indices: "
            f"{nnz}, nnz from values: {values.shape[0]}. Pass one column of indices for each value."
        )
    dense = tuple(values.shape[1:])
    if size is None:
        if not nnz and dims:
            found = [0] * dims
        else:
            found = [int(n) + 1 for n in indices.amax(1).tolist()] if dims else []
        shape = (*found, *dense)
    else:
        shape = shape_of("sparse_coo_tensor", (tuple(size),))
    if len(shape) != dims + len(dense):
        raise RuntimeError(
            "'len(size) == sparse_dim + dense_dim' is not satisfied: "
            f"len(size) = {len(shape)}, sparse_dim = {dims}, dense_dim = {len(dense)}. Pass a size "
            "for each row of indices and each further dim of values."
        )
    if shape[dims:] != dense:
        raise RuntimeError(
            f"values has incorrect size, expected {[nnz, *shape[dims:]]}, got "
            f"{list(values.shape)}. Pass that, or another size."
        )
    check_indices(indices, shape)
    return tuple(shape)


def check_indices(indices: Tensor, shape: Sequence[int]) -> None:
    """Raise an error for indices outside of a shape; on meta there is nothing to check.

    Raises:
        RuntimeError: One is.
    """
    if not indices.numel() or indices.device.type == "meta":
        return
    lows, highs = indices.amin(1).tolist(), indices.amax(1).tolist()
    for dim, (low, high) in enumerate(zip(lows, highs, strict=True)):
        if low < 0:
            raise RuntimeError(f"found negative index {low} for dim {dim}. Indices start at 0.")
        if high >= shape[dim]:
            raise RuntimeError(
                f"size is inconsistent with indices: for dim {dim}, size is {shape[dim]} but found "
                f"index {high}. Pass a larger size."
            )


def _sorted_and_distinct(indices: Tensor, shape: Sequence[int]) -> bool:
    if indices.shape[1] < 2 or indices.device.type == "meta":
        return True
    k = keys(indices, shape)
    return bool((k[1:] > k[:-1]).all())


def keys(indices: Tensor, shape: Sequence[int]) -> Tensor:
    """Number the places of a shape in C order: (nnz,), int64.

    Raises:
        RuntimeError: There are more than 64 bits can number.
    """
    dims = indices.shape[0]
    if prod(shape[:dims]) >= 2**63:
        raise RuntimeError(
            f"a sparse tensor of shape {tuple(shape)} has more places than 63 bits can number. "
            "Make some of its dims dense."
        )
    if not dims:
        return indices.new_zeros((indices.shape[1],))
    out = indices[0]
    for row, n in zip(indices[1:], shape[1:dims], strict=True):
        out = out * n + row
    return out


def places(numbers: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the indices, (sparse dims, nnz), that :func:`keys` numbered."""
    rows = []
    for n in reversed(shape[1:]):
        rows.append(numbers % n)
        numbers = numbers // n
    rows.append(numbers)
    return stack(rows[::-1]) if shape else numbers.new_zeros((0, numbers.shape[0]))


def parts(s: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Return indices and values of a COO tensor; ``name`` is what asks, for the error.

    Raises:
        RuntimeError: It has another layout.
    """
    if not isinstance(s, SparseTensor) or s.layout is not sparse_coo:
        refuse_layout(s, name, "sparse coordinate tensor layout", ".to_sparse()")
    return s._indexing[0], s._value


def refuse_layout(s: Tensor, name: str, wanted: str, way: str) -> NoReturn:
    """Raise the error of a method of another layout."""
    raise RuntimeError(f"{name} expected {wanted} but got {layout_name(s)}. Convert it with {way}.")


@function(method=True, public=False)
def coalesce(input):
    """Sort the indices and add up the values of those that come more than once.

    Returns:
        A COO tensor; the input itself if it is coalesced.

    Memory:
        Keeps one int64 for each value, where values require grad.
    """
    indices, values = parts(input, "coalesce")
    if input._coalesced:
        return input
    dims = indices.shape[0]
    sizes = tuple(input.shape[:dims])
    found, inverse = unique(keys(indices, sizes), return_inverse=True)
    summed = _index_sum(
        values, inverse.unsqueeze(0), shape=(found.shape[0], *values.shape[1:]), dims=(0,), at=0
    )
    return assembled(input.shape, (places(found, sizes),), plain(summed), sparse_coo, True)


@function(method=True, public=False)
def is_coalesced(input):
    """True if the indices of a COO tensor are known to be sorted and distinct."""
    parts(input, "is_coalesced")
    return input._coalesced


@function(method="_coalesced_", public=False)
def _declare_coalesced(input, coalesced):
    """Declare the indices of a COO tensor sorted and distinct, or not, in place.

    Raises:
        RuntimeError: They are not.
    """
    found, _ = parts(input, "_coalesced_")
    if coalesced and not input._coalesced and not _sorted_and_distinct(found, input.shape):
        raise RuntimeError(
            "_coalesced_: cannot be True, since the indices are not sorted and distinct. Call "
            ".coalesce()."
        )
    input._coalesced = bool(coalesced)
    return input


@function(method=True, public=False)
def indices(input):
    """Return the indices of a coalesced COO tensor, (sparse dims, nnz), sharing memory."""
    found, _ = parts(input, "indices")
    _need_coalesced(input, "indices")
    return found.detach()


@function(method=True, public=False)
def values(input):
    """Return the values of a sparse tensor, (nnz, *dense sizes), sharing memory and gradient.

    Raises:
        RuntimeError: It is strided, or not coalesced.
    """
    if not isinstance(input, SparseTensor):
        refuse_layout(input, "values", "sparse tensor layout", ".to_sparse()")
    _need_coalesced(input, "values")
    return input._value.view_as(input._value)


def _need_coalesced(input, name):
    if not input._coalesced:
        raise RuntimeError(
            f"Cannot get {name} on an uncoalesced tensor, please call .coalesce() first. "
            f"Or take ._{name}() as they are."
        )


@function(method="_indices", public=False)
def _raw_indices(input):
    """Return the indices of a COO tensor as they are, coalesced or not."""
    return parts(input, "_indices")[0].detach()


@function(method="_values", public=False)
def _raw_values(input):
    """Return the values of a COO tensor as they are, outside the graph."""
    return parts(input, "_values")[1].detach()


@function(method="_nnz", public=False)
def _stored(input):
    """Return how many values (or dense blocks of them) a sparse tensor stores."""
    if not isinstance(input, SparseTensor):
        raise NotImplementedError("_nnz needs a sparse tensor; got a strided one. Count .nonzero()")
    return input._value.shape[0]


@function(method=True, public=False)
def sparse_dim(input):
    """Return the number of sparse dims; 0 for a strided tensor."""
    if not isinstance(input, SparseTensor):
        return 0
    return input._indexing[0].shape[0] if input.layout is sparse_coo else 2


@function(method=True, public=False)
def dense_dim(input):
    """Return the number of dense dims; all of a strided tensor's."""
    return input.ndim - sparse_dim(input)


@function(method=True, public=False)
def to_dense(input, dtype=None, *, masked_grad=None):
    """Convert to a strided tensor; itself if it is one.

    Args:
        input: Any layout.
        dtype: Of the result, by default that of the values.
        masked_grad: Accepted: the gradient of a sparse tensor has its places alone.
    """
    out = input
    if isinstance(input, SparseTensor):
        found, held = parts(as_coo(input), "to_dense")
        out = _spread(found, held, tuple(input.shape))
    return out if dtype is None else out.to(dtype)


def _spread(found, held, shape):
    dims = found.shape[0]
    if not dims:
        return held.sum(0)
    return _index_sum(held, found, shape=shape, dims=tuple(range(dims)), at=0)


def as_coo(s: Any) -> Any:
    """Return a tensor of any sparse layout as a COO one."""
    return s if s.layout is sparse_coo else s.to_sparse_coo()


def from_dense(input, dims):
    """Return what is not zero in a strided tensor, as a coalesced COO tensor.

    Args:
        input: Strided.
        dims: How many sparse dims.
    """
    look = input.detach().ne(0)
    if dims < input.ndim:
        look = look.flatten(dims).any(-1)
    found = nonzero(look).t().contiguous() if dims else look.reshape(1)[:0].reshape(0, 1).long()
    held = gathered(input, found)
    return assembled(input.shape, (found,), held, sparse_coo, True)


def gathered(input: Any, found: Any) -> Any:
    """Return the elements of a strided tensor at the places ``found``, with its gradient."""
    dims = found.shape[0]
    if not dims:
        return input.unsqueeze(0).expand(found.shape[1], *input.shape)
    return _index(input, found, tuple(range(dims)), 0)


@function(method=True, public=False)
def to_sparse(input, sparse_dim=None, *, layout=None, blocksize=None, dense_dim=None):
    """Convert to a sparse tensor of the elements that are not zero.

    Args:
        input: Any layout; itself if it has the one asked for.
        sparse_dim: How many of the first dims are sparse; by default all.
        layout: By default ``lowtide.sparse_coo``; ``sparse_csr`` and ``sparse_csc`` need 2 dims.
        blocksize: None: there are no layouts of blocks.
        dense_dim: None, or how many dims are dense.

    Raises:
        RuntimeError: The layout or the number of dims is not possible.
    """
    if blocksize is not None or layout not in (None, strided, sparse_coo, sparse_csr, sparse_csc):
        raise NotImplementedError(
            f"to_sparse: layout {layout} with blocksize {blocksize} is not supported. Use "
            "sparse_coo, sparse_csr or sparse_csc."
        )
    if layout is sparse_csr:
        return input.to_sparse_csr(dense_dim)
    if layout is sparse_csc:
        return input.to_sparse_csc(dense_dim)
    if isinstance(input, SparseTensor):
        if sparse_dim is not None and sparse_dim != input.sparse_dim():
            raise RuntimeError(
                f"to_sparse: conversion from {layout_name(input)} to Sparse with sparse_dim "
                f"argument !=self.sparse_dim() is not supported; got {sparse_dim}. Convert with "
                ".to_dense() first."
            )
        return as_coo(input)
    if dense_dim is not None and sparse_dim is None:
        sparse_dim = input.ndim - dense_dim
    dims = input.ndim if sparse_dim is None else sparse_dim
    if not (0 < dims <= input.ndim or dims == input.ndim == 0):
        raise RuntimeError(
            f"to_sparse: number of sparse dimensions must be in [1, {input.ndim}], the dims of "
            f"the tensor; got {dims}."
        )
    return from_dense(input, dims)


@function(method=True, public=False)
def sparse_mask(input, mask):
    """Return the elements of ``input`` at the places of a sparse ``mask``, whatever its values.

    Args:
        input: Strided or COO, in the shape of the mask.
        mask: A COO tensor.

    Returns:
        A COO tensor with the indices of the mask.
    """
    found, _ = parts(mask, "sparse_mask")
    if input.shape != mask.shape:
        raise RuntimeError(
            f"sparse_mask(): operands have incompatible sizes; self has size {list(input.shape)} "
            f"but mask has size {list(mask.shape)}. Expand one."
        )
    if isinstance(input, SparseTensor):
        held = looked_up(coalesce(as_coo(input)), found)
    else:
        held = gathered(input, found)
    return assembled(input.shape, (found,), held, sparse_coo, mask._coalesced)


def looked_up(s: Any, found: Any) -> Any:
    """Return the elements of a coalesced COO tensor at places ``found``: zero where none is."""
    own, held = parts(s, "sparse_mask")
    dims = own.shape[0]
    if not own.shape[1]:
        return held.new_zeros((found.shape[1], *held.shape[1:]))
    sizes = tuple(s.shape[:dims])
    wanted, there = keys(found, sizes), keys(own, sizes)
    at = searchsorted(there, wanted).clamp(max=there.shape[0] - 1)
    hit = there[at].eq(wanted)
    hit = hit.reshape(-1, *(1,) * (held.ndim - 1))
    return held.index_select(0, at).masked_fill(~hit, 0)


@function(method=True, public=False)
def sparse_resize_(input, size, sparse_dim, dense_dim):
    """Resize a COO tensor in place, keeping its elements; it may only grow.

    Raises:
        RuntimeError: Dims would change, or an element would be lost.
    """
    found, _ = parts(input, "sparse_resize_")
    shape = Size(shape_of("sparse_resize_", (tuple(size),)))
    if (sparse_dim, dense_dim) != (input.sparse_dim(), input.dense_dim()) or (
        shape[sparse_dim:] != input.shape[sparse_dim:]
    ):
        raise RuntimeError(
            f"sparse_resize_: changing the number of sparse or dense dims, or a dense size, is not "
            f"supported; got {tuple(size)} for {tuple(input.shape)}. Make a new tensor."
        )
    check_indices(found, shape)
    input._spec = assembled(shape, (found,), input._value)._spec
    return input
