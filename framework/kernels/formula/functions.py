"""The functions that a formula may call, and what each is on every target.

A formula imports them from here. Called with floats they are the plain functions below, which is
how a test runs a formula. The printers look them up in ``TABLE`` by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple


class Function(NamedTuple):
    """A function of one element, or of an element and a number.

    Attributes:
        numpy: The call in NumPy: ``{x}`` is the operand, ``{y}`` the second one, ``{out}`` where
            the result goes. ``special(xp)`` is the module of special functions.
        loop: Name of the function in ``kernels/cpu/support/vector_math.py``, for float32, or in
            NumPy; None for a function of Python.
        second: What the second operand is, if there is one: ``"number"``, no element; or
            ``"hint"``, a part of the function's value that the caller computes anyway. NumPy does
            not need it.
    """

    numpy: str
    loop: str | None
    second: str | None = None


def exp(x: float) -> float:
    """The exponential; infinity if it is too large."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def expm1_of_negative(x: float) -> float:
    """``exp(x) - 1`` for x at most 0."""
    return math.expm1(x)


def log(x: float) -> float:
    """The natural logarithm: -infinity of 0, NaN of what is less."""
    return math.log(x) if x > 0 else -math.inf if x == 0 else math.nan


def log1p_of_fraction(x: float) -> float:
    """``log(1 + x)`` for x in [0, 1]."""
    return math.log1p(x)


def log_of_rest(x: float) -> float:
    """``log(1 - x)`` for x in [0, 1]."""
    return math.log1p(-x) if x < 1 else -math.inf


def sqrt(x: float) -> float:
    """The square root: NaN of what is less than 0."""
    return math.sqrt(x) if x >= 0 else math.nan


def erf(x: float) -> float:
    """The error function."""
    return math.erf(x)


def normal_cdf(x: float, e: float) -> float:
    """The share of a standard normal distribution that lies below x, given ``exp(-0.5 x x)``."""
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


def minimum(x: float, number: float) -> float:
    """The lesser; NaN if x is NaN."""
    return number if x > number else x


def maximum(x: float, number: float) -> float:
    """The greater; NaN if x is NaN."""
    return number if x < number else x


TABLE: dict[str, Function] = {
    "abs": Function("xp.absolute({x}, out={out})", None),
    "exp": Function("xp.exp({x}, out={out})", "exp32"),
    "expm1_of_negative": Function("xp.expm1({x}, out={out})", "expm1_32"),
    "log": Function("xp.log({x}, out={out})", "log32"),
    "log1p_of_fraction": Function("xp.log1p({x}, out={out})", "log1p32"),
    "log_of_rest": Function("negate(xp, {x}, {out}); xp.log1p({out}, out={out})", "log_of_rest32"),
    "sqrt": Function("xp.sqrt({x}, out={out})", "np.sqrt"),
    "erf": Function("special(xp).erf({x}, out={out})", "erf32"),
    "normal_cdf": Function("special(xp).ndtr({x}, out={out})", "normal_cdf32", "hint"),
    "minimum": Function("xp.minimum({x}, {y}, out={out})", "lesser", "number"),
    "maximum": Function("xp.maximum({x}, {y}, out={out})", "greater", "number"),
}

#: Functions whose loops compute float32 and nothing else.
FLOAT32_ONLY = frozenset(name for name, f in TABLE.items() if f.loop and f.loop.endswith("32"))

PLAIN: dict[str, Callable[..., float]] = {
    name: {"abs": abs}.get(name) or globals()[name] for name in TABLE
}


def name_of(value: Any) -> str | None:
    """Return the name under which ``TABLE`` has a function, or None."""
    return next((name for name, f in PLAIN.items() if f is value), None)
