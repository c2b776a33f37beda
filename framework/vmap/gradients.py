"""``autograd.grad`` inside ``vmap``, and of many vectors at a time.

Outputs and inputs are replaced by the values of all samples, which are what the graph knows. A
sample's output depends on its own sample of a batched input alone, so the gradient of all outputs
with respect to all samples is each sample's own. An input that samples share gets its gradients
from nodes that keep them apart (``shared.py``), and they arrive batched. Vectors that are batched
at a level of their own (the rows of a Jacobian) pass through the graph as they are, since rules
are made of ops.
"""

from __future__ import annotations

from typing import Any

from ..autograd import given_ops
from ..autograd.engine import gradients_of, ones_of, zeros_of
from ..tensor import Tensor
from .batched import labeled, levels_of, real, value_of
from .levels import Level, inside

Found = tuple[Tensor | None, ...]


def grad_in_vmap(
    roots: list[Tensor],
    targets: list[Tensor],
    given: Any,
    retain: bool | None,
    create: bool,
    allow_unused: bool | None,
    materialize: bool,
) -> Found:
    """Compute what ``autograd.grad`` returns, for each sample of the ``vmap`` we are in.

    Args:
        roots: Outputs, batched or not.
        targets: Inputs, batched or not.
        given: The gradient arriving at each output, in one sample's shape, or None.
        retain: Keep saved values.
        create: Record the backward.
        allow_unused: Return None for an input without effect.
        materialize: Return zeros for it.
    """
    if isinstance(given, Tensor) or given is None:
        given = [given] * len(roots) if given is None else [given]
    vectors: list[Any] = []
    for k, (y, g) in enumerate(zip(roots, given, strict=False)):
        levels = levels_of(y)
        if g is None:
            if levels and y.numel() != 1:
                raise RuntimeError(
                    "grad can be implicitly created only for scalar outputs; got shape "
                    f"{tuple(y.shape)} in each sample. Reduce it with .sum(), or pass "
                    "grad_outputs=."
                )
            g = ones_of(value_of(y)._spec) if levels else None
        elif isinstance(g, Tensor):
            if g._spec.shape != y._spec.shape:
                raise RuntimeError(
                    f"Mismatch in shape: grad_output[{k}] has a shape of {tuple(g.shape)} and "
                    f"output[{k}] has a shape of {tuple(y.shape)}. They must be equal."
                )
            g = real(g, levels)
        vectors.append(g)
    values = [value_of(x) for x in targets]
    found = gradients_of(
        [value_of(y) for y in roots], values, vectors, retain, create, allow_unused, materialize
    )
    return tuple(
        None if g is None else labeled(g, levels_of(x)) for g, x in zip(found, targets, strict=True)
    )


def batched_grad(
    roots: list[Tensor],
    targets: list[Tensor],
    vectors: list[Tensor],
    retain: bool | None,
    create: bool,
    allow_unused: bool | None,
    materialize: bool,
) -> Found:
    """Compute gradients for many vectors in one pass: ``autograd.grad(is_grads_batched=True)``.

    Args:
        roots: Outputs.
        targets: Inputs.
        vectors: One tensor per output, of shape (vectors, *output).
        retain: Keep saved values.
        create: Record the backward.
        allow_unused: Return None for an input without effect.
        materialize: Return zeros for it.

    Returns:
        One tensor per input, of shape (vectors, *input).
    """
    count = len(vectors[0])
    if count == 0:
        return tuple(zeros_of(t._spec.like((0, *t.shape))) for t in targets)
    level = Level(count, "same")
    with inside((level,)):
        given = [labeled(v, (level,)) for v in vectors]
        found = grad_in_vmap(roots, targets, given, retain, create, allow_unused, materialize)
        return tuple(None if g is None else real(g, (level,)) for g in found)


given_ops.grad_in_vmap = grad_in_vmap
given_ops.batched_grad = batched_grad
