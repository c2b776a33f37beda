"""Predictions equal what happens, to the byte; and nothing happens."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework import devices
from lowtide.framework.devices import backend, device
from lowtide.framework.devices.cuda import CudaStorage
from lowtide.framework.memory.ledger import Ledger
from lowtide.profiling import MemoryProfiler, estimate, imagination
from lowtide.utils.data import DataLoader, TensorDataset
from tests.profiling.steps import NEEDS_VALUES, STEPS, classified, mlp, training


@pytest.fixture(autouse=True)
def _no_garbage():
    gc.collect()  # what other tests left must not go in the middle of a step


def children():
    """Processes that this one has started and not waited for, ended ones included."""
    return {(p.pid, p.create_time()) for p in psutil.Process().children()}


def measured(step, where="cpu"):
    """What a real step takes of ledger and pool."""
    be = backend(device(where))
    be.ledger.reset_peak()
    be.pool.reset_peak()
    made = be.ledger.allocations
    step()
    return {
        "peak": be.ledger.peak,
        "roles": dict(zip(be.ledger.by_role(), be.ledger.peak_roles, strict=True)),
        "end": be.ledger.live,
        "pool": be.pool.peak,
        "made": be.ledger.allocations - made,
    }


def predicted(step, where="cpu"):
    (d,) = [d for d in estimate(step).devices if d.device == where]
    return {
        "peak": d.peak_bytes,
        "roles": d.peak_roles,
        "end": d.end_bytes,
        "pool": d.reserved_bytes,
        "made": d.allocations,
    }


CASES = [
    pytest.param(name, cheap, id=f"{name}{'' if cheap else ', nothing computed'}")
    for name in STEPS
    for cheap in (True, False)
    if cheap or not name.startswith(NEEDS_VALUES)
]


@pytest.mark.parametrize(("name", "cheap"), CASES)
def test_equals_the_real_step(name, cheap, monkeypatch):
    if not cheap:  # small models too, whose values would be known at next to no cost
        monkeypatch.setattr(imagination, "CHEAP_BYTES", -1)
    lt.manual_seed(0)
    step = STEPS[name]()
    for _ in range(2):  # the first makes gradients and the optimizer's state
        assert predicted(step) == measured(step)
    assert predicted(step) == predicted(step)


def test_a_parameter_in_many_pieces():
    net = nn.Linear(1500, 1301).to(lt.bfloat16)  # 30 pieces, the last one shorter
    optimizer = optim.AdamW(net.parameters())
    for p in net.parameters():
        p.grad = lt.ones_like(p)
    for _ in range(2):
        found = predicted(optimizer.step)
        assert found == measured(optimizer.step)


def test_operations_in_many_pieces():
    def flops(elements):
        net = lt.ones(elements, dtype=lt.bfloat16, requires_grad=True)
        net.grad = lt.ones_like(net)
        return estimate(optim.AdamW([net]).step).flops_by_op

    one, many = flops(1 << 16), flops(40 << 16)
    assert many == {op: 40 * n for op, n in one.items()}


@pytest.mark.parametrize(
    "name", ["recipe chargpt trains", "cnn with batch norm", "gradient penalty"]
)
def test_owners_are_those_of_the_real_step(name):
    step = STEPS[name]()
    step()
    found = estimate(step)
    with MemoryProfiler() as prof:
        step()
    assert found.peak_bytes == prof.peak_bytes == sum(found.at_peak().as_dict().values())
    for by in ("role", "module", "op", "phase"):
        assert found.at_peak(by).as_dict() == prof.at_peak(by).as_dict()
        assert found.saved(by).as_dict() == prof.saved(by).as_dict()
    assert found.recording.events.nbytes == prof.recording.events.nbytes
    assert found.recording.events.kind == prof.recording.events.kind


@pytest.mark.parametrize("where", ["meta", "sim"])
def test_other_devices(where):
    with device(where):
        model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 5))
        x = lt.ones(32, 20)
    optimizer = optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(2):
        found = predicted(lambda: step().item(), where)
        assert found == measured(step, where)


class FakeGpu:
    """As much of CUDA's backend as tensors made before a fork need; its arrays do nothing."""

    xp = None
    kernel_key = "cuda"

    def __init__(self):
        self.device = device("cuda:0")
        self.ledger = Ledger(self.device)
        self.pool = SimpleNamespace(used=0, reset_peak=lambda: None)
        self.reserved_bytes = lambda: 0
        self.top = 1 << 40

    def empty(self, spec, role=0):
        self.top += 512 * (1 + spec.nbytes // 512)
        storage = CudaStorage(self.ledger, SimpleNamespace(ptr=self.top), spec.nbytes, role)
        strides = np.empty(spec.shape, np.int8).strides
        array = SimpleNamespace(
            data=SimpleNamespace(ptr=self.top), owner=storage, shape=spec.shape,
            dtype=spec.np_dtype, strides=[s * spec.dtype.itemsize for s in strides],
        )  # fmt: skip
        return storage, array


def test_a_gpu_is_not_touched(monkeypatch):
    gpu = FakeGpu()
    monkeypatch.setitem(devices._backends, gpu.device, gpu)
    w = lt.empty(30, 40, device="cuda:0", requires_grad=True)
    x = lt.empty(8, 30, device="cuda:0")
    before = gpu.ledger.live

    def step():
        out = (x @ w).relu()
        loss = out[:, 3:].T.square().mean()
        loss.backward()
        out = out.cpu()
        return loss.item(), lt.ones(3).to("cuda:0"), bool(out.any())

    found = {d.device: d for d in estimate(step).devices}["cuda:0"]
    assert (gpu.ledger.live, w.grad) == (before, None)
    assert found.start_bytes == before == (30 * 40 + 8 * 30) * 4
    assert found.end_bytes == before + 30 * 40 * 4  # w.grad
    with device("meta"):
        w, x = lt.empty(30, 40, requires_grad=True), lt.empty(8, 30)

    def same():
        out = (x @ w).relu()
        loss = out[:, 3:].T.square().mean()
        loss.backward()

    as_meta = {d.device: d for d in estimate(same).devices}["meta"]
    assert found.peak_bytes >= before + 8 * 40 * 4 + 30 * 40 * 4
    assert found.peak_bytes - found.start_bytes == as_meta.peak_bytes - as_meta.start_bytes


def test_meta_and_cpu_count_the_same_operations():
    def flops(where):
        with device(where):
            model, x = mlp(), lt.ones(64, 20)
        return estimate(lambda: model(x).sum().backward()).flops_by_op

    assert flops("meta") == flops("cpu")


def test_operations_of_a_matrix_product():
    a = lt.randn(30, 40)
    assert estimate(lambda: a @ a.T).flops_by_op == {"matmul": 2 * 30 * 40 * 30}


# Nothing changes


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


def test_no_process_is_left():
    step, before = classified(mlp(), 8, 20), children()
    estimate(step)
    with pytest.raises(ZeroDivisionError):
        estimate(lambda: 1 / 0)
    assert children() <= before


# Values


def test_what_was_there_is_known_and_what_is_computed_is_not():
    w = lt.full((600, 600), 0.5)
    seen = []

    def step():
        big = w @ w
        seen.append((w[3, 4].item(), big[0, 0].item(), bool(big.sum()), big[0, :2].tolist()))
        seen.append((w.numpy()[0, 0].item(), big.numpy().any().item(), f"{float(big.max())}"))
        w.mul_(2)
        seen.append((w[3, 4].item(), w.detach().clone().sum().item()))
        raise KeyError(seen)

    with pytest.raises(KeyError) as caught:
        estimate(step)
    assert caught.value.args[0] == [
        (0.5, 0.0, False, [0.0, 0.0]),
        (0.5, False, "0.0"),
        (0.0, 0.0),
    ]


def test_guesses_name_the_lines():
    w = lt.randn(600, 600, requires_grad=True)

    def step():
        loss = (w @ w).sum()
        for _ in range(3):
            loss.item()

    (where,) = estimate(step).guesses.items()
    line = step.__code__.co_firstlineno + 3
    assert where == (f"item() at {os.path.relpath(__file__)}:{line}", 3)


def test_small_values_are_computed():
    lengths = lt.tensor([3, 1, 2])

    def step():
        n = int((lengths * 2).max())
        return lt.empty(n, lengths.sum().item(), 1000)

    found = estimate(step)
    assert found.guesses == {}
    assert found.peak_bytes - found.devices[0].start_bytes == 6 * 6 * 1000 * 4


def test_a_shape_that_depends_on_known_values():
    mask = lt.arange(100_000) % 3 == 0

    def step():
        return mask.nonzero()

    found = estimate(step)
    assert found.peak_bytes - found.devices[0].start_bytes == 33_334 * 8


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("nonzero", lambda x: x.nonzero()),
        ("masked_select", lambda x: x.masked_select(x > 0)),
        ("unique", lambda x: x.unique()),
        ("index", lambda x: x[x > 0]),
    ],
)
def test_a_shape_that_depends_on_unknown_values(name, op):
    w = lt.randn(600, 600)
    with pytest.raises(NotImplementedError, match="depends on values") as caught:
        estimate(lambda: op(w @ w))
    assert "Compute it before the step" in str(caught.value)


# Whatever else a program does


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


def test_a_copy_that_is_killed():
    with pytest.raises(RuntimeError, match="killed by signal SIGKILL"):
        estimate(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_a_limit_is_reported_not_raised():
    x = lt.randn(100, 100)
    be = backend(device("cpu"))
    old = lt.set_memory_limit(be.ledger.live + 50_000, "cpu")
    try:
        found = estimate(lambda: x * 2 + x * 3)
        small = estimate(lambda: x * 2)
        with pytest.raises(lt.MemoryLimitError):
            x * 2 + x * 3
    finally:
        lt.set_memory_limit(old, "cpu")
    assert not found.fits
    assert small.fits
    assert found.devices[0].limit_bytes == small.devices[0].limit_bytes
    assert "does not fit" in str(found)


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


def test_modes_of_the_caller_hold():
    w = lt.randn(600, 600, requires_grad=True)
    before = backend(device("cpu")).ledger.by_role()["saved"]
    with lt.no_grad():
        assert estimate(lambda: (w * 2).relu()).peak_roles["saved"] == before
    assert estimate(lambda: (w * 2).relu()).peak_roles["saved"] == before + 600 * 600 // 8  # bits


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


def test_it_prints():
    step = training(model := mlp(), lambda: model(lt.ones(600, 20)).sum(), optim.AdamW)
    text = str(estimate(step))
    assert "cpu: peak" in text
    assert "GFLOP" in text


def test_who_profiles_meanwhile_sees_nothing():
    step = classified(mlp(), 32, 20)
    with MemoryProfiler() as prof:
        estimate(step)
    assert len(prof.recording.events) == 0


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
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10
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
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "none left\n"
