"""Tensors without a graph that pile up: predictions on a list, features that a hook keeps, a cache.

No node of the graph is there to be noted, so living tensors are looked at: all those of the
process, at the end of a step after which more bytes are alive than before. Each storage is known by
the step at whose end it was first met. A container that holds storages of three steps or more is
counted (``ownership.py``); it grows if it holds more bytes at each look.

What is not told: one number a step (``losses.append(loss.detach())``), for which there is no
cheaper way; a ``deque`` with a ``maxlen``; what stopped growing, as a replay buffer does when it is
full; what was let go once, as predictions are at the end of an epoch; optimizer state; and growth
that would take more than a thousand steps to double the bytes that are alive between steps.
"""

from __future__ import annotations

import gc
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper
from statistics import median_low
from types import CellType
from typing import Any, NamedTuple

import numpy as np

from ...framework.attribution import scopes
from ...framework.attribution.frames import user_line
from ...framework.devices import live_backends
from ...framework.memory.events import attach, detach
from ...framework.memory.ledger import OPTIMIZER, SAVED
from ...framework.modes import local
from ...framework.storage import LedgerEntry
from ...framework.tensor import Tensor
from .containers import dropped_root, grouped
from .findings import FindingRecord, Size, fix_growing
from .node_tracker import NodeTracker
from .ownership import Owned
from .referrers import find_referrers

SIGN = 3  # steps whose storages one container holds
RIPE = 8  # steps with growth, before it is told of while the loop runs
STEPS_TO_DOUBLE = 1000  # growth that needs more steps to double the memory is not told
OLDEST, SIDE_BY_SIDE = 4, 4  # steps to walk from, and values of each
NUMBER = 16  # bytes of the largest single number, complex128
BUILTINS = (list, tuple, dict, set, frozenset, deque, CellType, _lru_cache_wrapper)


@dataclass
class GrowingRecord(FindingRecord):
    """A container of tensors without a graph, updated when it is counted.

    Attributes:
        name: Of the variable or attribute.
        since: The step in which it was first counted.
        most: Bytes of it, the most so far.
        grew: The step in which it last held more than ever.
        released: It let go of more than half: what it holds is used and dropped.
        looks: The steps in which storages were met.
    """

    graph: bool = False
    name: str = ""
    since: int = 0
    most: int = 0
    grew: int = 0
    released: bool = False
    enough: bool = False
    looks: list[int] = field(default_factory=list)

    def weigh(self, owned: Owned, step: int, ends: int) -> None:
        """Update it from what dropping it would free."""
        size = Size(owned.bytes, owned.nodes)
        made = sorted(owned.by_step)
        if not self.counted:
            self.counted, self.first, self.since = True, size, step
        if len(made) > 1:
            # Not by its size: a variable may hold the newest value, too.
            rates = [owned.by_step[k] // (k - self._look_before(k)) for k in made[1:]]
            self.growth = Size(median_low(rates), 0)
        self.enough |= len(made) >= SIGN
        if size.bytes > self.most:
            self.most, self.grew = size.bytes, step
        elif 2 * size.bytes < self.most:
            self.released = True
        self.size, self.steps = size, len(made)

    def _look_before(self, step: int) -> int:
        return self.looks[bisect_left(self.looks, step) - 1]

    def told(self, step: int, base: int, over: bool) -> bool:
        """Return whether it is a finding by now.

        Args:
            step: The present one.
            base: The fewest bytes that were alive at the end of a step.
            over: The loop has ended, so that no step can show more.
        """
        watched = step - self.since
        return (
            self.enough
            and not self.released
            and not self.gone
            and (over or watched >= RIPE - SIGN)
            and 4 * (step - self.grew) <= watched + SIGN
            and self.growth.bytes * STEPS_TO_DOUBLE >= base
        )


class _Kept(NamedTuple):
    """A living storage, and a tensor or array without a graph that holds it."""

    storage: Any
    value: Any
    step: int


class GrowingTensors:
    """Looks for containers of tensors without a graph that grow from step to step.

    Args:
        notes: Counts the steps, and knows the nodes of the graph.

    Attributes:
        base: The fewest bytes that were alive at the end of a step.
    """

    def __init__(self, notes: NodeTracker) -> None:
        self._notes = notes
        self._met: dict[int, tuple[weakref.ref[Any], int]] = {}  # id of a storage -> it, its step
        self.base = self._live = self._next = self._fruitless = 0
        self._lines = _AllocationLines()
        self._unseen = 0  # bytes that neither tensors nor graphs held at the last look
        self._looks: list[int] = []  # steps
        self._untracked: list[Any] = []  # containers of arrays, while one looks

    def begin_again(self) -> None:
        """Forget the steps so far."""
        self._met.clear()
        self._looks.clear()
        self._next = self._fruitless = 0
        self._lines.stop()

    stop = begin_again

    def steps_of(self) -> dict[int, int]:
        """Return the step in which each living storage was first met, by its id."""
        return {key: step for key, (made, step) in self._met.items() if made() is not None}

    def look(self, ends: int, known: list[FindingRecord], last: bool) -> list[GrowingRecord]:
        """Look for containers that hold tensors of several steps.

        Args:
            ends: Steps that have ended.
            known: What was found so far.
            last: No other look follows.

        Returns:
            What is new.
        """
        live = sum(be.ledger.live for be in live_backends())
        step, first = self._notes.step, not self._met
        self.base = min(self.base or live, live)
        if not first and (live <= self._live or (step < self._next and not last)):
            self._live = min(self._live, live)
            self._lines.stop()
            return []
        enabled = gc.isenabled()
        gc.disable()
        try:
            kept = self._survivors(step)
            found = [] if first else self._containers(kept, ends, known)
        finally:
            kept, self._untracked = [], []
            if enabled:
                gc.enable()
        self._live = live
        self._fruitless = 0 if found or first else self._fruitless + 1
        self._next = step + (1 if self._fruitless < RIPE else 2 ** min(self._fruitless - RIPE, 6))
        # A loop that keeps something makes more of it in the next step.
        settled = not found and any(not case.graph for case in known)
        if settled or last or self._fruitless >= RIPE:
            self._lines.stop()
        else:
            self._lines.start()
        return found

    def _survivors(self, step: int) -> list[_Kept]:
        # Storages that values without a graph hold; each is met now, if it was not before.
        values: dict[int, Any] = {}
        sizes: dict[int, int] = {}
        storages: dict[int, Any] = {}

        def meet(found: Iterator[Any] | list[Any]) -> None:
            for value in found:
                storage = _storage_of(value)
                if storage is None or storage.ledger is None:
                    continue
                key = id(storage)
                storages[key] = storage
                if not issubclass(type(value), Tensor) or value._node is None:
                    # The least of several: a view's base lives for the view's sake.
                    size = _own_bytes(value)
                    if size < sizes.get(key, size + 1):
                        values[key], sizes[key] = value, size

        objects = gc.get_objects()
        meet(_tensors(objects))
        # Arrays take longer to find: only if more is alive that neither tensors nor graphs hold.
        seen = sum(int(s.nbytes) for s in storages.values() if s.role != SAVED)
        ledgers = [be.ledger for be in live_backends()]
        unseen = sum(ledger.live - ledger.roles[SAVED] for ledger in ledgers) - seen
        if unseen > self._unseen and self._met:
            arrays, self._untracked = _arrays(objects)
            meet(arrays)
        self._unseen = unseen
        objects.clear()
        self._looks.append(step)
        before = self._met
        self._met = {key: one for key, one in before.items() if one[0]() is not None}
        for key, storage in storages.items():
            made = before.get(key)
            again = made is not None and made[0]() is storage
            self._met[key] = made if again and made else (weakref.ref(storage), step)
        return [
            _Kept(storages[key], value, self._met[key][1])
            for key, value in values.items()
            if storages[key].role != OPTIMIZER
            and storages[key].nbytes > NUMBER
            and not storages[key].pins  # else it is the graph's, which is told of
        ]

    def _containers(
        self,
        kept: list[_Kept],
        ends: int,
        known: list[FindingRecord],
    ) -> list[GrowingRecord]:
        by_step: dict[int, list[_Kept]] = {}
        for one in kept:
            by_step.setdefault(one.step, []).append(one)
        # What was there at the first look is of unknown steps: data, parameters, older results.
        steps = sorted(step for step in by_step if step > 1)
        if len(steps) < SIGN - 1:
            return []
        chosen: list[_Kept] = []
        for step in [*steps[:OLDEST], *steps[OLDEST:][-1:]]:
            chosen += sorted(by_step[step], key=lambda k: -int(k.storage.nbytes))[:SIDE_BY_SIDE]
        nodes = self._notes.alive()
        edges = {id(part) for node in nodes for part in _parts(node)}
        values = [k.value for k in chosen]
        hidden = [nodes, kept, chosen, by_step, self._untracked, *by_step.values(), *kept]
        there = {c.root_object.key for c in known if c.root_object is not None}
        paths = find_referrers(values, hidden, edges, untracked=self._untracked)
        groups, _ = grouped(list(range(len(chosen))), paths, [k.step for k in chosen], True)
        found = []
        for container, members in groups.items():
            path = members[0][1]
            if container in there or container in path.bounded or container not in path.above:
                continue
            if issubclass(path.types[path.above.index(container)], tuple):  # which cannot grow
                continue
            if path.kind == "gradient graph":  # of data, which has a finding of its own
                continue
            newest = [chosen[k] for k, _ in members][-1]
            part = 2 * _own_bytes(newest.value) <= int(newest.storage.nbytes)
            case = GrowingRecord(
                path.kind,
                path.text,
                self._lines.of(newest.storage),
                path.kept_at,
                fix_growing(path, part, newest.storage.ledger.device.type),
                ends,
                name=path.name,
                looks=self._looks,
            )
            case.root_object = dropped_root(path, container, graph=False)
            found.append(case)
        return found


class _AllocationLines:
    """The user's line of each allocation, for as long as it is wanted: a step or two."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], str] = {}
        self._ledgers: list[Any] = []

    def start(self) -> None:
        """Note lines from now on."""
        for be in live_backends():
            if be.ledger not in self._ledgers:
                self._ledgers.append(be.ledger)
                attach(be.ledger, self._note)

    def stop(self) -> None:
        """Note no more, and forget what was noted."""
        while self._ledgers:
            detach(self._ledgers.pop(), self._note)
        self._found.clear()

    def of(self, storage: Any) -> str:
        """Return the line that allocated a storage, or an empty string."""
        return self._found.get((str(storage.ledger.name), int(storage.address)), "")

    def _note(
        self, event: str, device: str, nbytes: int, role: int, address: int, old: int
    ) -> None:
        if event == "alloc":
            site = local.state.site if local.state.phase == scopes.REPLAYED else None
            self._found[device, address] = user_line() if site is None else site[3].line

    _note.sees_replays = True  # type: ignore[attr-defined]


def _tensors(objects: list[Any]) -> Iterator[Any]:
    kinds = {Tensor}
    pending = [Tensor]
    while pending:
        below = pending.pop().__subclasses__()
        pending += [kind for kind in below if kind not in kinds]
        kinds.update(below)
    return (o for o in objects if type(o) in kinds)


def _arrays(objects: list[Any]) -> tuple[list[Any], list[Any]]:
    # What `.numpy()` gave and a container of Python's holds: gc has no list of arrays. Nor of dicts
    # and tuples in which there is nothing but arrays and the like: those come second.
    held = gc.get_referents(*(o for o in objects if type(o) in BUILTINS))
    hidden = [o for o in held if type(o) in (dict, tuple) and not gc.is_tracked(o)]
    arrays = [o for o in held if type(o) is np.ndarray and o.base is not None]
    within = []
    for o in {id(o): o for o in hidden}.values():
        inner = [a for a in gc.get_referents(o) if type(a) is np.ndarray and a.base is not None]
        if inner:
            arrays += inner
            within.append(o)
    return arrays, within


def _storage_of(value: Any) -> Any:
    # None for an array of the user's own, and for a tensor without values.
    if not issubclass(type(value), np.ndarray):
        return getattr(getattr(value, "_storage", None), "root", None)
    while value is not None and not issubclass(type(value), LedgerEntry):
        value = getattr(value, "base", None)
    return value


def _own_bytes(value: Any) -> int:
    if issubclass(type(value), Tensor):
        return int(value._spec.nbytes)  # a subclass may have a numel of its own
    return int(value.nbytes)


def _parts(node: Any) -> Iterator[Any]:
    yield node.edges
    yield getattr(node, "handles", None) or getattr(node, "_handles", None)
    yield from node.edges
