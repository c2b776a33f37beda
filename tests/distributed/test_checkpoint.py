"""Checkpoints in parts: written by some ranks, read by others, complete or not there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.distributed as dist
import lowtide.distributed.checkpoint as dcp
from lowtide import nn, optim
from lowtide.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from lowtide.distributed.optim import ZeroRedundancyOptimizer
from lowtide.framework.distributed.checkpoint import index as index_module
from lowtide.framework.distributed.checkpoint import save_load, writing
from lowtide.nn.parallel import DistributedDataParallel

from .ranks import Failed, outcomes, results
from .test_fully_shard import Net, arrays, full_state_dict, same, sharded, train


def made(scale: float = 1e-2) -> tuple[Any, Any]:
    model = sharded(Net()) if dist.is_initialized() else Net()
    return model, optim.AdamW(model.parameters(), lr=scale)


def state_of(model: Any, optimizer: Any, **more: Any) -> dict[str, Any]:
    own, theirs = get_state_dict(model, optimizer)
    return {"model": own, "optim": theirs, **more}


def number(value: Any) -> Any:
    return np.array(value.numpy() if isinstance(value, lt.Tensor) else value)


def whole(model: Any, optimizer: Any) -> dict[str, Any]:
    options = StateDictOptions(full_state_dict=True)
    found = arrays(get_model_state_dict(model, options=options))
    for name, state in get_optimizer_state_dict(model, optimizer, options=options)["state"].items():
        found |= {f"{name} {key}": number(value) for key, value in state.items()}
    return found


def saved_by(size: int, folder: Path) -> dict[str, Any]:
    """Train on some ranks and save; return the whole state."""

    def rank_of(rank: int, size: int) -> dict[str, Any]:
        model, optimizer = made()
        train(model, optimizer, rank, 2)
        state = state_of(model, optimizer, epoch=3, rng={f"rank {rank}": [rank, "x"]})
        before = lt.memory_allocated()
        dcp.save(state, checkpoint_id=folder)
        assert lt.memory_allocated() == before
        return whole(model, optimizer)

    return results(size, rank_of)[0]  # type: ignore[no-any-return]


def loaded_by(size: int, folder: Path) -> list[Any]:
    def rank_of(rank: int, size: int) -> Any:
        model, optimizer = made()
        state = state_of(model, optimizer, epoch=0)
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
        )
        assert state["epoch"] == 3
        return whole(model, optimizer)

    return results(size, rank_of)


@pytest.mark.quick(1)
@pytest.mark.parametrize("writers", [1, 2, 4])
def test_any_number_of_ranks_reads_what_others_wrote(writers: int, tmp_path: Path) -> None:
    expected = saved_by(writers, tmp_path / "c")
    for readers in (1, 2, 3):
        for found in loaded_by(readers, tmp_path / "c"):
            assert same(found, expected)
    model, optimizer = made()  # without a group
    state = state_of(model, optimizer, epoch=0)
    dcp.load(state, checkpoint_id=str(tmp_path / "c"))
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
    )
    assert same(whole(model, optimizer), expected)
    names = sorted(os.listdir(tmp_path / "c"))
    assert len(names) == writers + 1
    assert names[0] == "index.json"
    for rank in range(writers):
        own = {"rng": {f"rank {rank}": None}}
        dcp.load(own, checkpoint_id=tmp_path / "c")
        assert own == {"rng": {f"rank {rank}": [rank, "x"]}}


def test_data_parallelism_reads_what_shards_wrote(tmp_path: Path) -> None:
    expected = saved_by(2, tmp_path)

    def rank_of(rank: int, size: int) -> dict[str, Any]:
        model = DistributedDataParallel(Net())
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        state = state_of(model, optimizer)
        dcp.load(state, checkpoint_id=tmp_path)
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
        )
        return whole(model.module, optimizer)

    assert same(results(2, rank_of)[1], expected)


def test_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def rank_of(rank: int, size: int) -> bool:
        model, optimizer = made()
        train(model, optimizer, rank, 2)
        dcp.save(state_of(model, optimizer), checkpoint_id=tmp_path)
        losses = train(model, optimizer, rank, 2)
        other, its = made()
        state = state_of(other, its)
        dcp.load(state, checkpoint_id=tmp_path)
        set_state_dict(other, its, model_state_dict=state["model"], optim_state_dict=state["optim"])
        return train(other, its, rank, 2) == losses

    assert results(2, rank_of) == [True] * 2


def test_objects_with_a_state_are_saved_and_loaded(tmp_path: Path) -> None:
    def rank_of(rank: int, size: int) -> bool:
        model, optimizer = made()
        train(model, optimizer, rank, 1)
        schedule = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        schedule.step()
        dcp.save({"model": model, "optim": optimizer, "schedule": schedule}, checkpoint_id=tmp_path)
        expected = arrays(full_state_dict(model))
        other, its = made()
        train(other, its, rank, 1)
        again = optim.lr_scheduler.StepLR(its, 1, 0.5)
        with lt.no_grad():
            for p in other.parameters():
                p.zero_()
        dcp.load({"model": other, "optim": its, "schedule": again}, checkpoint_id=tmp_path)
        assert again.last_epoch == 1
        assert its.param_groups[0]["lr"] == 5e-3
        return same(arrays(full_state_dict(other)), expected)

    assert results(2, rank_of) == [True] * 2


def joined(lists: Any) -> list[int]:
    return [item for one in lists for item in one]


def loader_of(rank: int, size: int, batch: int) -> Any:
    sampler = lt.utils.data.DistributedSampler(range(24), size, rank, seed=4)
    return lt.utils.data.DataLoader(lt.arange(24), batch_size=batch, sampler=sampler)


@pytest.mark.parametrize("readers", [1, 3])
def test_other_ranks_share_what_an_epoch_has_left(readers: int, tmp_path: Path) -> None:
    def writes(rank: int, size: int) -> list[int]:
        lt.manual_seed(rank)  # so that the loaders' own seeds differ
        loader = loader_of(rank, size, 3)
        walk = iter(loader)
        seen = next(walk).tolist() + next(walk).tolist()
        dcp.save({"loader": loader}, checkpoint_id=tmp_path)
        return seen

    def reads(rank: int, size: int) -> list[list[int]]:
        loader = loader_of(rank, size, 6 // size)
        dcp.load({"loader": loader}, checkpoint_id=tmp_path)
        return [batch.tolist() for batch in loader]

    seen = joined(results(2, writes))
    rest = [sorted(joined(step)) for step in zip(*results(readers, reads), strict=True)]
    assert sorted(seen + joined(rest)) == list(range(24))
    # With as many samples a step, the steps have the samples that they would have had.
    one = list(loader_of(0, 1, 6))
    assert rest == [sorted(batch.tolist()) for batch in one[2:]]


def test_an_asynchronous_save_has_the_values_of_its_call(tmp_path: Path) -> None:
    def rank_of(rank: int, size: int) -> bool:
        model, optimizer = made()
        train(model, optimizer, rank, 1)
        expected = whole(model, optimizer)
        before = lt.memory_allocated()
        future = dcp.async_save(state_of(model, optimizer), checkpoint_id=tmp_path / "a")
        train(model, optimizer, rank, 1)  # while it is written
        assert future.result(60) is None
        assert lt.memory_allocated() == before
        second = dcp.async_save(state_of(model, optimizer), checkpoint_id=tmp_path / "b")
        dcp.save({"x": lt.ones(2)}, checkpoint_id=tmp_path / "b")  # waits for it
        assert second.done()
        other, its = made()
        state = state_of(other, its)
        dcp.load(state, checkpoint_id=tmp_path / "a")
        set_state_dict(other, its, model_state_dict=state["model"], optim_state_dict=state["optim"])
        return same(whole(other, its), expected)

    assert results(3, rank_of) == [True] * 3
    assert sorted(p.name[:6] for p in (tmp_path / "b").iterdir()) == ["index."] + [
        "rank_" + r for r in "012"
    ]


def test_large_tensors_are_read_entry_by_entry(tmp_path: Path) -> None:
    def rank_of(rank: int, size: int) -> bool:
        lt.manual_seed(0)
        layer = nn.Linear(1000, 5003, bias=False)
        expected = layer.weight.detach().numpy().copy()
        model = dist.fsdp.fully_shard(layer)
        dcp.save({"w": model.weight}, checkpoint_id=tmp_path)
        with lt.no_grad():
            model.weight.zero_()
        dcp.load({"w": model.weight}, checkpoint_id=tmp_path)
        first, last = model.weight.shard.own
        return np.array_equal(model.weight.detach().numpy(), expected[first:last])

    assert results(2, rank_of) == [True] * 2
    saved = index_module.read_index(str(tmp_path)).tensors["w"]
    assert [p.last - p.first for p in saved.pieces] == [1048, 1048, 406, 1048, 1048, 405]
    w = lt.zeros(5003, 1000).t()  # not contiguous
    state = {"w": w.t()}
    dcp.load(state, checkpoint_id=tmp_path)
    turned = lt.zeros(1000, 5003).t()
    dcp.load({"w": turned}, checkpoint_id=tmp_path)
    assert np.array_equal(turned.numpy(), state["w"].numpy())


@pytest.mark.parametrize("dtype", [lt.bfloat16, lt.complex64, lt.bool, lt.int64, lt.float16])
def test_dtypes_and_shapes(dtype: Any, tmp_path: Path) -> None:
    lt.manual_seed(1)
    shapes = [(), (0,), (3, 0), (4, 5), (1,)]
    state = {str(s): (lt.randn(s) * 9).to(dtype) for s in shapes}
    dcp.save(state, checkpoint_id=tmp_path)
    found = {k: lt.zeros_like(t) for k, t in state.items()}
    dcp.load(found, checkpoint_id=tmp_path)
    assert all(lt.equal(found[k], state[k]) for k in state)


WRITES = ("a part", "a part's rename", "the index", "the index's rename", "the clean-up")


@pytest.mark.parametrize("where", range(len(WRITES)), ids=WRITES)
def test_killed_while_it_saves_the_older_one_is_there(where: int, tmp_path: Path) -> None:
    def rank_of(rank: int, size: int) -> None:
        t = lt.full((6, 4), 1.0)
        dcp.save({"t": t, "step": 1}, checkpoint_id=tmp_path)
        if rank == 0:
            dies_at(where)
        dcp.save({"t": t + 1, "step": 2}, checkpoint_id=tmp_path)

    found = outcomes(2, rank_of)
    assert found[0] is None
    state = {"t": lt.zeros(6, 4), "step": 0}
    dcp.load(state, checkpoint_id=tmp_path)
    written = 2 if where == len(WRITES) - 1 else 1
    assert state["step"] == written
    assert state["t"].unique().tolist() == [float(written)]
    dcp.save({"t": lt.ones(2)}, checkpoint_id=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2  # and nothing is left of the killed one


def dies_at(where: int) -> None:
    """Kill this process at a point of its next save."""

    def die(*args: Any, **kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    rename = os.replace
    renames = iter([1, 3] if where == 1 else [])

    def replace(a: Any, b: Any) -> None:
        if where == 3 and str(b).endswith("index.json"):
            die()
        if where == 1 and next(renames, None):
            die()
        rename(a, b)

    os.replace = replace  # type: ignore[assignment]
    if where == 0:
        writing.write = die  # type: ignore[assignment]
    if where == 2:
        save_load.write_index = die  # type: ignore[assignment]
    if where == 4:
        save_load.remove_others = die  # type: ignore[assignment]


def test_a_rank_that_cannot_write_fails_all(tmp_path: Path) -> None:
    def rank_of(rank: int, size: int) -> str:
        dcp.save({"t": lt.ones(3)}, checkpoint_id=tmp_path)
        if rank == 1:
            state: dict[str, Any] = {"t": lt.ones(3), "other": lambda: None}
        else:
            state = {"t": lt.ones(3) * 2}
        with pytest.raises(lt.SerializationError) as found:
            dcp.save(state, checkpoint_id=tmp_path)
        future = dcp.async_save(state, checkpoint_id=tmp_path)
        with pytest.raises(lt.SerializationError):
            future.result(60)
        return str(found.value)

    first, second = results(2, rank_of)
    assert first.startswith("save: rank 1 could not write its part")
    assert "other" in second
    t = lt.zeros(3)
    dcp.load({"t": t}, checkpoint_id=tmp_path)
    assert t.tolist() == [1.0] * 3


def test_damage_is_found_before_anything_is_written(tmp_path: Path) -> None:
    saved_by(2, tmp_path)
    (part,) = tmp_path.glob("rank_1.*")
    data = bytearray(part.read_bytes())
    data[-5] ^= 4
    part.write_bytes(data)
    model, optimizer = made()
    before = arrays(model.state_dict())
    with pytest.raises(lt.SerializationError, match=r"rank_1\.\w+\.safetensors: the checksum of"):
        dcp.load(state_of(model, optimizer), checkpoint_id=tmp_path)
    assert same(arrays(model.state_dict()), before)
    part.unlink()
    with pytest.raises(lt.SerializationError, match="does not exist, which"):
        dcp.load(state_of(model, optimizer), checkpoint_id=tmp_path)
    (other,) = tmp_path.glob("rank_0.*")
    part.write_bytes(other.read_bytes())
    text = (tmp_path / "index.json").read_text()
    (tmp_path / "index.json").write_text(text.replace(part.name, "rank_0.x.safetensors"))
    with pytest.raises(lt.SerializationError, match="does not exist"):
        dcp.load(state_of(model, optimizer), checkpoint_id=tmp_path)
    (tmp_path / "index.json").write_text(text[:-20])
    with pytest.raises(lt.SerializationError, match="no valid JSON"):
        dcp.load({"t": lt.ones(1)}, checkpoint_id=tmp_path)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    dcp.save({"a": {"t": lt.ones(2, 3)}, "n": 1}, checkpoint_id=tmp_path)
    with pytest.raises(KeyError, match=r"no tensor 'a\.u'"):
        dcp.load({"a": {"u": lt.ones(2)}}, checkpoint_id=tmp_path)
    with pytest.raises(KeyError, match="no value 'm'"):
        dcp.load({"m": 2}, checkpoint_id=tmp_path)
    with pytest.raises(ValueError, match=r"a\.t is float32 of shape \(2, 3\) in the checkpoint"):
        dcp.load({"a": {"t": lt.ones(3, 2)}}, checkpoint_id=tmp_path)
    with pytest.raises(ValueError, match="float64 of shape"):
        dcp.load({"a": {"t": lt.ones(2, 3, dtype=lt.float64)}}, checkpoint_id=tmp_path)
    with pytest.raises(FileNotFoundError, match="no save to this folder has ended"):
        dcp.load({"a": lt.ones(1)}, checkpoint_id=tmp_path / "none")
    with pytest.raises(ValueError, match="name the folder"):
        dcp.save({"a": lt.ones(1)})
    with pytest.raises(NotImplementedError, match="planner"):
        dcp.save({"a": lt.ones(1)}, checkpoint_id=tmp_path, planner=object())
    with pytest.raises(ValueError, match=r"two values of the state have the path 'a\.b'"):
        dcp.save({"a.b": 1, "a": {"b": 2}}, checkpoint_id=tmp_path)


def test_readers_and_writers_name_the_folder(tmp_path: Path) -> None:
    dcp.save({"t": lt.ones(2)}, storage_writer=dcp.FileSystemWriter(tmp_path))
    t = lt.zeros(2)
    dcp.load({"t": t}, storage_reader=dcp.FileSystemReader(tmp_path))
    assert t.tolist() == [1.0, 1.0]


def test_a_whole_state_is_loaded_into_shards(tmp_path: Path) -> None:
    plain = Net()
    lt.save(plain.state_dict(), tmp_path / "whole.safetensors")

    def rank_of(rank: int, size: int) -> bool:
        model = sharded(Net())
        with lt.no_grad():
            for p in model.parameters():
                p.zero_()
        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(model, lt.load(tmp_path / "whole.safetensors"), options=options)
        return same(arrays(full_state_dict(model)), arrays(plain.state_dict()))

    assert results(3, rank_of) == [True] * 3


def test_the_optimizers_state_of_shards_is_not_saved_as_if_it_were_all(tmp_path: Path) -> None:
    def rank_of(rank: int, size: int) -> bool:
        model, optimizer = made()
        train(model, optimizer, rank, 1)
        with pytest.raises(ValueError, match="is sharded: this rank has rows"):
            lt.save(optimizer.state_dict(), tmp_path / "x.safetensors")
        return True

    assert results(2, rank_of) == [True] * 2


def test_a_lost_rank_ends_the_save(tmp_path: Path) -> None:
    def rank_of(rank: int, size: int) -> str:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.monotonic()
        try:
            dcp.save({"t": lt.ones(3)}, checkpoint_id=tmp_path)
        finally:
            assert time.monotonic() - began < 20
        return "saved"

    found = outcomes(2, rank_of)
    assert isinstance(found[0], Failed)
    assert found[0].kind == "DistBackendError"
    assert not (tmp_path / "index.json").exists()


@pytest.mark.parametrize("rank", [0, 2])
def test_an_imagined_rank_waits_for_nobody(rank: int, tmp_path: Path) -> None:
    dcp.save({"t": lt.ones(2)}, checkpoint_id=tmp_path)

    def step() -> None:
        dist.init_process_group()
        model, optimizer = made()
        train(model, optimizer, rank, 1)
        dcp.save(state_of(model, optimizer), checkpoint_id=tmp_path)
        dcp.async_save(state_of(model, optimizer), checkpoint_id=tmp_path).result(60)
        dist.destroy_process_group()

    assert lt.profiling.estimate(step, world_size=3, rank=rank).peak_bytes > 0
    dist.init_process_group("fake", rank=rank, world_size=3)
    try:
        dcp.save({"t": lt.zeros(2)}, checkpoint_id=tmp_path)
        dcp.async_save({"t": lt.zeros(2)}, checkpoint_id=tmp_path).result(60)
    finally:
        dist.destroy_process_group()
    t = lt.zeros(2)
    dcp.load({"t": t}, checkpoint_id=tmp_path)
    assert t.tolist() == [1.0, 1.0]  # the checkpoint that is whole


@pytest.mark.parametrize("sizes", [(2, 3), (3, 1), (1, 2)])
def test_state_in_one_rank_each_is_loaded_by_any_number(sizes: Any, tmp_path: Path) -> None:
    def shared_out() -> tuple[Any, Any]:
        model = DistributedDataParallel(Net())
        return model, ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, lr=1e-2)

    def save(rank: int, size: int) -> Any:
        model, optimizer = shared_out()
        train(model, optimizer, rank, 2)
        dcp.save(state_of(model, optimizer), checkpoint_id=tmp_path)
        return whole(model, optimizer)

    def load(rank: int, size: int) -> Any:
        model, optimizer = shared_out()
        state = state_of(model, optimizer)
        dcp.load(state, checkpoint_id=tmp_path)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optim"],
        )
        return whole(model, optimizer)

    before = results(sizes[0], save)
    for found in results(sizes[1], load):
        same(found, before[0])
