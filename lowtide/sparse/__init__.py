"""Sparse tensors, under PyTorch's names: products, sums and softmax of what is stored.

Sparse tensors are made by ``lowtide.sparse_coo_tensor``, ``sparse_csr_tensor``,
``sparse_csc_tensor`` and ``Tensor.to_sparse``; the operators of Tensor take them where a sparse
result, or a dense one without a detour, makes sense.
"""

from collections.abc import Callable as _Callable
from functools import wraps as _wraps
from typing import Any as _Any

from lowtide.framework import dtypes as _dtypes
from lowtide.framework.ops.sparse.coo import sparse_coo_tensor as _coo
from lowtide.framework.ops.sparse.matmul_rules import sampled_addmm as sampled_addmm
from lowtide.framework.ops.sparse.matmul_rules import sparse_addmm as _addmm
from lowtide.framework.ops.sparse.matmul_rules import sparse_mm as _mm
from lowtide.framework.ops.sparse.matmul_rules import spdiags as spdiags
from lowtide.framework.ops.sparse.reduction import softmax_stored as _softmax
from lowtide.framework.ops.sparse.reduction import sparse_sum as _sum
from lowtide.framework.tensor import Tensor as _Tensor

addmm, mm, sum = _addmm, _mm, _sum


def softmax(input: _Tensor, dim: int, *, dtype: _Any = None) -> _Tensor:
    """Compute softmax along ``dim`` over what is stored; all else counts as minus infinity.

    Args:
        input: A sparse tensor.
        dim: Along which; sparse or dense.
        dtype: Convert to it first.

    Returns:
        A sparse tensor with the indices of ``input``, coalesced.
    """
    return _softmax(input, dim, dtype, False)


def log_softmax(input: _Tensor, dim: int, *, dtype: _Any = None) -> _Tensor:
    """Compute the logarithm of :func:`softmax`.

    Args:
        input: A sparse tensor.
        dim: Along which; sparse or dense.
        dtype: Convert to it first.
    """
    return _softmax(input, dim, dtype, True)


class check_sparse_tensor_invariants:
    """Accepted: invariants are always checked when a sparse tensor is made.

    A context, a decorator, and three functions. ``is_enabled`` says what was last asked for.

    Args:
        enable: What ``is_enabled`` says inside.
    """

    _asked = False

    def __init__(self, enable: bool = True) -> None:
        self._inside = enable
        self._before: list[bool] = []

    @staticmethod
    def is_enabled() -> bool:
        """Return what was last asked for."""
        return check_sparse_tensor_invariants._asked

    @staticmethod
    def enable() -> None:
        """Remember that checks were asked for."""
        check_sparse_tensor_invariants._asked = True

    @staticmethod
    def disable() -> None:
        """Remember that no checks were asked for; they are made all the same."""
        check_sparse_tensor_invariants._asked = False

    def __enter__(self) -> None:
        self._before.append(self.is_enabled())
        check_sparse_tensor_invariants._asked = self._inside

    def __exit__(self, *_: object) -> None:
        check_sparse_tensor_invariants._asked = self._before.pop()

    def __call__(self, f: _Callable[..., _Any]) -> _Callable[..., _Any]:
        """Return ``f``, run inside this context."""

        @_wraps(f)
        def inside(*args: _Any, **kwargs: _Any) -> _Any:
            with type(self)(self._inside):
                return f(*args, **kwargs)

        return inside


def _legacy(name: str, dtype: _Any) -> _Any:
    def create(indices: _Any = None, values: _Any = None, size: _Any = None) -> _Tensor:
        found: _Tensor = _coo(indices, values, size, dtype=dtype)
        return found

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"Create a {dtype.name} COO tensor; PyTorch's older name."
    return create


FloatTensor = _legacy("FloatTensor", _dtypes.float32)
DoubleTensor = _legacy("DoubleTensor", _dtypes.float64)
HalfTensor = _legacy("HalfTensor", _dtypes.float16)
BFloat16Tensor = _legacy("BFloat16Tensor", _dtypes.bfloat16)
IntTensor = _legacy("IntTensor", _dtypes.int32)
LongTensor = _legacy("LongTensor", _dtypes.int64)
ShortTensor = _legacy("ShortTensor", _dtypes.int16)
CharTensor = _legacy("CharTensor", _dtypes.int8)
ByteTensor = _legacy("ByteTensor", _dtypes.uint8)
