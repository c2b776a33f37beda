"""Search for referrers: from a tensor to the variable or attribute that keeps it alive.

``gc.get_referrers`` tells who refers to an object. Level by level that leads from a node of the
graph to a tensor, its list, the instance whose attribute that list is, and at last to a local
variable of a running function, a global, or a class. The shortest such way is the answer, read
backwards: ``self.history['loss'][0]``.

Two things Python does not show: the locals of running functions (so they are looked up first, in
the frames of all threads), and what a C extension or an unfinished expression holds. An object
that only a cycle holds is distinguished from those: everything above it has a referrer.

Not optimal: each level looks at every object of the process, some 30 ms for 500,000 of them.
"""

from __future__ import annotations

import contextvars
import gc
import inspect
import os
import sys
import types
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ...framework.attribution.frames import is_ours
from ...framework.autograd.node import Node
from ...framework.autograd.removable_handle import RemovableHandle
from ...framework.autograd.saved import Held, PackedValue
from ...framework.tensor import Tensor
from .path_text import PathText, variables_of

_LEVELS = 14
_HERE = os.path.dirname(__file__)  # frames of these files hold what they look at
_MINE = tuple(
    os.path.join(_HERE, f"{n}.py") for n in ("referrers", "survivors", "detect", "growing_tensors")
)
_MANY = 20_000  # objects on a level: what is above them is of no help


@dataclass
class ReferrerPath:
    """The chain of references from a root (variable, attribute) to an object.

    Attributes:
        kind: What keeps it, the most telling thing on the way; ``cycle`` and ``unseen`` if there
            is no root.
        text: The way in words: such as local variable ``losses[0]`` of train().
        name: The variable or attribute nearest to the object, without its index.
        above: Ids of the objects on the way, nearest first.
        numel: Elements of the tensor that was reached first; None if there was none.
        kept_at: ``file:line`` of the only statement that could have put it there, or None.
    """

    kind: str
    text: str
    name: str = ""
    above: list[int] = field(default_factory=list)
    types: list[type] = field(default_factory=list)  # of the objects on the way
    numel: int | None = None
    kept_at: str | None = None
    lists: set[int] = field(default_factory=set)  # which of ``above`` are lists, deques or sets
    bounded: set[int] = field(default_factory=set)  # which are deques with a ``maxlen``
    plain: set[int] = field(default_factory=set)  # which are dicts, and no object's attributes
    ancestors: set[int] = field(default_factory=set)  # ids of all that was seen to lead to it


def find_referrers(
    sources: list[Any],
    hidden: Iterable[Any],
    edges: set[int],
    known: frozenset[int] = frozenset(),
    untracked: list[Any] | None = None,
) -> list[ReferrerPath | None]:
    """Find what keeps each object alive; None if only the graph or lowtide itself does.

    Args:
        sources: The objects.
        hidden: Containers of the caller's own that refer to them.
        edges: Ids of the lists and tuples inside of graph nodes.
        known: Ids of containers that were found already: what else keeps it is asked for.
        untracked: Containers that gc does not know. Cycles are not looked for then.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        search = _Search(sources, [sources, *hidden], edges)
        for container in untracked or ():
            for o in gc.get_referents(container):
                search.untracked.setdefault(id(o), []).append(container)
        search.hidden |= known
        found = search.run()
        lost = [
            k for k, path in enumerate(found) if path is None and untracked is None and not known
        ]
        if lost:
            # Held by no name: is it a cycle, which may lead through the graph?
            closed = _Search([sources[k] for k in lost], [sources, *hidden], None)
            for k, path in zip(lost, closed.run(), strict=True):
                if path is not None and path.kind in ("cycle", "unseen"):
                    found[k] = path
        return found
    finally:
        if enabled:
            gc.enable()


class _Search:
    """A breadth-first search through referrers; it stores one list of objects, else numbers."""

    def __init__(self, sources: list[Any], hidden: list[Any], edges: set[int] | None) -> None:
        self.objects = list(sources)
        self.count = len(sources)
        self.place = {id(o): k for k, o in enumerate(self.objects)}
        self.above: dict[int, list[int]] = {}  # position -> positions of its referrers
        self.faint: set[tuple[int, int]] = set()  # ways to go only where there is no other
        self.edges = edges
        self.hidden = {id(o) for o in hidden} | {id(self.objects)}
        self.names: dict[int, tuple[str, str, str]] = {}  # id -> (variable, where, file)
        self.internal: set[int] = set()
        self.running: set[int] = set()  # ids of frames
        self.untracked: dict[int, list[Any]] = {}  # id -> containers that gc does not know
        self.spaces: dict[int, str] = {}  # id of a namespace -> module
        self._look_at_frames()

    def _look_at_frames(self) -> None:
        for module in list(sys.modules.values()):
            space = getattr(module, "__dict__", None)
            if isinstance(space, dict):
                self.spaces[id(space)] = str(space.get("__name__", "?"))
        tops = list(sys._current_frames().values())
        while tops:
            frame: types.FrameType | None = tops.pop()
            while frame is not None:  # no name may be left for a frame: ours would be a cycle
                self.running.add(id(frame))
                space = frame.f_globals
                self.spaces.setdefault(id(space), str(space.get("__name__", "?")))
                code = frame.f_code
                if code.co_flags & inspect.CO_OPTIMIZED and code.co_filename not in _MINE:
                    ours = is_ours(code.co_filename)
                    for name, key in variables_of(frame):
                        if ours:
                            self.internal.add(key)
                        elif key not in self.spaces:  # `runpy` calls a script's globals its own
                            where = f"local variable of {code.co_name}()"
                            self.names.setdefault(key, (name, where, code.co_filename))
                frame = frame.f_back
        for variable, value in contextvars.copy_context().items():
            self.names.setdefault(id(value), (variable.name, "a context variable", ""))
        self.internal -= self.names.keys()

    def run(self) -> list[ReferrerPath | None]:
        found: list[ReferrerPath | None] = [None] * self.count
        level = list(range(self.count))
        exhausted = False
        for _ in range(_LEVELS):
            self._name(found, False)
            if all(t is not None for t in found) and self.above:
                break
            if not level or len(level) > _MANY:
                exhausted = not level
                break
            level = self._climb(level)
        self._name(found, True)
        if exhausted and self.edges is None:
            for k in range(self.count):
                if found[k] is None:
                    found[k] = self._without_root(k)
        for k, path in enumerate(found):
            if path is not None:
                path.ancestors = {id(self.objects[a]) for a in self._all_above(k)}
        self.objects.clear()
        return found

    def _name(self, found: list[ReferrerPath | None], faint: bool) -> None:
        for k, path in enumerate(found):
            if path is None:
                way = self._way(k, faint)
                if way is not None:
                    found[k] = self._trail(way)

    def _all_above(self, source: int) -> set[int]:
        seen, queue = {source}, [source]
        while queue:
            for up in self.above.get(queue.pop(), ()):
                if up not in seen:
                    seen.add(up)
                    queue.append(up)
        return seen

    def _climb(self, level: list[int]) -> list[int]:
        # One level up: the referrers that are new.
        objects = [self.objects[k] for k in level]
        wanted = {id(o): k for o, k in zip(objects, level, strict=True)}
        last = object()  # marks the tuple of arguments, which Python 3.13 gives as a referrer too
        referrers = gc.get_referrers(*objects, last)
        if self.untracked:
            referrers += [r for o in objects for r in self.untracked.get(id(o), ())]
        skip = self.hidden | {id(objects), id(referrers)}
        upper = []
        for r in referrers:
            if id(r) in skip or self._passed_over(r):
                continue
            if type(r) is tuple and r and r[-1] is last:
                continue
            position = self.place.get(id(r))
            if position is None:
                position = self.place[id(r)] = len(self.objects)
                self.objects.append(r)
                if not self._is_end(r):
                    upper.append(position)
            for o in gc.get_referents(r):
                below = wanted.get(id(o))
                if below is not None:
                    known = self.above.setdefault(below, [])
                    if position not in known:
                        known.append(position)
                        if _is_faint(r, o):
                            self.faint.add((below, position))
        return upper

    def _passed_over(self, r: Any) -> bool:
        if isinstance(r, RemovableHandle | _Search | ReferrerPath):
            return True
        if isinstance(r, types.FrameType) and id(r) in self.running:
            return is_ours(r.f_code.co_filename)  # one that ended is kept by a traceback
        if self.edges is None:
            return False
        return isinstance(r, Node | Held | PackedValue) or id(r) in self.edges

    def _is_end(self, r: Any) -> bool:
        return (
            id(r) in self.spaces
            or (id(r) in self.names and not isinstance(r, Tensor))
            or id(r) in self.internal
            or isinstance(r, type | types.ModuleType)
        )

    def _is_root(self, position: int) -> bool:
        o = self.objects[position]
        return id(o) in self.spaces or id(o) in self.names or isinstance(o, type)

    def _way(self, source: int, faint: bool) -> list[int] | None:
        # The shortest way up to a root, the source first.
        came: dict[int, int] = {source: source}
        queue = deque([source])
        while queue:
            k = queue.popleft()
            if self._is_root(k):
                way = [k]
                while way[-1] != source:
                    way.append(came[way[-1]])
                return way[::-1]
            for up in self.above.get(k, ()):
                if up not in came and (faint or (k, up) not in self.faint):
                    came[up] = k
                    queue.append(up)
        return None

    def _without_root(self, source: int) -> ReferrerPath | None:
        seen = self._all_above(source)
        if any(id(self.objects[k]) in self.internal for k in seen):
            return None
        open_ended = any(not self.above.get(k) for k in seen)
        numel = next(
            (self.objects[k]._spec.numel for k in seen if isinstance(self.objects[k], Tensor)), None
        )
        if open_ended:
            text = "something Python does not show: a C extension, or an unfinished expression"
            return ReferrerPath("unseen", text, numel=numel)
        kinds = sorted({type(self.objects[k]).__name__ for k in seen} - {"tuple", "list", "Held"})
        text = f"a reference cycle ({', '.join(kinds[:6])}), freed only by gc"
        return ReferrerPath("cycle", text, numel=numel)

    def _trail(self, way: list[int]) -> ReferrerPath:
        chain = [self.objects[k] for k in way]
        self.hidden.add(id(chain))
        told = PathText(chain, self.names.get(id(chain[-1])), self.spaces.get(id(chain[-1])))
        numel = next((o._spec.numel for o in chain if isinstance(o, Tensor)), None)
        rooted = isinstance(chain[-1], type) or id(chain[-1]) in self.spaces
        between = chain[1:-1] if rooted else chain[1:]
        above, kinds = [id(o) for o in between], [type(o) for o in between]
        lists = {id(o) for o in chain if isinstance(o, list | deque | set)}
        bounded = {id(o) for o in chain if isinstance(o, deque) and o.maxlen is not None}
        spaces = {id(getattr(o, "__dict__", None)) for o in chain}
        plain = {id(o) for o in chain if isinstance(o, dict) and id(o) not in spaces}
        return ReferrerPath(
            told.kind,
            told.text,
            told.name,
            above,
            kinds,
            numel,
            told.kept_at,
            lists,
            bounded,
            plain,
        )


def _is_faint(holder: Any, held: Any) -> bool:
    # Keys of dicts, and optimizers: they hold a parameter, but its module is what a user knows.
    if isinstance(holder, dict):
        return (
            isinstance(held, Tensor)
            and held in holder
            and not any(v is held for v in list(holder.values()))
        )
    space = getattr(holder, "__dict__", None)
    return isinstance(space, dict) and "param_groups" in space and "state" in space
