"""A profiler records what a byte budget drops and makes again: all of it, with owner and time."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.nn import functional as F
from lowtide.profiling import MemoryProfiler
from lowtide.profiling.analysis.evicted import drop_times, evicted_owners
from lowtide.profiling.record import json_format
from lowtide.profiling.report import text as text_of
from tests.budget.kinds import KINDS


def make(blocks=6):
    lt.manual_seed(0)
    net = nn.Sequential(
        *[nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Dropout(0.1)) for _ in range(blocks)]
    )
    optimizer = optim.AdamW(net.parameters())
    x, y = lt.randn(512, 96), lt.randn(512, 96)

    def step():
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()

    step()
    return step


def tight(step, share=0.5):
    """A budget for a step: what lives, and a share of what it takes above that."""
    start = lt.memory_allocated()
    lt.reset_peak_memory_stats()
    step()
    return lt.memory_budget(start + int((lt.max_memory_allocated() - start) * share))


def recorded(step, budget, **options):
    with MemoryProfiler("cpu", **options) as prof, budget:
        step()
    return prof.recording


def totals(recording):
    found = list(recording.evicted.values())
    return tuple(sum(getattr(e, name) for e in found) for name in ("times", "nbytes", "replays"))


def fitting(run, timeline):
    """A recording of a kind in the first of some budgets in which it has room."""
    for share in (0.8, 0.9, 0.95):
        budget = tight(run, share)
        try:
            return recorded(run, budget, timeline=timeline), budget
        except lt.MemoryLimitError:
            run()  # what it left
    budget = tight(run, 1.0)
    return recorded(run, budget, timeline=timeline), budget


@pytest.mark.quick(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("timeline", [True, False])
def test_all_that_is_dropped_and_made_again_is_in_the_recording(kind, timeline):
    lt.manual_seed(0)
    run = KINDS[kind]()
    run()
    recording, budget = fitting(run, timeline)
    assert totals(recording) == (budget.evictions, budget.evicted_bytes, budget.replays)
    took = sum(e.nanoseconds for e in recording.evicted.values())
    assert took == pytest.approx(1e9 * budget.replay_seconds)
    assert len(recording.evictions) == (budget.evictions + budget.replays if timeline else 0)


def test_owners_are_the_ops_that_computed_the_values():
    step = make()
    budget = tight(step)
    recording = recorded(step, budget)
    assert budget.evictions > 3
    rows = evicted_owners(recording, 0)
    assert {row.owner.op for row in rows} <= {"linear", "gelu", "dropout"}
    assert all(row.owner.module and row.owner.line for row in rows)
    assert len({row.owner for row in rows}) == len(rows)  # forward and recompute are one
    times = list(recording.evictions.time)
    assert all(a <= b for a, b in pairwise(times))
    assert times[0] >= 0
    assert times[-1] <= recording.seconds * 1e9
    assert len(drop_times(recording, 0)) == budget.evictions


def test_each_drop_is_a_release_of_the_ledger():
    step = make()
    recording = recorded(step, tight(step))
    freed = {
        (at, nbytes)
        for at, kind, _, _, nbytes, _, _ in recording.events.rows()
        if kind == 1  # free
    }
    moments = sorted(at for at, _ in freed)
    for at, _, _, nbytes, replay in recording.evictions.rows():
        if replay < 0:
            after = next(m for m in moments if m >= at)
            assert (after, nbytes) in freed


def test_it_is_written_read_and_told():
    step = make()
    budget = tight(step)
    recording = recorded(step, budget)
    text = json.dumps(json_format.to_dict(recording))
    again = json_format.from_dict(json.loads(text))
    assert again.evicted == recording.evicted
    assert again.evictions == recording.evictions
    older = json.loads(text)
    del older["evicted"], older["evictions"]
    assert json_format.from_dict(older).evicted == {}
    with MemoryProfiler("cpu") as prof, budget:
        step()
    report = prof.report()
    verdict = text_of.verdict(prof)
    assert "Evicted for a byte budget on cpu, and recomputed" in report
    assert " values (" in verdict
    assert "most of it for" in verdict
    assert "A byte budget dropped" in verdict


def test_without_a_budget_nothing_is_told():
    step = make()
    with MemoryProfiler("cpu") as prof:
        step()
    assert not prof.recording.evicted
    assert "byte budget" not in prof.report()


def test_nobody_listens_and_nothing_is_noted():
    step = make()
    budget = tight(step)
    told = []

    def observer(*event):
        told.append(event[0])

    be = lt.framework.devices.backend(lt.device("cpu"))
    with lt.framework.memory.events.observe(be.ledger, observer), budget:
        step()
    assert budget.evictions
    assert set(told) <= {"alloc", "free", "role"}  # an observer without `evicted` is not asked
