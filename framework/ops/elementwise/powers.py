"""Powers, roots and reciprocals."""

from __future__ import annotations

import cmath
import math
from functools import partial

import numpy as np

from ...dtypes import BOOL, int64
from ...kernels.common.shared_ufuncs import is_numpy
from ...kernels.common.wrapping import wrapped
from ...tensor import Tensor
from ..autocast_policy import WIDE_ON_CUDA
from ..creation.fill import zeros_like
from ..indexing.where import _where
from ..registry import op
from ..signatures import broadcast, per_element, same, singles
from .arithmetic import buffered, conjugate

_PRODUCTS = frozenset(
    (-2, 3, 4, 5, 6, 7, 8)
)  # of NumPy's powers: some take 20 times as long as products


def _powers(make):
    for a, b in (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((0, 3), (1, 3)), ((2,), ())):
        yield (make(*a, low=0.5, high=2.0), make(*b)), {}
    for exponent in (2, 3, 7, -2, 0.5, -1, 1.7, 0):
        yield (make(3, 2, low=0.5, high=2.0), exponent), {}
    yield (2.0, make(2, 3)), {}


@op(
    operator="__pow__",
    inplace="pow_",
    infer=broadcast,
    promote="arith",
    flops=per_element(10),
    samples=_powers,
    elementwise=True,
    autocast=WIDE_ON_CUDA,
)
def pow(xp, out, input, exponent):
    """Raise to a power elementwise; either operand may be a scalar.

    Memory:
        Keeps ``input``; with a gradient of ``exponent`` also the result.

    Raises:
        RuntimeError: An integer tensor with a negative integer exponent.
    """
    if out.dtype.kind == "b":
        if not isinstance(exponent, bool):
            raise NotImplementedError(
                "\"pow\" not implemented for 'Bool'. Convert one with .to(lowtide.int64)."
            )
        xp.copyto(out, input if exponent else True)
        return
    if isinstance(exponent, int | float) and not isinstance(input, int | float | complex):
        if exponent == 2:
            xp.multiply(input, input, out=out)
            return
        if out.dtype.kind == "f":
            if exponent == 0.5:
                xp.sqrt(input, out=out)
                return
            if exponent == -1:
                xp.reciprocal(input, out=out)
                return
            if is_numpy(xp) and exponent in _PRODUCTS:
                multiply = partial(_multiplied, n=int(exponent))
                if np.may_share_memory(out, input):  # in place: what is written is read again
                    buffered(np, lambda out, base: multiply(out, base.copy()), out, input)
                else:
                    multiply(out, input)
                return
            exponent = float(exponent)
        elif out.dtype.kind in "iu" and exponent < 0:
            raise RuntimeError("pow: Integers to negative integer powers are not allowed.")
    _power(xp, out, wrapped(input, out), exponent)


def _power(xp, out, base, exponent):
    # As the library computes it, but for what it refuses half way or loses on the way.
    kind = out.dtype.kind if is_numpy(xp) else None
    if kind == "c":
        _complex_power(xp, out, base, exponent)
        return
    if kind == "i" and _lies_in(out, base, exponent) and np.min(exponent, initial=0) < 0:
        # NumPy refuses negative powers when it has written others, maybe over an operand.
        buffered(xp, _integer_power, out, base, exponent)
        return
    try:
        xp.power(base, exponent, out=out)
    except ValueError:
        buffered(xp, _integer_power, out, base, exponent)


def _lies_in(out, *operands):
    return any(np.may_share_memory(out, x) for x in operands)


def _multiplied(out, base, n):
    # By squares and products, from the first binary digit on.
    now = base
    for digit in bin(abs(n))[3:]:
        np.multiply(now, now, out=out)
        now = out
        if digit == "1":
            np.multiply(out, base, out=out)
    if n < 0:
        np.reciprocal(out, out=out)


def _complex_power(xp, out, base, exponent):
    # NumPy multiplies for integer exponents, which gives NaN where a part of the way overflows.
    base, exponent = (x if hasattr(x, "dtype") else out.dtype.type(x) for x in (base, exponent))
    if not _lies_in(out, base, exponent):
        np.power(base, exponent, out=out)
        if not np.isnan(out.sum()):
            return
    buffered(xp, _restored_power, out, base, exponent)


def _restored_power(out, base, exponent):
    # Of a tile, which may be an operand: what is NaN comes from the logarithm instead.
    base, exponent = base.copy(), exponent.copy()
    np.power(base, exponent, out=out)
    lost = np.isnan(out) & np.isfinite(base) & np.isfinite(exponent) & (base != 0)
    if lost.any():
        bases, exponents = (np.broadcast_to(x, out.shape)[lost] for x in (base, exponent))
        out[lost] = np.exp(np.log(bases.astype(out.dtype)) * exponents)


def _integer_power(out, base, exponent):
    # Rounded toward zero: only 1 and -1 have powers below 0 that are not 0.
    # ``out`` may be an operand.
    down = exponent < 0
    zero = down & (base != 1) & (base != -1)
    np.power(base, np.where(down, exponent & 1, exponent), out=out)
    np.copyto(out, 0, where=zero)


@pow.vjp("input")
def _(g, input, exponent):
    if not isinstance(exponent, Tensor):
        if exponent == 0:
            return zeros_like(g)
        base = input if exponent == 2 else input ** (exponent - 1)
        return g * conjugate(base * exponent)
    slope = exponent * input ** (exponent - 1)
    return _masked(exponent == 0, g, slope)


@pow.vjp("exponent")
def _(g, input, exponent, out):
    if not isinstance(input, Tensor) and input != 0:
        return g * conjugate(out * _log(input))
    if exponent.dtype.is_complex:  # 0 ** x is flat for x >= 0
        rising = (exponent.imag == 0) & (exponent.real >= 0)
    else:
        rising = exponent >= 0
    if not isinstance(input, Tensor):
        return _masked(rising, g, out * float("-inf"))
    slope = out * (input if input.dtype is out.dtype else input.to(out.dtype)).log()
    return _masked((input == 0) & rising, g, slope)


def _masked(flat, g, slope):
    # ``g * slope``, and 0 where the power is flat. Both are masked: a slope that is not finite
    # would make the product's gradient with respect to ``g`` NaN, and with it a jvp.
    return _where(flat, 0, g) * conjugate(_where(flat, 0, slope))


def _log(x):
    """The logarithm of a Python number; nan of a negative one."""
    if isinstance(x, complex):
        return cmath.log(x)
    return math.log(x) if x > 0 else math.nan


def _square_infer(input):
    return input.like(dtype=int64) if input.dtype.category == BOOL else input  # as ``** 2``


@op(
    inplace="square_",
    infer=_square_infer,
    promote="arith",
    flops=per_element(1),
    samples=singles,
    elementwise=True,
)
def square(xp, out, input):
    """Square each element: ``out = input ** 2``."""
    if out.dtype == input.dtype:
        xp.multiply(input, input, out=out)
    else:
        xp.copyto(out, input)


@square.vjp("input")
def _(g, input):
    return g * (conjugate(input) * 2)


def _positives(make):
    for shape in ((3, 4), (2, 3, 2), (), (0, 3)):
        yield (make(*shape, low=0.5, high=2.0),), {}


@op(
    inplace="sqrt_",
    infer=same,
    promote="float",
    flops=per_element(4),
    samples=_positives,
    elementwise=True,
)
def sqrt(xp, out, input):
    """Compute the square root. Keeps the result for backward."""
    xp.sqrt(input, out=out)


@sqrt.vjp("input")
def _(g, out):
    return g / (conjugate(out) * 2)


@op(
    inplace="rsqrt_",
    infer=same,
    promote="float",
    flops=per_element(5),
    samples=_positives,
    elementwise=True,
    autocast=WIDE_ON_CUDA,
)
def rsqrt(xp, out, input):
    """Compute the reciprocal of the square root. Keeps the result for backward."""
    xp.sqrt(input, out=out)
    xp.reciprocal(out, out=out)


@rsqrt.vjp("input")
def _(g, out):
    return g * (conjugate(out) ** 3 * -0.5)


@op(
    inplace="reciprocal_",
    infer=same,
    promote="float",
    flops=per_element(1),
    samples=_positives,
    elementwise=True,
    autocast=WIDE_ON_CUDA,
)
def reciprocal(xp, out, input):
    """Compute ``1 / input``. Keeps the result for backward."""
    xp.reciprocal(input, out=out)


@reciprocal.vjp("input")
def _(g, out):
    return -g * conjugate(out * out)
