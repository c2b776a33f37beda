"""HTML report of one recording, or of two side by side, in one self-contained file.

``assets/page.html`` is the skeleton; style, script and data are put inside. What the page says at
once, the headline, the key figures and the tables, is plain HTML and needs no script; the script
draws the timeline and the tree of modules, and makes the tables sort and filter.

Size: the timeline is thinned to the moments that matter (``profiling/analysis/snapshots.py``; the
peak and the marks stay exact) and written as differences in columns. A run of 200,000 events takes
about 2 MB.

Safety: names of modules, marks and files come from the user's program. They are escaped in HTML,
JSON carries no ``<``, the script writes them as text only, and the page's own security policy
allows no script but ours, by its hash, and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import string
import time
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from ...framework.memory.ledger import ROLES, format_bytes
from ...framework.serialization.atomic_files import replacing
from ..analysis.evicted import drop_times
from ..analysis.role_style import PHASE_COLORS, ROLE_COLORS, ROLE_WORDS, STACK
from ..analysis.snapshots import SnapshotSeries, device_index, phases, take_snapshots
from ..analysis.summary import Summary, compilation, percent, seconds, short_lines, summarize
from ..analysis.tables import OUTSIDE, place
from ..analysis.verdict import verdict
from ..record.recording import PHASES, Recording
from .html_tables import tables
from .inline_html import text_of
from .plot import grouping
from .svg import areas

MOMENTS = 20_000  # of the timeline, at most about so many
NARROW = "&nbsp;"  # a figure and its percent sign stay together
SCRIPTS = ("common", "tide", "chart", "treemap", "page")  # one after the other, as one script


def html(
    recording: Recording,
    path: str | os.PathLike[str],
    other: Recording | None = None,
    names: Sequence[str] = ("this run", "other run"),
    device: Any = None,
) -> None:
    """Write an HTML report to open in a browser.

    Args:
        recording: What a profiler noted.
        path: The file, ``.html``.
        other: A second recording to compare with; the page then shows both side by side.
        names: What to call the two.
        device: Name or index of the device to show first; by default the one with the highest
            peak.

    Raises:
        ValueError: The recording knows no such device, or a name is missing.
    """
    text = page(recording, other, names, device)
    with replacing(path) as out:
        out.write(text.encode(errors="backslashreplace"))  # a file's name may be no Unicode


def page(
    recording: Recording,
    other: Recording | None = None,
    names: Sequence[str] = ("this run", "other run"),
    device: Any = None,
) -> str:
    """Return the HTML report as text."""
    index = device_index(recording, device)
    first = recording.devices[index] if recording.devices else ""
    runs = [recording] if other is None else [recording, other]
    called = [str(name) for name in names[: len(runs)]]
    if len(called) < len(runs):
        raise ValueError(f"A page of {len(runs)} runs needs a name for each; got {called}.")
    summary = summarize(recording, index)
    headline, lead = _headline(summary, runs, called, first)
    script = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    begun = time.strftime("Recorded %Y-%m-%d %H:%M:%S, ", time.localtime(recording.start))
    return string.Template(_asset("page.html")).substitute(
        title=text_of(f"Memory: {headline}"),
        headline=text_of(headline),
        lead=text_of(lead),
        tiles=_tiles(*_having(runs, called, first)),
        picture=_picture(recording, index),
        tables="\n".join(tables(runs, called)),
        footer=text_of(
            f"{begun if recording.start else ''}{seconds(recording.seconds)}, "
            f"{len(recording.events):,} events. "
            f"{_sentence(compilation(recording))}"
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
        words = {"module": place(owner), "op": owner.op, "line": short[owner.line]}
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
    shown = take_snapshots(recording, index, MOMENTS, even="events")
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
        "drops": _thinned(drop_times(recording, index), 5_000),
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
    runs: list[Recording], number: int, device: str, by: str, shown: SnapshotSeries
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
    """Encode as JSON that is safe inside a script element: no string can close it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


# What needs no script


def _headline(
    summary: Summary, runs: list[Recording], names: list[str], device: str
) -> tuple[str, str]:
    index = runs[0].devices.index(device) if device in runs[0].devices else 0
    first, *rest = verdict(runs[0], index)
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


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}. " if text else ""


def _having(
    runs: list[Recording], names: list[str], device: str
) -> tuple[list[Summary], list[Recording], list[str]]:
    having = [k for k, run in enumerate(runs) if device in run.devices] or [0]
    found = [runs[k].devices.index(device) if device in runs[k].devices else 0 for k in having]
    summaries = [summarize(runs[k], index) for k, index in zip(having, found, strict=True)]
    return summaries, [runs[k] for k in having], [names[k] for k in having]


def _tiles(summaries: list[Summary], runs: list[Recording], names: list[str]) -> str:
    # The key figures; of two runs, both in each tile. Those that the headline says come first.
    tiles = [
        ("peak", [format_bytes(s.peak.nbytes) for s in summaries]),
        ("when", [s.moment() for s in summaries]),
        ("largest owner", [s.called or OUTSIDE for s in summaries]),
    ]
    for role in list(summaries[0].roles)[:3]:
        held = [(s.roles.get(role, 0), s.peak.nbytes) for s in summaries]
        tiles.append(
            (ROLE_WORDS[role], [f"{format_bytes(n)} ({percent(n, of)})" for n, of in held])
        )
    steps = [sum(mark.kind == "step" for mark in run.marks) for run in runs]
    lasted = [
        f"{n} {'step' if n == 1 else 'steps'} in {seconds(r.seconds)}"
        for n, r in zip(steps, runs, strict=True)
    ]
    tiles.append(("recorded", lasted))
    if any(r.compilations for r in runs):
        took = [seconds(sum(c.seconds for c in r.compilations)) for r in runs]
        tiles.append(("kernels made ready", [f"{t}, not in the time" for t in took]))
    two = len(runs) > 1
    said_above = 1 if two else 3
    rows = []
    for k, (term, values) in enumerate(tiles):
        figures = "".join(
            f"<dd>{_of(name) if two else ''}{text_of(value).replace(' %', NARROW + '%')}</dd>"
            for name, value in zip(names, values, strict=True)
        )
        said = ' class="said"' if k < said_above else ""
        rows.append(f"<div{said}><dt>{text_of(term)}</dt>{figures}</div>")
    return f'<dl class="tiles{" two" if two else ""}">\n' + "\n".join(rows) + "\n</dl>"


def _of(name: str) -> str:
    return f'<span class="of">{text_of(name)}</span> '


def _picture(recording: Recording, device: int) -> str:
    """Draw the timeline by role as SVG, for readers without scripts."""
    shown = take_snapshots(recording, device, 300)
    width, height, most = 1000.0, 260.0, max([1, *shown.live])
    parts = areas(shown, width, height, most)
    label = text_of(" ".join(summarize(recording, device).sentences()))
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text("utf-8")
