"""Matrix products: ``matmul`` and ``@``, the fused ``linear`` and ``addmm``, and their relatives.

Every product ends in one call of the array module's ``matmul``, which hands row-major and
column-major matrices to BLAS as they are: a transposed operand is not copied. Operands with other
strides would be copied by BLAS' caller out of the ledger's sight; the layout predicates below have
the dispatcher copy them to counted workspace instead.

A stack of matrices times one matrix is folded into a single tall product, forward and backward,
so that the gradient of a weight never exists once per batch entry. Integers have no BLAS: their
products are right, and slow.
"""

from __future__ import annotations

import builtins
from math import prod

from ..dtypes import float32
from ..spec import Spec
from ..tensor import Tensor
from .arithmetic import conjugate
from .registry import broadcast_shapes, function, op


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
    """True if the rows of all matrices of a stack lie evenly, so that they form one matrix."""
    if array.ndim <= 2 or array.size == 0:
        return blas_ready(array)
    strides, shape = array.strides, array.shape
    if strides[-1] != array.itemsize or strides[-2] < shape[-1] * array.itemsize:
        return False
    return builtins.all(strides[k] == strides[k + 1] * shape[k + 1] for k in range(array.ndim - 2))


def _multiply(xp, out, input, other):
    # A stack times one matrix or vector is one tall product, if the rows lie evenly.
    if other.ndim <= 2 < input.ndim and input.size and foldable(input):
        rows = prod(input.shape[:-1])
        input = input.reshape(rows, input.shape[-1])
        out = out.reshape(rows, *other.shape[1:])
    xp.matmul(input, other, out=out)


def adjoint(x):
    """The transposed matrices, conjugated if complex: what gradients multiply by."""
    x = x.permute(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    return x.conj() if x.is_complex() else x


def _rows(x, columns):
    # All leading dims as one; -1 would be ambiguous for an empty tensor.
    return x.reshape(prod(x.shape[:-1]) if columns else prod(x.shape), *columns)


def _check_number(name, *specs):
    for s in specs:
        if s.dtype.category == 0:
            raise NotImplementedError(
                f"{name} is not implemented for 'Bool'; convert with .to() before multiplying."
            )


def product_shape(name, input, other, left="input", right="other"):
    """The shape of ``input @ other``.

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
            f"To multiply by the transpose, pass {right}.mT." if len(b) > 1
            else "Slice or reshape one."
        )  # fmt: skip
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
    _check_number("matmul", input)
    return Spec(shape, input.dtype)


def _matmul_flops(input, other):
    return 2 * prod(product_shape("matmul", input, other)) * input.shape[-1]


def _matmul_samples(make):
    for a, b in (
        ((3, 4), (4, 2)), ((4,), (4,)), ((4,), (4, 3)), ((3, 4), (4,)), ((2, 3, 4), (4, 2)),
        ((2, 3, 4), (2, 4, 3)), ((2, 1, 3, 4), (5, 4, 2)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)),
        ((3, 4), (2, 4, 2)), ((3, 0), (0, 2)), ((0, 4), (4, 2)), ((2, 0, 3), (3, 2)),
    ):  # fmt: skip
        yield (make(*a), make(*b)), {}


@op(
    operator="__matmul__", infer=_matmul_infer, half="float32", layout=blas_ready,
    flops=_matmul_flops, samples=_matmul_samples,
    autocast="low",
)  # fmt: skip
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
    _multiply(xp, out, input, other)


@matmul.vjp("input")
def _(g, other, input_spec):
    if other.ndim == 1:
        return (g.unsqueeze(-1) if input_spec.ndim > 1 else g) * conjugate(other)
    if input_spec.ndim > 1:
        return matmul(g, adjoint(other))
    row = matmul(g.unsqueeze(-2), adjoint(other))
    return row.reshape(*row.shape[:-2], row.shape[-1])


@matmul.vjp("other")
def _(g, input, other_spec):
    if other_spec.ndim == 1:
        if input.ndim == 1:
            return g * conjugate(input)
        return matmul(adjoint(_rows(input, input.shape[-1:])), _rows(g, ()))
    if input.ndim == 1:
        return conjugate(input).unsqueeze(-1) * g.unsqueeze(-2)
    if other_spec.ndim == 2:  # one product over all rows, not one per matrix
        return matmul(adjoint(_rows(input, input.shape[-1:])), _rows(g, g.shape[-1:]))
    return matmul(adjoint(input), g)


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
    _check_number("linear", input)
    return Spec(shape, input.dtype)


def _linear_flops(input, weight, bias):
    rows = prod(input.shape[:-1]) * prod(weight.shape[:-1])
    return 2 * rows * input.shape[-1] + (0 if bias is None else rows)


def _linear_samples(make):
    for a, w, b in (
        ((3, 4), (2, 4), (2,)), ((2, 3, 4), (5, 4), (5,)), ((4,), (2, 4), (2,)),
        ((0, 4), (2, 4), (2,)), ((3, 4), (2, 4), None), ((2, 3, 0), (2, 0), (2,)),
    ):  # fmt: skip
        yield (make(*a), make(*w), None if b is None else make(*b)), {}


@op(
    method=False, infer=_linear_infer, promote="same", half="float32", layout=foldable,
    flops=_linear_flops, samples=_linear_samples,
    autocast="low",
)  # fmt: skip
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
    _multiply(xp, out, input, weight.T)
    if bias is not None:
        xp.add(out, bias, out=out)


@linear.vjp("input")
def _(g, weight):
    if weight.ndim == 1:
        return g.unsqueeze(-1) * conjugate(weight)
    return matmul(g, conjugate(weight))


@linear.vjp("weight")
def _(g, input, weight_spec):
    rows = _rows(input, input.shape[-1:])
    if weight_spec.ndim == 1:
        return matmul(_rows(g, ()), conjugate(rows))
    return matmul(_transposed(_rows(g, g.shape[-1:])), conjugate(rows))


@linear.vjp("bias")
def _(g):
    return g  # the engine sums it over the rows


def _transposed(x):
    return x.permute(1, 0)


# A product added to something: addmm, addmv, baddbmm


def _addmatmul_infer(input, mat1, mat2, *, beta, alpha):
    shape = product_shape("addmm", mat1, mat2, "mat1", "mat2")
    try:
        fits = broadcast_shapes("addmm", shape, input.shape) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise RuntimeError(
            f"addmm adds input to mat1 @ mat2, so it must expand to its shape {shape}; got input "
            f"{tuple(input.shape)}. Reshape it."
        )
    _check_number("addmm", mat1)
    kept = float32 if input.dtype.is_half else input.dtype  # so that the sum rounds once
    scaled = Spec(input.shape if beta not in (0, 1) else (0,), kept)
    return Spec(shape, mat1.dtype), scaled


def _addmatmul_flops(input, mat1, mat2, *, beta, alpha):
    return 2 * prod(product_shape("addmm", mat1, mat2)) * mat1.shape[-1]


def _addmatmul_samples(make):
    yield (make(3, 2), make(3, 4), make(4, 2)), {"beta": 1, "alpha": 1}
    yield (make(2), make(3, 4), make(4, 2)), {"beta": 0.5, "alpha": 2.0}
    yield (make(2, 3, 2), make(2, 3, 4), make(2, 4, 2)), {"beta": 2, "alpha": -1}
    yield (make(3), make(3, 4), make(4)), {"beta": 1, "alpha": 3}
    yield (make(2), make(0, 4), make(4, 2)), {"beta": 0.5, "alpha": 1}
    yield (make(2), make(3, 0), make(0, 2)), {"beta": 0.5, "alpha": 1}


@op(
    name="_addmatmul", method=False, public=False, infer=_addmatmul_infer, promote="same",
    half="float32", scratch=("scaled",), layout=blas_ready, flops=_addmatmul_flops,
    samples=_addmatmul_samples,
    autocast="low",
)  # fmt: skip
def add_matmul(xp, out, scaled, input, mat1, mat2, *, beta, alpha):
    """Multiply and add: ``out = beta * input + alpha * (mat1 @ mat2)``; beta 0 ignores input."""
    _multiply(xp, out, mat1, mat2)
    if alpha != 1:
        xp.multiply(out, alpha, out=out)
    if beta == 0:
        return
    if beta != 1:
        input = xp.multiply(input, beta, out=scaled)
    xp.add(out, input, out=out)


@add_matmul.vjp("input")
def _(g, beta):
    return g if beta == 1 else g * beta.conjugate()


@add_matmul.vjp("mat1")
def _(g, mat2, alpha):
    grad = matmul(g, adjoint(mat2)) if mat2.ndim > 1 else g.unsqueeze(-1) * conjugate(mat2)
    return grad if alpha == 1 else grad * alpha.conjugate()


@add_matmul.vjp("mat2")
def _(g, mat1, alpha):
    grad = matmul(adjoint(mat1), g)
    return grad if alpha == 1 else grad * alpha.conjugate()


def _need_dims(name, **tensors):
    for argument, (x, ndim) in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{name}: argument '{argument}' must be Tensor, not {type(x).__name__}. "
                "Convert it with lowtide.tensor()."
            )
        if x.ndim != ndim:
            raise RuntimeError(
                f"{name}: {argument} must be {ndim}-D; got shape {tuple(x.shape)}. "
                "Use matmul for other shapes, or reshape it."
            )


def _scalars(x, beta, alpha):
    if x.dtype.category < 2 and not (isinstance(beta, int) and isinstance(alpha, int)):
        raise RuntimeError(
            f"For integral input tensors, beta and alpha must not be floating point numbers; got "
            f"beta {beta}, alpha {alpha} for {x.dtype}. Convert the tensors with .to()."
        )


@function(method=True)
def mm(input, mat2, *, out=None):
    """Multiply two matrices: (M, K) and (K, N) give (M, N)."""
    _need_dims("mm", input=(input, 2), mat2=(mat2, 2))
    return matmul(input, mat2, out=out)


@function(method=True)
def bmm(input, mat2, *, out=None):
    """Multiply two stacks of matrices: (B, M, K) and (B, K, N) give (B, M, N)."""
    _need_dims("bmm", input=(input, 3), mat2=(mat2, 3))
    if input.shape[0] != mat2.shape[0]:
        raise RuntimeError(
            f"bmm: Expected size for first two dimensions of mat2 to be [{input.shape[0]}, "
            f"{input.shape[2]}]; got input {tuple(input.shape)} and mat2 {tuple(mat2.shape)}. Use "
            "matmul to broadcast."
        )
    return matmul(input, mat2, out=out)


@function(method=True)
def mv(input, vec, *, out=None):
    """Multiply a matrix (M, K) and a vector (K,): the result is (M,)."""
    _need_dims("mv", input=(input, 2), vec=(vec, 1))
    return matmul(input, vec, out=out)


def _dot_args(name, input, other):
    _need_dims(name, input=(input, 1), other=(other, 1))
    if input.shape != other.shape:
        raise RuntimeError(
            f"{name}: inconsistent tensor size, expected two vectors of the same number of "
            f"elements; got {input.shape[0]} and {other.shape[0]}. Slice one."
        )


@function(method=True)
def dot(input, tensor, *, out=None):
    """Sum the products of two vectors' elements."""
    _dot_args("dot", input, tensor)
    return matmul(input, tensor, out=out)


@function(method=True)
def vdot(input, other, *, out=None):
    """Sum the products of two vectors' elements, those of ``input`` conjugated."""
    _dot_args("vdot", input, other)
    return matmul(conjugate(input), other, out=out)


@function(method=True)
def inner(input, other, *, out=None):
    """Contract the last dimensions: every row of ``input`` with every row of ``other``."""
    if not input.ndim or not other.ndim:
        return input * other
    if input.shape[-1] != other.shape[-1]:
        raise RuntimeError(
            f"inner contracts input.shape[-1] with other.shape[-1]; got input "
            f"{tuple(input.shape)} and other {tuple(other.shape)}. Transpose one."
        )
    return tensordot(input, other, ([-1], [-1]), out=out)


@function(method=True)
def outer(input, vec2, *, out=None):
    """Multiply every element of one vector by every element of another: (N,), (M,) give (N, M)."""
    _need_dims("outer", input=(input, 1), vec2=(vec2, 1))
    product = input.unsqueeze(1) * vec2
    return product if out is None else _into(out, product)


@function(method=True)
def ger(input, vec2, *, out=None):
    """Do what :func:`outer` does, under its BLAS name."""
    return outer(input, vec2, out=out)


def _into(out, result):
    # For compositions: the value in the tensor given as out=.
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


@function(method=True, inplace="addmm_")
def addmm(input, mat1, mat2, *, beta=1, alpha=1, out=None):
    """Multiply two matrices and add: ``beta * input + alpha * (mat1 @ mat2)``.

    Args:
        input: Anything that expands to (M, N); ignored, NaN included, if ``beta`` is 0.
        mat1: (M, K).
        mat2: (K, N).
        beta: Factor of ``input``.
        alpha: Factor of the product.
        out: Where to write the result.
    """
    _need_dims("addmm", mat1=(mat1, 2), mat2=(mat2, 2))
    _scalars(mat1, beta, alpha)
    return add_matmul(input, mat1, mat2, beta=beta, alpha=alpha, out=out)


@function(method=True, inplace="addmv_")
def addmv(input, mat, vec, *, beta=1, alpha=1, out=None):
    """Multiply matrix and vector and add: ``beta * input + alpha * (mat @ vec)``."""
    _need_dims("addmv", mat=(mat, 2), vec=(vec, 1))
    _scalars(mat, beta, alpha)
    return add_matmul(input, mat, vec, beta=beta, alpha=alpha, out=out)


@function(method=True, inplace="baddbmm_")
def baddbmm(input, batch1, batch2, *, beta=1, alpha=1, out=None):
    """Multiply stacks of matrices and add: ``beta * input + alpha * (batch1 @ batch2)``."""
    _need_dims("baddbmm", batch1=(batch1, 3), batch2=(batch2, 3))
    if batch1.shape[0] != batch2.shape[0]:
        raise RuntimeError(
            f"baddbmm: batch1 and batch2 must have the same number of matrices; got "
            f"{tuple(batch1.shape)} and {tuple(batch2.shape)}. Expand one."
        )
    _scalars(batch1, beta, alpha)
    return add_matmul(input, batch1, batch2, beta=beta, alpha=alpha, out=out)


@function(method=True, inplace="addbmm_")
def addbmm(input, batch1, batch2, *, beta=1, alpha=1, out=None):
    """Sum the products of two stacks and add: ``beta * input + alpha * (batch1 @ batch2).sum(0)``.

    The sum over the stack is part of the contraction: one product of (M, B * K) and (B * K, N).
    """
    _need_dims("addbmm", batch1=(batch1, 3), batch2=(batch2, 3))
    _scalars(batch1, beta, alpha)
    if batch1.shape[0] != batch2.shape[0] or batch1.shape[2] != batch2.shape[1]:
        raise RuntimeError(
            f"addbmm contracts batch1.shape[0] and [2] with batch2.shape[0] and [1]; got batch1 "
            f"{tuple(batch1.shape)} and batch2 {tuple(batch2.shape)}. Transpose or expand one."
        )
    b, m, k = batch1.shape
    wide = batch1.permute(1, 0, 2).reshape(m, b * k)
    tall = batch2.reshape(b * k, batch2.shape[2])
    return add_matmul(input, wide, tall, beta=beta, alpha=alpha, out=out)


@function(method=True, inplace="addr_")
def addr(input, vec1, vec2, *, beta=1, alpha=1, out=None):
    """Add an outer product: ``beta * input + alpha * outer(vec1, vec2)``."""
    _need_dims("addr", vec1=(vec1, 1), vec2=(vec2, 1))
    column, row = vec1.unsqueeze(1), vec2.unsqueeze(0)
    if input.dtype.category == vec1.dtype.category == vec2.dtype.category == 0:  # bool: or, and
        found = (input & bool(beta)) | (column & row & bool(alpha))
        return found if out is None else _into(out, found)
    return add_matmul(input, column, row, beta=beta, alpha=alpha, out=out)


@function()
def chain_matmul(*matrices, out=None):
    """Multiply several matrices in the order that takes the fewest operations."""
    if len(matrices) == 1 and not isinstance(matrices[0], Tensor):
        matrices = tuple(matrices[0])
    if not matrices:
        raise RuntimeError("chain_matmul takes at least one matrix; got none. Pass 2-D tensors.")
    for k, m in enumerate(matrices):
        _need_dims("chain_matmul", **{f"matrix {k}": (m, 2)})
    sizes = [m.shape[0] for m in matrices] + [matrices[-1].shape[1]]
    count = len(matrices)
    cost = {(i, i): (0, i) for i in range(count)}
    for span in range(1, count):
        for i in range(count - span):
            j = i + span
            cost[i, j] = builtins.min(
                (
                    cost[i, k][0] + cost[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1],
                    k,
                )
                for k in range(i, j)
            )

    def chain(i, j):
        if i == j:
            return matrices[i]
        k = cost[i, j][1]
        return matmul(chain(i, k), chain(k + 1, j))

    result = chain(0, count - 1)
    return result if out is None else _into(out, result)


@function(method=False)
def tensordot(a, b, dims=2, out=None):
    """Contract several dimensions of two tensors at once.

    Args:
        a: Any shape.
        b: Any shape.
        dims: An int n: the last n dims of ``a`` with the first n of ``b``. Or two lists: which
            dims of ``a`` with which of ``b``. Sizes of 1 broadcast.
        out: Where to write the result.

    Returns:
        Tensor of the remaining dims of ``a``, then those of ``b``.

    Raises:
        RuntimeError: The contracted sizes differ.
    """
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if dims < 0 or dims > builtins.min(a.ndim, b.ndim):
            raise RuntimeError(
                f"tensordot expects dims >= 0 and at most the number of dimensions; got dims="
                f"{dims} for shapes {tuple(a.shape)} and {tuple(b.shape)}. Pass two lists of dims."
            )
        of_a, of_b = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        of_a, of_b = ([d] if isinstance(d, int) else list(d) for d in dims)
        of_a = [d % builtins.max(a.ndim, 1) for d in of_a]
        of_b = [d % builtins.max(b.ndim, 1) for d in of_b]
    for i, j in zip(of_a, of_b, strict=False):  # a contracted size of 1 broadcasts
        if a.shape[i] == 1 != b.shape[j]:
            b = b.sum(j, keepdim=True, dtype=b.dtype)
        elif b.shape[j] == 1 != a.shape[i]:
            a = a.sum(i, keepdim=True, dtype=a.dtype)
    if [a.shape[d] for d in of_a] != [b.shape[d] for d in of_b]:
        raise RuntimeError(
            f"tensordot contracts dims {of_a} of a with {of_b} of b, which must match in size "
            f"(contracted dimensions need to match); got a {tuple(a.shape)} and b "
            f"{tuple(b.shape)}. Pass other dims."
        )
    free_a = [d for d in range(a.ndim) if d not in of_a]
    free_b = [d for d in range(b.ndim) if d not in of_b]
    shape_a, shape_b = [a.shape[d] for d in free_a], [b.shape[d] for d in free_b]
    inner_size = prod(a.shape[d] for d in of_a)
    left = a.permute(*free_a, *of_a).reshape(prod(shape_a), inner_size)
    right = b.permute(*of_b, *free_b).reshape(inner_size, prod(shape_b))
    result = matmul(left, right).reshape(*shape_a, *shape_b)
    return result if out is None else _into(out, result)


@function(method=True)
def kron(input, other, *, out=None):
    """Put ``input[i, j] * other`` in place of each element of ``input`` (Kronecker product)."""
    ndim = builtins.max(input.ndim, other.ndim)
    a = (1,) * (ndim - input.ndim) + tuple(input.shape)
    b = (1,) * (ndim - other.ndim) + tuple(other.shape)
    spaced = input.reshape(*(n for size in a for n in (size, 1)))
    between = other.reshape(*(n for size in b for n in (1, size)))
    result = (spaced * between).reshape(*(m * n for m, n in zip(a, b, strict=True)))
    return result if out is None else _into(out, result)


@function(method=True)
def trace(input):
    """Sum the diagonal of a matrix."""
    if input.ndim != 2:
        raise RuntimeError(
            f"trace: expected a matrix; got shape {tuple(input.shape)}. Use .diagonal().sum(-1)."
        )
    return input.diagonal().sum()


@function()
def bilinear(input1, input2, weight, bias=None):
    """Apply a bilinear map to two inputs: ``out[.., o] = input1 @ weight[o] @ input2 + bias[o]``.

    Args:
        input1: (*, M).
        input2: (*, N), with the same leading sizes.
        weight: (O, M, N).
        bias: (O,), or None.

    Returns:
        Tensor (*, O).
    """
    if input1.shape[:-1] != input2.shape[:-1] or tuple(weight.shape[1:]) != (
        input1.shape[-1], input2.shape[-1],
    ):  # fmt: skip
        raise RuntimeError(
            f"bilinear takes input1 (*, M), input2 (*, N) and weight (O, M, N); got "
            f"{tuple(input1.shape)}, {tuple(input2.shape)} and {tuple(weight.shape)}. Transpose "
            "or expand one."
        )
    o, m, n = weight.shape
    lead = tuple(input1.shape[:-1])
    x1, x2 = _rows(input1, (m,)), _rows(input2, (n,))
    # (R, M) @ (M, O * N) -> (R, O, N), then each row's (O, N) times its (N,).
    half = matmul(x1, weight.permute(1, 0, 2).reshape(m, o * n)).reshape(x1.shape[0], o, n)
    result = matmul(half, x2.unsqueeze(-1)).reshape(*lead, o)
    return result if bias is None else result + bias
