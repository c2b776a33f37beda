"""Numbered checkpoints in parts: complete or passed over, in all ranks alike, for any number."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.distributed.checkpoint import CheckpointDirectory
from lowtide.framework.distributed.checkpoint import directory, save_load
from lowtide.nn.parallel import DistributedDataParallel

from .ranks import Failed, outcomes, results
from .test_checkpoint import whole
from .test_fully_shard import Net, same, sharded, train


class Run:
    """All that a run consists of."""

    def __init__(self, size: int, rank: int) -> None:
        self.model: Any = sharded(Net()) if size > 1 else Net()
        self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.draws = random.Random(rank)

    def objects(self) -> dict[str, Any]:
        return vars(self)

    def whole(self) -> dict[str, Any]:
        rate = self.optimizer.param_groups[0]["lr"]
        found = whole(self.model, self.optimizer)
        return {**found, "rate": np.array(rate), "epoch": np.array(self.schedule.last_epoch)}


def save_steps(folder: Path, size: int, steps: int, **options: Any) -> list[Any]:
    """Train on some ranks, and save each step; what it was like after each."""

    def rank_of(rank: int, size: int) -> Any:
        run, found = Run(size, rank), []
        checkpoints = CheckpointDirectory(folder, **options)
        lt.manual_seed(10 + rank)
        for step in range(1, steps + 1):
            train(run.model, run.optimizer, rank, 1)
            run.schedule.step()
            run.draws.random()
            lt.randn(3)
            before = lt.memory_allocated()
            path = checkpoints.save(step, **run.objects(), note=f"step {step}")
            assert path == folder / f"step_{step:08d}"
            assert lt.memory_allocated() == before
            found.append((run.whole(), lt.randn(3).tolist(), run.draws.random()))
        return found

    return results(size, rank_of)


def restored(folder: Path, size: int, **options: Any) -> list[Any]:
    """What each of some new ranks has, once it has restored."""

    def rank_of(rank: int, size: int) -> Any:
        run = Run(size, rank)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            info = CheckpointDirectory(folder).restore(**run.objects(), **options)
        said = [str(w.message) for w in caught]
        return info, run.whole(), lt.randn(3).tolist(), run.draws.random(), said

    return outcomes(size, rank_of)


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_number_of_ranks_restores(size, tmp_path):
    last = save_steps(tmp_path, 2, 2)
    for rank, (info, found, numbers, drawn, said) in enumerate(restored(tmp_path, size)):
        assert info == {"step": 2, "note": "step 2"}
        same(found, last[0][-1][0])
        assert drawn == last[rank if rank < 2 else 0][-1][2]
        assert (numbers == last[rank][-1][1]) if rank < 2 else (numbers != last[0][-1][1])
        assert said == []


def test_one_process_saves_and_restores_alone(tmp_path):
    run = Run(1, 0)
    train(run.model, run.optimizer, 0, 2)
    checkpoints = CheckpointDirectory(tmp_path / "a" / "b")
    assert checkpoints.restore(model=run.model) is None
    assert checkpoints.latest() is None
    checkpoints.save(7, **run.objects(), best=0.5)
    assert checkpoints.restore() == {"step": 7, "best": 0.5}
    drawn = random.Random(5)
    checkpoints.restore(draws=drawn)
    assert drawn.getstate() == run.draws.getstate()
    other = Run(1, 0)
    assert CheckpointDirectory(tmp_path / "a" / "b").restore(**other.objects()) == {
        "step": 7,
        "best": 0.5,
    }
    same(other.whole(), run.whole())
    assert checkpoints.latest() == tmp_path / "a" / "b" / "step_00000007"


def test_a_resumed_run_has_the_same_bits(tmp_path):
    def rank_of(rank: int, size: int) -> Any:
        lt.manual_seed(rank)
        run, checkpoints = Run(size, rank), CheckpointDirectory(tmp_path)
        info = checkpoints.restore(**run.objects())
        for step in range(info["step"] if info else 0, 4):
            train(run.model, run.optimizer, rank, 1)
            with lt.no_grad():
                for p in run.model.parameters():
                    p.mul_(1 + 0.01 * lt.rand(1).item())
            run.schedule.step()
            if step == 1 and info is None:
                checkpoints.save(2, **run.objects())
        return run.whole()

    first, again = results(2, rank_of), results(2, rank_of)
    for a, b in zip(first, again, strict=True):
        same(a, b)


def test_the_newest_are_kept(tmp_path):
    save_steps(tmp_path, 2, 4, keep=2)
    assert CheckpointDirectory(tmp_path).steps() == [3, 4]
    names = [n for n in os.listdir(tmp_path) if n.startswith("step")]
    assert sorted(names) == ["step_00000003", "step_00000004"]
    with pytest.raises(ValueError, match="keep must be at least 1"):
        CheckpointDirectory(tmp_path, keep=0)


def test_what_a_killed_run_left_is_removed(tmp_path):
    save_steps(tmp_path, 2, 1)
    half = tmp_path / "step_00000002"
    half.mkdir()
    (half / "rank_0.12345678.safetensors").write_bytes(b"half")
    run = Run(1, 0)
    checkpoints = CheckpointDirectory(tmp_path)
    assert checkpoints.restore(**run.objects())["step"] == 1
    checkpoints.save(3, **run.objects())
    assert checkpoints.steps() == [1, 3]
    assert not half.exists()


def test_no_rank_goes_back(tmp_path):
    save_steps(tmp_path, 2, 2)

    def rank_of(rank: int, size: int) -> None:
        run = Run(size, rank)
        CheckpointDirectory(tmp_path).save(1, **run.objects())

    for found in outcomes(2, rank_of):
        assert isinstance(found, Failed)
        assert found.kind == "SerializationError"
        assert "step 1 is below 2, the newest" in found.message
    assert CheckpointDirectory(tmp_path).steps() == [1, 2]


def damage(folder: Path, rank: int) -> None:
    path = next(folder.glob(f"rank_{rank}.*"))
    data = bytearray(path.read_bytes())
    data[len(data) - 9] ^= 1
    path.write_bytes(data)


@pytest.mark.quick(1)
@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_pass_over_what_is_damaged(rank, tmp_path):
    last = save_steps(tmp_path, 2, 2)
    damage(tmp_path / "step_00000002", rank)
    for size in (1, 2):
        for info, found, *_, said in restored(tmp_path, size):
            assert info["step"] == 1
            same(found, last[0][0][0])
            assert len(said) == 1
            assert "passing over a damaged checkpoint" in said[0]
        for found in restored(tmp_path, size, step=2):
            assert isinstance(found, Failed)
            assert "step_00000002" in found.message
    damage(tmp_path / "step_00000001", rank)
    for info, *_, said in restored(tmp_path, 2):
        assert info is None
        assert len(said) == 2


@pytest.mark.deep
def test_a_run_that_passed_over_one_saves_over_it(tmp_path):
    save_steps(tmp_path, 2, 2)
    damage(tmp_path / "step_00000002", 1)

    def rank_of(rank: int, size: int) -> Any:
        run, checkpoints = Run(size, rank), CheckpointDirectory(tmp_path)
        with pytest.warns(UserWarning, match="damaged"):
            info = checkpoints.restore(**run.objects())
        train(run.model, run.optimizer, rank, 1)
        checkpoints.save(info["step"] + 1, **run.objects())
        return run.whole()

    saved = results(2, rank_of)
    for info, found, *_ in restored(tmp_path, 2):
        assert info["step"] == 2
        same(found, saved[0])


@pytest.mark.quick(1)
@pytest.mark.parametrize("what", ["files", "index", "json"])
def test_missing_and_broken_files_are_damage(what, tmp_path):
    save_steps(tmp_path, 2, 2)
    folder = tmp_path / "step_00000002"
    if what == "files":
        next(folder.glob("rank_1.*")).unlink()
    elif what == "index":
        (folder / "index.json").unlink()  # then it was never complete
    else:
        (folder / "index.json").write_text("{")
    for info, *_, said in restored(tmp_path, 2):
        assert info["step"] == 1
        assert len(said) == (what != "index")


def wider() -> Any:
    """A model whose first parameter has another shape."""
    net = Net()
    name, p = next(net.named_parameters())
    where, _, last = name.rpartition(".")
    shape = (p.shape[0] + 1, *p.shape[1:])
    setattr(net.get_submodule(where), last, nn.Parameter(lt.zeros(shape)))
    return net


def all_of(run: Run) -> dict[str, Any]:
    """What a failed restore must leave alone."""
    found = {n: p.detach().clone().numpy() for n, p in run.model.named_parameters()}
    return {
        **found,
        "epoch": np.array(run.schedule.last_epoch),
        "has": np.array(len(run.optimizer.state)),
    }


class Refusing:
    """An object that takes no state."""

    def state_dict(self) -> dict[str, Any]:
        return {"a": 1}

    def load_state_dict(self, state: Any) -> None:
        if state == {"a": 1} and not hasattr(self, "before"):
            self.before = True
            raise KeyboardInterrupt if self.interrupted else ValueError("not now")

    interrupted = False


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_object_that_refuses_leaves_all_as_they_were(interrupted, tmp_path):
    run = Run(1, 0)
    train(run.model, run.optimizer, 0, 2)
    run.schedule.step()
    checkpoints = CheckpointDirectory(tmp_path)
    checkpoints.save(1, **run.objects(), refusing=Refusing())
    other, refusing = Run(1, 0), Refusing()
    refusing.interrupted = interrupted
    before, draws = all_of(other), other.draws.getstate()
    with pytest.raises(KeyboardInterrupt if interrupted else lt.SerializationError):
        checkpoints.restore(**other.objects(), refusing=refusing)
    same(all_of(other), before)
    assert other.draws.getstate() == draws
    assert checkpoints.restore(**other.objects(), refusing=refusing) == {"step": 1}
    same(other.whole(), run.whole())


def test_other_groups_of_parameters_are_found_before_anything_is_written(tmp_path):
    run = Run(1, 0)
    train(run.model, run.optimizer, 0, 1)
    CheckpointDirectory(tmp_path).save(1, model=run.model, optimizer=run.optimizer)
    model = Net()
    first, *others = model.parameters()
    optimizer = optim.AdamW([{"params": [first]}, {"params": others}])
    before = {n: p.detach().clone().numpy() for n, p in model.named_parameters()}
    with pytest.raises(lt.SerializationError, match="optimizer has 2 groups of parameters"):
        CheckpointDirectory(tmp_path).restore(model=model, optimizer=optimizer)
    same({n: p.detach().numpy() for n, p in model.named_parameters()}, before)
    assert not optimizer.state


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("name", "no state 'fresh'"),
        ("module", "no tensor 'states.other"),
        ("shape", "is float32 of shape"),
        ("value", "cannot take a state"),
        ("step", "has no step 9; it has .1."),
    ],
)
def test_what_does_not_fit_changes_nothing_in_any_rank(wrong, message, tmp_path):
    save_steps(tmp_path, 2, 1)

    def rank_of(rank: int, size: int) -> Any:
        run = Run(size, rank)
        before = {n: p.detach().clone() for n, p in run.model.named_parameters()}
        objects: dict[str, Any] = run.objects()
        if rank == 1 or wrong in ("value", "step"):
            more: dict[str, Any] = {
                "name": {"fresh": random.Random()},
                "module": {"other": nn.Linear(2, 3)},
                "shape": {"model": wider()},
                "value": {"note": 5},
                "step": {"step": 9},
            }[wrong]
            objects = {"optimizer": run.optimizer, "model": run.model} | more
            if wrong == "shape":
                del objects["optimizer"]
        with pytest.raises((lt.SerializationError, TypeError)) as error:
            CheckpointDirectory(tmp_path).restore(**objects)
        assert not run.optimizer.state
        for n, p in run.model.named_parameters():
            assert np.array_equal(p.detach().numpy(), before[n].numpy())
        return str(error.value)

    found = results(2, rank_of)
    assert message.replace(".1.", "[1]") in found[1]
    if wrong not in ("value", "step"):
        assert "rank 1" in found[0]


def test_asynchronous_saves_have_the_state_of_the_call(tmp_path):
    def rank_of(rank: int, size: int) -> Any:
        run, checkpoints = Run(size, rank), CheckpointDirectory(tmp_path, keep=1)
        train(run.model, run.optimizer, rank, 1)
        before = lt.memory_allocated()
        first = checkpoints.async_save(1, **run.objects(), list=[1])
        there = run.whole()
        train(run.model, run.optimizer, rank, 1)
        assert first.result().name == "step_00000001"
        assert lt.memory_allocated() == before
        second = checkpoints.async_save(2, **run.objects(), list=[2])
        now = run.whole()
        train(run.model, run.optimizer, rank, 1)
        info = checkpoints.restore(**run.objects())  # waits
        assert second.done()
        assert info == {"step": 2, "list": [2]}
        same(run.whole(), now)
        checkpoints.release()
        return there

    results(2, rank_of)
    assert CheckpointDirectory(tmp_path).steps() == [2]


def test_a_failed_asynchronous_save_is_told_at_the_next_call(tmp_path, monkeypatch):
    def refuse(folder: str, part: Any) -> None:
        raise OSError("no room")

    def rank_of(rank: int, size: int) -> Any:
        run, checkpoints = Run(size, rank), CheckpointDirectory(tmp_path)
        if rank == 1:
            monkeypatch.setattr(save_load, "write", refuse)
        checkpoints.async_save(1, **run.objects())
        with pytest.raises(Exception, match="no room"):
            checkpoints.save(2, **run.objects())
        return True

    assert results(2, rank_of) == [True, True]
    assert CheckpointDirectory(tmp_path).steps() == []


@pytest.mark.deep
def test_a_rank_that_dies_while_it_saves_leaves_the_older_one(tmp_path, monkeypatch):
    last = save_steps(tmp_path, 2, 1)

    def die(folder: str, part: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def rank_of(rank: int, size: int) -> Any:
        run, checkpoints = Run(size, rank), CheckpointDirectory(tmp_path)
        checkpoints.restore(**run.objects())
        if rank == 1:
            monkeypatch.setattr("lowtide.framework.distributed.checkpoint.directory.write", die)
        checkpoints.save(2, **run.objects())

    found = outcomes(2, rank_of)
    assert isinstance(found[0], Failed)
    assert found[1] is None
    for info, state, *_ in restored(tmp_path, 2):
        assert info["step"] == 1
        same(state, last[0][0][0])


def test_another_run_cannot_write_there(tmp_path):
    checkpoints = CheckpointDirectory(tmp_path)
    checkpoints.save(1, value=1)

    def rank_of(rank: int, size: int) -> None:
        CheckpointDirectory(tmp_path).save(2, value=2)

    for found in outcomes(2, rank_of):
        assert isinstance(found, Failed)
        assert str(os.getpid()) in found.message
    checkpoints.release()
    assert [f is None or isinstance(f, Failed) for f in outcomes(2, rank_of)] == [True, True]
    assert CheckpointDirectory(tmp_path).steps() == [1, 2]


def test_replicas_are_written_once(tmp_path):
    def rank_of(rank: int, size: int) -> Any:
        lt.manual_seed(0)
        model: Any = DistributedDataParallel(nn.Linear(64, 64))
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(lt.ones(2, 64)).sum().backward()
        optimizer.step()
        CheckpointDirectory(tmp_path).save(1, model=model, optimizer=optimizer)
        return model.module.weight.detach().numpy()

    weights = results(2, rank_of)
    sizes = sorted(p.stat().st_size for p in (tmp_path / "step_00000001").glob("rank_*"))
    assert sizes[0] < 4096 < 2 * 64 * 64 * 4 < sizes[1]
    model = nn.Linear(64, 64)
    optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    CheckpointDirectory(tmp_path).restore(model=model, optimizer=optimizer)
    assert np.array_equal(model.weight.detach().numpy(), weights[0])
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_an_optimizer_without_its_model_is_saved_by_numbers(tmp_path):
    run = Run(1, 0)
    train(run.model, run.optimizer, 0, 2)
    CheckpointDirectory(tmp_path).save(2, optimizer=run.optimizer)
    other = Run(1, 0)
    assert CheckpointDirectory(tmp_path).restore(optimizer=other.optimizer) == {"step": 2}
    for p, q in zip(run.model.parameters(), other.model.parameters(), strict=True):
        for key, value in run.optimizer.state[p].items():
            assert np.array_equal(np.array(value), np.array(other.optimizer.state[q][key]))


def test_steps_are_given_once_and_count_from_zero(tmp_path):
    with pytest.raises(TypeError, match="multiple values for argument 'step'"):
        CheckpointDirectory(tmp_path).save(1, step=2)
    with pytest.raises(lt.SerializationError, match="below 0"):
        CheckpointDirectory(tmp_path).save(-1, value=2)


def test_an_index_that_misses_rows_is_an_error(tmp_path):
    save_steps(tmp_path, 2, 1)
    path = tmp_path / "step_00000001" / "index.json"
    index = json.loads(path.read_text())
    key = next(k for k, t in index["tensors"].items() if len(t["pieces"]) > 1)
    del index["tensors"][key]["pieces"][0]
    path.write_text(json.dumps(index))
    found = restored(tmp_path, 1)
    assert isinstance(found[0], Failed)
    assert "of the rows" in found[0].message


def test_a_damaged_one_is_none_of_those_that_are_kept(tmp_path):
    save_steps(tmp_path, 2, 2)
    damage(tmp_path / "step_00000002", 0)
    run, checkpoints = Run(1, 0), CheckpointDirectory(tmp_path, keep=2)
    with pytest.warns(UserWarning, match="damaged"):
        checkpoints.restore(**run.objects())
    checkpoints.save(3, **run.objects())
    assert checkpoints.steps() == [1, 2, 3]
    checkpoints.save(4, **run.objects())
    assert checkpoints.steps() == [3, 4]


def test_what_is_saved_asynchronously_may_change_at_once(tmp_path, monkeypatch):
    goes_on = threading.Event()
    write = save_load.write

    def late(folder: str, part: Any) -> None:
        goes_on.wait(60)
        write(folder, part)

    monkeypatch.setattr(save_load, "write", late)
    run, losses = Run(1, 0), [1.0]
    checkpoints = CheckpointDirectory(tmp_path)
    saving = checkpoints.async_save(1, **run.objects(), losses=losses)
    losses.append(2.0)
    goes_on.set()
    saving.result()
    assert checkpoints.restore() == {"step": 1, "losses": [1.0]}


def test_a_kill_while_old_ones_are_removed_leaves_none_that_looks_complete(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        directory.shutil, "rmtree", lambda folder: seen.append((folder / "index.json").exists())
    )
    checkpoints = CheckpointDirectory(tmp_path, keep=1)
    checkpoints.save(1, value=1)
    checkpoints.save(2, value=2)
    assert seen == [False]
    assert checkpoints.steps() == [2]
