"""A folder of training checkpoints, and a run that is killed and goes on bit for bit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn, optim
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
    assert sorted(os.listdir(tmp_path)) == [
        "notes.txt", *(f"step_{k:08d}.safetensors" for k in (1, 2, 4)),
    ]  # fmt: skip


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
    draws = [lambda: lt.rand(2).tolist(), lambda: lt.rand(2, generator=own).tolist(), mine.random,
             legacy.rand, random.random]  # fmt: skip
    expected = [draw() for draw in draws]
    assert [draw() for draw in draws] != expected
    folder.restore(own=own, mine=mine, legacy=legacy, python=random)
    assert [draw() for draw in draws] == expected


def test_restoring_reads_one_object_at_a_time(tmp_path, leak_check) -> None:
    class Holder:
        def __init__(self):
            self.peak = 0

        def state_dict(self):
            return {"t": lt.zeros(1 << 18)}

        def load_state_dict(self, state):
            self.peak = lt.memory_allocated() - live
            assert state["t"].shape == (1 << 18,)

    folder = CheckpointDirectory(tmp_path)
    holders = {name: Holder() for name in "abc"}
    folder.save(1, **holders)
    live = lt.memory_allocated()
    folder.restore(**holders)
    assert [h.peak for h in holders.values()] == [1 << 20] * 3


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


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_killed_at_random_instants_gives_the_same_losses(workers, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run(folder, signal_at):
        return subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / folder), str(signal_at), str(workers)],
            stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

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
