"""Cumulative ops along a dim (cumsum, cumprod, cummax, ...), and linear recurrences.

A running product's gradient is a linear recurrence, and so is that recurrence's own gradient; with
one op for it (``_recurrence``) every derivative is right at zeros too, where dividing by the
elements fails. On any device it is computed by doubling: log2(n) passes over whole arrays; on a CPU
large ones take one compiled pass.
"""

from __future__ import annotations

import builtins
from functools import partial
from math import prod

from ...autograd.engine import ones_of
from ...dtypes import bool_, float32, float64, int64
from ...kernels.common.compiled_rows import compiled_rows
from ...kernels.common.layout import worth_compiling
from ...spec import Spec
from ..autocast_policy import WIDE_ON_CUDA
from ..creation.fill import zeros_like
from ..elementwise.arithmetic import buffered, conjugate
from ..elementwise.binary import complex_logaddexp
from ..indexing.gather import _scatter_sum
from ..manipulation.cat import cat
from ..registry import function, op
from ..signatures import per_element
from .minmax import _pair, one_dim
from .sum import _converted


def _samples(make):
    for shape, dim in (((3, 4), 1), ((2, 3, 4), 0), ((), 0), ((0, 3), 0), ((3, 1), 1)):
        yield (make(*shape),), {"dim": dim}


def _sum_samples(make):
    for (x,), attributes in _samples(make):
        for reverse in (False, True):
            yield (x,), {**attributes, "dtype": None, "reverse": reverse}
    yield (make(3, 2),), {"dim": 0, "dtype": float64, "reverse": False}


def _flipped(array, dim, reverse):
    # Backwards along dim, as a view.
    if not reverse or not array.ndim:
        return array
    return array[(slice(None),) * dim + (slice(None, None, -1),)]


def _accumulate(xp, ufunc, target, source, dim):
    if source.dtype != target.dtype:  # NumPy would convert into an array of its own
        xp.copyto(target, source, casting="unsafe")  # as PyTorch: integers wrap around
        source = target
    ufunc(source, axis=dim, out=target)


def span(array, dim, start, stop):
    """Return a slice along one dim, as a view."""
    return array[(slice(None),) * dim + (slice(start, stop),)]


def _compiled_along(op, name, numbers=lambda reverse, dtype=None: (reverse,)):
    """Register a compiled CPU kernel for an op along ``dim``, on (count, n, columns) arrays."""

    def fits(input, *_, dtype=None, **__):
        return input.ndim > 0 and worth_compiling(input) and dtype in (None, input.dtype)

    def arguments(*arrays, dim, **given):
        shape = arrays[0].shape
        count = prod(shape[:dim])
        cubes = [a.reshape(count, shape[dim], prod(shape[dim + 1 :])) for a in arrays]
        return arrays[0].size, count, (*cubes, *numbers(**given))

    compiled_rows(op, f"reduction.scan:{name}", when=fits, arguments=arguments)


def _accumulating(name, doc):
    """Declare a cumulative sum or product, from the start or to the end."""

    def kernel(xp, out, input, *, dim, dtype, reverse):
        if not input.ndim:
            xp.copyto(out, input)
            return
        source, target = _flipped(input, dim, reverse), _flipped(out, dim, reverse)
        _accumulate(xp, getattr(xp, name), target, source, dim)

    kernel.__doc__ = doc
    declared = op(
        name=f"_{name}",
        flops=per_element(1),
        infer=lambda input, *, dim, dtype, reverse: input.like(dtype=dtype),
        samples=_sum_samples,
        autocast=WIDE_ON_CUDA,
    )(kernel)
    _compiled_along(declared, name)
    return declared


cumsum_along = _accumulating(
    "cumsum", "Add up the elements so far along ``dim``, or from there on."
)


@cumsum_along.vjp("input")
def _(g, dim, reverse):
    return cumsum_along(g, dim=dim, dtype=g.dtype, reverse=not reverse)


@function(method=True, inplace="cumsum_")
def cumsum(input, dim, *, dtype=None, out=None):
    """Compute the cumulative sum along ``dim``; integers in int64.

    Memory:
        Keeps nothing.
    """
    d = one_dim("cumsum", dim, input.ndim)
    input, wanted = _converted(input, dtype)
    return cumsum_along(input, dim=d, dtype=wanted, reverse=False, out=out)


# Products


def _recurrence_infer(input, factor, *, dim, reverse):
    return input, Spec((2, *input.shape), float32 if input.dtype.is_half else input.dtype)


def _recurrence_samples(make):
    for shape, dim in (((3, 4), 1), ((5, 2), 0), ((7,), 0), ((0, 3), 0), ((3, 1), 1)):
        for reverse in (False, True):
            yield (make(*shape), make(*shape)), {"dim": dim, "reverse": reverse}


@op(
    infer=_recurrence_infer,
    promote="same",
    scratch=("work",),
    flops=per_element(2),
    samples=_recurrence_samples,
)
def _recurrence(xp, out, work, input, factor, *, dim, reverse):
    """Compute ``out[k] = input[k] + factor[k] * out[k - 1]`` along ``dim``, or from its end."""
    xp.copyto(out, input)
    if not out.ndim:
        return
    window, step = work[0], work[1]
    xp.copyto(window, factor)
    out, window, step = (_flipped(a, dim, reverse) for a in (out, window, step))
    n, width = out.shape[dim], 1
    while width < n:
        # Invariant: out[k] holds the last `width` terms, window[k] the factor before them.
        late, early = span(out, dim, width, None), span(out, dim, None, n - width)
        factors, before = span(window, dim, width, None), span(window, dim, None, n - width)
        spare = span(step, dim, width, None)
        xp.multiply(factors, early, out=spare)
        xp.add(late, spare, out=late)
        xp.multiply(factors, before, out=spare)
        xp.copyto(factors, spare)
        width *= 2


_compiled_along(_recurrence, "recurrence")


def _shifted(x, dim, reverse):
    """Shift elements by one in the direction of the recurrence; zero at the start."""
    n = x.shape[dim]
    zero = zeros_like(x.narrow(dim, 0, builtins.min(1, n)))
    if reverse:
        return cat([x.narrow(dim, 1, n - 1), zero], dim) if n else x
    return cat([zero, x.narrow(dim, 0, n - 1)], dim) if n else x


@_recurrence.vjp("input")
def _(g, factor, dim, reverse):
    # What follows k contains out[k] times the factors on the way: the recurrence, run back.
    if not g.ndim:
        return g
    factor = factor.conj()
    return _recurrence(g, _shifted(factor, dim, not reverse), dim=dim, reverse=not reverse)


@_recurrence.vjp("factor")
def _(g, factor, out, dim, reverse):
    if not g.ndim:
        return g * 0
    factor = factor.conj()
    back = _recurrence(g, _shifted(factor, dim, not reverse), dim=dim, reverse=not reverse)
    return back * _shifted(out, dim, reverse).conj()


def products_before(x, dim, reverse=False):
    """Compute the product of all elements before each one (after it, if ``reverse``)."""
    n = x.shape[dim]
    one = ones_of(x._spec.like((*x.shape[:dim], 1, *x.shape[dim + 1 :])))
    first = [x.narrow(dim, 1, n - 1), one] if reverse else [one, x.narrow(dim, 0, n - 1)]
    return cumprod_along(cat(first, dim), dim=dim, dtype=x.dtype, reverse=reverse)


@op(
    flops=per_element(3),
    infer=lambda input, *, dim: (input, input),
    scratch=("after",),
    samples=_samples,
)
def _prod_others(xp, out, after, input, *, dim):
    """Compute the product of all other elements along ``dim``, the derivative of prod.

    With any number of zeros, where the product divided by the element fails.
    """
    if not input.ndim or not input.size:
        out.fill(1)
        return
    n = input.shape[dim]
    for target, reverse in ((out, False), (after, True)):
        source, target = _flipped(input, dim, reverse), _flipped(target, dim, reverse)
        span(target, dim, 0, 1).fill(1)
        _accumulate(xp, xp.cumprod, span(target, dim, 1, n), span(source, dim, 0, n - 1), dim)
    xp.multiply(out, after, out=out)


_compiled_along(_prod_others, "others", lambda: ())


cumprod_along = _accumulating(
    "cumprod", "Multiply the elements so far along ``dim``, or from there on."
)


@cumprod_along.vjp("input")
def _(g, input, dim, reverse):
    if not input.ndim or not input.numel():
        return g
    # Every later product has x[k] once: those before it, times g added up with those between.
    input = input.to(g.dtype).conj()
    between = _recurrence(g, _shifted(input, dim, not reverse), dim=dim, reverse=not reverse)
    return products_before(input, dim, reverse) * between


@function(method=True, inplace="cumprod_")
def cumprod(input, dim, *, dtype=None, out=None):
    """Compute the cumulative product along ``dim``; integers in int64.

    Memory:
        Keeps ``input``. The gradient is right however many elements are zero.
    """
    d = one_dim("cumprod", dim, input.ndim)
    input, wanted = _converted(input, dtype)
    return cumprod_along(input, dim=d, dtype=wanted, reverse=False, out=out)


# Extremes

_FEW = 32  # elements along a dim up to which all rows go on together: NumPy takes 100 ns for each


def _extreme_infer(input, *, dim):
    return input, input.like(dtype=int64), input.like(dtype=bool_), input.like(dtype=bool_)


def _running(name, word):
    def kernel(xp, values, indices, hit, isnan, input, *, dim):
        xp.copyto(values, input)
        if not input.ndim:
            indices.fill(0)
            return
        n = input.shape[dim]
        pick = xp.greater_equal if word == "largest" else xp.less_equal
        span(indices, dim, 0, 1).fill(0)
        for k in range(1, n):
            now, before = span(values, dim, k, k + 1), span(values, dim, k - 1, k)
            place = span(indices, dim, k, k + 1)
            place.fill(k)
            take, nan = span(hit, dim, k, k + 1), span(isnan, dim, k, k + 1)
            # The newest of equal elements wins, and NaN wins over all.
            pick(now, before, out=take)
            xp.not_equal(now, now, out=nan)
            xp.logical_or(take, nan, out=take)
            xp.logical_not(take, out=take)
            xp.copyto(now, before, where=take)
            xp.copyto(place, span(indices, dim, k - 1, k), where=take)

    def fast(xp, values, indices, hit, isnan, input, *, dim):
        if not input.ndim or input.shape[dim] <= _FEW:
            return kernel(xp, values, indices, hit, isnan, input, dim=dim)
        accumulate = (xp.maximum if word == "largest" else xp.minimum).accumulate
        accumulate(input, axis=dim, out=values)
        xp.equal(input, values, out=hit)
        xp.not_equal(input, input, out=isnan)
        xp.logical_or(hit, isnan, out=hit)
        xp.logical_not(hit, out=hit)
        places = xp.arange(input.shape[dim]).reshape(-1, *(1,) * (input.ndim - 1 - dim))
        xp.copyto(indices, places)
        xp.copyto(indices, 0, where=hit)
        xp.maximum.accumulate(indices, axis=dim, out=indices)
        return None

    kernel.__doc__ = f"Find the {word} element so far along ``dim``, and where it was last."
    running = op(
        name=name,
        returns=("values", "indices"),
        scratch=("hit", "isnan"),
        infer=_extreme_infer,
        half="exact",
        samples=_samples,
        flops=per_element(1),
    )(kernel)
    _compiled_along(running, "extreme", lambda: (word == "largest",))
    running.kernel("cpu")(fast)

    @running.vjp("input")
    def _(g_values, indices, input_spec, dim):
        if not input_spec.ndim:
            return g_values
        return _scatter_sum(g_values, indices, shape=tuple(input_spec.shape), dim=dim)

    return running


running_largest = _running("_cummax", "largest")
running_smallest = _running("_cummin", "smallest")
Cummax, Cummin = _pair("cummax"), _pair("cummin")


@function(method=True, out=True)
def cummax(input, dim):
    """Compute the cumulative maximum along ``dim``, as the named pair ``(values, indices)``.

    Memory:
        Keeps the indices.
    """
    return Cummax(*running_largest(input, dim=one_dim("cummax", dim, input.ndim)))


@function(method=True, out=True)
def cummin(input, dim):
    """Compute the cumulative minimum along ``dim``, as the named pair ``(values, indices)``.

    Memory:
        Keeps the indices.
    """
    return Cummin(*running_smallest(input, dim=one_dim("cummin", dim, input.ndim)))


# log-sum-exp


@op(
    promote="float",
    infer=lambda input, *, dim: input,
    samples=_samples,
    flops=per_element(30),
)
def _logcumsumexp(xp, out, input, *, dim):
    """Compute the logarithm of the cumulative sum of exponentials along ``dim``."""
    xp.copyto(out, input)
    for k in range(1, input.shape[dim] if input.ndim else 0):
        now = span(out, dim, k, k + 1)
        if out.dtype.kind == "c":
            buffered(xp, partial(complex_logaddexp, xp), now, span(out, dim, k - 1, k), now)
        else:
            xp.logaddexp(span(out, dim, k - 1, k), now, out=now)


@_logcumsumexp.vjp("input")
def _(g, input, out, dim):
    if not input.ndim or not input.numel():
        return g
    # Sum of g[i] exp(x[k] - out[i]) over i >= k, as a recurrence whose factors are at most 1.
    before = _shifted(out, dim, True)
    n = input.shape[dim]
    stays = (out == before).logical_and(out.isinf())  # infinity less infinity would be NaN
    step = (out - before).masked_fill(stays, 0)
    ratio = conjugate(step.narrow(dim, 0, n - 1).exp())
    last = ones_of(ratio._spec.like((*out.shape[:dim], 1, *out.shape[dim + 1 :])))
    sums = _recurrence(g, cat([ratio, last], dim), dim=dim, reverse=True)
    return sums * conjugate((input - out).exp())


@function(method=True)
def logcumsumexp(input, dim, *, out=None):
    """Compute the log of the cumulative sum of exponentials along ``dim``, without overflow.

    Memory:
        Keeps ``input`` and the result.
    """
    return _logcumsumexp(input, dim=one_dim("logcumsumexp", dim, input.ndim), out=out)
