"""The timeline: live bytes of a device over time, as series that sum to the total."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...framework.memory.ledger import format_bytes
from ..record.recording import ALLOC, Recording, replay
from .tables import WIDTH, check_by, cut, grouped, name_of
from .terminal import tide


@dataclass
class Timeline:
    """Live bytes of a device after each event.

    Attributes:
        device: Its name.
        by: What the series are.
        times: Seconds since the start, of each event; the first is the start itself.
        total: Live bytes.
        series: Name to bytes, each as long as ``times``; they sum to ``total`` everywhere. In the
            order of their peaks, largest first.
        phases: (start, end, phase) in seconds: what the program did, as its allocations tell.
        marks: (seconds, name, kind).
    """

    device: str
    by: str
    times: array[float] = field(default_factory=lambda: array("d"))
    total: array[int] = field(default_factory=lambda: array("q"))
    series: dict[str, array[int]] = field(default_factory=dict)
    phases: list[tuple[float, float, str]] = field(default_factory=list)
    marks: list[tuple[float, str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.times)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain containers that JSON can hold."""
        return {
            "device": self.device,
            "by": self.by,
            "times": list(self.times),
            "total": list(self.total),
            "series": {name: list(column) for name, column in self.series.items()},
            "phases": [list(p) for p in self.phases],
            "marks": [list(m) for m in self.marks],
        }

    def text(self, rows: int = 24, columns: int = 6) -> str:
        """Format the timeline as a table of selected events; the peak is among them.

        Args:
            rows: About how many instants: the fullest of each stretch of as many events.
            columns: Series to show; the others are one column.
        """
        peak = max(range(len(self)), key=self.total.__getitem__)
        power = max((self.total[peak].bit_length() - 1) // 10, 0)
        unit = ("bytes", "KiB", "MiB", "GiB", "TiB")[power]
        shown = list(self.series)[:columns]
        rest = ["others"] if len(self.series) > len(shown) else []
        fit = all(len(name) <= 11 for name in shown)
        heads = shown if fit else [f"({k + 1})" for k in range(len(shown))]
        table = [["time", "phase", "live", *heads, *rest, ""]]
        last = -1.0
        for k in self._fullest(rows):
            held = [self.series[name][k] for name in shown]
            held += [self.total[k] - sum(held)] if rest else []
            time = self.times[k]
            phase = next((p for start, end, p in self.phases if start <= time <= end), "")
            met = {kind: name for at, name, kind in self.marks if last < at <= time}
            notes = ["peak"] if k == peak else []
            notes += [met.get("mark", met.get("step", ""))] if {"mark", "step"} & met.keys() else []
            sizes = [f"{n / 1024**power:.{2 if power else 0}f}" for n in (self.total[k], *held)]
            table.append([f"{time:.3f} s", phase, *sizes, ", ".join(notes)])
            last = time
        widths = [max(len(row[k]) for row in table) for k in range(len(table[0]) - 1)]
        lines = [
            f"{self.device} by {self.by}, in {unit}: {len(self)} instant{'s' * (len(self) > 1)} in "
            f"{self.times[-1]:.3f} s, at most {format_bytes(self.total[peak])}"
        ]
        for row in table:
            cells = [f"{c:>{w}}" for c, w in zip(row[:-1], widths, strict=True)]
            lines.append("  ".join(["", *cells, row[-1]])[:WIDTH].rstrip())
        lines += (
            [] if fit else [f"  {h} {cut(n, WIDTH - 7)}" for h, n in zip(heads, shown, strict=True)]
        )
        return "\n".join(lines)

    def draw(
        self,
        names: Sequence[str] | None = None,
        width: int = 72,
        height: int = 6,
        top: int | None = None,
        plain: bool = False,
    ) -> str:
        """Draw the timeline in characters, for a terminal: an instant beside the other.

        Args:
            names: Up to four of ``series``, stacked from the bottom up; the largest by default.
            width: Characters a line at most.
            height: Lines.
            top: Bytes at the upper edge; the highest instant by default.
            plain: Only ASCII characters.
        """
        none = [0] * len(self)
        chosen = list(self.series)[:4] if names is None else names
        series = {name: self.series.get(name, none) for name in chosen}
        return "\n".join(tide(series, width, height, top, plain))

    def _fullest(self, rows: int) -> list[int]:
        # The start, the end, and the fullest instant of each stretch.
        edges = [len(self) * k // rows for k in range(rows + 1)]
        stretches = [range(a, b) for a, b in itertools.pairwise(edges) if a < b]
        found = {max(stretch, key=self.total.__getitem__) for stretch in stretches}
        return sorted({0, *found, len(self) - 1})

    def __str__(self) -> str:
        return self.text()


def timeline(
    recording: Recording, by: str | Sequence[str], depth: int | None, device: int
) -> Timeline:
    """Compute the timeline of a device; see ``Profile.timeline``.

    Not optimal: what changes at an event is found by replaying the books, and each series has a
    value at each event, so memory is events times series.

    Raises:
        RuntimeError: No events were kept.
    """
    keys = check_by(by)
    if not recording.timeline:
        raise RuntimeError(
            "there is no timeline: the profiler was made with timeline=False. Make it with "
            "timeline=True."
        )
    out = Timeline(recording.devices[device], " · ".join(keys))
    events = recording.events
    names: dict[tuple[int, int], str] = {}

    def name(owner: int, role: int) -> str:
        found = names.get((owner, role))
        if found is None:
            whose = recording.owners[owner]
            found = names[owner, role] = " · ".join(name_of(whose, role, k, depth) for k in keys)
        return found

    start = {}
    if recording.marks and device < len(recording.marks[0].roles):
        start = {(0, r): n for r, n in enumerate(recording.marks[0].roles[device]) if n}
    now = grouped(recording, start, keys, depth)
    out.times.append(0.0)
    out.total.append(sum(now.values()))
    for key, n in now.items():
        out.series[key] = array("q", [n])
    held: dict[int, str] = {}
    for index, books in replay(recording, device):
        number = events.block[index]
        n = events.nbytes[index]
        before = held.pop(number, None)
        block = books.blocks.get(number)
        if before is None and events.kind[index] != ALLOC:
            before = name(0, events.role[index])  # it lived before the profiler
        after = name(block[2], block[1]) if block is not None else None
        if before is not None:
            now[before] -= n
        if after is not None:
            held[number] = after
            now[after] = now.get(after, 0) + n
            if after not in out.series:
                out.series[after] = array("q", bytes(8 * len(out.times)))
        out.times.append(events.time[index] / 1e9)
        out.total.append(books.live)
        for key, column in out.series.items():
            column.append(now[key])
    out.series = dict(sorted(out.series.items(), key=lambda item: -max(item[1])))
    out.phases = phases(recording, device)
    out.marks = [(m.time, m.name, m.kind) for m in recording.marks]
    return out


def phases(recording: Recording, device: int) -> list[tuple[float, float, str]]:
    """Return (start, end, phase) in seconds for each phase in which something was allocated."""
    found: list[tuple[float, float, str]] = []
    rows = recording.events.rows()
    for at, kind, d, _, _, _, owner in rows:
        if d == device and kind == ALLOC:
            phase, time = recording.owners[owner].phase, at / 1e9
            if found and found[-1][2] == phase:
                found[-1] = (found[-1][0], time, phase)
            else:
                if found:
                    found[-1] = (found[-1][0], time, found[-1][2])
                found.append((time, time, phase))
    return found
