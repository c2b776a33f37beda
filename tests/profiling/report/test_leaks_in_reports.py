"""A profile says which graphs survive their step: in text, on the page and in its file."""

from __future__ import annotations

import lowtide as lt
from lowtide import nn
from lowtide.profiling import MemoryProfiler
from lowtide.profiling.record.json_format import from_dict
from lowtide.profiling.report.html import page


def leaking(keep, **options):
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = lt.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with MemoryProfiler("cpu", **options) as prof:
        for _ in range(5):
            loss = model(lt.ones(4, 8)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(keep(loss))
    return prof


def test_a_leak_is_in_the_report_though_no_tensor_grows():
    prof = leaking(lambda loss: loss.grad_fn, leaks=True)
    (finding,) = prof.findings
    assert (finding.growth_nodes_per_step, prof.recording.watched) == (4, 5)
    text = prof.report()
    assert "no tensors grew, but graphs did: see below" in text
    assert "1 graph survives its step (5 steps watched)" in text
    assert "test_leaks_in_reports.py" in text
    html = page(prof.recording)
    assert "What survives its step: graphs, and tensors that pile up (5 steps watched)" in html
    assert "1 graph survives its step; each step adds 4 nodes" in html
    again = from_dict(prof.to_dict())
    assert (again.findings, again.watched) == (prof.findings, 5)


def test_a_clean_loop_is_said_to_be_clean_and_an_unwatched_one_is_not():
    watched, alone = leaking(float, leaks=True).report(), leaking(float).report()
    assert "nothing grew" in watched
    assert "No graph survives its step, and no tensors pile up (5 steps watched)." in watched
    assert "survives" not in alone
    assert "Graphs that survive" not in page(leaking(float, leaks=True).recording)
