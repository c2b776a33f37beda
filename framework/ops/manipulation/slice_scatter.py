"""select_scatter, slice_scatter and relatives, put, diagflat, and small methods."""

from __future__ import annotations

from ...dtypes import int64
from ..creation.fill import empty
from ..creation.from_data import tensor
from ..registry import FUNCTIONS, function
from ..views.reshape import normal_dim

# A copy with a part replaced


def _replaced(input, part_of, src):
    out = input.clone()
    part = part_of(out)
    if part.shape != src.shape:
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. src size = "
            f"{list(src.shape)}, slice size = {list(part.shape)}"
        )
    part.copy_(src)
    return out


@function(method=True)
def select_scatter(input, src, dim, index):
    """Replace one index of a dim by ``src``, in a copy."""
    return _replaced(input, lambda x: x.select(dim, index), src)


@function(method=True, out=True)
def slice_scatter(input, src, dim=0, start=None, end=None, step=1):
    """Replace a range of a dim by ``src``, in a copy.

    Args:
        input: A tensor.
        src: In the shape of the range.
        dim: Of the range.
        start: Where it starts, 0 by default.
        end: Before which it ends, the size of the dim by default.
        step: Its step, positive.
    """
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    if not input.ndim:
        raise RuntimeError("slice() cannot be applied to a 0-dim tensor.")
    d = normal_dim("slice_scatter", dim, input.ndim)
    key = (*(slice(None),) * d, slice(start, end, step))
    return _replaced(input, lambda x: x[key], src)


@function(method=True)
def diagonal_scatter(input, src, offset=0, dim1=0, dim2=1):
    """Replace a diagonal by ``src``, in a copy."""
    return _replaced(input, lambda x: x.diagonal(offset, dim1, dim2), src)


@function(method=True)
def as_strided_scatter(input, src, size, stride, storage_offset=None):
    """Replace a strided view by ``src``, in a copy."""
    return _replaced(input, lambda x: x.as_strided(size, stride, storage_offset), src)


@function(method=True, out=True)
def narrow_copy(input, dim, start, length):
    """Copy a range of one dim.

    Raises:
        IndexError: ``dim`` is too small.
        RuntimeError: It is too large, or the range is out of bounds.
    """
    if dim >= input.ndim:
        raise RuntimeError(f"narrow_copy: dim {dim} is out of range for {input.ndim} dimensions.")
    return input.narrow(dim, start, length).clone()


@function(method=True, inplace="index_reduce_", out=True)
def index_reduce(input, dim, index, source, reduce, *, include_self=True):
    """Reduce ``source`` into the slices of ``dim`` that the index names, in a copy.

    Args:
        input: A tensor.
        dim: Along which.
        index: A vector of integers.
        source: In the shape of ``input``, but as long as the index along ``dim``.
        reduce: "prod", "mean", "amax" or "amin".
        include_self: The values of ``input`` take part; else only untouched ones stay.
    """
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(
            f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got "
            f"{reduce}."
        )
    d = normal_dim("index_reduce", dim, input.ndim)
    if index.ndim > 1:
        raise IndexError(f"index_reduce(): Index is supposed to be a vector; got {index.ndim}-d.")
    if source.dtype is not input.dtype:
        raise RuntimeError(
            "index_reduce(): self and source expected to have the same dtype, but got (self) "
            f"{input.dtype} and (source) {source.dtype}."
        )
    rows = index.to(int64).reshape(-1)
    if source.ndim and source.shape[d] != rows.shape[0]:
        raise RuntimeError(
            f"index_reduce(): Number of indices ({rows.shape[0]}) should be equal to "
            f"source.size(dim) ({source.shape[d]})."
        )
    if source.ndim:
        rows = rows.reshape(-1, *(1,) * (source.ndim - 1 - d)).expand(source.shape)
    else:
        rows = rows.reshape(())
    return input.scatter_reduce(d, rows, source, reduce, include_self=include_self)


# The flat tensor


@function(method=True, inplace="put_")
def put(input, index, source, accumulate=False):
    """Write ``source`` at indices of the flattened tensor, in a copy.

    Args:
        input: A tensor.
        index: int64, places in the flattened tensor.
        source: As many elements, in the dtype of ``input``.
        accumulate: Add instead.
    """
    if index.dtype is not int64:
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {index.dtype}.")
    if source.dtype is not input.dtype:
        raise RuntimeError(
            "put_(): self and source expected to have the same dtype, but got self.dtype = "
            f"{input.dtype} and source.dtype = {source.dtype}."
        )
    if source.numel() != index.numel():
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.numel()}, index.numel() = {index.numel()}."
        )
    places = (index.reshape(-1),)
    flat = input.reshape(-1)
    return flat.index_put(places, source.reshape(-1), accumulate).reshape(input.shape)


@function(method=True)
def diagflat(input, offset=0):
    """Create a matrix with the flattened input on a diagonal."""
    return input.reshape(-1).diag_embed(offset)


@function(method=True, public=False)
def fill_diagonal_(input, fill_value, wrap=False):
    """Fill the main diagonal with one value; ``wrap`` repeats it in a tall matrix."""
    if input.ndim < 2:
        raise RuntimeError("dimensions must larger than 1")
    if input.ndim > 2 and len(set(input.shape)) > 1:
        raise RuntimeError("all dimensions of input must be of equal length")
    view = input
    while view.ndim > 1:
        view = view.diagonal(0, 0, view.ndim - 1)
    view.fill_(fill_value)
    if wrap and input.ndim == 2:
        rows, columns = input.shape
        for first in range(columns + 1, rows, columns + 1):
            input[first:].diagonal().fill_(fill_value)
    return input


# Methods that PyTorch has beside the functions


@function(method=True, public=False)
def apply_(input, callable):
    """Apply ``callable(element)`` to each element in place; slow, for the CPU only.

    Raises:
        TypeError: The tensor is not on the CPU.
    """
    if input.device.type != "cpu":
        raise TypeError(f"apply_ is only implemented on CPU tensors; got one on {input.device}.")
    if input.requires_grad:
        raise RuntimeError("Can't call apply_() on Variable that requires grad. Detach it.")
    values = [callable(v) for v in input.reshape(-1).tolist()]
    return input.copy_(_tensor(values, input).reshape(input.shape))


@function(method=True, public=False)
def map_(input, other, callable):
    """Replace each element by ``callable(element, element of other)``; slow, for the CPU only."""
    if input.device.type != "cpu":
        raise TypeError(f"map_ is only implemented on CPU tensors; got one on {input.device}.")
    if input.requires_grad or other.requires_grad:
        raise RuntimeError("Can't call map_() on Variable that requires grad. Detach it.")
    others = other.expand(input.shape).reshape(-1).tolist()
    pairs = zip(input.reshape(-1).tolist(), others, strict=True)
    return input.copy_(_tensor([callable(a, b) for a, b in pairs], input).reshape(input.shape))


@function(method=True, public=False)
def map2_(input, x, y, callable):
    """Replace each element by ``callable(element, element of x, of y)``; slow, CPU only."""
    if input.device.type != "cpu":
        raise TypeError(f"map2_ is only implemented on CPU tensors; got one on {input.device}.")
    if input.requires_grad or x.requires_grad or y.requires_grad:
        raise RuntimeError("Can't call map2_() on Variable that requires grad. Detach it.")
    columns = [t.expand(input.shape).reshape(-1).tolist() for t in (input, x, y)]
    values = [callable(*row) for row in zip(*columns, strict=True)]
    return input.copy_(_tensor(values, input).reshape(input.shape))


def _tensor(values, like):
    return tensor(values, dtype=like.dtype, device=like.device)


@function(method=True)
def is_conj(input):
    """Return False: conjugation is never lazy here."""
    return False


@function(method=True)
def is_neg(input):
    """Return False: negation is never lazy here."""
    return False


@function(method=True)
def resolve_neg(input):
    """Return the tensor itself: negation is never lazy here."""
    return input


@function(method=True)
def unsafe_chunk(input, chunks, dim=0):
    """Split a dim into ``chunks`` ranges; views, as of ``chunk``."""
    return input.chunk(chunks, dim)


@function(method=True)
def unsafe_split(input, split_size, dim=0):
    """Split a dim into ranges of one size; views, as of ``split``."""
    return input.split(split_size, dim)


@function(method=True)
def unsafe_split_with_sizes(input, split_sizes, dim=0):
    """Split a dim into ranges of the sizes given; views, as of ``split_with_sizes``."""
    return input.split_with_sizes(split_sizes, dim)


@function(method=True, out=True)
def nonzero_static(input, *, size, fill_value=-1):
    """Return the coordinates of nonzero elements in ``size`` rows, truncated or padded.

    Args:
        input: A tensor.
        size: Number of rows.
        fill_value: For rows that are left over.
    """
    found = input.nonzero()[:size]
    rest = empty((size - found.shape[0], input.ndim), dtype=int64, device=input.device)
    return FUNCTIONS["cat"]([found, rest.fill_(fill_value)])
