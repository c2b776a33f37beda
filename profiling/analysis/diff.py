"""Memory differences: between two marks of a recording, and between two recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...framework.memory.ledger import format_bytes
from ..record.recording import Cells, Mark, Recording
from ..record.source_lines import renumbered
from .tables import Table, check_by, grouped

if TYPE_CHECKING:
    from ..profile import Profile


def position(marks: list[Mark], name: str) -> int:
    """Return the position of the last mark with a given name.

    Raises:
        ValueError: There is none.
    """
    for k in range(len(marks) - 1, -1, -1):
        if marks[k].name == name:
            return k
    names = ", ".join(repr(m.name) for m in marks[:20])
    raise ValueError(f"there is no mark {name!r}; there are {names}.")


def between(marks: list[Mark], start: str | None, end: str | None) -> tuple[int, int]:
    """Return the positions of two marks, with the defaults of ``Profile.growth``."""
    steps = [k for k, m in enumerate(marks) if m.kind == "step"]
    first = steps[1] if len(steps) > 2 else steps[0] if steps else 0
    last = steps[-1] if len(steps) > 1 else len(marks) - 1
    return (
        first if start is None else position(marks, start),
        last if end is None else position(marks, end),
    )


def changes(
    recording: Recording,
    first: int,
    last: int,
    device: int,
    by: str | Sequence[str],
    depth: int | None = None,
) -> dict[str, int]:
    """Compute the change in bytes per owner between two marks, without zeros."""
    sign = 1 if first <= last else -1
    cells: Cells = {}
    for mark in recording.marks[min(first, last) + 1 : max(first, last) + 1]:
        for d, owner, role, change in mark.changes:
            if d == device:
                cells[owner, role] = cells.get((owner, role), 0) + sign * change
    return {name: n for name, n in grouped(recording, cells, by, depth).items() if n}


def diff(a: Profile, b: Profile, by: str | Sequence[str], depth: int | None, device: Any) -> Table:
    """Compute by how many bytes per owner the peak of ``a`` exceeds that of ``b``."""
    one, two = a.peak(device), b.peak(device)
    more = grouped(a.recording, one.cells, by, depth)
    names = renumbered(b.recording.lines, a.recording.lines)
    owners = [
        o._replace(
            line=names.get(o.line, o.line), callers=tuple(names.get(c, c) for c in o.callers)
        )
        for o in b.recording.owners
    ]
    before = replace(b.recording, owners=owners)
    for name, n in grouped(before, two.cells, by, depth).items():
        more[name] = more.get(name, 0) - n
    change = one.nbytes - two.nbytes
    title = (
        f"Peak of {format_bytes(one.nbytes)} against {format_bytes(two.nbytes)}: "
        f"{'+' if change > 0 else '-' if change < 0 else ''}{format_bytes(abs(change))}"
    )
    equal = sum(n == 0 for n in more.values())
    notes = [f"{equal} more hold the same in both."] if equal else []
    changed = {name: n for name, n in more.items() if n}
    return Table(title, " · ".join(check_by(by)), changed, notes)
