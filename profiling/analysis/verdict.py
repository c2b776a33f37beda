"""The verdict on a recording: when the peak was, whose it is, and what grows.

Text report, page and terminal begin with these sentences.
"""

from __future__ import annotations

from ...framework.memory.ledger import ROLES, format_bytes
from ..leaks.findings import summary
from ..record.recording import BEFORE, Recording
from .callers import by_caller, line_of
from .diff import between, changes
from .evicted import evicted_sentence
from .summary import percent, summarize
from .tables import NO_LINE

LONGEST = 60  # characters of a quoted source line


def verdict(recording: Recording, device: int) -> list[str]:
    """Return up to four paragraphs: the peak, its owners, what a byte budget did, and growth."""
    summary = summarize(recording, device)
    first, *rest = summary.sentences()
    whose = " ".join([*rest, _largest_line(recording, device)]).strip()
    grows = " ".join(filter(None, [growth(recording, device), survivors(recording)]))
    dropped = evicted_sentence(recording, device)
    return [text for text in (first, whose, dropped, grows) if text]


def growth(recording: Recording, device: int) -> str:
    """Say by how much live bytes grow from step to step; empty with fewer than two steps."""
    marks = recording.marks
    if sum(mark.kind == "step" for mark in marks) < 2:
        return ""
    first, last = between(marks, None, None)
    names = f"from {marks[first].name} to {marks[last].name}"
    grown = changes(recording, first, last, device, "line")
    total = sum(grown.values())
    if total <= 0:
        return f"Live bytes do not grow {names}."
    steps = sum(mark.kind == "step" for mark in marks[first + 1 : last + 1])
    line = max(grown, key=lambda name: grown[name])
    text = f"Live bytes grow by {format_bytes(total // max(steps, 1))} a step {names}"
    return text + ("." if line in _NOWHERE else f", most at {quoted(recording, line)}.")


def survivors(recording: Recording) -> str:
    """Say what outlives its step, and what the largest is held by; or nothing."""
    found = recording.findings
    if not found:
        return ""
    nodes = sum(f.growth_nodes_per_step for f in found)
    nbytes = format_bytes(sum(f.growth_bytes_per_step for f in found))
    adds = f"{nodes:,} nodes and {nbytes}" if nodes else nbytes
    return (
        f"{summary(found)}; each step adds {adds}. The largest is held by {found[0].root}. "
        f"{found[0].fix}"
    )


def quoted(recording: Recording, name: str) -> str:
    """Return a line's name with its source text, if that is known: ``train.py:3 (`x = f(y)`)``."""
    text = recording.lines.get(line_of(name), "")
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 3]}..."
    return f"{name} (`{text}`)" if text else name


def _largest_line(recording: Recording, device: int) -> str:
    if device >= len(recording.peaks):
        return ""
    peak = recording.peaks[device]
    # Parameters and their like are alive at every peak: the line that made them is no news.
    passing = {cell: n for cell, n in peak.cells.items() if ROLES[cell[1]] not in _STAYS}
    lines = by_caller(recording, passing)
    for name in _NOWHERE:
        lines.pop(name, None)
    if not lines:
        return ""
    line, nbytes = max(lines.items(), key=lambda item: item[1])
    share = percent(nbytes, peak.nbytes)
    return (
        "Apart from parameters, gradients and optimizer state, most is allocated at "
        f"{quoted(recording, line)}: {share} of the peak."
    )


_NOWHERE = (NO_LINE, BEFORE)
_STAYS = ("parameter", "buffer", "optimizer", "gradient")
