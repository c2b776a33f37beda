"""A predicted step runs in a copy of the process: program and machine see nothing of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework.device import device
from lowtide.framework.devices import backend
from lowtide.profiling import MemoryProfiler, estimate
from lowtide.utils.data import DataLoader, TensorDataset
from tests.profiling.predictions import measured, predicted
from tests.profiling.steps import classified, mlp


def state_of(model, optimizer):
    values = [p.detach().numpy().copy() for p in [*model.parameters(), *model.buffers()]]
    values += [p.grad.numpy().copy() for p in model.parameters() if p.grad is not None]
    for state in optimizer.state.values():
        values += [v.numpy().copy() if isinstance(v, lt.Tensor) else v for v in state.values()]
    return values, [p._version for p in model.parameters()]


def _numpy_stream():
    return np.random.get_state()[1].tolist()  # noqa: NPY002


def test_nothing_changes(tmp_path):
    model = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 5))
    step = classified(model, 16, 20, make=optim.AdamW)
    step()
    data = DataLoader(TensorDataset(lt.randn(30, 20)), batch_size=8, shuffle=True)
    batches = iter(data)
    kept, path = [], tmp_path / "weights"
    log = open(tmp_path / "log", "w")  # noqa: SIM115
    log.write("begun")
    g = lt.Generator().manual_seed(3)

    def long_step():
        kept.append(step())
        next(batches)
        lt.randn(5, generator=g)
        lt.save(model.state_dict(), path)
        (tmp_path / "other").write_text("x")
        (tmp_path / "folder").mkdir()
        assert os.listdir(tmp_path / "folder") == []
        (tmp_path / "log").rename(tmp_path / "moved")
        (tmp_path / "log").unlink()
        with tempfile.TemporaryDirectory() as folder:
            assert os.path.isdir(folder)
        assert not os.path.isdir(folder)
        print("text", file=log, flush=True)
        model.eval()
        lt.set_default_dtype(lt.float64)
        np.random.rand()  # noqa: NPY002 - the global stream, as users of it do
        os.environ["LOWTIDE_TEST"] = "1"

    before = state_of(*step.holds)
    streams = lt.get_rng_state().tolist(), g.get_state().tolist(), _numpy_stream()
    be = backend(device("cpu"))
    ledger = be.ledger.live, be.ledger.roles[:], be.ledger.peak, be.ledger.allocations
    pool = be.pool.top, be.pool.peak, {k: v[:] for k, v in be.pool.bins.items()}
    estimate(long_step)
    assert ledger == (be.ledger.live, be.ledger.roles, be.ledger.peak, be.ledger.allocations)
    assert pool == (be.pool.top, be.pool.peak, be.pool.bins)
    after = state_of(*step.holds)
    for a, b in zip(before[0], after[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert before[1] == after[1]
    assert streams == (lt.get_rng_state().tolist(), g.get_state().tolist(), _numpy_stream())
    assert model.training
    assert lt.get_default_dtype() is lt.float32
    assert kept == []
    assert "LOWTIDE_TEST" not in os.environ
    assert [p.name for p in tmp_path.iterdir()] == ["log"]
    log.close()
    assert (tmp_path / "log").read_text() == "begun"


def test_output_is_thrown_away(capfd):
    estimate(lambda: (print("hello"), print("there", file=sys.stderr), os.write(1, b"raw")))
    assert capfd.readouterr() == ("", "")


def test_who_profiles_meanwhile_sees_nothing():
    step = classified(mlp(), 32, 20)
    with MemoryProfiler() as prof:
        estimate(step)
    assert len(prof.recording.events) == 0


class Odd(ValueError):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.two = two


def test_exceptions_come_back():
    def step():
        raise Odd(1, lt.zeros(1))

    with pytest.raises(Odd, match="1 and") as caught:
        estimate(step)
    assert any("raise Odd(1, lt.zeros(1))" in note for note in caught.value.__notes__)

    class Local(RuntimeError):
        pass

    def other():
        raise Local("here")

    with pytest.raises(Local, match="here"):
        estimate(other)
    x = lt.randn(3, 4)
    with pytest.raises(RuntimeError, match="matmul"):
        estimate(lambda: x @ x)
    with pytest.raises(SystemExit):
        estimate(lambda: sys.exit(3))


# Processes


def children():
    """Processes that this one has started and not waited for, ended ones included."""
    return {(p.pid, p.create_time()) for p in psutil.Process().children()}


def test_no_process_is_left():
    step, before = classified(mlp(), 8, 20), children()
    estimate(step)
    with pytest.raises(ZeroDivisionError):
        estimate(lambda: 1 / 0)
    assert children() <= before


def test_a_copy_that_is_killed():
    with pytest.raises(RuntimeError, match="killed by signal SIGKILL"):
        estimate(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_the_copy_ends_with_the_original():
    script = """
import os, signal, threading, time
import lowtide as lt
reader, writer = os.pipe()
def step():
    os.write(writer, str(os.getpid()).encode())
    time.sleep(60)
def end():
    print(os.read(reader, 20).decode(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=end).start()
lt.profiling.estimate(step)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{int(done.stdout)}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":  # it ended; whoever adopted it has not looked yet
            return
        time.sleep(0.05)
    pytest.fail("the copy is still running")


def test_interrupted_it_leaves_no_copy():
    script = """
import os, signal, sys, time
import lowtide as lt
def step():
    time.sleep(60)
signal.signal(signal.SIGALRM, lambda *a: (_ for _ in ()).throw(KeyboardInterrupt()))
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    lt.profiling.estimate(step)
except KeyboardInterrupt:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("none left")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout == "none left\n"


# Among others


def test_within_another_estimate():
    step = classified(mlp(), 32, 20)
    inner = []

    def outer():
        step()
        inner.append(estimate(step).peak_bytes)
        step()
        raise KeyError(inner)

    with pytest.raises(KeyError) as caught:
        estimate(outer)
    step()
    assert caught.value.args[0] == [measured(step)["peak"]]


def test_in_a_thread_while_others_compute():
    step = classified(mlp(), 32, 20)
    step()
    found, stop = [], threading.Event()

    def busy():
        values = np.ones(1000)
        while not stop.is_set():
            values.sum()

    other = threading.Thread(target=busy)
    other.start()
    mine = threading.Thread(target=lambda: found.append(predicted(step)))
    mine.start()
    mine.join()
    stop.set()
    other.join()
    assert found == [measured(step)]


def test_a_loader_with_workers():
    data = TensorDataset(lt.randn(50, 20), lt.randint(0, 5, (50,)))
    loader = DataLoader(data, batch_size=16, num_workers=2)
    model, before = mlp(), children()

    def step():
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            model.zero_grad()

    assert predicted(step)["roles"]["input"] == measured(step)["roles"]["input"]
    assert children() <= before


@pytest.mark.deep
def test_workers_of_the_caller_are_left_alone():
    data = TensorDataset(lt.arange(50 * 2000).view(50, 2000))
    loader = DataLoader(data, batch_size=10, num_workers=2)
    batches = iter(loader)
    next(batches)
    seen = []

    def step(count):
        for _ in range(count):
            (x,) = next(batches)
            seen.append((tuple(x.shape), (x * 2).sum().item()))
        return x

    def failing():
        step(4)
        raise KeyError(seen)

    with pytest.raises(KeyError) as caught:
        estimate(failing)
    assert [shape for shape, _ in caught.value.args[0]] == [(10, 2000)] * 4
    found = predicted(lambda: step(2))
    assert found == measured(lambda: step(2))
    assert [int(x[0, 0]) for (x,) in batches] == [60_000, 80_000]
    batches = iter(DataLoader(data, batch_size=10, num_workers=1))
    with pytest.raises(RuntimeError, match="Keep the DataLoader in a variable"):
        estimate(lambda: next(batches))


# What both have open


def test_the_original_reads_on_where_it_was(tmp_path):
    path = tmp_path / "lines"
    path.write_text("".join(f"line {k}\n" for k in range(20_000)))  # much more than a buffer
    with open(path) as lines, open(path, "rb", buffering=0) as raw:
        first = next(lines)
        seen = []

        def step():
            seen.extend(int(next(lines).split()[1]) for _ in range(10_000))
            assert seen == list(range(1, 10_001))
            assert raw.read(4) == b"line"

        assert first == "line 0\n"
        for _ in range(2):
            estimate(step)
        assert [int(line.split()[1]) for line in lines] == list(range(1, 20_000))
        assert raw.tell() == 0


def test_a_file_open_for_both_is_the_copys_own(tmp_path):
    with open(tmp_path / "both", "w+") as both:
        both.write("abc")
        both.flush()

        def step():
            both.write("def")
            both.seek(0)
            assert both.read() == "abcdef"

        estimate(step)
        assert both.tell() == 3
        both.seek(0)
        assert both.read() == "abc"
    assert (tmp_path / "both").read_text() == "abc"


def test_a_temporary_file_is_the_copys_own():
    with tempfile.TemporaryFile() as kept:
        kept.write(b"abc")
        estimate(lambda: (kept.write(b"def"), kept.flush()))
        kept.seek(0)
        assert kept.read() == b"abc"


def test_nobody_is_asked_anything():
    code = """if True:
        import lowtide as lt
        try:
            lt.profiling.estimate(lambda: input())
        except EOFError:
            print("got", input())
    """
    done = subprocess.run(
        [sys.executable, "-c", code], input=b"answer\n", capture_output=True, timeout=600
    )
    assert done.stdout == b"got answer\n"


class Started(Exception):
    """Brings out the number of a process."""


def test_programs_that_the_step_starts_end_with_it():
    def step():
        raise Started(subprocess.Popen(["sleep", "100"]).pid)

    with pytest.raises(Started) as caught:
        estimate(step)
    (pid,) = caught.value.args
    for _ in range(100):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        time.sleep(0.05)
    raise AssertionError("it still runs")


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="what is mapped is not known")
@pytest.mark.parametrize("named", [True, False])
def test_what_is_mapped_stays_as_it_is(tmp_path, named):
    kept = np.memmap(tmp_path / "values", np.float32, "w+", shape=(3000,))
    kept[:] = 1
    if not named:
        (tmp_path / "values").unlink()
    x = lt.from_numpy(kept[:10])

    def step():
        assert kept.sum() == 3000
        kept[5:2000] = 2
        kept.flush()
        x.numpy()[0] = 3
        assert kept[0] == 3
        assert kept.sum() == 3000 + 1995 + 2

    estimate(step)
    assert kept.sum() == 3000
    if named:
        assert np.fromfile(tmp_path / "values", np.float32).sum() == 3000
    kept[0] = 7
    assert x[0].item() == 7
