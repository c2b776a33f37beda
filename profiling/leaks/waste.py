"""Warnings about bytes that bought nothing: unused graphs, retained graphs, idle parameters.

- :class:`UnusedGraphWarning`: a forward saved values, and its graph died without a backward:
  ``no_grad`` would have saved them.
- :class:`RetainedGraphWarning`: ``retain_graph=True`` kept a graph that no other backward came for.
- :class:`UnusedParameterWarning`: an optimizer has a parameter that never got a gradient.

They are looked for inside of a :class:`~lowtide.profiling.MemoryProfiler`, and given once a line.
Outside nothing of this is there: graph nodes get a finalizer when the first profiler starts, and
lose it with the last. A node that its backward has emptied costs that finalizer a glance.

What a node holds is counted when it dies: the storages that nothing but its saved values keeps
alive, so neither inputs nor results that a variable still names. Nodes that one graph's end takes
along die one after the other, and are one warning, at the line of the last op among them. Not
counted: what a backward or a recomputation recorded itself.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from typing import Any

from ...framework import execution
from ...framework.attribution.call_stacks import UNKNOWN
from ...framework.attribution.frames import user_line
from ...framework.autograd.node import Node
from ...framework.autograd.pass_watchers import watchers
from ...framework.interrupts import finalizer
from ...framework.memory.ledger import SAVED, format_bytes
from ...framework.modes import local
from .findings import warn_at

ALONE = 3  # references to a storage that a handle has, its array, and who asks
LEAST = 1 << 20  # bytes; less is not worth a warning
IDLE = 3  # passes of one line that kept a graph without need, and none that was needed
STEPS = 3  # of an optimizer, before what it never moved is named
NAMES = 4  # of parameters in a warning


class MemoryWarning(UserWarning):
    """Base of the warnings about memory that bought nothing; filter them by it."""


class UnusedGraphWarning(MemoryWarning):
    """A forward saved values for a backward that never came."""


class RetainedGraphWarning(MemoryWarning):
    """``retain_graph=True`` kept a graph that no other backward used."""


class UnusedParameterWarning(MemoryWarning):
    """An optimizer has a parameter that never got a gradient."""


class _Pass:
    """A backward that left its graph its saved values: where it was called, and who came later."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.used = False


class WasteWatch:
    """Looks for wasted bytes between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._known: dict[int, _Pass | None] = {}  # id of a living node -> None: not to be counted
        self._dead: list[tuple[int, int, str, _Pass | None]] = []  # seq, bytes, line, pass
        self._idle: Counter[str] = Counter()  # line of a pass -> how often without need
        self._needed: set[str] = set()  # lines of which some pass was needed
        self._told: set[tuple[type, str]] = set()
        self._stepped: dict[int, _Steps] = {}

    def start(self) -> None:
        """Start looking."""
        watchers.join(self)
        with _lock:
            _watching.append(self)
            Node.__del__ = _node_dies  # type: ignore[attr-defined]

    def stop(self) -> None:
        """Stop looking; ``tell_rest`` may be called afterwards."""
        watchers.leave(self)
        with _lock:
            _watching.remove(self)
            if not _watching:
                del Node.__del__  # type: ignore[attr-defined]

    # What is seen

    def made(self, node: Any) -> None:
        """A node is made: those that died before it are counted separately."""
        state = local.state
        if state.running is not None or state.phase in ("backward", "recompute"):
            self._known[id(node)] = None
        elif self._dead:
            self.tell()

    def begin_pass(self, roots: list[Any], retain: bool, create: bool, inputs: Any) -> None:
        """A backward begins: a graph that is used so is not wasted, whatever is left of it."""
        self.tell()
        if not (retain or create or inputs is not None or self._known):
            return  # it empties its nodes
        now = _Pass(user_line()) if retain and not create else None
        pending = [root._node for root in roots if root._node is not None]
        seen: set[int] = set()
        while pending:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            before = self._known.get(id(node))
            if before is not None:
                before.used = True
                self._needed.add(before.line)
            self._known[id(node)] = now
            pending += [target for target, _ in node.edges if target._is_node]

    def end_pass(self, accumulated: bool) -> None:
        """A backward ended."""

    def dies(self, node: Any, handles: Any) -> None:
        """A node dies with its saved values."""
        known = self._known.pop(id(node), _FRESH)
        if known is None or not handles:
            return
        nbytes = 0
        for handle in handles:
            storage = getattr(handle, "storage", None)
            if storage is None or storage.role != SAVED or storage.pins != 1:
                continue
            del storage
            if sys.getrefcount(handle.storage) <= ALONE:
                nbytes += handle.storage.nbytes
        if nbytes:
            line = getattr(node, "_site", ("", UNKNOWN))[1].line
            self._dead.append((node.seq, nbytes, line, None if known is _FRESH else known))

    def stepped(self, optimizer: Any) -> None:
        """An optimizer made a step: which of its parameters had no gradient yet?"""
        self.tell()
        known = self._stepped.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:
            known = self._stepped[id(optimizer)] = _Steps(optimizer)
        known.look(optimizer)

    # What is told

    def tell(self) -> None:
        """Warn of the graphs that died since the last call."""
        dead, self._dead = self._dead, []
        if not dead or not execution.current.computes:  # an estimate throws away what it makes
            return
        fresh = [d for d in dead if d[3] is None]
        nbytes = sum(d[1] for d in fresh)
        if nbytes >= LEAST:
            self._warn(
                UnusedGraphWarning,
                max(fresh)[2],
                f"this forward saved {format_bytes(nbytes)} for backward, which no backward used "
                "and nothing else needed. Run it under lowtide.no_grad() if none is to come.",
            )
        kept: Counter[_Pass] = Counter()
        for _, n, _, one in dead:
            if one is not None and not one.used:
                kept[one] += n
        for one, n in kept.items():
            self._idle[one.line] += 1
            enough = self._idle[one.line] >= IDLE and one.line not in self._needed
            if enough and n >= LEAST:
                self._warn(
                    RetainedGraphWarning,
                    one.line,
                    f"retain_graph=True kept {format_bytes(n)} of saved values here, and no other "
                    f"backward came for them, {self._idle[one.line]} times. Leave it out.",
                )

    def tell_rest(self, names: dict[int, str]) -> None:
        """Warn of what is known at the end: graphs that died last, and idle parameters.

        Args:
            names: Of parameters, by id.
        """
        self.tell()
        for known in self._stepped.values():
            idle = known.idle()
            if idle:
                nbytes = sum(int(p._storage.nbytes) for p in idle)
                said = [names.get(id(p), f"a parameter of shape {tuple(p.shape)}") for p in idle]
                more = f" and {len(said) - NAMES} more" if len(said) > NAMES else ""
                self._warn(
                    UnusedParameterWarning,
                    known.line,
                    f"no gradient ever came to {', '.join(said[:NAMES])}{more} "
                    f"({format_bytes(nbytes)}) in {known.steps} steps: the loss does not depend on "
                    "what is computed with it. Call requires_grad_(False), or use it.",
                )

    def _warn(self, category: type[MemoryWarning], line: str, message: str) -> None:
        if (category, line) in self._told:
            return
        self._told.add((category, line))
        warn_at(line, category, message)


_FRESH: Any = object()
_watching: list[WasteWatch] = []
_lock = threading.Lock()


@finalizer
def _node_dies(self: Any) -> None:
    handles = None
    for name in ("handles", "_handles"):
        try:  # past __getattr__, which a node that was interrupted at its birth cannot answer
            handles = object.__getattribute__(self, name)
        except AttributeError:
            continue
    for watch in _watching:
        watch.dies(self, handles)


class _Steps:
    """The steps of one optimizer, and its parameters without a gradient so far."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.steps = 0
        self.line = ""
        self.graced = False  # a step met a gradient at all: nothing frees them all before
        self.bare = {id(p): weakref.ref(p) for g in optimizer.param_groups for p in g["params"]}

    def look(self, optimizer: Any) -> None:
        self.steps += 1
        if not self.bare:
            return
        self.line = user_line() or self.line
        for number, reference in list(self.bare.items()):
            p = reference()
            if p is not None and (p._grad is not None or p in optimizer.state):
                self.graced = True
            elif p is not None and p.requires_grad:
                continue
            del self.bare[number]

    def idle(self) -> list[Any]:
        found = [p for r in self.bare.values() if (p := r()) is not None]
        return found if self.graced and self.steps >= STEPS else []
