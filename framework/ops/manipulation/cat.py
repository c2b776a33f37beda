"""Joining tensors (cat, stack and relatives), and broadcasting several tensors.

Every kernel writes the parts straight into their places of the result. Repeating and turning one
tensor is in ``repeat.py``, padding in ``pad.py``.
"""

from __future__ import annotations

from ...autograd import given_ops
from ...kernels.common.copy import place
from ...spec import Size, Spec
from ...tensor import Tensor
from ..inplace import need_separate
from ..registry import function, op
from ..signatures import broadcast_shapes as common_shape
from ..views.reshape import normal_dim

# Side by side


def _cat_infer(*tensors, dim):
    # An empty vector joins anything, as PyTorch has it.
    full = [s for s in tensors if tuple(s.shape) != (0,)]
    first = full[0] if full else tensors[0]
    total = 0
    for k, s in enumerate(tensors):
        if tuple(s.shape) == (0,):
            continue
        same_rest = s.ndim == first.ndim and all(
            d == dim or m == n for d, (m, n) in enumerate(zip(first.shape, s.shape, strict=True))
        )
        if not same_rest:
            raise RuntimeError(
                "cat joins tensors whose sizes match except in dimension "
                f"{dim}: Sizes of tensors must match; got {tuple(first.shape)} and "
                f"{tuple(s.shape)} for tensor number {k} in the list."
            )
        total += s.shape[dim]
    return Spec((*first.shape[:dim], total, *first.shape[dim + 1 :]), first.dtype)


def _cat_samples(make):
    yield (make(2, 3), make(4, 3)), {"dim": 0}
    yield (make(2, 3), make(2, 0), make(2, 1)), {"dim": 1}


@op(promote="arith", infer=_cat_infer, half="exact", samples=_cat_samples)
def _cat(xp, out, *tensors, dim):
    """Concatenate along ``dim``."""
    head = (slice(None),) * dim
    start = 0
    for array in tensors:
        if not array.size:
            continue
        stop = start + array.shape[dim]
        place(xp, out[(*head, slice(start, stop))], array)
        start = stop


@_cat.vjp("tensors")
def _(g, needs, tensors_spec, dim):
    start = 0
    parts = []
    for need, s in zip(needs, tensors_spec, strict=True):
        if s.ndim == g.ndim:
            parts.append(g.narrow(dim, start, s.shape[dim]) if need else None)
            start += s.shape[dim]
        else:
            parts.append(g.reshape(-1).narrow(0, 0, 0))
    return tuple(parts)


@function()
def cat(tensors, dim=0, *, out=None):
    """Concatenate tensors along an existing dim.

    Args:
        tensors: Several, equal in all other sizes; the dtypes are promoted.
        dim: Along which.
        out: Where to leave the result.
    """
    if isinstance(tensors, Tensor):
        raise TypeError("cat(): argument 'tensors' (position 1) must be tuple of Tensors.")
    tensors = tuple(tensors)
    if out is not None:
        need_separate("cat", out, tensors)
    if not tensors:
        raise ValueError(
            "cat(): expected a non-empty list of Tensors. Start with the first, or skip it."
        )
    for k, x in enumerate(tensors):
        if not isinstance(x, Tensor):
            raise TypeError(
                f"cat: expected Tensor as element {k} in argument 0, but got {type(x).__name__}"
            )
    if not all(x.ndim for x in tensors):
        raise RuntimeError("zero-dimensional tensor cannot be concatenated. Use stack.")
    d = normal_dim("cat", dim, max([x.ndim for x in tensors]))
    return _cat(*tensors, dim=d, out=out)


@function()
def concat(tensors, dim=0, *, out=None):
    """Concatenate tensors along an existing dim; same as ``cat``."""
    return cat(tensors, dim, out=out)


@function()
def concatenate(tensors, dim=0, *, out=None):
    """Concatenate tensors along an existing dim; same as ``cat``."""
    return cat(tensors, dim, out=out)


def _stack_infer(*tensors, dim):
    first = tensors[0]
    for k, s in enumerate(tensors):
        if s.shape != first.shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {tuple(first.shape)} at "
                f"entry 0 and {tuple(s.shape)} at entry {k}. Pad or crop them to one shape."
            )
    return Spec((*first.shape[:dim], len(tensors), *first.shape[dim:]), first.dtype)


def _stack_samples(make):
    yield (make(2, 3), make(2, 3)), {"dim": 1}
    yield (make(), make(), make()), {"dim": 0}
    yield (make(0, 2), make(0, 2)), {"dim": 0}


@op(promote="arith", infer=_stack_infer, half="exact", samples=_stack_samples)
def _stack(xp, out, *tensors, dim):
    """Stack along a new dim."""
    head = (slice(None),) * dim
    for k, array in enumerate(tensors):
        place(xp, out[(*head, k, ...)], array)


@_stack.vjp("tensors")
def _(g, needs, dim):
    return tuple([g.select(dim, k) if need else None for k, need in enumerate(needs)])


@function()
def stack(tensors, dim=0, *, out=None):
    """Stack tensors of one shape along a new dim."""
    tensors = _some("stack", tensors)
    d = normal_dim("stack", dim, tensors[0].ndim + 1)
    return _stack(*tensors, dim=d, out=out)


given_ops.stack = stack


def _each(function_of_one, tensors):
    return [function_of_one(x) for x in tensors]


def _some(name, tensors):
    tensors = tuple(tensors)
    if not tensors:
        raise RuntimeError(f"{name} expects a non-empty TensorList")
    return tensors


@function()
def hstack(tensors, *, out=None):
    """Concatenate along the second dim; vectors along their only one."""
    parts = _each(atleast_1d, _some("hstack", tensors))
    return cat(parts, 0 if parts and parts[0].ndim == 1 else 1, out=out)


@function()
def vstack(tensors, *, out=None):
    """Concatenate along the first dim; a vector is one row."""
    return cat(_each(atleast_2d, _some("vstack", tensors)), 0, out=out)


@function()
def row_stack(tensors, *, out=None):
    """Concatenate along the first dim; same as ``vstack``."""
    return vstack(tensors, out=out)


@function()
def dstack(tensors, *, out=None):
    """Concatenate along the third dim."""
    return cat(_each(atleast_3d, _some("dstack", tensors)), 2, out=out)


@function()
def column_stack(tensors, *, out=None):
    """Concatenate along the second dim; a vector is one column."""
    tensors = _some("column_stack", tensors)
    parts = [x.reshape(x.numel(), 1) if x.ndim <= 1 else x for x in tensors]
    return cat(parts, 1, out=out)


def _at_least(name, pad_to):
    def at_least(*tensors):
        if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
            return tuple(_each(pad_to, tensors[0]))
        if len(tensors) == 1:
            return pad_to(tensors[0])
        return tuple(_each(pad_to, tensors))

    at_least.__name__ = at_least.__qualname__ = name
    at_least.__doc__ = f"View as a tensor of {name[8]} or more dimensions; several as a tuple."
    return function()(at_least)


def _to_2d(x):
    return x if x.ndim >= 2 else x.reshape(1, 1) if not x.ndim else x.unsqueeze(0)


def _to_3d(x):
    if x.ndim >= 3:
        return x
    return x.unsqueeze(-1) if x.ndim == 2 else _to_2d(x).unsqueeze(-1)


atleast_1d = _at_least("atleast_1d", lambda x: x if x.ndim else x.reshape(1))
atleast_2d = _at_least("atleast_2d", _to_2d)
atleast_3d = _at_least("atleast_3d", _to_3d)


# To a common shape


@function()
def broadcast_shapes(*shapes):
    """Return the shape to which shapes broadcast."""
    shapes = [(s,) if isinstance(s, int) else tuple(s) for s in shapes]
    return Size(common_shape("broadcast_shapes", *shapes))


@function()
def broadcast_tensors(*tensors):
    """Expand tensors to their common shape (views)."""
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tensors[0]
    shape = common_shape("broadcast_tensors", *[x.shape for x in tensors])
    return tuple([x.expand(shape) for x in tensors])


@function()
def meshgrid(*tensors, indexing="ij"):
    """Create the grids of coordinates that vectors span (views).

    Args:
        *tensors: Vectors or 0-d tensors, or one list of them.
        indexing: "ij": dim k of every grid belongs to vector k; "xy": the first two change places.
    """
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tensors[0]
    tensors = [x.reshape(-1) if not x.ndim else x for x in tensors]
    if any(x.ndim > 1 for x in tensors):
        raise RuntimeError("meshgrid: Expected 0D or 1D tensor in the tensor list.")
    if indexing not in ("ij", "xy"):
        raise RuntimeError(
            f'meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}'
        )
    swap = indexing == "xy" and len(tensors) > 1
    if swap:
        tensors[0], tensors[1] = tensors[1], tensors[0]
    shape = tuple([x.numel() for x in tensors])
    grids = [
        x.view((1,) * k + (-1,) + (1,) * (len(shape) - k - 1)).expand(shape)
        if x.numel()
        else x.new_empty(shape)
        for k, x in enumerate(tensors)
    ]
    if swap:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


@function()
def cartesian_prod(*tensors):
    """Return every combination of the elements of vectors, one per row."""
    if len(tensors) == 1:
        return tensors[0].view(tensors[0].shape)
    return stack([x.reshape(-1) for x in meshgrid(*tensors)], 1)
