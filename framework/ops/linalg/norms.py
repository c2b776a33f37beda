"""Vector and matrix norms, and the condition number."""

from __future__ import annotations

from math import inf

from ...dtypes import FLOAT
from ..reduction.sum import normalize_dims
from ..reduction.var_norm import _norm
from ..views.reshape import normal_dim
from .checks import check_matrices, check_square, linear_algebra
from .eig_svd import svdvals
from .solve import inv_ex


def _converted(name, x, dtype):
    if x.dtype.category < FLOAT:
        raise RuntimeError(
            f"{name}: Expected a floating point or complex tensor as input. Got {x.dtype}. "
            "Convert it with .to(lowtide.float32)."
        )
    return x if dtype is None else x.to(dtype)


@linear_algebra()
def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None):
    """Compute the vector p-norm over ``dim``.

    Args:
        x: Any shape.
        ord: The p: a number, inf (the largest magnitude), -inf, or 0 (counts nonzeros).
        dim: An int, several, or None for all.
        keepdim: Leave the reduced dims, with size 1.
        dtype: Convert to this dtype first.

    Memory:
        Keeps ``x`` and the result. The gradient at 0 is 0.
    """
    x = _converted("linalg.vector_norm", x, dtype)
    dims = normalize_dims("linalg.vector_norm", dim, x.ndim)
    if (ord < 0 or ord == inf) and any(x.shape[d] == 0 for d in dims or range(x.ndim)):
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {ord} norm on an empty tensor because the "
            "operation does not have an identity. Use another order."
        )
    return _norm(x, p=float(ord), dim=dims, keepdim=keepdim)


@linear_algebra()
def matrix_norm(A, ord="fro", dim=(-2, -1), keepdim=False, *, dtype=None):
    """Compute a matrix norm.

    Args:
        A: (*, m, n).
        ord: "fro": the root of the sum of squares. "nuc": the sum of singular values. 2 and -2: the
            largest and the smallest of them. 1 and -1: the largest and the smallest sum of
            magnitudes of a column; inf and -inf: of a row.
        dim: The dims of rows and columns.
        keepdim: Leave them, with size 1.
        dtype: Convert to this dtype first.

    Raises:
        RuntimeError: Another order, or no matrix.
    """
    check_matrices("linalg.matrix_norm", A)
    A = _converted("linalg.matrix_norm", A, dtype)
    if not isinstance(dim, tuple | list) or len(dim) != 2:
        raise RuntimeError(f"linalg.matrix_norm: dim must be a 2-tuple. Got {dim}.")
    rows, columns = (normal_dim("linalg.matrix_norm", d, A.ndim) for d in dim)
    if rows == columns:
        raise RuntimeError(f"linalg.matrix_norm: dims must be different. Got ({dim[0]}, {dim[1]}).")
    if ord == "fro":
        return vector_norm(A, 2, (rows, columns), keepdim)
    if ord not in ("nuc", 1, -1, 2, -2, inf, -inf):
        shown = f"Order {ord} not supported" if not isinstance(ord, str) else f"Order {ord}"
        raise RuntimeError(
            f"linalg.matrix_norm: {shown}. Pass 'fro', 'nuc', inf, -inf, 1, -1, 2 or -2."
        )
    if ord == "nuc" or abs(ord) == 2:
        values = svdvals(A.movedim((rows, columns), (-2, -1)))
        if ord == "nuc":
            out = values.sum(-1)
        elif ord > 0:
            out = values.amax(-1) if values.shape[-1] else values.sum(-1)
        else:
            out = values.amin(-1)
        if keepdim:
            for d in sorted((rows, columns)):
                out = out.unsqueeze(d)
        return out
    summed, left = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = A.abs().sum(summed, keepdim=True)
    if not sums.shape[left] and ord > 0:
        out = sums.sum(left, keepdim=True)
    else:
        out = sums.amax(left, True) if ord > 0 else sums.amin(left, True)
    return out if keepdim else out.squeeze((rows, columns))


@linear_algebra()
def norm(A, ord=None, dim=None, keepdim=False, *, dtype=None):
    """Compute a vector or matrix norm.

    Args:
        A: Any shape.
        ord: None: the 2-norm of all elements of ``dim``. Else the order of a vector norm (one dim)
            or a matrix norm (two).
        dim: An int or two; None takes the whole tensor, which then has one or two dims if ``ord``
            is given.
        keepdim: Leave the reduced dims, with size 1.
        dtype: Convert to this dtype first.
    """
    if dim is not None and not isinstance(dim, int):
        dim = tuple(dim)
        if len(dim) == 1:
            dim = dim[0]
    if ord is None:
        return vector_norm(A, 2, dim, keepdim, dtype=dtype)
    if dim is None and A.ndim not in (1, 2):
        raise RuntimeError(
            "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got "
            f"{A.ndim}D."
        )
    if isinstance(dim, tuple) and len(dim) != 2:
        raise RuntimeError(
            f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {list(dim)}."
        )
    if isinstance(dim, tuple) or (dim is None and A.ndim == 2):
        return matrix_norm(A, ord, dim or (-2, -1), keepdim, dtype=dtype)
    if isinstance(ord, str):
        return matrix_norm(A, ord, dim, keepdim, dtype=dtype)
    return vector_norm(A, ord, dim, keepdim, dtype=dtype)


@linear_algebra()
def cond(A, p=None):
    """Compute the condition number: ``norm(A, p) * norm(inv(A), p)``.

    Args:
        A: (*, n, n); (*, m, n) for a ``p`` of None, 2 or -2.
        p: The order of the norms; None is 2, of which only the singular values are needed.

    Returns:
        Tensor (*), inf for singular matrices.
    """
    check_matrices("linalg.cond", A)
    if p is None or p in (2, -2):
        values = svdvals(A)
        if not values.shape[-1]:
            return values.sum(-1)
        largest, smallest = values.select(-1, 0), values.select(-1, -1)
        return smallest / largest if p == -2 else largest / smallest
    check_square("linalg.cond", A)
    if not A.shape[-1]:
        return matrix_norm(A, "fro")
    inverse, info = inv_ex(A)
    singular = info != 0
    inverse = inverse.masked_fill(singular.unsqueeze(-1).unsqueeze(-1), 1.0)
    return (matrix_norm(A, p) * matrix_norm(inverse, p)).masked_fill(singular, inf)
