"""expand and broadcast_to (views of stride 0), and contiguous.

The gradient of an expanded tensor is the sum over what was repeated.
"""

from __future__ import annotations

from ...kernels.common.strided import strided
from ..registry import function, op
from .reshape import sizes


def _expand_infer(input, *, shape):
    extra = len(shape) - input.ndim
    if extra < 0:
        raise RuntimeError(
            f"expand: the number of sizes provided ({len(shape)}) must be greater or equal to "
            f"the number of dimensions in the tensor ({input.ndim}); got sizes {shape} for "
            f"shape {tuple(input.shape)}."
        )
    for k, n in enumerate(shape):
        if n < 0:
            raise RuntimeError(
                f"expand: the expanded size of the tensor ({n}) isn't allowed in a leading, "
                f"non-existing dimension {k}. Name its size."
            )
        if k >= extra and input.shape[k - extra] not in (1, n):
            raise RuntimeError(
                f"The expanded size of the tensor ({n}) must match the existing size "
                f"({input.shape[k - extra]}) at non-singleton dimension {k}.  Target sizes: "
                f"{list(shape)}.  Tensor sizes: {list(input.shape)}. "
                "Only dims of size 1 expand; repeat copies others."
            )
    return input.like(shape)


def _expand_samples(make):
    x = make(3, 1)
    yield (x,), {"shape": (2, x.shape[0], 4)}
    yield (make(),), {"shape": (3,)}
    y = make(2, 3)
    yield (y,), {"shape": tuple(y.shape)}
    z = make(1, 3)
    yield (z,), {"shape": (0, z.shape[1])}
    yield (make(0, 1),), {"shape": (0, 2)}


@op(view=True, infer=_expand_infer, samples=_expand_samples)
def _expand(xp, input, *, shape):
    """Expand dims of size 1 by stride 0."""
    extra = len(shape) - input.ndim
    strides = [0] * extra
    for have, n, stride in zip(input.shape, shape[extra:], input.strides, strict=True):
        strides.append(stride if have == n else 0)
    return strided(xp, input, shape, tuple(strides))


@_expand.vjp("input")
def _(g):
    return g  # the engine sums it to the input's shape


@function(method=True, public=False)
def expand(input, *shape, size=None, implicit=False):
    """Expand dims of size 1 without memory; -1 keeps a size."""
    wanted = sizes(shape if size is None else size)
    if -1 in wanted:
        extra = len(wanted) - input.ndim
        wanted = tuple(
            [input.shape[k - extra] if n == -1 and k >= extra else n for k, n in enumerate(wanted)]
        )
    return _expand(input, wanted)


@function(method=True, public=False)
def expand_as(input, other):
    """Expand to the shape of another tensor."""
    return _expand(input, tuple(other.shape))


@function(method=True)
def broadcast_to(input, size):
    """Expand to a shape by the broadcasting rules."""
    return input.expand(size)


@function(method=True, public=False)
def contiguous(input, memory_format=None):
    """Return the tensor itself if it is contiguous in C order, else a contiguous copy."""
    return input if input._array.flags.c_contiguous else input.clone()
