"""Gradients of sparse tensors as roots and inputs, and sparse gradients of tables.

The graph knows values only. What a user sets on a sparse tensor is set on its values here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...autograd import given_ops
from ...autograd.engine import gradients_of
from ...dtypes import int64
from ...memory_format import sparse_coo
from ...tensor import Tensor
from .coo import as_coo, coalesce, gathered, looked_up, parts
from .sparse_tensor import SparseTensor, assembled, plain


def roots_of_sparse(roots: list[Tensor], given: Any) -> tuple[list[Tensor], Any]:
    """Return the values of sparse roots, and the gradient that arrives at each."""
    several = isinstance(given, Iterable) and not isinstance(given, Tensor)
    gradients = [None] * len(roots) if given is None else list(given) if several else [given]
    found = list(roots)
    for k, (root, g) in enumerate(zip(roots, gradients, strict=False)):
        if not isinstance(root, SparseTensor):
            continue
        s = as_coo(root)
        found[k] = s._value
        if isinstance(g, Tensor):
            if g.shape != root.shape:
                raise RuntimeError(
                    f"Mismatch in shape: grad_output[{k}] has a shape of {tuple(g.shape)} and "
                    f"output[{k}] has a shape of {tuple(root.shape)}. They must be equal."
                )
            at, _ = parts(s, "backward")
            is_sparse = isinstance(g, SparseTensor)
            gradients[k] = looked_up(coalesce(as_coo(g)), at) if is_sparse else gathered(g, at)
    return found, gradients


def grad_of_sparse(
    roots: list[Tensor], targets: list[Tensor], grad_outputs: Any, *options: Any
) -> tuple[Tensor | None, ...]:
    """Compute what ``autograd.grad`` returns where a root or an input is sparse."""
    values, arriving = roots_of_sparse(roots, grad_outputs)
    inputs = [t._value if isinstance(t, SparseTensor) else t for t in targets]
    found = gradients_of(values, inputs, arriving, *options)
    return tuple(
        t._with(g) if isinstance(t, SparseTensor) and isinstance(g, Tensor) else g
        for t, g in zip(targets, found, strict=True)
    )


def row_gradient(g: Tensor, index: Tensor, rows: int, padding: int | None) -> SparseTensor:
    """Return the gradient of a table of which rows were looked up: one entry for each look-up.

    Args:
        g: (*, features).
        index: (*), the rows.
        rows: How many there are.
        padding: Look-ups of this row have no entry; on meta, which knows none, all have one.
    """
    values = g.reshape(-1, g.shape[-1])
    at = index.reshape(-1).to(int64)
    if padding is not None and at.device.type != "meta":
        kept = at.ne(padding).nonzero().reshape(-1)
        at, values = at.index_select(0, kept), values.index_select(0, kept)
    few = at.shape[0] < 2
    shape = (rows, g.shape[-1])
    return assembled(shape, (plain(at.unsqueeze(0)),), plain(values), sparse_coo, few)


given_ops.grad_of_sparse = grad_of_sparse
given_ops.roots_of_sparse = roots_of_sparse
