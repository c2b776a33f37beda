"""Unary elementwise functions: exponentials, trigonometry, error and gamma functions.

Each keeps the smaller part for backward: the result where the derivative can be had from it
(exp, tanh, sigmoid, tan, erfinv), else the input.
"""

from __future__ import annotations

from math import factorial, log, pi

import numpy as np

from ...dtypes import FLOAT, bool_, get_default_dtype
from ...kernels.common.special_functions import special
from ...kernels.formula.formula import formula
from ...kernels.formula.functions import erf as erf_of
from ...kernels.formula.functions import exp as exp_of
from ..autocast_policy import WIDE_ON_CUDA
from ..indexing.where import _where
from ..overwrite import write_over
from ..registry import alias, function, op
from ..signatures import per_element, same, singles
from .arithmetic import conjugate, mul

LN2, LN10 = log(2.0), log(10.0)
SQRT_PI = pi**0.5


def between(low, high):
    """Samples of a unary op with values in (low, high)."""

    def samples(make):
        for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
            yield (make(*shape, low=low, high=high),), {}

    return samples


def _gradients(make):
    for shape in ((3, 4), (), (0, 2)):
        yield (make(*shape), make(*shape)), {}


def _gradient_infer(grad, value):
    return grad


def _unary(
    name,
    rule,
    samples=singles,
    *,
    ufunc=None,
    factor=None,
    library=False,
    cost=10,
    autocast=None,
    room=(),
    doc,
):
    """Declare a unary op by its ufunc, or by a factor of real numbers, and its gradient rule."""
    called = ufunc or name

    def kernel(xp, out, input):
        if factor is None:
            getattr(special(xp) if library else xp, called)(input, out=out)
        else:  # which NumPy computes with vectors, unlike its own functions that convert
            xp.multiply(input, factor, out=out)

    kernel.__doc__ = doc
    made = op(
        name=name,
        inplace=f"{name}_",
        infer=same,
        promote="float",
        flops=per_element(cost),
        samples=samples,
        autocast=autocast,
        real=factor is not None,
        elementwise=True,
    )(kernel)
    made.vjp("input", room=room)(rule)
    return made


exp = _unary(
    "exp",
    lambda g, out, room: write_over(room, mul, g, conjugate(out)),
    room=("g", "out"),
    doc="Raise e to each element. Keeps the result for backward.",
    autocast=WIDE_ON_CUDA,
)
exp2 = _unary(
    "exp2",
    lambda g, out: g * conjugate(out * LN2),
    doc="Raise 2 to each element. Keeps the result for backward.",
)
expm1 = _unary(
    "expm1",
    lambda g, out: g * conjugate(out + 1),
    doc="Compute ``exp(input) - 1``, exact near 0. Keeps the result for backward.",
    autocast=WIDE_ON_CUDA,
)
log_positive = between(0.5, 2.0)
natural_log = _unary(
    "log",
    lambda g, input: g / conjugate(input),
    log_positive,
    doc="Take the natural logarithm.",
    autocast=WIDE_ON_CUDA,
)
log2 = _unary(
    "log2",
    lambda g, input: g / conjugate(input * LN2),
    log_positive,
    doc="Take the logarithm to base 2.",
    autocast=WIDE_ON_CUDA,
)
log10 = _unary(
    "log10",
    lambda g, input: g / conjugate(input * LN10),
    log_positive,
    doc="Take the logarithm to base 10.",
    autocast=WIDE_ON_CUDA,
)
log1p = _unary(
    "log1p",
    lambda g, input: g / conjugate(input + 1),
    log_positive,
    doc="Compute ``log(1 + input)``, exact near 0.",
    autocast=WIDE_ON_CUDA,
)
sin = _unary("sin", lambda g, input: g * conjugate(input.cos()), doc="Take the sine.")
cos = _unary("cos", lambda g, input: -g * conjugate(input.sin()), doc="Take the cosine.")
tan = _unary(
    "tan",
    lambda g, out: g * conjugate(out * out + 1),
    between(-1.0, 1.0),
    doc="Take the tangent. Keeps the result for backward.",
    autocast=WIDE_ON_CUDA,
)
asin = _unary(
    "asin",
    lambda g, input: g * conjugate((1 - input * input).rsqrt()),
    between(-0.8, 0.8),
    ufunc="arcsin",
    doc="Take the inverse sine.",
    autocast=WIDE_ON_CUDA,
)
acos = _unary(
    "acos",
    lambda g, input: -g * conjugate((1 - input * input).rsqrt()),
    between(-0.8, 0.8),
    ufunc="arccos",
    doc="Take the inverse cosine.",
    autocast=WIDE_ON_CUDA,
)
atan = _unary(
    "atan",
    lambda g, input: g / conjugate(input * input + 1),
    ufunc="arctan",
    doc="Take the inverse tangent.",
)
sinh = _unary(
    "sinh",
    lambda g, input: g * conjugate(input.cosh()),
    doc="Take the hyperbolic sine.",
    autocast=WIDE_ON_CUDA,
)
cosh = _unary(
    "cosh",
    lambda g, input: g * conjugate(input.sinh()),
    doc="Take the hyperbolic cosine.",
    autocast=WIDE_ON_CUDA,
)


@op(infer=_gradient_infer, flops=per_element(3), samples=_gradients)
@formula
def _tanh_backward(grad, result):
    """``grad * (1 - result * result)``."""
    return (1 - result * result) * grad


tanh = _unary(
    "tanh",
    lambda g, out, room: write_over(room, _tanh_backward, g, conjugate(out)),
    room=("g", "out"),
    doc="Take the hyperbolic tangent. Keeps the result for backward.",
)


@_tanh_backward.vjp("grad")
def _(g, result):
    return _tanh_backward(g, conjugate(result))


@_tanh_backward.vjp("result")
def _(g, grad, result):
    return g * conjugate(grad * result) * -2


asinh = _unary(
    "asinh",
    lambda g, input: g * conjugate((input * input + 1).rsqrt()),
    ufunc="arcsinh",
    doc="Take the inverse hyperbolic sine.",
)
acosh = _unary(
    # Two roots: one of the product has its cut elsewhere in the complex plane.
    "acosh",
    lambda g, input: (
        g
        * conjugate(
            (input + 1).rsqrt() * (input - 1).rsqrt()
            if input.is_complex()
            else (input * input - 1).rsqrt()
        )
    ),
    between(1.2, 3.0),
    ufunc="arccosh",
    doc="Take the inverse hyperbolic cosine.",
)
atanh = _unary(
    "atanh",
    lambda g, input: g / conjugate(1 - input * input),
    between(-0.8, 0.8),
    ufunc="arctanh",
    doc="Take the inverse hyperbolic tangent.",
)
erf = _unary(
    "erf",
    lambda g, input: _erf_backward(g, input),  # type: ignore[has-type]
    library=True,
    doc="Take the error function.",
)
erfc = _unary(
    "erfc",
    lambda g, input: _erf_backward(-g, input),  # type: ignore[has-type]
    library=True,
    doc="Take the complementary error function, ``1 - erf(input)``.",
)
erfinv = _unary(
    "erfinv",
    lambda g, out: g * ((out * out).exp() * (pi**0.5 / 2)),
    between(-0.8, 0.8),
    library=True,
    doc="Take the inverse error function. Keeps the result for backward.",
    autocast=WIDE_ON_CUDA,
)


@op(infer=_gradient_infer, flops=per_element(14), samples=_gradients)
@formula
def _erf_backward(grad, input):
    """``grad * 2 / sqrt(pi) * exp(-input ** 2)``."""
    return exp_of(-(input * input)) * (2 / SQRT_PI) * grad


@erf.loop()
def _(input):
    return erf_of(input)


@_erf_backward.vjp("grad")
def _(g, input):
    return _erf_backward(g, input)


@_erf_backward.vjp("input")
def _(g, grad, input):
    return _erf_backward(g * grad, input) * input * -2


@op(
    inplace="lgamma_",
    infer=lambda input: (input, input.like(dtype=bool_)),
    promote="float",
    scratch=("below",),
    flops=per_element(10),
    samples=log_positive,
    elementwise=True,
)
def lgamma(xp, out, below, input):
    """Compute the logarithm of the gamma function's absolute value."""
    special(xp).gammaln(input, out=out)
    xp.equal(out, -np.inf, out=below)  # SciPy's answer at -inf; PyTorch's is that of the poles
    xp.copyto(out, np.inf, where=below)


@lgamma.vjp("input")
def _(g, input):
    return g * input.digamma()


digamma = _unary(
    "digamma",
    lambda g, input: g * _polygamma(input, n=1),  # type: ignore[has-type]
    log_positive,
    library=True,
    doc="Take the derivative of ``lgamma``.",
)
deg2rad = _unary(
    "deg2rad",
    lambda g: g * (pi / 180),
    factor=pi / 180,
    cost=1,
    doc="Convert degrees to radians.",
)
rad2deg = _unary(
    "rad2deg",
    lambda g: g * (180 / pi),
    factor=180 / pi,
    cost=1,
    doc="Convert radians to degrees.",
)

alias("arcsin", of=asin)
alias("arccos", of=acos)
alias("arctan", of=atan)
alias("arcsinh", of=asinh)
alias("arccosh", of=acosh)
alias("arctanh", of=atanh)


def _polygammas(make):
    for n in (1, 2):
        for shape in ((3, 4), (), (0, 3)):
            yield (make(*shape, low=0.5, high=2.0),), {"n": n}


@op(
    infer=lambda input, *, n: input,
    promote="float",
    flops=per_element(30),
    samples=_polygammas,
    elementwise=True,
)
def _polygamma(xp, out, input, *, n):
    """The n-th derivative of digamma, n at least 1, by Hurwitz's zeta function."""
    special(xp).zeta(float(n + 1), input, out=out)
    xp.multiply(out, float((-1) ** (n + 1) * factorial(n)), out=out)


@_polygamma.vjp("input")
def _(g, input, n):
    return g * _polygamma(input, n=n + 1)


@function(out=True)
def polygamma(n, input):
    """Compute the n-th derivative of ``digamma``."""
    if n < 0:
        raise RuntimeError(f"polygamma(n, x) does not support negative n; got {n}.")
    return _polygamma(input, n=n) if n else input.digamma()


@op(inplace="sigmoid_", infer=same, promote="float", flops=per_element(12), samples=singles)
@formula
def sigmoid(input):
    """Compute ``1 / (1 + exp(-input))``. Keeps the result for backward.

    Where exp overflows the result is 0, which is right.
    """
    return 1 / (1 + exp_of(-input))


@op(infer=_gradient_infer, flops=per_element(3), samples=_gradients)
@formula(fused=False)
def _sigmoid_backward(grad, result):
    """``grad * (1 - result) * result``."""
    return (1 - result) * result * grad


@sigmoid.vjp("input", room=("g", "out"))
def _(g, out, room):
    return write_over(room, _sigmoid_backward, g, conjugate(out))


@_sigmoid_backward.vjp("grad")
def _(g, result):
    return _sigmoid_backward(g, conjugate(result))


@_sigmoid_backward.vjp("result")
def _(g, grad, result):
    return g * conjugate(grad * (1 - 2 * result))


@op(infer=same, flops=per_element(12), samples=between(0.1, 0.9), elementwise=True)
def _logit(xp, out, input):
    """``log(input / (1 - input))``."""
    xp.subtract(1, input, out=out)
    xp.divide(input, out, out=out)
    xp.log(out, out=out)


@_logit.vjp("input")
def _(g, input):
    slope = g / conjugate(input * (1 - input))
    if input.is_complex():
        return slope
    return _where((input >= 0) & (input <= 1), slope, float("nan"))


@function(method=True, inplace="logit_", out=True)
def logit(input, eps=None):
    """Compute ``log(input / (1 - input))``, the inverse of ``sigmoid``.

    Args:
        input: Probabilities.
        eps: Clamp them to [eps, 1 - eps] first.

    Memory:
        Keeps ``input``; with ``eps``, what it was clamped to and one bit an element.
    """
    if input.dtype.category < FLOAT:
        input = input.to(get_default_dtype())
    if eps is not None:
        input = input.clamp(eps, 1 - eps)
    return _logit(input)


def _sinc_infer(input):
    return input, input, input.like(dtype=bool_)


@op(
    infer=_sinc_infer,
    scratch=("angle", "mask"),
    promote="float",
    inplace="sinc_",
    flops=per_element(12),
    samples=singles,
    elementwise=True,
)
def sinc(xp, out, angle, mask, input):
    """Compute ``sin(pi * input) / (pi * input)``, which is 1 at 0."""
    xp.multiply(input, pi, out=angle)
    xp.equal(angle, 0, out=mask)
    xp.sin(angle, out=out)
    xp.true_divide(out, angle, out=out)
    xp.copyto(out, 1, where=mask)


@sinc.vjp("input")
def _(g, input):
    x = input * pi
    near = x.abs() < 0.1  # where the quotient cancels, and at 0 is none: its series to x ** 9
    s = x * x
    series = x * (-pi / 3) * (1 - s * (1 / 10 - s * (1 / 280 - s * (1 / 15120 - s / 1330560))))
    x, far = _where(near, 1, x), _where(near, 1, input)
    slope = _where(near, series, (x * x.cos() - x.sin()) / (x * far))
    return g * conjugate(slope)
