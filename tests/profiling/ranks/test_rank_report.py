"""Profiles of ranks side by side: what each held, where its steps went, and what stands out."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.distributed as dist
from lowtide import nn, optim
from lowtide.framework.distributed import channel
from lowtide.framework.distributed.transport import Transfer
from lowtide.framework.distributed.waiting import JobRank, WaitingTimes, waits
from lowtide.nn.parallel import DistributedDataParallel
from lowtide.profiling import MemoryProfiler, RankFigures, RankReport, rank_report
from lowtide.profiling.profile import Profile
from lowtide.profiling.ranks.figures import rank_figures
from lowtide.profiling.ranks.picture import figure
from lowtide.profiling.record.json_format import from_dict
from lowtide.profiling.record.recording import Mark, Recording
from tests.distributed.ranks import results

MIB = 1 << 20
PROBES = {"process": {"rss": 1, "peak_rss": 7 * MIB, "method": "test"}, "devices": {}}


def rank(number: int, peak: int = 100, waiting: float = 0.0, **more: Any) -> RankFigures:
    """Figures of a rank whose steps take a second."""
    figures: dict[str, Any] = {
        "rank": number,
        "device": "cpu",
        "peak_bytes": peak * MIB,
        "peak_roles": {"parameter": 60 * MIB, "saved": (peak - 60) * MIB},
        "process_bytes": 300 * MIB,
        "steps": 9,
        "step_seconds": 1.0,
        "computing_seconds": 1.0 - waiting,
        "waiting_seconds": waiting,
        "exchanging_seconds": 0.0,
        "late": {},
    }
    return RankFigures(**{**figures, **more})


def mark(name: str, kind: str, at: float, late: dict[int, float], exchanging: float) -> Mark:
    return Mark(name, kind, at, probes=PROBES, late=late, exchanging=exchanging)


# Waits


def test_a_wait_belongs_to_the_ranks_that_are_late() -> None:
    found = WaitingTimes()
    found.note(0.5, [3])
    found.note(1.0, [3, 1])
    found.note(0.25, [])
    assert dict(found.late) == {3: 1.0, 1: 0.5}
    assert found.exchanging == 0.25


class Slow:
    """A transport on which one message arrives a second, in the order of what is asked for."""

    imagined, writes_late, rank, size = False, True, 0, 3

    def __init__(self) -> None:
        self.clock = 100.0
        self.lines: list[memoryview] = []

    def send(self, peer: int, tag: int, data: memoryview) -> Transfer:
        for line in self.lines:  # all ranks call the same
            line[:] = data
        return Transfer(peer)

    def receive(self, peer: int, tag: int, into: memoryview) -> Transfer:
        if len(into) > 4:
            self.lines.append(into)
        return Transfer(peer)

    def progress(self, seconds: float, transfers: list[Transfer]) -> None:
        if seconds:
            self.clock += 1.0
            next(t for t in transfers if not t.done).done = True


def test_seconds_are_those_of_who_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, times = Slow(), WaitingTimes()
    monkeypatch.setattr(channel, "waits", times)
    clocks = {"perf_counter": lambda: transport.clock, "monotonic": time.monotonic}
    monkeypatch.setattr(channel, "time", SimpleNamespace(**clocks))
    one = channel.Channel(transport, timedelta(seconds=60))
    one.ranks = [5, 7, 9]

    def steps(call: channel.Call) -> channel.Steps:
        yield [call.receive(1, np.zeros(4, np.uint8))]
        yield [call.receive(2, np.zeros(4, np.uint8))]

    one.start("all_reduce", steps).wait()
    assert dict(times.late) == {7: 0.5, 9: 1.5}  # first both, then the last
    assert times.exchanging == 2.0
    one.start_message("recv", lambda call: (w for w in [steps(call).send(None)])).wait()
    assert (times.late[7], times.exchanging) == (1.5, 2.0)
    one.poll()
    assert sum(times.late.values()) + times.exchanging == 5.0


def test_a_rank_that_calls_later_is_waited_for() -> None:
    def rank_of(rank: int, size: int) -> Any:
        x = lt.ones(10)
        pair = dist.new_group([2, 0])  # its ranks are others than those of the world
        dist.barrier()
        before = dict(waits.late)
        if rank == 2:
            time.sleep(0.4)
        if rank != 1:
            dist.all_reduce(x, group=pair)
        dist.barrier()
        return waits.place, {r: s - before.get(r, 0.0) for r, s in waits.late.items()}

    found = results(3, rank_of)
    assert [place[:2] for place, _ in found] == [(0, 3), (1, 3), (2, 3)]
    assert found[0][1][2] > 0.1  # rank 2 of the world is rank 0 of the group
    assert found[1][1][2] > 0.1  # at the barrier
    assert sum(found[2][1].values()) < found[0][1][2]


def test_a_message_that_comes_late_is_waited_for() -> None:
    def rank_of(rank: int, size: int) -> Any:
        x = lt.ones(10)
        dist.barrier()
        before = waits.late[1 - rank]
        if rank == 1:
            time.sleep(0.4)
            dist.send(x, 0)
        else:
            dist.recv(x, 1)
        return waits.late[1 - rank] - before

    assert results(2, rank_of)[0] > 0.1


# Figures of a rank


def test_times_of_a_rank_are_medians_of_its_steps() -> None:
    steps = [(1.0, 0.25), (3.0, 0.5), (4.0, 1.5), (7.0, 1.75)]  # the first ends with the second
    marks = [
        mark("start", "start", 0.0, {}, 0.0),
        *[mark(f"step {k}", "step", at, {2: late}, at / 8) for k, (at, late) in enumerate(steps)],
        mark("stop", "stop", 9.0, {2: 5.0}, 3.0),
    ]
    found = rank_figures(Profile(Recording(marks=marks, place=JobRank(0, 3, ""))))
    assert (found.rank, found.device, found.peak_bytes, found.steps) == (0, "none", 0, 3)
    assert found.step_seconds == 2.0  # of 2, 1, 3
    assert found.waiting_seconds == 0.25  # of 0.25, 1, 0.25
    assert found.late == {2: 0.25}
    assert found.exchanging_seconds == 0.25  # of 0.25, 0.125, 0.375
    assert found.computing_seconds == 1.5  # of 1.5, 0 (a wait in which kernels compile), 2.375
    assert found.process_bytes == 7 * MIB


def test_without_steps_times_are_of_all_of_it() -> None:
    marks = [
        mark("start", "start", 0.0, {1: 1.0}, 1.0),
        mark("step 1", "step", 1.0, {1: 9.0}, 1.0),
        mark("stop", "stop", 4.0, {1: 2.0}, 1.5),
    ]
    found = rank_figures(Profile(Recording(marks=marks, place=JobRank(0, 2, ""))))
    assert (found.steps, found.step_seconds, found.late) == (0, 4.0, {1: 1.0})
    assert (found.exchanging_seconds, found.computing_seconds) == (0.5, 2.5)


def test_a_process_alone_has_no_place_among_ranks() -> None:
    with MemoryProfiler("cpu") as prof:
        lt.ones(3)
    with pytest.raises(ValueError, match="this process was alone"):
        rank_report([prof])


# Side by side


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    late = {2: 0.4}
    ranks = [rank(0, waiting=0.4, late=late), rank(1, waiting=0.4, late=late), rank(2)]
    found = RankReport(ranks, 3)
    assert found.straggler == (2, 0.4, 1.0, 0.6)
    assert found.verdict().splitlines()[1] == (
        "Rank 2 is late: the others wait 400.00 ms for it in a step of 1.00 s (40%). It computes "
        "1.00 s a step, the others 600.00 ms."
    )


def test_ranks_that_wait_for_one_another_in_turn_are_not_named() -> None:
    ranks = [rank(0, waiting=0.3, late={1: 0.3}), rank(1, waiting=0.28, late={0: 0.28})]
    found = RankReport(ranks, 2)
    assert found.straggler is None
    assert "No rank is late" in str(found)
    assert RankReport([rank(0)], 1).straggler is None


def test_nor_is_the_one_of_them_that_computes_longer() -> None:
    ranks = [
        rank(0, waiting=0.3, late={1: 0.3}),
        rank(1, waiting=0.28, late={0: 0.28}, computing_seconds=0.9),
    ]
    assert RankReport(ranks, 2).straggler is None


def test_a_rank_that_does_not_compute_longer_is_not_named() -> None:
    ranks = [rank(0, waiting=0.3, late={1: 0.3}), rank(1, computing_seconds=0.7)]
    assert RankReport(ranks, 2).straggler is None


def test_the_rank_that_holds_more_is_named_with_what_it_has_more() -> None:
    found = RankReport([rank(0), rank(1, peak=130), rank(2)], 3)
    assert found.imbalance == (1, 130 * MIB, 100 * MIB, "saved", 30 * MIB)
    assert found.verdict().startswith(
        "Rank 1 holds most: 130.00 MiB, 30.00 MiB (30%) more than the others. Of saved for "
        "backward it has 30.00 MiB more."
    )
    assert RankReport([rank(0), rank(1, peak=104)], 2).imbalance is None
    assert RankReport([rank(0)], 1).imbalance is None


def test_ranks_without_a_profile_are_named() -> None:
    found = RankReport([rank(1)], 3)
    assert found.missing == [0, 2]
    assert found.verdict().startswith("There is no profile of ranks 0, 2.")
    assert "All ranks have about the same peak, at most 100.00 MiB." in found.verdict()


def test_of_many_ranks_those_that_stand_out_are_shown() -> None:
    late = {40: 0.4}
    every = [rank(k, waiting=0.4, late=late) for k in range(64) if k != 40]
    every[7] = rank(7, peak=150, waiting=0.4, late=late)
    every[9] = rank(9, peak=70, waiting=0.4, late=late)
    found = RankReport([*every, rank(40)], 64)
    shown = [one.rank for one in found.shown()]
    assert len(shown) == 8
    assert shown == sorted(shown)
    assert {7, 9, 40} <= set(shown)
    text = str(found)
    assert text.startswith("64 ranks; times are medians of 9 steps; shown are 8 ranks")
    assert "rank 40" in text
    assert "Rank 7 holds most" in text
    assert "Rank 40 is late" in text


def test_a_table_has_a_column_for_each_rank() -> None:
    lines = str(RankReport([rank(0), rank(1, waiting=0.2, late={0: 0.2})], 2)).splitlines()
    cells = {line[:24].strip(): line[24:].split("  ") for line in lines if "MiB" in line}
    assert lines[2].split() == ["rank", "0", "rank", "1"]
    assert "peak on cpu" in lines[3]
    assert lines[3].count("100.00 MiB") == 2
    assert "saved for backward" in cells
    assert "temporaries" not in cells
    assert next(line for line in lines if line.startswith("others wait for it")).split()[4:] == [
        "200.00",
        "ms",
        "0.00",
        "ms",
    ]
    assert "too few steps" in str(RankReport([rank(0, steps=0)], 1))


def test_a_report_is_plain_data_and_a_picture(tmp_path: Path) -> None:
    found = RankReport([rank(0, waiting=0.4, late={1: 0.4}), rank(1, peak=200)], 2)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["straggler"]["rank"] == data["imbalance"]["rank"] == 1
    assert [one["peak_bytes"] for one in data["ranks"]] == [100 * MIB, 200 * MIB]
    found.plot(tmp_path / "ranks.svg")
    assert (tmp_path / "ranks.svg").read_text().startswith("<?xml")
    held, took = figure(found).axes
    widths = [bar.get_width() for bar in took.patches]
    assert widths == [0.6, 1.0, 0.4, 0.0, 0.0, 0.0]  # computing, waiting, exchanging
    assert sum(bar.get_width() for bar in held.patches) == 300  # MiB of both


def test_a_recording_keeps_its_place_and_waits() -> None:
    marks = [
        Mark("start", "start", 0.0, late={1: 0.5}, exchanging=0.25, probes=PROBES),
        Mark("stop", "stop", 1.0, late={1: 0.75}, exchanging=0.5, probes=PROBES),
    ]
    prof = Profile(Recording(marks=marks, place=JobRank(1, 4, "job")))
    data = json.loads(json.dumps(prof.to_dict()))
    back = from_dict(data)
    assert back.place == JobRank(1, 4, "job")
    assert [(m.late, m.exchanging) for m in back.marks] == [({1: 0.5}, 0.25), ({1: 0.75}, 0.5)]
    del data["place"]  # a file of before ranks were noted
    for one in data["marks"]:
        del one["late"], one["exchanging"]
    old = from_dict(data)
    assert old.place is None
    assert old.marks[1].late == {}
    assert old.marks[1].exchanging == 0.0


# Gathered


def profiled(rank: int, size: int) -> MemoryProfiler:
    """Profile three steps; rank 1 holds a tensor more."""
    lt.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 5)))
    optimizer = optim.AdamW(model.parameters())
    with MemoryProfiler("cpu") as prof:
        held = lt.ones(100_000 * rank)
        for _ in range(3):
            optimizer.zero_grad()
            model(lt.randn(8, 20)).square().mean().backward()
            optimizer.step()
        del held
    return prof


def test_all_ranks_get_the_same_report() -> None:
    def rank_of(rank: int, size: int) -> Any:
        prof = profiled(rank, size)
        report = rank_report(prof)
        return prof.peak_bytes, str(report), report.to_dict()

    found = results(2, rank_of)
    assert found[0][1:] == found[1][1:]
    data = found[0][2]
    assert [one["peak_bytes"] for one in data["ranks"]] == [peak for peak, *_ in found]
    assert found[1][0] - found[0][0] == 400_000
    assert data["imbalance"]["rank"] == 1
    assert data["imbalance"]["role_bytes"] == 400_000
    assert [one["steps"] for one in data["ranks"]] == [2, 2]


def test_profiles_of_files_are_those_of_the_newest_run(tmp_path: Path) -> None:
    def write(name: str, start: float, *place: Any) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        marks = [mark("start", "start", 0.0, {}, 0.0), mark("stop", "stop", 1.0, {}, 0.0)]
        one = Profile(Recording(marks=marks, start=start, place=JobRank(*place)))
        one.to_json(tmp_path / name / "run.json")

    with pytest.raises(ValueError, match=r"has no profiles of ranks: folders rank-0, rank-1"):
        rank_report(tmp_path)
    for k in range(4):
        write(f"rank-{k}", 10.0, k, 4, "first")
    assert list(rank_report(tmp_path).figures) == [0, 1, 2, 3]
    for k in range(2):
        write(f"rank-{k}", 20.0, k, 2, "second")
    found = rank_report(str(tmp_path))
    assert (list(found.figures), found.world_size) == ([0, 1], 2)


def test_a_rank_is_given_once() -> None:
    marks = [mark("start", "start", 0.0, {}, 0.0)]
    one = Profile(Recording(marks=marks, place=JobRank(1, 2, "")))
    with pytest.raises(ValueError, match="two profiles are of rank 1"):
        rank_report([one, one])
    with pytest.raises(ValueError, match="there is no profile"):
        rank_report([])
