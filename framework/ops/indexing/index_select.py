"""index_select, index_add and relatives, take, masked_select, masked_scatter.

All are arguments for the primitives of ``index_put.py``.
"""

from __future__ import annotations

from math import prod

from ...dtypes import bool_, int32, int64
from ...tensor import Tensor
from ..creation.factory import fitted
from ..creation.fill import zeros
from ..inplace import into, need_separate
from ..registry import function
from ..signatures import broadcast_shapes
from ..views.reshape import _view, normal_dim
from .gather import gather
from .index_put import _index, _index_put, _index_put_add, _mask_places
from .masked import _masked_scatter

# Whole slices of one dim


def _slice_index(name, input, dim, index):
    d = normal_dim(name, dim, input.ndim)
    if index.ndim > 1:
        raise (IndexError if name == "index_select" else RuntimeError)(
            f"{name}(): Index is supposed to be a vector, but got dim: {index.ndim}."
        )
    if index.dtype not in (int32, int64):
        raise RuntimeError(f"{name}(): Expected dtype int32/int64 for index; got {index.dtype}.")
    if index.dtype is not int64:
        index = index.to(int64)
    index = index.reshape(1, index.numel())
    if not input.ndim:
        input = _view(input, (1,))
    return d, input, index


@function(method=True)
def index_select(input, dim, index, *, out=None):
    """Select the slices of ``dim`` that a vector of indices names (a copy)."""
    d, x, rows = _slice_index("index_select", input, dim, index)
    if out is not None:
        need_separate("index_select", out, (input, index))
    if not input.ndim:
        return into(out, _view(_index(x, rows, dims=(0,), at=0), ()))
    return _index(x, rows, dims=(d,), at=d, out=out)


def _source_slices(name, input, d, index, source):
    shape = list(input.shape)
    if input.ndim:
        shape[d] = index.shape[1]
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"{name}(): self and source expected to have the same dtype, but got (self) "
            f"{input.dtype} and (source) {source.dtype}."
        )
    # As PyTorch tells them apart: index_copy takes a 0-d tensor for a slice of one element.
    copies, got = name == "index_copy", f"got source {tuple(source.shape)}"
    got += f", self {tuple(input.shape)}, dim {d}. Reshape the source."
    if source.ndim != input.ndim and (not copies or (source.ndim and input.ndim)):
        raise (IndexError if copies else RuntimeError)(
            f"{name}(): source must have as many dimensions as self; {got}"
        )
    slices = [list(t.shape[:d]) + list(t.shape[d + 1 :]) for t in (input, source)]
    if slices[0] != slices[1]:
        raise RuntimeError(f"{name}(): sizes other than that of dim must be self's; {got}")
    if source.numel() != prod(shape):
        raise (IndexError if copies else RuntimeError)(
            f"{name}(): Number of indices ({index.shape[1]}) should be equal to source.size(dim); "
            f"{got}"
        )
    return source if input.ndim else source.reshape(1)


def _written(op_function, name, input, d, x, rows, source, in_place):
    if in_place:
        getattr(x, name)(rows, source, dims=(d,), at=d)
        return input
    out = op_function(x, rows, source, dims=(d,), at=d)
    return out if input.ndim else _view(out, ())


def _index_add(input, dim, index, source, alpha, in_place):
    d, x, rows = _slice_index("index_add", input, dim, index)
    source = _source_slices("index_add", input, d, rows, source)
    if alpha != 1:
        source = source * alpha
    return _written(_index_put_add, "_index_put_add_", input, d, x, rows, source, in_place)


@function(method=True, out=True)
def index_add(input, dim, index, source, *, alpha=1):
    """Add ``alpha * source`` to the slices of ``dim`` that the index names, in a copy."""
    return _index_add(input, dim, index, source, alpha, False)


@function(method=True, public=False)
def index_add_(input, dim, index, source, *, alpha=1):
    """Add ``alpha * source`` to the slices of ``dim`` that the index names."""
    return _index_add(input, dim, index, source, alpha, True)


def _index_copy(input, dim, index, source, in_place):
    d, x, rows = _slice_index("index_copy", input, dim, index)
    source = _source_slices("index_copy", input, d, rows, source)
    return _written(_index_put, "_index_put_", input, d, x, rows, source, in_place)


@function(method=True, out=True, autocast={"cpu": "promote"})
def index_copy(input, dim, index, source):
    """Copy ``source`` to the slices of ``dim`` that the index names, in a copy."""
    return _index_copy(input, dim, index, source, False)


@function(method=True, public=False)
def index_copy_(input, dim, index, source):
    """Copy ``source`` to the slices of ``dim`` that the index names."""
    return _index_copy(input, dim, index, source, True)


def _index_fill(input, dim, index, value, in_place):
    d, x, rows = _slice_index("index_fill", input, dim, index)
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(
                "index_fill_ only supports a 0-dimensional value tensor, but got tensor with "
                f"{value.ndim} dimension(s)."
            )
        value = value.to(input.dtype)
        if value.requires_grad:  # an index that occurs twice must not count twice
            hit = zeros((x.shape[d],), dtype=bool_, device=x.device)
            hit[rows.reshape(-1)] = True
            hit = hit.reshape(-1, *(1,) * (x.ndim - 1 - d)) if input.ndim else hit.reshape(())
            return (input.masked_fill_ if in_place else input.masked_fill)(hit, value)
    else:
        value = fitted(value, input.dtype)
    return _written(_index_put, "_index_put_", input, d, x, rows, value, in_place)


@function(method=True)
def index_fill(input, dim, index, value):
    """Fill the slices of ``dim`` that the index names with one value, in a copy."""
    return _index_fill(input, dim, index, value, False)


@function(method=True, public=False)
def index_fill_(input, dim, index, value):
    """Fill the slices of ``dim`` that the index names with one value."""
    return _index_fill(input, dim, index, value, True)


# Of the flat tensor


@function(method=True)
def take(input, index, *, out=None):
    """Take elements of the flattened tensor by index, in the shape of the index."""
    if out is not None:
        need_separate("take", out, (input, index))
    if index.dtype is not int64:
        raise RuntimeError(f"take(): Expected a long tensor for index, but got {index.dtype}.")
    flat = input.reshape(-1) if input.numel() else input.reshape(0)
    rows = index.contiguous()
    return _index(flat, _view(rows, (1, *index.shape)), dims=(0,), at=0, out=out)


@function(method=True)
def take_along_dim(input, indices, dim=None, *, out=None):
    """Take along ``dim`` with broadcasting; without dim, of the flattened tensors."""
    if indices.dtype is not int64:
        raise RuntimeError(
            "torch.take_along_dim(): dtype of indices should be Long but got "
            f"{indices.dtype}. Convert it with .long()."
        )
    if dim is None:
        return gather(input.reshape(-1), 0, indices.reshape(-1), out=out)
    if input.ndim != indices.ndim:
        raise RuntimeError(
            "torch.take_along_dim(): input and indices should have the same number of "
            f"dimensions, but got {input.ndim} dimensions for input, and {indices.ndim} "
            "dimensions for indices"
        )
    d = normal_dim("take_along_dim", dim, input.ndim)

    def without(shape, n):
        return (*shape[:d], n, *shape[d + 1 :])

    common = broadcast_shapes("take_along_dim", without(input.shape, 1), without(indices.shape, 1))
    index = indices.expand(without(common, indices.shape[d]))
    return gather(input.expand(without(common, input.shape[d])), d, index, out=out)


@function(method=True, deep=True)
def masked_select(input, mask, *, out=None):
    """Select the elements where the mask is True, as a vector, with broadcasting."""
    if mask.dtype.category:
        raise RuntimeError(
            f"masked_select: expected BoolTensor for mask; got {mask.dtype}. Compare it."
        )
    if out is not None:
        need_separate("masked_select", out, (input, mask))
    shape = broadcast_shapes("masked_select", input.shape, mask.shape)
    found = input.expand(shape)[mask.expand(shape)] if shape else input.reshape(1)[mask.reshape(1)]
    return into(out, found)


def _scatter_where(input, mask, source, in_place):
    if mask.dtype.category:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )
    if source.dtype is not input.dtype:
        raise RuntimeError(
            "masked_scatter: expected self and source to have same dtypes but got "
            f"{input.dtype} and {source.dtype}"
        )
    shape = broadcast_shapes("masked_scatter", input.shape, mask.shape)
    mask = mask.expand(shape)
    places = _mask_places(mask)
    count = places.shape[1]
    if count > source.numel():
        raise RuntimeError(
            "masked_scatter: expected self and source to have same number of elements: the mask "
            f"is True {count} times, but source has {source.numel()} elements."
        )
    values = source.reshape(-1)[:count]
    if not shape:
        return (
            input.index_put((mask,), values)
            if not in_place
            else (input.masked_fill_(mask, values[0]) if count else input)
        )
    if in_place:
        return input._masked_scatter_(mask, values, places)
    return _masked_scatter(input.expand(shape), mask, values, places)


@function(method=True)
def masked_scatter(input, mask, source):
    """Write the elements of ``source``, in order, where the mask is True, in a copy."""
    return _scatter_where(input, mask, source, False)


@function(method=True, public=False)
def masked_scatter_(input, mask, source):
    """Write the elements of ``source``, in order, where the mask is True."""
    return _scatter_where(input, mask, source, True)
