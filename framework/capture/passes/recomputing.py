"""Values that are computed again where they are used again, instead of being kept.

Backward uses many values that forward computed by elementwise ops: ``silu(gate)`` is an operand of
the product behind it. Where the values that such a one was computed from are kept anyway, a kernel
call before the later use computes it once more, in the pass of that use: there it needs no memory,
and hardly any time. So what a step keeps is what products, convolutions and sums have made.

A value may be computed again if

- one kernel call writes it, which may be joined (``members.py``);
- it lives where the program's live bytes are highest, and all uses behind that may be joined;
- all that it is computed from is there then: not written since, and used as late or later; or it
  may be computed again itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..program import ARENA, FRESH, OUTSIDE, LiveCall, Place, Row, StepProgram, Value, values_of
from .members import Kernels, Member, Takes

_LONGEST = 12  # kernel calls for one value
_NEAR = 8  # entries within which a value is used again, once it was computed again


class Recomputing:
    """A program and the values of it that may be computed again.

    Args:
        program: The recording.
        live: Its live bytes at each entry.
        takes: Whether all memory of a kernel call is aligned.
    """

    def __init__(self, program: StepProgram, live: Any, takes: Takes) -> None:
        self.recorded = program
        kernels = Kernels()
        self.members: dict[int, Member] = {}
        self.writers: dict[int, list[int]] = {}
        self.uses: dict[int, list[int]] = {}
        self.changes: list[int] = []  # entries that may write memory from outside
        for k, entry in enumerate(program.entries):
            if isinstance(entry, LiveCall):
                self.changes.append(k)
            if not isinstance(entry, Row):
                continue
            if any(program.values[n].kind == OUTSIDE for n in entry.written):
                self.changes.append(k)
            member = kernels.member(program, k)
            if member is not None and takes(program, entry):
                self.members[k] = member
            for n in dict.fromkeys(entry.written):
                self.writers.setdefault(n, []).append(k)
            for n in dict.fromkeys(values_of(entry.arguments)):
                self.uses.setdefault(n, []).append(k)
        self.peak = int(live.argmax())
        self.dropped = {v.number for v in program.values if self._may_go(v)}
        # Calls whose results are used behind the peak only: they are made there, and not before.
        self.postponed = {self.writers[n][0] for n in self.dropped if self.uses[n][1] > self.peak}

    def _may_go(self, value: Value) -> bool:
        # Whether all later uses may compute it again.
        uses = self.uses.get(value.number, [])
        later = [k for k in uses if k > self.peak]
        if value.kind != ARENA or not later or later == uses:
            return False
        if any(k not in self.members for k in later):
            return False
        return self._calls_for(value.number, later[-1]) is not None

    def _calls_for(self, n: int, until: int) -> list[int] | None:
        # The kernel calls, in order, that compute a value again anywhere up to an entry.
        found: dict[int, None] = {}
        return [*found] if self._collect(n, until, found) else None

    def _collect(self, n: int, until: int, found: dict[int, None]) -> bool:
        writers = self.writers.get(n, [])
        if len(writers) != 1 or writers[0] not in self.members or len(found) > _LONGEST:
            return False
        if writers[0] in found:
            return True
        member = self.members[writers[0]]
        if len(member.writes) != 1:
            return False
        for p in member.reads:
            if not self._kept(p.value, writers[0], until) and not self._collect(
                p.value, until, found
            ):
                return False
        found[writers[0]] = None
        return len(found) <= _LONGEST

    def _kept(self, n: int, since: int, until: int) -> bool:
        # Whether a value is there until an entry, as it was when another one was computed from it.
        value = self.recorded.values[n]
        if any(k > since for k in self.writers.get(n, ())):
            return False
        if value.kind != ARENA and any(since < k < until for k in self.changes):
            return False  # of this memory, which others know too, or which is that of another value
        # Between forward and a later backward anyone may write to what the graph does not keep.
        stays = value.kind in (OUTSIDE, FRESH) and self.recorded.backward_at is None
        return stays or self.uses[n][-1] >= until

    # The program in which they are

    def program(self) -> StepProgram | None:
        """Return the program that computes values again; None if there are none."""
        if not self.dropped:
            return None
        recorded = self.recorded
        entries: list[Any] = []
        values = [replace(v) for v in recorded.values]
        now: dict[int, int] = {}
        again: dict[int, tuple[int, int]] = {}  # value -> (its new one, the entry it is for)
        lines: dict[int, int] = {}
        for k, entry in enumerate(recorded.entries):
            now[k] = len(entries)
            if k > self.peak and k in self.members:
                again = {n: found for n, found in again.items() if k - found[1] <= _NEAR}
                wanted = [p.value for p in self.members[k].reads if p.value in self.dropped]
                calls = dict.fromkeys(c for n in wanted for c in self._missing(n, k, again))
                for call in calls:
                    member = self.members[call]
                    old = member.writes[0].value
                    number = len(values)
                    site = values[old].site and values[old].site._replace(phase="recompute")
                    values.append(
                        replace(values[old], number=number, kind=ARENA, site=site, saved=None)
                    )
                    row = _with_values(member.row, {n: new for n, (new, _) in again.items()})
                    again[old] = number, k
                    entries.append(_with_written(row, old, number))
                if wanted:
                    entry = _with_values(self.members[k].row, {n: again[n][0] for n in wanted})
                now[k] = len(entries) - len(calls)
            if k in self.postponed:
                continue
            if k in recorded.lines:
                lines |= dict.fromkeys(range(now[k], len(entries) + 1), recorded.lines[k])
            entries.append(entry)
        now[len(recorded.entries)] = len(entries)
        _note_uses(values, entries, recorded.values, now)
        at = recorded.backward_at
        return replace(
            recorded,
            entries=entries,
            values=values,
            backward_at=None if at is None else now[at],
            lines=lines,
        )

    def _missing(self, n: int, k: int, again: dict[int, tuple[int, int]]) -> list[int]:
        # The calls that compute a value for entry `k`, but for what is there already.
        calls = self._calls_for(n, self.uses[n][-1])
        assert calls is not None
        return [c for c in calls if self.members[c].writes[0].value not in again]


def _with_values(row: Row, new: dict[int, int]) -> Row:
    # A kernel call that takes other values.
    arguments = [_renumbered(a, new) for a in row.arguments]
    return replace(row, arguments=arguments, over=new.get(row.over, row.over))


def _with_written(row: Row, old: int, new: int) -> Row:
    # A kernel call that writes another value.
    return replace(_with_values(row, {old: new}), written=[new], over=-1)


def _renumbered(a: Any, new: dict[int, int]) -> Any:
    return a._replace(value=new.get(a.value, a.value)) if isinstance(a, Place) else a


def saved_between(saved: tuple[int, int] | None, now: dict[int, int]) -> tuple[int, int] | None:
    """Return since when and until when a value is saved, with the new numbers of the entries."""
    if saved is None:
        return None
    since, until = saved
    return now[since], now.get(until, until)  # it may be saved for good


def _note_uses(
    values: list[Value], entries: list[Any], before: list[Value], now: dict[int, int]
) -> None:
    # The first and last entry of each value. Results and gradients are used without a call.
    uses: dict[int, list[int]] = {}
    for k, entry in enumerate(entries):
        if isinstance(entry, Row):
            for n in values_of(entry.arguments):
                uses.setdefault(n, []).append(k)
    for v in values:
        found = uses.get(v.number, [])
        if v.kind != ARENA and v.number < len(before) and before[v.number].first >= 0:
            old = before[v.number]
            found = [*found, now[old.first], now[old.last]]
        if v.number < len(before):
            v.saved = saved_between(v.saved, now)
        v.first, v.last = (min(found), max(found)) if found else (-1, -1)
