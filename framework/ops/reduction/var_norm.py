"""var, std, norms and logsumexp."""

from __future__ import annotations

import builtins
import warnings
from math import inf, nan

from ...dtypes import FLOAT, float32
from ...kernels.common.reduce import largest as find_largest
from ...kernels.common.reduce import total
from ...spec import Spec
from ..autocast_policy import WIDE_ON_CUDA
from ..creation.fill import complex as paired
from ..inplace import into
from ..registry import function, op
from ..signatures import per_element
from .sum import count_of, kept, mean, normalize_dims, reduced_shape, reductions

# Variance and standard deviation


def _var_infer(input, *, dim, keepdim, correction):
    if input.dtype.category < FLOAT:
        raise RuntimeError(
            f"std and var only support floating point and complex dtypes; got {input.dtype}. "
            "Convert with .to(float32)."
        )
    count = count_of(input, dim)
    out = Spec(reduced_shape(input.shape, dim, keepdim), input.dtype)
    if count - correction <= 0 and out.numel:
        warnings.warn(
            f"var(): degrees of freedom is <= 0: {count} elements less a correction of "
            f"{correction}; the result is not a finite number. Pass correction=0.",
            UserWarning,
            stacklevel=7,
        )
    work = float32 if input.dtype.is_half else input.dtype
    return out, Spec(reduced_shape(input.shape, dim, True), work), input.like(dtype=work)


def _var_samples(make):
    for (x,), attributes in reductions(make):
        if x.ndim:  # one element has no spread
            yield (x,), {**attributes, "correction": x.ndim - 1}


def _variance(xp, out, average, centered, input, dim, keepdim, correction):
    # Two passes over the data: the mean first, so that nothing cancels.
    count = builtins.max(input.size // builtins.max(average.size, 1), 0)
    total(xp, input, dim, average)
    xp.divide(average, count, out=average)
    xp.subtract(input, average, out=centered)
    xp.multiply(centered, centered, out=centered)
    total(xp, centered, dim, out, keepdim)
    xp.divide(out, builtins.max(count - correction, 0), out=out)


@op(
    infer=_var_infer,
    scratch=("average", "centered"),
    flops=per_element(4),
    samples=_var_samples,
)
def _var(xp, out, average, centered, input, *, dim, keepdim, correction):
    """Variance over ``dim``, with divisor n - correction."""
    _variance(xp, out, average, centered, input, dim, keepdim, correction)


@_var.vjp("input")
def _(g, input, dim, keepdim, correction):
    return _var_gradient(g, input, dim, keepdim, correction)


def _var_gradient(g, input, dim, keepdim, correction):
    free = count_of(input._spec, dim) - correction
    centered = input - input.mean(dim or None, True)
    return kept(g, dim, keepdim) * (2 / free if free > 0 else nan if free == 0 else inf) * centered


@op(
    infer=_var_infer,
    scratch=("average", "centered"),
    flops=per_element(4),
    samples=_var_samples,
)
def _std(xp, out, average, centered, input, *, dim, keepdim, correction):
    """Standard deviation over ``dim``."""
    _variance(xp, out, average, centered, input, dim, keepdim, correction)
    xp.sqrt(out, out=out)


@_std.vjp("input")
def _(g, input, out, dim, keepdim, correction):
    # PyTorch's choice where all elements are equal: no gradient rather than an infinite one.
    g = g / (out * 2).masked_fill(out == 0, inf)
    return _var_gradient(g, input, dim, keepdim, correction)


def _moments(name, input, dim, unbiased, correction):
    # PyTorch's three spellings: (dim, correction=), (dim, unbiased, keepdim), (unbiased).
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    elif unbiased is not None:
        raise TypeError(f"{name}() takes unbiased or correction, not both. Leave one out.")
    return normalize_dims(name, dim, input.ndim), correction


@function(method=True)
def var(input, dim=None, unbiased=None, keepdim=False, *, correction=None, out=None):
    """Compute the variance over ``dim``.

    Args:
        input: Floating point or complex, any shape.
        dim: An int, several, or None for all.
        unbiased: False divides by n instead of n - 1.
        keepdim: Leave the reduced dims, with size 1.
        correction: Divides by n - correction; 1 if left out.
        out: Where to write the result.

    Memory:
        Keeps ``input``.
    """
    dims, correction = _moments("var", input, dim, unbiased, correction)
    if input.is_complex():
        parts = [
            _var(p, dim=dims, keepdim=keepdim, correction=correction)
            for p in (input.real, input.imag)
        ]
        return into(out, parts[0] + parts[1])
    return _var(input, dim=dims, keepdim=keepdim, correction=correction, out=out)


@function(method=True)
def std(input, dim=None, unbiased=None, keepdim=False, *, correction=None, out=None):
    """Compute the standard deviation over ``dim``; the arguments are those of ``var``.

    Memory:
        Keeps ``input`` and the result.
    """
    dims, correction = _moments("std", input, dim, unbiased, correction)
    if input.is_complex():
        parts = [
            _std(p, dim=dims, keepdim=keepdim, correction=correction)
            for p in (input.real, input.imag)
        ]
        return into(out, paired(*parts).abs())  # whose gradient is 0, not NaN, at 0
    return _std(input, dim=dims, keepdim=keepdim, correction=correction, out=out)


@function()
def var_mean(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    """Return the variance and the mean over ``dim``."""
    dims, correction = _moments("var_mean", input, dim, unbiased, correction)
    wanted = dims or None
    return var(input, wanted, None, keepdim, correction=correction), mean(input, wanted, keepdim)


@function()
def std_mean(input, dim=None, unbiased=None, keepdim=False, *, correction=None):
    """Return the standard deviation and the mean over ``dim``."""
    dims, correction = _moments("std_mean", input, dim, unbiased, correction)
    wanted = dims or None
    return std(input, wanted, None, keepdim, correction=correction), mean(input, wanted, keepdim)


# Norms and logsumexp


def _norm_infer(input, *, p, dim, keepdim):
    if input.dtype.category < FLOAT:
        raise RuntimeError(
            f"norm(): input dtype should be either floating point or complex; got {input.dtype}. "
            "Convert with .to(float32)."
        )
    out = Spec(reduced_shape(input.shape, dim, keepdim), input.dtype.to_real())
    if not input.numel and out.numel and (p < 0 or p == inf):
        raise RuntimeError(
            f"norm(): the {p} norm of no elements has no identity; got shape {tuple(input.shape)}. "
            "Reduce a dim that is not empty, or use another p."
        )
    real = input.dtype.to_real()
    work = float32 if real.is_half else real
    whole = p == 2 and len(dim) == input.ndim and not input.dtype.is_complex
    return out, Spec((0,) if whole else input.shape, work)


def _norm_samples(make):
    for p in (2, 1, 3, inf, 0.5):
        yield (make(3, 4),), {"p": p, "dim": (1,), "keepdim": False}
    yield (make(2, 3, 4),), {"p": 2, "dim": (0, 1, 2), "keepdim": True}
    yield (make(0, 3),), {"p": 2, "dim": (0,), "keepdim": False}


@op(
    infer=_norm_infer,
    scratch=("powers",),
    layout=lambda array: array.flags.c_contiguous,
    flops=per_element(2),
    samples=_norm_samples,
    autocast=WIDE_ON_CUDA,
)
def _norm(xp, out, powers, input, *, p, dim, keepdim):
    """Compute the p-norm over ``dim``: the p-th root of the sum of p-th powers of magnitudes."""
    if not input.size:
        out.fill(0)
        return
    if p == 2 and not powers.size:  # of a whole tensor: one dot product
        flat = input.reshape(-1)
        xp.dot(flat, flat, out=out.reshape(()))
        xp.sqrt(out, out=out)
        return
    if p == 2 and input.dtype.kind != "c":
        xp.multiply(input, input, out=powers)
    elif p == 0:
        xp.not_equal(input, 0, out=powers, casting="unsafe")
    else:
        xp.absolute(input, out=powers)
        if p in (inf, -inf):
            extreme = xp.max if p > 0 else xp.min
            extreme(powers, axis=dim, keepdims=keepdim, out=out)
            return
        if p != 1:
            xp.power(powers, p, out=powers)
    total(xp, powers, dim, out, keepdim)
    if p == 2:
        xp.sqrt(out, out=out)
    elif p not in (0, 1):
        xp.power(out, 1 / p, out=out)


@_norm.vjp("input")
def _(g, input, out, p, dim, keepdim):
    if p == 0:
        return None
    g, out = kept(g, dim, keepdim), kept(out, dim, keepdim)
    if p == 1:
        return input.sgn() * g
    if p == 2:  # the gradient at zero is zero: so is a quotient by infinity, and its derivative
        norm = out.masked_fill(out == 0, inf)
        if input.dtype.is_half:  # where the other quotient may be too large for it
            return g * (input / norm)
        return input * (g / norm)
    magnitude = input.abs()
    if p in (inf, -inf):
        largest = (magnitude == out).logical_or(magnitude != magnitude)  # NaN is among them
        return input.sgn() * largest * (g / largest.sum(dim or None, True))
    if p < 1:  # a product: the derivative of a quotient overflows at the dtype's largest numbers
        return (input.sgn() * magnitude.pow(p - 1)).masked_fill(input == 0, 0) * (
            g * out.pow(1 - p)
        )
    zero = out == 0
    scale = g / out.masked_fill(zero, 1).pow(p - 1).masked_fill(zero, inf)
    if p < 2:
        return input.sgn() * magnitude.pow(p - 1) * scale
    return input * magnitude.pow(p - 2) * scale


def _logsumexp_infer(input, *, dim, keepdim):
    work = float32 if input.dtype.is_half else input.dtype
    out = Spec(reduced_shape(input.shape, dim, keepdim), input.dtype)
    return out, Spec(reduced_shape(input.shape, dim, True), work), input.like(dtype=work)


@op(
    infer=_logsumexp_infer,
    promote="float",
    scratch=("largest", "powers"),
    flops=per_element(3),
    samples=reductions,
    autocast=WIDE_ON_CUDA,
)
def _logsumexp(xp, out, largest, powers, input, *, dim, keepdim):
    """Log of the sum of exponentials over ``dim``, the maximum subtracted first."""
    if not input.size:
        out.fill(-inf)
        return
    if out.dtype.kind == "c":  # only the real part can overflow; the angle stays the principal one
        largest.imag = 0
        xp.max(input.real, axis=dim, keepdims=True, out=largest.real)
    else:
        find_largest(xp, input, dim, largest)
    # An infinite largest is subtracted as 0: inf - inf would be NaN.
    xp.copyto(largest, 0, where=xp.isinf(largest))
    xp.subtract(input, largest, out=powers)
    xp.exp(powers, out=powers)
    total(xp, powers, dim, out, keepdim)
    xp.log(out, out=out)
    xp.add(out, largest.reshape(out.shape), out=out)


@_logsumexp.vjp("input")
def _(g, input, out, dim, keepdim):
    return kept(g, dim, keepdim) * (input - kept(out, dim, keepdim)).exp().conj()


@function(method=True)
def logsumexp(input, dim, keepdim=False, *, out=None):
    """Compute ``log(sum(exp(input)))`` over ``dim`` without overflow.

    Memory:
        Keeps ``input`` and the result.
    """
    dims = normalize_dims("logsumexp", dim, input.ndim)
    return _logsumexp(input, dim=dims, keepdim=keepdim, out=out)
