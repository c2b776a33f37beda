"""Compiled functions among processes, threads, interrupts, limits, views and modes."""

from __future__ import annotations

import math
import signal
import threading
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.framework.capture import binding
from lowtide.nn.parallel import DistributedDataParallel
from tests.capture.steps import Setup, batches, live, plain_step
from tests.distributed.ranks import results

BATCH = 6


def net_of(seed: int = 0) -> Any:
    lt.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def bits(net: Any) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in net.parameters()]


def trained(model: Any, net: Any, rank: int, steps: int = 6) -> list[bytes]:
    opt = optim.SGD(net.parameters(), lr=0.1)
    for k in range(steps):
        x = lt.full((BATCH, 4), float(k + rank)).sin() + lt.arange(4.0)
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
    return bits(net)


def test_data_parallelism_around_a_compiled_model() -> None:
    def rank_of(rank: int, size: int) -> Any:
        net = net_of()
        expected = trained(DistributedDataParallel(net), net, rank)
        other = net_of()
        compiled = lt.compile(other, fullgraph=True)
        found = trained(DistributedDataParallel(compiled), other, rank)
        return found == expected and compiled._compiled.replays == 3

    assert results(2, rank_of) == [True, True]


def test_messages_to_other_processes_are_not_recorded() -> None:
    def rank_of(rank: int, size: int) -> Any:
        def total(x: Any) -> Any:
            lt.distributed.all_reduce(x)
            return x * 2

        f = lt.compile(total)
        with pytest.warns(lt.CaptureWarning, match="messages with other processes"):
            found = [f(lt.full((2,), float(rank + k))).tolist() for k in range(4)]
        assert f.replays == 0
        return found

    expected = [[2.0 * (1 + 2 * k)] * 2 for k in range(4)]
    assert results(2, rank_of) == [expected, expected]


def test_a_second_thread_runs_the_function_itself() -> None:
    inside, go = threading.Event(), threading.Event()

    @lt.compiler.disable
    def wait() -> None:
        inside.set()
        go.wait(10)

    waits = {"on": False}

    def f(x: Any) -> Any:
        if waits["on"]:
            wait()
        return x * 2

    compiled = lt.compile(f)
    for _ in range(4):
        compiled(lt.ones(2))
    waits["on"] = True
    compiled.quiet = True
    found = []
    worker = threading.Thread(target=lambda: found.append(compiled(lt.ones(2)).tolist()))
    worker.start()
    assert inside.wait(10)
    waits["on"] = False
    replays = compiled.replays
    assert compiled(lt.full((2,), 3.0)).tolist() == [6.0, 6.0]  # the lock is taken
    go.set()
    worker.join()
    assert compiled.replays == replays
    assert found == [[2.0, 2.0]]


def interrupted(rows: list[Any], at: int) -> list[Any]:
    def stop() -> None:
        signal.raise_signal(signal.SIGINT)

    return [*rows[:at], (stop, []), *rows[at:]]


@pytest.mark.parametrize("at", range(0, 14, 2))
def test_ctrl_c_in_a_replay_leaves_nothing_behind(at: int, monkeypatch: Any) -> None:
    s = Setup()
    step = lt.compile(plain_step(s), fullgraph=True)
    ((x, y),) = batches(1)
    for _ in range(4):
        step(x, y)
    before, held = s.state(), live()
    run = binding.run_rows
    with monkeypatch.context() as patch:
        recording = next(iter(step._kinds.values())).recordings[0].replay
        segments = recording._segments
        calls = segments[0].args[1]
        assert at < len(calls)
        patch.setattr(recording, "_segments", [lambda: run(interrupted(calls, at)), *segments[1:]])
        lt.manual_seed(7)
        with pytest.raises(KeyboardInterrupt):
            step(x, y)
    assert live() == held - sum(p.nbytes for p in s.net.parameters())  # zero_grad() came first
    names = [n for n, _ in s.net.named_parameters()]
    for n, old in zip(s.net.state_dict(), before, strict=False):
        if n in names:
            assert s.net.state_dict()[n].numpy().tobytes() == old
    assert step(x, y).isfinite().item()
    assert step.replays == 2  # one before, and the interrupted one; without gradients none holds


def test_a_limit_in_a_replay_is_refused_and_the_next_call_works() -> None:
    def f(x: Any) -> Any:
        return ((x * 2).exp() + 1).sum()

    compiled = lt.compile(f, fullgraph=True)
    x = lt.rand(1 << 16)
    expected = f(x).item()
    for _ in range(4):
        assert compiled(x).item() == expected
    before = live()
    lt.set_memory_limit(before + x.nbytes // 2)
    try:
        with pytest.raises(lt.MemoryLimitError):
            compiled(x)
    finally:
        lt.set_memory_limit(math.inf)
    assert live() == before
    assert compiled(x).item() == expected


def test_inference_tensors_and_views_are_taken() -> None:
    net = net_of()
    compiled = lt.compile(net, fullgraph=True)
    with lt.inference_mode():
        for k in range(6):
            x = lt.full((3, 4), float(k)) * 1
            out = compiled(x)
            assert out.is_inference()
            assert out.tolist() == net(x).tolist()
    assert compiled._compiled.replays == 3
    base = lt.zeros(6, 4)
    for _ in range(6):
        x = base[1:4]
        base.add_(1)  # x is stale when it is used
        out = compiled(x)
        assert out.tolist() == net(base[1:4]).tolist()
        assert out.requires_grad
        out.sum().backward()
    assert compiled._compiled.replays == 6


def test_the_default_device_is_part_of_the_key() -> None:
    f = lt.compile(lambda: lt.ones(2) + 1)
    for _ in range(3):
        assert f().device.type == "cpu"
    lt.set_default_device("meta")
    try:
        assert f().device.type == "meta"
    finally:
        lt.set_default_device(None)
    assert f().tolist() == [2.0, 2.0]


def test_memory_that_escapes_is_refused() -> None:
    for read in (lambda x: x.data_ptr(), lambda x: x.untyped_storage(), lambda x: x.__dlpack__()):
        f = lt.compile(lambda x, read=read: (read(x * 1), x * 2)[1])
        f(lt.ones(2))
        with pytest.warns(lt.CaptureWarning, match="reads a tensor's value"):
            f(lt.ones(2))


def test_a_parameter_that_an_optimizer_replaces_is_an_error() -> None:
    class Replaces(optim.SGD):
        swap = False

        def step(self, closure: Any = None) -> None:
            super().step()
            if Replaces.swap:
                for group in self.param_groups:
                    for p in group["params"]:
                        p.data = p.data + 0

    net = net_of()
    opt = Replaces(net.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        opt.zero_grad()
        net(x).sum().backward()
        opt.step()
        with lt.no_grad():
            return net(x)

    f = lt.compile(step)
    for _ in range(4):
        f(lt.ones(2, 4))
    assert f.replays == 1
    Replaces.swap = True
    with pytest.raises(RuntimeError, match="given a tensor other memory"):
        f(lt.ones(2, 4))


def test_user_schedulers_and_subclasses_step_anew() -> None:
    class Halve(optim.lr_scheduler.LRScheduler):
        def step(self, epoch: Any = None) -> None:
            self.halved = getattr(self, "halved", 0) + 1
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.5

    net = net_of()
    opt = optim.SGD(net.parameters(), lr=1.0)
    sched = Halve(opt)
    rate = opt.param_groups[0]["lr"]

    def step(x: Any) -> None:
        opt.zero_grad()
        F.mse_loss(net(x), lt.zeros(2, 2)).backward()
        opt.step()
        sched.step()

    f = lt.compile(step, fullgraph=True)
    for k in range(6):
        f(lt.ones(2, 4))
        assert opt.param_groups[0]["lr"] == rate * 0.5 ** (k + 1)
    assert f.replays == 3


def test_rates_that_a_step_sets_itself_are_refused() -> None:
    net = net_of()
    opt = optim.SGD(net.parameters(), lr=1.0)

    def step(x: Any) -> None:
        opt.param_groups[0]["lr"] *= 0.5
        opt.zero_grad()
        net(x).sum().backward()
        opt.step()

    f = lt.compile(step)
    f(lt.ones(2, 4))
    with pytest.warns(lt.CaptureWarning, match="param_groups"):
        f(lt.ones(2, 4))
    for _ in range(2):
        f(lt.ones(2, 4))
    assert opt.param_groups[0]["lr"] == 0.5**4


def test_numbers_that_an_optimizer_counts_are_refused() -> None:
    net = net_of()
    opt = optim.Adam(net.parameters())
    first = next(net.parameters())

    def step(x: Any) -> Any:
        opt.zero_grad()
        net(x).sum().backward()
        opt.step()
        return x * opt.state[first]["step"]

    f = lt.compile(step)
    f.quiet = True
    assert [f(lt.ones(1, 4))[0, 0].item() for _ in range(5)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert "it names state" in f.reasons[0]


def test_numbers_of_numpy_arrays_are_compared() -> None:
    weights = np.ones(3, np.float32)
    f = lt.compile(lambda x: x * lt.tensor(weights), fullgraph=True)
    for k in range(6):
        weights[:] = k // 3
        assert f(lt.ones(3)).tolist() == [float(k // 3)] * 3
