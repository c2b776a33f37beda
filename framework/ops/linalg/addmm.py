"""addmm, addmv, addr, baddbmm and addbmm, by one fused op.

``beta * input + alpha * (mat1 @ mat2)`` is summed in the memory of the product; half precision is
rounded once, after the sum. ``beta=0`` leaves ``input`` unread, NaN included.
"""

from __future__ import annotations

from math import prod

from ...dtypes import float32, promote_types
from ...kernels.common.matmul import matmul_into
from ...spec import Spec
from ..elementwise.arithmetic import conjugate
from ..inplace import into
from ..old_calls import old_call
from ..overwrite import write_over
from ..registry import function, op
from ..signatures import broadcast_shapes
from .bfloat16_matmul import multiply, supports, workspace
from .matmul import adjoint, blas_ready, check_number, folded, matmul, product_shape
from .products import need_dims


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
    check_number("addmm", mat1)
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
    infer=_addmatmul_infer,
    promote="same",
    scratch=("scaled",),
    layout=blas_ready,
    flops=_addmatmul_flops,
    samples=_addmatmul_samples,
    autocast="low",
)
def _addmatmul(xp, out, scaled, input, mat1, mat2, *, beta, alpha):
    """Multiply and add: ``out = beta * input + alpha * (mat1 @ mat2)``; beta 0 ignores input."""
    rows, mat1 = folded(out, mat1, mat2)
    matmul_into(xp, mat1, mat2, rows)
    if alpha != 1:
        xp.multiply(out, alpha, out=out)
    if beta == 0:
        return
    if beta != 1:
        input = xp.multiply(input, beta, out=scaled)
    xp.add(out, input, out=out)


@_addmatmul.kernel(
    "cpu",
    dtypes="half",
    when=lambda input, mat1, mat2, *, beta, alpha: (
        alpha == beta == 1
        and mat2.ndim > 1 < mat1.ndim
        and input.shape in ((), (1,), mat2.shape[-1:])
        and supports(mat1, product_shape("addmm", mat1, mat2), mat1.shape[-1])
    ),
    layout=blas_ready,
    scratch=lambda input, mat1, mat2, *, beta, alpha: workspace(
        mat1, product_shape("addmm", mat1, mat2), mat1.shape[-1]
    ),
)
def _(xp, out, room, input, mat1, mat2, *, beta, alpha):
    multiply(out, room, mat1, mat2, input)


@_addmatmul.vjp("input")
def _(g, beta):
    return g if beta == 1 else g * beta.conjugate()


@_addmatmul.vjp("mat2")
def _(g, mat1, alpha):
    grad = matmul(adjoint(mat1), g)
    return grad if alpha == 1 else grad * alpha.conjugate()


@_addmatmul.vjp("mat1", room=("mat1",))  # the last, which may write over what mat2's has read
def _(g, mat2, alpha, room):
    if mat2.ndim > 1:
        grad = write_over(room, matmul, g, adjoint(mat2))
    else:
        grad = g.unsqueeze(-1) * conjugate(mat2)
    return grad if alpha == 1 else grad * alpha.conjugate()


_FACTORS = ("beta", "alpha")


def _scalars(x, beta, alpha):
    if x.dtype.category < 2 and not (isinstance(beta, int) and isinstance(alpha, int)):
        raise RuntimeError(
            f"For integral input tensors, beta and alpha must not be floating point numbers; got "
            f"beta {beta}, alpha {alpha} for {x.dtype}. Convert the tensors with .to()."
        )


@function(method=True, inplace="addmm_")
def addmm(input, mat1, mat2, *_old, beta=1, alpha=1, out=None):
    """Multiply two matrices and add: ``beta * input + alpha * (mat1 @ mat2)``.

    Args:
        input: Anything that expands to (M, N); ignored, NaN included, if ``beta`` is 0.
        mat1: (M, K).
        mat2: (K, N).
        beta: Factor of ``input``.
        alpha: Factor of the product.
        out: Where to write the result.
    """
    if _old:
        return old_call(
            addmm, ("beta", "alpha"), (input, mat1, mat2, *_old), beta=beta, alpha=alpha, out=out
        )
    need_dims("addmm", mat1=(mat1, 2), mat2=(mat2, 2))
    _scalars(mat1, beta, alpha)
    return _addmatmul(input, mat1, mat2, beta=beta, alpha=alpha, out=out)


@function(method=True, inplace="addmv_", autocast={"cpu": "keep", "cuda": "low"})
def addmv(input, mat, vec, *_old, beta=1, alpha=1, out=None):
    """Multiply matrix and vector and add: ``beta * input + alpha * (mat @ vec)``."""
    if _old:
        return old_call(
            addmv, ("beta", "alpha"), (input, mat, vec, *_old), beta=beta, alpha=alpha, out=out
        )
    need_dims("addmv", mat=(mat, 2), vec=(vec, 1))
    _scalars(mat, beta, alpha)
    return _addmatmul(input, mat, vec, beta=beta, alpha=alpha, out=out)


@function(method=True, inplace="baddbmm_")
def baddbmm(input, batch1, batch2, *_old, beta=1, alpha=1, out=None):
    """Multiply stacks of matrices and add: ``beta * input + alpha * (batch1 @ batch2)``."""
    if _old:
        return old_call(
            baddbmm,
            ("beta", "alpha"),
            (input, batch1, batch2, *_old),
            beta=beta,
            alpha=alpha,
            out=out,
        )
    need_dims("baddbmm", batch1=(batch1, 3), batch2=(batch2, 3))
    if batch1.shape[0] != batch2.shape[0]:
        raise RuntimeError(
            f"baddbmm: batch1 and batch2 must have the same number of matrices; got "
            f"{tuple(batch1.shape)} and {tuple(batch2.shape)}. Expand one."
        )
    _scalars(batch1, beta, alpha)
    return _addmatmul(input, batch1, batch2, beta=beta, alpha=alpha, out=out)


@function(method=True, inplace="addbmm_")
def addbmm(input, batch1, batch2, *_old, beta=1, alpha=1, out=None):
    """Sum the products of two stacks and add: ``beta * input + alpha * (batch1 @ batch2).sum(0)``.

    The sum over the stack is part of the contraction: one product of (M, B * K) and (B * K, N).
    """
    if _old:
        return old_call(
            addbmm,
            ("beta", "alpha"),
            (input, batch1, batch2, *_old),
            beta=beta,
            alpha=alpha,
            out=out,
        )
    need_dims("addbmm", batch1=(batch1, 3), batch2=(batch2, 3))
    _scalars(batch1, beta, alpha)
    if batch1.shape[0] != batch2.shape[0] or batch1.shape[2] != batch2.shape[1]:
        raise RuntimeError(
            f"addbmm contracts batch1.shape[0] and [2] with batch2.shape[0] and [1]; got batch1 "
            f"{tuple(batch1.shape)} and batch2 {tuple(batch2.shape)}. Transpose or expand one."
        )
    b, m, k = batch1.shape
    wide = batch1.permute(1, 0, 2).reshape(m, b * k)
    tall = batch2.reshape(b * k, batch2.shape[2])
    return _addmatmul(input, wide, tall, beta=beta, alpha=alpha, out=out)


@function(method=True, inplace="addr_", autocast={"cpu": "keep", "cuda": "low"})
def addr(input, vec1, vec2, *_old, beta=1, alpha=1, out=None):
    """Add an outer product: ``beta * input + alpha * outer(vec1, vec2)``."""
    if _old:
        return old_call(
            addr, ("beta", "alpha"), (input, vec1, vec2, *_old), beta=beta, alpha=alpha, out=out
        )
    need_dims("addr", vec1=(vec1, 1), vec2=(vec2, 1))
    if not input.dtype is vec1.dtype is vec2.dtype:
        common = promote_types(promote_types(input.dtype, vec1.dtype), vec2.dtype)
        input, vec1, vec2 = input.to(common), vec1.to(common), vec2.to(common)
    column, row = vec1.unsqueeze(1), vec2.unsqueeze(0)
    if input.dtype.category == vec1.dtype.category == vec2.dtype.category == 0:  # bool: or, and
        found = (input & bool(beta)) | (column & row & bool(alpha))
        return into(out, found)
    return _addmatmul(input, column, row, beta=beta, alpha=alpha, out=out)
