"""Products that take sparse matrices: matmul, addmm, linear, and those of ``lowtide.sparse``."""

from __future__ import annotations

from typing import Any

from ...memory_format import sparse_coo
from ...tensor import Tensor
from ..creation.ranges import arange
from ..linalg.products import need_dims
from ..manipulation.cat import cat, stack
from ..registry import function
from .calls import rule
from .compressed import as_layout
from .products import _sampled_matmul, stacks, times_dense, times_sparse
from .sparse_tensor import SparseTensor, assembled


@rule("matmul")
def _matmul(inputs: Any) -> Any:
    a, b = inputs
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return NotImplemented
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        return times_sparse(a, b)
    if isinstance(a, SparseTensor):
        return stacks(a, b) if a.ndim == b.ndim == 3 else times_dense(a, b)
    if a.ndim == 1:
        return times_dense(b.t(), a)
    if a.ndim != 2 or b.ndim != 2:
        return NotImplemented
    return times_dense(b.t(), a.t()).t()


@rule("_addmatmul")
def _addmatmul(inputs: Any, *, beta: Any, alpha: Any) -> Any:
    input, a, b = inputs
    product = _matmul((a, b))
    if product is NotImplemented:
        return product
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    if beta != 1:
        input = input * beta
    if isinstance(input, SparseTensor) != isinstance(product, SparseTensor):
        return product + input if isinstance(input, SparseTensor) else input + product
    return input + product


@rule("linear")
def _linear(inputs: Any) -> Any:
    x, weight, bias = inputs
    if isinstance(x, Tensor) and not isinstance(x, SparseTensor) and x.ndim != 2:
        if not isinstance(weight, SparseTensor) or not x.ndim:
            return NotImplemented
        flat = x.reshape(-1, x.shape[-1])
        return _linear((flat, weight, bias)).reshape(*x.shape[:-1], weight.shape[0])
    out = _matmul((x, weight.t()))
    return out if bias is None or out is NotImplemented else out + bias


def sparse_mm(mat1: Any, mat2: Any, reduce: str | None = None) -> Tensor:
    """Multiply two matrices of which at least one is sparse.

    Args:
        mat1: (M, K).
        mat2: (K, N).
        reduce: What becomes of the terms of an element, one for each stored value of its row:
            ``"sum"``, ``"mean"``, ``"amax"`` or ``"amin"``; a row without values gives 0.

    Returns:
        (M, N): strided, or sparse if both are.

    Memory:
        With another ``reduce`` than the sum, all terms, (nnz, N), while it runs and for backward.
    """
    need_dims("mm", mat1=(mat1, 2), mat2=(mat2, 2))
    if reduce not in (None, "sum"):
        return _reduced(mat1, mat2, reduce)
    if not (isinstance(mat1, SparseTensor) or isinstance(mat2, SparseTensor)):
        raise RuntimeError("sparse.mm needs a sparse operand; got two strided ones. Use mm.")
    return mat1 @ mat2


@function()
def spmm(input, mat2):
    """Multiply a sparse matrix (M, K) and a dense one (K, N), as ``mm``."""
    return input.mm(mat2)


@function()
def dsmm(input, mat2):
    """Multiply a dense matrix (M, K) and a sparse one (K, N), as ``mm``."""
    return input.mm(mat2)


def sampled_addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1.0, alpha: Any = 1.0, out: Any = None
) -> Tensor:
    """Compute ``alpha * (mat1 @ mat2) + beta * input`` at the places of ``input`` alone.

    Args:
        input: (M, N), sparse: CSR, CSC or COO.
        mat1: (M, K), strided.
        mat2: (K, N), strided.
        beta: Factor of ``input``.
        alpha: Factor of the product.
        out: None.

    Returns:
        (M, N), in the places and the layout of ``input``.
    """
    if not isinstance(input, SparseTensor) or input.ndim != 2 or input.dense_dim():
        raise RuntimeError(
            "sampled_addmm: expected a sparse matrix as input; got "
            f"{input.layout} {tuple(input.shape)}. Use addmm."
        )
    if out is not None:
        raise NotImplementedError("sampled_addmm: out= is not supported. Use the result.")
    need_dims("sampled_addmm", mat1=(mat1, 2), mat2=(mat2, 2))
    if (mat1.shape[0], mat2.shape[1], mat1.shape[1]) != (*input.shape, mat2.shape[0]):
        raise RuntimeError(
            f"sampled_addmm: mat1 @ mat2 must have the shape {tuple(input.shape)} of input; got "
            f"{tuple(mat1.shape)} and {tuple(mat2.shape)}."
        )
    s: Any = input.to_sparse_coo()
    held = _sampled_matmul(mat1, mat2.t(), s._indexing[0]) * alpha
    return as_layout(s._with(held + s._value * beta if beta != 0 else held), input.layout)


def spdiags(diagonals: Tensor, offsets: Tensor, shape: Any, layout: Any = None) -> Tensor:
    """Make a sparse matrix of its diagonals.

    Args:
        diagonals: (D, n), one in each row, by the column that an element stands in.
        offsets: (D,), which diagonal each is: 0 the main one, above it positive.
        shape: Of the matrix.
        layout: By default COO.
    """
    diagonals, offsets = diagonals.reshape(-1, diagonals.shape[-1]), offsets.reshape(-1)
    if offsets.shape[0] != diagonals.shape[0] or offsets.unique().shape[0] != offsets.shape[0]:
        raise RuntimeError(
            "spdiags: offsets must be distinct, and as many as there are rows of diagonals; got "
            f"{offsets.tolist()} for {tuple(diagonals.shape)}."
        )
    rows, columns = shape
    places, held = [], []
    for diagonal, offset in zip(diagonals, offsets.tolist(), strict=True):
        first, last = max(0, offset), min(columns, rows + offset, diagonal.shape[0])
        at = arange(first, max(first, last), device=diagonals.device)
        places.append(stack((at - offset, at)))
        held.append(diagonal[first : max(first, last)])
    found = assembled(tuple(shape), (cat(places, 1),), cat(held), sparse_coo, False)
    return found if layout is None else found.to_sparse(layout=layout)


def _reduced(mat1: Any, mat2: Any, reduce: str) -> Tensor:
    if reduce not in ("mean", "amax", "amin"):
        raise ValueError(
            f"sparse.mm: reduce must be 'sum', 'mean', 'amax' or 'amin'; got {reduce!r}."
        )
    if not isinstance(mat1, SparseTensor) or isinstance(mat2, SparseTensor) or mat1.dense_dim():
        raise NotImplementedError(
            f"sparse.mm: reduce={reduce!r} needs a sparse mat1 and a strided mat2; got "
            f"{mat1.layout} and {mat2.layout}."
        )
    if mat1.shape[1] != mat2.shape[0]:
        times_dense(mat1.to_sparse_coo(), mat2, "sparse.mm")  # which words the error
    s: Any = mat1.to_sparse_coo().coalesce()
    rows, columns = s._indexing[0]
    if reduce == "mean":
        counts = rows.bincount(minlength=mat1.shape[0]).clamp(min=1).unsqueeze(1)
        return (s @ mat2) / counts.to(mat2.dtype)
    terms = mat2.index_select(0, columns) * s._value.unsqueeze(1)
    none = terms.new_zeros((mat1.shape[0], mat2.shape[1]))
    index = rows.unsqueeze(1).expand(terms.shape)
    found: Tensor = none.scatter_reduce(0, index, terms, reduce, include_self=False)
    return found


def sparse_addmm(mat: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """Compute ``beta * mat + alpha * (mat1 @ mat2)`` with a sparse ``mat1``.

    Args:
        mat: (M, N), strided.
        mat1: (M, K), sparse.
        mat2: (K, N), strided.
        beta: Factor of ``mat``.
        alpha: Factor of the product.
    """
    return mat.addmm(mat1, mat2, beta=beta, alpha=alpha)
