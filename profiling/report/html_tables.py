"""The tables of the HTML report.

They can be read without a script; the script makes them sort and filter. A cell that is a figure
carries its exact value beside its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...framework.memory.ledger import ROLES, format_bytes
from ..analysis.callers import parted
from ..analysis.evicted import evicted_owners
from ..analysis.role_style import ROLE_COLORS, ROLE_WORDS
from ..analysis.summary import percent, seconds, short_lines, total_by, with_class
from ..analysis.tables import place
from ..record import system_memory
from ..record.recording import Cells, Mark, Recording
from .inline_html import text_of

ROWS = 1_000  # of a table; the rest is summed in a last one
SAMPLES = 100  # of the sampler's marks, at most about so many

Cell = tuple[str, float | None]  # what to read, and the number to sort by


def tables(runs: list[Recording], names: list[str]) -> Iterable[str]:
    """Return the sections with tables: of the difference, then for each run and device."""
    if len(runs) > 1:
        for device in runs[0].devices:
            if device in runs[1].devices:
                yield _difference(runs, names, device)
    for recording, name in zip(runs, names, strict=True):
        prefix = f"{name}: " if len(runs) > 1 else ""
        yield _surviving(recording, prefix)
        for index, device in enumerate(recording.devices):
            yield _owners(recording, index, device, prefix)
            yield _saved(recording, index, device, prefix)
            yield _evicted(recording, index, device, prefix)
            yield _marks(recording, index, device, prefix)
        yield _compiled(recording, prefix)
        yield _system(recording, prefix)


def _surviving(recording: Recording, prefix: str) -> str:
    # What leak detection found: nodes are Python's memory, and are in no other table.
    rows: list[list[Cell]] = [
        [
            (f.kind, None),
            _size(f.bytes),
            _size(f.growth_bytes_per_step, signed=True),
            (f"{f.nodes:,}" if f.graph else "-", f.nodes),
            (f"+{f.growth_nodes_per_step:,}" if f.graph else "-", f.growth_nodes_per_step),
            (f.line, None),
            (recording.lines.get(f.line, ""), None),
            (f.root + (f", kept at {f.kept_at}" if f.kept_at else ""), None),
            (f.fix, None),
        ]
        for f in recording.findings
    ]
    heads = ["kind", "bytes", "a step", "nodes", "nodes a step", "line", "source"]
    heads += ["held by", "fix"]
    title = (
        f"{prefix}What survives its step: graphs, and tensors that pile up "
        f"({recording.watched} steps watched)"
    )
    return _table("leaks", title, heads, rows, None)


def _compiled(recording: Recording, prefix: str) -> str:
    rows: list[list[Cell]] = [
        [(f"{c.time:.4f} s", c.time), (seconds(c.seconds), c.seconds), (c.name, None)]
        for c in recording.compilations
    ]
    title = f"{prefix}Kernels made ready, while the clock stood still"
    return _table("compilations", title, ["time", "took", "what"], rows, None)


def _owners(recording: Recording, index: int, device: str, prefix: str) -> str:
    peak, rows = recording.peaks[index], []
    most = max(peak.cells.values(), default=0)
    lines = parted((recording.owners[k] for k, _ in peak.cells), short_lines(recording))
    for (number, role), nbytes in sorted(peak.cells.items(), key=lambda c: -c[1]):
        owner = recording.owners[number]
        rows.append(
            [
                _size(nbytes),
                _share(nbytes, peak.nbytes, most, ROLE_COLORS[ROLES[role]]),
                (ROLE_WORDS[ROLES[role]], None),
                (with_class(recording, place(owner)), None),
                (owner.op, None),
                (owner.phase, None),
                (lines[owner.line, owner.callers], None),
                (recording.lines.get(owner.line, ""), None),
            ]
        )
    heads = ["bytes", "share", "role", "module", "op", "phase", "line", "source"]
    return _table("owners", f"{prefix}Owners at the peak", heads, rows, device)


def _saved(recording: Recording, index: int, device: str, prefix: str) -> str:
    fullest = recording.fullest[index]
    lines = parted((recording.owners[k] for k, _ in fullest.cells), short_lines(recording))
    sums: dict[tuple[str, str, str, str], int] = {}
    for (number, _), nbytes in fullest.cells.items():
        owner = recording.owners[number]
        line = lines[owner.line, owner.callers]
        key = (line, recording.lines.get(owner.line, ""), place(owner), owner.op)
        sums[key] = sums.get(key, 0) + nbytes
    most = max(sums.values(), default=0)
    rows = [
        [
            _size(nbytes),
            _share(nbytes, fullest.nbytes, most, ROLE_COLORS["saved"]),
            *((word, None) for word in key),
        ]
        for key, nbytes in sorted(sums.items(), key=lambda item: -item[1])
    ]
    title = f"{prefix}Saved for backward, when it was most ({format_bytes(fullest.nbytes)})"
    heads = ["bytes", "share", "line", "source", "module", "saved by"]
    return _table("saved", title, heads, rows, device)


def _evicted(recording: Recording, index: int, device: str, prefix: str) -> str:
    found = evicted_owners(recording, index)
    lines = parted((row.owner for row in found), short_lines(recording))
    rows: list[list[Cell]] = [
        [
            _size(e.nbytes),
            (f"{e.times:,}", e.times),
            (f"{e.replays:,}", e.replays),
            (seconds(e.nanoseconds / 1e9), e.nanoseconds),
            (with_class(recording, place(owner)), None),
            (owner.op, None),
            (lines[owner.line, owner.callers], None),
            (recording.lines.get(owner.line, ""), None),
        ]
        for owner, e in found
    ]
    heads = ["bytes", "times", "replays", "took", "module", "op", "line", "source"]
    return _table("evicted", f"{prefix}Dropped for a byte budget", heads, rows, device)


def _marks(recording: Recording, index: int, device: str, prefix: str) -> str:
    rows, before = [], 0
    samples = [m for m in recording.marks if m.kind == "sample"]
    shown = {id(m) for m in samples[:: -(-len(samples) // SAMPLES) or 1]}
    grown: Cells = {}
    for mark in recording.marks:
        for d, owner, role, change in mark.changes:
            if d == index:
                grown[owner, role] = grown.get((owner, role), 0) + change
        if mark.kind == "sample" and id(mark) not in shown:
            continue
        live = mark.live[index] if index < len(mark.live) else 0
        high = mark.peak[index] if index < len(mark.peak) else 0
        rows.append(
            [
                (f"{mark.time:.4f} s", mark.time),
                (mark.name, None),
                (mark.kind, None),
                _size(live),
                _size(live - before, signed=True),
                _size(high),
                (_grower(recording, grown), None),
            ]
        )
        before, grown = live, {}
    heads = ["time", "mark", "kind", "live", "change", "highest since the last", "what grew"]
    return _table("marks", f"{prefix}Marks and growth", heads, rows, device)


def _grower(recording: Recording, grown: Cells) -> str:
    # The roles that grew, and who of all owners grew most.
    if not grown:
        return ""
    (number, role), most = max(grown.items(), key=lambda item: item[1])
    if most <= 0:
        return ""
    roles = [0] * len(ROLES)
    for (_, of), nbytes in grown.items():
        roles[of] += nbytes
    larger = sorted((k for k, nbytes in enumerate(roles) if nbytes > 0), key=lambda k: -roles[k])
    words = ", ".join(f"{ROLE_WORDS[ROLES[k]]} +{format_bytes(roles[k])}" for k in larger)
    owner = recording.owners[number]
    most_by = f"{ROLE_WORDS[ROLES[role]]} of {place(owner)} by {owner.op}, +{format_bytes(most)}"
    return f"{words}; most: {most_by}" if words else f"most: {most_by}"


def _system(recording: Recording, prefix: str) -> str:
    rows = []
    kept = [m for m in recording.marks if m.probes]
    for mark in _ends(kept):
        for where, what, nbytes, method in system_memory.rows(mark.probes):
            rows.append(
                [(mark.name, None), (where, None), (what, None), _size(nbytes), (method, None)]
            )
    heads = ["mark", "of", "figure", "bytes", "known by"]
    title = f"{prefix}Process and devices, as the system sees them"
    return _table("system", title, heads, rows, None)


def _ends(marks: list[Mark]) -> list[Mark]:
    return marks if len(marks) <= 2 else [marks[0], marks[-1]]


def _difference(runs: list[Recording], names: list[str], device: str) -> str:
    one, two = (_peak_sums(recording, recording.devices.index(device)) for recording in runs)
    keys = sorted(one.keys() | two.keys(), key=lambda k: -abs(two.get(k, 0) - one.get(k, 0)))
    rows = [
        [
            (key[0], None),
            (key[1], None),
            _size(one.get(key, 0)),
            _size(two.get(key, 0)),
            _size(two.get(key, 0) - one.get(key, 0), signed=True),
        ]
        for key in keys
    ]
    heads = ["by", "of", names[0], names[1], "difference"]
    return _table("difference", "Difference at the peaks", heads, rows, device)


def _peak_sums(recording: Recording, device: int) -> dict[tuple[str, str], int]:
    # Bytes at the peak: all of them, then by role, module and line.
    peak, owners, short = recording.peaks[device], recording.owners, short_lines(recording)
    groups: dict[str, Callable[[int, int], str]] = {
        "role": lambda owner, role: ROLE_WORDS[ROLES[role]],
        "module": lambda owner, role: place(owners[owner]),
        "line": lambda owner, role: short[owners[owner].line],
    }
    sums = {("all", "the peak"): peak.nbytes}
    for by, group in groups.items():
        sums |= {(by, name): nbytes for name, nbytes in total_by(peak, group).items()}
    return sums


def _size(nbytes: int, signed: bool = False) -> Cell:
    sign = "+" if signed and nbytes > 0 else ""
    return f"{sign}{format_bytes(nbytes)}", nbytes


def _share(part: int, whole: int, most: int, color: str) -> Cell:
    # A bar as long as the part is of the largest. All of it is ours, so it needs no escaping.
    length = 100 * part / most if most else 0
    meter = f'<span class="meter" style="background:{color};width:{length:.1f}%"></span>'
    return _Markup(f"{percent(part, whole)}{meter}"), part


class _Markup(str):
    """A string that is HTML already and needs no escaping."""

    __slots__ = ()


def _table(
    name: str, title: str, heads: list[str], rows: list[list[Cell]], device: str | None
) -> str:
    if not rows:
        return ""
    numbers = [value is not None for _, value in rows[0]]
    kept = rows if len(rows) <= ROWS else [*rows[:ROWS], _rest(rows, numbers, heads)]
    summed = " data-sum" if name != "system" else ""
    top = "".join(
        f'<th scope="col"{_class(head, number)}{summed if head == "bytes" else ""}>'
        f"{text_of(head)}</th>"
        for head, number in zip(heads, numbers, strict=True)
    )
    lines = []
    for row in kept:
        cells = []
        for k, (text, value) in enumerate(row):
            shown = text if isinstance(text, _Markup) else text_of(text)
            sort = "" if value is None else f' data-value="{value}"'
            cells.append(f"<td{_class(heads[k], numbers[k])}{sort}>{shown}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    of = "" if device is None else f' data-device="{text_of(device)}"'
    return (
        f'<section class="table" data-table="{name}"{of} aria-label="{text_of(title)}">\n'
        f'<div class="bar"><h2>{text_of(title)}</h2></div>\n'
        f'<div class="sheet" tabindex="0"><table><thead><tr>{top}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>\n</section>"
    )


def _rest(rows: list[list[Cell]], numbers: list[bool], heads: list[str]) -> list[Cell]:
    left = rows[ROWS:]
    row: list[Cell] = []
    for k, number in enumerate(numbers):
        if heads[k] == "bytes" or heads[k] == "share":
            total = sum(int(r[k][1] or 0) for r in left)
            row.append(_size(total) if heads[k] == "bytes" else ("", total))
        else:
            row.append(("", 0) if number else (f"{len(left)} more rows" if k else "", None))
    return row


def _class(head: str, number: bool) -> str:
    if number:
        return f' class="number{" share" if head == "share" else ""}"'
    return ' class="path"' if head in ("module", "line", "source", "of", "what grew") else ""
