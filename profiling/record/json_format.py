"""Conversion of recordings to JSON and back; the schema is ``docs/profiler_json.md``."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable
from itertools import islice
from typing import Any

from ...framework.distributed.waiting import JobRank
from ...framework.memory.ledger import ROLES
from ...framework.serialization.atomic_files import replacing
from ..leaks.findings import Finding
from .recording import (
    KINDS,
    Cells,
    Compilation,
    Events,
    Evicted,
    Evictions,
    Mark,
    Owner,
    Peak,
    Recording,
)

FORMAT, VERSION = "lowtide memory profile", 1
PARTS = 4096  # pieces of text that are written at once


def to_dict(recording: Recording) -> dict[str, Any]:
    """Convert a recording to dicts, lists, strings and numbers."""
    stacks = {owner.callers: 0 for owner in recording.owners}
    for number, callers in enumerate(stacks):
        stacks[callers] = number
    return {
        "format": FORMAT,
        "version": VERSION,
        "roles": list(ROLES),
        "kinds": list(KINDS),
        "devices": recording.devices,
        "start": recording.start,
        "seconds": recording.seconds,
        "owners": [list(o[:4]) for o in recording.owners],
        "stacks": [list(callers) for callers in stacks],
        "callers": [stacks[o.callers] for o in recording.owners],
        "peaks": [_peak(p) for p in recording.peaks],
        "fullest": [_peak(p) for p in recording.fullest],
        "timeline": recording.timeline,
        "marks": [{**vars(m), "changes": [list(c) for c in m.changes]} for m in recording.marks],
        "events": {name: list(c) for name, c in recording.events.columns().items()},
        "evicted": [[*key, *vars(e).values()] for key, e in recording.evicted.items()],
        "evictions": {name: list(c) for name, c in recording.evictions.columns().items()},
        "lines": recording.lines,
        "compilations": [list(c) for c in recording.compilations],
        "classes": recording.classes,
        "findings": [vars(f) for f in recording.findings],
        "watched": recording.watched,
        "place": None if recording.place is None else recording.place._asdict(),
    }


def from_dict(data: Any) -> Recording:
    """Rebuild a recording from the result of ``to_dict``.

    Raises:
        ValueError: It is something else, or of a later version.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(
            f"this is not a {FORMAT}: such a file is a JSON object with that as its 'format'. "
            "Write one with MemoryProfiler.to_json."
        )
    if data.get("version", 0) > VERSION:
        raise ValueError(
            f"this profile has version {data['version']}, and this lowtide reads up to {VERSION}. "
            "Update lowtide."
        )
    roles = data.get("roles")
    if not isinstance(roles, list) or not roles or roles != list(ROLES[: len(roles)]):
        raise ValueError(f"this profile has other roles: {roles}; known are {ROLES}.")
    try:
        return _recording(data)
    except (KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"this {FORMAT} is damaged: {type(error).__name__}: {error}. Its schema is "
            "docs/profiler_json.md."
        ) from error


def _recording(data: dict[str, Any]) -> Recording:
    events = Events()
    for name, column in events.columns().items():
        setattr(events, name, array(column.typecode, data["events"][name]))
    evictions = Evictions()
    for name, column in evictions.columns().items():
        noted = data.get("evictions", {}).get(name, [])  # none in files of earlier versions
        setattr(evictions, name, array(column.typecode, noted))
    return Recording(
        devices=list(data["devices"]),
        owners=_owners(data),
        start=data["start"],
        seconds=data["seconds"],
        peaks=[_as_peak(p) for p in data["peaks"]],
        fullest=[_as_peak(p) for p in data["fullest"]],
        marks=[_as_mark(m) for m in data["marks"]],
        timeline=data["timeline"],
        events=events,
        evicted={(d, o): Evicted(*figures) for d, o, *figures in data.get("evicted", ())},
        evictions=evictions,
        lines=dict(data.get("lines", {})),  # none in files of earlier versions
        # Files of before these existed are read too.
        compilations=[
            Compilation(str(n), float(at), float(took))
            for n, at, took in data.get("compilations", ())
        ],
        classes=dict(data.get("classes", {})),
        findings=[_as_finding(f) for f in data.get("findings", ())],
        watched=data.get("watched"),
        place=JobRank(**data["place"]) if data.get("place") else None,
    )


def _as_mark(data: dict[str, Any]) -> Mark:
    # Files of before a role existed have fewer; new roles come last.
    roles = [[*found, *[0] * (len(ROLES) - len(found))] for found in data["roles"]]
    changes = [(a, b, c, d) for a, b, c, d in data["changes"]]
    late = {int(rank): float(seconds) for rank, seconds in data.get("late", {}).items()}
    return Mark(**{**data, "roles": roles, "changes": changes, "late": late})


def _owners(data: dict[str, Any]) -> list[Owner]:
    owners = [Owner(*o) for o in data["owners"]]
    if "stacks" not in data:  # files of before owners had callers
        return owners
    if len(data["callers"]) != len(owners):
        raise IndexError(f"{len(data['callers'])} callers of {len(owners)} owners")
    stacks = [tuple(map(str, lines)) for lines in data["stacks"]]
    return [o._replace(callers=stacks[k]) for o, k in zip(owners, data["callers"], strict=True)]


def _peak(peak: Peak) -> dict[str, Any]:
    return {
        "bytes": peak.nbytes,
        "time": peak.time,
        "event": peak.event,
        "cells": _cells(peak.cells),
        "holders": _cells(peak.holders),
    }


def _cells(cells: Cells) -> list[list[int]]:
    return [[owner, role, n] for (owner, role), n in cells.items()]


def _as_peak(data: dict[str, Any]) -> Peak:
    return Peak(
        data["bytes"],
        data["time"],
        data["event"],
        _as_cells(data["cells"]),
        _as_cells(data["holders"]),
    )


def _as_finding(data: dict[str, Any]) -> Finding:
    found = Finding(**data)
    numbers = found.bytes, found.growth_bytes_per_step, found.nodes, found.growth_nodes_per_step
    if not all(isinstance(n, int) for n in (*numbers, found.steps)):
        raise TypeError(f"a finding's figures are integers; got {data}")
    return found


def _as_cells(rows: Iterable[Any]) -> Cells:
    return {(owner, role): n for owner, role, n in rows}


def write(data: dict[str, Any], path: Any) -> None:
    """Write JSON to ``path`` atomically."""
    parts = json.JSONEncoder(separators=(",", ":")).iterencode(data)
    with replacing(path) as out:
        while text := "".join(islice(parts, PARTS)):
            out.write(text.encode())


def read(path: Any) -> Recording:
    """Load a recording from a JSON file.

    Raises:
        ValueError: The file holds something else, or is of a later version.
    """
    with open(path, encoding="utf-8") as f:
        try:
            data = json.load(f)
        except json.JSONDecodeError as error:
            raise ValueError(f"{os.fspath(path)} is no JSON: {error}.") from error
    return from_dict(data)
