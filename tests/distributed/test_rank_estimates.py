"""Estimates of ranks: what each takes is predicted to the byte, by any process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lowtide as lt
import lowtide.distributed as dist
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.distributed.optim import ZeroRedundancyOptimizer
from lowtide.estimate_command import estimate as estimate_script
from lowtide.nn.parallel import DistributedDataParallel
from lowtide.profiling import estimate
from lowtide.utils.checkpoint import checkpoint

from .ranks import results


class Net(nn.Module):
    """Layers of uneven sizes, one of them checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(70, 1100)
        self.norm = nn.LayerNorm(1100)
        self.second = nn.Linear(1100, 900)
        self.last = nn.Linear(900, 10)

    def forward(self, x: Any) -> Any:
        x = checkpoint(lambda t: F.gelu(self.norm(self.first(t))), x, use_reentrant=False)
        return self.last(F.relu(self.second(x)))


def ddp() -> tuple[Any, Any]:
    model = DistributedDataParallel(Net())
    return model, optim.AdamW(model.parameters(), lr=1e-3)


def zero() -> tuple[Any, Any]:
    model = DistributedDataParallel(Net())
    return model, ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, lr=1e-3)


KINDS = {"ddp": ddp, "zero": zero}


def step_of(made: tuple[Any, Any]) -> Callable[[], None]:
    model, optimizer = made

    def step() -> None:
        x, y = lt.randn(512, 70), lt.randint(0, 10, (512,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def measured(step: Callable[[], None], times: int) -> list[tuple[int, dict[str, int]]]:
    found = []
    for _ in range(times):
        lt.reset_peak_memory_stats()
        step()
        found.append((lt.max_memory_allocated(), lt.memory_stats()["peak_by_role"]))
    return found


@pytest.mark.quick(2)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_each_ranks_peak_is_predicted_to_the_byte(kind: str, size: int) -> None:
    def rank_of(rank: int, size: int) -> Any:
        step = step_of(KINDS[kind]())
        before = lt.memory_allocated()
        found = estimate(step)
        assert lt.memory_allocated() == before
        real = measured(step, 3)
        assert found.peak_bytes == real[0][0]
        assert found.peak_roles == real[0][1]
        assert found.steady_bytes == max(peak for peak, _ in real[1:])
        return before, real, found.devices[0].start_bytes

    ranks = results(size, rank_of)
    base = lt.memory_allocated()  # of this process, which no rank has
    for rank, (before, real, start) in enumerate(ranks):
        assert start == before
        dist.init_process_group("fake", rank=rank, world_size=size)
        try:
            step = step_of(KINDS[kind]())
            found = estimate(step)
            assert found.peak_bytes - found.devices[0].start_bytes == real[0][0] - before
            more = max(peak for peak, _ in real[1:]) - before
            assert found.steady_bytes - found.devices[0].start_bytes == more
        finally:
            dist.destroy_process_group()
            del step
    assert lt.memory_allocated() == base
    assert size == 1 or ranks[0][1][1][1]["communication"] > 0


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("kind", KINDS)
def test_any_rank_is_estimated_from_one_process(kind: str, no_variables: None) -> None:
    dist.init_process_group("fake", rank=0, world_size=1)
    try:
        step = step_of(KINDS[kind]())
        asked = [estimate(step, world_size=3, rank=rank) for rank in range(3)]
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()
    for rank, found in enumerate(asked):
        dist.init_process_group("fake", rank=rank, world_size=3)
        try:
            alone = estimate(step_of(KINDS[kind]()))
        finally:
            dist.destroy_process_group()
        assert found.world == (rank, 3)
        assert str(found).startswith(f"rank {rank} of 3:\n")
        for ask in ("peak_bytes", "steady_bytes"):
            more = getattr(found, ask) - found.devices[0].start_bytes
            assert more == getattr(alone, ask) - alone.devices[0].start_bytes
        assert found.peak_roles["optimizer"] == alone.peak_roles["optimizer"]


def test_a_step_that_makes_its_group_finds_the_imagined_one(no_variables: None) -> None:
    def step() -> None:
        dist.init_process_group("gloo")
        assert (dist.get_rank(), dist.get_world_size()) == (700, 1024)
        assert dist.get_node_local_rank() == 700
        step_of(zero())()

    found = estimate(step, world_size=1024, rank=700)
    assert found.peak_roles["parameter"] > 0
    assert not dist.is_initialized()


def test_ranks_that_do_not_exist_are_refused(no_variables: None) -> None:
    with pytest.raises(ValueError, match="rank 4 of world_size 4 does not exist"):
        estimate(lambda: None, world_size=4, rank=4)
    with pytest.raises(ValueError, match="rank 2 of how many"):
        estimate(lambda: None, rank=2)
    dist.init_process_group("fake", rank=0, world_size=4)
    try:
        dist.new_group([0, 1])
        with pytest.raises(ValueError, match="groups within the world of 4"):
            estimate(lambda: None, world_size=2)
    finally:
        dist.destroy_process_group()


def test_state_of_another_rank_is_refused() -> None:
    dist.init_process_group("fake", rank=0, world_size=2)
    try:
        step = step_of(zero())
        step()
        with pytest.raises(RuntimeError, match="Estimate before the first step"):
            estimate(step, world_size=4, rank=1)
        assert estimate(step).peak_bytes > 0
    finally:
        dist.destroy_process_group()


def test_small_tensors_of_imagined_ranks_are_this_ranks() -> None:
    dist.init_process_group("fake", rank=2, world_size=5)
    try:
        t = lt.tensor([1.0, 2.0])
        dist.all_reduce(t)
        assert t.tolist() == [5.0, 10.0]
        dist.all_reduce(t, dist.ReduceOp.AVG)
        assert t.tolist() == [5.0, 10.0]
        every = [lt.zeros(2) for _ in range(5)]
        dist.all_gather(every, t)
        assert all(one.tolist() == [5.0, 10.0] for one in every)
        objects: list[Any] = [None] * 5
        dist.all_gather_object(objects, {"rank": 2})
        assert objects == [{"rank": 2}] * 5
        dist.broadcast(t, 0)
        assert t.tolist() == [5.0, 10.0]
        dist.send(t, 1)
        assert dist.recv(t, 4) == 4
        assert dist.get_backend() == "fake"
        some = dist.new_group([1, 2, 4])
        assert (dist.get_rank(some), dist.get_world_size(some)) == (1, 3)
        dist.barrier(some)
    finally:
        dist.destroy_process_group()


def test_an_estimate_of_a_rank_leaves_its_messages_alone() -> None:
    def rank_of(rank: int, size: int) -> float:
        t = lt.full((1 << 20,), float(rank + 1))
        work = dist.all_reduce(t, async_op=True)
        assert work is not None
        found = estimate(lambda: dist.all_reduce(lt.ones(1 << 18)))
        assert found.peak_roles["communication"] > 0
        work.wait()
        return float(t.sum())

    assert results(2, rank_of) == [3.0 * (1 << 20)] * 2


SCRIPT = """
import lowtide as lt
import lowtide.distributed as dist
from lowtide import nn, optim
from lowtide.estimate_command import estimate as estimate_script

dist.init_process_group()
model = nn.parallel.DistributedDataParallel(nn.Linear(300, 400))
optimizer = optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(lt.ones(10, 300)).sum().backward()
    optimizer.step()
"""


def test_a_scripts_rank_is_estimated(tmp_path: Path, no_variables: None) -> None:
    script, out = tmp_path / "train.py", tmp_path / "figures.json"
    script.write_text(SCRIPT)
    assert estimate_script(str(script), [], str(out), world=(1, 3)) == 0
    figures = json.loads(out.read_text())
    assert (figures["rank"], figures["world_size"]) == (1, 3)
    by_role = figures["devices"][0]["peak_bytes_by_role"]
    block = -(-300 * 400 // 3) * 4  # a third of the weight from each of two other ranks
    aligned = -(-2 * block // 64) * 64
    assert by_role["communication"] == 2 * aligned
    assert estimate_script(str(script), [], None, world=(3, 3)) == 2
