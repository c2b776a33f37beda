"""Rounding, fractional parts, sign bits, and replacement of NaN and infinity.

Integers stay as they are. The gradient of a rounded number is zero, as in PyTorch; a replaced NaN
passes none either.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import bool_
from ...kernels.common.strided_ufuncs import sign_bit
from ..creation.fill import zeros_like
from ..indexing.where import _where
from ..registry import alias, op
from ..signatures import per_element, singles
from .arithmetic import numeric


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
    yield (make(3, 4),), {"nan": 0.0, "posinf": None, "neginf": None}
    yield (make(),), {"nan": 1.0, "posinf": 2.0, "neginf": -2.0}
    yield (make(0, 2),), {"nan": 0.0, "posinf": None, "neginf": None}


def _nan_infer(input, *, nan, posinf, neginf):
    return input, input.like(dtype=bool_)


@op(
    infer=_nan_infer,
    scratch=("mask",),
    inplace="nan_to_num_",
    flops=per_element(3),
    samples=_nans,
    elementwise=True,
)
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
    return _where(input.isfinite(), g, 0)


@op(infer=lambda input: input.like(dtype=bool_), flops=per_element(1), samples=singles)
def signbit(xp, out, input):
    """Test elementwise whether the sign bit is set."""
    if input.dtype.kind == "f":
        sign_bit(xp, input, out)
    elif input.dtype.kind == "i":
        xp.less(input, 0, out=out)
    else:
        out.fill(False)
