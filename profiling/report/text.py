"""The text report that ``Profile.report`` returns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from ...framework.memory.ledger import format_bytes
from ..analysis.callers import by_caller, line_of
from ..analysis.evicted import evicted_text
from ..analysis.summary import compilation, repeated_layers
from ..analysis.tables import Table
from ..analysis.verdict import verdict as sentences
from ..leaks.findings import page as leaks
from ..record import system_memory

if TYPE_CHECKING:
    from ..profile import Profile
    from ..record.recording import Cells, Recording


COLUMNS = 100  # of sentences


def verdict(profile: Profile) -> str:
    """Format a few lines: the peak, whose it is, and what grows."""
    return f"{_head(profile)}\n"


def page(profile: Profile, limit: int) -> str:
    """Format the text report: peak, owners, saved tensors, growth, steps, process memory."""
    recording = profile.recording
    head = _head(profile)
    if not recording.devices:  # the program made no tensor
        return f"{head}\n\n{_process(profile)}\n" if profile.marks else f"{head}\n"
    parts = [head]
    lines = any(o.line for o in recording.owners[1:])
    for by in ("role", "module"):
        parts.append(_by_layer(recording, profile.at_peak(by)).text(limit))
    device = profile._index(None)
    if lines:
        title = profile.at_peak("line").title
        parts.append(_by_line(recording, recording.peaks[device].cells, title).text(limit))
    if recording.fullest[device].nbytes:
        saved = profile.saved("module")
        parts.append(_by_layer(recording, saved).text(limit))
        if lines:
            cells = recording.fullest[device].cells
            parts.append(_by_line(recording, cells, saved.title).text(limit))
    parts.append(evicted_text(recording, device, limit))
    parts.append(_growth(profile, limit))
    if recording.watched:
        parts.append(leaks(recording.findings, recording.watched).rstrip())
    if profile.marks:
        parts.append(_process(profile))
    return "\n\n".join(p for p in parts if p) + "\n"


def _head(profile: Profile) -> str:
    # What was recorded, and the verdict: the same sentences as on the page.
    recording = profile.recording
    if not recording.devices:
        return f"Memory profile of {recording.seconds:.3f} s: no device was used"
    peaks = ", ".join(
        f"{name} {format_bytes(p.nbytes)}"
        for name, p in zip(recording.devices, recording.peaks, strict=True)
        if p.nbytes
    )
    count = len(profile.steps())
    head = (
        f"Memory profile of {recording.seconds:.3f} s: {count} optimizer "
        f"step{'s' if count != 1 else ''}, peaks {peaks or 'of no bytes'}"
    )
    extra = compilation(recording)
    found = sentences(recording, profile._index(None))
    lines = [
        line for text in found for line in textwrap.wrap(text, COLUMNS, break_on_hyphens=False)
    ]
    return "\n".join([head, *([extra] if extra else []), "", *lines])


def _by_line(recording: Recording, cells: Cells, title: str) -> Table:
    # Lines with their source text, and their callers where they differ.
    sums = by_caller(recording, cells)
    texts = {name: recording.lines.get(line_of(name), "") for name in sums}
    return Table(title, "line", sums, texts=texts)


def _by_layer(recording: Recording, table: Table) -> Table:
    return repeated_layers(recording, table) if table.by == "module" else table


def _growth(profile: Profile, limit: int) -> str:
    steps = profile.steps()
    if len(steps) < 2:
        return ""
    peaks = [s["peak"] for s in steps]
    table = profile.growth()
    head = (
        f"Steps: {len(steps)}; peak of a step from {format_bytes(min(peaks))} to "
        f"{format_bytes(max(peaks))}, of the last {format_bytes(peaks[-1])}"
    )
    if not table.rows:
        nothing = "nothing grew"
        # Nodes are Python's memory, and no bytes of a tensor's.
        if any(f.graph for f in profile.recording.findings):
            nothing = "no tensors grew, but graphs did: see below"
        return f"{head}\n{table.title}: {nothing}"
    return f"{head}\n{table.text(limit, signed=True)}"


def _process(profile: Profile) -> str:
    mark = profile.marks[-1]
    rows = system_memory.rows(mark.probes)
    cells = [(where, what, format_bytes(n), method) for where, what, n, method in rows]
    widths = [max((len(c[k]) for c in cells), default=0) for k in range(3)]
    lines = [
        f"  {size:>{widths[2]}}  {where:<{widths[0]}}  {what:<{widths[1]}}  {method}"
        for where, what, size, method in cells
    ]
    return "\n".join([f"Process and devices at {mark.name!r}", *lines])
