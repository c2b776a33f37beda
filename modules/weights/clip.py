"""Gradient clipping, by total norm or by value.

The norm is computed tensor by tensor, so no temporary is as large as all gradients together; and it
stays a tensor, so nothing waits for the device unless ``error_if_nonfinite`` asks it. Of shards it
is the norm of the gradients of all ranks, which all call it. On the CPU gradients are scaled all or
not at all: what takes memory comes before the first write.
"""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Iterable
from typing import Any

from ...framework.data_dependence import value_or_hint
from ...framework.distributed import collectives
from ...framework.distributed.collectives import ReduceOp
from ...framework.distributed.shards import shard_of
from ...framework.interrupts import defer_interrupts
from ...framework.kernels.formula.functions import maximum, minimum
from ...framework.kernels.formula.update import update
from ...framework.modes import no_grad
from ...framework.ops.creation.from_data import tensor
from ...framework.ops.linalg.norms import vector_norm
from ...framework.ops.manipulation.cat import stack
from ...framework.tensor import Tensor
from ...framework.updates import HOSTS, planned_update, scale

Tensors = Tensor | Iterable[Tensor]


def clip_grad_norm_(
    parameters: Tensors,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Clip the gradients of parameters to a maximal total norm, in place.

    Args:
        parameters: One tensor, or several; those without a gradient do not count.
        max_norm: What the norm shall not pass.
        norm_type: The p of the norm; may be ``inf``.
        error_if_nonfinite: Raise instead of scaling by a norm that is NaN or infinite.
        foreach: Accepted and ignored.

    Returns:
        0-d tensor: the norm of all gradients, as one vector, before clipping.

    Raises:
        RuntimeError: ``error_if_nonfinite``, and the norm is not finite; or an optimizer fused into
            backward has used the gradients already.
    """
    parameters = _listed(parameters)
    _refuse_used(parameters)
    total = get_total_norm(_gradients(parameters), norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(parameters, max_norm, total, foreach)
    return total


@no_grad()
def get_total_norm(
    tensors: Tensors,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Compute the norm of tensors as if they were one vector.

    Args:
        tensors: One tensor, or several.
        norm_type: The p of the norm; may be ``inf``.
        error_if_nonfinite: Raise if it is NaN or infinite.
        foreach: Accepted and ignored.

    Returns:
        0-d tensor, on the first one's device; 0.0 of no tensors.

    Raises:
        RuntimeError: ``error_if_nonfinite``, and the norm is not finite.
    """
    norm_type = float(norm_type)
    found = _norms(_listed(tensors), norm_type)
    if not found:
        return tensor(0.0)
    total: Tensor = vector_norm(stack([n.to(found[0].device) for n in found]), norm_type)
    if error_if_nonfinite and not bool(total.isfinite()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, "
            "so it cannot be clipped. To disable this error and scale the gradients by the "
            "non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


def _norms(tensors: list[Tensor], p: float) -> list[Tensor]:
    # The norm of each tensor: of a shard, that of the tensor of all ranks.
    found: dict[int, Tensor] = {}
    by_group: dict[Any, list[int]] = {}
    for k, t in enumerate(tensors):
        shard = shard_of(t)
        if shard is None or shard.group.size() == 1:
            found[k] = vector_norm(t, p)
        else:
            by_group.setdefault(shard.group, []).append(k)
    op = {math.inf: ReduceOp.MAX, -math.inf: ReduceOp.MIN}.get(p, ReduceOp.SUM)
    for group, which in by_group.items():
        parts = stack([_part_of_norm(tensors[k], p) for k in which])
        collectives.all_reduce(parts, op, group)
        if op is ReduceOp.SUM and p != 0:
            parts = parts.pow(1 / p)
        found.update(zip(which, parts.unbind(), strict=True))
    return [found[k] for k in range(len(tensors))]


def _part_of_norm(t: Tensor, p: float) -> Tensor:
    # What a shard contributes: no row contributes what leaves the others' alone.
    if t.numel() == 0:
        return tensor(math.inf if p == -math.inf else 0.0, dtype=t.dtype, device=t.device)
    norm: Tensor = vector_norm(t, p)
    return norm if p == 0 or math.isinf(p) else norm.pow(p)


@no_grad()
def clip_grads_with_norm_(
    parameters: Tensors, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Clip the gradients of parameters to ``max_norm``, given their total norm.

    Args:
        parameters: One tensor, or several; those without a gradient do not count.
        max_norm: What the norm shall not pass.
        total_norm: What the norm is.
        foreach: Accepted and ignored.
    """
    factor = (float(max_norm) / (total_norm + 1e-6)).clamp(max=1.0)
    gradients = _gradients(_listed(parameters))
    factors: dict[Any, Any] = {}
    for g in gradients:
        if g.device not in factors:
            factors[g.device] = factor.to(g.device)
    _write([_scaling(g, factors[g.device]) for g in gradients])


@no_grad()
def clip_grad_value_(parameters: Tensors, clip_value: float, foreach: bool | None = None) -> None:
    """Clip each element of the gradients of parameters to [-clip_value, clip_value].

    Args:
        parameters: One tensor, or several; those without a gradient do not count.
        clip_value: The largest magnitude.
        foreach: Accepted and ignored.
    """
    limit = float(clip_value)
    _write([_clamping(g, limit) for g in _gradients(_listed(parameters))])


# All gradients are written or none: these return calls that take no memory on the CPU.


def _scaling(g: Any, factor: Any) -> tuple[Any, ...]:
    if g.device.type not in HOSTS or (factor.dtype is g.dtype and not g.dtype.is_half):
        return g.mul_, factor
    value = 1.0 if factor.is_meta else value_or_hint(factor, 1.0)
    if g.dtype.is_half:
        return planned_update(scale, (g,), {"factor": value})
    return g.mul_, value


def _clamping(g: Any, limit: float) -> tuple[Any, ...]:
    if g.device.type in HOSTS and g.dtype.is_half:
        return planned_update(clamp, (g,), {"limit": limit})
    return g.clamp_, -limit, limit


@update
def clamp(g: Any, *, limit: Any) -> Any:
    """Keep ``g`` between ``-limit`` and ``limit``."""
    return minimum(maximum(g, -limit), limit)


def _write(calls: list[tuple[Any, ...]]) -> None:
    with defer_interrupts():
        for write, *arguments in calls:
            write(*arguments)


def _listed(tensors: Tensors) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        return [tensors]
    found = list(tensors)
    if not found and isinstance(tensors, types.GeneratorType):
        warnings.warn(
            "`parameters` is an empty generator, no gradient clipping will occur.", stacklevel=3
        )
    return found


def _refuse_used(parameters: list[Tensor]) -> None:
    for p in parameters:
        for hook in (p._extra or {}).get("post_accumulate", {}).values():
            if getattr(hook, "updates", False):
                raise RuntimeError(
                    "clip_grad_norm_ needs all gradients at once, but an optimizer fused into "
                    "backward uses and frees each as soon as it is complete. Call remove() on the "
                    "handle of fuse_into_backward, or clip one gradient at a time with "
                    "p.register_hook(lambda g: g.clamp(-1, 1))."
                )


def _gradients(parameters: list[Tensor]) -> list[Any]:
    return [p.grad for p in parameters if p.grad is not None]


def clip_grad_norm(
    parameters: Tensors,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Do what :func:`clip_grad_norm_` does, under its old name."""
    warnings.warn(
        "`nn.utils.clip_grad_norm` is an old name: use `nn.utils.clip_grad_norm_`.",
        FutureWarning,
        stacklevel=2,
    )
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


__all__ = [
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
]
