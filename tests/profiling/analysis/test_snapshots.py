"""What pictures leave out of a timeline, and what they must not."""

from __future__ import annotations

import pytest

from lowtide.framework.memory.ledger import ROLES
from lowtide.profiling.analysis.snapshots import Span, device_index, phases, take_snapshots
from lowtide.profiling.analysis.summary import kind_of, module_groups, short_lines, summarize
from lowtide.profiling.record.recording import ALLOC, FREE, Recording, busiest
from tests.profiling.recordings import GRADIENT, SAVED, TEMPORARY, WORKSPACE, Tape, gpt


def account(recording: Recording, device: int) -> list[dict[tuple[int, int], int]]:
    """Cells after each event, by a dict of blocks: the oracle."""
    blocks: dict[int, tuple[int, int, int]] = {}
    before = {(0, r): n for r, n in enumerate(recording.marks[0].roles[device]) if n}
    states = [dict(before)]
    for _, kind, d, block, nbytes, role, owner in recording.events.rows():
        if d == device and kind == ALLOC:
            blocks[block] = (nbytes, owner, role)
        elif d == device and kind == FREE:
            del blocks[block]
        elif d == device:
            blocks[block] = (nbytes, blocks[block][1], role)
        cells = dict(before)
        for n, o, r in blocks.values():
            cells[o, r] = cells.get((o, r), 0) + n
        states.append(cells)
    return states


@pytest.mark.parametrize("even", ["time", "events"])
@pytest.mark.parametrize("limit", [1, 7, 60, 10_000])
def test_every_moment_has_the_books_of_its_instant(limit, even):
    recording = gpt(layers=2, steps=2)
    states = account(recording, 0)
    found = take_snapshots(recording, 0, limit, even=even)
    assert found.complete == (limit == 10_000)
    for moment, event in enumerate(found.events):
        assert found.cells_at(moment) == states[event]
        assert found.live[moment] == sum(states[event].values())


@pytest.mark.parametrize("limit", [1, 7, 60, 10_000])
def test_the_peak_is_never_left_out(limit):
    recording = gpt(layers=2, steps=2)
    found = take_snapshots(recording, 0, limit)
    assert max(found.live) == found.live[found.peak] == recording.peaks[0].nbytes
    assert found.cells_at(found.peak) == recording.peaks[0].cells


def test_thinning_keeps_few_moments_and_the_state_at_each_mark():
    recording = gpt(layers=6, steps=3)
    found = take_snapshots(recording, 0, 40)
    assert len(found) <= 40 + len(recording.marks) + 3 < len(recording.events)
    for mark in recording.marks:
        last = max(k for k, event in enumerate(found.events) if event <= mark.event)
        assert found.live[last] == mark.live[0]


def test_stacks_sum_to_the_live_bytes_for_every_grouping():
    recording = gpt(layers=2, steps=2)
    found = take_snapshots(recording, 0, 50)
    for group in (
        lambda owner, role: role,
        lambda owner, role: recording.owners[owner].module,
        lambda owner, role: recording.owners[owner].line,
    ):
        stacks = found.stacks(group)
        assert [sum(column) for column in zip(*stacks.values(), strict=True)] == list(found.live)


def test_without_a_timeline_the_moments_are_marks_and_peak():
    whole = gpt(layers=2, steps=3)
    bare = Recording(
        devices=whole.devices,
        owners=whole.owners,
        seconds=whole.seconds,
        peaks=whole.peaks,
        fullest=whole.fullest,
        marks=whole.marks,
        timeline=False,
    )
    found = take_snapshots(bare, 0)
    assert len(found) == len(bare.marks) + 1
    assert found.live[found.peak] == max(found.live) == bare.peaks[0].nbytes
    assert sorted(n for k, n in enumerate(found.live) if k != found.peak) == sorted(
        mark.live[0] for mark in bare.marks
    )
    assert phases(bare) == []


def test_a_device_has_only_its_own_events():
    tape = Tape("cpu", "sim")
    a, b = tape.owner("a", "add"), tape.owner("b", "mul")
    one, two = tape.alloc(100, TEMPORARY, a), tape.alloc(700, SAVED, b, device=1)
    tape.free(one)
    tape.free(two)
    recording = tape.stop()
    assert list(take_snapshots(recording, 0).live) == [0, 100, 0]
    assert list(take_snapshots(recording, 1).live) == [0, 700, 0]
    assert busiest(recording) == 1 == device_index(recording, None)
    assert device_index(recording, "cpu") == 0


def test_a_peak_at_the_very_start_is_the_first_moment():
    tape = Tape("cpu", before=1000)
    recording = tape.stop()
    tape.free(tape.alloc(0, TEMPORARY, tape.owner("a", "add")))
    found = take_snapshots(recording, 0)
    assert (found.peak, found.live[0], found.cells_at(0)) == (0, 1000, {(0, 2): 1000})


def test_an_unknown_device_is_refused():
    recording = Tape("cpu").stop()
    with pytest.raises(ValueError, match="The recording knows no device 'tpu'; it has cpu"):
        device_index(recording, "tpu")
    with pytest.raises(ValueError, match="knows no device 3"):
        device_index(recording, 3)


def test_an_empty_recording_has_empty_moments():
    found = take_snapshots(Tape("cpu").stop(), 0)
    assert (set(found.live), found.cells_at(found.peak)) == ({0}, {})
    assert phases(Tape("cpu").stop()) == []


def test_phases_follow_the_allocations():
    tape = Tape("cpu")
    forward, backward = tape.owner("a", "add"), tape.owner("a", "AddBackward0", "backward")
    first = tape.alloc(8, TEMPORARY, forward)
    tape.alloc(8, TEMPORARY, forward)
    tape.free(first)
    tape.alloc(8, GRADIENT, backward)
    recording = tape.stop()
    time = recording.events.time
    assert phases(recording) == [
        Span(time[0], time[3], "forward"),
        Span(time[3], round(recording.seconds * 1e9), "backward"),
    ]


def test_the_summary_names_the_peak_its_role_and_its_layer():
    recording = gpt(layers=4, steps=3)
    peak, summary = recording.peaks[0], summarize(recording, 0)
    assert (summary.phase, summary.step, summary.layer) == ("backward", 2, "blocks.3.mlp.down")
    for sums in (summary.roles, summary.modules, summary.lines):
        assert sum(sums.values()) == peak.nbytes
        assert list(sums.values()) == sorted(sums.values(), reverse=True)
    saved = sum(n for (_, role), n in peak.cells.items() if ROLES[role] == "saved")
    downs = sum(
        n for (o, _), n in peak.cells.items() if recording.owners[o].module.endswith("mlp.down")
    )
    assert summary.kinds == (4, downs)
    first, second = summary.sentences()
    assert first == "The peak is 92.12 MiB on cpu, 2.8 ms in, backward of step 2."
    assert second.startswith(
        f"{100 * saved / peak.nbytes:.0f} % of it is saved for backward. Its largest owner"
    )
    assert f"blocks.*.mlp.down: {100 * downs / peak.nbytes:.0f} %, in 4 layers" in second
    assert "the largest layer is blocks.3.mlp.down with 12.00 MiB" in second


def test_the_summary_of_nothing_says_so():
    assert summarize(Tape("cpu").stop(), 0).sentences() == ["Nothing was allocated on cpu."]


def test_the_summary_without_modules_says_so():
    tape = Tape("cpu")
    tape.alloc(64, WORKSPACE, tape.owner("", "sort"))
    _, second = summarize(tape.stop(), 0).sentences()
    assert second == "100 % of it is workspace; no module owns any of it."


def test_the_kind_of_a_layer_leaves_out_the_number_of_its_block():
    assert kind_of("blocks.3.mlp.0") == "blocks.*.mlp.0"
    assert kind_of("layers.11.experts.2.up") == "layers.*.experts.*.up"
    assert kind_of("net.2") == "net.2"
    assert kind_of("") == ""


def test_few_blocks_are_shown_one_by_one_and_many_together():
    few = {f"blocks.{k}.{part}": 10 for k in range(4) for part in ("attn", "mlp")} | {"head": 5}
    group = module_groups(few, 10)
    assert {group(path) for path in few} == {
        f"blocks.{k}.{p}" for k in range(4) for p in ("attn", "mlp")
    } | {"head"}
    many = {f"blocks.{k}.{part}": 10 for k in range(40) for part in ("attn", "mlp")} | {"head": 5}
    group = module_groups(many, 10)
    assert {group(path) for path in many} == {"blocks.*.attn", "blocks.*.mlp", "head"}
    assert group("") == "(outside modules)"


def test_there_are_never_more_groups_than_colors():
    wide = {f"layer{k}": k + 1 for k in range(50)}
    group = module_groups(wide, 10)
    names = {group(path) for path in wide}
    assert len(names) == 11
    assert group("layer49") == "layer49"
    assert group("layer0") == "(all others)"


def test_lines_lose_the_folder_they_have_in_common():
    tape = Tape("cpu")
    for line in ("/a/b/train.py:3", "/a/b/nets/model.py:9", "<stdin>:1"):
        tape.owner("", "add", "forward", line)
    short = short_lines(tape.recording)
    assert short["/a/b/train.py:3"] == "train.py:3"
    assert short["/a/b/nets/model.py:9"] == "nets/model.py:9"
    assert short["<stdin>:1"] == "<stdin>:1"
