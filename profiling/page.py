"""One HTML page of a recording, or of two side by side: nothing is loaded from anywhere.

``assets/page.html`` is the skeleton; style, script and data are put inside. What the page says at
once, the headline, the key figures and the tables, is plain HTML and needs no script; the script
draws the timeline and the tree of modules, and makes the tables sort and filter.

Size: the timeline is thinned to the moments that matter (``moments.py``; the peak and the marks
stay exact) and written as differences in columns. A run of 200,000 events takes about 2 MB.

Safety: names of modules, marks and files come from the user's program. They are escaped in HTML,
JSON carries no ``<``, the script writes them as text only, and the page's own security policy
allows no script but ours, by its hash, and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import html as escaping
import json
import os
import string
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any

from ..framework.memory.ledger import format_bytes
from ..framework.serialization.files import replacing
from . import probes
from .moments import Moments, device_index, moments, phases
from .palette import PHASE_COLORS, ROLE_COLORS, ROLE_WORDS, STACK
from .plot import grouping
from .recording import PHASES, ROLES, Cells, Mark, Recording
from .summary import Summary, percent, seconds, short_lines, summarize, total_by
from .tables import OUTSIDE

MOMENTS = 20_000  # of the timeline, at most about so many
ROWS = 1_000  # of a table; the rest is summed in a last one


def html(
    recording: Recording,
    path: str | os.PathLike[str],
    other: Recording | None = None,
    names: Sequence[str] = ("this run", "other run"),
    device: Any = None,
) -> None:
    """Write a page to look at in a browser.

    Args:
        recording: What a profiler noted.
        path: The file, ``.html``.
        other: A second recording to compare with; the page then shows both side by side.
        names: What to call the two.
        device: Name or index of the device to show first; by default the one with the highest
            peak.

    Raises:
        ValueError: The recording knows no such device.
    """
    text = page(recording, other, names, device)
    with replacing(path) as out:
        out.write(text.encode())


def page(
    recording: Recording,
    other: Recording | None = None,
    names: Sequence[str] = ("this run", "other run"),
    device: Any = None,
) -> str:
    """The page that :func:`html` writes, as text."""
    index = device_index(recording, device)
    first = recording.devices[index] if recording.devices else ""
    runs = [recording] if other is None else [recording, other]
    called = [str(name) for name in names[: len(runs)]]
    summary = summarize(recording, index)
    headline, lead = _headline(summary, runs, called, first)
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    begun = time.strftime("Recorded %Y-%m-%d %H:%M:%S, ", time.localtime(recording.start))
    return string.Template(_asset("page.html")).substitute(
        title=_text(f"Memory: {headline}"),
        headline=_text(headline),
        lead=_text(lead),
        tiles=_tiles(recording, summary),
        picture=_picture(recording, index),
        tables="\n".join(_tables(runs, called)),
        footer=_text(
            f"{begun if recording.start else ''}{seconds(recording.seconds)}, "
            f"{len(recording.events):,} events. "
            "Bytes are logical, before the pool rounds them. Written by lowtide; this page loads "
            "nothing from anywhere."
        ),
        style=_asset("page.css"),
        script=script,
        script_hash=f"sha256-{digest}",
        data=_json(_data(runs, called, first)),
    )


# The data


def _data(runs: list[Recording], names: list[str], device: str) -> dict[str, Any]:
    return {
        "device": device,
        "outside": OUTSIDE,
        "roles": [{"words": ROLE_WORDS[role], "color": ROLE_COLORS[role]} for role in ROLES],
        "stack": list(STACK),
        "phases": [{"name": phase, "color": PHASE_COLORS[phase]} for phase in PHASES],
        "runs": [_run(runs, number, name) for number, name in enumerate(names)],
    }


def _run(runs: list[Recording], number: int, name: str) -> dict[str, Any]:
    recording = runs[number]
    short = short_lines(recording)
    columns: dict[str, list[int]] = {"module": [], "op": [], "phase": [], "line": []}
    known: dict[str, dict[str, int]] = {"module": {}, "op": {}, "line": {}}
    for owner in recording.owners:
        words = {"module": owner.module, "op": owner.op, "line": short[owner.line]}
        for column, word in words.items():
            columns[column].append(known[column].setdefault(word, len(known[column])))
        columns["phase"].append(PHASES.index(owner.phase))
    marks = [m for m in recording.marks if m.kind in ("step", "mark")]
    spans = [(s.start, s.end, PHASES.index(s.phase)) for s in phases(recording)]
    return {
        "name": name,
        "owners": {**columns, **{f"{key}s": list(words) for key, words in known.items()}},
        "marks": [(round(m.time * 1e9), m.name) for m in _thinned(marks, 2000)],
        "phases": _thinned(spans, 20_000),
        "devices": [_device(runs, number, device) for device in recording.devices],
    }


def _device(runs: list[Recording], number: int, device: str) -> dict[str, Any]:
    recording = runs[number]
    index = recording.devices.index(device)
    shown = moments(recording, index, MOMENTS, even="events")
    summary = summarize(recording, index)
    peak = sorted(summary.peak.cells.items())
    return {
        "name": device,
        "sentences": summary.sentences(),
        "peak": {
            "bytes": summary.peak.nbytes,
            "owner": [owner for (owner, _), _ in peak],
            "role": [role for (_, role), _ in peak],
            "size": [nbytes for _, nbytes in peak],
        },
        "moment": shown.peak,
        "end": shown.end,
        "times": _differences(shown.times),
        "counts": _differences(shown.starts)[1:],
        "changed": list(shown.changed),
        "change": list(shown.change),
        "cells": {
            "owner": [owner for owner, _ in shown.cells],
            "role": [role for _, role in shown.cells],
        },
        "groups": {by: _groups(runs, number, device, by, shown) for by in ("module", "line")},
    }


def _groups(
    runs: list[Recording], number: int, device: str, by: str, shown: Moments
) -> dict[str, Any]:
    # Runs that have the device are grouped alike, so that equal colors are equal things.
    having = [run for run in runs if device in run.devices]
    names, colors, maps = grouping([(run, run.devices.index(device)) for run in having], by)
    group = maps[next(k for k, run in enumerate(having) if run is runs[number])]
    places = {name: place for place, name in enumerate(names)}
    return {
        "names": names,
        "colors": [colors[name] for name in names],
        "of": [places[group(*cell)] for cell in shown.cells],
    }


def _differences(values: Iterable[int]) -> list[int]:
    found, before = [], 0
    for value in values:
        found.append(value - before)
        before = value
    return found


def _thinned(items: list[Any], limit: int) -> list[Any]:
    return items if len(items) <= limit else items[:: -(-len(items) // limit)]


def _json(value: Any) -> str:
    """JSON that can stand inside a script element: no user string can end it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


# What needs no script


def _headline(
    summary: Summary, runs: list[Recording], names: list[str], device: str
) -> tuple[str, str]:
    first, *rest = summary.sentences()
    if len(runs) == 1 or device not in runs[1].devices:
        return first, " ".join(rest)
    one = summary.peak.nbytes
    two = runs[1].peaks[runs[1].devices.index(device)].nbytes
    if one == two:
        return f"Both runs peak at {format_bytes(one)} on {device}.", f"In {names[0]}: " + first
    less = f"{format_bytes(abs(one - two))} ({percent(abs(one - two), max(one, two))})"
    low, high = (0, 1) if one < two else (1, 0)
    head = f"{names[low]} peaks {less} lower than {names[high]} on {device}."
    figures = f"{names[0]}: {format_bytes(one)}; {names[1]}: {format_bytes(two)}."
    return head, " ".join([figures, f"In {names[0]}:", first, *rest])


def _tiles(recording: Recording, summary: Summary) -> str:
    total = summary.peak.nbytes
    tiles = [
        ("peak", f"{format_bytes(total)}"),
        ("when", summary.moment()),
        ("most belongs to", summary.kind or OUTSIDE),
    ]
    for role, nbytes in list(summary.roles.items())[:3]:
        tiles.append((ROLE_WORDS[role], f"{format_bytes(nbytes)} ({percent(nbytes, total)})"))
    steps = sum(mark.kind == "step" for mark in recording.marks)
    tiles.append(("recorded", f"{steps} steps in {seconds(recording.seconds)}"))
    return "\n".join(
        f"<div><dt>{_text(term)}</dt><dd>{_text(value)}</dd></div>" for term, value in tiles
    )


def _picture(recording: Recording, device: int) -> str:
    """The timeline by role as SVG, for readers without scripts."""
    shown = moments(recording, device, 300)
    stacks = shown.stacks(lambda owner, role: role)
    width, height, most = 1000.0, 260.0, max([1, *shown.live])
    end = max(shown.end, 1)
    across = [t * width / end for t in (*shown.times, shown.end)]
    below = [0] * len(shown)
    parts = []
    for role in STACK:
        top = [b + n for b, n in zip(below, stacks.get(role, [0] * len(shown)), strict=True)]
        if top != below:
            points = _steps(across, top) + _steps(across, below)[::-1]
            path = " ".join(f"{x:.1f},{height * (1 - y / most):.1f}" for x, y in points)
            title = f"<title>{_text(ROLE_WORDS[ROLES[role]])}</title>"
            color = ROLE_COLORS[ROLES[role]]
            parts.append(f'<polygon fill="{color}" points="{path}">{title}</polygon>')
        below = top
    label = _text(" ".join(summarize(recording, device).sentences()))
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def _steps(across: list[float], values: list[int]) -> list[tuple[float, int]]:
    points = []
    for k, value in enumerate(values):
        points += [(across[k], value), (across[k + 1], value)]
    return points


Cell = tuple[str, float | None]  # what to read, and the number to sort by


def _tables(runs: list[Recording], names: list[str]) -> Iterable[str]:
    recording = runs[0]
    if len(runs) > 1:
        for name in recording.devices:
            if name in runs[1].devices:
                yield _difference(runs, names, name)
    prefix = f"{names[0]}: " if len(runs) > 1 else ""
    for index, name in enumerate(recording.devices):
        yield _owners(recording, index, name, prefix)
        yield _saved(recording, index, name, prefix)
        yield _marks(recording, index, name, prefix)
    yield _system(recording, prefix)


def _owners(recording: Recording, index: int, device: str, prefix: str) -> str:
    peak, short = recording.peaks[index], short_lines(recording)
    rows, most = [], max(peak.cells.values(), default=0)
    for (number, role), nbytes in sorted(peak.cells.items(), key=lambda c: -c[1]):
        owner = recording.owners[number]
        rows.append(
            [
                _size(nbytes),
                _share(nbytes, peak.nbytes, most, ROLE_COLORS[ROLES[role]]),
                (ROLE_WORDS[ROLES[role]], None),
                (owner.module or OUTSIDE, None),
                (owner.op, None),
                (owner.phase, None),
                (short[owner.line], None),
            ]
        )
    heads = ["bytes", "share", "role", "module", "op", "phase", "line"]
    return _table("owners", f"{prefix}Owners at the peak", heads, rows, device)


def _saved(recording: Recording, index: int, device: str, prefix: str) -> str:
    fullest, short = recording.fullest[index], short_lines(recording)
    sums: dict[tuple[str, str, str], int] = {}
    for (number, _), nbytes in fullest.cells.items():
        owner = recording.owners[number]
        key = (short[owner.line], owner.module or OUTSIDE, owner.op)
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
    return _table("saved", title, ["bytes", "share", "line", "module", "saved by"], rows, device)


def _marks(recording: Recording, index: int, device: str, prefix: str) -> str:
    rows, before = [], 0
    samples = [m for m in recording.marks if m.kind == "sample"]
    shown = {id(m) for m in _thinned(samples, 100)}
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
    heads = ["time", "mark", "kind", "live", "change", "highest since the last", "what grew most"]
    return _table("marks", f"{prefix}Marks and growth", heads, rows, device)


def _grower(recording: Recording, grown: Cells) -> str:
    if not grown:
        return ""
    (number, role), most = max(grown.items(), key=lambda item: item[1])
    if most <= 0:
        return ""
    owner = recording.owners[number]
    where = owner.module or OUTSIDE
    return f"{where}, {ROLE_WORDS[ROLES[role]]}, {owner.op}: +{format_bytes(most)}"


def _system(recording: Recording, prefix: str) -> str:
    rows = []
    kept = [m for m in recording.marks if m.probes]
    for mark in _ends(kept):
        for where, what, nbytes, method in probes.rows(mark.probes):
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
        "module": lambda owner, role: owners[owner].module or OUTSIDE,
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
    """Text that is HTML already."""

    __slots__ = ()


def _table(
    name: str, title: str, heads: list[str], rows: list[list[Cell]], device: str | None
) -> str:
    if not rows:
        return ""
    numbers = [value is not None for _, value in rows[0]]
    kept = rows if len(rows) <= ROWS else [*rows[:ROWS], _rest(rows, numbers, heads)]
    top = "".join(
        f'<th scope="col"{_class(heads[k], number)}'
        f"{' data-sum' if heads[k] == 'bytes' and name != 'system' else ''}>{_text(heads[k])}</th>"
        for k, number in enumerate(numbers)
    )
    lines = []
    for row in kept:
        cells = []
        for k, (text, value) in enumerate(row):
            shown = text if isinstance(text, _Markup) else _text(text)
            sort = "" if value is None else f' data-value="{value}"'
            cells.append(f"<td{_class(heads[k], numbers[k])}{sort}>{shown}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    of = "" if device is None else f' data-device="{_text(device)}"'
    return (
        f'<section class="table" data-table="{name}"{of} aria-label="{_text(title)}">\n'
        f'<div class="bar"><h2>{_text(title)}</h2></div>\n'
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
        return ' class="number"'
    return ' class="path"' if head in ("module", "line", "of", "what grew most") else ""


def _text(value: str) -> str:
    return escaping.escape(value, quote=True)


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text("utf-8")
