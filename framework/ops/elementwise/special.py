"""Special functions, and decomposition of floating-point numbers.

``lowtide.special`` names them and the common ones of ``unary.py``.
"""

from __future__ import annotations

from math import log, pi
from typing import Any

from ...dtypes import FLOAT, INT, bool_, int32
from ...kernels.common.special_functions import special
from ...spec import Spec
from ...tensor import Tensor
from ..creation.from_data import tensor
from ..creation.ranges import arange
from ..indexing.index_put import positions
from ..indexing.where import _where
from ..inplace import into
from ..registry import function, op
from ..signatures import broadcast, broadcast_shapes, pairs, per_element, same, singles
from .bessel import over
from .binary import _nonzero_pairs, float_power
from .unary import between, exp2, log1p
from .unary import polygamma as nth_digamma

# Of one number


def _unary(name, rule, doc, samples=singles, *, ufunc=None, public=False):
    called = ufunc or name

    def kernel(xp, out, input):
        getattr(special(xp), called)(input, out=out)

    kernel.__doc__ = doc
    made = op(
        name=name,
        public=public,
        inplace=f"{name}_" if public else None,
        infer=same,
        promote="float",
        flops=per_element(20),
        samples=samples,
    )(kernel)
    if rule is not None:
        made.vjp("input")(rule)
    return made


i0 = _unary(
    "i0",
    lambda g, input: g * i1(input),
    "Modified Bessel function of the first kind, order 0.",
    public=True,
)
i0e = _unary(
    "i0e",
    lambda g, input, out: g * (i1e(input) - input.sign() * out),
    "Compute ``exp(-abs(input)) * i0(input)``.",
)
i1: Any = _unary(
    "i1",
    lambda g, input, out: g * (i0(input) - over(input, out, 0.5)),
    "Modified Bessel function of the first kind, order 1.",
)
i1e: Any = _unary(
    "i1e",
    lambda g, input, out: g * (i0e(input) - input.sign() * out - over(input, out, 0.5)),
    "Compute ``exp(-abs(input)) * i1(input)``.",
)
entr = _unary(
    "entr",
    lambda g, input: g * (-input.log() - 1),
    "Compute ``-input * log(input)``: 0 at 0, -inf below.",
    between(0.3, 2.0),
)
erfcx = _unary(
    "erfcx",
    lambda g, input, out: g * (2 * input * out - 2 / pi**0.5),
    "Compute ``exp(input ** 2) * erfc(input)``.",
)
ndtr = _unary(
    "ndtr",
    lambda g, input: g * ((input * input * -0.5).exp() * (2 * pi) ** -0.5),
    "Area under the standard normal density from minus infinity to each element.",
)
ndtri = _unary(
    "ndtri",
    lambda g, out: g * ((out * out * 0.5).exp() * (2 * pi) ** 0.5),
    "Invert ``ndtr``. Keeps the result for backward.",
    between(0.1, 0.9),
)
log_ndtr = _unary(
    "log_ndtr",
    lambda g, input: g / (erfcx(input * -(0.5**0.5)) * (pi / 2) ** 0.5),
    "Take the logarithm of ``ndtr``, exact far below 0.",
)


# Of two


def _binary(name, doc, samples, *, ufunc=None, public=False):
    called = ufunc or name

    def kernel(xp, out, input, other):
        getattr(special(xp), called)(input, other, out=out)

    kernel.__doc__ = doc
    return op(
        name=name,
        public=public,
        inplace=f"{name}_" if public else None,
        infer=broadcast,
        promote="float",
        flops=per_element(30),
        samples=samples,
        tensors=("input", "other") if public else (),
    )(kernel)


igamma = _binary(
    "igamma",
    "Regularized lower incomplete gamma function of order ``input`` at ``other``.",
    _nonzero_pairs,
    ufunc="gammainc",
    public=True,
)
igammac = _binary(
    "igammac",
    "Regularized upper incomplete gamma function of order ``input`` at ``other``.",
    _nonzero_pairs,
    ufunc="gammaincc",
    public=True,
)


def _gamma_density(input, other):
    return ((input - 1) * other.log() - other - input.lgamma()).exp()


@igamma.vjp("other")
def _(g, input, other):
    return g * _gamma_density(input, other)


@igammac.vjp("other")
def _(g, input, other):
    return -g * _gamma_density(input, other)


def _zeta_pairs(make):
    for a, b in (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((0, 3), (1, 3))):
        yield (make(*a, low=1.5, high=4.0), make(*b, low=0.5, high=2.0)), {}


zeta = _binary(
    "zeta", "Hurwitz's zeta function: the sum of ``(k + other) ** -input``.", _zeta_pairs
)


@zeta.vjp("other")
def _(g, input, other):
    return -g * input * zeta(input + 1, other)


def _xlog1py_infer(input, other):
    out = broadcast(input, other)
    return out, out.like(dtype=bool_)


@op(
    infer=_xlog1py_infer,
    promote="float",
    scratch=("here",),
    flops=per_element(20),
    samples=_nonzero_pairs,
)
def _xlog1py(xp, out, here, input, other):
    """``input * log1p(other)``, which is 0 where ``input`` is 0."""
    xp.log1p(other, out=out)
    xp.multiply(out, input, out=out)
    xp.equal(input, 0, out=here)
    xp.copyto(out, 0, where=here)
    xp.isnan(other, out=here)
    xp.copyto(out, other, where=here)


@_xlog1py.vjp("input")
def _(g, input, other):
    return g * _where((input == 0) & (other <= -1), 0, log1p(other))


@_xlog1py.vjp("other")
def _(g, input, other):
    return g * (input / (other + 1))


# Compositions


@function(public=False)
def xlog1py(input, other, *, out=None):
    """Compute ``input * log1p(other)``, which is 0 where ``input`` is 0. Keeps both."""
    if not (isinstance(input, Tensor) or isinstance(other, Tensor)):
        raise TypeError(
            f"xlog1py takes at least one Tensor; got {type(input).__name__} and "
            f"{type(other).__name__}. Use lowtide.tensor()."
        )
    x = input if isinstance(input, Tensor) else tensor(input, device=other.device)
    y = other if isinstance(other, Tensor) else tensor(other, device=x.device)
    value = _xlog1py(x, y)
    return into(out, value)


@function(method=True, inplace="mvlgamma_", out=True)
def mvlgamma(input, p):
    """Compute the logarithm of the multivariate gamma function of dimension ``p``.

    Args:
        input: Values above ``(p - 1) / 2``.
        p: At least 1.
    """
    if p < 1:
        raise RuntimeError(f"p has to be greater than or equal to 1; got {p}.")
    shifts = arange(p, dtype=None, device=input.device) * -0.5
    x = input.unsqueeze(-1) + shifts.to(
        input.dtype if input.dtype.category == FLOAT else shifts.dtype
    )
    return x.lgamma().sum(-1) + p * (p - 1) / 4 * log(pi)


def _scaled_infer(input, other):
    return Spec(broadcast_shapes("ldexp", input.shape, other.shape), input.dtype)


def _scaled_samples(make):
    for a, b in (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((0, 3), (1, 3))):
        yield (make(*a), positions((5,), *b)[0] - 2), {}


@op(
    infer=_scaled_infer,
    promote=("float", ("input",)),
    flops=per_element(1),
    samples=_scaled_samples,
    elementwise=True,
)
def _ldexp(xp, out, input, other):
    """``input * 2 ** other`` for integers ``other``, also where the power overflows."""
    xp.ldexp(input, other, out=out)


@_ldexp.vjp("input")
def _(g, other):
    return _ldexp(g, other)


@function(method=True, inplace="ldexp_", out=True)
def ldexp(input, other):
    """Compute ``input * 2 ** other``.

    Memory:
        Keeps ``other``; where that is no integer, ``input`` and the power.
    """
    for name, x in (("input", input), ("other", other)):
        if not isinstance(x, Tensor):
            raise TypeError(f"ldexp(): argument '{name}' must be Tensor, not {type(x).__name__}.")
    if other.dtype.category == INT and not input.dtype.is_complex:
        return _ldexp(input, other)
    return input * exp2(other)


@function(method=True, public=False, inplace="polygamma_", out=True)
def polygamma(self, n):
    """Take the n-th derivative of ``digamma``."""
    return nth_digamma(n, self)


@function(method=True, public=False)
def float_power_(input, exponent):
    """Raise to a power in float64; the tensor must have that dtype already."""
    found = float_power(input.clone() if input.requires_grad else input, exponent)
    if found.dtype is not input.dtype:
        raise RuntimeError(
            f"the base given to float_power_ has dtype {input.dtype} but the operation's result "
            f"requires dtype {found.dtype}. Convert it with .double()."
        )
    return input.copy_(found)


@function(method=True)
def conj_physical_(input):
    """Conjugate this tensor itself."""
    return input.copy_(input.conj_physical())


# Of integers


def _integers(name, doc):
    def infer(input, other):
        if input.dtype.category != INT:
            raise NotImplementedError(
                f'"{name}_cpu" not implemented for {input.dtype}: {name} takes integers. Convert '
                "with .long()."
            )
        return broadcast(input, other, op_name=name)

    def kernel(xp, out, input, other):
        getattr(xp, name)(input, other, out=out)

    def samples(make):
        a, b = tensor([[12, -8, 0], [7, 30, 5]]), tensor([18, 12, 0])
        yield (a, b), {}
        yield (a[:0], b), {}
        yield (a, a[0, 0]), {}
        n = make(64).shape[0]
        yield (arange(n), arange(n) * 3), {}

    kernel.__doc__ = doc
    return op(
        name=name,
        inplace=f"{name}_",
        infer=infer,
        promote="arith",
        half="exact",
        flops=per_element(20),
        samples=samples,
        tensors=("input", "other"),
    )(kernel)


gcd = _integers("gcd", "Take the greatest common divisor, never negative.")
lcm = _integers("lcm", "Take the least common multiple, never negative.")


# Of floating point's parts


def _frexp_infer(input):
    if input.dtype.category != FLOAT:
        raise RuntimeError(
            f"torch.frexp() only supports floating-point dtypes; got {input.dtype}. Convert with "
            ".float()."
        )
    return input, Spec(input.shape, int32)


@op(returns=("mantissa", "exponent"), infer=_frexp_infer, flops=per_element(1), samples=singles)
def frexp(xp, mantissa, exponent, input):
    """Decompose into a mantissa, of magnitude in [0.5, 1), and an exponent of 2."""
    xp.frexp(input, mantissa, exponent)


@frexp.vjp("input")
def _(g_mantissa, exponent):
    return g_mantissa * (2.0 ** (-exponent).to(g_mantissa.dtype))


def _next_infer(input, other):
    spec = broadcast(input, other, op_name="nextafter")
    if spec.dtype.category < FLOAT:
        raise NotImplementedError(
            f"\"nextafter_cpu\" not implemented for '{spec.dtype.name}'. Convert one with "
            ".to(lowtide.float32)."
        )
    return spec


@op(
    inplace="nextafter_",
    infer=_next_infer,
    promote="arith",
    tensors=("input", "other"),
    half="exact",
    flops=per_element(2),
    samples=lambda make: (s for s in pairs(make) if isinstance(s[0][1], Tensor)),
)
def nextafter(xp, out, input, other):
    """Return the next floating-point number toward ``other``."""
    xp.nextafter(input, other, out=out)
