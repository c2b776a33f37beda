"""Views: other shapes and orders of the same memory, and ``reshape``, which copies if it must."""

from __future__ import annotations

from math import prod

from ..spec import Size, Spec
from .registry import function, op


def sizes(args) -> tuple[int, ...]:
    """``f(2, 3)`` and ``f((2, 3))`` mean the same."""
    if len(args) == 1 and not isinstance(args[0], int) and hasattr(args[0], "__iter__"):
        args = args[0]
    return tuple(int(a) for a in args)


def resolve(name: str, shape, numel: int) -> tuple[int, ...]:
    """A shape with its -1 filled in.

    Raises:
        RuntimeError: It does not have ``numel`` elements.
    """
    known = prod(n for n in shape if n != -1)
    if shape.count(-1) > 1:
        raise RuntimeError(f"{name}: only one dimension can be inferred; got {tuple(shape)}.")
    if -1 in shape and known and numel % known == 0:
        return tuple(numel // known if n == -1 else n for n in shape)
    if -1 in shape or prod(shape) != numel:
        raise RuntimeError(
            f"{name}: shape '{list(shape)}' is invalid for input of size {numel}."
        )
    return tuple(shape)


@op(name="_view", method=False, public=False, view=True, infer=lambda input, *, shape: input.like(shape))
def view_shape(xp, input, *, shape):
    """The same memory in another shape; the strides must allow it."""
    out = input.view()
    out.shape = shape
    return out


@view_shape.vjp("input")
def _(g, input_spec):
    return g.reshape(input_spec.shape)


@function(method=True, public=False)
def view(input, *shape):
    """Return the same memory in another shape, without a copy."""
    wanted = resolve("view", sizes(shape), input.numel())
    try:
        return view_shape(input, shape=wanted)
    except AttributeError:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one "
            "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
        ) from None


@function(method=True, public=False)
def view_as(input, other):
    """View in the shape of another tensor."""
    return view_shape(input, shape=tuple(other.shape))


@function(method=True)
def reshape(input, *shape):
    """View in another shape where the strides allow it, else copy."""
    wanted = resolve("reshape", sizes(shape), input.numel())
    try:
        return view_shape(input, shape=wanted)
    except AttributeError:
        return view_shape(input.clone(), shape=wanted)


def _permute_infer(input, *, dims):
    return input.like(tuple(input.shape[d] for d in dims))


@op(name="_permute", method=False, public=False, view=True, infer=_permute_infer)
def permute_dims(xp, input, *, dims):
    """Reorder the dimensions."""
    return input.transpose(dims)


@permute_dims.vjp("input")
def _(g, dims):
    return g.permute([dims.index(k) for k in range(len(dims))])


@function(method=True)
def permute(input, *dims):
    """Reorder the dimensions."""
    found = tuple(d % max(input.ndim, 1) for d in sizes(dims))
    return permute_dims(input, dims=found)


@op(name="_expand", method=False, public=False, view=True, infer=lambda input, *, shape: input.like(shape))
def expand_shape(xp, input, *, shape):
    """Repeat dims of size 1 without memory, by stride 0."""
    return xp.broadcast_to(input, shape)


@expand_shape.vjp("input")
def _(g):
    return g  # the engine sums it to the input's shape


@function(method=True, public=False)
def expand(input, *shape):
    """Repeat dims of size 1 without memory."""
    wanted = sizes(shape)
    extra = len(wanted) - input.ndim
    wanted = tuple(input.shape[k - extra] if n == -1 else n for k, n in enumerate(wanted))
    return expand_shape(input, shape=wanted)


@function(method=True)
def unsqueeze(input, dim):
    """Insert a dimension of size 1."""
    d = dim % (input.ndim + 1)
    return view_shape(input, shape=(*input.shape[:d], 1, *input.shape[d:]))
