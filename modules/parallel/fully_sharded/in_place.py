"""``fully_shard`` of a model that is there already, with its optimizers: for estimates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ....framework.distributed.strategies import Strategy, declare, rank_zero
from ....framework.memory.ledger import OPTIMIZER
from ....framework.modes import no_grad
from ....framework.tensor import Tensor
from .fully_shard import fully_shard


def layers_of(model: Any) -> list[Any]:
    """Return the modules to shard one by one: those of stacks of modules alike, else the parts."""
    found = list(_stacked(model))
    if not found:
        found = list(model.children())
    return [m for m in found if any(True for _ in m.parameters())]


def _stacked(module: Any) -> Iterator[Any]:
    children = list(module.children())
    alike = len(children) > 1 and len({type(m) for m in children}) == 1
    if alike and hasattr(module, "__getitem__"):
        yield from children
        return
    for child in children:
        yield from _stacked(child)


def _shard_in_place(models: Sequence[Any], optimizers: Sequence[Any]) -> Any:
    for model in models:
        for layer in layers_of(model):
            fully_shard(layer)
        fully_shard(model)
    for optimizer in optimizers:
        groups, optimizer.param_groups, optimizer.elements = optimizer.param_groups, [], 0
        for group in groups:
            shards = [(p._extra or {}).get("sharded as", p) for p in group["params"]]
            optimizer.add_param_group({**group, "params": shards})
        for p in list(optimizer.state):
            shard = (p._extra or {}).get("sharded as")
            if shard is not None:
                state = optimizer.state.pop(p)
                optimizer.state[shard] = {k: _rows(v, p, shard) for k, v in state.items()}


def _rows(value: Any, p: Tensor, shard: Any) -> Any:
    if not isinstance(value, Tensor) or value.shape != p.shape:
        return value
    first, last = shard.shard.own
    with no_grad():
        rows = value[first:last].clone()
    rows._storage.set_role(OPTIMIZER)
    return rows


declare(
    Strategy(
        2,
        "fully_shard",
        _shard_in_place,
        rank_zero,
        "for layer in layers:  # of the model, before the optimizer is made\n"
        "    lowtide.distributed.fsdp.fully_shard(layer)\n"
        "lowtide.distributed.fsdp.fully_shard(model)",
    )
)
