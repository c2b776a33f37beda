"""Pictures, pages and exports of real runs agree with the profiler to the byte."""

from __future__ import annotations

import json
import pickle
import re

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.profiling.analysis.snapshots import take_snapshots


def train(device: str, **options) -> lt.profiling.MemoryProfiler:
    lt.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
    model = model.to(device)
    optimizer = lt.optim.AdamW(model.parameters())
    with lt.profiling.MemoryProfiler(device, **options) as prof:
        for _ in range(3):
            x = lt.randn(16, 32, device=device)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return prof


@pytest.fixture(params=["cpu", "meta", "sim"])
def prof(request):
    return train(request.param)


@pytest.mark.quick(1)
def test_every_file_reaches_the_same_peak(prof, tmp_path):
    for name in ("run.png", "run.svg", "run.pdf"):
        prof.plot(tmp_path / name)
    prof.html(tmp_path / "run.html")
    prof.to_perfetto(tmp_path / "run.json")
    prof.to_pytorch_snapshot(tmp_path / "run.pickle")
    prof.to_flamegraph(tmp_path / "run.folded")

    text = (tmp_path / "run.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    device = data["runs"][0]["devices"][0]
    peaks = {
        "page": sum(device["change"][: sum(device["counts"][: device["moment"] + 1])]),
        "flame graph": sum(
            int(line.rpartition(" ")[2])
            for line in (tmp_path / "run.folded").read_text().splitlines()
        ),
        "perfetto": max(
            event["args"]["bytes"]
            for event in json.loads((tmp_path / "run.json").read_text())["traceEvents"]
            if event["ph"] == "C" and event["name"].endswith(" all")
        ),
        "snapshot": 0,
    }
    live = 0
    for event in pickle.loads((tmp_path / "run.pickle").read_bytes())["device_traces"][0]:
        live += {"alloc": 1, "free_completed": -1}.get(event["action"], 0) * event["size"]
        peaks["snapshot"] = max(peaks["snapshot"], live)
    assert set(peaks.values()) == {prof.peak_bytes}, peaks


def test_the_moment_of_the_peak_has_the_owners_of_the_peak(prof):
    found = take_snapshots(prof.recording, 0, 10)
    assert found.cells_at(found.peak) == prof.peak().cells


def test_the_last_moment_has_the_live_bytes_at_the_end(prof):
    found = take_snapshots(prof.recording, 0, 10)
    assert found.live[-1] == prof.marks[-1].live[0]
    last = len(prof.recording.marks) - 1
    assert found.cells_at(len(found) - 1) == prof.recording.cells_at(last, 0)


def test_a_run_without_a_timeline_can_be_looked_at_too(tmp_path):
    prof = train("cpu", timeline=False)
    prof.plot(tmp_path / "run.png")
    prof.html(tmp_path / "run.html", other=train("cpu"), names=("plain", "whole"))
    prof.to_flamegraph(tmp_path / "run.folded", what="saved")
    text = (tmp_path / "run.html").read_text()
    assert "<h1>Both runs peak at" in text


def test_a_run_can_be_looked_at_while_it_is_recorded(tmp_path):
    with lt.profiling.MemoryProfiler("cpu") as prof:
        kept = lt.ones(1000)
        prof.html(tmp_path / "run.html")
        prof.plot(tmp_path / "run.png")
    assert "The peak is" in (tmp_path / "run.html").read_text()
    assert kept.numel() == 1000


def test_a_stored_run_makes_the_same_page(tmp_path):
    prof = train("meta")
    prof.to_json(tmp_path / "run.json")
    prof.html(tmp_path / "one.html")
    lt.profiling.Profile.from_json(tmp_path / "run.json").html(tmp_path / "two.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
