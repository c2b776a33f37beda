"""What libraries call of PyTorch's sparse functions by private names, directly under ``torch``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lowtide as _lt


def _convert_indices_from_coo_to_csr(
    input: Any, size: int, *, out_int32: bool = False, out: Any = None
) -> Any:
    """Return where each of ``size`` rows begins, and the end, of sorted row numbers (nnz,)."""
    first = _lt.searchsorted(
        input.contiguous(), _lt.arange(size + 1, device=input.device, dtype=input.dtype)
    )
    found = first.to(_lt.int32) if out_int32 else first
    return found if out is None else out.copy_(found)


def _convert_indices_from_csr_to_coo(
    crow_indices: Any,
    col_indices: Any,
    *,
    out_int32: bool = False,
    transpose: bool = False,
    out: Any = None,
) -> Any:
    """Return the indices (2, nnz) of compressed ones; ``transpose`` exchanges their rows."""
    counts = crow_indices[1:] - crow_indices[:-1]
    lines = _lt.arange(counts.shape[0], device=counts.device).repeat_interleave(counts)
    kind = _lt.int32 if out_int32 else _lt.int64
    pair = [lines.to(kind), col_indices.to(kind)]
    found = _lt.stack(pair[::-1] if transpose else pair)
    return found if out is None else out.copy_(found)


def _sparse_coo_tensor_unsafe(
    indices: Any, values: Any, size: Any, is_coalesced: bool | None = None, **options: Any
) -> Any:
    """Create a COO tensor; it is checked like any other."""
    return _lt.sparse_coo_tensor(indices, values, size, is_coalesced=is_coalesced, **options)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        _convert_indices_from_coo_to_csr,
        _convert_indices_from_csr_to_coo,
        _sparse_coo_tensor_unsafe,
    )
}
FUNCTIONS |= {
    "_sparse_csr_tensor_unsafe": _lt.sparse_csr_tensor,
    "_sparse_mm": _lt.sparse.mm,
    "_sparse_sum": _lt.sparse.sum,
    "_sparse_softmax": _lt.sparse.softmax,
    "_sparse_log_softmax": _lt.sparse.log_softmax,
}
