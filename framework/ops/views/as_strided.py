"""Views by strides: diagonal, unfold, as_strided."""

from __future__ import annotations

from math import prod

import numpy as np

from ...autograd import given_ops
from ...autograd.view_history import OfFunction, base_of
from ...kernels.common.strided import strided
from ..creation.fill import ones, zeros
from ..creation.ranges import arange
from ..registry import function, op
from .inplace_views import rebind_as_view
from .reshape import normal_dim

# Diagonals


def _diagonal_length(shape, offset, a, b):
    rows, columns = (shape[a], shape[b] - offset) if offset >= 0 else (shape[a] + offset, shape[b])
    return max(min(rows, columns), 0)


def _diagonal_infer(input, *, offset, dim1, dim2):
    rest = [n for k, n in enumerate(input.shape) if k not in (dim1, dim2)]
    return input.like((*rest, _diagonal_length(input.shape, offset, dim1, dim2)))


def _diagonal_samples(make):
    yield (make(3, 4),), {"offset": 0, "dim1": 0, "dim2": 1}
    yield (make(2, 4, 3),), {"offset": -1, "dim1": 1, "dim2": 2}
    yield (make(2, 3, 2),), {"offset": 1, "dim1": 2, "dim2": 0}
    yield (make(0, 3),), {"offset": 0, "dim1": 0, "dim2": 1}


@op(view=True, infer=_diagonal_infer, samples=_diagonal_samples)
def _diagonal(xp, input, *, offset, dim1, dim2):
    """Return a diagonal of two dims, as the last dim."""
    return _diagonal_of(xp, input, offset, dim1, dim2)


def _diagonal_of(xp, array, offset, a, b):
    n = _diagonal_length(array.shape, offset, a, b)
    rest = [k for k in range(array.ndim) if k not in (a, b)]
    shape = (*[array.shape[k] for k in rest], n)
    strides = (*[array.strides[k] for k in rest], array.strides[a] + array.strides[b])
    if n and offset:  # start where the diagonal does
        first = [slice(None)] * array.ndim
        first[b if offset > 0 else a] = slice(abs(offset), None)
        array = array[tuple(first)]
    return strided(xp, array, shape, strides)


@_diagonal.vjp("input")
def _(g, input_spec, offset, dim1, dim2):
    return _diagonal_amid_zeros(
        g, shape=tuple(input_spec.shape), offset=offset, dim1=dim1, dim2=dim2
    )


def _diagonal_amid_samples(make):
    x = make(3)
    (n,) = x.shape
    yield (x,), {"shape": (n, n + 1), "offset": 1, "dim1": 0, "dim2": 1}
    y = make(2, 3)
    m, n = y.shape
    yield (y,), {"shape": (n, m, n + 2), "offset": -2, "dim1": 2, "dim2": 0}
    yield (make(0),), {"shape": (0, 3), "offset": 0, "dim1": 0, "dim2": 1}


@op(
    half="exact",
    samples=_diagonal_amid_samples,
    infer=lambda input, *, shape, offset, dim1, dim2: input.like(shape),
)
def _diagonal_amid_zeros(xp, out, input, *, shape, offset, dim1, dim2):
    """Embed the input as the diagonal of two dims of zeros."""
    out.fill(0)
    _diagonal_of(xp, out, offset, dim1, dim2)[...] = input


@_diagonal_amid_zeros.vjp("input")
def _(g, offset, dim1, dim2):
    return _diagonal(g, offset, dim1, dim2)


def _two_dims(name, ndim, dim1, dim2):
    a, b = normal_dim(name, dim1, ndim), normal_dim(name, dim2, ndim)
    if a == b:
        raise RuntimeError(f"{name}: dimensions cannot be identical {dim1}, {dim2}")
    return a, b


@function(method=True)
def diagonal(input, offset=0, dim1=0, dim2=1):
    """Return a diagonal of two dims, as the last dim (a view)."""
    a, b = _two_dims("diagonal", input.ndim, dim1, dim2)
    return _diagonal(input, offset, a, b)


@function(method=True)
def diag_embed(input, offset=0, dim1=-2, dim2=-1):
    """Embed the last dim as the diagonal of two new dims, zeros elsewhere."""
    a, b = _two_dims("diag_embed", input.ndim + 1, dim1, dim2)
    size = input.shape[-1] + abs(offset)
    shape = list(input.shape[:-1])
    for d in sorted((a, b)):
        shape.insert(d, size)
    return _diagonal_amid_zeros(input, shape=tuple(shape), offset=offset, dim1=a, dim2=b)


@function(method=True, out=True)
def diag(input, diagonal=0):
    """Return the diagonal of a matrix (a copy), or the matrix of a diagonal."""
    if input.ndim == 1:
        return input.diag_embed(diagonal)
    if input.ndim != 2:
        raise RuntimeError(
            f"diag(): Supports 1D or 2D tensors. Got {input.ndim}D. Use .diagonal()."
        )
    return input.diagonal(diagonal).clone()


# Windows


def _unfold_infer(input, *, dim, size, step):
    shape = list(input.shape)
    shape[dim] = (shape[dim] - size) // step + 1
    return input.like((*shape, size))


def _unfold_samples(make):
    yield (make(7),), {"dim": 0, "size": 3, "step": 2}
    yield (make(2, 5),), {"dim": 1, "size": 2, "step": 1}
    yield (make(0, 5),), {"dim": 1, "size": 2, "step": 3}


@op(view=True, infer=_unfold_infer, samples=_unfold_samples)
def _unfold(xp, input, *, dim, size, step):
    """Return the windows of one dim, their elements in a new last dim."""
    shape, strides = list(input.shape), list(input.strides)
    stride = strides[dim]
    shape[dim] = (shape[dim] - size) // step + 1
    strides[dim] = stride * step
    return strided(xp, input, (*shape, size), (*strides, stride))


@_unfold.vjp("input")
def _(g, input_spec, dim, size, step):
    return _fold_sum(g, shape=tuple(input_spec.shape), dim=dim, size=size, step=step)


def _fold_samples(make):
    x = make(4, 3)
    n, size = x.shape
    yield (x,), {"shape": (2 * (n - 1) + size + 1,), "dim": 0, "size": size, "step": 2}
    x = make(2, 3, 2)
    m, n, size = x.shape
    yield (x,), {"shape": (m, n - 1 + size), "dim": 1, "size": size, "step": 1}
    yield (make(0, 3, 2),), {"shape": (0, 4), "dim": 1, "size": 2, "step": 1}


@op(
    samples=_fold_samples,
    infer=lambda input, *, shape, dim, size, step: input.like(shape),
)
def _fold_sum(xp, out, input, *, shape, dim, size, step):
    """Sum windows into their places: the adjoint of ``unfold``."""
    out.fill(0)
    head = (slice(None),) * dim
    span = input.shape[dim] * step
    for k in range(size):
        place = out[(*head, slice(k, k + span, step))]
        xp.add(place, input[..., k], out=place)


@_fold_sum.vjp("input")
def _(g, dim, size, step):
    return _unfold(g, dim, size, step)


@function(method=True, public=False)
def unfold(input, dimension, size, step):
    """Return all windows of ``size`` elements of a dim, ``step`` apart, as a view."""
    if not input.ndim:
        normal_dim("unfold", dimension, 1)
        if size in (0, 1) and step > 0:  # PyTorch's window of a 0-d tensor has one dim, not two
            return input.unsqueeze(0).narrow(0, 0, size)
        input = input.unsqueeze(0)
    d = normal_dim("unfold", dimension, input.ndim)
    n = input.shape[d]
    if step <= 0 or size < 0 or size > n:
        raise RuntimeError(
            f"step is {step} but must be > 0"
            if step <= 0
            else f"maximum size for tensor at dimension {d} is {n} but size is {size}"
        )
    return _unfold(input, d, size, step)


# Any strides


def _as_strided_infer(input, *, size, stride, start, geometry):
    _need_pairs(size, stride)
    if any(s < 0 for s in stride):
        raise RuntimeError(f"as_strided: Negative strides are not supported; got {stride}.")
    return input.like(size)


def _as_strided_samples(make):
    x = make(3, 4)
    geometry = (x.shape[1], 1)
    yield (x,), {"size": (2, 2), "stride": (1, 4), "start": 1, "geometry": geometry}
    yield (x,), {"size": (3, 2), "stride": (1, 1), "start": 0, "geometry": geometry}
    yield (make(5),), {"size": (3, 3), "stride": (1, 1), "start": 0, "geometry": (1,)}
    yield (make(0),), {"size": (0, 2), "stride": (1, 1), "start": 0, "geometry": (1,)}


@op(view=True, infer=_as_strided_infer, samples=_as_strided_samples)
def _as_strided(xp, input, *, size, stride, start, geometry):
    """View with any shape and strides, from ``start`` relative to the input's first element.

    ``geometry`` is the input's strides, so that the gradient knows where its elements lay.
    """
    item = input.dtype.itemsize
    if tuple(s // item for s in input.strides) != geometry and input.size > 1:
        raise RuntimeError(
            "as_strided is repeated on a tensor of other strides. Make it contiguous."
        )
    steps = tuple([s * item for s in stride])
    if start < 0:
        return _from_before(xp, input, size, steps, start * item)
    flat = strided(xp, input, (start + _extent(size, stride),), (item,))
    return strided(xp, flat[start:], size, steps)


def _from_before(xp, array, size, steps, offset):
    """Return a strided view that begins ``offset`` bytes before the array's first element."""
    if xp is not np and hasattr(array, "data"):  # CuPy's
        return xp.ndarray(size, array.dtype, memptr=array.data + offset, strides=steps)
    root = array
    while True:
        base = getattr(root, "base", None)
        if not isinstance(base, np.ndarray):  # NumPy's as_strided puts an object in between
            base = getattr(base, "base", None)
        if not isinstance(base, np.ndarray):
            break
        root = base
    if not isinstance(root, np.ndarray) or not root.flags.c_contiguous:
        raise RuntimeError("as_strided reaches before the tensor's own memory. Clone the tensor.")
    begin = array.__array_interface__["data"][0] - root.__array_interface__["data"][0] + offset
    if begin < 0:
        raise RuntimeError("as_strided reaches before the tensor's memory. Pass a larger offset.")
    return np.ndarray(size, array.dtype, root.reshape(-1).view(np.uint8), begin, steps)


def _need_pairs(size, stride):
    if len(size) != len(stride):
        raise RuntimeError(
            f"as_strided: mismatch in length of strides and shape; got size {size} and stride "
            f"{stride}. Pass one stride for each dimension."
        )


def _extent(size, stride):
    """Return the number of elements from the first to the last of such a view."""
    if 0 in size:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def _overlaps(size, stride):
    reach = 1
    for s, n in sorted((s, n) for n, s in zip(size, stride, strict=True) if n > 1):
        if s < reach:
            return True
        reach += (n - 1) * s
    return False


given_ops.strided_view = _as_strided


@_as_strided.vjp("input")
def _(g, input_spec, size, stride, start, geometry):
    shape = tuple(input_spec.shape)
    first = -min(start, 0)  # where the input's first element lies in memory that both reach
    start += first
    length = max(start + _extent(size, stride), first + _extent(shape, geometry))
    flat = zeros((length,), dtype=g.dtype, device=g.device)
    by_index = g._spec.runs is not None  # inside vmap, where samples have no memory of their own
    if by_index or _overlaps(size, stride):
        where = _flat_indices(size, stride, start, g.device)
        flat = flat.index_add(0, where, g.reshape(-1))
    else:
        flat.as_strided(size, stride, start).copy_(g)
    if by_index:
        out = flat[_flat_indices(shape, geometry, first, g.device)].reshape(shape)
    else:
        out = flat.as_strided(shape, geometry, first)
    if _overlaps(shape, geometry):  # elements that share memory share its gradient
        where = _flat_indices(shape, geometry, first, g.device)
        counts = zeros((length,), dtype=g.dtype, device=g.device).index_add(
            0, where, ones((prod(shape),), dtype=g.dtype, device=g.device)
        )
        out = out / counts.as_strided(shape, geometry, first)
    return out


def _flat_indices(size, stride, start, device):
    """Return the flat index of each element of a strided view."""
    where = arange(1, device=device) + start
    for n, s in zip(size, stride, strict=True):
        where = where.unsqueeze(-1) + arange(n, device=device) * s
    return where.reshape(-1)


@function(method=True)
def as_strided(input, size, stride, storage_offset=None):
    """Return a view with any shape and strides, counted in elements of the storage.

    Args:
        input: A tensor.
        size: The shape.
        stride: The steps.
        storage_offset: Where it starts in the storage; None for where ``input`` does.

    Raises:
        RuntimeError: It would reach outside the storage.
    """
    here = input.storage_offset()
    start = here if storage_offset is None else int(storage_offset)
    size, stride = tuple(map(int, size)), tuple(map(int, stride))
    _need_pairs(size, stride)
    if start < 0:
        raise RuntimeError(f"as_strided: Negative offsets are not supported; got {start}.")
    if hasattr(input, "_levels"):  # a sample inside vmap, which has no others' elements
        least, most, of = here, here + _extent(input.shape, input.stride()), "a sample"
    else:
        least, most, of = 0, _available(input), "storage"
    if not least <= start <= start + _extent(size, stride) <= most and 0 not in size:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset "
            f"{start - least} are out of bounds for {of} of {most - least} elements."
        )
    if 0 in size:  # it has no place in memory
        start = here
    if start < here and input._viewed is not None:
        # A view can be replayed only forward: start from its base.
        if isinstance(input._viewed.tracked, OfFunction):
            raise input._viewed.tracked.error("as_strided from before the view")
        input = base_of(input._viewed)
        here = input.storage_offset()
    return _as_strided(input, size, stride, start - here, tuple(input.stride()))


def _available(input):
    """Return the number of elements in the storage; of external memory, up to the owner's last."""
    storage = input._storage
    owner = getattr(storage, "owner", None)
    if owner is None:
        return storage.nbytes // input.itemsize
    steps = [s // input.itemsize for s in owner.strides]
    return _extent(owner.shape, steps) * owner.dtype.itemsize // input.itemsize


@function(method=True)
def as_strided_(input, size, stride, storage_offset=None):
    """Set the shape and strides of this tensor over its storage."""
    return rebind_as_view(
        "as_strided_", input, lambda x: as_strided(x, size, stride, storage_offset)
    )
