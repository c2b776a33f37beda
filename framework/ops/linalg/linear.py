"""``linear``: a matrix product plus bias in one kernel.

The bias is added into the product, so that no second result exists; the gradient of the weight is
one tall product over all leading dims.
"""

from __future__ import annotations

from math import prod

from ...kernels.common import matmul as products
from ...spec import Spec
from ..elementwise.arithmetic import conjugate
from ..overwrite import write_over
from ..registry import op
from .bfloat16_matmul import multiply, supports, workspace
from .matmul import as_rows, blas_ready, check_number, foldable, folded, matmul


def _linear_infer(input, weight, bias):
    if weight.ndim not in (1, 2) or not input.ndim or input.shape[-1] != weight.shape[-1]:
        raise RuntimeError(
            f"linear contracts input.shape[-1] with weight.shape[-1] (mat1 and mat2 shapes cannot "
            f"be multiplied otherwise); got input {tuple(input.shape)} and weight "
            f"{tuple(weight.shape)}. weight is (out_features, in_features); transpose it with .mT."
        )
    shape = (*input.shape[:-1], *weight.shape[:-1])
    if bias is not None and bias.shape not in ((), (1,), shape[-1:] if weight.ndim > 1 else ()):
        raise RuntimeError(
            f"linear adds bias to each row of {weight.shape[0]} outputs; got bias "
            f"{tuple(bias.shape)} and weight {tuple(weight.shape)}. Pass bias of shape "
            f"{tuple(weight.shape[:1])}."
        )
    check_number("linear", input)
    return Spec(shape, input.dtype)


def _linear_flops(input, weight, bias):
    rows = prod(input.shape[:-1]) * prod(weight.shape[:-1])
    return 2 * rows * input.shape[-1] + (0 if bias is None else rows)


def _linear_samples(make):
    for a, w, b in (
        ((3, 4), (2, 4), (2,)),
        ((2, 3, 4), (5, 4), (5,)),
        ((4,), (2, 4), (2,)),
        ((0, 4), (2, 4), (2,)),
        ((3, 4), (2, 4), None),
        ((2, 3, 0), (2, 0), (2,)),
    ):
        yield (make(*a), make(*w), None if b is None else make(*b)), {}


@op(
    method=False,
    infer=_linear_infer,
    promote="same",
    layout=foldable,
    flops=_linear_flops,
    samples=_linear_samples,
    autocast="low",
)
def linear(xp, out, input, weight, bias=None):
    """Apply an affine map to the last dimension: ``out = input @ weight.mT + bias``.

    One product over all rows, into which the bias is added in place.

    Args:
        input: (*, in_features).
        weight: (out_features, in_features), or (in_features,).
        bias: (out_features,), or None.

    Returns:
        Tensor (*, out_features).

    Raises:
        RuntimeError: The sizes do not fit, or the dtypes differ.

    Memory:
        Keeps ``input`` while ``weight`` needs a gradient, and ``weight`` while ``input`` does.
    """
    out, input = folded(out, input, weight.T)
    xp.matmul(input, weight.T, out=out)
    if bias is not None:
        xp.add(out, bias, out=out)


def _half_on_gpu(input, weight, bias):
    same = bias is None or bias.dtype is input.dtype
    return same and weight.ndim == 2 and input.dtype.is_half and weight.dtype is input.dtype


@linear.kernel("cuda", dtypes="half", when=_half_on_gpu, layout=blas_ready)
@linear.kernel("cuda", layout=blas_ready)
def _(xp, out, input, weight, bias):
    out, input = folded(out, input, weight.T)
    products.matmul_into(xp, input, weight.T, out)
    if bias is not None:
        xp.add(out, bias, out=out)


def _tall(input, weight):
    return (prod(input.shape[:-1]), *weight.shape[:-1])


@linear.kernel(
    "cpu",
    dtypes="half",
    when=lambda input, weight, bias: (
        weight.ndim == 2 and supports(input, _tall(input, weight), input.shape[-1])
    ),
    layout=foldable,
    scratch=lambda input, weight, bias: workspace(input, _tall(input, weight), input.shape[-1]),
)
def _(xp, out, room, input, weight, bias):
    rows = prod(input.shape[:-1])
    input, out = input.reshape(rows, input.shape[-1]), out.reshape(rows, weight.shape[0])
    multiply(out, room, input, weight.T, bias)


@linear.kernel(
    "cpu",
    when=lambda input, weight, bias: products.divides(_tall(input, weight), input.shape[-1]),
    layout=foldable,
)
def _(xp, out, input, weight, bias):
    out, input = folded(out, input, weight.T)
    products.multiply(input, weight.T, out, bias)


@linear.vjp("weight")
def _(g, input, weight_spec):
    rows = as_rows(input, input.shape[-1:])
    if weight_spec.ndim == 1:
        return matmul(as_rows(g, ()), conjugate(rows))
    return matmul(_transposed(as_rows(g, g.shape[-1:])), conjugate(rows))


@linear.vjp("bias")
def _(g):
    return g  # the engine sums it over the rows


@linear.vjp("input", room=("input",))  # the last, which may write over what the weight's has read
def _(g, weight, room):
    if weight.ndim == 1:
        return g.unsqueeze(-1) * conjugate(weight)
    return write_over(room, matmul, g, conjugate(weight))


def _transposed(x):
    return x.permute(1, 0)
