"""What an estimated step does to files it finds again, and the disk knows nothing of it.

The assertions are in the steps: what fails in the copy is raised by the estimate.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.profiling import estimate
from lowtide.utils import CheckpointDirectory
from tests.profiling.predictions import measured, predicted


@pytest.fixture
def folder(tmp_path):
    """A folder that has to be afterwards what it was before."""
    (tmp_path / "old").write_text("old")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a.txt").write_text("a")

    def found():
        return {
            str(p.relative_to(tmp_path)): p.read_text() if p.is_file() else None
            for p in tmp_path.rglob("*")
        }

    before = found()
    assert len(before) == 3
    yield tmp_path
    assert found() == before


def test_what_is_written_is_read(folder):
    def step():
        (folder / "new").write_text("one")
        with open(folder / "new", "a") as f:
            f.write(" two")
        assert (folder / "new").read_text() == "one two"
        with open(folder / "old", "a") as f:
            f.write("er")
        assert (folder / "old").read_text() == "older"
        with open(folder / "old", "r+") as f:
            f.write("c")
        assert (folder / "old").read_text() == "clder"
        with open(folder / "old", "w") as f:
            json.dump({"a": 1}, f)
        assert json.loads((folder / "old").read_bytes()) == {"a": 1}
        np.save(folder / "x.npy", np.arange(5))
        assert np.load(folder / "x.npy").sum() == 10
        np.savez(folder / "x.npz", a=np.arange(5))
        assert np.load(folder / "x.npz")["a"].sum() == 10
        handle = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(handle, b"abc")
        os.close(handle)
        assert os.path.getsize(folder / "raw") == 3
        os.truncate(folder / "raw", 2)
        assert (folder / "raw").read_bytes() == b"ab"
        (folder / "touched").touch()
        assert (folder / "touched").stat().st_size == 0

    estimate(step)


def test_what_is_moved_and_removed(folder):
    def step():
        (folder / "old").rename(folder / "moved")
        assert not (folder / "old").exists()
        assert (folder / "moved").read_text() == "old"
        os.replace(folder / "moved", folder / "kept" / "a.txt")
        assert (folder / "kept" / "a.txt").read_text() == "old"
        os.remove(folder / "kept" / "a.txt")
        assert os.listdir(folder / "kept") == []
        with pytest.raises(FileNotFoundError):
            (folder / "old").open()
        shutil.rmtree(folder / "kept")
        assert sorted(os.listdir(folder)) == []
        (folder / "old").write_text("again")
        assert [p.name for p in folder.iterdir()] == ["old"]

    estimate(step)


def test_folders(folder):
    def step():
        new = folder / "runs" / "one"
        new.mkdir(parents=True)
        assert new.is_dir()
        with pytest.raises(FileExistsError):
            os.mkdir(new)
        os.makedirs(new, exist_ok=True)
        for k in range(3):
            (new / f"{k}.txt").write_text(str(k))
        shutil.copy2(new / "2.txt", new / "3.txt")
        assert sorted(os.listdir(new)) == [f"{k}.txt" for k in range(4)]
        assert max(glob.glob(str(new / "*.txt"))) == str(new / "3.txt")
        assert sorted(p.name for p in folder.iterdir()) == ["kept", "old", "runs"]
        os.symlink("3.txt", new / "last")
        assert (new / "last").read_text() == "2"
        os.rename(folder / "runs", folder / "done")
        assert [len(files) for _, _, files in os.walk(folder / "done")] == [0, 5]
        shutil.rmtree(folder / "done")
        assert not (folder / "done").exists()

    estimate(step)


@pytest.mark.parametrize("where", ["kept", "new", "new/below"])
def test_a_folder_of_checkpoints_old_or_new(folder, where):
    model = nn.Linear(2, 2)

    def step():
        checkpoints = CheckpointDirectory(folder / where, keep=2)
        assert checkpoints.restore(model=model) is None
        for number in (1, 2, 3):
            checkpoints.save(number, model=model)
        assert checkpoints.steps() == [2, 3]
        assert checkpoints.restore(model=model) == {"step": 3}

    estimate(step)


def test_a_folder_inside_of_none_is_refused(folder):
    def step():
        with pytest.raises(FileNotFoundError, match="below"):
            (folder / "new" / "below").mkdir()
        os.makedirs(folder / "new" / "below")
        handle = os.open(folder / "new" / "below", os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)

    estimate(step)


def test_temporary_files_are_real():
    def step():
        with tempfile.TemporaryDirectory() as place:
            assert os.path.isdir(place)
            Path(place, "x").write_text("x")
            assert Path(place, "x").read_text() == "x"
        assert not os.path.isdir(place)
        with tempfile.NamedTemporaryFile("w+") as f:
            f.write("text")
            f.seek(0)
            assert f.read() == "text"

    estimate(step)


def test_errors_name_the_file(folder):
    missing = folder / "missing"
    with pytest.raises(FileNotFoundError, match="No such file") as caught:
        estimate(lambda: missing.read_text())
    assert caught.value.filename == str(missing)
    with pytest.raises(FileNotFoundError):
        estimate(lambda: missing.open("r+"))
    with pytest.raises(FileExistsError):
        estimate(lambda: (folder / "old").open("x"))


def test_weights_that_are_saved_can_be_loaded(folder):
    net, x = nn.Sequential(nn.Linear(40, 300), nn.Tanh(), nn.Linear(300, 300)), lt.randn(8, 40)
    optimizer = optim.AdamW(net.parameters())
    best = folder / "best.safetensors"

    def epoch():
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7}
        lt.save(state, best)
        found = lt.load(best)
        assert found["epoch"] == 7
        net.load_state_dict(found["net"])
        optimizer.load_state_dict(found["optimizer"])

    estimates = [predicted(epoch) for _ in range(2)]
    assert estimates[0] == estimates[1]
    assert not best.exists()
    with tempfile.TemporaryDirectory() as elsewhere:
        best = Path(elsewhere, "best.safetensors")
        assert estimates[0] == measured(epoch)


def test_weights_on_their_way_take_no_room():
    w = lt.empty(1 << 24)  # 64 MiB

    def step():
        with tempfile.TemporaryDirectory() as place:
            path = os.path.join(place, "w")
            lt.save({"w": w}, path)
            found = os.stat(path)
            assert found.st_size > w.nbytes
            assert found.st_blocks * 512 < 1 << 20

    estimate(step)


def test_a_copy_of_a_copy_has_the_same_files(folder):
    def step():
        (folder / "new").write_text("new")
        estimate(lambda: (folder / "new").read_text())
        return estimate(lambda: (folder / "old").unlink())

    estimate(step)


def _profiled():
    with lt.profiling.MemoryProfiler() as prof:
        nn.Linear(8, 8)(lt.ones(4, 8)).sum().backward()
    return prof


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "write",
    [
        lambda path: _profiled().plot(f"{path}.png"),
        lambda path: _profiled().html(f"{path}.html"),
        lambda path: _profiled().to_json(f"{path}.json"),
        lambda path: _profiled().to_perfetto(f"{path}.perfetto"),
        lambda path: _profiled().to_flamegraph(f"{path}.txt"),
        lambda path: _profiled().to_pytorch_snapshot(f"{path}.pickle"),
        lambda path: lt.fit(lambda: lt.ones(1 << 16), budget="1MiB").plot(f"{path}.png"),
        lambda path: lt.fit(lambda: lt.ones(1 << 16), budget="1MiB").save(f"{path}.json"),
    ],
    ids=["plot", "html", "json", "perfetto", "flamegraph", "snapshot", "tide", "plan"],
)
def test_what_profilers_and_plans_write_stays_off_the_disk(folder, write):
    # All of them replace a file in one step, as `save` does.
    found = []

    def step():
        write(folder / "written")
        found.extend(glob.glob(f"{folder}/written.*"))
        assert len(found) == 1
        assert Path(found[0]).stat().st_size > 0

    estimate(step)
