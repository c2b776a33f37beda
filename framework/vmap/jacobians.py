"""Jacobians in one pass: the unit vectors are a batch of vmap.

Source:
    Columns: the double-backward trick. ``g(v) = v^T J`` is linear in ``v``, so the gradient of
    ``<g(v), u>`` with respect to ``v`` is ``J u``, whatever ``v`` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autograd.engine import grad, zeros_of
from ..ops.creation.ranges import eye
from ..ops.manipulation.cat import cat
from ..tensor import Tensor
from .gradients import batched_grad


def rows_of(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], create: bool, chunk_size: int | None
) -> list[list[Tensor]]:
    """Compute a Jacobian by rows.

    Args:
        outputs: Of a function; they need not depend on the inputs.
        inputs: What to differentiate with respect to.
        create: The Jacobian can be differentiated.
        chunk_size: Rows in a pass; None for all of an output.

    Returns:
        For each output, for each input, a tensor of shape (*output, *input).
    """
    blocks = []
    for y in outputs:
        shapes = [(*y.shape, *x.shape) for x in inputs]
        if not y.requires_grad:
            found: list[Tensor] = [zeros_of(x._spec.like()) for x in inputs]
            found = [g.expand(s) for g, s in zip(found, shapes, strict=True)]
        else:
            parts = [
                batched_grad([y], list(inputs), [v], True, create, None, True)
                for v in _units(y, chunk_size)
            ]
            found = [joined([p[k] for p in parts]).reshape(s) for k, s in enumerate(shapes)]
        blocks.append(found)
    return blocks


def columns_of(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], create: bool, chunk_size: int | None
) -> list[list[Tensor]]:
    """Compute a Jacobian by columns; arguments and result are those of :func:`rows_of`."""
    blocks: list[list[Tensor]] = [[] for _ in outputs]
    reached = [y for y in outputs if y.requires_grad]
    dummies = [zeros_of(y._spec.like()).requires_grad_() for y in reached]
    linear: list[Tensor | None] = [None] * len(inputs)
    if reached:
        linear = list(grad(reached, inputs, dummies, True, True, allow_unused=True))
    for x, g in zip(inputs, linear, strict=True):
        columns: list[list[Any]] = [[] for _ in reached]
        if g is not None and g.requires_grad:
            for v in _units(x, chunk_size):
                for c, part in zip(
                    columns, batched_grad([g], dummies, [v], True, create, None, True), strict=True
                ):
                    c.append(part)
        rest = iter(columns)
        for y, block in zip(outputs, blocks, strict=True):
            parts = next(rest) if y.requires_grad else []
            shape = (*y.shape, *x.shape)
            if parts:
                block.append(joined(parts).movedim(0, -1).reshape(shape))
            else:
                block.append(zeros_of(y._spec.like(shape)))
    return blocks


def _units(t: Tensor, chunk_size: int | None) -> list[Tensor]:
    # Unit vectors in the shape of a tensor, in chunks of (vectors, *shape).
    n = t.numel()
    every = eye(n, dtype=t.dtype, device=t.device).view((n, *t.shape))
    if chunk_size is None or chunk_size >= n:
        return [every]
    return [every[k : k + chunk_size] for k in range(0, n, chunk_size)]


def joined(parts: Sequence[Any]) -> Tensor:
    """Join chunks of rows; one is returned as it is."""
    out: Tensor = parts[0] if len(parts) == 1 else cat(list(parts))
    return out
