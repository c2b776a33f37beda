"""Snapshots of live bytes by owner, exact, at selected times of a recording.

A picture has a thousand columns and a recording may have millions of events. Here events are left
out, never averaged: in each stretch the moment of the most live bytes and that of the least are
kept, with the whole books as they were, and besides them the start, the end, the peak and the
state at every mark. So a stack drawn from moments sums to the ledger's figure of that instant, and
no peak is lost.

A recording without a timeline still has the books at its marks and at the peak; then those are
the moments.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...framework.memory.ledger import TEMPORARY
from ..record.recording import ALLOC, FREE, ROLE, Cells, LiveBytes, Peak, Recording, apply, busiest

NANOSECONDS = 1_000_000_000


class Span(NamedTuple):
    """A time span in one phase, in nanoseconds since the start."""

    start: int
    end: int
    phase: str


@dataclass
class SnapshotSeries:
    """Snapshots at selected times, each stored as the difference from the one before.

    Attributes:
        times: Nanoseconds since the start, ascending; a state holds until the next.
        events: How many events came before and with each.
        live: Live bytes at each.
        cells: The (owner, role number) pairs that occur.
        starts: Where each moment's changes begin in the two columns below; one more at the end.
        changed: Positions in ``cells``.
        change: Bytes more or less.
        peak: The moment with the most live bytes, as the recording's ``peaks`` say.
        end: When the recording ended, in nanoseconds.
        complete: False if some events were left out.
    """

    times: array[int] = field(default_factory=lambda: array("q"))
    events: array[int] = field(default_factory=lambda: array("q"))
    live: array[int] = field(default_factory=lambda: array("q"))
    cells: list[tuple[int, int]] = field(default_factory=list)
    starts: array[int] = field(default_factory=lambda: array("q", [0]))
    changed: array[int] = field(default_factory=lambda: array("q"))
    change: array[int] = field(default_factory=lambda: array("q"))
    peak: int = 0
    end: int = 0
    complete: bool = True

    def __len__(self) -> int:
        return len(self.times)

    def cells_at(self, moment: int) -> Cells:
        """Return the bytes of each (owner, role) at snapshot ``moment``."""
        held: dict[int, int] = {}
        for k in range(self.starts[moment + 1]):
            position = self.changed[k]
            held[position] = held.get(position, 0) + self.change[k]
        return {self.cells[position]: n for position, n in held.items() if n}

    def stacks(self, group: Callable[[int, int], Hashable]) -> dict[Hashable, list[int]]:
        """Bytes of each group per snapshot; ``group`` maps (owner, role number) to its group."""
        groups = [group(*cell) for cell in self.cells]
        changes: dict[Hashable, list[int]] = {g: [0] * len(self) for g in dict.fromkeys(groups)}
        for moment in range(len(self)):
            for k in range(self.starts[moment], self.starts[moment + 1]):
                changes[groups[self.changed[k]]][moment] += self.change[k]
        return {g: np.cumsum(np.array(c, np.int64)).tolist() for g, c in changes.items()}


def take_snapshots(
    recording: Recording, device: int, limit: int = 2000, *, even: str = "time"
) -> SnapshotSeries:
    """Take snapshots of a device from a recording.

    Args:
        recording: A recording, finished or not.
        device: Index into its ``devices``.
        limit: About how many moments to keep of the timeline; marks come on top.
        even: What a stretch has as much of as the others: ``time``, for a picture of a given
            width, or ``events``, for one to zoom into.
    """
    writer = _Writer(round(recording.seconds * NANOSECONDS))
    if len(recording.events):
        _from_events(recording, device, writer, limit, even)
    else:
        _from_marks(recording, device, writer)
    return writer.out


def phases(recording: Recording) -> list[Span]:
    """Return the phases of the program (forward, backward, ...) as time spans."""
    spans: list[Span] = []
    e = recording.events
    start, phase = 0, ""
    for time, kind, owner in zip(e.time, e.kind, e.owner, strict=True):
        if owner > 0 and kind in (ALLOC, ROLE):
            now = recording.owners[owner].phase
            if now != phase:
                if phase:
                    spans.append(Span(start, time, phase))
                start, phase = time, now
    if phase:
        spans.append(Span(start, max(round(recording.seconds * NANOSECONDS), start), phase))
    return spans


def device_index(recording: Recording, device: object) -> int:
    """Return the index of a device given by name or index; None is the one with the highest peak.

    Raises:
        ValueError: The recording has no such device.
    """
    if device is None:
        return busiest(recording)
    if isinstance(device, int) and 0 <= device < len(recording.devices):
        return device
    if str(device) in recording.devices:
        return recording.devices.index(str(device))
    known = ", ".join(recording.devices) or "none"
    raise ValueError(f"The recording knows no device {device!r}; it has {known}.")


def need_timeline(recording: Recording) -> None:
    """Raise an error if a recording has no timeline of events.

    Raises:
        RuntimeError: It was made without a timeline.
    """
    if not recording.timeline:
        raise RuntimeError(
            "This recording has no timeline, which the export is made of. Make the profiler with "
            "timeline=True."
        )


class _Writer:
    """Writes snapshots one after the other, each as a difference from the last."""

    def __init__(self, end: int) -> None:
        self.out = SnapshotSeries(end=end)
        self.places: dict[tuple[int, int], int] = {}
        self.before: Cells = {}

    def note(self, time: int, event: int, cells: Cells, touched: Iterable[tuple[int, int]]) -> None:
        out = self.out
        live = out.live[-1] if out.live else 0
        for cell in touched:
            now, before = cells.get(cell, 0), self.before.get(cell, 0)
            if now != before:
                place = self.places.setdefault(cell, len(self.places))
                if place == len(out.cells):
                    out.cells.append(cell)
                out.changed.append(place)
                out.change.append(now - before)
                self.before[cell] = now
                live += now - before
        out.times.append(time)
        out.events.append(event)
        out.live.append(live)
        out.starts.append(len(out.changed))
        out.end = max(out.end, time)


def _from_events(recording: Recording, device: int, writer: _Writer, limit: int, even: str) -> None:
    chosen: set[int] = set()
    at_peak, out = -1, writer.out
    e = recording.events
    mine = np.flatnonzero(np.frombuffer(e.device, np.int8) == device)
    if mine.size:
        chosen, at_peak = _choose(recording, device, mine, limit, even)
    out.complete = len(chosen) == mine.size
    first = recording.marks[0].roles if recording.marks else []
    books = LiveBytes(first[device] if device < len(first) else [])
    writer.note(0, 0, books.cells, list(books.cells))
    touched: dict[tuple[int, int], None] = {}  # a set that keeps its order
    for index, (time, kind, d, block, nbytes, role, owner) in enumerate(e.rows()):
        if d != device:
            continue
        held = books.blocks.get(block)
        touched[(held[2], held[1]) if held else (0, role)] = None
        apply(books, kind, block, nbytes, role, owner)
        held = books.blocks.get(block)
        if held:
            touched[held[2], held[1]] = None
        if index in chosen:
            writer.note(time, index + 1, books.cells, touched)
            touched.clear()
            if index == at_peak:
                out.peak = len(out) - 1


def _choose(
    recording: Recording, device: int, mine: np.ndarray, limit: int, even: str
) -> tuple[set[int], int]:
    # The events after which to keep the books, and which of them is the peak's.
    e = recording.events
    kind = np.frombuffer(e.kind, np.int8)[mine]
    nbytes = np.frombuffer(e.nbytes, np.int64)[mine]
    live = np.cumsum(np.where(kind == ALLOC, nbytes, np.where(kind == FREE, -nbytes, 0)))
    # The roles at the peak are those of the last event before bytes come or go again; but what
    # the graph lets go of meanwhile was still saved.
    role = np.frombuffer(e.role, np.int8)[mine]
    place = after = int(np.searchsorted(mine, recording.peaks[device].event - 1))
    while after + 1 < mine.size and kind[after + 1] not in (ALLOC, FREE):
        after += 1
        if kind[after] != ROLE or role[after] != TEMPORARY:
            place = after
    at_peak = int(mine[place]) if recording.peaks[device].event and place < mine.size else -1
    if mine.size <= limit:
        return set(mine.tolist()), at_peak
    count = max(limit // 2, 1)
    if even == "events":
        stretch = np.arange(mine.size) * count // mine.size
    else:
        time = np.frombuffer(e.time, np.int64)[mine]
        stretch = (time - time[0]) * count // (time[-1] - time[0] + 1)
    order = np.lexsort((live, stretch))
    edge = np.flatnonzero(np.diff(stretch[order])) + 1
    picks = mine[order[np.concatenate(([0], edge, edge - 1, [mine.size - 1]))]]
    marks = np.array([m.event for m in recording.marks], np.int64)
    before = np.searchsorted(mine, marks) - 1
    picks = np.concatenate((picks, mine[before[before >= 0]], mine[[0, -1]]))
    return {*picks.tolist(), *([at_peak] if at_peak >= 0 else [])}, at_peak


def _from_marks(recording: Recording, device: int, writer: _Writer) -> None:
    peak = recording.peaks[device] if device < len(recording.peaks) else Peak()
    states = [(round(peak.time * NANOSECONDS), peak.event, peak.cells, True)]
    cells: Cells = {}
    for mark in recording.marks:
        for d, owner, role, change in mark.changes:
            if d == device:
                cells[owner, role] = cells.get((owner, role), 0) + change
        time = round(mark.time * NANOSECONDS)
        states.append((time, mark.event, {c: n for c, n in cells.items() if n}, False))
    writer.out.complete = False
    for time, event, now, is_peak in sorted(states, key=lambda s: s[0]):
        writer.note(time, event, now, [*now, *(c for c in writer.before if c not in now)])
        if is_peak:
            writer.out.peak = len(writer.out) - 1
