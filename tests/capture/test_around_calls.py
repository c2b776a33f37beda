"""Memory, errors, profilers and other state around compiled calls; and calls that are checked."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from typing import Any

import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.device import device
from lowtide.framework.devices import backend
from tests.capture.steps import (
    STEPS,
    Net,
    Setup,
    batches,
    equal_runs,
    live,
    plain_step,
)


def test_between_calls_nothing_is_held_and_a_call_peaks_no_higher() -> None:
    s, t = Setup(), Setup()
    step, plain = lt.compile(plain_step(s), fullgraph=True), plain_step(t)
    ((x, y),) = batches(1, 8192)
    peaks = {}
    for f in (plain, step):
        for _ in range(4):
            f(x, y)
        before = live()
        lt.reset_peak_memory_stats()
        f(x, y)
        peaks[f] = lt.max_memory_allocated() - before
        assert live() == before
    assert peaks[step] <= peaks[plain] * 1.01


def test_storages_without_bytes_do_not_hide_others() -> None:
    def f(x: Any) -> Any:
        found = []
        for _ in range(40):  # the pool's first block is among them
            x = x * 1
            found.append(x)
            x[:0].clone()
        return sum(found)

    gc.collect()
    compiled = lt.compile(f, fullgraph=True)
    for k in range(6):
        assert compiled(lt.full((3,), float(k))).tolist() == [40.0 * k] * 3
    assert compiled.replays == 3


EMPTY_TENSORS = """
import numpy as np
import lowtide as lt

def f(x):
    found = [x * 2 for _ in range(8)]  # one is the pool's first block
    empty = lt.tensor([])  # tensors without bytes have that block's address
    return sum(lt.cat([empty, y]) for y in found)

compiled = lt.compile(f, fullgraph=True)
for k in range(6):
    assert compiled(lt.from_numpy(np.full(3, k, np.float32))).tolist() == [16.0 * k] * 3
print(compiled.replays, compiled.explain())
"""


def test_storages_without_bytes_that_python_fills_do_not_mark_others() -> None:
    code = [sys.executable, "-c", EMPTY_TENSORS]  # of its own: so that the first block is free
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("3 ")
    assert ", 0 bytes of constants" in done.stdout


def test_a_gradient_that_a_graph_keeps_is_guarded() -> None:
    w = lt.ones(3, requires_grad=True)
    f = lt.compile(lambda x: (w * x).sum().backward(), fullgraph=True)
    for _ in range(5):
        f(lt.ones(3))
    assert f.replays == 2
    scale = lt.ones(3, requires_grad=True)
    kept = (scale * w.grad).sum()
    f(lt.ones(3))
    with pytest.raises(lt.GradientError, match="modified by an inplace"):
        kept.backward()


def test_results_have_memory_of_their_own() -> None:
    f = lt.compile(lambda x: (x * 2, x + 1), fullgraph=True)
    found = [f(lt.full((3,), float(k))) for k in range(6)]
    assert [a[0].item() for a, _ in found] == [2.0 * k for k in range(6)]
    assert [b[0].item() for _, b in found] == [1.0 + k for k in range(6)]


def test_a_loss_whose_graph_is_freed_says_so() -> None:
    s = Setup()
    step = lt.compile(plain_step(s))
    ((x, y),) = batches(1)
    losses = [step(x, y) for _ in range(4)]
    for loss in losses:
        assert loss.requires_grad
        assert loss.grad_fn.name() == losses[0].grad_fn.name()
        with pytest.raises(lt.GradientError, match="second time"):
            loss.backward()


def test_an_error_in_a_kernel_is_that_of_the_plain_call() -> None:
    table = lt.arange(12.0).reshape(4, 3)
    f = lt.compile(lambda i: F.embedding(i, table).sum(), fullgraph=True)
    good, bad = lt.tensor([0, 3]), lt.tensor([0, 4])
    for _ in range(3):
        f(good)
    before = live()
    with pytest.raises(IndexError) as replayed:
        f(bad)
    with pytest.raises(IndexError) as plain:
        F.embedding(bad, table)
    assert str(replayed.value) == str(plain.value)
    del replayed, plain
    assert live() == before
    assert f(good).item() == table[[0, 3]].sum().item()


def test_budgets_see_the_plain_call() -> None:
    s = Setup()
    step = lt.compile(plain_step(s), fullgraph=True)
    ((x, y),) = batches(1)
    for _ in range(3):
        step(x, y)
    replays = step.replays
    with lt.memory_budget("1GiB"):
        step(x, y)
    assert step.replays == replays
    step(x, y)
    assert step.replays == replays + 1


def test_methods_have_recordings_of_their_own() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @lt.compile
        def times(self, x: Any) -> Any:
            return x * self.factor

    a, b = Scale(2.0), Scale(3.0)
    for _ in range(4):
        assert (a.times(lt.ones(1)).item(), b.times(lt.ones(1)).item()) == (2.0, 3.0)


def test_reset_forgets_and_disable_returns_the_function() -> None:
    def double(x: Any) -> Any:
        return x + x

    assert lt.compile(double, disable=True) is double
    f = lt.compile(double)
    for _ in range(4):
        f(lt.ones(1))
    assert f.replays == 1
    lt.compiler.reset()
    for _ in range(3):
        f(lt.ones(1))
    assert f.replays == 1


def test_recordings_of_a_model_that_is_replaced_are_let_go() -> None:
    holder = {"net": Net()}
    f = lt.compile(lambda x: holder["net"].first(x).detach())
    with lt.no_grad():
        for _ in range(4):
            f(lt.ones(2, 6))
        old = weakref.ref(holder["net"])
        holder["net"] = Net()
        f(lt.ones(2, 6))
    assert f.replays == 1
    assert old() is None


def test_the_ledger_is_as_before_when_a_compiled_function_is_gone() -> None:
    gc.collect()
    before = live()

    def run() -> None:
        s = Setup()
        step = lt.compile(plain_step(s))
        ((x, y),) = batches(1)
        for _ in range(5):
            step(x, y)

    run()
    gc.collect()
    assert live() == before
    assert backend(device("cpu")).ledger.observers == ()


# Checking


@pytest.mark.parametrize("name", STEPS)
def test_checked_replays_are_equal(name: str) -> None:
    step = equal_runs(STEPS[name], lambda f: lt.compile(f, fullgraph=True, check=2))
    assert step.replays >= 2


def test_a_check_finds_what_recordings_do_not_compare(monkeypatch: Any) -> None:
    def f(x: Any) -> Any:
        return x * float(os.environ["LOWTIDE_TEST_FACTOR"])

    monkeypatch.setenv("LOWTIDE_TEST_FACTOR", "1")
    compiled = lt.compile(f, check=3)
    assert [compiled(lt.ones(1)).item() for _ in range(5)] == [1.0] * 5
    monkeypatch.setenv("LOWTIDE_TEST_FACTOR", "2")
    with pytest.raises(AssertionError, match="differ in what it returns"):
        compiled(lt.ones(1))


def test_a_checked_module_is_equal() -> None:
    net = lt.compile(Net(), fullgraph=True, check=1)
    for _ in range(6):
        net(lt.randn(8, 6)).square().mean().backward()
    assert net._compiled.replays == 3
    assert net.norm.num_batches_tracked.item() == 6
