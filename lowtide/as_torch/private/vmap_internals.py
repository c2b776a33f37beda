"""``torch._vmap_internals``: the first ``vmap``, which minimizers and solvers still call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lowtide as _lt


def _vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    allow_none_pass_through: bool = False,
) -> Callable[..., Any]:
    """Return the vectorizing map of ``func``.

    Args:
        func: Takes tensors, returns a Tensor or a tuple of them.
        in_dims: Where the batch is, of all inputs or of each.
        out_dims: Where the batch goes, of all outputs or of each.
        allow_none_pass_through: Outputs may be None, as those of ``autograd.grad`` are with
            ``allow_unused``; they stay None.
    """
    if not allow_none_pass_through:
        return _lt.vmap(func, in_dims, out_dims)

    def call(*args: Any) -> Any:
        outputs: Any = None

        def tensors(*one: Any) -> Any:
            nonlocal outputs
            outputs = func(*one)
            every = outputs if isinstance(outputs, tuple) else (outputs,)
            # vmap wants an output: the first input stands in where all are None.
            return tuple(one[0] if out is None else out for out in every)

        mapped = _lt.vmap(tensors, in_dims, out_dims)(*args)
        if not isinstance(outputs, tuple):
            return None if outputs is None else mapped[0]
        return tuple(
            None if out is None else result for out, result in zip(outputs, mapped, strict=True)
        )

    return call


def vmap(func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0) -> Callable[..., Any]:
    """Return the vectorizing map of ``func``; PyTorch calls this name deprecated."""
    return _vmap(func, in_dims, out_dims)
