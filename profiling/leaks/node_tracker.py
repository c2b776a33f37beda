"""Node tracker: the step in which each graph node was created, and which nodes are alive.

While someone watches, every new node is noted with a weak reference, the user's line and the
number of the present step. In a loop that keeps nothing, the nodes of one line are alive from two
steps at most: the present one, and the last one that a variable still names. Three are a sign.

Nothing here keeps a node alive: what outlives a call are weak references, strings and numbers.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, NamedTuple

from ...framework.attribution import scopes
from ...framework.attribution.frames import user_line
from ...framework.autograd.pass_watchers import watchers
from ...framework.capture.replayed_backward import ReplayedBackward
from ...framework.devices import live_backends
from ...framework.memory.ledger import BUFFER, OPTIMIZER, PARAMETER
from ...framework.modes import local
from ...framework.tensor import Tensor

OWNED = (PARAMETER, BUFFER, OPTIMIZER)  # alive with or without a graph


class Site(NamedTuple):
    """The user's source line and the op that create a node."""

    line: str
    op: str


class NodeRef(weakref.ref[Any]):
    """A weak reference to a node, with its source line and step.

    Attributes:
        key: Its id.
        number: Counted in the order of their making.
        line: The user's line.
        step: The step in which it was made.
        kept_by: The backward pass that left it its saved values, or None.
    """

    __slots__ = ("kept_by", "key", "line", "number", "step")
    key: int
    number: int
    line: str
    step: int
    kept_by: RetainedPass | None


class RetainedPass:
    """A backward pass with ``retain_graph=True``, and whether a later pass used its graph.

    Attributes:
        line: The user's line that called it.
        step: Its step.
        used: A later pass came by one of its nodes.
        notes: Of its nodes.
    """

    def __init__(self, line: str, step: int) -> None:
        self.line = line
        self.step = step
        self.used = False
        self.notes: list[NodeRef] = []

    def held_bytes(self) -> int:
        """Bytes of saved tensors that its nodes still hold."""
        nodes = [node for made in self.notes if (node := made()) is not None]
        return sum(saved_bytes(nodes).values())


class LeafRecord:
    """A leaf that received a gradient.

    Attributes:
        leaf: Weak reference.
        line: The user's line that first used it.
        step: The step in which it first received one.
    """

    __slots__ = ("leaf", "line", "step")

    def __init__(self, leaf: Tensor, line: str, step: int) -> None:
        self.leaf = weakref.ref(leaf)
        self.line = line
        self.step = step


class NodeTracker:
    """Tracks nodes, backward passes and leaves while it is active.

    Attributes:
        step: Number of the present step; the first is 1.
        nodes: Notes by id of the node.
        passes: Passes with ``retain_graph`` of the last steps.
        leaves: Notes on leaves by id.
        any_pass: A backward pass has begun.
    """

    def __init__(
        self,
        passed: Callable[[], None],
        stepped: Callable[[Any], None],
        called: Callable[[Any], None],
    ) -> None:
        self.step = 1
        self.nodes: dict[int, NodeRef] = {}
        self.passes: list[RetainedPass] = []
        self.leaves: dict[int, LeafRecord] = {}
        self._freed: dict[str, tuple[set[int], int]] = {}
        self._dead: list[NodeRef] | None = None  # while the garbage collector runs
        self._live = 0
        self._numbers = count(1)
        self._passed = passed
        self._told = {"stepped": stepped, "entered": called}
        self.any_pass = False
        self._depth = 0

    # Listening

    def start(self) -> None:
        """Start tracking."""
        scopes.listen(True, made=self._made, **self._told)
        gc.callbacks.append(self._around_gc)
        watchers.join(self)

    def stop(self) -> None:
        """Stop tracking and drop all records."""
        watchers.leave(self)
        gc.callbacks.remove(self._around_gc)
        scopes.unlisten(True, made=self._made, **self._told)
        self.nodes.clear()
        self.leaves.clear()
        self.passes.clear()

    def _made(self, node: Any) -> None:
        line = node._site[1].line
        if local.state.running is not None:  # recorded by a backward: the line that called it
            line = user_line()
        made = NodeRef(node, self._died)
        made.key, made.number = id(node), next(self._numbers)
        made.line, made.step, made.kept_by = line, self.step, None
        self.nodes[id(node)] = made

    def _died(self, made: NodeRef) -> None:
        if self.nodes.get(made.key) is made:
            self.nodes.pop(made.key, None)
        if self._dead is not None:
            self._dead.append(made)

    def begin_pass(self, roots: list[Tensor], retain: bool, create: bool, inputs: Any) -> None:
        """Record the start of a backward pass: its nodes, and earlier passes that it reuses."""
        self._depth += 1
        self.any_pass = True
        made = RetainedPass(user_line(), self.step) if retain and not create else None
        seen: set[int] = set()
        pending = [root._node for root in roots if root._node is not None]
        while pending:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            note = self.note(node)
            if note is not None:
                if note.kept_by is not None:
                    note.kept_by.used = True
                note.kept_by = made
                if made is not None:
                    made.notes.append(note)
            for target, _ in node.edges:
                if target._is_node:
                    pending.append(target)
                elif inputs is None and target._storage.role not in OWNED:
                    known = self.leaves.get(id(target))
                    if known is None or known.leaf() is not target:
                        line = note.line if note is not None else ""
                        self.leaves[id(target)] = LeafRecord(target, line, self.step)
        if made is not None:
            self.passes.append(made)

    def end_pass(self, accumulated: bool) -> None:
        """Record the end of a backward pass."""
        self._depth -= 1
        if accumulated and self._depth == 0:
            self._passed()

    def _around_gc(self, phase: str, info: dict[str, int]) -> None:
        # What dies between the two calls was held by cycles alone.
        if phase == "start":
            self._dead, self._live = [], _live_bytes()
            return
        dead, self._dead = self._dead, None
        if dead:
            top = max(dead, key=lambda made: (made.step, made.number))
            steps, nbytes = self._freed.get(top.line, (set(), 0))
            freed = max(self._live - _live_bytes(), 0)
            self._freed[top.line] = (steps | {made.step for made in dead}, nbytes + freed)

    # Asking

    def note(self, node: Any) -> NodeRef | None:
        """Return the record of a node."""
        made = self.nodes.get(id(node))
        return made if made is not None and made() is node else None

    def freed_by_gc(self) -> dict[str, tuple[set[int], int]]:
        """Return, per line, the steps whose nodes only the garbage collector freed, and bytes."""
        return dict(self._freed)

    def alive(self) -> list[Any]:
        """Return the living nodes, oldest first."""
        found = [node for made in list(self.nodes.values()) if (node := made()) is not None]
        found = [n for n in found if hasattr(n, "seq") and hasattr(n, "edges")]
        found.sort(key=lambda n: n.seq)
        return found

    def begin_again(self) -> None:
        """Merge all steps so far into one."""
        self.step = 1
        for made in list(self.nodes.values()):
            made.step = 1
        for fed in list(self.leaves.values()):
            fed.step = 1
        for one in self.passes:
            one.step = 1
        self._freed.clear()


# Bytes


def _live_bytes() -> int:
    return sum(be.ledger.live for be in live_backends())


def saved_bytes(nodes: Iterable[Any]) -> dict[int, int]:
    """Return bytes of saved tensors by storage id, without parameters and leaves."""
    found: dict[int, int] = {}
    for node in nodes:
        if isinstance(node, ReplayedBackward):
            found |= {id(s): int(s.nbytes) for s in node.kept_storages()}
            continue
        handles = getattr(node, "handles", None) or getattr(node, "_handles", None) or ()
        for handle in handles:
            storage = getattr(handle, "storage", None)
            if storage is not None:
                leaf = isinstance(handle.source, Tensor)
                if storage.role not in OWNED and not leaf:
                    found[id(storage)] = int(storage.nbytes)
            elif hasattr(handle, "held_bytes") and handle.held_bytes:
                found[id(handle)] = int(handle.held_bytes)
    return found


def tensors_of(nodes: list[Any]) -> list[Tensor]:
    """Return the living tensors that nodes produced."""
    wanted = {id(n) for n in nodes}
    # get_referrers compares each reference with each node; one look at all objects is less soon.
    near = gc.get_referrers(*nodes) if len(nodes) <= 8 else gc.get_objects()
    return [
        t for t in near if issubclass(type(t), Tensor) and id(getattr(t, "_node", None)) in wanted
    ]


def held_bytes(nodes: Iterable[Any], tensors: Iterable[Tensor]) -> int:
    """Return the bytes held by nodes and tensors, each storage once, without parameters."""
    found = saved_bytes(nodes)
    for t in tensors:
        if t._storage.role not in OWNED:
            found[id(t._storage)] = int(t._storage.nbytes)
    return sum(found.values())
