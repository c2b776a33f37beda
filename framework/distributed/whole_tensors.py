"""Tensors of all ranks, gathered from their shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..modes import no_grad
from ..ops.creation.fill import empty
from ..tensor import Tensor
from . import collectives
from .shards import Shard, shard_of


def gathered(rows: Tensor, shard: Shard) -> Tensor:
    """Return the tensor of all ranks, given this rank's rows of it; all ranks call it."""
    with no_grad():
        out: Any = empty(shard.shape, dtype=rows.dtype, device=rows.device)
        if shard.group.size() == 1:
            return out.copy_(rows)  # type: ignore[no-any-return]
        parts, own = shard.parts(out.view(-1)), rows.detach().reshape(-1)
        collectives.all_gather_parts([parts], [own], shard.group, shard.name)
        return out  # type: ignore[no-any-return]


def gathered_state(state: Any) -> Any:
    """Return a state in which shards are replaced by the tensors of all ranks, which all call it.

    Raises:
        ValueError: A tensor belongs to a shard, and is not cut as it is.
    """
    if isinstance(state, Tensor):
        shard = shard_of(state)
        if shard is None:
            return state.detach()
        if tuple(state.shape[1:]) != shard.shape[1:]:
            raise ValueError(
                f"{shard.name}: a state of shape {tuple(state.shape)} is not cut as the parameter "
                f"of shape {shard.shape} is, and cannot be gathered."
            )
        return gathered(state, shard)
    if isinstance(state, Mapping):
        return {key: gathered_state(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(gathered_state(value) for value in state)
    return state
