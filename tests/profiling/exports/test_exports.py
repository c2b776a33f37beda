"""Files for other tools: their schema, and that their figures are the recording's."""

from __future__ import annotations

import json
import pickle
import pickletools
from array import array
from collections import Counter
from itertools import accumulate, pairwise

import pytest

from lowtide.framework.memory.ledger import ROLES
from lowtide.profiling.exports import (
    perfetto,
    to_flamegraph,
    to_perfetto,
    to_pytorch_snapshot,
)
from lowtide.profiling.exports.flamegraph import folded
from lowtide.profiling.exports.module_frames import modules_of
from lowtide.profiling.exports.perfetto import MARKS, MODULES, OPS, PHASES, trace_events
from lowtide.profiling.exports.pytorch_snapshot import snapshot
from lowtide.profiling.record.recording import ALLOC, FREE, Recording
from tests.profiling.recordings import GRADIENT, PARAMETER, SAVED, TEMPORARY, Tape, gpt

# What the viewer's own unpickler knows (MemoryViz.js of PyTorch 2.13).
READABLE = """PROTO FRAME STOP MARK MEMOIZE BINGET LONG_BINGET BINPUT LONG_BINPUT
    NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE BINUNICODE
    EMPTY_DICT DICT SETITEM SETITEMS EMPTY_LIST LIST APPEND APPENDS
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3""".split()


def parts(line: str) -> tuple[list[str], int]:
    stack, _, nbytes = line.rpartition(" ")
    return stack.split(";"), int(nbytes)


# Flame graphs


@pytest.mark.parametrize("what", ["peak", "saved"])
def test_folded_stacks_sum_to_the_bytes(what):
    recording = gpt()
    lines = [parts(line) for line in folded(recording, what)]
    expected = (recording.peaks if what == "peak" else recording.fullest)[0].nbytes
    assert sum(n for _, n in lines) == expected
    assert all(n > 0 for _, n in lines)
    assert len({tuple(stack) for stack, _ in lines}) == len(lines)


def test_a_stack_is_module_line_and_op():
    lines = {tuple(s): n for s, n in map(parts, folded(gpt(), "saved"))}
    stack = ("blocks", "blocks.3", "mlp", "down", "model.py:23", "gelu")
    assert lines[stack] == 4 * (1 << 20)


@pytest.mark.parametrize(
    ("path", "labels"),
    [
        ("", []),
        ("GPT", ["GPT"]),
        ("blocks.3.mlp.2", ["blocks", "blocks.3", "mlp", "mlp.2"]),
        ("0.2.10.norm", ["0", "0.2", "0.2.10", "norm"]),
    ],
)
def test_the_label_of_a_numbered_module_names_what_it_is_the_number_of(path, labels):
    # Tools sum by label (speedscope's "sandwich"): block 2 and a layer 2 in it are two things.
    found = modules_of(path)
    assert [label for label, _ in found] == labels
    wholes = accumulate(path.split("."), "{}.{}".format) if path else []
    assert [whole for _, whole in found] == list(wholes)


def test_names_cannot_break_a_stack(tmp_path):
    tape = Tape("cpu")
    tape.alloc(640, TEMPORARY, tape.owner("a;b.c d\n", "o p;", "forward", "x;y.py:3\r"))
    path = tmp_path / "run.folded"
    to_flamegraph(tape.stop(), path)
    assert path.read_text() == "a,b;c d;x,y.py:3;o p, 640\n"


def test_an_unknown_flame_graph_is_refused(tmp_path):
    with pytest.raises(ValueError, match="of the 'peak' or of what was 'saved'; got 'time'"):
        to_flamegraph(gpt(layers=1, steps=1), tmp_path / "x", what="time")
    assert list(tmp_path.iterdir()) == []


# Perfetto


@pytest.mark.parametrize("at_once", [7, 10_000])
def test_the_trace_has_the_schema_of_trace_events(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(perfetto, "AT_ONCE", at_once)
    path = tmp_path / "run.json"
    to_perfetto(gpt(layers=2), path)
    trace = json.loads(path.read_text())
    assert trace["traceEvents"] == list(trace_events(gpt(layers=2)))
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    for event in trace["traceEvents"]:
        assert set(event) >= {"ph", "pid", "tid", "ts", "name"}
        assert event.get("args") != {}  # speedscope would write {} behind the name
        assert event["ph"] in ("M", "C", "X", "i")
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "C":
            assert list(event["args"]) == ["bytes"]
            assert isinstance(event["args"]["bytes"], int)


def test_counters_reach_the_peak_and_sum_to_the_live_bytes():
    recording = gpt(layers=2)
    now: Counter = Counter()
    highest = 0
    events = [e for e in trace_events(recording) if e["ph"] == "C"]
    times = sorted({e["ts"] for e in events})
    by_time = {t: [e for e in events if e["ts"] == t] for t in times}
    for time in times:
        for event in by_time[time]:
            now[event["name"]] = event["args"]["bytes"]
        assert sum(now[f"cpu {role}"] for role in ROLES) == now["cpu all"]
        highest = max(highest, now["cpu all"])
    assert highest == recording.peaks[0].nbytes
    assert now["cpu all"] == recording.marks[-1].live[0]


def test_the_counter_of_all_bytes_is_sorted_before_those_of_roles_that_occur():
    names = {e["name"] for e in trace_events(gpt(layers=2)) if e["ph"] == "C"}
    used = "gradient input optimizer parameter saved temporary workspace"  # and no buffer
    assert sorted(names) == [f"cpu {name}" for name in ("all", *used.split())]
    tape = Tape("cpu", before=500)  # of parameters that nothing was heard of
    tape.alloc(64, TEMPORARY, tape.owner("", "add"))
    events = (e for e in trace_events(tape.stop()) if e["ph"] == "C" and not e["ts"])
    first = {e["name"]: e["args"]["bytes"] for e in events}
    assert first["cpu all"] == first["cpu parameter"] == 500


def test_tracks_are_named_and_sorted_and_none_is_a_main_thread():
    labels = [e for e in trace_events(gpt(layers=1)) if e["ph"] == "M"]
    names = {e["tid"]: e["args"]["name"] for e in labels if e["name"] == "thread_name"}
    assert names == {MARKS: "marks", PHASES: "phase", MODULES: "modules", OPS: "ops"}
    assert {e["tid"]: e["args"]["sort_index"] for e in labels if "sort" in e["name"]} == {
        track: track for track in names
    }
    assert not {e["pid"] for e in labels} & set(names)


def uneven(recording: Recording) -> Recording:
    """The same at odd nanoseconds, which no float of microseconds holds exactly."""
    columns = recording.events
    columns.time = array("q", [t * 333 + 7 for t in columns.time])
    recording.seconds = max(columns.time) / 1e9
    return recording


@pytest.mark.parametrize("track", [PHASES, MODULES, OPS])
def test_slices_of_a_track_are_nested(track):
    # To the last bit: speedscope puts a slice into the one before if that seems to end later.
    events = trace_events(uneven(gpt(layers=2)))
    slices = [e for e in events if e["ph"] == "X" and e["tid"] == track]
    assert slices
    open_: list[float] = []
    for start, end in sorted(
        ((e["ts"], e["ts"] + e["dur"]) for e in slices), key=lambda s: (s[0], -s[1])
    ):
        while open_ and open_[-1] <= start:
            open_.pop()
        assert not open_ or end <= open_[-1]
        open_.append(end)
        assert track == MODULES or len(open_) == 1


def test_ops_follow_each_other_without_a_gap():
    slices = [e for e in trace_events(uneven(gpt(layers=2))) if e["tid"] == OPS and e["ph"] == "X"]
    assert all(one["ts"] + one["dur"] == two["ts"] for one, two in pairwise(slices))


def test_module_slices_have_a_label_and_their_whole_path():
    found = {
        (e["name"], e["args"]["path"])
        for e in trace_events(gpt(layers=2))
        if e["ph"] == "X" and e["tid"] == MODULES
    }
    assert found >= {
        ("blocks", "blocks"),
        ("blocks.1", "blocks.1"),
        ("mlp", "blocks.1.mlp"),
        ("down", "blocks.1.mlp.down"),
    }


def test_marks_and_peaks_are_instants():
    recording = gpt(layers=2)
    found = {e["name"]: e for e in trace_events(recording) if e["ph"] == "i"}
    assert list(found) == ["start", "step 1", "step 2", "step 3", "stop", "peak of cpu"]
    assert found["peak of cpu"]["args"] == {"bytes": recording.peaks[0].nbytes}
    assert {(e["tid"], e["s"]) for e in found.values()} == {(MARKS, "t")}  # a track with a name


# PyTorch's snapshot


def replay(trace) -> tuple[dict[int, int], int]:
    """Blocks alive at the end, and the most live bytes, as the viewer would find them."""
    alive: dict[int, int] = {}
    most = 0
    for event in trace:
        if event["action"] == "alloc":
            assert event["addr"] not in alive
            alive[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert alive.pop(event["addr"]) == event["size"]
        most = max(most, sum(alive.values()))
    return alive, most


def test_the_snapshot_reaches_the_peak_and_ends_with_what_lives():
    recording = gpt()
    shot = snapshot(recording)
    alive, most = replay(shot["device_traces"][0])
    assert most == recording.peaks[0].nbytes
    assert sum(alive.values()) == recording.marks[-1].live[0]
    (segment,) = shot["segments"]
    held = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
    assert {b["address"]: b["requested_size"] for b in held} == alive


def test_blocks_fill_their_segment_without_overlap():
    (segment,) = snapshot(gpt())["segments"]
    at = segment["address"]
    for block in segment["blocks"]:
        assert block["address"] == at
        assert block["size"] >= block["requested_size"]
        assert block["size"] % 64 == 0
        at += block["size"]
    assert at == segment["address"] + segment["total_size"]


def test_live_blocks_never_overlap_while_the_trace_runs():
    recording = gpt(layers=2, steps=2)
    alive: dict[int, int] = {}
    for event in snapshot(recording)["device_traces"][0]:
        if event["action"] == "alloc":
            start, end = event["addr"], event["addr"] + event["size"]
            assert all(end <= a or a + n <= start for a, n in alive.items())
            alive[start] = event["size"]
        elif event["action"] == "free_completed":
            del alive[event["addr"]]


def test_events_have_the_keys_the_viewer_reads():
    shot = snapshot(gpt(layers=2))
    keys = {"action", "addr", "size", "stream", "time_us", "frames", "category"}
    first, second, *rest = shot["device_traces"][0]
    assert (first["action"], first["category"]) == ("snapshot", "unknown")
    assert (second["action"], second["size"]) == (
        "segment_alloc",
        shot["segments"][0]["total_size"],
    )
    for event in rest:
        assert set(event) == keys
        assert event["category"] in ROLES
        assert event["action"] in ("alloc", "free_requested", "free_completed")
        for frame in event["frames"]:
            assert (type(frame["name"]), type(frame["filename"]), type(frame["line"])) == (
                str,
                str,
                int,
            )


def test_every_free_is_requested_and_then_completed():
    trace = snapshot(gpt(layers=2))["device_traces"][0]
    for one, two in pairwise(trace):
        if one["action"] == "free_requested":
            assert (two["action"], two["addr"]) == ("free_completed", one["addr"])


def test_frames_are_op_line_and_module_innermost_first():
    trace = snapshot(gpt(layers=2))["device_traces"][0]
    frames = next(e for e in trace if e.get("category") == "saved")["frames"]
    assert frames[0] == {
        "name": "linear (forward)",
        "filename": "/home/me/project/model.py",
        "line": 20,
    }
    assert [f["name"] for f in frames[1:]] == ["qkv", "attention", "blocks.0", "blocks"]
    assert frames[1]["filename"] == "blocks.0.attention.qkv"


def test_the_category_is_the_last_telling_role():
    tape = Tape("cpu")
    owner = tape.owner("a", "add")
    kept, plain, grad = (tape.alloc(64 * k, TEMPORARY, owner) for k in (1, 2, 3))
    tape.role(kept, SAVED, owner)
    tape.role(kept, TEMPORARY)
    tape.role(grad, GRADIENT)
    tape.free(kept, plain, grad)
    trace = snapshot(tape.stop())["device_traces"][0]
    found = {e["size"]: e["category"] for e in trace if e["action"] == "alloc"}
    assert found == {64: "saved", 128: "temporary", 192: "gradient"}


def test_what_lived_before_is_there_from_the_start():
    tape = Tape("cpu", before=10_000)
    recording = tape.recording
    known = {"cpu": 10_000}
    # One of its blocks gets a name, another dies nameless, the rest stays.
    owner = tape.owner("net", "before", "other", "before the profiler")
    for kind, block, nbytes, role, who in (
        (3, 1, 4000, PARAMETER, owner),
        (1, 0, 2000, PARAMETER, -1),
    ):
        tape.time += 1000
        values = (tape.time, kind, 0, block, nbytes, role, who)
        for column, value in zip(recording.events.columns().values(), values, strict=True):
            column.append(value)
    recording.seconds = 1.0
    shot = snapshot(recording)
    alive, most = replay(shot["device_traces"][0])
    assert most == known["cpu"]
    assert sorted(alive.values()) == [4000, 4000]
    births = [e for e in shot["device_traces"][0] if e["action"] == "alloc"]
    assert [e["frames"][1]["name"] for e in births if len(e["frames"]) > 1] == ["net"]


def test_the_viewers_unpickler_knows_every_opcode(tmp_path):
    path = tmp_path / "run.pickle"
    to_pytorch_snapshot(gpt(), path)
    data = path.read_bytes()
    operations = list(pickletools.genops(data))
    assert {op.name for op, _, _ in operations} <= set(READABLE)
    assert next(arg for op, arg, _ in operations if op.name == "PROTO") <= 4
    assert pickle.loads(data) == snapshot(gpt())


def test_devices_are_numbered_and_empty_ones_have_no_segment():
    tape = Tape("cpu", "sim", "cuda:0")
    tape.alloc(100, TEMPORARY, tape.owner("a", "add"))
    tape.alloc(200, TEMPORARY, tape.owner("b", "mul"), device=2)
    shot = snapshot(tape.stop())
    assert [segment["device"] for segment in shot["segments"]] == [0, 2]
    # Without a frame the viewer says that it was allocated before it looked.
    assert [s["frames"][0]["name"] for s in shot["segments"]] == ["pool of cpu", "pool of cuda:0"]
    assert [bool(trace) for trace in shot["device_traces"]] == [True, False, True]


@pytest.mark.parametrize("write", [to_perfetto, to_pytorch_snapshot])
def test_an_export_of_events_refuses_a_recording_without_them(tmp_path, write):
    path = tmp_path / "run"
    path.write_text("mine")
    with pytest.raises(RuntimeError, match="has no timeline.*timeline=True"):
        write(Recording(devices=["cpu"], timeline=False), path)
    assert path.read_text() == "mine"


def test_every_event_of_the_recording_is_in_the_snapshot():
    recording = gpt(layers=2)
    trace = snapshot(recording)["device_traces"][0]
    kinds = Counter(recording.events.kind)
    actions = Counter(event["action"] for event in trace)
    assert actions["alloc"] == kinds[ALLOC] + 1  # what lived before is one block
    assert actions["free_requested"] == actions["free_completed"] == kinds[FREE]
