"""A trace for Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing).

Counters: live bytes of each device and of each of its roles. Slices, on three tracks: phases,
module calls (nested as the paths are) and ops. Instants: marks, and each device's peak.

A recording knows when bytes came and went, not when a function was entered: so a slice begins with
the first allocation made inside and lasts until the next one made elsewhere. An op that allocates
nothing has none.

Source: the Trace Event Format (Google, 2016), JSON object form; times in microseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from ...framework.serialization.files import replacing
from ..moments import NANOSECONDS, need_timeline, phases
from ..recording import ALLOC, FREE, ROLE, ROLES, Books, Recording, apply

Event = dict[str, Any]
PROCESS = 1
PHASES, MODULES, OPS = 1, 2, 3  # the tracks


def to_perfetto(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a trace of all devices.

    Args:
        recording: What a profiler noted, with its timeline.
        path: The file, JSON.

    Raises:
        RuntimeError: It was made without a timeline.
    """
    need_timeline(recording)
    trace = {
        "traceEvents": list(trace_events(recording)),
        "displayTimeUnit": "ms",
        "otherData": {"writer": "lowtide", "start": recording.start},
    }
    text = json.dumps(trace, separators=(",", ":"), allow_nan=False)
    with replacing(path) as out:
        out.write(text.encode())


def trace_events(recording: Recording) -> Iterator[Event]:
    """All events of the trace: names of tracks, counters, slices, instants."""
    for number, name in ((None, "lowtide"), (PHASES, "phase"), (MODULES, "modules"), (OPS, "ops")):
        yield {
            "ph": "M",
            "pid": PROCESS,
            "tid": number or 0,
            "ts": 0,
            "name": "process_name" if number is None else "thread_name",
            "args": {"name": name},
        }
    for device in range(len(recording.devices)):
        yield from _counters(recording, device)
    for start, end, phase in phases(recording):
        yield _slice(PHASES, phase, start, end, {})
    yield from _modules(recording)
    yield from _ops(recording)
    for mark in recording.marks:
        yield _instant(mark.name, mark.time, {"kind": mark.kind, "live": mark.live})
    for name, peak in zip(recording.devices, recording.peaks, strict=True):
        yield _instant(f"peak of {name}", peak.time, {"bytes": peak.nbytes})


def _counters(recording: Recording, device: int) -> Iterator[Event]:
    first = recording.marks[0].roles if recording.marks else []
    before = first[device] if device < len(first) else [0] * len(ROLES)
    books = Books(before)
    sums = list(before)
    name = recording.devices[device]
    yield _counter(f"{name} live", 0, books.live)
    for number, role_name in enumerate(ROLES):
        yield _counter(f"{name} {role_name}", 0, sums[number])
    for time, kind, d, block, nbytes, role, owner in recording.events.rows():
        if d != device:
            continue
        held = books.blocks.get(block)
        old = held[1] if held else role
        apply(books, kind, block, nbytes, role, owner)
        held = books.blocks.get(block)
        new = held[1] if held else role
        if kind in (ALLOC, FREE):
            sums[new if kind == ALLOC else old] += nbytes if kind == ALLOC else -nbytes
            yield _counter(f"{name} live", time, books.live)
            yield _counter(f"{name} {ROLES[new if kind == ALLOC else old]}", time, sums[old])
        elif old != new:
            sums[old] -= nbytes
            sums[new] += nbytes
            for changed in (old, new):
                yield _counter(f"{name} {ROLES[changed]}", time, sums[changed])


def _modules(recording: Recording) -> Iterator[Event]:
    open_: list[tuple[str, int]] = []  # (name of a part of the path, when it began)
    key = ""
    for time, number in _allocations(recording):
        owner = recording.owners[number]
        path = owner.module.split(".") if owner.module else []
        same = 0
        if owner.phase == key:
            while same < min(len(path), len(open_)) and path[same] == open_[same][0]:
                same += 1
        while len(open_) > same:
            yield _close(open_, time, key)
        key = owner.phase
        open_ += [(part, time) for part in path[same:]]
    while open_:
        yield _close(open_, _end(recording), key)


def _close(open_: list[tuple[str, int]], end: int, phase: str) -> Event:
    path = ".".join(part for part, _ in open_)
    _, start = open_.pop()
    return _slice(MODULES, path, start, end, {"phase": phase})


def _ops(recording: Recording) -> Iterator[Event]:
    running, began = -1, 0
    for time, number in [*_allocations(recording), (_end(recording), -1)]:
        if number != running:
            if running >= 0:
                owner = recording.owners[running]
                yield _slice(OPS, owner.op, began, time, owner._asdict())
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


def _slice(track: int, name: str, start: int, end: int, args: Event) -> Event:
    return {
        "ph": "X",
        "pid": PROCESS,
        "tid": track,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "name": name,
        "args": args,
    }


def _counter(name: str, time: int, nbytes: int) -> Event:
    return {
        "ph": "C",
        "pid": PROCESS,
        "tid": 0,
        "ts": time / 1000,
        "name": name,
        "args": {"bytes": nbytes},
    }


def _instant(name: str, time: float, args: Event) -> Event:
    return {
        "ph": "i",
        "s": "g",
        "pid": PROCESS,
        "tid": 0,
        "ts": time * 1e6,
        "name": name,
        "args": args,
    }
