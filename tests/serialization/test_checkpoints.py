"""A folder of training checkpoints, and a run that is killed and goes on bit for bit."""

from __future__ import annotations

import io
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework.serialization import checkpoint_file
from lowtide.framework.serialization.atomic_files import Source
from lowtide.framework.serialization.safetensors import read_header
from lowtide.utils import CheckpointDirectory

ROOT = Path(__file__).resolve().parents[2]


def made():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    return model, optim.AdamW(model.parameters(), lr=0.1)


def train(model, optimizer, steps):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(lt.randn(8, 3)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_restored_run_goes_on_bit_for_bit(tmp_path) -> None:
    model, optimizer = made()
    train(model, optimizer, 3)
    CheckpointDirectory(tmp_path).save(3, model=model, optimizer=optimizer, epoch=1)
    expected = train(model, optimizer, 4)
    lt.manual_seed(77)
    model, optimizer = made()
    state = CheckpointDirectory(tmp_path).restore(model=model, optimizer=optimizer)
    assert state == {"step": 3, "epoch": 1}
    assert train(model, optimizer, 4) == expected


def test_the_newest_are_kept_and_the_newest_is_found(tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path / "deep" / "run", keep=2)
    assert folder.restore() is None
    assert folder.latest() is None
    for step in (0, 5, 100_000_000_000):
        folder.save(step, best=step / 2)
    assert folder.steps() == [5, 100_000_000_000]
    assert folder.restore() == {"step": 100_000_000_000, "best": 5e10}
    assert folder.restore(step=5) == {"step": 5, "best": 2.5}
    assert folder.latest() == folder.path / "step_100000000000.safetensors"
    assert len(os.listdir(folder.path)) == 3  # with the lock
    folder.release()
    assert len(os.listdir(folder.path)) == 2
    everything = CheckpointDirectory(tmp_path / "all", keep=None)
    for step in range(6):
        everything.save(step)
    assert everything.steps() == list(range(6))


def test_the_same_step_may_be_saved_again_and_an_older_may_not(tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path)
    folder.save(7, x=1)
    folder.save(7, x=2)
    assert folder.restore() == {"step": 7, "x": 2}
    with pytest.raises(lt.SerializationError, match="step 6 is below 7"):
        folder.save(6)
    with pytest.raises(lt.SerializationError, match="step -1 is below"):
        CheckpointDirectory(tmp_path / "new").save(-1)
    with pytest.raises(ValueError, match="keep must be at least 1"):
        CheckpointDirectory(tmp_path, keep=0)


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path)
    folder.save(1, x="whole")
    path = folder.save(2, x="damaged")
    path.write_bytes(path.read_bytes()[:-3])
    (tmp_path / ".step_00000003.safetensors.0a0b0c.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.warns(UserWarning, match="passing over a damaged checkpoint"):
        assert folder.restore() == {"step": 1, "x": "whole"}
    with pytest.raises(lt.SerializationError):
        folder.restore(step=2)
    folder.save(4)
    folder.release()
    assert sorted(os.listdir(tmp_path)) == [
        "notes.txt",
        *(f"step_{k:08d}.safetensors" for k in (1, 2, 4)),
    ]


def test_what_was_not_saved_is_named(tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path)
    model, optimizer = made()
    folder.save(1, model=model, epoch=3)
    with pytest.raises(lt.SerializationError, match="no state of opt; it has model"):
        folder.restore(opt=optimizer)
    with pytest.raises(lt.SerializationError, match=r"has no step 9; it has \[1\]"):
        folder.restore(step=9, model=model)
    with pytest.raises(TypeError, match="model is a int"):
        folder.restore(model=3)
    with pytest.raises(TypeError, match="step"):
        folder.save(1, step=3)


def test_generators_of_all_kinds_are_restored(tmp_path) -> None:
    own, mine = lt.Generator().manual_seed(1), random.Random(2)
    legacy = np.random.RandomState(3)
    lt.rand(3)
    folder = CheckpointDirectory(tmp_path)
    folder.save(1, own=own, mine=mine, legacy=legacy, python=random)
    draws = [
        lambda: lt.rand(2).tolist(),
        lambda: lt.rand(2, generator=own).tolist(),
        mine.random,
        legacy.rand,
        random.random,
    ]
    expected = [draw() for draw in draws]
    assert [draw() for draw in draws] != expected
    folder.restore(own=own, mine=mine, legacy=legacy, python=random)
    assert [draw() for draw in draws] == expected


class Holder:
    """Holds ``n`` floats, and notes the live bytes while it takes a state."""

    live = 0

    def __init__(self, n: int) -> None:
        self.t = lt.zeros(n)
        self.peak = 0

    def state_dict(self):
        return {"t": self.t}

    def load_state_dict(self, state):
        self.peak = lt.memory_allocated() - Holder.live
        self.t = state["t"].clone()


def test_restoring_reads_one_object_at_a_time(tmp_path, leak_check) -> None:
    folder = CheckpointDirectory(tmp_path)
    folder.save(1, **{name: Holder(1 << 18) for name in "abc"})
    holders = {name: Holder(0) for name in "abc"}
    Holder.live = lt.memory_allocated()
    folder.restore(**holders)
    taken = [h.t.nbytes for h in holders.values()]
    assert taken == [1 << 20] * 3
    assert [h.peak for h in holders.values()] == [1 << 20, 2 << 20, 3 << 20]  # one beside the taken


def test_all_but_the_largest_old_state_are_kept_to_go_back_to(tmp_path, leak_check) -> None:
    folder = CheckpointDirectory(tmp_path)
    folder.save(1, **{name: Holder(1 << 18) for name in "abc"})
    holders = {"a": Holder(1 << 10), "b": Holder(1 << 16), "c": Holder(1 << 12)}
    Holder.live = lt.memory_allocated()
    folder.restore(**holders)
    read, a, b, c = 1 << 20, 1 << 12, 1 << 18, 1 << 14
    # what was read and the copies of old states; what was taken came in the place of the old
    assert holders["a"].peak == read + a
    assert holders["c"].peak == read + a + c + (read - a)
    assert holders["b"].peak == read + a + c + (read - a) + (read - c)
    assert b > max(a, c)


def _snapshot(*objects):
    encoded = io.BytesIO()
    lt.save([o.state_dict() for o in objects], encoded)
    return encoded.getvalue()


def test_a_state_that_does_not_fit_leaves_every_object_as_it_was(tmp_path) -> None:
    model, optimizer = made()
    train(model, optimizer, 2)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2)
    other = nn.Linear(3, 3)
    folder = CheckpointDirectory(tmp_path)
    folder.save(1, model=model, optimizer=optimizer, scheduler=scheduler, other=other)
    model, optimizer = made()
    train(model, optimizer, 1)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 3)
    larger, small, g = nn.Linear(300, 300), nn.Linear(3, 4), lt.default_generator
    before = _snapshot(model, optimizer, scheduler, larger), g.initial_seed(), g.get_offset()
    for wrong in (larger, small):  # given last, as the largest, and among the others
        with pytest.raises(RuntimeError, match="size mismatch"):
            folder.restore(model=model, other=wrong, optimizer=optimizer, scheduler=scheduler)
        after = _snapshot(model, optimizer, scheduler, larger), g.initial_seed(), g.get_offset()
        assert after == before


def test_a_schedule_of_another_kind_leaves_no_attribute_of_its_own(tmp_path) -> None:
    _, optimizer = made()
    folder = CheckpointDirectory(tmp_path)
    folder.save(1, schedule=optim.lr_scheduler.StepLR(optimizer, 2), other=nn.Linear(3, 3))
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    before = schedule.state_dict()
    with pytest.raises(RuntimeError, match="size mismatch"):
        folder.restore(schedule=schedule, other=nn.Linear(30, 30))
    assert schedule.state_dict() == before


def test_an_object_that_stops_half_way_is_put_back_too(tmp_path) -> None:
    class Part:
        def state_dict(self):
            return {"scale": 3.0, "growth_factor": 5.0}

        def load_state_dict(self, state):
            raise NotImplementedError

    folder, scaler = CheckpointDirectory(tmp_path), lt.amp.GradScaler("cpu")
    folder.save(1, scaler=Part())
    before = scaler.state_dict()
    with pytest.raises(KeyError, match="backoff_factor"):
        folder.restore(scaler=scaler)
    assert scaler.state_dict() == before


def test_an_old_state_that_is_not_taken_back_is_told(tmp_path) -> None:
    class Once(Holder):
        def load_state_dict(self, state):
            if self.peak:
                raise ValueError("only once")
            super().load_state_dict(state)

    folder = CheckpointDirectory(tmp_path)
    folder.save(1, once=Holder(4), model=nn.Linear(3, 3))
    with pytest.raises(RuntimeError, match="size mismatch") as caught:
        folder.restore(once=Once(4), model=nn.Linear(30, 30))
    assert caught.value.__notes__ == [
        "restore: once did not take its old state back: ValueError('only once')."
    ]


@pytest.mark.parametrize("at", ["first", "last"])
def test_an_interrupt_waits_while_an_object_takes_its_state(at, tmp_path) -> None:
    class Interrupted(Holder):
        def load_state_dict(self, state):
            os.kill(os.getpid(), signal.SIGINT)
            super().load_state_dict(state)

    folder = CheckpointDirectory(tmp_path)
    folder.save(1, holder=Holder(4), model=nn.Linear(3, 3))
    holder = Interrupted(4 if at == "first" else 400)
    model, old = nn.Linear(3, 3), holder.t.tolist()
    before = model.weight.tolist()
    with pytest.raises(KeyboardInterrupt):
        folder.restore(holder=holder, model=model)
    if at == "first":  # all have their old states back
        assert (holder.t.tolist(), model.weight.tolist()) == (old, before)
    else:  # nothing was left to do: all have the new ones
        assert holder.t.tolist() == [0.0] * 4
        assert model.weight.tolist() != before


@pytest.mark.parametrize("part", ["values", "states", "generators"])
def test_damage_of_any_part_passes_to_the_next_older_one(part, tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path)
    model = nn.Linear(3, 3)
    folder.save(1, model=model, x=1)
    path = folder.save(2, model=nn.Linear(3, 3), x={2: 3})
    text = path.read_bytes()
    place = {  # a dict that is none, an entry that is not there, an offset that is no number
        "values": (rb"\"$\":\"dict\"", rb"\"$\":\"DICT\""),
        "states": (rb"\"entry\":\"states.model.weight\"", rb"\"entry\":\"states.model.wEight\""),
        "generators": (rb"\"generators\":{\"cpu\":[0", rb"\"generators\":{\"cpu\":{0"),
    }[part]
    assert text.count(place[0]) == 1
    # without checksums, as older versions wrote: the rules beneath must find it
    field = re.search(rb'"lowtide.sums":"[0-9a-f ]*",', text)[0]
    path.write_bytes(text.replace(*place).replace(field, b" " * len(field)))
    mine = nn.Linear(3, 3)
    with pytest.warns(
        UserWarning, match="passing over a damaged checkpoint: load: .*step_00000002"
    ):
        assert folder.restore(model=mine) == {"step": 1, "x": 1}
    assert mine.weight.tolist() == model.weight.tolist()
    with pytest.raises(lt.SerializationError, match="step_00000002"):
        folder.restore(model=mine, step=2)


def test_a_flipped_bit_of_any_entry_passes_to_the_next_older_one(tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path)
    model, optimizer = made()
    train(model, optimizer, 1)
    folder.save(1, model=model, optimizer=optimizer)
    old = _snapshot(model, optimizer)
    train(model, optimizer, 1)
    path = folder.save(2, model=model, optimizer=optimizer)
    data = path.read_bytes()
    with Source(path) as source:
        entries = read_header(source).entries
    assert len(entries) > 10
    for name, entry in entries.items():
        place = entry.offset + entry.nbytes // 2
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.warns(UserWarning, match=f"step_00000002.*the checksum of entry '{name}'"):
            assert folder.restore(model=model, optimizer=optimizer)["step"] == 1
        assert _snapshot(model, optimizer) == old


def test_any_error_of_reading_passes_to_the_next_older_one(tmp_path, monkeypatch) -> None:
    folder = CheckpointDirectory(tmp_path)
    folder.save(1, x=1)
    folder.save(2, x=2)
    found, errors = checkpoint_file.read_header, []

    def header(source):
        if source.name.endswith("2.safetensors"):
            raise errors[-1]
        return found(source)

    monkeypatch.setattr(checkpoint_file, "read_header", header)
    for error in (KeyError("k"), AttributeError("a"), RecursionError(), OSError(5, "EIO")):
        errors.append(error)
        with pytest.warns(UserWarning, match=f"step_00000002.safetensors: {type(error).__name__}"):
            assert folder.restore() == {"step": 1, "x": 1}
    for error in (MemoryError("limit"), PermissionError(13, "no")):  # of this process
        errors.append(error)
        with pytest.raises(type(error)):
            folder.restore()


def test_a_run_that_went_on_from_an_older_one_saves_over_the_damaged(tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path, keep=1)
    for step in (1, 2, 3):
        CheckpointDirectory(tmp_path).save(step, x=step)
    for step in (2, 3):
        path = tmp_path / f"step_{step:08d}.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="passing over") as warned:
        assert folder.restore() == {"step": 1, "x": 1}
    assert len(warned) == 2
    folder.save(1, x=10)
    assert folder.steps() == [1, 2, 3]  # the damaged ones are kept, and do not count
    folder.save(2, x=20)
    assert folder.steps() == [2, 3]
    with pytest.warns(UserWarning, match="passing over"):
        assert CheckpointDirectory(tmp_path).restore() == {"step": 2, "x": 20}
    folder.save(4)
    assert folder.steps() == [4]


def test_names_that_are_no_checkpoints_are_left_alone(tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path, keep=1)
    path = folder.save(5, x="whole")
    strange = [
        "step_000000012.safetensors",
        f"step_{''.join(map(chr, range(0x661, 0x669)))}.safetensors",
        "step_99999999.safetensors",
        "step_00000077.safetensors",
        "step_00000078.safetensors",
    ]
    for name in strange[:2]:
        (tmp_path / name).write_bytes(path.read_bytes())
    (tmp_path / strange[2]).mkdir()
    (tmp_path / strange[3]).symlink_to("gone.safetensors")
    (tmp_path / strange[4]).symlink_to(strange[4])
    assert folder.steps() == [5]
    assert folder.latest() == path
    assert folder.restore() == {"step": 5, "x": "whole"}
    folder.save(6, x="newer")
    assert folder.restore() == {"step": 6, "x": "newer"}
    folder.release()
    assert sorted(os.listdir(tmp_path)) == sorted([*strange, "step_00000006.safetensors"])
    (tmp_path / "linked").mkdir()
    elsewhere = CheckpointDirectory(tmp_path / "linked")
    (elsewhere.path / "step_00000001.safetensors").symlink_to("../step_00000006.safetensors")
    assert elsewhere.restore() == {"step": 6, "x": "newer"} | {"step": 1}


def test_what_a_killed_run_left_is_removed_when_the_folder_is_claimed(tmp_path) -> None:
    folder = CheckpointDirectory(tmp_path, keep=None)
    for step in (1, 2, 3, 4):
        folder.save(step, x=step)
    folder.release()
    (tmp_path / ".step_00000004.safetensors.0a0b0c.tmp").write_bytes(b"half")
    newest = tmp_path / "step_00000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    folder = CheckpointDirectory(tmp_path, keep=2)
    folder.claim()
    assert folder.steps() == [2, 3, 4]  # two whole ones, and one that is not
    assert len(os.listdir(tmp_path)) == 4  # with the lock
    folder.claim()  # again: nothing to do
    folder.release()
    assert len(os.listdir(tmp_path)) == 3


SCRIPT = """
    import os, sys
    import lowtide as lt
    from lowtide import nn, optim
    from lowtide.utils import CheckpointDirectory
    from lowtide.utils.data import DataLoader, Dataset

    class Noisy(Dataset):
        def __init__(self):
            self.x = lt.randn(96, 8, generator=lt.Generator().manual_seed(5))
        def __len__(self):
            return 96
        def __getitem__(self, i):
            return self.x[i] + 0.1 * lt.randn(8), self.x[i].sum()

    lt.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(Noisy(), 7, shuffle=True, num_workers=int(sys.argv[3]))
    checkpoints = CheckpointDirectory(sys.argv[1])
    parts = dict(model=model, optimizer=optimizer, loader=loader)
    state = checkpoints.restore(**parts) or {"step": 0, "losses": []}
    step, losses = state["step"], state["losses"]
    while step < 60:
        for x, y in loader:
            hidden = nn.functional.dropout(x, 0.1)
            loss = (model(hidden).squeeze(1) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            losses.append(loss.item())
            checkpoints.save(step, losses=losses, **parts)
            if step == 60:
                break
            if step >= int(sys.argv[2]) > 0:
                os.write(1, b".")
    print(*losses)
"""


@pytest.mark.deep
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_killed_at_random_instants_gives_the_same_losses(workers, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run(folder, signal_at):
        return subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / folder), str(signal_at), str(workers)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    expected = run("whole", 0).communicate()[0]
    rng, steps = random.Random(workers), []
    for stop in (5, 14, 15, 33):  # 14 batches an epoch
        process = run("killed", stop)
        assert process.stdout.read(1 + rng.randrange(3))  # steps past the stop
        time.sleep(rng.random() * 0.01)
        process.kill()  # in the middle of whatever it is doing
        process.communicate()
        steps.append(CheckpointDirectory(tmp_path / "killed").steps()[-1])
    assert steps == sorted(steps)
    assert steps[-1] < 60
    got = run("killed", 0).communicate()[0]
    assert len(got.split()) == 60
    assert got == expected
