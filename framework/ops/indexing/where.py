"""Selection by a condition: where, masked_fill, tril, triu."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from ...dtypes import BY_NUMPY, COMPLEX
from ...kernels.common.wrapping import fitting
from ...kernels.runtime import thresholds
from ...spec import ScalarSpec, Spec
from ...tensor import Tensor
from ..creation.factory import fitted
from ..creation.from_data import tensor
from ..registry import function, op
from ..signatures import broadcast_shapes
from .cpu_routes import choose, enough


def _where_infer(condition, input, other):
    shape = broadcast_shapes("where", condition.shape, input.shape, other.shape)
    return Spec(shape, input.dtype)


def every_third(*shape):
    """A mask for samples."""
    return tensor(np.arange(prod(shape)).reshape(shape) % 3 == 0)


def masks(make):
    """Samples of an op of one mask."""
    for shape in ((3, 4), (), (0, 3)):
        yield (every_third(*make(*shape).shape),), {}


def _where_samples(make):
    for a, b, c in (((3, 4), (3, 4), (3, 4)), ((3, 1), (4,), ()), ((2,), (0, 1), (2,))):
        yield (every_third(*make(*a).shape), make(*b), make(*c)), {}
    x = make(2, 3)
    yield (every_third(*x.shape), x, 1.5), {}


@op(
    promote=("arith", ("input", "other")),
    infer=_where_infer,
    half="exact",
    samples=_where_samples,
    elementwise=True,
)
def _where(xp, out, condition, input, other):
    """Select ``input`` where the condition is True, else ``other``."""
    xp.copyto(out, fitting(other, out.dtype), casting="unsafe")
    xp.copyto(out, fitting(input, out.dtype), where=condition, casting="unsafe")


@_where.kernel(
    "cpu",
    when=lambda condition, input, other: enough(
        prod(broadcast_shapes("where", condition.shape, input.shape, other.shape)), input.dtype
    ),
)
def _(xp, out, condition, input, other):
    if not choose(out, condition, fitting(input, out.dtype), fitting(other, out.dtype)):
        _where.op.plain(xp, out, condition, input, other)


@_where.vjp("input")
def _(g, condition):
    return _where(condition, g, 0)


@_where.vjp("other")
def _(g, condition):
    return _where(condition, 0, g)


@function()
def where(condition, input=None, other=None, *, out=None):
    """Select ``input`` where the condition is True, else ``other``; alone, return indices.

    Args:
        condition: A boolean tensor.
        input: A tensor or a scalar.
        other: A tensor or a scalar; all three broadcast.
        out: Where to leave the result.

    Memory:
        Keeps the condition for backward, neither of the values.
    """
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    if not isinstance(condition, Tensor):
        raise TypeError(f"where: condition must be a Tensor; got {type(condition).__name__}.")
    if condition.dtype.category:
        if condition.dtype.name != "uint8":
            raise RuntimeError(
                "where expected condition to be a boolean tensor, but got a tensor with dtype "
                f"{condition.dtype}. Compare it with something."
            )
        condition = condition != 0
    return _where(condition, input, other, out=out)


@function(method="where")
def _where_method(self, condition, other):
    """Keep the elements where the condition is True, else take ``other``."""
    return where(condition, self, other)


# Masks


def _masked_fill_infer(input, mask, value):
    if not isinstance(mask, Spec):
        raise TypeError("masked_fill: mask must be a Tensor; got a number. Compare tensors.")
    if mask.dtype.category:
        raise RuntimeError(
            "masked_fill_ only supports boolean masks, but got mask with dtype "
            f"{mask.dtype}. Compare it with something."
        )
    if value.ndim:
        raise RuntimeError(
            "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            f"{value.ndim} dimension(s)."
        )
    kind = value.category if isinstance(value, ScalarSpec) else value.dtype.category
    if kind == COMPLEX != input.dtype.category:
        raise RuntimeError(
            f"masked_fill: value cannot be converted to type {input.dtype.name} without overflow: "
            "it is complex. Pass its real part."
        )
    shape = broadcast_shapes("masked_fill", input.shape, mask.shape)
    return input.like(shape)


def _masked_fill_samples(make):
    x = make(3, 4)
    yield (x, every_third(*x.shape), 2.5), {}
    x = make(2, 3, 4)
    yield (x, every_third(x.shape[1], 1), make()), {}
    x = make(0, 3)
    yield (x, every_third(x.shape[1]), 0), {}
    yield (make(), every_third(2), 1.5), {}


@op(
    inplace="masked_fill_",
    infer=_masked_fill_infer,
    out=False,
    half="exact",
    samples=_masked_fill_samples,
    elementwise=True,
)
def masked_fill(xp, out, input, mask, value):
    """Fill with ``value`` where the mask is True; the mask broadcasts.

    Memory:
        Keeps the mask for backward, not the values.
    """
    if out is not input:
        xp.copyto(out, input)
    if isinstance(value, int | float):
        value = fitted(value, BY_NUMPY[out.dtype])
    xp.copyto(out, value, where=mask, casting="unsafe")


@masked_fill.kernel(
    "cpu",
    when=lambda input, mask, value: enough(
        prod(broadcast_shapes("masked_fill", input.shape, mask.shape)), input.dtype
    ),
)
def _(xp, out, input, mask, value):
    if isinstance(value, int | float):
        value = fitted(value, BY_NUMPY[out.dtype])
    value = xp.full((), value, out.dtype)
    if not choose(out, mask, value, input):
        masked_fill.op.plain(xp, out, input, mask, value)


@masked_fill.vjp("input")
def _(g, mask):
    return masked_fill(g, mask, 0)


@masked_fill.vjp("value")
def _(g, mask):
    return _where(mask, g, 0).sum()


# Triangles


def _tri_infer(input, *, diagonal):
    if input.ndim < 2:
        raise RuntimeError(
            f"tril and triu: input tensor must have at least 2 dimensions; got {input.ndim}."
        )
    return input


def _tri_samples(make):
    yield (make(3, 4),), {"diagonal": 0}
    yield (make(2, 4, 3),), {"diagonal": -1}
    yield (make(3, 3),), {"diagonal": 2}
    yield (make(0, 3),), {"diagonal": 0}


# At a time on the host: on one side of the diagonal all is kept, on the other all is zero.
_ROWS = 32
_MASKED = 1 << 14  # elements of a matrix up to which one call with a mask takes less


@lru_cache(maxsize=8)
def _kept_bits(rows, columns, diagonal, below, size):
    # All bits of what is kept, none of the other elements, as integers of so many bytes.
    kept = np.tri(rows, columns, diagonal, dtype=bool)
    return -(kept if below else ~kept).astype(f"i{size}")


def _mask(out, input, diagonal, below):
    bits = _kept_bits(*out.shape[-2:], diagonal, below, out.itemsize)
    np.bitwise_and(input.view(bits.dtype), bits, out=out.view(bits.dtype))


def _keep(xp, out, input, diagonal, below):
    # What is on and below a diagonal, or what is above it.
    rows, columns = input.shape[-2:]
    step = _ROWS
    if xp is not np:  # a mask of the rows and its opposite, a byte an element
        step = max(step, thresholds.tile_bytes(False) // (2 * max(1, columns)))
    elif rows * columns <= _MASKED and out.itemsize <= 8:
        _mask(out, input, diagonal, below)
        return
    for first in range(0, rows, step):
        last = min(first + step, rows)
        left, right = (max(0, min(columns, r + diagonal)) for r in (first + 1, last))
        y, x = out[..., first:last, :], input[..., first:last, :]
        kept, zeros = slice(right), slice(right, None)
        if not below:
            kept, zeros = slice(left, None), slice(left)
        if out is not input:
            xp.copyto(y[..., kept], x[..., kept])
        y[..., zeros] = 0
        if right > left and xp is np and out.itemsize <= 8:
            block = y[..., left:right]
            _mask(block, block, first + diagonal - left, below)
        elif right > left:
            reached = xp.tri(last - first, right - left, first + diagonal - left, dtype=bool)
            where = ~reached if below else reached
            xp.copyto(y[..., left:right], 0, casting="unsafe", where=where)


@op(inplace="tril_", infer=_tri_infer, half="exact", samples=_tri_samples)
def tril(xp, out, input, *, diagonal=0):
    """Return the lower triangle of a matrix, zeros above the diagonal."""
    _keep(xp, out, input, diagonal, True)


@tril.vjp("input")
def _(g, diagonal):
    return g.tril(diagonal)


@op(inplace="triu_", infer=_tri_infer, half="exact", samples=_tri_samples)
def triu(xp, out, input, *, diagonal=0):
    """Return the upper triangle of a matrix, zeros below the diagonal."""
    _keep(xp, out, input, diagonal - 1, False)


@triu.vjp("input")
def _(g, diagonal):
    return g.triu(diagonal)
