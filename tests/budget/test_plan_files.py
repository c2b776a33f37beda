"""Plans as pictures, in notebooks and in files."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.profiling import Plan
from lowtide.profiling.report.plan_picture import (
    COLUMNS,
    Moment,
    Tide,
    figure,
    replays_of,
    svg,
    thinned,
)
from tests.checkpointing.twice import bits, live


@pytest.fixture
def step():
    lt.manual_seed(1)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)])
    x = lt.randn(256, 64)

    def run():
        net.zero_grad()
        net(x).square().mean().backward()

    run.net = net
    return run


@pytest.fixture
def plan(step):
    return lt.fit(step, budget=live() + 700_000)


def test_the_tide_has_the_peaks_that_are_predicted(step, plan):
    tide = plan.tide()
    assert max(m.nbytes for m in tide.planned) == plan.peak <= tide.limit
    assert max(m.nbytes for m in tide.plain) == plan.plain_peak > tide.limit
    assert len(tide.evictions) == plan.dropped
    assert sum(n for _, n in tide.evictions) == sum(d.nbytes for d in plan.decisions)
    assert any(m.replays for m in tide.planned)
    assert not any(m.replays for m in tide.plain)
    for moments in (tide.plain, tide.planned):
        times = [m.time for m in moments]
        assert times == sorted(times)
    assert tide.planned[-1].time > tide.plain[-1].time  # replays take time
    # What a later step really has: the same heights, from the same start to the same end.
    with plan:
        step()
    seen = []
    ledger = lt.framework.devices.backend(lt.device("cpu")).ledger
    lt.framework.memory.events.attach(ledger, observer := lambda *_: seen.append(ledger.live))
    try:
        with plan:
            step()
    finally:
        lt.framework.memory.events.detach(ledger, observer)
    imagined = [m.nbytes for m in tide.planned[1:]]
    assert (seen[0], seen[-1], max(seen)) == (imagined[0], imagined[-1], max(imagined))
    assert set(imagined) <= set(seen)


@pytest.mark.deep
@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_plot_writes_the_format_of_the_ending(plan, tmp_path, ending):
    path = tmp_path / f"tide.{ending}"
    plan.plot(path)
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(start)
    with pytest.raises(ValueError, match=r"plot writes .png, .svg or .pdf; got"):
        plan.plot(tmp_path / "tide.txt")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.deep
def test_the_picture_names_what_it_draws(plan):
    axes = figure(plan.tide(), "a plan").axes[0]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["plain step", "under the plan", "made again", "a value is dropped", "budget"]
    assert axes.get_xlabel() in ("predicted time of kernels, ms", "predicted time of kernels, s")
    assert axes.get_ylabel() == "live bytes, MiB"


def test_a_notebook_shows_figures_tide_and_decisions(plan):
    page = plan._repr_html_()
    assert str(plan).splitlines()[0] in page.replace("&gt;", ">").replace("&lt;", "<")
    found = re.search(r"<svg.*?</svg>", page, re.DOTALL)
    root = ElementTree.fromstring(found[0])
    titles = [element.text for element in root.iter() if element.tag.endswith("title")]
    assert {"plain step", "under the plan", "recomputed", "budget"} <= set(titles)
    assert sum(t.endswith("dropped") for t in titles) == plan.dropped
    assert plan.decisions[0].op in page
    assert "<script" not in page
    assert "<style" not in page


def test_what_is_thinned_keeps_highest_and_lowest():
    moments = [Moment(k / 10, (k * 7919) % 1000, k % 100 < 10) for k in range(20_000)]
    shown = thinned(moments)
    assert len(shown) <= 4 * (COLUMNS + 1)
    assert max(m.nbytes for m in shown) == max(m.nbytes for m in moments)
    assert min(m.nbytes for m in shown) == min(m.nbytes for m in moments)
    assert [m.time for m in shown] == sorted(m.time for m in shown)
    assert thinned(moments[:50]) == moments[:50]


def test_spans_of_replays_join():
    flags = [False, True, True, False, True, False]
    moments = [Moment(float(k), 1, flag) for k, flag in enumerate(flags)]
    assert replays_of(moments) == [(1.0, 3.0), (4.0, 5.0)]


def test_without_times_the_axis_counts_calls():
    tide = Tide([Moment(0, 5, False), Moment(3, 9, False)], [Moment(4, 7, False)], [], 8, False)
    assert figure(tide, "x").axes[0].get_xlabel() == "kernel calls"
    assert "4 kernel calls" in svg(tide)


def test_a_plan_comes_back_from_its_file(step, plan, tmp_path):
    path = tmp_path / "plan.json"
    plan.save(path)
    again = Plan.load(path)
    assert str(again) == str(plan)
    assert again.decisions == plan.decisions
    assert (again.limit, again.cost, again.seconds_range) == (
        plan.limit,
        list(plan.cost),
        list(plan.seconds_range),
    )
    step()
    expected = bits([p.grad for p in step.net.parameters()])
    step.net.zero_grad()
    lt.reset_peak_memory_stats()
    with again:
        step()
    assert bits([p.grad for p in step.net.parameters()]) == expected
    assert lt.max_memory_allocated() == plan.peak
    assert again.evictions == plan.dropped
    with pytest.raises(RuntimeError, match=r"has no step to ask: call lowtide\.fit"):
        again.tide()
    with pytest.raises(RuntimeError, match=r"has no step to ask"):
        again.floor  # noqa: B018 - a property


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept.pop("lowtide_plan"),
        lambda kept: kept.update(lowtide_plan=99),
        lambda kept: kept.pop("peak"),
        lambda kept: kept.update(limit="much"),
        lambda kept: kept.update(limit=-1),
        lambda kept: kept.update(device="nowhere"),
        lambda kept: kept["rule"].update(other=3),
        lambda kept: kept.update(rule=3),
        lambda kept: kept.update(decisions=[3]),
    ],
)
def test_what_is_no_plan_is_refused(plan, tmp_path, change):
    path = tmp_path / "plan.json"
    plan.save(path)
    kept = json.loads(path.read_text())
    change(kept)
    path.write_text(json.dumps(kept))
    with pytest.raises(ValueError, match=r"Plan\.load: .*plan\.json is not a plan of fit"):
        Plan.load(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null"])
def test_what_is_no_json_of_one_is_refused(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a plan of fit"):
        Plan.load(path)
