"""Comparison, logical and bitwise ops; maximum, minimum, clamp."""

from __future__ import annotations

from functools import partial

import numpy as np

from ...dtypes import BOOL, INT, bool_
from ...kernels.common.shared_ufuncs import is_numpy
from ...kernels.common.strided_ufuncs import finite
from ...kernels.common.wrapping import wrapped
from ...kernels.formula.bits import bits
from ...kernels.formula.formula import formula
from ...kernels.formula.functions import maximum as at_least
from ...kernels.formula.functions import minimum as at_most
from ...spec import Spec
from ...tensor import Tensor
from ..creation.fill import ones_like
from ..creation.from_data import tensor
from ..functions import in_place_twin
from ..indexing.where import _where
from ..registry import alias, function, op
from ..signatures import broadcast, broadcast_bool, broadcast_shapes, pairs, per_element, singles
from .arithmetic import buffered
from .bitmask import INFINITY, bitmask_vjp, with_bitmask, worth_bits

_COMPARABLE = (Tensor, bool, int, float, complex, np.generic, np.ndarray)


def _comparison(name, ufunc, sign, doc):
    def kernel(xp, out, input, other):
        getattr(xp, ufunc)(input, other, out=out)

    kernel.__doc__ = doc
    compare = op(
        name=name,
        infer=broadcast_bool,
        promote="arith",
        flops=per_element(1),
        samples=pairs,
        real=name not in ("eq", "ne"),
        tensors=("input",),
        elementwise=True,
    )(kernel)

    def operator(self, other):
        if isinstance(other, _COMPARABLE):
            return compare(self, other)
        return NotImplemented  # Python answers: identity for == and !=, TypeError for the others

    def in_place(self, other):
        return self.copy_(compare(self, other))

    operator.__name__, operator.__doc__ = f"__{name}__", doc
    in_place.__name__, in_place.__doc__ = f"{name}_", f"In-place twin of ``{name}``."
    function(method=True)(operator)
    function(method=True)(in_place)
    compare.sign = sign
    return compare


eq = _comparison("eq", "equal", "==", "Compare elementwise: ``input == other``, as bool.")
ne = _comparison("ne", "not_equal", "!=", "Compare elementwise: ``input != other``, as bool.")
lt = _comparison("lt", "less", "<", "Compare elementwise: ``input < other``, as bool.")
le = _comparison("le", "less_equal", "<=", "Compare elementwise: ``input <= other``, as bool.")
gt = _comparison("gt", "greater", ">", "Compare elementwise: ``input > other``, as bool.")
ge = _comparison("ge", "greater_equal", ">=", "Compare elementwise: ``input >= other``, as bool.")

alias("not_equal", of=ne)
alias("less", of=lt)
alias("less_equal", of=le)
alias("greater", of=gt)
alias("greater_equal", of=ge)


# Logic: every nonzero value is true


def _tensor_pairs(make):
    return (s for s in pairs(make) if isinstance(s[0][1], Tensor))


def _logical(name, doc, infer=broadcast_bool, samples=_tensor_pairs):
    def pair(xp, out, input, other):
        getattr(xp, name)(input, other, out=out)

    def single(xp, out, input):
        xp.logical_not(input, out=out)

    kernel = single if name == "logical_not" else pair
    kernel.__doc__ = doc
    made = op(
        name=name,
        infer=infer,
        promote="arith",
        flops=per_element(1),
        samples=samples,
        tensors=("input", "other"),
        elementwise=True,
    )(kernel)

    function(method=True)(in_place_twin(made, f"{name}_"))
    return made


logical_and = _logical("logical_and", "Tell elementwise whether both are true.")
logical_or = _logical("logical_or", "Tell elementwise whether either is true.")
logical_xor = _logical("logical_xor", "Tell elementwise whether exactly one is true.")
logical_not = _logical(
    "logical_not",
    "Tell elementwise whether it is zero.",
    infer=lambda input: input.like(dtype=bool_),
    samples=singles,
)


# Bits


def _bits(name, allow_bool=True):
    def infer(input, *other):
        spec = broadcast(input, *other, op_name=name)
        if input.dtype.category > INT or (input.dtype.category == BOOL and not allow_bool):
            raise NotImplementedError(
                f'"{name}" takes integer{" and bool" if allow_bool else ""} tensors, and is not '
                f"implemented for '{input.dtype.name}'. Convert with .to(lowtide.int64)."
            )
        return spec

    return infer


def integers(make):
    """Samples of an op on integers."""
    for a, b in (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((0, 3), (1, 3))):
        x, y = make(*a), make(*b)
        yield (
            (
                tensor(np.arange(x.numel()).reshape(x.shape) % 11),
                tensor(np.arange(y.numel()).reshape(y.shape) % 5),
            ),
            {},
        )


def _bitwise(name, operator, ufunc, doc, allow_bool=True):
    def kernel(xp, out, input, other):
        try:
            getattr(xp, ufunc)(input, other, out=out)
        except OverflowError:  # a number that the dtype cannot hold
            getattr(xp, ufunc)(wrapped(input, out), wrapped(other, out), out=out)

    kernel.__doc__ = doc
    return op(
        name=name,
        operator=operator,
        inplace=f"{name}_",
        infer=_bits(name, allow_bool),
        promote="arith",
        half="exact",
        flops=per_element(1),
        samples=integers,
        elementwise=True,
    )(kernel)


bitwise_and = _bitwise(
    "bitwise_and", "__and__", "bitwise_and", "Combine bits by and; logical for bool."
)
bitwise_or = _bitwise("bitwise_or", "__or__", "bitwise_or", "Combine bits by or; logical for bool.")
bitwise_xor = _bitwise(
    "bitwise_xor", "__xor__", "bitwise_xor", "Combine bits by exclusive or; logical for bool."
)
bitwise_left_shift = _bitwise(
    "bitwise_left_shift", "__lshift__", "left_shift", "Shift bits left.", allow_bool=False
)
bitwise_right_shift = _bitwise(
    "bitwise_right_shift",
    "__rshift__",
    "right_shift",
    "Shift bits right, keeping the sign.",
    allow_bool=False,
)


@op(
    inplace="bitwise_not_",
    infer=_bits("bitwise_not"),
    half="exact",
    flops=per_element(1),
    elementwise=True,
    samples=lambda make: ((inputs[:1], {}) for inputs, _ in integers(make)),
)
def bitwise_not(xp, out, input):
    """Invert every bit; logical not for bool."""
    xp.invert(input, out=out)


@function(method="__invert__")
def _invert(self):
    """Flip every bit, ``~x``; logical for bool."""
    if self.dtype.category > INT:
        raise TypeError(
            "~ (operator.invert) is only implemented on integer and Boolean-type tensors; got "
            f"{self.dtype}. Compare it with something."
        )
    return bitwise_not(self)


# What kind of number


def _claim(name, doc, kernel):
    kernel.__doc__ = doc
    return op(
        name=name,
        infer=lambda input: input.like(dtype=bool_),
        flops=per_element(1),
        samples=singles,
        elementwise=True,
    )(kernel)


isnan = _claim(
    "isnan", "Tell which elements are nan.", lambda xp, out, input: xp.isnan(input, out=out)
)
isinf = _claim(
    "isinf", "Tell which elements are infinite.", lambda xp, out, input: xp.isinf(input, out=out)
)
isfinite = _claim(
    "isfinite",
    "Tell which elements are neither infinite nor nan.",
    lambda xp, out, input: finite(xp, input, out),
)


def _is_infinity(value):
    def kernel(xp, out, input):
        if input.dtype.kind == "f":
            xp.equal(input, value, out=out)
        else:
            out.fill(False)

    return kernel


isposinf = _claim("isposinf", "Tell which elements are +inf.", _is_infinity(float("inf")))
isneginf = _claim("isneginf", "Tell which elements are -inf.", _is_infinity(float("-inf")))


@function(method=True)
def isreal(input):
    """Test elementwise for a zero imaginary part."""
    return input.imag == 0 if input.is_complex() else ones_like(input.detach(), dtype=bool_)


@function(method=True)
def equal(input, other):
    """Return True if two tensors have the same shape and elements, as a Python bool."""
    if not isinstance(other, Tensor):
        raise TypeError(f"equal(): argument 'other' must be Tensor, not {type(other).__name__}.")
    return input.shape == other.shape and bool(eq(input.detach(), other.detach()).all())


@function(method=True)
def isclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Test elementwise for ``|input - other| <= atol + rtol * |other|``.

    Args:
        input: A tensor.
        other: A tensor of the same dtype.
        rtol: Relative tolerance, at least 0.
        atol: Absolute tolerance, at least 0.
        equal_nan: Count nan as close to nan.
    """
    for name, x in (("input", input), ("other", other)):
        if not isinstance(x, Tensor):
            raise TypeError(f"isclose(): argument '{name}' must be Tensor, not {type(x).__name__}.")
    if rtol < 0 or atol < 0:
        raise RuntimeError(
            f"isclose: rtol and atol must be greater than or equal to zero; got {rtol} and {atol}."
        )
    if input.dtype is not other.dtype:
        raise RuntimeError(
            f"isclose: {input.dtype} did not match {other.dtype}. Convert one with .to()."
        )
    input, other = input.detach(), other.detach()
    close = input == other
    if equal_nan:
        close = close | ((input != input) & (other != other))
    if input.dtype.category <= INT:
        if rtol == 0 and atol == 0:
            return close
        input, other = input.double(), other.double()
    error = (input - other).abs()
    return close | ((error <= other.abs() * rtol + atol) & error.isfinite())


@function(method=True)
def allclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Return True if all elements are close, as a Python bool; see ``isclose``."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all())


# The larger, the smaller


def _extreme(name, loses, doc):
    def kernel(xp, out, input, other):
        getattr(xp, name)(input, other, out=out)

    kernel.__doc__ = doc
    made = op(
        name=name,
        infer=broadcast,
        promote="arith",
        flops=per_element(1),
        samples=_tensor_pairs,
        real=True,
        tensors=("input", "other"),
        elementwise=True,
    )(kernel)

    if name in ("maximum", "minimum"):  # equal elements share the gradient

        def first(g, input, other):
            return _where(loses(input, other), 0, halved(g, input, other))

        def second(g, input, other):
            return _where(loses(other, input), 0, halved(g, input, other))

    else:  # the first of equal elements takes it all

        def first(g, input, other):
            return _where(_first_wins(input, other), g, 0)

        def second(g, input, other):
            return _where(_first_wins(input, other), 0, g)

    def _first_wins(a, b):
        return ~(loses(a, b) | (a != a)) | (b != b)  # only nan differs from itself

    def halved(g, input, other):
        return _where(input == other, g * 0.5, g)

    made.vjp("input")(first)
    made.vjp("other")(second)
    return made


def _less(a, b):
    return a < b


def _greater(a, b):
    return a > b


maximum = _extreme("maximum", _less, "Take the larger elementwise; nan wins. Ties share gradients.")
minimum = _extreme(
    "minimum", _greater, "Take the smaller elementwise; nan wins. Ties share gradients."
)
fmax = _extreme("fmax", _less, "Take the larger elementwise; nan loses.")
fmin = _extreme("fmin", _greater, "Take the smaller elementwise; nan loses.")


def _clamp_infer(input, min, max):
    if min is None and max is None:
        raise RuntimeError(
            "clamp: At least one of 'min' or 'max' must not be None. Pass a number or a tensor."
        )
    shapes = [s.shape for s in (input, min, max) if s is not None]
    if input.dtype.is_complex:
        raise NotImplementedError("clamp is not supported for complex types. Clamp .abs().")
    return Spec(broadcast_shapes("clamp", *shapes), input.dtype)


def _clamps(make):
    x = make(3, 4)
    yield (x, -0.5, 0.5), {}
    yield (x, None, 0.5), {}
    yield (x, 0.5, None), {}
    yield (x, make(4, low=-1.0, high=-0.2), make(3, 1, low=0.2, high=1.0)), {}
    yield (make(), 0.0, 1.0), {}
    yield (make(0, 2), 0.0, None), {}


@op(
    inplace="clamp_",
    infer=_clamp_infer,
    promote="arith",
    flops=per_element(2),
    samples=_clamps,
    tensors=("input",),
    elementwise=True,
)
def _clamp(xp, out, input, min=None, max=None):
    """Clamp each element to [min, max]. Keeps ``input`` and the ends that are tensors."""
    if out.dtype.kind in "iu":
        min, max = _end(out, min, -1), _end(out, max, 1)
        if min is None and max is None:
            if out is not input:
                xp.copyto(out, input)
            return
    written = max is out or (
        is_numpy(xp) and hasattr(max, "shape") and np.may_share_memory(out, max)
    )
    if min is not None and written:  # before it is read
        buffered(xp, partial(_clamp_apart, xp), out, input, min, max)
        return
    if min is not None:
        input = xp.maximum(input, min, out=out)
    if max is not None:
        xp.minimum(input, max, out=out)


def _clamp_apart(xp, out, input, min, max):
    xp.minimum(xp.maximum(input, min), max, out=out)


def _end(out, end, sign):
    # An end beyond the integers of a dtype, on the side where it limits nothing, is none.
    if not isinstance(end, int):
        return end
    limits = np.iinfo(out.dtype)
    if limits.min <= end <= limits.max:
        return end
    if (end > 0) is (sign > 0):
        return None
    name = "min" if sign < 0 else "max"
    raise RuntimeError(
        f"clamp: {name}={end} is not a number of {out.dtype.name}, to which the result would be "
        "limited. Convert the tensor with .to(lowtide.int64)."
    )


@_clamp.vjp("input")
def _(g, input, min, max):
    within = None  # also false where one of them is NaN
    if min is not None:
        within = input >= min
    if max is not None:
        below = input <= max
        within = below if within is None else within & below
    return _where(within, g, 0)


@_clamp.vjp("min")
def _(g, input, min, max):
    bitmask_vjp = input < min
    if max is not None:
        bitmask_vjp = bitmask_vjp & (max > min if isinstance(max, Tensor) else min < max)
    return _where(bitmask_vjp, g, 0)


@_clamp.vjp("max")
def _(g, input, min, max):
    bitmask_vjp = input > max
    if min is not None:
        bitmask_vjp = bitmask_vjp | (max < min)
    return _where(bitmask_vjp, g, 0)


def _clamp_between_infer(input, *, low, high):
    return input


def _between(make):
    for inputs, _ in singles(make):
        yield inputs, {"low": -0.5, "high": 0.5}
    yield (make(2, 3),), {"low": 0.2, "high": INFINITY}


@op(infer=_clamp_between_infer, half="exact", flops=per_element(2), samples=_between)
@formula(fused=False)
def _clamp_between(input, *, low, high):
    """Clamp to two numbers, of which one may be infinite."""
    return at_most(at_least(input, low), high)


@bits
def _clamp_bits(input, *, low, high):  # the gradient is 1 at an end itself
    out = _clamp_between(input, low=low, high=high)
    return out, input >= low and input <= high


clamp_with_bitmask = with_bitmask(_clamp_between, "_clamp_with_bitmask", _clamp_bits)


@clamp_with_bitmask.vjp("input", room=("g_out",))
def _(g_out, bitmask, room):
    return bitmask_vjp(room, g_out, bitmask)


def _as_ends(input, min, max):
    """Two numbers of which one at least is finite, where bits suffice for the gradient; or None."""
    ends = (-INFINITY if min is None else min, INFINITY if max is None else max)
    if not all(type(v) in (int, float) and v == v for v in ends) or not worth_bits(input):
        return None
    limit = np.finfo(input.dtype.np).max
    finite = [v for v in ends if abs(v) < INFINITY]
    if not finite or any(abs(v) >= limit for v in finite):
        return None
    return float(ends[0]), float(ends[1])


@function(method=True)
def clamp(
    input: Tensor,
    min: Tensor | complex | None = None,
    max: Tensor | complex | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Clamp each element to [min, max]; either end may be a number, a tensor, or None.

    Memory:
        Keeps one bit an element where both ends are numbers; ``input`` and the ends where one is a
        tensor, and below 16384 elements. The gradient is 1 at an end itself.
    """
    if out is None:
        ends = _as_ends(input, min, max)
        if ends is not None:
            return clamp_with_bitmask(input, *ends)[0]
    return _clamp(input, min, max, out=out)


alias("clip", of=clamp)


@function(method=True)
def clamp_min(input, min, *, out=None):
    """Clamp each element to at least ``min``."""
    return clamp(input, min, None, out=out)


@function(method=True)
def clamp_max(input, max, *, out=None):
    """Clamp each element to at most ``max``."""
    return clamp(input, None, max, out=out)


@function(method=True)
def clamp_min_(input, min):
    """In-place twin of ``clamp_min``."""
    return input.clamp_(min, None)


@function(method=True)
def clamp_max_(input, max):
    """In-place twin of ``clamp_max``."""
    return input.clamp_(None, max)
