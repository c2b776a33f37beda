"""The text report that ``Profile.report`` returns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from ...framework.memory.ledger import format_bytes
from ..analysis.summary import compilation, repeated_layers, summarize
from ..analysis.tables import Table
from ..leaks.findings import page as leaks
from ..record import system_memory

if TYPE_CHECKING:
    from ..profile import Profile
    from ..record.recording import Recording


COLUMNS = 100  # of sentences


def page(profile: Profile, limit: int) -> str:
    """Format the text report: peak, owners, saved tensors, growth, steps, process memory."""
    recording = profile.recording
    if not recording.devices:  # the program made no tensor
        head = f"Memory profile of {recording.seconds:.3f} s: no device was used"
        return f"{head}\n\n{_process(profile)}\n" if profile.marks else f"{head}\n"
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
    # The same sentences as on the page: which bytes, when, and whose.
    sentences = summarize(recording, profile._index(None)).sentences()
    verdict = "\n".join(line for text in sentences for line in textwrap.wrap(text, COLUMNS))
    parts = [f"{head}\n{extra}" if extra else head, verdict]
    for by in ("role", "module", "line"):
        if by == "line" and not any(o.line for o in recording.owners[1:]):
            continue
        table = profile.at_peak(by)
        parts.append(_by_layer(recording, table).text(limit))
    if profile.recording.fullest[profile._index(None)].nbytes:
        for by in ("module", "line") if any(o.line for o in recording.owners[1:]) else ("module",):
            parts.append(_by_layer(recording, profile.saved(by)).text(limit))
    parts.append(_growth(profile, limit))
    if recording.watched:
        parts.append(leaks(recording.findings, recording.watched).rstrip())
    if profile.marks:
        parts.append(_process(profile))
    return "\n\n".join(p for p in parts if p) + "\n"


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
        if profile.recording.findings:  # nodes are Python's memory, and no bytes of a tensor's
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
