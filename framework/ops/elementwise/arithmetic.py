"""Arithmetic operators, with broadcasting and type promotion."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dtypes import BOOL, COMPLEX, FLOAT, INT, bool_, dtype
from ...kernels.common.mixed_dtype import converting_arithmetic
from ...kernels.common.shared_ufuncs import is_numpy
from ...kernels.common.strided_ufuncs import negate
from ...kernels.common.wrapping import wrapped
from ...tensor import Tensor
from ..creation.fill import zeros_like
from ..old_calls import old_call
from ..overwrite import write_over
from ..registry import alias, function, op
from ..signatures import broadcast, common_dtype, pairs, per_element, singles


def check_factor(name: str, word: str, common: dtype, factor: Any) -> None:
    """Raise an error unless a number can be a factor of tensors of a dtype.

    Args:
        name: Of the op.
        word: What the number is called there.
        common: The dtype that its operands meet in.
        factor: The number.

    Raises:
        RuntimeError: It is of a higher kind than the dtype, or does not fit it.
    """
    if common.category < COMPLEX and isinstance(factor, complex):
        kind = "For non-complex input tensors", "a complex number"
    elif common.category <= INT and isinstance(factor, float):
        kind = "For integral input tensors", "a floating point number"
    else:
        if common.category == INT and not _fits(int(factor), common):
            raise RuntimeError(
                f"{name}: {word} {factor} cannot be converted to type {common.name} without "
                "overflow. Convert the tensors."
            )
        return
    raise RuntimeError(
        f"{name}: {kind[0]}, argument {word} must not be {kind[1]}; got {factor}. Convert the "
        "tensors."
    )


def _fits(number: int, common: dtype) -> bool:
    limits = np.iinfo(common.np)  # of unsigned ones a negative number wraps, as in PyTorch
    return (limits.min or -limits.max) <= number <= limits.max


def _alpha(name: str, input: Any, other: Any, alpha: Any) -> Any:
    # The scaled operand, in the dtype of the result: in its own the product may not fit.
    common = common_dtype(input, other)
    check_factor(name, "alpha", common, alpha)
    if isinstance(alpha, bool) and common.category != BOOL:
        raise RuntimeError(f"{name}: Boolean alpha only supported for Boolean results.")
    if not isinstance(other, Tensor):
        return other * alpha
    if other.dtype.category == BOOL and name.startswith(("sub", "rsub")):
        return other  # which subtraction refuses
    if common.category == BOOL:
        return other * bool(alpha)
    return (other if other.dtype is common else other.to(common)) * alpha


@op(
    operator="__add__",
    inplace="_add_",
    infer=broadcast,
    promote="arith",
    flops=per_element(1),
    samples=pairs,
    elementwise=True,
    one_write=True,
)
def _add(xp, out, input, other):
    """Add elementwise, with broadcasting: ``out = input + other``."""
    try:
        xp.add(input, other, out)
    except OverflowError:
        xp.add(wrapped(input, out), wrapped(other, out), out=out)


_add.kernel("cpu", dtypes="mixed")(converting_arithmetic("add"))


@_add.vjp("input")
@_add.vjp("other")
def _(g):
    return g


@function(method=True)
def add(input, other, *_old, alpha=1, out=None):
    """Add elementwise, with broadcasting: ``input + alpha * other``."""
    if _old:
        return old_call(add, ("alpha",), (input, other, *_old), alpha=alpha, out=out)
    return _add(input, other if alpha == 1 else _alpha("add", input, other, alpha), out=out)


@function(method=True, public=False)
def add_(input, other, *_old, alpha=1):
    """In-place twin of ``add``."""
    if _old:
        return old_call(add_, ("alpha",), (input, other, *_old), alpha=alpha)
    return input._add_(other if alpha == 1 else _alpha("add_", input, other, alpha))


def _minus_infer(input, other):
    spec = broadcast(input, other, op_name="sub")
    if input.dtype.category == BOOL:
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` "
            "or `logical_xor()` operator instead."
        )
    return spec


@op(
    operator="__sub__",
    inplace="_sub_",
    infer=_minus_infer,
    promote="number",
    flops=per_element(1),
    samples=pairs,
    elementwise=True,
    one_write=True,
)
def _sub(xp, out, input, other):
    """Subtract elementwise, with broadcasting: ``out = input - other``."""
    try:
        xp.subtract(input, other, out)
    except OverflowError:
        xp.subtract(wrapped(input, out), wrapped(other, out), out=out)


_sub.kernel("cpu", dtypes="mixed")(converting_arithmetic("sub"))


@_sub.vjp("input")
def _(g):
    return g


@_sub.vjp("other", room=("g",))
def _(g, room):
    return write_over(room, neg, g)


@function(method=True)
def sub(input, other, *_old, alpha=1, out=None):
    """Subtract elementwise, with broadcasting: ``input - alpha * other``."""
    if _old:
        return old_call(sub, ("alpha",), (input, other, *_old), alpha=alpha, out=out)
    return _sub(input, other if alpha == 1 else _alpha("sub", input, other, alpha), out=out)


@function(method=True, public=False)
def sub_(input, other, *_old, alpha=1):
    """In-place twin of ``sub``."""
    if _old:
        return old_call(sub_, ("alpha",), (input, other, *_old), alpha=alpha)
    return input._sub_(other if alpha == 1 else _alpha("sub_", input, other, alpha))


@function()
def rsub(input, other, *, alpha=1):
    """Subtract with reversed operands: ``other - alpha * input``."""
    if not isinstance(input, Tensor):
        raise TypeError(f"rsub(): argument 'input' must be Tensor, not {type(input).__name__}.")
    return _sub(other, input if alpha == 1 else _alpha("rsub", other, input, alpha))


@op(
    operator="__mul__",
    inplace="mul_",
    infer=broadcast,
    promote="arith",
    flops=per_element(1),
    samples=pairs,
    elementwise=True,
    one_write=True,
)
def mul(xp, out, input, other):
    """Multiply elementwise, with broadcasting: ``out = input * other``."""
    try:
        xp.multiply(input, other, out)
    except OverflowError:
        xp.multiply(wrapped(input, out), wrapped(other, out), out=out)


def conjugate(x):
    """Return the factor of a product for its gradient: conjugated if complex."""
    if isinstance(x, Tensor):
        return x.conj() if x._spec.dtype.category == COMPLEX else x
    return x.conjugate() if isinstance(x, complex) else x


mul.kernel("cpu", dtypes="mixed")(converting_arithmetic("mul"))


@mul.vjp("input", room=("g", "other"))
def _(g, other, room):  # naming `other` keeps it alive, and only while `input` needs a gradient
    if room is None:  # as it nearly always is where tensors are small: without another call
        return g * conjugate(other)
    return write_over(room, mul, g, conjugate(other))


@mul.vjp("other", room=("g", "input"))
def _(g, input, room):
    if room is None:
        return g * conjugate(input)
    return write_over(room, mul, g, conjugate(input))


def divisors(make):
    """Samples of a division, without divisors near zero."""
    for a, b in (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((0, 3), (1, 3)), ((2,), ())):
        yield (make(*a), make(*b, low=0.5, high=2.0)), {}
    yield (make(3, 2), 1.5), {}


@op(
    operator="__truediv__",
    inplace="_div_",
    infer=broadcast,
    promote="float",
    flops=per_element(1),
    samples=divisors,
    elementwise=True,
    one_write=True,
)
def _div(xp, out, input, other):
    """Divide elementwise, with broadcasting: ``out = input / other``."""
    xp.true_divide(input, other, out)


_div.kernel("cpu", dtypes="mixed")(converting_arithmetic("div"))


@_div.vjp("input", room=("g",))
def _(g, other, room):
    return write_over(room, _div, g, conjugate(other))


@_div.vjp("other")
def _(g, input, other):
    return -g * conjugate((input / other) / other)


def _refuse_zero(xp, out, other, name):
    # PyTorch's CPU kernels raise; a GPU's answer is left undefined there as here.
    if xp is np and out.dtype.kind in "iu" and out.size and not np.all(other):
        raise RuntimeError(f"{name}: ZeroDivisionError: an integer divided by zero. Use div.")


def _not_bool(name):
    def infer(input, other):
        spec = broadcast(input, other, op_name=name)
        if spec.dtype.category == BOOL:
            raise NotImplementedError(
                f"\"{name}\" not implemented for 'Bool'. Convert one with .to(lowtide.int64)."
            )
        return spec

    return infer


@op(
    operator="__floordiv__",
    inplace="floor_divide_",
    infer=_not_bool("floor_divide"),
    promote="arith",
    flops=per_element(1),
    samples=divisors,
    real=True,
)
def floor_divide(xp, out, input, other):
    """Divide elementwise and round down."""
    input, other = wrapped(input, out), wrapped(other, out)
    _refuse_zero(xp, out, other, "floor_divide")
    xp.floor_divide(input, other, out=out)


@floor_divide.vjp("input")
@floor_divide.vjp("other")
def _(g):
    return zeros_like(g)


@op(
    infer=_not_bool("div"),
    promote="arith",
    flops=per_element(1),
    samples=divisors,
    real=True,
)
def _div_trunc(xp, out, input, other):
    """Divide elementwise and round toward zero."""
    if out.dtype.kind in "iu":
        input, other = wrapped(input, out), wrapped(other, out)
        _refuse_zero(xp, out, other, "div")
        xp.fmod(input, other, out=out)  # what truncation leaves; the rest divides exactly
        xp.subtract(input, out, out=out)
        xp.floor_divide(out, other, out=out)
    else:
        xp.true_divide(input, other, out)
        xp.trunc(out, out=out)


@_div_trunc.vjp("input")
@_div_trunc.vjp("other")
def _(g):
    return zeros_like(g)


_MODES = {None: _div, "floor": floor_divide, "trunc": _div_trunc}


@function(method=True)
def div(input, other, *, rounding_mode=None, out=None):
    """Divide elementwise, with broadcasting; integers become floats unless rounded.

    Args:
        input: The dividend.
        other: The divisor.
        rounding_mode: None, "floor" (down, as ``//``) or "trunc" (toward zero, as in C).
        out: Where to leave the result.

    Raises:
        RuntimeError: The mode is another, or an integer is divided by zero while rounding.
    """
    if rounding_mode not in _MODES:
        raise RuntimeError(
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
            f"'{rounding_mode}'"
        )
    return _MODES[rounding_mode](input, other, out=out)


@function(method=True, public=False)
def div_(input, other, *, rounding_mode=None):
    """In-place twin of ``div``."""
    if rounding_mode is None:
        return input._div_(other)
    if rounding_mode == "floor":
        return input.floor_divide_(other)
    return input._copy_result(div(input, other, rounding_mode=rounding_mode), "div_")


@function(method="_copy_result", public=False)
def copy_result(input, result, name):
    """Write a result into a tensor as an in-place op does.

    Raises:
        RuntimeError: The result has another shape, or a dtype that the tensor cannot hold.
    """
    if result.shape != input.shape:
        raise RuntimeError(
            f"{name}: output with shape {tuple(input.shape)} doesn't match the broadcast shape "
            f"{tuple(result.shape)}. Use the out-of-place op."
        )
    if result.dtype.category > input.dtype.category:
        raise RuntimeError(
            f"{name}: result type {result.dtype} can't be cast to the desired output type "
            f"{input.dtype}. Use the out-of-place op, or convert the tensor first."
        )
    return input.copy_(result)


@op(
    operator="__mod__",
    inplace="remainder_",
    infer=_not_bool("remainder"),
    promote="arith",
    flops=per_element(1),
    samples=divisors,
    real=True,
)
def remainder(xp, out, input, other):
    """Compute the remainder of ``floor_divide``, with the sign of ``other``."""
    input, other = wrapped(input, out), wrapped(other, out)
    _refuse_zero(xp, out, other, "remainder")
    xp.remainder(input, other, out=out)


@remainder.vjp("input")
def _(g):
    return g


@remainder.vjp("other")
def _(g, input, other):
    return -g * floor_divide(input, other)


@op(
    inplace="fmod_",
    infer=_not_bool("fmod"),
    promote="arith",
    flops=per_element(1),
    samples=divisors,
    real=True,
    tensors=("input",),
)
def fmod(xp, out, input, other):
    """Compute the remainder of division rounded toward zero, with the sign of ``input``."""
    other = wrapped(other, out)
    _refuse_zero(xp, out, other, "fmod")
    xp.fmod(input, other, out=out)


@fmod.vjp("input")
def _(g):
    return g


@fmod.vjp("other")
def _(g, input, other):
    return -g * _div_trunc(input, other)


def _neg_infer(input):
    if input.dtype.category == BOOL:
        raise RuntimeError(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to "
            "invert a mask, use the `~` or `logical_not()` operator instead."
        )
    return input


@op(
    operator="__neg__",
    inplace="neg_",
    infer=_neg_infer,
    half="exact",
    flops=per_element(1),
    samples=singles,
    elementwise=True,
    one_write=True,
)
def neg(xp, out, input):
    """Negate: ``out = -input``."""
    negate(xp, input, out)


@neg.kernel("cpu", when=lambda input: input.dtype.is_half)
def _(xp, out, input):
    sign = np.uint16(0x8000)  # NumPy converts them one at a time, there and back
    xp.bitwise_xor(input.view(np.uint16), sign, out=out.view(np.uint16))


@neg.vjp("input", room=("g",))
def _(g, room):
    return write_over(room, neg, g)


@function(method=True, operator="__pos__")
def positive(input):
    """Return the tensor itself."""
    if input.dtype.category == BOOL:
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return input


def away_from_zero(make):
    """Samples of an op that is not differentiable at zero."""
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        yield (make(*shape, low=0.5, high=2.0),), {}


def numeric(name, *, integers=True):
    """Infer function of a unary op that refuses bools (and integers, if asked)."""

    def infer(input, **_):
        if input.dtype.category < (INT if integers else FLOAT):
            raise NotImplementedError(
                f"\"{name}\" not implemented for '{input.dtype.name}'. Convert it with .to()."
            )
        return input

    return infer


def _abs_infer(input):
    return numeric("abs")(input).like(dtype=input.dtype.to_real())


@op(
    operator="__abs__",
    inplace="abs_",
    infer=_abs_infer,
    flops=per_element(1),
    samples=away_from_zero,
    elementwise=True,
)
def abs(xp, out, input):
    """Take the absolute value, or the modulus of a complex number."""
    xp.absolute(input, out=out)


@abs.vjp("input")
def _(g, input):
    return g * (input.sgn() if input.dtype.is_complex else input.sign())


@op(
    inplace="sign_",
    infer=lambda input: (input, input.like(dtype=bool_)),
    scratch=("mask",),
    flops=per_element(2),
    samples=away_from_zero,
    elementwise=True,
)
def sign(xp, out, mask, input):
    """Return -1, 0 or 1 as the sign of each element; 0 for NaN."""
    if out.dtype.kind == "b":
        xp.copyto(out, input)
        return
    xp.sign(input, out=out)
    if out.dtype.kind == "f":
        xp.isnan(out, out=mask)
        xp.copyto(out, 0, where=mask)


@sign.loop()
def _(input):
    return 1 if input > 0 else -1 if input < 0 else 0


@sign.vjp("input")
def _(g):
    return zeros_like(g)


def buffered(xp, f, out, *inputs):
    """Run ``f(out, *inputs)`` elementwise in small tiles, so that temporaries stay small."""
    if not is_numpy(xp):
        f(out, *inputs)
        return
    flags = ["external_loop", "buffered", "zerosize_ok"]
    access = [["writeonly"], *[["readonly"] for _ in inputs]]
    with np.nditer([out, *inputs], flags, access, casting="unsafe") as tiles:
        for tile in tiles:
            f(*tile)


alias("subtract", of=sub)
alias("multiply", of=mul)
alias("divide", of=div)
alias("true_divide", of=div)
alias("negative", of=neg)
alias("absolute", of=abs)
