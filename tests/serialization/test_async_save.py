"""``CheckpointDirectory.async_save``: what is saved, what it costs, what fails, who waits."""

from __future__ import annotations

import gc
import os
import pickle
import queue
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.serialization import background, checkpoint_directory
from lowtide.framework.serialization.atomic_files import UnwrittenError
from lowtide.utils import CheckpointDirectory


@pytest.fixture
def held(monkeypatch):
    """Files are written only when the event is set."""
    may_write, write = threading.Event(), checkpoint_directory.write_encoded

    def late(*args):
        assert may_write.wait(60)
        write(*args)

    monkeypatch.setattr(checkpoint_directory, "write_encoded", late)
    yield may_write
    may_write.set()


def trained():
    lt.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 2))
    optimizer = lt.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    model(lt.ones(3, 5)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_the_file_is_that_of_save(tmp_path):
    model, optimizer = trained()
    objects = {"model": model, "optimizer": optimizer, "epoch": 4, "notes": ["a", b"bytes"]}
    one = CheckpointDirectory(tmp_path / "one").save(3, **objects)
    two = CheckpointDirectory(tmp_path / "two").async_save(3, **objects).result()
    assert two.name == one.name
    assert two.read_bytes() == one.read_bytes()


def test_it_saves_what_was_there_when_it_was_called(tmp_path, held):
    model, optimizer = trained()
    folder = CheckpointDirectory(tmp_path)
    wanted = {k: v.clone() for k, v in model.state_dict().items()}
    future = folder.async_save(1, model=model, optimizer=optimizer, epoch=1)
    step(model, optimizer)
    assert not future.done()
    held.set()
    other = trained()[0]
    assert folder.restore(model=other) == {"step": 1, "epoch": 1}
    assert all(lt.equal(v, wanted[k]) for k, v in other.state_dict().items())
    assert not lt.equal(model[0].weight, wanted["0.weight"])


def test_the_ledger_counts_one_copy_of_each_entry_until_the_file_is_written(tmp_path, held):
    x = lt.ones(1000, dtype=lt.float64)
    values = {"x": x, "same": x, "half": x[:500], "numbers": [1, 2.0], "array": np.ones(3)}
    folder = CheckpointDirectory(tmp_path)
    gc.disable()
    try:
        before = lt.cpu.memory_allocated()
        future = folder.async_save(1, values=values)
        assert lt.cpu.memory_allocated() - before == 8000 + 4000 + 24
        then = queue.Queue()
        future.add_done_callback(lambda _: then.put(lt.cpu.memory_allocated()))
        held.set()
        future.result()
        assert lt.cpu.memory_allocated() == before
    finally:
        gc.enable()
    assert then.get(timeout=60) == before


@pytest.mark.parametrize("seed", range(12))
def test_drawn_tensors_come_back(tmp_path, seed):
    rng = np.random.default_rng(seed)
    kinds = [lt.float32, lt.float64, lt.bfloat16, lt.float16, lt.int8, lt.bool, lt.complex64]
    tensors = {}
    for k in range(6):
        shape = tuple(rng.integers(0, 4, rng.integers(0, 4)))
        x = lt.tensor(rng.standard_normal(shape) * 3).to(kinds[rng.integers(len(kinds))])
        if x.ndim > 1 and rng.random() < 0.6:
            x = x.transpose(0, 1)
        if x.ndim and x.shape[0] > 1 and rng.random() < 0.4:
            x = x[::2]
        tensors[f"t{k}"] = x
    folder = CheckpointDirectory(tmp_path)
    folder.async_save(2, tensors=tensors)
    found = folder.restore()["tensors"]
    for name, x in tensors.items():
        assert found[name].dtype is x.dtype
        assert found[name].shape == x.shape
        assert lt.equal(found[name], x.contiguous())


def test_the_next_save_waits_and_older_ones_go(tmp_path):
    folder = CheckpointDirectory(tmp_path, keep=2)
    futures = [folder.async_save(k, k=k) for k in range(5)]
    assert all(f.done() for f in futures[:-1])
    assert folder.save(5, k=5).name == "step_00000005.safetensors"
    assert folder.steps() == [4, 5]
    assert [f.result().name for f in futures] == [f"step_{k:08d}.safetensors" for k in range(5)]


def test_a_save_that_has_begun_cannot_be_cancelled(tmp_path, held):
    folder = CheckpointDirectory(tmp_path)
    future = folder.async_save(1, x=1)
    assert not future.cancel()
    held.set()
    assert future.result() == folder.latest()


def test_an_interrupt_while_states_are_copied_leaves_nothing(tmp_path, monkeypatch):
    folder, x = CheckpointDirectory(tmp_path), lt.ones(100)
    folder.save(1, x=x)
    gc.collect()
    before = lt.cpu.memory_allocated()

    def interrupted(values, calls=[]):  # noqa: B006 - counts them
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return copied(values)

    copied = background._copied
    with monkeypatch.context() as patched:
        patched.setattr(background, "_copied", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder.async_save(2, x=x, y=x + 1)
    gc.collect()
    assert lt.cpu.memory_allocated() == before
    assert folder.steps() == [1]
    folder.async_save(3, x=x).result()
    assert folder.steps() == [1, 3]


def fails(*_):
    raise UnwrittenError(28, "No space left on device.")


@pytest.mark.parametrize("call", ["save", "async_save", "restore", "release"])
def test_a_failure_is_raised_by_the_next_call(tmp_path, monkeypatch, call):
    folder = CheckpointDirectory(tmp_path)
    folder.save(1, x=1)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_directory, "write_encoded", fails)
        folder.async_save(2, x=lt.ones(10))
        arguments = (3,) if "save" in call else ()
        with pytest.raises(UnwrittenError, match="step 2, whose tensors take 40 bytes"):
            getattr(folder, call)(*arguments)
    assert folder.restore() == {"step": 1, "x": 1}
    folder.save(4, x=4)
    assert folder.steps() == [1, 4]


def test_a_failure_that_the_future_has_told_is_not_raised_again(tmp_path, monkeypatch):
    folder = CheckpointDirectory(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_directory, "write_encoded", fails)
        future = folder.async_save(2, x=1)
        with pytest.raises(UnwrittenError, match="step 2"):
            future.result()
        assert isinstance(future.exception(), UnwrittenError)
    folder.save(3, x=1)
    assert folder.steps() == [3]


def test_without_room_for_the_copies_nothing_is_saved(tmp_path):
    folder, x = CheckpointDirectory(tmp_path), lt.ones(1 << 18)
    folder.save(1, x=1)
    gc.collect()  # what earlier tests have left
    before = lt.cpu.memory_allocated()
    lt.set_memory_limit(before + (2 << 20) + 4096)  # y, and one copy
    try:
        with pytest.raises(lt.OutOfMemoryError):
            folder.async_save(2, x=x, y=x + 1)
    finally:
        lt.set_memory_limit(None)
    gc.collect()
    assert lt.cpu.memory_allocated() == before
    assert folder.restore() == {"step": 1, "x": 1}


def test_what_cannot_be_saved_is_known_at_once(tmp_path):
    folder = CheckpointDirectory(tmp_path)
    folder.save(5)
    with pytest.raises(lt.SerializationError, match="step 4 is below 5"):
        folder.async_save(4)
    with pytest.raises(lt.SerializationError, match="object"):
        folder.async_save(6, thing=object())
    with pytest.raises(lt.SerializationError, match="below 0"):
        folder.async_save(-1)
    assert folder.steps() == [5]


def test_a_copy_of_the_directory_waits_for_nothing(tmp_path, held):
    folder = CheckpointDirectory(tmp_path)
    folder.async_save(1, x=1)
    assert pickle.loads(pickle.dumps(folder)).restore() is None
    held.set()
    folder.release()
    assert pickle.loads(pickle.dumps(folder)).restore() == {"step": 1, "x": 1}


def test_a_fork_waits_for_nothing(tmp_path, held):
    folder = CheckpointDirectory(tmp_path)
    folder.async_save(1, x=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if not child:
        os._exit(0 if folder.restore() is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    held.set()


PROGRAM = """
import sys, time, os
import lowtide as lt
from lowtide.framework.serialization import checkpoint_directory
from lowtide.framework.serialization.atomic_files import UnwrittenError
from lowtide.utils import CheckpointDirectory
write = checkpoint_directory.write_encoded
def late(*args):
    time.sleep(0.5)
    write(*args)
folder = CheckpointDirectory(sys.argv[1])
folder.save(1, x=1)
checkpoint_directory.write_encoded = late
folder.async_save(2, x=lt.ones(1000))
if sys.argv[2] == "kill":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(("end", "steps"), [("end", [1, 2]), ("kill", [1])])
def test_the_end_of_a_process_waits_and_a_kill_leaves_the_older_one(tmp_path, end, steps):
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), end], check=end == "end")
    folder = CheckpointDirectory(tmp_path)
    assert folder.steps() == steps
    assert folder.restore()["step"] == steps[-1]
    folder.save(3)
    assert {p.name for p in tmp_path.iterdir()} == {
        ".writer.lock",
        *(f"step_{k:08d}.safetensors" for k in [*steps, 3]),
    }
