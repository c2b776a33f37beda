"""Trace export for Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing).

Counters: live bytes of each device and of each role that it had. Slices, on three tracks: phases,
module calls (nested as the paths are) and ops. Instants, on a separate track: marks, and each
device's peak.

A recording knows when bytes came and went, not when a function was entered: so a slice begins with
the first allocation made inside and lasts until the next one made elsewhere. An op that allocates
nothing has none.

Times are microseconds, to the nearest eighth: then a reader's sums of start and duration are exact
in floating point, and no slice seems to end an instant after the next one began (speedscope would
nest them). For the same reader a slice that has nothing to add has no ``args``: it shows them as
part of the name.

Source: the Trace Event Format (Google, 2016), JSON object form.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ...framework.memory.ledger import ROLES
from ...framework.serialization.atomic_files import replacing
from ..analysis.snapshots import NANOSECONDS, need_timeline, phases
from ..record.recording import ALLOC, FREE, ROLE, LiveBytes, Recording, apply
from .module_frames import modules_of

Event = dict[str, Any]
AT_ONCE = 10_000  # events that are written together
PROCESS = 1
TRACKS = ("marks", "phase", "modules", "ops")
# Viewers take a track with the number of its process for its main thread; so none has that.
MARKS, PHASES, MODULES, OPS = range(PROCESS + 1, PROCESS + 1 + len(TRACKS))


def to_perfetto(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a trace of all devices; about 240 bytes per event of the recording.

    Args:
        recording: What a profiler noted, with its timeline.
        path: The file, JSON.

    Raises:
        RuntimeError: It was made without a timeline.
    """
    need_timeline(recording)
    about = {"displayTimeUnit": "ms", "otherData": {"writer": "lowtide", "start": recording.start}}
    events = trace_events(recording)
    comma = ""
    with replacing(path) as out:
        out.write(f'{_json(about)[:-1]},"traceEvents":['.encode())
        while some := list(islice(events, AT_ONCE)):  # a long trace would fill the memory
            out.write(f"{comma}{_json(some)[1:-1]}".encode())
            comma = ","
        out.write(b"]}")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def trace_events(recording: Recording) -> Iterator[Event]:
    """Return all trace events: track names, counters, slices, instants."""
    yield _label("process_name", 0, {"name": "lowtide"})
    for track, name in enumerate(TRACKS, start=MARKS):
        yield _label("thread_name", track, {"name": name})
        yield _label("thread_sort_index", track, {"sort_index": track})
    for device in range(len(recording.devices)):
        yield from _counters(recording, device)
    for start, end, phase in phases(recording):
        yield _slice(PHASES, phase, start, end)
    yield from _modules(recording)
    yield from _ops(recording)
    for mark in recording.marks:
        yield _instant(mark.name, mark.time, {"kind": mark.kind, "live": mark.live})
    for at, device, _, nbytes, replay in recording.evictions.rows():
        if replay < 0:
            args = {"bytes": nbytes, "device": recording.devices[device]}
            yield _instant("dropped for a byte budget", at / NANOSECONDS, args)
    for name, peak in zip(recording.devices, recording.peaks, strict=True):
        yield _instant(f"peak of {name}", peak.time, {"bytes": peak.nbytes})


def _counters(recording: Recording, device: int) -> Iterator[Event]:
    first = recording.marks[0].roles if recording.marks else []
    before = first[device] if device < len(first) else [0] * len(ROLES)
    books = LiveBytes(before)
    sums = list(before)
    # Viewers sort counters by name, so the sum comes first.
    names = [f"{recording.devices[device]} {role}" for role in ("all", *ROLES)]
    everything, *by_role = names
    yield _counter(everything, 0, books.live)
    had = {role for _, _, d, _, _, role, _ in recording.events.rows() if d == device}
    for number, name in enumerate(by_role):
        if sums[number] or number in had:
            yield _counter(name, 0, sums[number])
    for time, kind, d, block, nbytes, role, owner in recording.events.rows():
        if d != device:
            continue
        held = books.blocks.get(block)
        old = held[1] if held else role
        apply(books, kind, block, nbytes, role, owner)
        held = books.blocks.get(block)
        new = held[1] if held else role
        if kind in (ALLOC, FREE):
            changed = new if kind == ALLOC else old
            sums[changed] += nbytes if kind == ALLOC else -nbytes
            yield _counter(everything, time, books.live)
            yield _counter(by_role[changed], time, sums[changed])
        elif old != new:
            sums[old] -= nbytes
            sums[new] += nbytes
            for changed in (old, new):
                yield _counter(by_role[changed], time, sums[changed])


def _modules(recording: Recording) -> Iterator[Event]:
    open_: list[tuple[str, str, int]] = []  # a module's label, its path, when it began
    phase = ""
    for time, number in _allocations(recording):
        owner = recording.owners[number]
        path = modules_of(owner.module)
        same = 0
        if owner.phase == phase:
            while same < min(len(path), len(open_)) and path[same] == open_[same][:2]:
                same += 1
        while len(open_) > same:
            yield _module(*open_.pop(), time, phase)
        phase = owner.phase
        open_ += [(*names, time) for names in path[same:]]
    while open_:
        yield _module(*open_.pop(), _end(recording), phase)


def _module(label: str, path: str, start: int, end: int, phase: str) -> Event:
    return _slice(MODULES, label, start, end, {"path": path, "phase": phase})


def _ops(recording: Recording) -> Iterator[Event]:
    running, began = -1, 0
    for time, number in [*_allocations(recording), (_end(recording), -1)]:
        if number != running:
            if running >= 0:
                owner = recording.owners[running]
                args = {**owner._asdict(), "callers": list(owner.callers)}
                yield _slice(OPS, owner.op, began, time, args)
            running, began = number, time


def _allocations(recording: Recording) -> Iterator[tuple[int, int]]:
    # When the program was seen to be where: (nanoseconds, owner).
    e = recording.events
    for time, kind, owner in zip(e.time, e.kind, e.owner, strict=True):
        if owner > 0 and kind in (ALLOC, ROLE):
            yield time, owner


def _end(recording: Recording) -> int:
    last = recording.events.time[-1] if len(recording.events) else 0
    return max(round(recording.seconds * NANOSECONDS), last)


def _label(name: str, track: int, args: Event) -> Event:
    return {"ph": "M", "pid": PROCESS, "tid": track, "ts": 0, "name": name, "args": args}


def _slice(track: int, name: str, start: int, end: int, args: Event | None = None) -> Event:
    begins = _microseconds(start)
    event = {
        "ph": "X",
        "pid": PROCESS,
        "tid": track,
        "ts": begins,
        "dur": _microseconds(end) - begins,
        "name": name,
    }
    return event | {"args": args} if args else event


def _counter(name: str, time: int, nbytes: int) -> Event:
    return {
        "ph": "C",
        "pid": PROCESS,
        "tid": 0,
        "ts": _microseconds(time),
        "name": name,
        "args": {"bytes": nbytes},
    }


def _instant(name: str, time: float, args: Event) -> Event:
    return {
        "ph": "i",
        "s": "t",
        "pid": PROCESS,
        "tid": MARKS,
        "ts": _microseconds(time * NANOSECONDS),
        "name": name,
        "args": args,
    }


def _microseconds(nanoseconds: float) -> float:
    return round(nanoseconds / 125) / 8
