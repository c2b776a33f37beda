"""Elementwise functions of two operands, beyond arithmetic and comparison."""

from __future__ import annotations

from functools import partial
from math import log

from ...dtypes import bool_, float64
from ...kernels.common.elementwise import same_shape_float32
from ...kernels.common.shared_ufuncs import is_numpy
from ...kernels.common.special_functions import special
from ...kernels.formula.functions import exp as exp_of
from ...kernels.formula.functions import log as log_of
from ...kernels.formula.functions import log1p_of_fraction
from ...spec import Spec
from ...tensor import Tensor
from ..creation.fill import zeros_like
from ..indexing.where import _where
from ..registry import alias, function, op
from ..signatures import broadcast, broadcast_shapes, pairs, per_element
from .arithmetic import buffered, conjugate
from .unary import LN2

# Two operands


def _binary(
    name,
    doc,
    *,
    promote="float",
    samples=pairs,
    ufunc=None,
    library=False,
    inplace=True,
    tensors=("input", "other"),
    on_complex=None,
):
    called = ufunc or name

    def kernel(xp, out, input, other):
        if on_complex is not None and out.dtype.kind == "c":
            buffered(xp, partial(on_complex, xp), out, input, other)
        else:
            getattr(special(xp) if library else xp, called)(input, other, out=out)

    kernel.__doc__ = doc
    return op(
        name=name,
        inplace=f"{name}_" if inplace else None,
        infer=broadcast,
        promote=promote,
        flops=per_element(10),
        samples=samples,
        tensors=tensors,
        elementwise=True,
    )(kernel)


def _tensor_pairs(make):
    for inputs, attributes in pairs(make):
        if isinstance(inputs[1], Tensor):
            yield inputs, attributes


def _nonzero_pairs(make):
    for a, b in (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((0, 3), (1, 3)), ((2,), ())):
        yield (make(*a, low=0.5, high=2.0), make(*b, low=0.5, high=2.0)), {}


atan2 = _binary(
    "atan2", "Take the angle of the point (other, input).", ufunc="arctan2", samples=_nonzero_pairs
)


def _over_square(a, b):
    # 0 where the square vanishes: the angle of the origin is a constant.
    found = (a * a + b * b).reciprocal()
    return _where(found == float("inf"), 0, found)


@atan2.vjp("input")
def _(g, input, other):
    return g * (other * _over_square(input, other))


@atan2.vjp("other")
def _(g, input, other):
    return -g * (input * _over_square(input, other))


alias("arctan2", of=atan2)
hypot = _binary(
    "hypot", "Compute ``sqrt(input ** 2 + other ** 2)`` without overflow.", samples=_nonzero_pairs
)


@hypot.vjp("input")
def _(g, input, out):
    return g * (input / out)


@hypot.vjp("other")
def _(g, other, out):
    return g * (other / out)


xlogy = _binary(
    "xlogy",
    "Compute ``input * log(other)``, which is 0 where ``input`` is 0.",
    samples=_nonzero_pairs,
    library=True,
    tensors=(),
)


@xlogy.loop(when=same_shape_float32)
def _(input, other):
    return 0 if input == 0 and other == other else input * log_of(other)


@xlogy.vjp("input")
def _(g, input, other):
    if not isinstance(other, Tensor):
        return g * (log(other) if other > 0 else float("nan"))
    return g * _where((input == 0) & (other <= 0), 0, other.log())


@xlogy.vjp("other")
def _(g, input, other):
    return g * (input / other)


def complex_logaddexp(xp, out, a, b):
    """Complex ``log(exp(a) + exp(b))``, with the larger real part factored out."""
    swap = b.real > a.real
    large, small = xp.where(swap, b, a), xp.where(swap, a, b)
    rest = xp.exp(small - large)
    value = large + (
        xp.log1p(rest) if is_numpy(xp) else xp.log(rest + 1)
    )  # CuPy's takes no complex
    even = (a.real == b.real) & xp.isinf(a.real)  # inf - inf would be NaN
    both = xp.where(a.real < 0, a, xp.log(xp.exp(a) + xp.exp(b)))
    xp.copyto(out, xp.where(even, both, value))


logaddexp = _binary(
    "logaddexp",
    "Compute ``log(exp(input) + exp(other))`` without overflow.",
    samples=_tensor_pairs,
    inplace=False,
    on_complex=complex_logaddexp,
)
logaddexp2 = _binary(
    "logaddexp2",
    "Compute ``log2(2 ** input + 2 ** other)`` without overflow.",
    samples=_tensor_pairs,
    inplace=False,
)


@logaddexp.loop(when=same_shape_float32)
def _(input, other):
    high = other if other > input else input
    low = input if other > input else other
    gap = 0 if low == high else low - high  # not inf - inf
    found = high + log1p_of_fraction(exp_of(gap))
    return input + other if input != input or other != other else found


@logaddexp.vjp("input")
def _(g, input, other):
    return g * conjugate((input - other).sigmoid())


@logaddexp.vjp("other")
def _(g, input, other):
    return g * conjugate((other - input).sigmoid())


@logaddexp2.vjp("input")
def _(g, input, other):
    return g * ((input - other) * LN2).sigmoid()


@logaddexp2.vjp("other")
def _(g, input, other):
    return g * ((other - input) * LN2).sigmoid()


copysign = _binary(
    "copysign", "Give ``input`` the sign of ``other``.", samples=_nonzero_pairs, tensors=("input",)
)


@copysign.vjp("input")
def _(g, input, out):
    return g * _where(input == 0, 0, out / input).detach()  # NaN at 0 if it had a gradient


@copysign.vjp("other")
def _(g):
    return zeros_like(g)


def _step_infer(input, values):
    out = Spec(broadcast_shapes("heaviside", input.shape, values.shape), input.dtype)
    return out, out.like(dtype=bool_)


@op(
    inplace="heaviside_",
    infer=_step_infer,
    promote="same",
    flops=per_element(1),
    scratch=("mask",),
    samples=_nonzero_pairs,
    tensors=("input", "values"),
)
def heaviside(xp, out, mask, input, values):
    """Heaviside step function: 0 below zero and at NaN, 1 above, ``values`` at zero."""
    if out.dtype.kind in "iub":  # NumPy's function computes in float64
        xp.not_equal(input, 0, out=mask)
        xp.greater(input, 0, out=out, casting="unsafe")
        xp.logical_not(mask, out=mask)
        xp.copyto(out, values, where=mask)
        return
    xp.not_equal(input, input, out=mask)
    xp.heaviside(input, values, out=out, casting="unsafe")
    xp.copyto(out, 0, where=mask, casting="unsafe")


@heaviside.vjp("input")
def _(g):
    return zeros_like(g)


@heaviside.vjp("values")
def _(g, input):
    return _where(input == 0, g, 0)


@function(method=True, out=True)
def float_power(input, exponent):
    """Raise to a power in float64."""
    if not (isinstance(input, Tensor) or isinstance(exponent, Tensor)):
        raise TypeError("float_power() takes at least one Tensor; got two numbers. Use **.")

    def wide(x):
        if not isinstance(x, Tensor):
            return x
        return x.to(float64.to_complex() if x.is_complex() else float64)

    return wide(input) ** wide(exponent)
