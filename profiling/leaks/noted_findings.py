"""Findings from what was noted alone: cycles, idle backward passes, data that gathers gradients.

No walk through the process is needed for them, but for the name of the data.
"""

from __future__ import annotations

from typing import Any

from .findings import FindingRecord, Size, fix
from .node_tracker import NodeTracker
from .referrers import ReferrerPath, find_referrers
from .survivors import SIGN

Records = dict[tuple[str, ...], FindingRecord]


class NotedFindings:
    """Looks through the notes at the end of each step.

    Args:
        notes: On nodes, passes and leaves.
    """

    def __init__(self, notes: NodeTracker) -> None:
        self._notes = notes
        self._idle: dict[str, set[int]] = {}  # line of a pass -> the steps in which it was idle

    def begin_again(self) -> None:
        """Forget the steps so far."""
        self._idle.clear()

    def look(self, records: Records, ends: int) -> None:
        """Update the records, and add new ones.

        Args:
            records: What was found so far.
            ends: Steps that have ended.
        """
        self._collected(records, ends)
        self._idle_passes(records, ends)
        self._fed(records, ends)

    def _collected(self, records: Records, ends: int) -> None:
        for line, (steps, nbytes) in self._notes.freed_by_gc().items():
            if len(steps) >= SIGN - 1 and ends >= SIGN:
                key = ("cycle", line, "")
                case = records.get(key)
                if case is None:
                    text = "a reference cycle, freed only by gc"
                    case = records[key] = _record("cycle", text, line, ends)
                case.steps = len(steps)
                if not case.sites:  # nothing of it was met alive
                    case.size, case.growth = Size(nbytes, 0), Size(nbytes // len(steps), 0)

    def _idle_passes(self, records: Records, ends: int) -> None:
        notes = self._notes
        for one in notes.passes:
            steps = self._idle.setdefault(one.line, set())
            nbytes = one.held_bytes() if one.step == notes.step and not one.used else 0
            if one.used:
                steps.discard(one.step)
            elif nbytes:
                steps.add(one.step)
                if len(steps) >= SIGN:
                    key = ("retain_graph", one.line, "")
                    text = "the graph of a backward with retain_graph=True, used by no other"
                    case = records.get(key) or _record("retain_graph", text, one.line, ends)
                    records[key] = case
                    case.size, case.steps = Size(nbytes, len(one.notes)), len(steps)
        notes.passes = [p for p in notes.passes if p.step >= notes.step - 1]

    def _fed(self, records: Records, ends: int) -> None:
        notes = self._notes
        lines: dict[str, dict[int, list[Any]]] = {}
        for number, fed in list(notes.leaves.items()):
            leaf = fed.leaf()
            if leaf is None:
                notes.leaves.pop(number, None)
            elif leaf._grad is not None:
                lines.setdefault(fed.line, {}).setdefault(fed.step, []).append(leaf)
        for line, steps in lines.items():
            if len(steps) < SIGN:
                continue
            leaves = [leaf for some in steps.values() for leaf in some]
            nbytes = sum({id(t._grad._storage): t._grad._storage.nbytes for t in leaves}.values())
            key = ("input gradient", line, "")
            case = records.get(key)
            if case is None:
                path = find_referrers(leaves[:1], [leaves, *steps.values()], set())[0]
                text = "data" if path is None else path.text
                case = records[key] = _record("input gradient", text, line, ends, path)
                case.first = case.size = Size(nbytes, 0)
                case.growth = Size(nbytes // len(steps), 0)
            else:
                case.grow(Size(nbytes, 0), ends)
            case.steps = len(steps)


def _record(
    kind: str, text: str, line: str, ends: int, path: ReferrerPath | None = None
) -> FindingRecord:
    return FindingRecord(kind, text, line, None, fix(kind, path or ReferrerPath(kind, text)), ends)
