"""Complex numbers: real and imaginary parts, conjugates, angles, signs.

The gradient of a real loss in a complex number is, as in PyTorch, its direction of steepest ascent:
the derivative by the real part plus 1j times that by the imaginary part.
"""

from __future__ import annotations

from math import pi

from ...dtypes import COMPLEX, complex128
from ..creation.fill import complex, zeros_like
from ..indexing.where import _where
from ..registry import function, op
from ..signatures import per_element, same, singles


def _part(name, samples):
    def kernel(xp, input):
        return getattr(input, name)

    kernel.__doc__ = f"View the {name} parts of complex numbers."
    return op(
        name=f"_{name}",
        view=True,
        samples=samples,
        infer=lambda input: input.like(dtype=input.dtype.to_real()),
    )(kernel)


def _complexes(make):
    for shape in ((3, 4), (), (0, 3)):
        yield (make(*shape).to(complex128) * (1 + 0.5j),), {}


real_part = _part("real", _complexes)
imag_part = _part("imag", _complexes)


@real_part.vjp("input")
def _(g):
    return g


@imag_part.vjp("input")
def _(g):
    return g * 1j


@function(property=True)
def real(input):
    """View the real parts; a real tensor is returned itself."""
    return real_part(input) if input.dtype.category == COMPLEX else input


@function(property=True)
def imag(input):
    """View the imaginary parts.

    Raises:
        RuntimeError: The tensor is not complex.
    """
    if input.dtype.category != COMPLEX:
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return imag_part(input)


@op(infer=same, half="exact", samples=singles)
def _conj(xp, out, input):
    """The complex conjugate."""
    xp.conjugate(input, out=out)


@_conj.vjp("input")
def _(g):
    return _conj(g) if g.dtype.is_complex else g


@function(method=True)
def conj(input):
    """Conjugate; a real tensor is returned itself."""
    return _conj(input) if input.dtype.category == COMPLEX else input


@function(method=True, out=True)
def conj_physical(input):
    """Conjugate into new memory."""
    return _conj(input) if input.dtype.category == COMPLEX else input.clone()


@function(method=True)
def resolve_conj(input):
    """Return the tensor itself: conjugation is never lazy here."""
    return input


@function(method=True, inplace="sgn_", out=True)
def sgn(input):
    """Return the sign; for complex numbers the unit number in the same direction."""
    if input.dtype.category != COMPLEX:
        return input.sign()
    zero = input == 0  # there it is flat, and nothing is divided by 0, in no derivative either
    size = input.abs().masked_fill(zero, 1)
    # By parts: the quotient of complex numbers overflows where the divisor is subnormal.
    return _where(zero, 0, complex(real(input) / size, imag(input) / size))


def _angle_infer(input):
    return input.like(dtype=input.dtype.to_real())


@op(infer=_angle_infer, promote="float", flops=per_element(10), samples=singles)
def angle(xp, out, input):
    """Return the angle of complex numbers; for real ones 0 or pi."""
    if input.dtype.kind == "c":
        xp.arctan2(input.imag, input.real, out=out)
    else:
        xp.add(input, 0.0, out=out)  # -0.0 lies at 0
        xp.arctan2(0.0, out, out=out)


@angle.loop()
def _(input):
    return input if input != input else (pi if input < 0 else 0)


@angle.vjp("input")
def _(g, input):
    if not input.dtype.is_complex:
        return zeros_like(g)
    size = input.abs()
    return _where(size == 0, 0, input / (size * size)) * g * 1j
