"""mm, bmm, mv, dot, outer, tensordot, kron, and other products.

Compositions of ``matmul``, views and elementwise products; each checks what its name promises.
"""

from __future__ import annotations

import builtins
from math import prod

from ...tensor import Tensor
from ..autocast_policy import WIDE_ON_CPU
from ..elementwise.arithmetic import conjugate
from ..inplace import into
from ..registry import function
from .matmul import matmul


def need_dims(name, **tensors):
    """Raise an error unless arguments have the given number of dims: ``mat=(mat, 2)``.

    Raises:
        TypeError: One is no tensor.
        RuntimeError: One has other dims.
    """
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


@function(method=True)
def mm(input, mat2, *, out=None):
    """Multiply two matrices: (M, K) and (K, N) give (M, N)."""
    need_dims("mm", input=(input, 2), mat2=(mat2, 2))
    return matmul(input, mat2, out=out)


@function(method=True)
def bmm(input, mat2, *, out=None):
    """Multiply two stacks of matrices: (B, M, K) and (B, K, N) give (B, M, N)."""
    need_dims("bmm", input=(input, 3), mat2=(mat2, 3))
    if input.shape[0] != mat2.shape[0]:
        raise RuntimeError(
            f"bmm: Expected size for first two dimensions of mat2 to be [{input.shape[0]}, "
            f"{input.shape[2]}]; got input {tuple(input.shape)} and mat2 {tuple(mat2.shape)}. Use "
            "matmul to broadcast."
        )
    return matmul(input, mat2, out=out)


@function(method=True, autocast={"cpu": "keep", "cuda": "low"})
def mv(input, vec, *, out=None):
    """Multiply a matrix (M, K) and a vector (K,): the result is (M,)."""
    need_dims("mv", input=(input, 2), vec=(vec, 1))
    return matmul(input, vec, out=out)


def _dot_args(name, input, other):
    need_dims(name, input=(input, 1), other=(other, 1))
    if input.shape != other.shape:
        raise RuntimeError(
            f"{name}: inconsistent tensor size, expected two vectors of the same number of "
            f"elements; got {input.shape[0]} and {other.shape[0]}. Slice one."
        )


@function(method=True, autocast={"cpu": "keep", "cuda": "promote"})
def dot(input, tensor, *, out=None):
    """Compute the dot product of two vectors."""
    _dot_args("dot", input, tensor)
    return matmul(input, tensor, out=out)


@function(method=True, autocast={"cpu": "keep", "cuda": "promote"})
def vdot(input, other, *, out=None):
    """Compute the dot product of two vectors, with ``input`` conjugated."""
    _dot_args("vdot", input, other)
    return matmul(conjugate(input), other, out=out)


@function(method=True)
def inner(input, other, *, out=None):
    """Compute the inner product: contract the last dims of both."""
    if not input.ndim or not other.ndim:
        return into(out, input * other)
    if input.shape[-1] != other.shape[-1]:
        raise RuntimeError(
            f"inner contracts input.shape[-1] with other.shape[-1]; got input "
            f"{tuple(input.shape)} and other {tuple(other.shape)}. Transpose one."
        )
    if input.ndim == other.ndim == 1:
        return dot(input, other, out=out)
    return tensordot(input, other, ([-1], [-1]), out=out)


@function(method=True)
def outer(input, vec2, *, out=None):
    """Compute the outer product of two vectors: (N,), (M,) give (N, M)."""
    need_dims("outer", input=(input, 1), vec2=(vec2, 1))
    product = input.unsqueeze(1) * vec2
    return into(out, product)


@function(method=True)
def ger(input, vec2, *, out=None):
    """Same as :func:`outer`, under its BLAS name."""
    return outer(input, vec2, out=out)


@function()
def chain_matmul(*matrices, out=None):
    """Multiply several matrices in the order that takes the fewest operations."""
    if len(matrices) == 1 and not isinstance(matrices[0], Tensor):
        matrices = tuple(matrices[0])
    if not matrices:
        raise RuntimeError("chain_matmul takes at least one matrix; got none. Pass 2-D tensors.")
    for k, m in enumerate(matrices):
        need_dims("chain_matmul", **{f"matrix {k}": (m, 2)})
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

    return into(out, _chained(matrices, cost, 0, count - 1))


def _chained(matrices, cost, i, j):
    # No closure, which would be a cycle that keeps the matrices until the collector comes.
    if i == j:
        return matrices[i]
    k = cost[i, j][1]
    return matmul(_chained(matrices, cost, i, k), _chained(matrices, cost, k + 1, j))


@function(autocast={"cuda": "promote"})
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
    if len(left) == 1 == right.shape[1]:
        result = dot(left.reshape(-1), right.reshape(-1))
    else:
        result = matmul(left, right)
    return into(out, result.reshape(*shape_a, *shape_b))


@function(method=True)
def kron(input, other, *, out=None):
    """Compute the Kronecker product: ``input[i, j] * other`` in place of each element."""
    ndim = builtins.max(input.ndim, other.ndim)
    a = (1,) * (ndim - input.ndim) + tuple(input.shape)
    b = (1,) * (ndim - other.ndim) + tuple(other.shape)
    spaced = input.reshape(*(n for size in a for n in (size, 1)))
    between = other.reshape(*(n for size in b for n in (1, size)))
    result = (spaced * between).reshape(*(m * n for m, n in zip(a, b, strict=True)))
    return into(out, result)


@function(method=True, autocast=WIDE_ON_CPU)
def trace(input):
    """Compute the trace of a matrix: the sum of its diagonal."""
    if input.ndim != 2:
        raise RuntimeError(
            f"trace: expected a matrix; got shape {tuple(input.shape)}. Use .diagonal().sum(-1)."
        )
    return input.diagonal().sum()
