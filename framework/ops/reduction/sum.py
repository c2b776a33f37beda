"""sum, mean, prod, all, any, count_nonzero, over any number of dims."""

from __future__ import annotations

import builtins
from math import prod as product

from ...dtypes import BOOL, FLOAT, INT, as_dtype, bool_, float64, int64, uint8
from ...kernels.common.half_reduce import sum_halves, summed_as_is, sums_in_float32
from ...kernels.common.layout import contiguous, worth_compiling
from ...kernels.common.reduce import average, every, some, total
from ...kernels.common.schedule import parallel_rows
from ...spec import Spec
from ..autocast_policy import WIDE_ON_CUDA
from ..creation.factory import size_of
from ..inplace import into
from ..registry import function, op
from ..signatures import per_element


def normalize_dims(name: str, dim, ndim: int) -> tuple[int, ...]:
    """Normalize reduced dims to sorted non-negative ints; None or () means all.

    Raises:
        IndexError: A dim is out of range.
        RuntimeError: A dim appears twice.
    """
    if dim is None or dim == () or dim == []:
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    limit = builtins.max(ndim, 1)
    for d in dims:
        if isinstance(d, str):
            raise TypeError(f"{name}: dim is an int or ints, not names; got {dim!r}.")
        if not -limit <= d < limit:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but "
                f"got {d}): {name} of a tensor of {ndim} dimensions."
            )
    found = tuple(sorted(d % limit for d in dims))
    if len(set(found)) != len(found):
        raise RuntimeError(f"{name}: a dim appears multiple times in the list of dims {dims}.")
    return found if ndim else ()


def reduced_shape(shape, dims, keepdim):
    """The shape of a reduction over ``dims``."""
    if keepdim:
        return tuple(1 if k in dims else n for k, n in enumerate(shape))
    return tuple(n for k, n in enumerate(shape) if k not in dims)


def expand_reduced(g, spec, dims, keepdim):
    """Expand the gradient of a reduction over the reduced dims."""
    return kept(g, dims, keepdim).expand(spec.shape)


def kept(x, dims, keepdim):
    """Restore the reduced dims of a tensor, with size 1."""
    if not keepdim:
        for d in dims:
            x = x.unsqueeze(d)
    return x


def count_of(spec, dims):
    """Return how many elements each result reduces."""
    return product(spec.shape[d] for d in dims)


def reductions(make):
    """Samples of a reduction with ``dim`` and ``keepdim``."""
    for shape, dim, keep in (
        ((3, 4), (1,), False),
        ((2, 3, 4), (0, 2), True),
        ((), (), False),
        ((4,), (0,), True),
        ((3, 4), (0, 1), False),
        ((0, 3), (1,), False),
    ):
        yield (make(*shape),), {"dim": dim, "keepdim": keep}


def with_dtype(make):
    """The same samples with ``dtype`` (None is the input's), and an empty tensor."""
    yield from _mean_samples(make)
    yield (make(0, 3),), {"dim": (0,), "keepdim": False, "dtype": None}


def _mean_samples(make):
    for (x,), attributes in reductions(make):
        yield (x,), {**attributes, "dtype": None}
    yield (make(3, 2),), {"dim": (0,), "keepdim": False, "dtype": float64}


def _prod_samples(make):
    for shape, dim in (((3, 4), (1,)), ((2, 3, 2), (0, 1, 2)), ((), ()), ((0, 3), (0,))):
        yield (make(*shape),), {"dim": dim, "keepdim": False, "dtype": None}
    yield (make(3, 2),), {"dim": (0,), "keepdim": True, "dtype": float64}


def _reduced_infer(input, *, dim, keepdim, dtype):
    return Spec(reduced_shape(input.shape, dim, keepdim), dtype or input.dtype)


def _converted(input, dtype):
    # The sum's dtype; a conversion beforehand only where adding up first would differ.
    wanted = as_dtype(dtype) if dtype is not None else input.dtype
    if dtype is None and wanted.category in (BOOL, INT):
        wanted = int64
    lossy = wanted.category < input.dtype.category
    return (input.to(wanted) if lossy else input), wanted


def _need_float(name, input, dtype):
    # mean() and similar functions have no integer result.
    wanted = as_dtype(dtype) if dtype is not None else input.dtype
    if wanted.category < FLOAT:
        what = "Input dtype" if dtype is None else "Optional dtype"
        raise RuntimeError(
            f"{name}(): could not infer output dtype. {what} must be either a floating point or "
            f"complex dtype; got {wanted}. Convert with .to(float32), or pass dtype=."
        )
    return (input.to(wanted) if wanted.category < input.dtype.category else input), wanted


# Sums and means


@op(
    infer=_reduced_infer,
    flops=per_element(1),
    samples=with_dtype,
    autocast=WIDE_ON_CUDA,
)
def _sum(xp, out, input, *, dim, keepdim, dtype):
    """Sum over ``dim``."""
    total(xp, input, dim, out, keepdim)


@_sum.kernel("cpu", dtypes="half", when=summed_as_is, layout=contiguous, scratch=sums_in_float32)
def _(xp, out, sums, input, *, dim, keepdim, dtype):
    sum_halves(out, sums, input, dim, divide=False)


@_sum.vjp("input")
def _(g, input_spec, dim, keepdim):
    return expand_reduced(g, input_spec, dim, keepdim)


@function(method=True)
def sum(input, dim=None, keepdim=False, *, dtype=None, out=None):
    """Sum over ``dim`` (an int, several, or None for all).

    Args:
        input: Any shape and dtype.
        dim: What to reduce.
        keepdim: Leave the reduced dims, with size 1.
        dtype: Add up in this dtype. Integers and booleans use int64 unless it says otherwise.
        out: Where to write the result.

    Memory:
        Keeps nothing: the gradient is expanded, without a copy.
    """
    input, wanted = _converted(input, dtype)
    dims = normalize_dims("sum", dim, input.ndim)
    return _sum(input, dim=dims, keepdim=keepdim, dtype=wanted, out=out)


@function(method=True)
def nansum(input, dim=None, keepdim=False, *, dtype=None, out=None):
    """Sum over ``dim``, treating NaN as 0."""
    if input.dtype.category >= FLOAT:
        input = input.masked_fill(input != input, 0)
    return sum(input, dim, keepdim, dtype=dtype, out=out)


@op(infer=_reduced_infer, flops=per_element(1), samples=_mean_samples)
def _mean(xp, out, input, *, dim, keepdim, dtype):
    """Mean over ``dim``; NaN for no elements."""
    average(xp, input, dim, out, keepdim)


@_mean.kernel("cpu", dtypes="half", when=summed_as_is, layout=contiguous, scratch=sums_in_float32)
def _(xp, out, sums, input, *, dim, keepdim, dtype):
    sum_halves(out, sums, input, dim, divide=True)


@_mean.vjp("input")
def _(g, input_spec, dim, keepdim):
    return expand_reduced(g / (count_of(input_spec, dim) or 1), input_spec, dim, keepdim)


@function(method=True)
def mean(input, dim=None, keepdim=False, *, dtype=None, out=None):
    """Compute the mean over ``dim`` (an int, several, or None for all).

    Raises:
        RuntimeError: The dtype is not floating.

    Memory:
        Keeps nothing.
    """
    input, wanted = _need_float("mean", input, dtype)
    dims = normalize_dims("mean", dim, input.ndim)
    return _mean(input, dim=dims, keepdim=keepdim, dtype=wanted, out=out)


@function(method=True)
def nanmean(input, dim=None, keepdim=False, *, dtype=None, out=None):
    """Compute the mean over ``dim``, ignoring NaN."""
    if input.dtype.category < FLOAT:
        raise RuntimeError(
            f"nanmean(): expected input to have floating point or complex dtype but got "
            f"{input.dtype}. Convert with .to(float32)."
        )
    numbers = (input == input).sum(dim, keepdim)
    return into(out, nansum(input, dim, keepdim, dtype=dtype) / numbers)


@function(method=True)
def sum_to_size(input, *size, **named):
    """Sum to shape ``size``, the reverse of broadcasting."""
    shape = size_of("sum_to_size", size, named)
    extra = input.ndim - len(shape)
    dims = [k for k, n in enumerate(input.shape) if k < extra or (shape[k - extra] == 1 and n != 1)]
    if extra < 0 or builtins.any(
        shape[k - extra] != n for k, n in enumerate(input.shape) if k not in dims
    ):
        raise RuntimeError(
            f"sum_to_size undoes a broadcast: size {{{list(shape)}}} is not expandable to size "
            f"{{{list(input.shape)}}}. Pass a size that broadcasts to the tensor's."
        )
    if not shape:
        return input.sum()  # of integers in int64, as PyTorch only does for this size
    out = input.sum(dims, keepdim=True) if dims else input
    return out.reshape(shape) if out.shape != shape else out


# Products


@op(
    infer=_reduced_infer,
    flops=per_element(1),
    samples=_prod_samples,
    autocast="float32",
)
def _prod(xp, out, input, *, dim, keepdim, dtype):
    """Product over ``dim``."""
    xp.prod(input, axis=dim, dtype=out.dtype, keepdims=keepdim, out=out)


@_prod.vjp("input")
def _(g, input, dim, keepdim):
    # The product of all others is that of those before times that of those after, which holds
    # with any number of zeros. (Dividing the product by the element fails at one.)
    shape = input.shape
    g = kept(g, dim, keepdim)
    if len(dim) > 1:  # only ever all dims
        input, g, axis = input.reshape(-1), g.reshape(-1), 0
    elif not dim:
        return g
    else:
        axis = dim[0]
    if not input.numel():
        return g.expand(input.shape).reshape(shape)
    from .scan import _prod_others

    return (g * _prod_others(input, dim=axis).conj()).reshape(shape)


@_prod.composite
def _(input, dim, keepdim, dtype):
    from .scan import cumprod_along

    shape = reduced_shape(input.shape, dim, keepdim)
    input = input.to(dtype)
    if not dim:
        return input
    if not input.numel():
        return (input.sum(dim) + 1).reshape(shape)
    if len(dim) > 1:  # only ever all dims
        input, dim = input.reshape(-1), (0,)
    running = cumprod_along(input, dim=dim[0], dtype=dtype, reverse=False)
    return running.narrow(dim[0], input.shape[dim[0]] - 1, 1).reshape(shape)


def _last_dims(input, *, dim, keepdim, dtype):
    last = dim == (input.ndim - 1,) or len(dim) == input.ndim
    return last and dtype in (None, input.dtype) and worth_compiling(input)


@_prod.kernel("cpu", when=_last_dims, layout=contiguous)
def _(xp, out, input, *, dim, keepdim, dtype):
    # NumPy multiplies what lies in a row one after the other.
    from ...kernels.cpu.reduction import scan

    parallel_rows(scan.product, input.size, out.size, out.reshape(-1), input.reshape(out.size, -1))


@function(method=True)
def prod(input, dim=None, keepdim=False, *, dtype=None, out=None):
    """Compute the product over one ``dim``, or over all elements.

    The gradient is right however many factors are zero.

    Memory:
        Keeps ``input``.

    Raises:
        TypeError: Several dims.
    """
    if isinstance(dim, tuple | list):
        raise TypeError(
            f"prod() takes one dim, or none for all; got {dim}. Reduce one dim after the other."
        )
    input, wanted = _converted(input, dtype)
    dims = normalize_dims("prod", dim, input.ndim)
    return _prod(input, dim=dims, keepdim=keepdim, dtype=wanted, out=out)


# Truth and counts


def _truth_infer(input, *, dim, keepdim):
    kind = uint8 if input.dtype is uint8 else bool_
    return Spec(reduced_shape(input.shape, dim, keepdim), kind)


@op(infer=_truth_infer, half="exact", samples=reductions)
def _all(xp, out, input, *, dim, keepdim):
    """True where every element over ``dim`` is nonzero."""
    every(xp, input, dim, out, keepdim)


@op(infer=_truth_infer, half="exact", samples=reductions)
def _any(xp, out, input, *, dim, keepdim):
    """True where some element over ``dim`` is nonzero."""
    some(xp, input, dim, out, keepdim)


@function(method=True)
def all(input, dim=None, keepdim=False, *, out=None):
    """Test whether all elements over ``dim`` are nonzero; True for none. No dims: of each."""
    dims = () if dim == () or dim == [] else normalize_dims("all", dim, input.ndim)
    return _all(input, dim=dims, keepdim=keepdim, out=out)


@function(method=True)
def any(input, dim=None, keepdim=False, *, out=None):
    """Test whether any element over ``dim`` is nonzero; False for none. No dims: of each."""
    dims = () if dim == () or dim == [] else normalize_dims("any", dim, input.ndim)
    return _any(input, dim=dims, keepdim=keepdim, out=out)


def _count_infer(input, *, dim):
    return Spec(reduced_shape(input.shape, dim, False), int64), input.like(dtype=bool_)


def _count_samples(make):
    for (x,), attributes in reductions(make):
        yield (x,), {"dim": attributes["dim"]}


@op(
    infer=_count_infer,
    scratch=("mask",),
    half="exact",
    samples=_count_samples,
)
def _count_nonzero(xp, out, mask, input, *, dim):
    """Count nonzero elements over ``dim``."""
    xp.not_equal(input, 0, out=mask)
    xp.sum(mask, axis=dim, dtype=out.dtype, out=out)


@function(method=True)
def count_nonzero(input, dim=None):
    """Count the nonzero elements over ``dim``, in int64."""
    return _count_nonzero(input, dim=normalize_dims("count_nonzero", dim, input.ndim))
