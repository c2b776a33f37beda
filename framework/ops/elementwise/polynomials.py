"""Orthogonal polynomials: Chebyshev's of four kinds, Hermite's of two, Laguerre's, Legendre's.

All are one op: ``p[k + 1] = (a[k] x + b[k]) p[k] - c[k] p[k - 1]``, and a table of coefficients
(Abramowitz & Stegun 1964, "Handbook of Mathematical Functions", table 22.7). Differentiating the
recurrence gives the recurrence of the derivatives, so derivatives of any order are the same op.

Not optimal: the op makes one pass over the tensor for each degree up to the largest.
"""

from __future__ import annotations

from math import trunc

from ...dtypes import bool_, int64
from ...spec import Spec
from ..creation.from_data import tensor
from ..indexing.where import _where
from ..inplace import into
from ..registry import function, op
from ..signatures import broadcast_shapes, per_element

# (a[0], b[0]), then (a, b, c) of each further degree.
_CHEBYSHEV = (2.0, 0.0, 1.0)
_SHIFTED = (4.0, -2.0, 1.0)
_KINDS = {
    "t": ((1.0, 0.0), lambda k: _CHEBYSHEV),
    "u": ((2.0, 0.0), lambda k: _CHEBYSHEV),
    "v": ((2.0, -1.0), lambda k: _CHEBYSHEV),
    "w": ((2.0, 1.0), lambda k: _CHEBYSHEV),
    "shifted t": ((2.0, -1.0), lambda k: _SHIFTED),
    "shifted u": ((4.0, -2.0), lambda k: _SHIFTED),
    "shifted v": ((4.0, -3.0), lambda k: _SHIFTED),
    "shifted w": ((4.0, -1.0), lambda k: _SHIFTED),
    "h": ((2.0, 0.0), lambda k: (2.0, 0.0, 2.0 * k)),
    "he": ((1.0, 0.0), lambda k: (1.0, 0.0, float(k))),
    "l": ((-1.0, 1.0), lambda k: (-1 / (k + 1), (2 * k + 1) / (k + 1), k / (k + 1))),
    "p": ((1.0, 0.0), lambda k: ((2 * k + 1) / (k + 1), 0.0, k / (k + 1))),
}


def _polynomial_infer(input, n, *, kind, order):
    shape = broadcast_shapes("polynomial", input.shape, n.shape)
    return (
        Spec(shape, input.dtype),
        Spec((2 * order + 4, *shape), input.dtype),
        Spec(shape, bool_),
    )


def _polynomial_samples(make):
    for kind, order in (("t", 0), ("u", 1), ("shifted w", 0), ("l", 0), ("p", 1)):
        x = make(3, 4)
        yield (x, (make(3, 4).detach().abs() * 3).to(int64)), {"kind": kind, "order": order}
    yield (make(2, 3), 4), {"kind": "h", "order": 0}
    yield (make(0, 3), 2), {"kind": "he", "order": 2}


@op(
    infer=_polynomial_infer,
    promote="float",
    scratch=("rows", "reached"),
    flops=per_element(20),
    samples=_polynomial_samples,
)
def _polynomial(xp, out, rows, reached, input, n, *, kind, order):
    """The derivative of some order of the polynomial of degree ``n``; 0 for negative degrees."""
    out.fill(0)
    if not out.size:
        return
    scalar = isinstance(n, int | float)
    top = n if scalar else float(xp.max(n))
    if top <= -1:
        return
    (a, b), following = _KINDS[kind]
    c = 0.0
    # Values and derivatives of two degrees, the factor of the recurrence, and a product.
    now, before = rows[: order + 1], rows[order + 1 : 2 * order + 2]
    factor, product = rows[-2, ...], rows[-1, ...]
    now.fill(0)
    before.fill(0)
    now[0] = 1
    for k in range(trunc(top) + 1):
        if k:
            xp.multiply(input, a, out=factor)
            xp.add(factor, b, out=factor)
            for m in range(order, -1, -1):  # the next degree takes the place of the one before
                target = before[m, ...]
                xp.multiply(target, -c, out=target)
                xp.multiply(factor, now[m], out=product)
                xp.add(target, product, out=target)
                if m:
                    xp.multiply(now[m - 1], m * a, out=product)
                    xp.add(target, product, out=target)
            now, before = before, now
            a, b, c = following(k)
        if not scalar:  # degrees are cut off towards zero
            (xp.greater_equal if k else xp.greater)(n, k or -1, out=reached)
            xp.copyto(out, now[order, ...], where=reached)
    if scalar:
        xp.copyto(out, now[order, ...])


@_polynomial.vjp("input")
def _(g, input, n, kind, order):
    return g * _polynomial(input, n, kind=kind, order=order + 1)


def _named(name, kind, doc, limits=None):
    def compute(input, n, *, out=None):
        found = _polynomial(input, n, kind=kind, order=0)
        if limits is not None:
            limit = limits[found.dtype.itemsize < 8]
            found = _where(_above(n, limit), float("nan"), found)
        return into(out, found)

    compute.__name__ = compute.__qualname__ = name
    compute.__doc__ = f"{doc}\n\nDegrees ``n`` broadcast with ``input``; a negative one gives 0."
    return function(public=False)(compute)


def _above(n, limit):
    return n > limit if hasattr(n, "shape") else tensor(n > limit)


chebyshev_polynomial_t = _named(
    "chebyshev_polynomial_t", "t", "Chebyshev's polynomials of the first kind."
)
chebyshev_polynomial_u = _named(
    "chebyshev_polynomial_u", "u", "Chebyshev's polynomials of the second kind."
)
chebyshev_polynomial_v = _named(
    "chebyshev_polynomial_v", "v", "Chebyshev's polynomials of the third kind."
)
chebyshev_polynomial_w = _named(
    "chebyshev_polynomial_w", "w", "Chebyshev's polynomials of the fourth kind."
)
shifted_chebyshev_polynomial_t = _named(
    "shifted_chebyshev_polynomial_t", "shifted t", "``chebyshev_polynomial_t`` of 2 x - 1."
)
shifted_chebyshev_polynomial_u = _named(
    "shifted_chebyshev_polynomial_u", "shifted u", "``chebyshev_polynomial_u`` of 2 x - 1."
)
shifted_chebyshev_polynomial_v = _named(
    "shifted_chebyshev_polynomial_v", "shifted v", "``chebyshev_polynomial_v`` of 2 x - 1."
)
shifted_chebyshev_polynomial_w = _named(
    "shifted_chebyshev_polynomial_w", "shifted w", "``chebyshev_polynomial_w`` of 2 x - 1."
)
hermite_polynomial_h = _named(
    "hermite_polynomial_h", "h", "Hermite's polynomials as physicists write them.", (512, 128)
)
hermite_polynomial_he = _named(
    "hermite_polynomial_he", "he", "Hermite's polynomials as statisticians write them.", (512, 128)
)
laguerre_polynomial_l = _named("laguerre_polynomial_l", "l", "Laguerre's polynomials.")
legendre_polynomial_p = _named("legendre_polynomial_p", "p", "Legendre's polynomials.")
