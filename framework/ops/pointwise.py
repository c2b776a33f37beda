"""Functions of one number, and a few of two: exponentials, trigonometry, rounding, special ones.

Each keeps the smaller part for backward: the result where the derivative can be had from it
(exp, tanh, sigmoid, tan, erfinv), else the input.
"""

from __future__ import annotations

from importlib import import_module
from math import factorial, log, pi

import numpy as np

from ..dtypes import COMPLEX, FLOAT, bool_, complex128, get_default_dtype
from ..tensor import Tensor
from .arithmetic import alias, conjugate, numeric
from .creation import zeros_like
from .registry import (
    WIDE_ON_CUDA,
    function,
    op,
    per_element,
    same,
    singles,
)
from .selecting import where_select

LN2, LN10 = log(2.0), log(10.0)


def special(xp):
    """The module of special functions that goes with an array module."""
    if xp is np:
        return import_module("scipy.special")
    if xp.__name__ == "cupy":
        return import_module("cupyx.scipy.special")
    return import_module("..devices.sim", __package__).special()


def between(low, high):
    """Samples of an op of one tensor with values in (low, high)."""

    def samples(make):
        for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
            yield (make(*shape, low=low, high=high),), {}

    return samples


def _unary(
    name, rule, samples=singles, *, ufunc=None, library=False, cost=10, autocast=None, doc
):  # fmt: skip
    """Declare a function of one number by its ufunc and its gradient rule."""
    called = ufunc or name

    def kernel(xp, out, input):
        getattr(special(xp) if library else xp, called)(input, out=out)

    kernel.__doc__ = doc
    made = op(
        name=name, inplace=f"{name}_", infer=same, promote="float", half="float32",
        flops=per_element(cost), samples=samples, autocast=autocast,
    )(kernel)  # fmt: skip
    made.vjp("input")(rule)
    return made


exp = _unary(
    "exp", lambda g, out: g * conjugate(out),
    doc="Raise e to each element. Keeps the result for backward.",
    autocast=WIDE_ON_CUDA,
)  # fmt: skip
exp2 = _unary(
    "exp2", lambda g, out: g * conjugate(out * LN2),
    doc="Raise 2 to each element. Keeps the result for backward.",
)  # fmt: skip
expm1 = _unary(
    "expm1", lambda g, out: g * conjugate(out + 1),
    doc="Compute ``exp(input) - 1``, exact near 0. Keeps the result for backward.",
    autocast=WIDE_ON_CUDA,
)  # fmt: skip
log_positive = between(0.5, 2.0)
natural_log = _unary(
    "log", lambda g, input: g / conjugate(input), log_positive, doc="Take the natural logarithm.",
    autocast=WIDE_ON_CUDA,
)  # fmt: skip
log2 = _unary(
    "log2", lambda g, input: g / conjugate(input * LN2), log_positive,
    doc="Take the logarithm to base 2.",
    autocast=WIDE_ON_CUDA,
)  # fmt: skip
log10 = _unary(
    "log10", lambda g, input: g / conjugate(input * LN10), log_positive,
    doc="Take the logarithm to base 10.",
    autocast=WIDE_ON_CUDA,
)  # fmt: skip
log1p = _unary(
    "log1p", lambda g, input: g / conjugate(input + 1), log_positive,
    doc="Compute ``log(1 + input)``, exact near 0.",
    autocast=WIDE_ON_CUDA,
)  # fmt: skip
sin = _unary("sin", lambda g, input: g * conjugate(input.cos()), doc="Take the sine.")
cos = _unary("cos", lambda g, input: -g * conjugate(input.sin()), doc="Take the cosine.")
tan = _unary(
    "tan", lambda g, out: g * conjugate(out * out + 1), between(-1.0, 1.0),
    doc="Take the tangent. Keeps the result for backward.",
    autocast=WIDE_ON_CUDA,
)  # fmt: skip
asin = _unary(
    "asin", lambda g, input: g * conjugate((1 - input * input).rsqrt()), between(-0.8, 0.8),
    ufunc="arcsin",
    doc="Take the inverse sine.",
    autocast=WIDE_ON_CUDA,
)  # fmt: skip
acos = _unary(
    "acos", lambda g, input: -g * conjugate((1 - input * input).rsqrt()), between(-0.8, 0.8),
    ufunc="arccos",
    doc="Take the inverse cosine.",
    autocast=WIDE_ON_CUDA,
)  # fmt: skip
atan = _unary(
    "atan", lambda g, input: g / conjugate(input * input + 1), ufunc="arctan",
    doc="Take the inverse tangent.",
)  # fmt: skip
sinh = _unary(
    "sinh", lambda g, input: g * conjugate(input.cosh()),
    doc="Take the hyperbolic sine.", autocast=WIDE_ON_CUDA,
)  # fmt: skip
cosh = _unary(
    "cosh", lambda g, input: g * conjugate(input.sinh()),
    doc="Take the hyperbolic cosine.", autocast=WIDE_ON_CUDA,
)  # fmt: skip
tanh = _unary(
    "tanh", lambda g, out: g * conjugate(1 - out * out),
    doc="Take the hyperbolic tangent. Keeps the result for backward.",
)  # fmt: skip
asinh = _unary(
    "asinh", lambda g, input: g * conjugate((input * input + 1).rsqrt()), ufunc="arcsinh",
    doc="Take the inverse hyperbolic sine.",
)  # fmt: skip
acosh = _unary(
    # Two roots: one of the product has its cut elsewhere in the complex plane.
    "acosh", lambda g, input: g * conjugate((input + 1).rsqrt() * (input - 1).rsqrt()),
    between(1.2, 3.0), ufunc="arccosh", doc="Take the inverse hyperbolic cosine.",
)  # fmt: skip
atanh = _unary(
    "atanh", lambda g, input: g / conjugate(1 - input * input), between(-0.8, 0.8), ufunc="arctanh",
    doc="Take the inverse hyperbolic tangent.",
)  # fmt: skip
erf = _unary(
    "erf", lambda g, input: g * ((-(input * input)).exp() * (2 / pi**0.5)), library=True,
    doc="Take the error function.",
)  # fmt: skip
erfc = _unary(
    "erfc", lambda g, input: -g * ((-(input * input)).exp() * (2 / pi**0.5)), library=True,
    doc="Take the complementary error function, ``1 - erf(input)``.",
)  # fmt: skip
erfinv = _unary(
    "erfinv", lambda g, out: g * ((out * out).exp() * (pi**0.5 / 2)), between(-0.8, 0.8),
    library=True, doc="Take the inverse error function. Keeps the result for backward.",
    autocast=WIDE_ON_CUDA,
)  # fmt: skip


@op(
    inplace="lgamma_", infer=lambda input: (input, input.like(dtype=bool_)), promote="float",
    half="float32", scratch=("below",), flops=per_element(10), samples=log_positive,
)  # fmt: skip
def lgamma(xp, out, below, input):
    """Take the logarithm of the gamma function's absolute value."""
    special(xp).gammaln(input, out=out)
    xp.equal(out, -np.inf, out=below)  # SciPy's answer at -inf; PyTorch's is that of the poles
    xp.copyto(out, np.inf, where=below)


@lgamma.vjp("input")
def _(g, input):
    return g * input.digamma()


digamma = _unary(
    "digamma", lambda g, input: g * polygamma_of(input, n=1), log_positive, library=True,  # type: ignore[has-type]
    doc="Take the derivative of ``lgamma``.",
)  # fmt: skip
deg2rad = _unary("deg2rad", lambda g: g * (pi / 180), cost=1, doc="Convert degrees to radians.")
rad2deg = _unary("rad2deg", lambda g: g * (180 / pi), cost=1, doc="Convert radians to degrees.")

for _name, _of in (
    ("arcsin", "asin"), ("arccos", "acos"), ("arctan", "atan"), ("arcsinh", "asinh"),
    ("arccosh", "acosh"), ("arctanh", "atanh"),
):  # fmt: skip
    alias(_name, _of)


def _polygammas(make):
    for n in (1, 2):
        for shape in ((3, 4), (), (0, 3)):
            yield (make(*shape, low=0.5, high=2.0),), {"n": n}


@op(
    name="_polygamma", method=False, public=False, infer=lambda input, *, n: input,
    promote="float", half="float32", flops=per_element(30), samples=_polygammas,
)  # fmt: skip
def polygamma_of(xp, out, input, *, n):
    """The n-th derivative of digamma, n at least 1, by Hurwitz's zeta function."""
    special(xp).zeta(float(n + 1), input, out=out)
    xp.multiply(out, float((-1) ** (n + 1) * factorial(n)), out=out)


@polygamma_of.vjp("input")
def _(g, input, n):
    return g * polygamma_of(input, n=n + 1)


@function()
def polygamma(n, input):
    """Take the n-th derivative of ``digamma``."""
    if n < 0:
        raise RuntimeError(f"polygamma(n, x) does not support negative n; got {n}.")
    return polygamma_of(input, n=n) if n else input.digamma()


@op(
    inplace="sigmoid_", infer=same, promote="float", half="float32", flops=per_element(12),
    samples=singles,
)  # fmt: skip
def sigmoid(xp, out, input):
    """Compute ``1 / (1 + exp(-input))``. Keeps the result for backward.

    Where exp overflows the result is 0, which is right.
    """
    xp.negative(input, out=out)
    xp.exp(out, out=out)
    xp.add(out, 1, out=out)
    xp.reciprocal(out, out=out)


@sigmoid.vjp("input")
def _(g, out):
    return g * conjugate((1 - out) * out)


@function(method=True, inplace="logit_")
def logit(input, eps=None):
    """Compute ``log(input / (1 - input))``, the inverse of ``sigmoid``.

    Args:
        input: Probabilities.
        eps: Clamp them to [eps, 1 - eps] first.
    """
    if input.dtype.category < FLOAT:
        input = input.to(get_default_dtype())
    if eps is not None:
        input = input.clamp(eps, 1 - eps)
    return (input / (1 - input)).log()


# Rounding: integers stay as they are


def _rounding(name, doc):
    def kernel(xp, out, input):
        if out.dtype.kind == "f":
            getattr(xp, name)(input, out=out)
        else:
            xp.copyto(out, input)

    kernel.__doc__ = doc
    made = op(
        name=name, inplace=f"{name}_", infer=numeric(name), half="float32", flops=per_element(1),
        samples=singles, real=True,
    )(kernel)  # fmt: skip

    @made.vjp("input")
    def _(g):
        return zeros_like(g)

    return made


floor = _rounding("floor", "Round down.")
ceil = _rounding("ceil", "Round up.")
trunc = _rounding("trunc", "Round toward zero.")
alias("fix", "trunc")


def _rounds(make):
    for decimals in (0, 1, -1):
        yield (make(3, 4),), {"decimals": decimals}
    yield (make(0, 2),), {"decimals": 0}


def _round_infer(input, *, decimals):
    return numeric("round", integers=decimals == 0)(input)


@op(
    inplace="round_", infer=_round_infer, half="float32",
    flops=per_element(3), samples=_rounds,
)  # fmt: skip
def round(xp, out, input, *, decimals=0):
    """Round to ``decimals`` places; halves go to the even neighbor."""
    if out.dtype.kind != "f":
        xp.copyto(out, input)
    elif decimals == 0:
        xp.rint(input, out=out)
    else:
        scale = float(10 ** (decimals if decimals > 0 else -decimals))
        up, down = (xp.multiply, xp.true_divide)[:: 1 if decimals > 0 else -1]
        up(input, scale, out=out)
        xp.rint(out, out=out)
        down(out, scale, out=out)


@round.vjp("input")
def _(g):
    return zeros_like(g)


def _frac_infer(input):
    return numeric("frac", integers=False)(input), input


@op(infer=_frac_infer, scratch=("whole",), half="float32", inplace="frac_",
    flops=per_element(2), samples=singles)  # fmt: skip
def frac(xp, out, whole, input):
    """Take the part after the point, with the sign of ``input``."""
    xp.trunc(input, out=whole)
    xp.subtract(input, whole, out=out)


@frac.vjp("input")
def _(g):
    return g


# With a mask


def _nans(make):
    yield (make(3, 4),), {"nan": 0.0, "posinf": None, "neginf": None}
    yield (make(),), {"nan": 1.0, "posinf": 2.0, "neginf": -2.0}
    yield (make(0, 2),), {"nan": 0.0, "posinf": None, "neginf": None}


def _nan_infer(input, *, nan, posinf, neginf):
    return input, input.like(dtype=bool_)


@op(
    infer=_nan_infer, scratch=("mask",), half="float32", inplace="nan_to_num_",
    flops=per_element(3), samples=_nans,
)  # fmt: skip
def nan_to_num(xp, out, mask, input, *, nan=0.0, posinf=None, neginf=None):
    """Replace nan, +inf and -inf by numbers; by default 0, the largest and the smallest."""
    if out is not input:
        xp.copyto(out, input)
    if out.dtype.kind != "f":
        return
    limits = np.finfo(out.dtype)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
    xp.isnan(out, out=mask)
    xp.copyto(out, 0.0 if nan is None else nan, where=mask)
    for bad, value in ((float("inf"), high), (float("-inf"), low)):
        xp.equal(input, bad, out=mask)
        xp.copyto(out, value, where=mask)


@nan_to_num.vjp("input")
def _(g, input):
    return where_select(input.isfinite(), g, 0)


def _sinc_infer(input):
    return input, input, input.like(dtype=bool_)


@op(
    infer=_sinc_infer, scratch=("angle", "mask"), promote="float", half="float32",
    inplace="sinc_", flops=per_element(12), samples=singles,
)  # fmt: skip
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
    slope = (x * x.cos() - x.sin()) / (x * input)
    return where_select(input == 0, 0, g * conjugate(slope))


# Complex numbers


def _part(name, samples):
    def kernel(xp, input):
        return getattr(input, name)

    kernel.__doc__ = f"View the {name} parts of complex numbers."
    return op(
        name=f"_{name}", method=False, public=False, view=True, samples=samples,
        infer=lambda input: input.like(dtype=input.dtype.to_real()),
    )(kernel)  # fmt: skip


def _complexes(make):
    for shape in ((3, 4), (), (0, 3)):
        yield (make(*shape).to(complex128) * (1 + 0.5j),), {}


real_part = _part("real", _complexes)
imag_part = _part("imag", _complexes)


@real_part.vjp("input")
def _(g):
    return g


@imag_part.vjp("input")
def _(g):
    return g * 1j


@function()
def real(input):
    """View the real parts; a real tensor is returned itself."""
    return real_part(input) if input.dtype.category == COMPLEX else input


@function()
def imag(input):
    """View the imaginary parts.

    Raises:
        RuntimeError: The tensor is not complex.
    """
    if input.dtype.category != COMPLEX:
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return imag_part(input)


Tensor.real = property(real)  # type: ignore[assignment, method-assign]
Tensor.imag = property(imag)  # type: ignore[assignment, method-assign]


@op(name="_conj", method=False, public=False, infer=same, samples=singles)
def conj_of(xp, out, input):
    """The complex conjugate."""
    xp.conjugate(input, out=out)


@conj_of.vjp("input")
def _(g):
    return conj_of(g) if g.dtype.is_complex else g


@function(method=True)
def conj(input):
    """Conjugate; a real tensor is returned itself."""
    return conj_of(input) if input.dtype.category == COMPLEX else input


@function(method=True)
def conj_physical(input):
    """Conjugate into new memory."""
    return conj_of(input) if input.dtype.category == COMPLEX else input.clone()


@function(method=True)
def resolve_conj(input):
    """Return the tensor: conjugation is never deferred here."""
    return input


@function(method=True, inplace="sgn_")
def sgn(input):
    """Give the sign; for complex numbers the number of modulus 1 in the same direction."""
    if input.dtype.category != COMPLEX:
        return input.sign()
    zero = input == 0  # there it is flat, and nothing is divided by 0, in no derivative either
    return where_select(zero, 0, input / input.abs().masked_fill(zero, 1))


def _angle_infer(input):
    return input.like(dtype=input.dtype.to_real())


@op(infer=_angle_infer, promote="float", half="float32", flops=per_element(10), samples=singles)
def angle(xp, out, input):
    """Take the angle of complex numbers; of real ones 0 or pi."""
    if input.dtype.kind == "c":
        xp.arctan2(input.imag, input.real, out=out)
    else:
        xp.add(input, 0.0, out=out)  # -0.0 lies at 0
        xp.arctan2(0.0, out, out=out)


@angle.vjp("input")
def _(g, input):
    if not input.dtype.is_complex:
        return zeros_like(g)
    size = input.abs()
    return where_select(size == 0, 0, (input / (size * size)) * g * 1j)


@op(
    infer=lambda input: input.like(dtype=bool_),
    half="float32",
    flops=per_element(1),
    samples=singles,
)
def signbit(xp, out, input):
    """Tell which elements have their sign bit set."""
    if input.dtype.kind == "f":
        xp.signbit(input, out=out)
    elif input.dtype.kind == "i":
        xp.less(input, 0, out=out)
    else:
        out.fill(False)
