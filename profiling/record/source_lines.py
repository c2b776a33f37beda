"""The text of source lines, so that runs of changed code can be compared line by line."""

from __future__ import annotations

import linecache
import os
from collections import Counter
from collections.abc import Iterable, Mapping

CHANGED = " (before)"  # of a line whose number belongs to another text now


def texts(lines: Iterable[str]) -> dict[str, str]:
    """Read the text of each ``file:line``; lines whose file is not to be had are left out."""
    found = {}
    for line in sorted(set(lines) - {""}):
        file, _, number = line.rpartition(":")
        if number.isdigit():
            text = linecache.getline(os.path.abspath(file), int(number)).strip()
            found.update({line: text} if text else {})
    return found


def renumbered(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Say how lines of an older run are called in a newer one.

    A line is the same if file and text are; of several that are alike, the first is the first.

    Args:
        old: Text by ``file:line``, of the older run.
        new: That of the newer.

    Returns:
        The name of each old line that has another one now. One whose number now belongs to another
        text is marked.
    """
    places = {key: line for line, key in _keys(new).items()}
    names = {}
    for line, key in _keys(old).items():
        now = places.get(key)
        if now is None and new.get(line, old[line]) != old[line]:
            names[line] = line + CHANGED
        elif now is not None and now != line:
            names[line] = now
    return names


def _keys(lines: Mapping[str, str]) -> dict[str, tuple[str, str, int]]:
    # (file, text, the how many-th of that text) of each line.
    seen: Counter[tuple[str, str]] = Counter()
    keys = {}
    for line in sorted(lines, key=lambda line: int(line.rpartition(":")[2])):
        alike = line.rpartition(":")[0], lines[line]
        keys[line] = (*alike, seen[alike])
        seen[alike] += 1
    return keys
