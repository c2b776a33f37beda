"""Names of source lines that tell callers apart: ``model.py:9 from train.py:14``.

A function that training and evaluation both call is two owners. Its line alone would hide that, and
its complete stack would say the same of every owner. So a line is followed by those callers at
which the stacks of the owners in question part, and by no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..record.recording import Cells, Owner, Recording
from .tables import NO_LINE

CallPath = tuple[str, tuple[str, ...]]  # a line, and its callers from the innermost outwards


def parted(owners: Iterable[Owner], short: Mapping[str, str] | None = None) -> dict[CallPath, str]:
    """Name the lines of owners so that different call stacks have different names.

    Args:
        owners: Those that stand in one table.
        short: What to call a line; each its own name by default.

    Returns:
        (line, callers) -> name.
    """
    by_line: dict[str, dict[tuple[str, ...], None]] = {}  # sets that keep their order
    for owner in owners:
        by_line.setdefault(owner.line, {})[owner.callers] = None
    names: dict[CallPath, str] = {}
    for line, stacks in by_line.items():
        called = short.get(line, line) if short else line
        for callers, ways in _branches(stacks).items():
            words = [short.get(way, way) if short else way for way in ways]
            names[line, callers] = " from ".join([called or NO_LINE, *words])
    return names


def by_caller(recording: Recording, cells: Cells) -> dict[str, int]:
    """Sum bytes by line and, where a line was reached in several ways, by caller."""
    owners = recording.owners
    names = parted(owners[owner] for owner, _ in cells)
    sums: dict[str, int] = {}
    for (number, _), nbytes in cells.items():
        name = names[owners[number].line, owners[number].callers]
        sums[name] = sums.get(name, 0) + nbytes
    return sums


def line_of(name: str) -> str:
    """Return the line that a name of :func:`parted` begins with."""
    return name.partition(" from ")[0]


def _branches(stacks: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    # For each stack the callers where it parts from others; a stack that ends first has none there.
    ways: dict[tuple[str, ...], list[str]] = {stack: [] for stack in stacks}
    pending = [(0, list(ways))]
    while pending:
        depth, group = pending.pop()
        if len(group) < 2:
            continue
        nexts: dict[str, list[tuple[str, ...]]] = {}
        for stack in group:
            if len(stack) > depth:
                nexts.setdefault(stack[depth], []).append(stack)
        for caller, members in nexts.items():
            if len(members) < len(group):
                for stack in members:
                    ways[stack].append(caller)
            pending.append((depth + 1, members))
    return ways
