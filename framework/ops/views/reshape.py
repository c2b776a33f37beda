"""view, reshape, flatten, squeeze, unsqueeze.

A view op's attributes, together with its scalar inputs, are all that is needed to repeat it on
another tensor; that is how a write into a view finds its way into the history of the base
(``autograd/view_history.py``). Other orders of dims are in ``permute.py``, repetition without
memory in ``expand.py``, parts of a tensor (``narrow``, ``split``, ``diagonal``) in
``slice.py``.
"""

from __future__ import annotations

from math import prod
from operator import index as as_index

import numpy as np

from ...dtypes import as_dtype, dtype, float64
from ..registry import function, op

# Arguments


def sizes(args) -> tuple[int, ...]:
    """Parse sizes given as ``f(2, 3)`` or ``f((2, 3))``."""
    if len(args) == 1 and not isinstance(args[0], int) and hasattr(args[0], "__iter__"):
        args = args[0]
    return tuple([a if a.__class__ is int else as_index(a) for a in args])


def normal_dim(name: str, dim, ndim: int) -> int:
    """Normalize a dim to be counted from the front.

    Raises:
        IndexError: It is out of range.
    """
    limit = ndim or 1
    if not -limit <= dim < limit:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but "
            f"got {dim}): {name} of a tensor of {ndim} dimensions."
        )
    dim = as_index(dim)
    return dim + limit if dim < 0 else dim


def normal_dims(name: str, dims, ndim: int) -> tuple[int, ...]:
    """Normalize dims to be counted from the front, in the order given.

    Raises:
        IndexError: One is out of range.
        RuntimeError: One appears twice.
    """
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    found = tuple([normal_dim(name, d, ndim) for d in dims])
    if len(set(found)) != len(found):
        raise RuntimeError(
            f"{name}: repeated dim: a dim appears multiple times in {dims}. Name each once."
        )
    return found


def resolve(name: str, shape, numel: int) -> tuple[int, ...]:
    """Replace -1 in a shape.

    Raises:
        RuntimeError: It does not have ``numel`` elements.
    """
    if -1 not in shape:
        if prod(shape) == numel and (numel or all(n >= 0 for n in shape)):
            return tuple(shape)
    elif shape.count(-1) > 1:
        raise RuntimeError(f"{name}: only one dimension can be inferred; got {tuple(shape)}.")
    else:
        known = -prod(shape)
        if known and numel % known == 0:
            return tuple([numel // known if n == -1 else n for n in shape])
        if not known and not numel:
            raise RuntimeError(
                f"{name}: cannot reshape tensor of 0 elements into shape {list(shape)} because "
                "the unspecified dimension size -1 can be any value and is ambiguous. Name it."
            )
    if any(n < -1 for n in shape):
        raise RuntimeError(f"{name}: invalid shape dimension {min(shape)} in {list(shape)}.")
    raise RuntimeError(
        f"{name}: shape '{list(shape)}' is invalid for input of size {numel}. "
        "Pass sizes whose product that is; one of them may be -1."
    )


# Strides


def viewable(shape, strides, wanted) -> bool:
    """True if memory of this shape and strides can be viewed in another shape."""
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    new = [n for n in wanted if n != 1]
    if any(n == 0 for n, _ in old):
        return True
    first, k = 0, 0
    while k < len(new):
        last, have, want = first, old[first][0], new[k]
        while have != want:
            if want < have:
                k += 1
                want *= new[k]
            else:
                last += 1
                have *= old[last][0]
        if any(old[i][1] != old[i + 1][0] * old[i + 1][1] for i in range(first, last)):
            return False
        first, k = last + 1, k + 1
    return True


def fits(array, wanted) -> bool:
    """True if an array can be viewed in another shape without a copy."""
    return array.flags.c_contiguous or viewable(array.shape, array.strides, wanted)


# Another shape


def _view_rule(g, input_spec):
    return g.reshape(input_spec.shape)


def _view_samples(make):
    x = make(3, 4)
    yield (x,), {"shape": (2, x.numel() // 2)}
    y = make(2, 3, 4)
    yield (y,), {"shape": (y.shape[0] * y.shape[1], 1, y.shape[2])}
    yield (make(),), {"shape": (1, 1)}
    yield (make(0, 3),), {"shape": (3, 0, 2)}


@op(
    view=True,
    samples=_view_samples,
    infer=lambda input, *, shape, named: input.like(shape),
)
def _view(xp, input, *, shape, named=None):
    """View in another shape, if the strides allow it. The node's name is ``named``."""
    if input.flags.c_contiguous or viewable(input.shape, input.strides, shape):
        return input.reshape(shape)
    raise RuntimeError(
        "view size is not compatible with input tensor's size and stride (at least one "
        f"dimension spans across two contiguous subspaces): view of shape {input.shape} as "
        f"{tuple(shape)}. Use .reshape(...) instead."
    )


_view.vjp("input")(_view_rule)


@op(
    half="exact",
    samples=_view_samples,
    infer=lambda input, *, shape: input.like(shape),
)
def _reshape_copy(xp, out, input, *, shape):
    """Copy in another shape."""
    xp.copyto(out.reshape(input.shape), input)


_reshape_copy.vjp("input")(_view_rule)


def _view_dtype_infer(input, *, dtype):
    old, new = input.dtype.itemsize, dtype.itemsize
    shape = input.shape
    if old == new:
        return input.like(dtype=dtype)
    if not input.ndim:
        raise RuntimeError(
            "self.dim() cannot be 0 to view "
            f"{input.dtype.name} as {dtype.name} (different element sizes). Unsqueeze it first."
        )
    if shape[-1] * old % new:
        raise RuntimeError(
            f"view: self.size(-1) must be divisible by {new // old} to view {input.dtype.name} as "
            f"{dtype.name} (different element sizes), but got {shape[-1]}."
        )
    return input.like((*shape[:-1], shape[-1] * old // new), dtype)


def _view_dtype_samples(make):
    for shape in ((3, 4), (0, 4)):
        yield (make(*shape),), {"dtype": float64}


@op(view=True, infer=_view_dtype_infer, samples=_view_dtype_samples)
def _view_dtype(xp, input, *, dtype):
    """View the bytes as elements of another dtype."""
    resized = input.dtype.itemsize != dtype.itemsize
    known = input.size or xp is np  # CuPy's empty arrays have any strides
    if resized and known and input.strides[-1] != input.dtype.itemsize:
        raise RuntimeError(
            f"view: self.stride(-1) must be 1 to view {input.dtype} as {dtype.name} (different "
            "element sizes). Make it contiguous first."
        )
    return input.view(dtype.np)


@function(method=True, public=False)
def view(input, *shape, dtype=None, size=None):
    """View in another shape or as another dtype, without a copy.

    Args:
        input: A tensor.
        *shape: Sizes, one of which may be -1; or a dtype.
        dtype: The element type, if not given by position.
        size: The sizes, if not given by position.

    Raises:
        RuntimeError: The strides do not allow it; use ``reshape``.
    """
    if dtype is not None or (len(shape) == 1 and _is_dtype(shape[0])):
        return _view_dtype(input, as_dtype(shape[0] if dtype is None else dtype))
    wanted = sizes(shape if size is None else size)
    return _view(input, resolve("view", wanted, input._spec.numel))


def _is_dtype(value):
    return isinstance(value, dtype | type)


@function(method=True, public=False)
def view_as(input, other):
    """View in the shape of another tensor."""
    return input.view(other.shape)


@function(method=True)
def reshape(input, *sizes_, shape=None):
    """View in another shape where the strides allow it, else copy.

    Args:
        input: A tensor.
        *sizes_: Sizes, one of which may be -1.
        shape: The same by keyword.
    """
    wanted = resolve("reshape", sizes(sizes_ if shape is None else shape), input._spec.numel)
    array = input._array
    if array.flags.c_contiguous or viewable(array.shape, array.strides, wanted):
        return _view(input, wanted)
    return _reshape_copy(input, wanted)


@function(method=True, public=False)
def reshape_as(input, other):
    """Reshape to the shape of another tensor."""
    return input.reshape(other.shape)


@function(method=True)
def flatten(input, start_dim=0, end_dim=-1):
    """Flatten a range of dims into one; returns itself if there is nothing to merge."""
    ndim = input.ndim
    start = normal_dim("flatten", start_dim, ndim)
    end = normal_dim("flatten", end_dim, ndim)
    if start > end:
        raise RuntimeError(
            "flatten() has invalid args: start_dim cannot come after end_dim; got "
            f"{start_dim} and {end_dim}."
        )
    if ndim and start == end:
        return input
    shape = input.shape
    merged = prod(shape[start : end + 1])
    return input.reshape((*shape[:start], merged, *shape[end + 1 :]))


@function(method=True)
def unflatten(input, dim, sizes):
    """Split one dim into several; one of the sizes may be -1."""
    d = normal_dim("unflatten", dim, input.ndim)
    shape = input.shape
    split = resolve("unflatten", tuple(sizes), shape[d])
    return input.view((*shape[:d], *split, *shape[d + 1 :]))


@function(method=True)
def ravel(input):
    """Flatten to one contiguous dimension; a copy unless the input is contiguous."""
    return _view(input.contiguous(), (input.numel(),))


@function(method=True)
def squeeze(input, dim=None):
    """Remove dims of size 1: all of them, or those among ``dim`` (an int or several)."""
    shape = input.shape
    if dim is None:
        return _view(input, tuple([n for n in shape if n != 1]), "Squeeze")
    dims = normal_dims("squeeze", dim, len(shape))
    kept = tuple([n for k, n in enumerate(shape) if n != 1 or k not in dims])
    return _view(input, kept, "Squeeze")


@function(method=True)
def unsqueeze(input, dim):
    """Insert a dimension of size 1."""
    shape = input._spec.shape
    d = normal_dim("unsqueeze", dim, len(shape) + 1)
    return _view(input, (*shape[:d], 1, *shape[d:]), "Unsqueeze")
