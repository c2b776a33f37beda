"""Bessel and Airy functions: those of ``special`` that belong together.

PyTorch has no gradients for them; these have, of any order, by the recurrences between the
functions (Abramowitz & Stegun 1964, "Handbook of Mathematical Functions", chapters 9 and 10).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...dtypes import bool_
from ...kernels.common.layout import contiguous, tiles
from ...kernels.common.special_functions import special
from ...kernels.runtime import thresholds
from ...spec import Spec
from ..indexing.where import _where
from ..inplace import into
from ..registry import function, op
from ..signatures import per_element, same, singles
from .unary import between


def _unary(name, rule, doc, samples=singles, *, ufunc):
    def kernel(xp, out, input):
        getattr(special(xp), ufunc)(input, out=out)

    kernel.__doc__ = doc
    made = op(
        name=name, public=False, infer=same, promote="float", flops=per_element(20), samples=samples
    )(kernel)
    made.vjp("input")(rule)
    return made


def over(input, value, at_zero):
    """``value / input``, and its limit at 0."""
    zero = input.abs() <= 1e-37  # where the value has lost its digits
    return _where(zero, at_zero, value / _where(zero, 1, input))


bessel_j0 = _unary(
    "bessel_j0",
    lambda g, input: -g * bessel_j1(input),
    "Bessel function of the first kind, order 0.",
    ufunc="j0",
)
bessel_j1: Any = _unary(
    "bessel_j1",
    lambda g, input, out: g * (bessel_j0(input) - over(input, out, 0.5)),
    "Bessel function of the first kind, order 1.",
    ufunc="j1",
)
bessel_y0 = _unary(
    "bessel_y0",
    lambda g, input: -g * bessel_y1(input),
    "Bessel function of the second kind, order 0.",
    between(0.5, 3.0),
    ufunc="y0",
)
bessel_y1: Any = _unary(
    "bessel_y1",
    lambda g, input, out: g * (bessel_y0(input) - out / input),
    "Bessel function of the second kind, order 1.",
    between(0.5, 3.0),
    ufunc="y1",
)
modified_bessel_k0 = _unary(
    "modified_bessel_k0",
    lambda g, input: -g * modified_bessel_k1(input),
    "Modified Bessel function of the second kind, order 0.",
    between(0.5, 3.0),
    ufunc="k0",
)
modified_bessel_k1: Any = _unary(
    "modified_bessel_k1",
    lambda g, input, out: -g * (modified_bessel_k0(input) + out / input),
    "Modified Bessel function of the second kind, order 1.",
    between(0.5, 3.0),
    ufunc="k1",
)
scaled_modified_bessel_k0 = _unary(
    "scaled_modified_bessel_k0",
    lambda g, input, out: g * (out - scaled_modified_bessel_k1(input)),
    "Compute ``exp(input) * modified_bessel_k0(input)``.",
    between(0.5, 3.0),
    ufunc="k0e",
)
scaled_modified_bessel_k1: Any = _unary(
    "scaled_modified_bessel_k1",
    lambda g, input, out: g * (out - scaled_modified_bessel_k0(input) - out / input),
    "Compute ``exp(input) * modified_bessel_k1(input)``.",
    between(0.5, 3.0),
    ufunc="k1e",
)


@op(
    public=False,
    infer=lambda input: (input, Spec(input.shape, bool_)),
    promote="float",
    scratch=("limit",),
    flops=per_element(12),
    samples=singles,
)
def spherical_bessel_j0(xp, out, limit, input):
    """Spherical Bessel function of the first kind, order 0: ``sin(x) / x``, 1 at 0."""
    xp.sin(input, out=out)
    xp.divide(out, input, out=out)
    xp.equal(input, 0, out=limit)
    xp.copyto(out, 1, where=limit)
    xp.isinf(input, out=limit)
    xp.copyto(out, 0, where=limit)


@spherical_bessel_j0.vjp("input")
def _(g, input, out):
    return g * over(input, input.cos() - out, 0.0)


_TILE = 1 << 12  # elements for which Airy's four functions lie beside the result, on the host


def _airy_samples(make):
    for k, (inputs, _) in enumerate(singles(make)):
        yield inputs, {"derivative": k % 2 == 1}


@op(
    infer=same,
    promote="float",
    layout=contiguous,
    flops=per_element(40),
    samples=_airy_samples,
)
def _airy(xp, out, input, *, derivative):
    """Airy's function or its derivative; always computed by SciPy, on the host."""
    library = import_module("scipy.special")
    host = xp.__name__ == "numpy"
    source, flat = input.reshape(-1), out.reshape(-1)
    for here in tiles(flat.size, _TILE if host else thresholds.tile_elements(False)):
        tile = source[here]
        values = library.airy(tile if host else xp.asnumpy(tile))[1 if derivative else 0]
        xp.copyto(flat[here], values if host else xp.asarray(values))


@_airy.vjp("input")
def _(g, input, derivative):
    if derivative:  # Ai'' = x Ai
        return g * input * _airy(input, derivative=False)
    return g * _airy(input, derivative=True)


@function(public=False)
def airy_ai(input, *, out=None):
    """Airy's function Ai: the solution of ``y'' = x y`` that fades for large ``x``."""
    found = _airy(input, derivative=False)
    return into(out, found)
