"""Compiling kernels is named, and no time on the axis; evaluation is no forward of a step."""

from __future__ import annotations

import re
import sys
import time

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.profiling import MemoryProfiler, Profile
from lowtide.profiling.analysis.summary import compilation, summarize
from lowtide.profiling.record.compile_clock import LOADING, CompileClock
from lowtide.profiling.record.json_format import from_dict


def test_the_clock_stands_still_in_the_outermost_stretch_only():
    clock = CompileClock()
    now = 0
    clock.now = lambda: now  # type: ignore[method-assign]
    for at, what in ((10, "a"), (12, "inside"), (15, None), (20, None), (30, LOADING), (34, None)):
        now = at
        clock.leave() if what is None else clock.enter(what)
    clock.leave()  # of a stretch that began before anyone listened
    assert [clock.on_axis(t) for t in (5, 10, 13, 20, 25, 32, 34, 40)] == [
        5,
        10,
        10,
        10,
        15,
        20,
        20,
        26,
    ]
    now = 50
    clock.enter(LOADING)
    clock.enter("compiling f")
    assert clock.on_axis(60) == 36  # still inside
    now = 61
    clock.leave()
    clock.leave()
    with clock.paused():
        now = 70
    assert clock.on_axis(70) == 36
    found = clock.compilations()
    assert [c.name for c in found] == ["a", LOADING, "compiling f"]
    assert [round(c.seconds * 1e9) for c in found] == [10, 4, 11]
    assert [round(c.time * 1e9) for c in found] == [10, 20, 36]


def test_a_compilation_is_named_and_left_out_of_the_time():
    from numba import njit

    began = time.perf_counter()
    with MemoryProfiler("cpu") as prof:
        x = lt.ones(1000)

        @njit
        def a_new_loop(values):
            return values.sum()

        a_new_loop(x.numpy())
        del x
    elapsed = time.perf_counter() - began
    (found,) = [c for c in prof.recording.compilations if c.name == "compiling a_new_loop"]
    assert prof.recording.seconds + found.seconds <= elapsed
    assert found.time <= prof.recording.seconds
    assert all(m.time <= prof.recording.seconds for m in prof.marks)
    assert re.search(r"compiling \d+ kernel", prof.report())
    assert from_dict(prof.to_dict()).compilations == prof.recording.compilations
    assert "not shown on the time axis" in compilation(prof.recording)


def test_the_import_of_numba_is_met_and_nothing_stays_behind(monkeypatch):
    module = type(sys)("numba")
    finders = list(sys.meta_path)
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    with MemoryProfiler("cpu") as prof:
        assert len(sys.meta_path) == len(finders) + 1
        spec = sys.meta_path[0].find_spec("numba")
        spec.loader.exec_module = None
        assert sys.meta_path[0].find_spec("numpy") is None
    monkeypatch.setitem(sys.modules, "numba", module)
    assert sys.meta_path == finders
    assert prof.recording.compilations == []
    assert isinstance(np.zeros(1), np.ndarray)


@pytest.fixture
def trained():
    lt.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = lt.optim.SGD(model.parameters(), lr=0.1)
    with MemoryProfiler("cpu") as prof:
        with lt.no_grad():
            model(lt.ones(2, 8))
        for _ in range(3):
            optimizer.zero_grad()
            model(lt.randn(4, 8)).sum().backward()
            optimizer.step()
        with lt.no_grad():
            model(lt.randn(4096, 8))
    return prof


def test_evaluation_is_a_phase_and_belongs_to_no_step(trained: Profile):
    phases = trained.timeline("phase").phases
    kinds = [phase for _, _, phase in phases if phase != "other"]
    assert kinds[0] == kinds[-1] == "evaluation"
    assert kinds.count("evaluation") == 2
    assert "forward" in kinds
    summary = summarize(trained.recording, 0)
    assert summary.phase == "evaluation"
    assert summary.moment().endswith("evaluation after step 3")
    summary.step = 1
    assert summary.moment().endswith("evaluation before step 1")


def test_what_follows_the_last_step_is_not_the_forward_of_another():
    w = lt.ones(10, requires_grad=True)
    optimizer = lt.optim.SGD([w], lr=0.1)
    with MemoryProfiler("cpu") as prof:
        for size in (10, 10, 10_000):
            x = w.expand(size, 10).exp().sum()
            if size == 10:
                x.backward()
                optimizer.step()
            del x
    assert summarize(prof.recording, 0).moment().endswith("forward after step 2")


def test_no_grad_inside_a_module_is_still_its_forward():
    class Codebook(nn.Linear):
        def forward(self, x):
            with lt.no_grad():
                self.seen = x.exp()
            return super().forward(x)

    model = Codebook(4, 4)
    with MemoryProfiler("cpu") as prof:
        model(lt.ones(1000, 4)).sum().backward()
    assert "evaluation" not in {owner.phase for owner in prof.recording.owners}
    with MemoryProfiler("cpu") as prof, lt.inference_mode():
        model(lt.ones(1000, 4))
    assert "evaluation" in {owner.phase for owner in prof.recording.owners}
