"""SummaryWriter: through tensorboardX, or a stand-in for it where that is not installed."""

import importlib
import importlib.util
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

import lowtide as lt
from lowtide.utils.loggers import TrainingLog
from lowtide.utils.tensorboard import SummaryWriter


class Recorded:
    """What tensorboardX's writer was told; of a version that has no such parts as ours uses."""

    def __init__(self, logdir=None, comment="", purge_step=None, **others):
        self.logdir, self.told = logdir, [("open", purge_step)]
        made.append(self)

    def note(name):
        return lambda self, *args, **kwargs: self.told.append((name, *args, *kwargs.values()))

    add_scalar, add_histogram, add_text = map(note, ("add_scalar", "add_histogram", "add_text"))
    flush, close = note("flush"), note("close")


made = []


@pytest.fixture
def stand_in(monkeypatch):
    made.clear()
    module = types.ModuleType("tensorboardX")
    module.SummaryWriter = Recorded
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    return made


def test_without_tensorboardx_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)  # as if it were not there
    with pytest.raises(ModuleNotFoundError, match="pip install tensorboardX.*CSVLogger"):
        SummaryWriter("x")


def test_tensors_are_handed_on_as_arrays(stand_in):
    writer = SummaryWriter("x")
    writer.add_scalar("loss", lt.tensor(0.5, requires_grad=True), 3)
    writer.add_histogram("w", lt.ones(2, 2, dtype=lt.bfloat16), global_step=1)
    told = stand_in[0].told
    assert told[1] == ("add_scalar", "loss", 0.5, 3, None)
    assert told[2][0] == "add_histogram"
    assert isinstance(told[2][2], np.ndarray)
    assert told[2][2].dtype == np.float32
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        writer.other  # noqa: B018


def test_a_training_log_writes_and_flushes_each_record(stand_in):
    log = TrainingLog(SummaryWriter("x"))
    log(4, loss=0.5, note="hello")
    told = stand_in[0].told
    assert told[-1] == ("flush",)
    names = {entry[1] for entry in told if entry[0] == "add_scalar"}
    assert {"loss", "memory/live", "memory/peak/saved"} <= names
    assert not {"step", "time"} & names
    assert all(entry[3] == 4 for entry in told if entry[0] == "add_scalar")
    assert next(entry[1:4] for entry in told if entry[0] == "add_text") == ("note", "hello", 4)
    log.rewind(3)
    assert told[-1] == ("close",)
    assert stand_in[-1].told == [("open", 3)]
    log.close()
    log.loggers[0].close()


def test_memory_is_added_by_role(stand_in):
    SummaryWriter("x").add_memory(2, "cpu")
    names = [entry[1] for entry in stand_in[0].told[1:]]
    assert {"memory/live", "memory/live/parameter", "memory/peak/optimizer"} <= set(names)


def test_an_estimate_writes_nothing(stand_in):
    writer = SummaryWriter("x")

    def step():
        before = len(made)
        writer.add_scalar("a", lt.ones(1))
        writer.add_histogram("a", lt.ones(1))
        writer.flush()
        SummaryWriter("y").add_scalar("a", 1.0)
        if len(made) > before or len(made[0].told) > 1:
            raise RuntimeError("it wrote")

    lt.profiling.estimate(step)


def values(folder):
    """(step, name, value) of all event files, in the order in which TensorBoard reads them."""
    event_pb2 = importlib.import_module("tensorboardX.proto.event_pb2")
    found = []
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        while data:  # length, its sum, event, its sum
            length = int.from_bytes(data[:8], "little")
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            if event.session_log.status == event_pb2.SessionLog.START:
                found = [value for value in found if value[0] < event.step]
            found += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
            data = data[16 + length :]
    return found


with_library = pytest.mark.skipif(
    not importlib.util.find_spec("tensorboardX"), reason="needs tensorboardX"
)


@with_library
def test_event_files_hold_each_record_at_once_and_a_resumed_run_goes_on(tmp_path):
    with TrainingLog(SummaryWriter(tmp_path), memory=False) as log:
        for step in range(1, 50):
            log(step, loss=1 / 2**step)
            assert values(tmp_path)[-1] == (step, "loss", 1 / 2**step)
        log.load_state_dict({"step": 40})
        log(loss=3.0)
    found = values(tmp_path)
    assert [step for step, _, _ in found] == list(range(1, 42))
    assert found[-1] == (41, "loss", 3.0)


@with_library
def test_a_kill_loses_no_record_of_an_event_file(tmp_path):
    code = (
        "import os, signal\nfrom lowtide.utils.loggers import TrainingLog\n"
        "from lowtide.utils.tensorboard import SummaryWriter\n"
        f"log = TrainingLog(SummaryWriter({str(tmp_path)!r}), memory=False)\n"
        "for step in range(20): log(step, loss=0.5)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert values(tmp_path) == [(step, "loss", 0.5) for step in range(20)]


@with_library
def test_the_librarys_other_methods_take_tensors(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        writer.add_histogram("w", lt.randn(10), 1)
        writer.add_scalars("both", {"a": lt.tensor(1.0), "b": 2.0}, 1)
        writer.add_memory(1)
    assert not writer._writes
    for folder in [path for path in tmp_path.iterdir() if path.is_dir()]:  # of add_scalars
        shutil.rmtree(folder)
    assert "memory/live" in {name for _, name, _ in values(tmp_path)}
