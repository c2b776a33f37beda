"""ZeroRedundancyOptimizer: each rank keeps a part of the state, and the model is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.distributed as dist
import lowtide.nn.functional as F
from lowtide import optim
from lowtide.distributed.optim import ZeroRedundancyOptimizer
from lowtide.nn.parallel import DistributedDataParallel

from .ranks import outcomes, results
from .test_data_parallel import batch, equal, network, values


def groups(model: Any) -> list[dict[str, Any]]:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    return [{"params": matrices}, {"params": vectors, "lr": 5e-3}]


def stepped(model: Any, optimizer: Any, rank: int, steps: range) -> None:
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in steps:
        optimizer.zero_grad()
        x, y = batch(step, rank)
        F.cross_entropy(model(x), y).backward()
        lt.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("kind", [optim.AdamW, optim.SGD, optim.Adagrad])
@pytest.mark.parametrize("size", [2, 3])
def test_parameters_are_those_of_the_whole_optimizer_bit_for_bit(kind: Any, size: int) -> None:
    options = {"momentum": 0.9} if kind is optim.SGD else {}

    def rank_of(rank: int, size: int) -> list[Any]:
        found = []
        for shared in (False, True):
            model = network(60)
            wrapped = DistributedDataParallel(model)
            if shared:
                optimizer = ZeroRedundancyOptimizer(groups(model), kind, lr=1e-2, **options)
            else:
                optimizer = kind(groups(model), lr=1e-2, **options)
            stepped(wrapped, optimizer, rank, range(4))
            found.append((values(model), len(optimizer.state)))
        assert equal(found[0][0], found[1][0])
        return [found[1][0], found[0][1], found[1][1]]

    parts = results(size, rank_of)
    for found in parts:
        assert equal(found[0], parts[0][0])
    assert sum(part for _, _, part in parts) == parts[0][1] == 8


def test_state_takes_each_rank_its_part_of_the_bytes() -> None:
    def rank_of(rank: int, size: int) -> tuple[int, int]:
        model = network(400)
        total = sum(p.nbytes for p in model.parameters())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, lr=1e-2)
        for p in model.parameters():
            p.grad = lt.ones_like(p)
        before = lt.memory_allocated()
        optimizer.step()
        own = sum(
            p.nbytes
            for p, owner in zip(model.parameters(), optimizer.owners(), strict=True)
            if owner == rank
        )
        assert lt.memory_allocated() - before == 2 * own
        return own, total

    found = results(2, rank_of)
    assert sum(own for own, _ in found) == found[0][1]
    assert max(own for own, _ in found) < found[0][1]


def test_state_is_saved_whole_and_loaded_by_any_number_of_ranks(tmp_path: Any) -> None:
    path = tmp_path / "optimizer.safetensors"

    def saving(rank: int, size: int) -> list[Any]:
        model = network(60)
        optimizer = ZeroRedundancyOptimizer(groups(model), optim.AdamW, lr=1e-2)
        stepped(DistributedDataParallel(model), optimizer, 0, range(2))
        with pytest.raises(RuntimeError, match="Call consolidate_state_dict"):
            optimizer.state_dict()
        optimizer.consolidate_state_dict(to=1)
        if rank == 1:
            lt.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        else:
            with pytest.raises(RuntimeError, match="Call consolidate_state_dict"):
                optimizer.state_dict()
        stepped(DistributedDataParallel(model), optimizer, 0, range(2, 4))
        return values(model)

    def loading(rank: int, size: int) -> list[Any]:
        model = network(60)
        kept = lt.load(path)
        model.load_state_dict(kept["model"])
        optimizer: Any
        if size > 1:
            optimizer = ZeroRedundancyOptimizer(groups(model), optim.AdamW, lr=1e-2)
        else:
            optimizer = optim.AdamW(groups(model), lr=1e-2)
        optimizer.load_state_dict(kept["optimizer"])
        wrapped = DistributedDataParallel(model) if size > 1 else model
        stepped(wrapped, optimizer, 0, range(2, 4))
        return values(model)

    expected = results(2, saving)[0]
    for size in (1, 2, 3):
        for found in results(size, loading):
            # Two equal gradients and their mean are equal; of three the mean may round.
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_ranks_with_gradients_of_different_parameters_are_told() -> None:
    def rank_of(rank: int, size: int) -> None:
        layer = lt.nn.Linear(3, 2)
        optimizer = ZeroRedundancyOptimizer(layer.parameters(), optim.SGD, lr=0.1)
        (layer.bias if rank else layer.weight).grad = lt.ones_like(
            layer.bias if rank else layer.weight
        )
        optimizer.step()

    for found in outcomes(2, rank_of):
        assert "Ranks disagree" in repr(found)


def test_what_is_refused() -> None:
    layer = lt.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="has not been initialized"):
        ZeroRedundancyOptimizer(layer.parameters(), optim.SGD, lr=0.1)
    dist.init_process_group("gloo", rank=0, world_size=1)
    try:
        with pytest.raises(NotImplementedError, match="overlap_with_ddp"):
            ZeroRedundancyOptimizer(layer.parameters(), optim.SGD, overlap_with_ddp=True, lr=0.1)
        alone = ZeroRedundancyOptimizer(layer.parameters(), optim.SGD, lr=0.1)
        seen = []
        alone.register_step_post_hook(lambda *_: seen.append("stepped"))
        layer(lt.ones(1, 1)).sum().backward()
        assert alone.step(lambda: layer(lt.ones(1, 1)).sum()) is not None
        assert alone.state_dict() == alone.optim.state_dict()
        assert seen == ["stepped"]
        assert "SGD" in repr(alone)
        alone.add_param_group({"params": [lt.nn.Parameter(lt.ones(2))], "lr": 0.2})
        assert [group["lr"] for group in alone.param_groups] == [0.1, 0.2]
        assert alone.owners() == [0, 0, 0]
    finally:
        dist.destroy_process_group()
