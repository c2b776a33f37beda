"""Scalar functions of float32 that a compiler can vectorize, for loops to inline.

The C library's ``expf`` and ``erff`` are calls, one element at a time; these are straight lines of
arithmetic. NaN stays NaN and infinities have their limits; results below the smallest normal
number are zero. Polynomials: least squares on Chebyshev points.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import deferred, inlined, spelled

types, errors = deferred("numba.core.types"), deferred("numba.core.errors")

_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # nine bits: its product with an exponent is exact
_LN2_LOW = np.float32(-2.12194440054690583e-4)
_MAGIC = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer
_MAGIC_BITS = np.int32(0x4B400000)
_S0, _S1, _S2, _S3, _S4 = (
    np.float32(v)
    for v in (0.5000000013, 0.16666577003, 0.041666464985, 0.0083631755654, 0.00139336429671)
)
_LOWEST, _HIGHEST = np.float32(-87.3), np.float32(88.72)
_ZERO, _ONE, _INFINITY = np.float32(0), np.float32(1), np.float32(np.inf)
_HALF, _TWO = np.float32(0.5), np.float32(2)
_NORMAL, _GROWN, _GROWTH = np.float32(2.0**-126), np.float32(2.0**23), np.float32(23)
_ROOT_HALF, _NAN = np.int32(0x3F3504F3), np.float32(np.nan)  # the bits of sqrt(1 / 2)
_BIAS, _SHIFT = np.int32(127), np.int32(23)

# atanh(s) / s = 1 + A1 s^2 + A2 s^4 + ..., to 1e-10 for s in [0, 1/3]
_A1, _A2, _A3, _A4, _A5 = (
    np.float32(v) for v in (0.3333334, 0.19999347, 0.14310312, 0.10697134, 0.12204702)
)

# 1 - Phi(a) = exp(-a^2 / 2) t R(t) with t = 1 / (1 + TAIL a), to 3e-8 of its value for a in [0, 13]
_TAIL = np.float32(0.32)
_R = tuple(
    np.float32(v)
    for v in (
        0.12766153279596312,
        0.12766067428798192,
        0.11462743426986774,
        0.08778700300665426,
        0.05884093727431877,
        -0.009861889273515778,
        0.06608256281975955,
        -0.14740361298632765,
        0.09575760363698155,
        -0.021152262021772564,
    )
)
_R0, _R1, _R2, _R3, _R4, _R5, _R6, _R7, _R8, _R9 = _R

# erf(x) / x in powers of x^2, to 4e-8 of its value for x in [-1, 1]
_E0, _E1, _E2, _E3, _E4, _E5 = (
    np.float32(v)
    for v in (
        1.1283791211,
        -0.37612319732,
        0.11280130261,
        -0.026709949549,
        0.0049160233894,
        -0.00056253959734,
    )
)
_SQRT2 = np.float32(1.4142135623730951)


def _require_float32(x: Any) -> None:
    # What is here approximates float32. Of float64 it would be wrong from the third digit on.
    if x != types.float32:
        raise errors.TypingError(f"functions of float32 take no {x}")


def _as_float(typing: Any, x: Any) -> Any:
    """The float32 with the bits of an int32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.int32), generate


as_float: Any = spelled(_as_float)


def _as_bits(typing: Any, x: Any) -> Any:
    """The int32 with the bits of a float32; no other type compiles."""
    _require_float32(x)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.int32))

    return types.int32(types.float32), generate


as_bits: Any = spelled(_as_bits)


def _float32_only(typing: Any, x: Any) -> Any:
    """The float32 itself; no other type compiles."""
    _require_float32(x)
    return types.float32(types.float32), lambda context, builder, signature, args: args[0]


float32_only: Any = spelled(_float32_only)


@inlined
def _split(x: Any) -> Any:
    # (exp(r) - 1, 2^k / 2) with x = k ln 2 + r. Half the power: 2^128 itself is no float32.
    c = _LOWEST if x < _LOWEST else x
    c = _HIGHEST if c > _HIGHEST else c
    shifted = c * _LOG2E + _MAGIC
    k = shifted - _MAGIC
    r = c - k * _LN2_HIGH
    r = r - k * _LN2_LOW
    s = _S4 * r + _S3
    s = s * r + _S2
    s = s * r + _S1
    s = s * r + _S0
    power = (as_bits(shifted) - _MAGIC_BITS - np.int32(1) + _BIAS) << _SHIFT
    return s * r * r + r, as_float(np.int32(power))


@inlined
def exp32(x: Any) -> Any:
    """``exp(x)`` of a float32, within 2 units in the last place."""
    s, half = _split(x)
    s = (s + _ONE) * half * _TWO
    s = _ZERO if x < _LOWEST else s
    return _INFINITY if x > _HIGHEST else s


@inlined
def expm1_32(x: Any) -> Any:
    """``exp(x) - 1`` of a float32 that is at most 0."""
    s, half = _split(x)
    power = half * _TWO
    return s * power + (power - _ONE)


@inlined
def log1p32(t: Any) -> Any:
    """``log(1 + t)`` for t in [0, 1], as twice the hyperbolic arctangent of ``t / (2 + t)``."""
    s = float32_only(t) / (_TWO + t)
    u = s * s
    r = _A5 * u + _A4
    r = r * u + _A3
    r = r * u + _A2
    r = r * u + _A1
    return (r * u * s + s) * _TWO


@inlined
def log32(x: Any) -> Any:
    """``log(x)`` of a float32, within 2 units in the last place."""
    v = x * _GROWN if x < _NORMAL else x  # a subnormal number becomes a normal one
    b = as_bits(v)
    k = np.int32(np.int32(b - _ROOT_HALF) >> _SHIFT)
    m = as_float(np.int32(b - np.int32(k << _SHIFT)))  # from sqrt(1 / 2) to sqrt(2)
    e = np.float32(k) - (_GROWTH if x < _NORMAL else _ZERO)
    s = (m - _ONE) / (m + _ONE)
    u = s * s
    r = _A5 * u + _A4
    r = r * u + _A3
    r = r * u + _A2
    r = r * u + _A1
    low = (r * u * s + s) * _TWO
    found = e * _LN2_HIGH + (e * _LN2_LOW + low)
    found = x if x == _INFINITY else found
    found = -_INFINITY if x == _ZERO else found
    return found if x >= _ZERO else _NAN


@inlined
def log_of_rest32(x: Any) -> Any:
    """``log(1 - x)`` of a float32 in [0, 1], with what rounding takes from the difference."""
    rest = _ONE - x
    lost = (_ONE - rest) - x
    return log32(rest) + (lost / rest if rest > _ZERO else _ZERO)


@inlined
def tail32(a: Any, density: Any) -> Any:
    """``1 - Phi(a)`` for ``a >= 0``, given ``exp(-a^2 / 2)``."""
    t = _ONE / (_ONE + _TAIL * float32_only(a))
    r = _R9 * t + _R8
    r = r * t + _R7
    r = r * t + _R6
    r = r * t + _R5
    r = r * t + _R4
    r = r * t + _R3
    r = r * t + _R2
    r = r * t + _R1
    r = r * t + _R0
    return r * t * density


@inlined
def normal_cdf32(x: Any, e: Any) -> Any:
    """The share of a standard normal distribution below a float32, given ``exp(-x^2 / 2)``."""
    rest = tail32(abs(x), e)
    return rest if x < _ZERO else _ONE - rest


@inlined
def lesser(x: Any, number: Any) -> Any:
    """The lesser of x and a number; NaN if x is NaN."""
    return number if x > number else x


@inlined
def greater(x: Any, number: Any) -> Any:
    """The greater of x and a number; NaN if x is NaN."""
    return number if x < number else x


@inlined
def erf32(x: Any) -> Any:
    """The error function of a float32, within 4 units in the last place."""
    u = x * x
    a = abs(x)
    r = _E5 * u + _E4
    r = r * u + _E3
    r = r * u + _E2
    r = r * u + _E1
    r = r * u + _E0
    far = _ONE - _TWO * tail32(a * _SQRT2, exp32(-u))
    far = -far if x < _ZERO else far
    return x * r if a < _ONE else far
