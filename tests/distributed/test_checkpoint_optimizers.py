"""States of optimizers in checkpoints of several ranks: in one rank each, or not there yet."""

from __future__ import annotations

from typing import Any

import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.distributed.checkpoint import CheckpointDirectory
from lowtide.distributed.optim import ZeroRedundancyOptimizer
from lowtide.nn.parallel import DistributedDataParallel

from .ranks import results
from .test_checkpoint import whole
from .test_checkpoint_directory import Run
from .test_fully_shard import Net, same, train


class ZeroRun(Run):
    """A run whose optimizer state lies in one rank each."""

    def __init__(self, size: int, rank: int, model: Any = Net) -> None:
        super().__init__(1, rank)
        self.model = DistributedDataParallel(model())
        self.optimizer = ZeroRedundancyOptimizer(groups(self.model), optim.AdamW, lr=1e-2)
        self.schedule = optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)


def groups(model: Any) -> list[dict[str, Any]]:
    """Parameters in two groups, in another order than the model's."""
    every = list(model.parameters())
    return [{"params": every[1::2]}, {"params": every[::2], "lr": 5e-3}]


@pytest.mark.quick(2)
@pytest.mark.parametrize("saving", ["save", "async_save"])
@pytest.mark.parametrize("sizes", [(2, 3), (3, 1), (1, 2), (4, 2)])
def test_state_that_lies_in_one_rank_each_is_restored_by_any_number(sizes, saving, tmp_path):
    def save(rank: int, size: int) -> Any:
        run = ZeroRun(size, rank)
        for _ in range(2):
            train(run.model, run.optimizer, rank, 1)
            run.schedule.step()
        found = getattr(CheckpointDirectory(tmp_path), saving)(2, **run.objects())
        if saving == "async_save":
            found.result()
        return run.whole(), len(run.optimizer.state)

    def restore(rank: int, size: int) -> Any:
        run = ZeroRun(size, rank)
        info = CheckpointDirectory(tmp_path).restore(**run.objects())
        return info, run.whole(), len(run.optimizer.state)

    before = results(sizes[0], save)
    count = sum(held for _, held in before)
    assert count == len(list(Net().parameters()))
    after = results(sizes[1], restore)
    for info, found, _ in after:
        assert info == {"step": 2}
        same(found, before[0][0])
    assert sum(held for *_, held in after) == count


def test_a_resumed_run_with_state_in_one_rank_each_has_the_same_bits(tmp_path):
    def rank_of(rank: int, size: int) -> Any:
        found = []
        for stops in ([4], [1, 3, 4]):
            checkpoints = CheckpointDirectory(tmp_path / str(len(stops)))
            for stop in stops:
                lt.manual_seed(7)
                run = ZeroRun(size, rank)
                info = checkpoints.restore(**run.objects())
                for step in range(info["step"] if info else 0, stop):
                    train(run.model, run.optimizer, rank + 10 * step, 1)
                    run.schedule.step()
                    checkpoints.save(step + 1, **run.objects())
            found.append(run.whole())
        return found

    for once, thrice in results(2, rank_of):
        same(once, thrice)


def test_more_ranks_than_parameters_save_and_restore(tmp_path):
    def rank_of(rank: int, size: int) -> Any:
        found = []
        for _ in range(2):
            model = DistributedDataParallel(nn.Linear(3, 2, bias=False))
            optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.Adam, lr=0.1)
            checkpoints = CheckpointDirectory(tmp_path)
            if checkpoints.restore(optimizer=optimizer, model=model) is None:
                model(lt.ones(1, 3)).sum().backward()
                optimizer.step()
                checkpoints.save(1, model=model, optimizer=optimizer)
            found.append((whole(model, optimizer), len(optimizer.state)))
        return found

    for rank, (first, second) in enumerate(results(3, rank_of)):
        same(first[0], second[0])
        assert first[1] == second[1] == (rank == 0)


def test_ranks_without_a_parameter_restore_what_fewer_have_saved(tmp_path):
    def rank_of(rank: int, size: int) -> Any:
        model = DistributedDataParallel(nn.Linear(3, 2, bias=False))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.Adam, lr=0.1)
        if CheckpointDirectory(tmp_path).restore(optimizer=optimizer, model=model) is None:
            model(lt.ones(1, 3)).sum().backward()
            optimizer.step()
            CheckpointDirectory(tmp_path).save(1, model=model, optimizer=optimizer)
        return whole(model, optimizer)

    (saved,) = results(1, rank_of)
    for found in results(3, rank_of):
        same(found, saved)


def test_shared_out_and_plain_optimizers_read_each_other(tmp_path):
    def rank_of(rank: int, size: int) -> Any:
        run = ZeroRun(size, rank)
        train(run.model, run.optimizer, rank, 2)
        CheckpointDirectory(tmp_path / "zero").save(2, model=run.model, optimizer=run.optimizer)
        model = Net()
        plain = optim.AdamW(groups(model), lr=1e-2)
        CheckpointDirectory(tmp_path / "zero").restore(model=model, optimizer=plain)
        same(whole(model, plain), whole(run.model, run.optimizer))
        CheckpointDirectory(tmp_path / "plain").save(2, model=model, optimizer=plain)
        other = ZeroRun(size, rank)
        CheckpointDirectory(tmp_path / "plain").restore(
            model=other.model, optimizer=other.optimizer
        )
        same(whole(other.model, other.optimizer), whole(model, plain))
        return len(other.optimizer.state), len(plain.state)

    found = results(2, rank_of)
    assert sum(part for part, _ in found) == found[0][1]


class Half(nn.Module):
    """A layer of it gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return self.used(x)


def test_a_parameter_that_has_had_no_gradient_has_no_state(tmp_path):
    found = []
    for _ in range(2):
        lt.manual_seed(0)
        model = Half()
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        checkpoints = CheckpointDirectory(tmp_path)
        if checkpoints.restore(model=model, optimizer=optimizer) is None:
            model(lt.ones(2, 3)).sum().backward()
            optimizer.step()
            checkpoints.save(1, model=model, optimizer=optimizer)
        assert set(optimizer.state) == set(model.used.parameters())
        found.append(whole(model, optimizer))
    same(*found)


def test_what_is_saved_before_the_first_step_is_resumed_as_if_never_stopped(tmp_path):
    found = []
    for stops in (False, True):
        lt.manual_seed(0)
        model = Half()
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        if stops:
            CheckpointDirectory(tmp_path).save(0, model=model, optimizer=optimizer)
            assert not optimizer.state
            model = Half()
            optimizer = optim.AdamW(model.parameters(), lr=0.1)
            CheckpointDirectory(tmp_path).restore(model=model, optimizer=optimizer)
            assert not optimizer.state
        model(lt.ones(2, 3)).sum().backward()
        optimizer.step()
        found.append(whole(model, optimizer))
    same(*found)


def test_gradients_that_are_there_stay(tmp_path):
    model = Half()
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    model(lt.ones(2, 3)).sum().backward()
    optimizer.step()
    CheckpointDirectory(tmp_path).save(1, model=model, optimizer=optimizer)
    other = Half()
    fresh = optim.AdamW(other.parameters(), lr=0.1)
    other(lt.ones(2, 3)).sum().backward()
    before = [p.grad for p in other.parameters()]
    CheckpointDirectory(tmp_path).restore(model=other, optimizer=fresh)
    assert all(p.grad is g for p, g in zip(other.parameters(), before, strict=True))
    same(whole(other, fresh), whole(model, optimizer))
