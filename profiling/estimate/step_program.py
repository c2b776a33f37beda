"""A step as data: its values, the calls that make them, and the backward nodes that read them.

Recorded from a step that is imagined with nothing dropped. The search for values to keep
(``keep_sets.py``) and the proof of how little can be recomputed (``replay_bound.py``) work on it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...framework.autograd.remat.evictable import EvictableVersion, Kept, parents
from ...framework.autograd.remat.evictor import Evictor, can_go
from ...framework.autograd.remat.replay_costs import EvictionRule
from ...framework.checkpointing.budget import BudgetRecorder, memory_budget
from ...framework.memory.ledger import SAVED
from ...framework.modes import local
from ...framework.spec import Spec

INSTANTS = 256  # of a step


class Value(NamedTuple):
    """A value that a step computes while it records.

    Attributes:
        call: Number of the call that makes it.
        nbytes: Of its storage.
    """

    call: int
    nbytes: int


class Call(NamedTuple):
    """A recorded call.

    Attributes:
        cost: Of running it again, as the evictor counts it.
        flops: Its operations.
        reads: Numbers of the values that it reads.
        values: Numbers of those that it makes.
    """

    cost: float
    flops: int
    reads: tuple[int, ...]
    values: list[int]


class Instant(NamedTuple):
    """One moment in backward: the allocation of a node at which most bytes live that must.

    Attributes:
        node: Number of the node.
        need: Bytes that cannot be dropped then, those asked for included.
        there: Values that live then whatever is dropped: the program, or the node, holds them.
        droppable: Values that live in the plain step and could be dropped.
    """

    node: int
    need: int
    there: frozenset[int]
    droppable: frozenset[int]


@dataclass
class StepProgram:
    """What one step computes, saves and reads.

    Attributes:
        values: In the order in which they are made.
        calls: In the order in which they run.
        saved: By value that a node saves: the number under which :class:`EvictionRule` knows it.
        readers: By value: the nodes that read it, in the order in which they run.
        base: By node: bytes that live at its peak beside what was saved before it.
        instants: Of nodes at equal distances, in the order in which they run.
    """

    values: list[Value] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    saved: dict[int, int] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=dict)
    base: list[int] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)


class ProgramWatch(Evictor):
    """Drops nothing, and notes the program of a step.

    Args:
        rule: By which calls cost something.
    """

    def __init__(self, rule: EvictionRule) -> None:
        super().__init__(rule)
        self.forget()

    def forget(self) -> None:
        """Begin again, with the next step."""
        self.program = StepProgram()
        self._numbers: Any = weakref.WeakKeyDictionary()  # by version
        self._calls: Any = weakref.WeakKeyDictionary()
        self._node: Any = None  # weakly: the one that ran last
        self._saved = 0  # bytes, when it began
        self._every = 1  # the nodes that are looked at: not all, where there are many

    def add(self, value: EvictableVersion) -> None:
        """Note a value that was just made."""
        program, call = self.program, value.producer
        number = self._calls.get(call)
        if number is None:
            number = self._calls[call] = len(program.calls)
            reads = {self._numbers[p] for p in parents(value) if p in self._numbers}
            program.calls.append(
                Call(self.costs.cost_of(value), _flops(call), tuple(sorted(reads)), [])
            )
        self._numbers[value] = len(program.values)
        program.calls[number].values.append(len(program.values))
        program.values.append(Value(number, value.nbytes))

    def note_saving(self, value: EvictableVersion, number: int) -> None:
        """Note that a node saves a value: the so manieth saving of the step."""
        place = self._numbers.get(value)
        if place is not None:
            self.program.saved.setdefault(place, number)

    def note_reading(self, value: EvictableVersion, node: Any) -> None:
        """Note that a node reads a value."""
        at = self._number_of(node)
        place = self._numbers.get(value)
        if place is not None:
            readers = self.program.readers.setdefault(place, [])
            if not readers or readers[-1] != at:
                readers.append(at)

    def _number_of(self, node: Any) -> int:
        # A node's number: nodes run one after another.
        base = self.program.base
        if self._node is None or self._node() is not node:
            self._node = weakref.ref(node)
            base.append(0)
            self._saved = self._ledger_of_saved()
        return len(base) - 1

    def _ledger_of_saved(self) -> int:
        return 0 if self.ledger is None else int(self.ledger.roles[SAVED])

    ledger: Any = None  # of the budget's device

    def make_room(self, ledger: Any, nbytes: int) -> bool:
        """Note what lives, and let the allocation pass."""
        self.ledger = ledger
        running = local.state.running
        node = None if running is None else running.node
        if node is None or self.busy:
            return True
        at = self._number_of(node)
        base = self.program.base
        base[at] = max(base[at], ledger.live + nbytes - self._saved)
        if at % self._every == 0:
            self.busy = True
            try:
                self._look(ledger, nbytes, at)
            finally:
                self.busy = False
        return True

    def make_less(self, ledger: Any, nbytes: int, smallest: int = 0) -> bool:
        """Drop nothing."""
        return False

    def make_extent(self, ledger: Any, nbytes: int) -> bool:
        """Drop nothing."""
        return False

    def _look(self, ledger: Any, nbytes: int, at: int) -> None:
        there, droppable, free = set(), set(), 0
        for value, number in list(self._numbers.items()):
            if value.available() is None:
                continue
            if value.held is not None and value.ledger is ledger and can_go(value):
                droppable.add(number)
                free += value.nbytes
            else:
                there.add(number)
        found = Instant(at, ledger.live + nbytes - free, frozenset(there), frozenset(droppable))
        instants = self.program.instants
        if instants and instants[-1].node == at:
            if instants[-1].need >= found.need:
                return
            instants.pop()
        instants.append(found)
        if len(instants) > INSTANTS:
            self._every *= 2
            instants[:] = [i for i in instants if i.node % self._every == 0]


class _NotedKept(Kept):
    """A handle that tells the watch who reads it."""

    __slots__ = ()

    def unpack(self, node: Any, label: str) -> Any:
        self.owner_region.evictor.note_reading(self.value, node)
        return super().unpack(node, label)


class _ProgramRecorder(BudgetRecorder):
    """Tells the watch of each value that is made, saved and read."""

    __slots__ = ()

    def _add(self, call: Any, index: int, out: Any, plan: Any, result: str) -> Any:
        value = super()._add(call, index, out, plan, result)
        if value.producer is not None:
            self.evictor.add(value)  # type: ignore[attr-defined]
        return value

    def _handle(self, tensor: Any, value: Any, owner_region: Any, source: Any, index: int) -> Any:
        if owner_region is not self.budget or value.stash is not None:
            return super()._handle(tensor, value, owner_region, source, index)
        handle = _NotedKept(tensor, value, self.budget, source, index)
        number = handle.when - self.budget.began
        self.evictor.note_saving(value, number)  # type: ignore[attr-defined]
        return handle


class watched_budget(memory_budget):
    """A budget whose region's evictor is a :class:`ProgramWatch`."""

    recorder_class = _ProgramRecorder


def _flops(call: Any) -> int:
    plan = getattr(call, "plan", None)
    if plan is None or plan.op.flops is None:
        return 0
    specs = [s if isinstance(s, Spec) else None for s in plan.specs]
    return int(plan.op.flops(*specs, **plan.attributes))


__all__ = ["Call", "Instant", "ProgramWatch", "StepProgram", "Value", "watched_budget"]
