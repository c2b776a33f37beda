"""view_as_real and view_as_complex."""

from __future__ import annotations

from ...dtypes import COMPLEX, FLOAT
from ...kernels.common.strided import strided
from ...spec import Spec
from ..autocast_policy import WIDE_ON_CPU
from ..registry import FUNCTIONS, op


def _as_real_infer(input):
    if input.dtype.category != COMPLEX:
        raise RuntimeError(
            f"view_as_real is only supported for complex tensors; got {input.dtype}."
        )
    return Spec((*input.shape, 2), input.dtype.to_real())


def _as_real_samples(make):
    for shape in ((3, 4), (), (0, 2)):
        yield (FUNCTIONS["complex"](make(*shape).double(), make(*shape).double()),), {}


@op(view=True, infer=_as_real_infer, samples=_as_real_samples, method=False)
def view_as_real(xp, input):
    """View complex numbers as pairs of real ones, in a new last dim."""
    real = input.real
    shape, steps = (*input.shape, 2), (*input.strides, real.dtype.itemsize)
    return strided(xp, real, shape, steps)


@view_as_real.vjp("input")
def _(g):
    return view_as_complex(g.contiguous())


def _as_complex_infer(input):
    if input.dtype.category != FLOAT or input.dtype.is_half:
        raise RuntimeError(
            "view_as_complex is only supported for half, float and double tensors, but got a "
            f"tensor of dtype {input.dtype}. Convert with .to(float32)."
        )
    if not input.ndim:
        raise RuntimeError("Input tensor must have one or more dimensions")
    if input.shape[-1] != 2:
        raise RuntimeError(
            f"Tensor must have a last dimension of size 2; got shape {tuple(input.shape)}."
        )
    return Spec(input.shape[:-1], input.dtype.to_complex())


def _as_complex_samples(make):
    for shape in ((3, 2), (2,), (0, 3, 2)):
        yield (make(*shape).double(),), {}


@op(
    view=True,
    infer=_as_complex_infer,
    samples=_as_complex_samples,
    method=False,
    autocast=WIDE_ON_CPU,
)
def view_as_complex(xp, input):
    """View pairs of real numbers, the last dim, as complex ones."""
    if input.strides[-1] != input.itemsize and input.size:
        raise RuntimeError("Tensor must have a last dimension with stride 1. Call .contiguous().")
    return input.view("complex128" if input.itemsize == 8 else "complex64")[..., 0]


@view_as_complex.vjp("input")
def _(g):
    return view_as_real(g)
