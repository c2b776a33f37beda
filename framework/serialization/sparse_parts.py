"""Sparse tensors in files: their parts, put together again after their indices are checked."""

from __future__ import annotations

from typing import Any

from ..memory_format import sparse_coo, sparse_csc, sparse_csr
from ..ops.sparse.compressed import sparse_compressed_tensor
from ..ops.sparse.coo import sparse_coo_tensor
from ..ops.sparse.sparse_tensor import SparseTensor
from ..tensor import Tensor

_LAYOUTS = {known.name: known for known in (sparse_coo, sparse_csr, sparse_csc)}


def described(t: SparseTensor) -> tuple[str, list[int], list[Tensor], bool]:
    """Return what a file keeps of a sparse tensor: layout, size, parts, whether coalesced."""
    parts = [part.detach() for part in (*t._indexing, t._value)]
    return t.layout.name, list(t.shape), parts, t._coalesced


def rebuilt(
    name: Any, size: Any, parts: Any, coalesced: bool, requires_grad: bool = False
) -> SparseTensor:
    """Put a sparse tensor together.

    Raises:
        ValueError: These are no parts of one.
        RuntimeError: They do not fit together, such as an index beyond the size.
    """
    layout = _LAYOUTS.get(name) if isinstance(name, str) else None
    count = 2 if layout is sparse_coo else 3
    if layout is None or len(parts) != count or not all(isinstance(p, Tensor) for p in parts):
        raise ValueError(f"a sparse tensor of layout {name!r:.99} and {len(parts)} parts")
    made: SparseTensor
    if layout is sparse_coo:
        made = sparse_coo_tensor(
            *parts, tuple(size), requires_grad=requires_grad, is_coalesced=coalesced or None
        )
    else:
        made = sparse_compressed_tensor(
            *parts, tuple(size), layout=layout, requires_grad=requires_grad
        )
    return made
