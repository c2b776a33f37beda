"""Reductions over none, one or several dims."""

from __future__ import annotations

from ..dtypes import BOOL, INT, as_dtype, int64
from ..spec import Spec
from .registry import function, op, per_element


def normalize_dims(name: str, dim, ndim: int) -> tuple[int, ...]:
    """The dims to reduce, as sorted non-negative ints; None or () means all.

    Raises:
        IndexError: A dim is out of range.
        RuntimeError: A dim appears twice.
    """
    if dim is None or dim == () or dim == []:
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    limit = max(ndim, 1)
    for d in dims:
        if not -limit <= d < limit:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but "
                f"got {d}): {name} of a tensor of {ndim} dimensions."
            )
    found = tuple(sorted(d % limit for d in dims))
    if len(set(found)) != len(found):
        raise RuntimeError(f"{name}: a dim appears multiple times in the list of dims {dims}.")
    return found if ndim else ()


def reduced(shape, dims, keepdim):
    """A shape with some dims reduced."""
    if keepdim:
        return tuple(1 if k in dims else n for k, n in enumerate(shape))
    return tuple(n for k, n in enumerate(shape) if k not in dims)


def _sum_infer(input, *, dim, keepdim, dtype):
    return Spec(reduced(input.shape, dim, keepdim), dtype)


def _sum_samples(make):
    for shape, dim, keep in (((3, 4), (1,), False), ((2, 3, 4), (0, 2), True), ((), (), False)):
        x = make(*shape)
        yield (x,), {"dim": dim, "keepdim": keep, "dtype": x.dtype}


@op(
    name="_sum", method=False, public=False, infer=_sum_infer, half="float32",
    flops=per_element(1), samples=_sum_samples,
)  # fmt: skip
def sum_over(xp, out, input, *, dim, keepdim, dtype):
    """Add up over ``dim``."""
    xp.sum(input, axis=dim, dtype=out.dtype, keepdims=keepdim, out=out)


@sum_over.vjp("input")
def _(g, input_spec, dim, keepdim):
    return spread(g, input_spec, dim, keepdim)


def spread(g, spec, dims, keepdim):
    """Expand a reduced gradient over the dims that were reduced."""
    if not keepdim and dims:
        for d in dims:
            g = g.unsqueeze(d)
    return g.expand(spec.shape)


@function(method=True)
def sum(input, dim=None, keepdim=False, *, dtype=None):
    """Add up over ``dim`` (an int, several, or None for all).

    Integers and booleans add up in int64 unless ``dtype`` says otherwise.
    """
    wanted = as_dtype(dtype) if dtype is not None else input.dtype
    if dtype is None and wanted.category in (BOOL, INT):
        wanted = int64
    if wanted is not input.dtype and wanted.category > INT:
        input = input.to(wanted)
    return sum_over(input, dim=normalize_dims("sum", dim, input.ndim), keepdim=keepdim, dtype=wanted)


@function(method=True)
def sum_to_size(input, *size):
    """Add up over the dims that broadcasting ``size`` to this shape would repeat."""
    shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
    extra = input.ndim - len(shape)
    dims = [
        k for k, n in enumerate(input.shape) if k < extra or (shape[k - extra] == 1 and n != 1)
    ]
    out = input.sum(dims, keepdim=True) if dims else input
    return out.view(shape) if out.shape != shape else out
