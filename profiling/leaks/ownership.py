"""What dropping a container would free: counted, byte for byte, on the living objects.

A graph may be held twice: by two lists, by a list and a variable. Then dropping one of them frees
only what the other does not reach. This is found as CPython's garbage collector finds garbage: of
all objects that the containers reach, the references are counted, and those that come from these
objects themselves subtracted. What is left over comes from outside. Whatever such an object reaches
without the dropped references stays; all else goes.

The count is exact for objects that Python can look into. One that a C extension holds counts as
held from outside.

Source:
    CPython, ``InternalDocs/garbage_collector.md``, "Identifying reference cycles".
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np

from ...framework.autograd.node import Node
from ...framework.memory.ledger import Ledger
from ...framework.ops.kernel_choice import Kernel
from ...framework.ops.plan import Plan
from ...framework.ops.registry import Op
from ...framework.ops.rules import RuleSet
from ...framework.storage import AliasStorage, LedgerEntry
from ...framework.tensor import Tensor
from .node_tracker import OWNED, NodeTracker

_PASSED = (  # what leads to no graph, or to all of the process
    int, float, complex, str, bytes, type(None), type(...), np.generic, np.dtype,
    type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, Ledger, Plan,
    Op, RuleSet, Kernel,
)  # fmt: skip
# Packages whose objects hold no tensors. A Numba function leads to all that Numba has compiled:
# more than a million objects after some hundred kernels.
_PASSED_PACKAGES = {"numba", "llvmlite", "ast", "inspect"}
MOST_OBJECTS = 1_000_000  # after which nothing is counted


@dataclass(frozen=True)
class Root:
    """What a user would drop.

    Attributes:
        key: Id of a container, or of a tensor that a variable names.
        kind: Its type: another object may have the id by now.
        parts: Drop only what leads to a graph, as from an object that has other attributes, too.
        graph: False: only what leads to tensors of the steps watched.
    """

    key: int
    kind: type
    parts: bool = False
    graph: bool = True


@dataclass
class Owned:
    """What dropping a root alone would free, without what another root inside of it holds.

    Attributes:
        bytes: Of the ledger.
        nodes: Of graphs.
        by_step: Bytes by the step whose nodes hold them.
        around: It holds other roots.
    """

    bytes: int = 0
    nodes: int = 0
    by_step: dict[int, int] = field(default_factory=dict)
    around: bool = False


@dataclass
class Shares:
    """How the bytes of several roots fall apart.

    Attributes:
        owned: Of each root that is still there.
        together: Bytes that dropping all of them would free, and dropping one would not.
        elsewhere: Bytes of their graphs that stay all the same: something else holds them, too.
    """

    owned: dict[Root, Owned]
    together: int
    elsewhere: int


def shares(roots: list[Root], notes: NodeTracker, met: dict[int, int]) -> Shares | None:
    """Count what each root holds alone, and what they share.

    Args:
        roots: What would be dropped.
        notes: The step of each node.
        met: The step of storages that no graph holds, by their ids.

    Returns:
        None if the roots reach more objects than can be looked at.
    """
    enabled = gc.isenabled()
    gc.disable()
    heap = _Heap()
    try:
        return _counted(heap, roots, notes, met) if heap.fill(roots, met) else None
    finally:
        heap.clear()
        if enabled:
            gc.enable()


def _counted(heap: _Heap, roots: list[Root], notes: NodeTracker, met: dict[int, int]) -> Shares:
    there = [r for r in roots if r.key in heap.place]
    steps = heap.storage_steps(notes)
    every = {heap.place[key]: step for key, step in met.items() if key in heap.place} | steps
    owned = {}
    freed = {root: heap.freed([root]) for root in there}
    for root, within in freed.items():
        # Containers inside of this one have bytes of their own, alone and together.
        inner = [r for r in there if r is not root and heap.place[r.key] in within]
        gone = within - heap.freed(inner) if inner else within
        found = owned[root] = Owned(around=bool(inner))
        for k in gone:
            if heap.is_storage(k):
                nbytes = int(heap.objects[k].nbytes)
                found.bytes += nbytes
                step = every.get(k)
                if step is not None:
                    found.by_step[step] = found.by_step.get(step, 0) + nbytes
            found.nodes += issubclass(type(heap.objects[k]), Node)
    gone = heap.freed(there)
    total = sum(int(heap.objects[k].nbytes) for k in gone if heap.is_storage(k))
    alone = sum(o.bytes for o in owned.values())
    left = sum(int(heap.objects[k].nbytes) for k in steps.keys() - gone)
    return Shares(owned, total - alone, left)


class _Heap:
    """The objects that some roots reach, with their references."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.place: dict[int, int] = {}
        self.out: list[list[int]] = []  # whom each refers to, once for each reference
        self.outside: list[int] = []  # references to each from elsewhere
        self.leading: dict[bool, set[int]] = {}  # objects that lead to a node; to other values

    def clear(self) -> None:
        self.objects.clear()
        self.place.clear()

    def fill(self, roots: list[Root], met: dict[int, int]) -> bool:
        """Look at all that the roots reach; False if that is too much."""
        kinds = {r.key: r.kind for r in roots}
        # One list from now on, so that every object in it has one reference more.
        every = gc.get_objects()
        with_key = compress(every, map(kinds.__contains__, map(id, every)))
        self.objects.extend([o for o in with_key if kinds[id(o)] is type(o)])
        missing = kinds.keys() - {id(o) for o in self.objects}
        if missing:  # gc knows no dict of arrays alone, but who holds it
            held = gc.get_referents(*every)
            with_key = compress(held, map(missing.__contains__, map(id, held)))
            met_there = {id(o): o for o in with_key if kinds[id(o)] is type(o)}
            self.objects.extend(met_there.values())
            del held, met_there
        del every, with_key
        self.place.update((id(o), k) for k, o in enumerate(self.objects))
        skip = _namespaces()
        passed: dict[type, bool] = {}
        k = 0
        while k < len(self.objects):
            self.out.append([self._put(o) for o in _referents(self.objects[k], skip, passed)])
            k += 1
            if k > MOST_OBJECTS:
                return False
        self.objects.append(object())
        counts = [sys.getrefcount(o) for o in self.objects]
        self.objects.pop()
        nobody = counts.pop()  # what an object has that nothing else refers to
        self.outside = [n - nobody for n in counts]
        for found in self.out:
            for k in found:
                self.outside[k] -= 1
        self._lead_back(met)
        return True

    def _put(self, o: Any) -> int:
        place = self.place.get(id(o))
        if place is None:
            place = self.place[id(o)] = len(self.objects)
            self.objects.append(o)
        return place

    def _lead_back(self, met: dict[int, int]) -> None:
        above: list[list[int]] = [[] for _ in self.objects]
        for k, found in enumerate(self.out):
            for below in found:
                above[below].append(k)
        nodes = [k for k, o in enumerate(self.objects) if issubclass(type(o), Node)]
        values = [self.place[key] for key, step in met.items() if step > 1 and key in self.place]
        for graph, ends in ((True, nodes), (False, values)):
            leading, pending = set(ends), ends
            while pending:
                for k in above[pending.pop()]:
                    if k not in leading:
                        leading.add(k)
                        pending.append(k)
            self.leading[graph] = leading

    def is_storage(self, k: int) -> bool:
        """Whether an object is booked in a ledger."""
        o = self.objects[k]
        kind = type(o)  # isinstance would ask a weak proxy's object, which may be dead
        return (
            issubclass(kind, LedgerEntry)
            and not issubclass(kind, AliasStorage)
            and o.ledger is not None
        )

    def storage_steps(self, notes: NodeTracker) -> dict[int, int]:
        """Return the earliest step whose nodes or tensors hold each storage of a graph."""
        found: dict[int, int] = {}
        for o in self.objects:
            kind = type(o)
            if issubclass(kind, Tensor):
                made, storages = notes.note(o._node), [o._storage]
            elif issubclass(kind, Node):
                made, storages = (
                    notes.note(o),
                    [s for s in map(_storage_of, _handles(o)) if s is not None],
                )
            else:
                continue
            if made is None:
                continue
            for s in storages:
                k = self.place.get(id(s))
                if k is not None and s.role not in OWNED:
                    found[k] = min(found.get(k, made.step), made.step)
        return found

    def freed(self, roots: list[Root]) -> set[int]:
        """Return the objects that would be freed if the roots were dropped."""
        dropped: dict[int, Root] = {}
        named: dict[int, int] = {}
        for root in roots:
            k = self.place[root.key]
            if issubclass(type(self.objects[k]), Tensor):
                named[k] = named.get(k, 0) + 1  # one variable less refers to it
            else:
                dropped[k] = root
        pending = [k for k, n in enumerate(self.outside) if n - named.get(k, 0) > 0]
        alive = set(pending)
        while pending:
            k = pending.pop()
            below = self.out[k]
            if k in dropped:
                root = dropped[k]
                below = [b for b in below if root.parts and b not in self.leading[root.graph]]
            for b in below:
                if b not in alive:
                    alive.add(b)
                    pending.append(b)
        return set(range(len(self.objects))) - alive


def _namespaces() -> set[int]:
    # What is never gone through: modules' globals, and frames that run.
    found = {id(getattr(m, "__dict__", None)) for m in list(sys.modules.values())}
    tops = list(sys._current_frames().values())
    while tops:
        frame: types.FrameType | None = tops.pop()
        while frame is not None:
            found |= {id(frame), id(frame.f_globals)}
            frame = frame.f_back
    return found


def _referents(o: Any, skip: set[int], passed: dict[type, bool]) -> Iterator[Any]:
    kind = type(o)
    if issubclass(kind, LedgerEntry) and not issubclass(kind, AliasStorage):
        return  # a storage leads to nothing of the user's
    if issubclass(kind, np.ndarray) and o.base is not None:  # which NumPy does not show
        yield o.base
    for r in gc.get_referents(o):
        kind = type(r)
        known = passed.get(kind)
        if known is None:
            known = passed[kind] = _is_passed(kind)
        if not known and id(r) not in skip:
            yield r


def _is_passed(kind: type) -> bool:
    module = getattr(kind, "__module__", None)
    return issubclass(kind, _PASSED) or (
        isinstance(module, str) and module.partition(".")[0] in _PASSED_PACKAGES
    )


def _handles(node: Any) -> Any:
    return getattr(node, "handles", None) or getattr(node, "_handles", None) or ()


def _storage_of(handle: Any) -> Any:
    leaf = issubclass(type(getattr(handle, "source", None)), Tensor)
    return None if leaf else getattr(handle, "storage", None)
