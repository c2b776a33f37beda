"""A compiled model of sharded or replicated modules: the modules inside are replayed."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.distributed.fsdp import full_state_dict
from lowtide.nn.parallel import DistributedDataParallel

from .ranks import results
from .test_fully_shard import Net, same, sharded, train


def parts_of(function: Any) -> list[Any]:
    return [function, *(p for part in function.parts() for p in parts_of(part))]


@pytest.mark.quick(1)
@pytest.mark.parametrize("reshard", [None, True, False])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_blocks_of_a_sharded_model_are_replayed(size: int, reshard: bool | None) -> None:
    def rank_of(rank: int, size: int) -> Any:
        plain, other = sharded(Net(), reshard_after_forward=reshard), None
        other = sharded(Net(), reshard_after_forward=reshard)
        compiled = lt.compile(other)
        losses = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lt.CaptureWarning)
            for net, owner in ((plain, plain), (compiled, other)):
                optimizer = optim.AdamW(owner.parameters(), lr=1e-2)
                losses.append(train(net, optimizer, rank, 12))
        assert losses[0] == losses[1]
        assert same(full_state_dict(plain), full_state_dict(other))
        return [
            p.replays for p in parts_of(compiled._compiled) if p._name == "FSDPBlock"
        ], compiled._compiled.explain()

    for replays, text in results(size, rank_of):
        assert [n >= 4 for n in replays] == [True] * 3, text


class Judged(nn.Module):
    """A net whose second block depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8))
        self.second = copy.deepcopy(self.first)
        self.seen: list[float] = []

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        self.seen.append(h.mean().item())
        return self.second(h)


@pytest.mark.parametrize("outside", [True, False])
def test_a_replicated_model_in_parts_gets_the_same_gradients(outside: bool) -> None:
    def rank_of(rank: int, size: int) -> Any:
        lt.manual_seed(0)
        nets: list[Any] = [Judged()]
        nets.append(copy.deepcopy(nets[0]))
        plain = DistributedDataParallel(nets[0])
        other: Any = DistributedDataParallel(nets[1])
        if outside:
            other = lt.compile(other)
        else:
            other.module.compile()
        function = other._compiled if outside else other.module._call_hooks.compiled
        found: list[Any] = [[], []]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lt.CaptureWarning)
            for k in range(14):
                lt.manual_seed(10 * k + rank)
                x = lt.randn(4, 8)
                for net, owner, notes in zip((plain, other), nets, found, strict=True):
                    owner.zero_grad()
                    loss = net(x).square().mean()
                    loss.backward()
                    notes.append((loss.item(), [p.grad.tolist() for p in owner.parameters()]))
        assert found[0] == found[1]
        assert nets[0].seen == nets[1].seen
        pieces = [p for p in parts_of(function) if p._name.startswith("Judged.forward (")]
        return [p.replays for p in pieces], function.explain()

    for replays, text in results(2, rank_of):
        assert [n >= 4 for n in replays] == [True] * 2, text
