"""The bytes of each finding are what dropping it alone frees, and all together is their sum."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numba
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.profiling import Finding, detect_retained
from lowtide.profiling.estimate.fork_sandbox import run_apart
from lowtide.profiling.leaks import ownership

ROOT = Path(__file__).resolve().parents[3]


class Program:
    """A training loop that keeps graphs in several places, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        lt.manual_seed(seed)
        width = rng.choice((4, 16, 64))
        self.net = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))
        self.optimizer = lt.optim.SGD(self.net.parameters(), lr=0.01)
        self.x = lt.randn(rng.choice((3, 32)), 8)
        self.places: dict[str, Any] = {"first": [], "second": deque(), "third": {}, "fourth": []}
        self.kept = sorted(rng.sample(sorted(self.places), rng.randint(1, 4)))
        self.every = {name: rng.choice((1, 1, 2)) for name in self.kept}
        self.common = {name: rng.random() < 0.5 for name in self.kept}
        self.alive = {name: rng.random() < 0.6 for name in self.kept}
        self.step = 0

    def loss(self) -> Any:
        return self.net(self.x).square().mean()

    def train(self) -> None:
        """One step: a loss that is dropped, and some that are kept."""
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()
        hidden = self.net[0](self.x).tanh()
        for name in self.kept:
            if self.step % self.every[name] == 0:
                source = hidden if self.common[name] else self.net[0](self.x).tanh()
                value = self.net[2](source).square().mean()
                if not self.common[name] and not self.alive[name]:
                    value.backward()
                place = self.places[name]
                if isinstance(place, dict):
                    place[self.step] = value
                else:
                    place.append({"loss": value} if name == "fourth" else value)
        self.step += 1


def freed(program: Program, names: list[str]) -> int:
    """Bytes that dropping some places frees, tried in a copy of this process."""

    def drop() -> int:
        gc.collect()
        before = lt.memory_allocated()
        for name in names:
            program.places[name].clear()
        gc.collect()
        return before - lt.memory_allocated()

    return run_apart(drop)


def places_of(found: list[Finding]) -> dict[str, Finding]:
    return {f.root.partition("'")[2].partition("'")[0]: f for f in found if f.kind != "shared"}


def check(seed: int) -> int:
    """Compare the findings of a program with what is freed; return how many there are."""
    program = Program(seed)
    with detect_retained() as watch:
        for _ in range(7):
            program.train()
    found = places_of(watch.findings)
    assert set(found) <= set(program.kept), watch.report()
    for name, f in found.items():
        assert f.bytes == freed(program, [name]), (seed, name, watch.report())
    total = sum(f.bytes for f in watch.findings)
    assert total == freed(program, sorted(found)), (seed, watch.report())
    return len(found)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("seeds", "least"), [((0, 3), 3), pytest.param((100, 130), 30, marks=pytest.mark.deep)]
)
def test_findings_sum_to_what_dropping_them_frees(seeds, least) -> None:
    """In a process of its own: each look goes through all that lives in it."""
    code = (
        "import gc; from tests.profiling.leaks.test_ownership import check; gc.disable(); "
        f"print(sum(check(seed) for seed in range{seeds}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > least


@pytest.mark.deep
def test_two_lists_of_sums_and_of_losses() -> None:
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = lt.optim.SGD(net.parameters(), lr=0.01)
    x = lt.randn(128, 16)
    evals: list[Any] = []
    history: list[Any] = []

    def loss_of() -> Any:
        return net(x).square().mean()

    with detect_retained() as watch:
        for step in range(12):
            optimizer.zero_grad()
            loss_of().backward()
            optimizer.step()
            if step % 4 == 0:
                evals.append(loss_of() + loss_of())
            history.append(loss_of())
    by_name = {f.root.partition("[")[0].strip("`"): f.bytes for f in watch.findings}
    assert set(by_name) == {"evals", "history"}
    for kept, name in ((evals, "evals"), (history, "history")):
        before = lt.memory_allocated()
        kept.clear()
        assert before - lt.memory_allocated() == by_name[name]


@pytest.mark.deep
def test_what_two_lists_share_is_shown_once() -> None:
    w = lt.ones(256, requires_grad=True)
    one: list[Any] = []
    other: list[Any] = []
    with detect_retained() as watch:
        for _ in range(5):
            kept = (w * 2).exp()
            one.append(kept)
            other.append(kept)
            del kept
            watch.step()
    shares = [f for f in watch.findings if f.kind == "shared"]
    assert [f.bytes for f in shares] == [5 * 1024]
    assert sum(f.bytes for f in watch.findings) == 5 * 1024
    report = watch.report()
    assert "held by several of these together" in report
    assert report.startswith(f"{len(watch.findings) - 1} graph")
    before = lt.memory_allocated()
    one.clear()
    assert lt.memory_allocated() == before
    other.clear()
    assert before - lt.memory_allocated() == 5 * 1024


@pytest.mark.deep
def test_counting_keeps_nothing_alive() -> None:
    w, losses = lt.ones(8, requires_grad=True), []
    gc.disable()
    try:
        with detect_retained() as watch:
            for _ in range(4):
                losses.append((w * w).sum())
                watch.step()
        before = lt.memory_allocated()
        assert watch.findings[0].bytes == 16
        losses.clear()
        assert before - lt.memory_allocated() == 16
    finally:
        gc.enable()


def keep_losses(net: Any) -> tuple[list[Any], detect_retained]:
    losses: list[Any] = []
    with detect_retained() as watch:
        for _ in range(4):
            losses.append(net(lt.ones(2, 8)).square().mean())
            losses[-1].backward()
            watch.step()
    return losses, watch


@pytest.mark.deep
def test_kernels_and_what_numba_compiled_are_not_counted(monkeypatch) -> None:
    """An op's kernels lead to Numba, and so to all that it compiled in this process."""

    @numba.njit
    def twice(x: Any) -> Any:
        return 2 * x

    twice(1.0)  # compiled: leads to Numba's registries

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.LayerNorm(4))
            self.activation = twice

        def forward(self, x: Any) -> Any:
            out = self.layers(x)
            out.grad_fn.metadata["net"] = self  # the graph leads to the module, and to Numba
            return out

    monkeypatch.setattr(ownership, "MOST_OBJECTS", 700)
    net = Net()
    losses, watch = keep_losses(net)
    assert watch.counted
    (found,) = watch.findings
    assert found.kind == "list"
    before = lt.memory_allocated()
    losses.clear()
    gc.collect()
    assert before - lt.memory_allocated() == found.bytes


@pytest.mark.deep
def test_too_many_objects_to_count_are_named(monkeypatch) -> None:
    net = nn.Linear(8, 4)
    _, counted = keep_losses(net)
    assert counted.counted
    assert "too many to count" not in counted.report()
    monkeypatch.setattr(ownership, "MOST_OBJECTS", 20)
    _, watch = keep_losses(net)
    assert not watch.counted
    assert "too many to count references" in watch.report()
    assert (watch.shared_bytes, watch.elsewhere_bytes) == (0, 0)
