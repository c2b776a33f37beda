"""rank_table: how many ranks a plain step wants, and which way to share it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import lowtide as lt
import lowtide.distributed as dist
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.distributed.fsdp import fully_shard
from lowtide.distributed.optim import ZeroRedundancyOptimizer
from lowtide.nn.parallel import DistributedDataParallel
from lowtide.profiling import rank_table

from .ranks import results


def net() -> Any:
    lt.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(150, 601), nn.GELU(), nn.Linear(601, 150)) for _ in range(3)]
    return nn.Sequential(nn.Linear(20, 150), nn.Sequential(*layers), nn.Linear(150, 5))


def step_of(model: Any, optimizer: Any) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(lt.randn(256, 20)), lt.randint(0, 5, (256,)))
        loss.backward()
        optimizer.step()

    return step


def by_hand(way: str) -> Callable[[], None]:
    model = net()
    if way == "fully_shard":
        for layer in model[1]:
            fully_shard(layer)
        fully_shard(model)
        return step_of(model, optim.AdamW(model.parameters()))
    wrapped = DistributedDataParallel(model)
    if way == "ZeroRedundancyOptimizer":
        return step_of(wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), optim.AdamW))
    return step_of(wrapped, optim.AdamW(wrapped.parameters()))


WAYS = ("DistributedDataParallel", "ZeroRedundancyOptimizer", "fully_shard")


@pytest.mark.deep
@pytest.mark.parametrize("stepped", [False, True])
def test_figures_are_those_of_the_real_thing(stepped: bool) -> None:
    def asked(rank: int, size: int) -> list[Any]:
        model = net()
        optimizer = optim.AdamW(model.parameters())
        step = step_of(model, optimizer)
        if stepped:
            step()
            optimizer.zero_grad()
        before = lt.memory_allocated()
        found = rank_table(step, world_sizes=(1, 2, 3))
        assert lt.memory_allocated() == before
        return found.cells

    def real(rank: int, size: int) -> dict[str, int]:
        found = {}
        for way in WAYS:
            step = by_hand(way)
            lt.reset_peak_memory_stats()
            for _ in range(3):
                step()
            found[way] = lt.max_memory_allocated()
            del step
        return found

    (cells,) = results(1, asked)
    assert all(c.why == "" for c in cells)
    assert all(sum(c.peak_roles.values()) == c.peak_bytes for c in cells)
    found = {(c.strategy, c.world_size): c.peak_bytes for c in cells}
    assert list(found) == [(way, n) for way in WAYS for n in (1, 2, 3)]
    for size in (1, 2, 3):
        ranks = results(size, real)
        for way in WAYS:
            assert found[way, size] == max(peaks[way] for peaks in ranks), (way, size)


@pytest.mark.deep
def test_the_fewest_ranks_that_fit_are_named() -> None:
    model = net()
    step = step_of(model, optim.AdamW(model.parameters()))
    plain = rank_table(step, world_sizes=(1, 4))
    assert plain.best is None
    assert plain.code == ""
    full = plain.cell("DistributedDataParallel", 1).peak_bytes
    shared = plain.cell("fully_shard", 4).peak_bytes
    assert full is not None
    assert shared is not None
    assert shared < full
    found = rank_table(step, world_sizes=(1, 4), limit=shared)
    best = found.best
    assert best is not None
    assert best.peak_bytes is not None
    assert best.peak_bytes <= shared
    text = str(found)
    assert "peak of the fullest rank" in text
    assert "The fewest:" in text
    assert best.strategy in found.code
    assert rank_table(step, world_sizes=(1,), limit=full).best == found.best or full > shared
    assert rank_table(step, world_sizes=(1, 2), limit="1KiB").best is None
    assert str(rank_table(step, world_sizes=(1, 2), limit="1KiB")).endswith(
        "Nothing fits 1.00 KiB a rank."
    )


def test_optimizers_that_need_all_of_a_parameter_are_named() -> None:
    model = nn.Sequential(nn.Linear(30, 40, bias=False), nn.Linear(40, 30, bias=False))
    muon = optim.Muon(model.parameters())

    def step() -> None:
        muon.zero_grad()
        model(lt.randn(5, 30)).sum().backward()
        muon.step()

    found = rank_table(step, world_sizes=(2,))
    cell = found.cell("fully_shard", 2)
    assert cell.peak_bytes is None
    assert "Muon: weight is sharded" in cell.why
    assert "not tried: fully_shard: ValueError: Muon" in str(found)
    assert found.cell("ZeroRedundancyOptimizer", 2).peak_bytes is not None


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="reaches no module with a parameter"):
        rank_table(lambda: None)
    with pytest.raises(TypeError, match="takes a function"):
        rank_table(3)  # type: ignore[arg-type]
    dist.init_process_group("fake", rank=0, world_size=2)
    try:
        with pytest.raises(ValueError, match="one of several ranks already"):
            rank_table(by_hand("fully_shard"))
    finally:
        dist.destroy_process_group()


def test_an_error_of_the_step_is_its_own() -> None:
    model = net()

    def step() -> None:
        model(lt.randn(2, 21))

    with pytest.raises(RuntimeError, match="linear contracts"):
        rank_table(step)
