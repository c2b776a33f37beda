"""Reductions of sparse tensors: sums, norms, and softmax over what is stored."""

from __future__ import annotations

from typing import Any

from ...dtypes import INT, int64
from ...memory_format import sparse_coo
from ...tensor import Tensor
from ..elementwise.unary import exp
from ..indexing.index_put import _index_sum
from ..linalg.norms import vector_norm
from ..manipulation.cat import stack
from ..reduction.sort import unique
from .calls import rule
from .coo import as_coo, coalesce, keys, parts
from .sparse_tensor import SparseTensor, assembled


@rule("_sum")
def _sum(inputs: Any, *, dim: Any, keepdim: bool, dtype: Any) -> Any:
    (s,) = inputs
    found, held = parts(s, "sum")
    n = found.shape[0]
    dims = sorted(dim)
    if len(dims) == s.ndim and not keepdim:
        return held.sum(dtype=dtype)
    dense = [d - n + 1 for d in dims if d >= n]
    if dense:
        held = held.sum(dense, keepdim, dtype=dtype)
    elif dtype is not None:
        held = held.to(dtype)
    gone = [d for d in dims if d < n]
    left = [d for d in range(n) if d not in gone]
    if keepdim:
        rows = stack([found[d] * 0 if d in gone else found[d] for d in range(n)])
        shape = [1 if d in dims else m for d, m in enumerate(s.shape)]
        same = assembled(shape, (rows,), held, sparse_coo, s._coalesced and not gone)
        return coalesce(same) if gone else same
    shape = [m for d, m in enumerate(s.shape) if d not in dims]
    if not left:
        return held.sum(0)
    rows = stack([found[d] for d in left]) if gone else found
    return coalesce(assembled(shape, (rows,), held, sparse_coo, s._coalesced and not gone))


@rule("_any")
def _any(inputs: Any, *, dim: Any, keepdim: bool) -> Any:
    (s,) = inputs
    if len(dim) != s.ndim or keepdim:
        return NotImplemented
    return coalesce(s)._value.any()


@rule("_norm")
def _norm(inputs: Any, *, p: float, dim: Any, keepdim: bool) -> Any:
    (s,) = inputs
    if len(dim) != s.ndim or keepdim or not p > 0:
        return NotImplemented
    return vector_norm(coalesce(s)._value, p)


def softmax_stored(s: Any, dim: int, dtype: Any, log_of: bool) -> Tensor:
    """Compute softmax along ``dim`` over what is stored: all else counts as minus infinity.

    Args:
        s: A sparse tensor.
        dim: Along which.
        dtype: Convert to it first, unless None.
        log_of: Return its logarithm.
    """
    name = "log_softmax" if log_of else "softmax"
    if not isinstance(s, SparseTensor):
        raise RuntimeError(
            f"sparse.{name} expected a sparse tensor but got Strided. Use lowtide.{name}."
        )
    if not -s.ndim <= dim < s.ndim:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-s.ndim}, {s.ndim - 1}], but "
            f"got {dim})"
        )
    dim %= s.ndim
    s = coalesce(as_coo(s))
    found, held = parts(s, name)
    if dtype is not None:
        held = held.to(dtype)
    n = found.shape[0]
    if dim >= n:
        d = dim - n + 1
        return s._with(held.log_softmax(d) if log_of else held.softmax(d))
    if not held.shape[0]:
        return s._with(held)
    others = [d for d in range(n) if d != dim]
    if others:
        line = keys(stack([found[d] for d in others]), tuple(s.shape[d] for d in others))
    else:
        line = found[0] * 0
    pools, of = unique(line, return_inverse=True)
    shape = (pools.shape[0], *held.shape[1:])
    at = of.reshape(-1, *(1,) * (held.ndim - 1)).expand(held.shape)
    most = held.detach().new_full(shape, float("-inf")).scatter_reduce(0, at, held.detach(), "amax")
    shifted = held - most.index_select(0, of)
    powers = exp(shifted)
    sums = _index_sum(powers, of.unsqueeze(0), shape=shape, dims=(0,), at=0)
    if log_of:
        return s._with(shifted - sums.log().index_select(0, of))
    return s._with(powers / sums.index_select(0, of))


def sparse_sum(input: Any, dim: Any = None, dtype: Any = None) -> Tensor:
    """Sum a sparse tensor over some dims, or all.

    Args:
        input: A sparse tensor.
        dim: One dim or several; None for all.
        dtype: Of the result; integers are added in int64 by default.

    Returns:
        A strided number, or a strided tensor if only dense dims are left; else a COO tensor.

    Raises:
        RuntimeError: ``input`` is strided.
    """
    if not isinstance(input, SparseTensor):
        parts(input, "sum")
    if dtype is None and input.dtype.category <= INT:
        dtype = int64
    if dim is None:
        return input._value.sum(dtype=dtype)
    return input.sum(dim, dtype=dtype)
