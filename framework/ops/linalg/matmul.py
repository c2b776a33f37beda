"""Matrix multiplication: ``matmul`` and ``@``.

Every product ends in one call of the array module's ``matmul``, which hands row-major and
column-major matrices to BLAS as they are: a transposed operand is not copied. Operands with other
strides would be copied by BLAS' caller out of the ledger's sight; the layout predicates below have
the dispatcher copy them to counted workspace instead.

A stack of matrices times one matrix is folded into a single tall product, forward and backward,
so that the gradient of a weight never exists once per batch entry. Integers have no BLAS: their
products are right, and slow.

The relatives: ``linear.py`` (layers), ``addmm.py`` (``addmm``), ``products.py``
(vectors, fixed dims, any dims).
"""

from __future__ import annotations

import builtins
from math import prod

from ...kernels.common import matmul as products
from ...spec import Spec
from ..elementwise.arithmetic import conjugate
from ..overwrite import write_over
from ..registry import op
from ..signatures import broadcast_shapes
from .bfloat16_matmul import multiply, supports, workspace


def _is_matrix(strides, shape, itemsize):
    # Row-major or column-major with a leading dimension: what BLAS takes.
    (row, column), (m, n) = strides, shape
    return (column == itemsize and row % itemsize == 0 and row >= n * itemsize) or (
        row == itemsize and column % itemsize == 0 and column >= m * itemsize
    )


def blas_ready(array):
    """True if every matrix of a stack can go to BLAS as it lies."""
    if array.ndim == 1:
        return array.strides[0] >= array.itemsize and array.strides[0] % array.itemsize == 0
    if array.ndim == 0 or array.size == 0:
        return True
    return _is_matrix(array.strides[-2:], array.shape[-2:], array.itemsize)


def foldable(array):
    """True if the rows of a stack of matrices are evenly spaced, so that they form one matrix."""
    if array.ndim <= 2 or array.size == 0:
        return blas_ready(array)
    strides, shape = array.strides, array.shape
    if strides[-1] != array.itemsize or strides[-2] < shape[-1] * array.itemsize:
        return False
    return builtins.all(strides[k] == strides[k + 1] * shape[k + 1] for k in range(array.ndim - 2))


def folded(out, input, other):
    """Return (out, input): a stack times one matrix is one product, if its rows lie evenly."""
    if other.ndim <= 2 < input.ndim and input.size and foldable(input):
        rows = prod(input.shape[:-1])
        return out.reshape(rows, *other.shape[1:]), input.reshape(rows, input.shape[-1])
    return out, input


def adjoint(x):
    """Return the conjugate transpose of matrices."""
    x = x.permute(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    return x.conj() if x.is_complex() else x


def as_rows(x, columns):
    """Merge all leading dims into one."""
    if x.ndim == 1 + len(columns):  # they are: a view costs as much as a small product
        return x
    # A -1 would be ambiguous for an empty tensor.
    return x.reshape(prod(x.shape[:-1]) if columns else prod(x.shape), *columns)


def check_number(name, *specs):
    """Raise an error for bools.

    Raises:
        NotImplementedError: One is bool.
    """
    for s in specs:
        if s.dtype.category == 0:
            raise NotImplementedError(
                f"{name} is not implemented for 'Bool'; convert with .to() before multiplying."
            )


def product_shape(name, input, other, left="input", right="other"):
    """Return the shape of ``input @ other``.

    Raises:
        RuntimeError: The shapes do not fit; the message names both.
    """
    a, b = tuple(input.shape), tuple(other.shape)
    if not a or not b:
        raise RuntimeError(
            f"{name}: both arguments need to be at least 1D, but they are {len(a)}D and "
            f"{len(b)}D. To multiply by a number, write {left} * {right}."
        )
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        axis = "-2" if len(b) > 1 else "0"
        way_out = (
            f"To multiply by the transpose, pass {right}.mT."
            if len(b) > 1
            else "Slice or reshape one."
        )
        raise RuntimeError(
            f"{name} contracts {left}.shape[-1] with {right}.shape[{axis}]; got {left} {a} and "
            f"{right} {b}. {way_out}"
        )
    batch = broadcast_shapes(name, a[:-2], b[:-2])
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _matmul_infer(input, other):
    for name, x in (("input", input), ("other", other)):
        if not isinstance(x, Spec):
            raise TypeError(
                f"matmul: argument '{name}' must be Tensor, not {x.name if x else None}. To "
                "multiply by a number, write input * other."
            )
    if input.dtype is not other.dtype:
        raise RuntimeError(
            f"matmul: expected its inputs to have the same dtype; got input {input.dtype}, other "
            f"{other.dtype}. Convert one with .to()."
        )
    shape = product_shape("matmul", input, other)
    check_number("matmul", input)
    return Spec(shape, input.dtype)


def _matmul_flops(input, other):
    return 2 * prod(product_shape("matmul", input, other)) * input.shape[-1]


def _matmul_samples(make):
    for a, b in (
        ((3, 4), (4, 2)),
        ((4,), (4,)),
        ((4,), (4, 3)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4, 2)),
        ((2, 3, 4), (2, 4, 3)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 3)),
        ((3, 4), (2, 4, 2)),
        ((3, 0), (0, 2)),
        ((0, 4), (4, 2)),
        ((2, 0, 3), (3, 2)),
    ):
        yield (make(*a), make(*b)), {}


@op(
    operator="__matmul__",
    infer=_matmul_infer,
    layout=blas_ready,
    flops=_matmul_flops,
    samples=_matmul_samples,
    autocast="low",
)
def matmul(xp, out, input, other):
    """Multiply matrices, or stacks of them with broadcasting, or vectors: ``input @ other``.

    A 1-d ``input`` is a row and a 1-d ``other`` a column; their dimension is dropped again. Two
    vectors give their dot product.

    Args:
        input: (*, M, K) or (K,).
        other: (*, K, N) or (K,), in the same dtype.

    Returns:
        Tensor (*, M, N), less the dimensions of vectors.

    Raises:
        RuntimeError: The contracted sizes or the dtypes differ, or the stacks do not broadcast.

    Memory:
        Keeps ``input`` while ``other`` needs a gradient, and ``other`` while ``input`` does.
    """
    out, input = folded(out, input, other)
    xp.matmul(input, other, out=out)


def _half_on_gpu(input, other):
    matrices = min(input.ndim, other.ndim) > 1
    return matrices and input.dtype.is_half and other.dtype is input.dtype


@matmul.kernel("cuda", dtypes="half", when=_half_on_gpu, layout=blas_ready)
@matmul.kernel("cuda", layout=blas_ready)
def _(xp, out, input, other):
    out, input = folded(out, input, other)
    products.matmul_into(xp, input, other, out)


def _tall(input, other):
    return prod(input.shape[:-1]), other.shape[-1]


@matmul.kernel(
    "cpu",
    dtypes="half",
    when=lambda input, other: (
        input.ndim > 1 and other.ndim == 2 and supports(input, _tall(input, other), input.shape[-1])
    ),
    layout=foldable,
    scratch=lambda input, other: workspace(input, _tall(input, other), input.shape[-1]),
)
def _(xp, out, room, input, other):
    rows, inner = prod(input.shape[:-1]), input.shape[-1]
    multiply(out.reshape(rows, -1), room, input.reshape(rows, inner), other)


@matmul.kernel(
    "cpu",
    dtypes="half",
    when=lambda input, other: (
        input.ndim > 1
        and other.ndim > 2
        and supports(input, product_shape("matmul", input, other), input.shape[-1])
    ),
    layout=blas_ready,
    scratch=lambda input, other: workspace(
        input, product_shape("matmul", input, other), input.shape[-1]
    ),
)
def _(xp, out, room, input, other):
    multiply(out, room, input, other)


def _folded_shape(input, other):
    shape = product_shape("matmul", input, other)
    return (prod(shape[:-1]), shape[-1]) if other.ndim == 2 < input.ndim else shape


@matmul.kernel(
    "cpu",
    when=lambda input, other: products.divides(_folded_shape(input, other), input.shape[-1]),
    layout=blas_ready,
)
def _(xp, out, input, other):
    out, input = folded(out, input, other)
    products.multiply(input, other, out)


@matmul.vjp("other")
def _(g, input, other_spec):
    if other_spec.ndim == 1:
        if input.ndim == 1:
            return g * conjugate(input)
        return matmul(adjoint(as_rows(input, input.shape[-1:])), as_rows(g, ()))
    if input.ndim == 1:
        return conjugate(input).unsqueeze(-1) * g.unsqueeze(-2)
    if other_spec.ndim == 2:  # one product over all rows, not one per matrix
        return matmul(adjoint(as_rows(input, input.shape[-1:])), as_rows(g, g.shape[-1:]))
    return matmul(adjoint(input), g)


@matmul.vjp("input", room=("input",))  # the last, which may write over what the other's has read
def _(g, other, input_spec, room):
    if other.ndim == 1:
        return (g.unsqueeze(-1) if input_spec.ndim > 1 else g) * conjugate(other)
    if input_spec.ndim > 1:
        return write_over(room, matmul, g, adjoint(other))
    row = matmul(g.unsqueeze(-2), adjoint(other))
    return row.reshape(*row.shape[:-2], row.shape[-1])
