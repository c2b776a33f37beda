"""Rounding, fractional parts, sign bits, and replacement of NaN and infinity.

Integers stay as they are. The gradient of a rounded number is zero, as in PyTorch; a replaced NaN
passes none either.
"""

from __future__ import annotations

from math import inf

import ml_dtypes

from ...dtypes import bool_
from ...kernels.common.strided_ufuncs import sign_bit
from ..creation.fill import complex, zeros_like
from ..indexing.where import _where
from ..inplace import into
from ..registry import alias, function, op
from ..signatures import per_element, singles
from .arithmetic import numeric
from .complex import imag, real


def _rounding(name, doc):
    def kernel(xp, out, input):
        if out.dtype.kind == "f":
            getattr(xp, name)(input, out=out)
        else:
            xp.copyto(out, input)

    kernel.__doc__ = doc
    made = op(
        name=name,
        inplace=f"{name}_",
        infer=numeric(name),
        flops=per_element(1),
        samples=singles,
        real=True,
        elementwise=True,
    )(kernel)

    @made.vjp("input")
    def _(g):
        return zeros_like(g)

    return made


floor = _rounding("floor", "Round down.")
ceil = _rounding("ceil", "Round up.")
trunc = _rounding("trunc", "Round toward zero.")
alias("fix", of=trunc)


def _rounds(make):
    for decimals in (0, 1, -1):
        yield (make(3, 4),), {"decimals": decimals}
    yield (make(0, 2),), {"decimals": 0}


def _round_infer(input, *, decimals):
    return numeric("round", integers=decimals == 0)(input)


@op(inplace="round_", infer=_round_infer, flops=per_element(3), samples=_rounds, elementwise=True)
def round(xp, out, input, *, decimals=0):
    """Round to ``decimals`` places, half to even."""
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


@op(
    infer=_frac_infer,
    scratch=("whole",),
    inplace="frac_",
    flops=per_element(2),
    samples=singles,
    elementwise=True,
)
def frac(xp, out, whole, input):
    """Return the fractional part, with the sign of ``input``."""
    xp.trunc(input, out=whole)
    xp.subtract(input, whole, out=out)


@frac.vjp("input")
def _(g):
    return g


def _nans(make):
    numbers = {"nan": 1.0, "posinf": 2.0, "neginf": -2.0}
    yield (make(3, 4),), numbers
    yield (make(),), {"nan": 0.0, "posinf": 3.0, "neginf": -3.0}
    yield (make(0, 2),), numbers


@op(
    infer=lambda input, **_: (input, input.like(dtype=bool_)),
    scratch=("mask",),
    inplace="_nan_to_num_",
    flops=per_element(3),
    samples=_nans,
    elementwise=True,
)
def _nan_to_num(xp, out, mask, input, *, nan, posinf, neginf):
    """Replace nan, +inf and -inf by numbers."""
    if out is not input:
        xp.copyto(out, input)
    xp.isnan(out, out=mask)
    xp.copyto(out, nan, where=mask, casting="unsafe")
    for bad, value in ((inf, posinf), (-inf, neginf)):
        xp.equal(input, bad, out=mask)
        xp.copyto(out, value, where=mask, casting="unsafe")


@_nan_to_num.loop()
def _(input, *, nan, posinf, neginf):
    inside = posinf if input == inf else (neginf if input == -inf else input)
    return nan if input != input else inside


@_nan_to_num.vjp("input")
def _(g, input):
    return _where(input.isfinite(), g, 0)


def _replacements(input, nan, posinf, neginf):
    limits = ml_dtypes.finfo(input.dtype.np)
    high = float(limits.max) if posinf is None else float(posinf)
    low = float(limits.min) if neginf is None else float(neginf)
    return 0.0 if nan is None else float(nan), high, low


@function(method=True)
def nan_to_num(input, nan=0.0, posinf=None, neginf=None, *, out=None):
    """Replace nan, +inf and -inf by numbers; by default 0, the largest and the smallest.

    Args:
        input: Any shape and dtype; of complex numbers each part is replaced.
        nan: In place of NaN; None is 0.
        posinf: In place of infinity; None is the largest number of the dtype.
        neginf: In place of minus infinity; None is the smallest number of the dtype.
        out: Where to write the result.

    Memory:
        Keeps ``input``.
    """
    if input.dtype.is_complex:
        parts = [nan_to_num(part(input), nan, posinf, neginf) for part in (real, imag)]
        return into(out, complex(*parts))
    if not input.dtype.is_floating_point:
        return into(out, input.clone())
    return _nan_to_num(input, *_replacements(input, nan, posinf, neginf), out=out)


@function(method=True)
def nan_to_num_(input, nan=0.0, posinf=None, neginf=None):
    """In-place twin of ``nan_to_num``."""
    if not input.dtype.is_floating_point:
        return input.copy_(nan_to_num(input, nan, posinf, neginf))
    return input._nan_to_num_(*_replacements(input, nan, posinf, neginf))


@op(infer=lambda input: input.like(dtype=bool_), flops=per_element(1), samples=singles)
def signbit(xp, out, input):
    """Test elementwise whether the sign bit is set."""
    if input.dtype.kind == "f":
        sign_bit(xp, input, out)
    elif input.dtype.kind == "i":
        xp.less(input, 0, out=out)
    else:
        out.fill(False)
