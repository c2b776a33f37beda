"""Which kernel calls of a program are joined into passes, and the program that results.

Calls are joined if they go through results of one shape. A call between them that neither reads
what they write nor writes what they read comes before the pass. What only the calls of a pass use
needs no memory. A pass keeps other values alive longer than its calls one by one. Where that
would raise the program's peak, it is divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..program import ARENA, FRESH, OUTSIDE, Place, Row, StepProgram, Value, values_of
from .members import Kernels, Member, Takes, domain_of
from .recomputing import Recomputing, saved_between
from .tiled_pass import pass_of


def with_passes(program: StepProgram, tracer: Any, takes: Takes) -> StepProgram:
    """Return a program in which elementwise kernel calls are joined.

    Values are computed again where that lowers the peak (``recomputing.py``).

    Args:
        program: A recording.
        tracer: Finds the loops of kernel calls.
        takes: Whether all memory of a kernel call is aligned.
    """
    found = joined(program, tracer, takes)
    for _ in range(_ROUNDS):
        live = live_bytes(found)
        again = Recomputing(program, live_bytes(program), takes).program()
        other = None if again is None else joined(again, tracer, takes)
        if again is None or other is None or live_bytes(other).max() >= live.max():
            break
        program, found = again, other
    return found


def joined(program: StepProgram, tracer: Any, takes: Takes) -> StepProgram:
    """Return a program in which elementwise kernel calls are joined, with no higher peak."""
    kernels = Kernels()
    members = {
        k: member
        for k in range(len(program.entries))
        if (member := kernels.member(program, k)) is not None and takes(program, member.row)
    }
    if len(members) < 2:
        return program
    peak = live_bytes(program).max()
    for over in (True, False):
        joining = _Joining(program, members, tracer, over)
        while (found := joining.program()) is not None:
            live = live_bytes(found)
            if live.max() <= peak:
                return found
            if not joining.divide(np.flatnonzero(live > peak).tolist()):
                break  # calls that come before others raise it
    return program


_ROUNDS = 3  # of computing values again; each sees the peak that the last one has left


class _Open:
    # Members that are not in the new program yet.

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.shape: Any = None
        self.places: dict[Place, None] = {}
        self.written: dict[int, set[Place]] = {}
        self.read: dict[int, set[Place]] = {}

    def takes(self, member: Member) -> bool:
        """Whether a member, behind the others, finds at each place what it would."""
        if not self.entries:
            return True
        if self.shape != member.shape:
            return False
        if any(self.written.get(p.value, {p}) != {p} for p in member.reads):
            return False
        for p in member.writes:
            if self.written.get(p.value, {p}) | self.read.get(p.value, {p}) != {p}:
                return False
        places = dict.fromkeys((*self.places, *member.writes, *member.reads))
        return domain_of(member.shape, [*places]) is not None

    def add(self, k: int, member: Member) -> None:
        """Add a member."""
        self.entries.append(k)
        self.shape = member.shape
        self.places |= dict.fromkeys((*member.writes, *member.reads))
        for p in member.writes:
            self.written.setdefault(p.value, set()).add(p)
        for p in member.reads:
            self.read.setdefault(p.value, set()).add(p)

    def lets_pass(self, program: StepProgram, row: Row) -> bool:
        """Whether a kernel call may come before the members."""
        if any(n in self.written for n in values_of(row.arguments)):
            return False
        # Memory from outside may be that of several values.
        return not any(n in self.read or program.values[n].kind == OUTSIDE for n in row.written)


class _Joining:
    # A program, the calls of it that may be joined, and the entries that use each value. `over`:
    # whether a call may come before members that it has nothing to do with.

    def __init__(
        self, program: StepProgram, members: dict[int, Member], tracer: Any, over: bool
    ) -> None:
        self.recorded, self.members, self.tracer, self.over = program, members, tracer, over
        self.divided: set[tuple[int, ...]] = set()  # groups that would raise the peak
        self.made: dict[int, tuple[int, ...]] = {}  # the group of each pass, by its entry
        self.uses: dict[int, list[int]] = {}
        for k, entry in enumerate(program.entries):
            if isinstance(entry, Row):
                for n in dict.fromkeys(values_of(entry.arguments)):
                    self.uses.setdefault(n, []).append(k)
        self.undivided = [*self.groups()]
        self.rows: dict[tuple[int, ...], tuple[Row | None, set[int]]] = {}  # of groups, once made

    def divide(self, entries: list[int]) -> bool:
        """Divide the passes among entries of the last program; False if there is none."""
        found = {self.made[k] for k in entries if k in self.made}
        self.divided |= found
        return bool(found)

    def parts(self, group: list[int]) -> Iterator[list[int]]:
        """What is left of a group that was divided."""
        if len(group) > 1 and (*group,) in self.divided:
            half = len(group) // 2
            yield from self.parts(group[:half])
            yield from self.parts(group[half:])
        else:
            yield group

    def program(self) -> StepProgram | None:
        """Return the program with passes; None if there is none."""
        self.made.clear()
        recorded = self.recorded
        entries: list[Any] = []
        now: dict[int, int] = {}  # the new number of each entry
        inner: set[int] = set()
        for group in (part for found in self.undivided for part in self.parts(found)):
            found, own = self.row(group)
            if found is None:
                for k in group:
                    now[k] = len(entries)
                    entries.append(recorded.entries[k])
                continue
            inner |= own
            self.made[len(entries)] = (*group,)
            now |= dict.fromkeys(group, len(entries))
            entries.append(found)
        if len(entries) == len(recorded.entries):
            return None
        now[len(recorded.entries)] = len(entries)
        lines: dict[int, int] = {}
        for k, line in recorded.lines.items():
            lines.setdefault(now[k], line)
        at = recorded.backward_at
        return replace(
            recorded,
            entries=entries,
            values=[self.moved(v, now, inner) for v in recorded.values],
            backward_at=None if at is None else now[at],
            lines=lines,
        )

    def row(self, group: list[int]) -> tuple[Row | None, set[int]]:
        """The pass of a group, if it is one, and the values that only its calls use."""
        if len(group) < 2:
            return None, set()
        if (*group,) not in self.rows:
            own = self.inner(group)
            made = pass_of([self.members[k] for k in group], own, self.tracer)
            self.rows[(*group,)] = made, own
        return self.rows[(*group,)]

    def groups(self) -> Iterator[list[int]]:
        """The entries in their new order; several where they are joined."""
        program = self.recorded
        waiting = _Open()
        for k, entry in enumerate(program.entries):
            member = self.members.get(k)
            begins_backward = k == program.backward_at
            if member is not None and not begins_backward and waiting.takes(member):
                waiting.add(k, member)
                continue
            kernel = isinstance(entry, Row) and not begins_backward
            alone = self.over and kernel and member is None
            if waiting.entries and not (alone and waiting.lets_pass(program, entry)):  # type: ignore[arg-type]
                yield waiting.entries
                waiting = _Open()
            if member is not None:
                waiting.add(k, member)
            else:
                yield [k]
        if waiting.entries:
            yield waiting.entries

    def inner(self, group: list[int]) -> set[int]:
        """Values that only the calls of a group use: the first of them writes, before any reads."""
        written = {p.value for k in group for p in self.members[k].writes}
        values = self.recorded.values
        return {n for n in written if values[n].kind == ARENA and {*self.uses[n]} <= {*group}}

    def moved(self, value: Value, now: dict[int, int], inner: set[int]) -> Value:
        """A value with the new numbers of the entries that use it."""
        if value.first < 0 or value.number in inner:
            return replace(value, first=-1, last=-1)
        used = [now[k] for k in (*self.uses.get(value.number, ()), value.first, value.last)]
        saved = saved_between(value.saved, now)
        return replace(value, first=min(used), last=max(used), saved=saved)


def live_bytes(program: StepProgram) -> Any:
    """Return the bytes of a program's own values that live at each entry, and at the end."""
    end = len(program.entries)
    changes = np.zeros(end + 2, np.int64)
    for v in program.values:
        if v.kind in (ARENA, FRESH) and v.first >= 0:
            changes[v.first] += v.nbytes
            changes[(end if v.kind == FRESH else v.last) + 1] -= v.nbytes
    return changes.cumsum()[:-1]
