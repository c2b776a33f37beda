"""Ctrl-C at every place of a step: books, modes, tensors and the next step are as ever after."""

from __future__ import annotations

import _thread
import contextlib
import gc
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.devices import live_backends
from lowtide.framework.interrupts import (
    RestoringExit,
    WholeContext,
    defer_interrupts,
    finalizer,
    listen,
)
from lowtide.framework.memory.block import Block
from lowtide.framework.memory.pool import Pool
from lowtide.framework.modes import local
from lowtide.framework.ops.registry import OPS

from .interrupts import Interrupting, broken, interrupted, modes_now, real, sample
from .scenarios import SCENARIOS, Profiled


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    before, hook = signal.signal(signal.SIGINT, signal.default_int_handler), sys.unraisablehook
    told: list[str] = []
    sys.unraisablehook = lambda u: told.append(f"{u.exc_type.__name__} in {u.object}")
    listen()
    yield
    signal.signal(signal.SIGINT, before)
    sys.unraisablehook = hook
    # An interrupt in a callback of Python's own, or between `open` and `with`, is Python's affair.
    assert not [t for t in told if not t.startswith(("KeyboardInterrupt", "ResourceWarning"))]


LONG = ("Profiled", "Attention", "Loading")
INJECTED = [
    pytest.param(k, marks=pytest.mark.deep if k.__name__ in LONG else ()) for k in SCENARIOS
]


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", INJECTED, ids=lambda k: k.__name__)
def test_injected_interrupts_leave_everything_whole(kind: Any) -> None:
    trial = sample(kind, 6 if kind is Profiled else 16, seed=3)
    assert not trial.failures
    assert trial.outcomes["interrupted"] >= 5


@pytest.mark.deep
@pytest.mark.parametrize("kind", SCENARIOS, ids=lambda k: k.__name__)
def test_signals_at_random_instants_leave_everything_whole(kind: Any) -> None:
    trial = real(kind, 8, seed=4)
    assert not trial.failures
    assert trial.outcomes["interrupted"] == 8


def test_the_harness_sees_an_op_that_is_not_whole() -> None:
    class HalfDone(SCENARIOS[0]):
        def step(self) -> list[Any]:
            for p in self.net.parameters():
                p._array += 1.0
                time.sleep(0)
            return [np.array(0.0)]

    import tests.faults.interrupts as harness

    trial = harness.Trial(HalfDone)
    for p in trial.scenario.net.parameters():
        p._array += 1.0
        break
    trial.check("interrupted", "here")
    assert "a step is half applied" in trial.failures[0][1]


# The pool


def pool_is_whole(pool: Pool, taken: list[Block]) -> bool:
    free = [(o, n) for n, stack in pool.bins.items() if n for o in stack]
    free += [*pool._at.items(), *((o, pool._loose_size) for o in pool._loose)]
    end = 0
    for offset, size in sorted([*free, *((b.offset, b.size) for b in taken)]):
        if offset != end:
            return False
        end = offset + size
    return end == pool.top


def test_an_interrupted_search_loses_no_block_and_gives_none_twice() -> None:
    sizes = [64 * n for n in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)]

    def fragmented() -> tuple[Pool, list[Block]]:
        pool = Pool(1 << 20)
        blocks = [Block(pool, n) for n in sizes]
        return pool, blocks[1::2]  # the others go back

    pool, held = fragmented()
    with Interrupting() as counted:
        Block(pool, 64 * 20), Block(pool, 64 * 7)
    assert counted.places > 20
    for place in range(1, counted.places + 1):
        pool, held = fragmented()
        with interrupted(place):
            more = [Block(pool, 64 * 20), Block(pool, 64 * 7)]
            del more
        assert pool_is_whole(pool, held), f"at place {place}"
        held += [Block(pool, n) for n in sizes]  # and it goes on
        assert pool_is_whole(pool, held), f"after place {place}"
        pool.trim()
        assert pool_is_whole(pool, held), f"trimmed after place {place}"


# Writes in place


def in_place_samples() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    for name, op in sorted(OPS.items()):
        function = getattr(lt.Tensor, op.inplace, None) if op.inplace else None
        if function is None or op.inplace.startswith("_"):
            continue
        for inputs, attributes in testing.samples(op, testing.Make()):
            x = inputs[0]
            if isinstance(x, lt.Tensor) and x.numel() > 1 and x.is_floating_point():
                call = partial(function, **attributes)
                try:
                    with lt.no_grad():
                        call(x.detach().clone(), *inputs[1:])
                except (RuntimeError, TypeError):
                    continue
                yield name, call, inputs
                break


def test_a_write_in_place_is_done_or_not() -> None:
    tried = 0
    for name, function, (x, *rest) in in_place_samples():
        before = x.detach().numpy().copy()
        target = x.detach().clone()
        with lt.no_grad(), Interrupting() as counted:
            function(target, *rest)
        after = target.numpy().copy()
        for place in range(1, counted.places + 1):
            target = x.detach().clone()
            view, version = target[:], target._version
            with lt.no_grad(), interrupted(place):
                function(target, *rest)
            now = target.numpy()
            written = not np.array_equal(now, before, equal_nan=True)
            assert not written or np.array_equal(now, after, equal_nan=True), (name, place)
            assert not written or view._version > version, (name, place)
            tried += 1
        del target, view
    assert tried > 1000


def test_ops_said_to_write_at_once_do() -> None:
    said = [op for op in OPS.values() if op.one_write]
    assert len(said) >= 8
    for op in said:
        inputs, attributes = next(iter(testing.samples(op, testing.Make())))
        arrays = [x._array if isinstance(x, lt.Tensor) else x for x in inputs]
        shape = testing.call(op, inputs, attributes)[0]._array
        out = np.empty_like(shape)
        with Interrupting() as counted:
            op.plain(np, out, *arrays, **attributes)
        whole = out.copy()
        for place in range(1, counted.places + 1):
            out = np.full_like(shape, 77)
            with interrupted(place):
                op.plain(np, out, *arrays, **attributes)
            assert np.all(out == 77) or np.array_equal(out, whole), (op.name, place)


@pytest.mark.deep
def test_a_recorded_write_and_its_history_come_together() -> None:
    def program(place: int) -> tuple[Any, Any, int]:
        w = lt.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
        y = w * 2.0
        with interrupted(place) as tracer:
            y[1:3].mul_(10.0)
        y.square().sum().backward()
        return y.detach().numpy().copy(), w.grad.numpy().copy(), tracer.places

    _, _, places = program(0)
    for place in range(1, places + 1):
        value, gradient, _ = program(place)
        factor = value / np.array([1.0, 2.0, 3.0, 4.0], "f4")
        assert factor.tolist() in ([2, 2, 2, 2], [2, 20, 20, 2])
        assert np.array_equal(gradient, 2 * value * factor), f"at place {place}"


# Modes and contexts

CONTEXTS = {
    "no_grad": lt.no_grad,
    "enable_grad": lt.enable_grad,
    "inference_mode": lt.inference_mode,
    "autocast": lambda: lt.autocast("cpu"),
    "checkpointing": lt.checkpointing,
    "offload": lt.checkpointing.offload,
    "memory_budget": lambda: lt.memory_budget("1GiB"),
    "saved_tensors_hooks": lambda: lt.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    "detect_anomaly": lt.autograd.detect_anomaly,
    "scope": lambda: lt.profiling.scope("here"),
    "device": lambda: lt.device("meta"),
    "fork_rng": lt.random.fork_rng,
    "profiler": lambda: lt.profiling.MemoryProfiler(lines=False),
}


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.deep if n == "profiler" else ()) for n in CONTEXTS]
)
def test_a_context_is_left_wherever_ctrl_c_falls(name: str) -> None:
    before, device = modes_now(), lt.get_default_device()
    with Interrupting() as counted, CONTEXTS[name]():
        pass
    for place in range(1, counted.places + 1):
        with interrupted(place), CONTEXTS[name]():
            pass
        assert modes_now() == before, f"at place {place} of {counted.places}"
        assert lt.get_default_device() is device
        lt.ones(2) + 1.0
    assert not any(b.ledger.observers or b.ledger.budgets for b in live_backends())
    assert not any(b.ledger.limit < 2**60 for b in live_backends())


def test_a_mode_ends_in_exit_stacks_too() -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(lt.no_grad())
        stack.enter_context(lt.autocast("cpu"))
        assert not lt.is_grad_enabled()
        assert local.state.autocast
    assert lt.is_grad_enabled()
    assert local.state.autocast is None


# The tools


def test_ctrl_c_is_delivered_when_the_outermost_block_ends() -> None:
    reached = []

    def nested() -> None:
        with defer_interrupts():
            with defer_interrupts():
                signal.raise_signal(signal.SIGINT)
                reached.append("inner")
            reached.append("outer")
        reached.append("after")

    with pytest.raises(KeyboardInterrupt):
        nested()
    assert reached == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_user_is_called_when_the_block_ends() -> None:
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append("called"))
    with defer_interrupts():
        signal.raise_signal(signal.SIGINT)
        assert not seen
    assert seen == ["called"]


def test_deferring_does_nothing_in_other_threads_and_where_signals_are_ignored() -> None:
    found = []

    def work() -> None:
        with defer_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with defer_interrupts():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_an_interrupted_finalizer_is_called_again_and_ctrl_c_is_not_lost() -> None:
    gc.unfreeze()  # for `broken` to find every storage
    t = lt.ones(1000)
    _ = t._spec  # else its end would come first
    live = testing.live_bytes()
    with interrupted(1) as tracer:
        del t  # the first place: the entry of the storage's finalizer
    assert tracer.where is not None
    assert "__del__" in tracer.where
    assert tracer.outcome == "interrupted"
    assert testing.live_bytes() == live - 4000
    assert not broken(modes_now(), [])


def test_a_context_entered_at_the_moment_of_ctrl_c_is_left_again() -> None:
    log = []

    class Counting(WholeContext):
        def _enter(self) -> None:
            log.append("in")
            signal.raise_signal(signal.SIGINT)

        def _leave(self) -> None:
            log.append("out")

    with pytest.raises(KeyboardInterrupt):
        with Counting():
            log.append("body")
    assert log == ["in", "out"]


def test_leaving_a_context_is_not_interrupted() -> None:
    log = []

    class Counting(WholeContext):
        def _enter(self) -> None:
            pass

        def _leave(self) -> None:
            signal.raise_signal(signal.SIGINT)
            log.append("out")

    with pytest.raises(KeyboardInterrupt):
        with Counting():
            pass
    assert log == ["out"]


def test_leaving_a_context_where_signals_are_ignored_ignores_them() -> None:
    class Signalled(WholeContext):
        def _enter(self) -> None:
            pass

        def _leave(self) -> None:
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Signalled():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_restoring_exit_runs_no_python() -> None:
    class Mode:
        value = "outside"

    class entered:
        def __init__(self) -> None:
            self._before = [None]

        def __enter__(self) -> None:
            self._before[0] = Mode.value  # type: ignore[call-overload]
            Mode.value = "inside"

        __exit__ = RestoringExit(lambda: Mode, "value")

    context = entered()
    with context:
        assert Mode.value == "inside"
        tracer = Interrupting()
        tracer.__enter__()  # no place is passed until the next line
    tracer.__exit__()
    assert Mode.value == "outside"
    assert tracer.places == 0


def test_what_else_fails_in_a_finalizer_is_told_as_ever(monkeypatch: Any) -> None:
    class Failing:
        @finalizer
        def __del__(self) -> None:
            raise ValueError("as ever")

    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda u: told.append(str(u.exc_value)))
    listen()
    Failing()
    Failing()
    assert told == ["as ever", "as ever"]


def test_parts_on_several_threads_are_all_done_before_ctrl_c() -> None:
    from lowtide.framework.kernels.runtime import threads

    done: list[int] = []

    def run(k: int) -> None:
        if k == 0:
            _thread.interrupt_main()
        time.sleep(0.001)
        done.append(k)

    with pytest.raises(KeyboardInterrupt):
        threads.parallel_calls(run, [(k,) for k in range(6)], 2)
    assert sorted(done) == list(range(6))
