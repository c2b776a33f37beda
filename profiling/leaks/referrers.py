"""Search for referrers: from a tensor to the variable or attribute that keeps it alive.

``gc.get_referrers`` tells who refers to an object. Level by level that leads from a node of the
graph to a tensor, its list, the instance whose attribute that list is, and at last to a local
variable of a running function, a global, or a class. The shortest such way is the answer, read
backwards: ``self.history['loss'][0]``.

Two things Python does not show: the locals of running functions (so they are looked up first, in
the frames of all threads), and what a C extension or an unfinished expression holds. An object
that only a cycle holds is told from those: everything above it has a referrer.

Not optimal: each level looks at every object of the process, some 30 ms for 500,000 of them.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import inspect
import os
import re
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ...framework.attribution.frames import is_ours
from ...framework.autograd.node import Node
from ...framework.autograd.removable_handle import RemovableHandle
from ...framework.autograd.saved import Held, PackedValue
from ...framework.tensor import Tensor, ViewInfo
from .container_writes import kept_at, place

_LEVELS = 14
_HERE = os.path.dirname(__file__)  # frames of these files hold what they look at
_MINE = tuple(
    os.path.join(_HERE, f"{n}.py") for n in ("referrers", "survivors", "detect", "growing_tensors")
)
_TRACEBACK = ", by the traceback of it"
_MANY = 20_000  # objects on a level: whoever is above them is of no help


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
                    for name, key in _locals(frame):
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
        told = _PathText(chain, self.names.get(id(chain[-1])), self.spaces.get(id(chain[-1])))
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


def _locals(frame: types.FrameType) -> Iterator[tuple[str, int]]:
    # (name, id of value) of a function's variables, without leaving references behind: before
    # Python 3.13 the frame keeps the dict that f_locals makes, and with it the values.
    values: Any = frame.f_locals
    found = [(name, id(value)) for name, value in values.items()]
    if isinstance(values, dict) and sys.getrefcount(values) <= 3:  # else it is the user's locals()
        values.clear()
    return iter(found)


class _PathText:
    """Formats a chain of references as text."""

    def __init__(
        self, chain: list[Any], local: tuple[str, str, str] | None, space: str | None
    ) -> None:
        self.kinds: list[str] = []
        self.parts: list[tuple[str, str, str]] = []  # (expression, where, file), outermost first
        down = chain[::-1]
        if local is not None:
            self.parts.append((local[0], local[1], local[2]))
        elif isinstance(down[0], type):
            self.parts.append((down[0].__qualname__, "a class", ""))
        else:
            name = next((k for k, v in list(down[0].items()) if v is down[1]), "?")
            self.parts.append((str(name), f"global of {space}", str(down[0].get("__file__", ""))))
            self.kinds.append("global")
            down = down[1:]
        k = 0
        while k + 1 < len(down):
            k = self._step(down, k)
        self.text = "; in ".join(
            f"`{_tidy(e)}`{', ' if w else ''}{w}" for e, w, _ in reversed(self.parts) if e
        )
        expression, _, file = self.parts[-1]
        variable = _without_index(re.sub(r"\.<\w+>", "", _tidy(expression)))
        self.name = re.split(r"[.\[]", variable)[-1]
        self.kind = self._kind(chain)
        self.kept_at = None
        while variable and self.kept_at is None:  # `logs[0].loss`: what fills `logs`, if anything
            name = re.split(r"[.\[]", variable)[-1]
            self.kept_at = kept_at(name, file, place(self.parts[-1]), "." in variable)
            variable = _container(variable)

    def _kind(self, chain: list[Any]) -> str:
        order = ("exception", "hook", "cache", "generator", "default argument", "closure")
        for kind in (*order, "gradient graph", "module attribute", "attribute"):
            if kind in self.kinds:
                return kind
        plain = [k for k in self.kinds if k in ("list", "dict")]
        if plain:
            return plain[-1]
        return "global" if "global" in self.kinds else "local variable"

    def _say(self, more: str) -> None:
        expression, where, file = self.parts[-1]
        self.parts[-1] = (expression + more, where, file)

    def _enter(self, kind: str, name: str, where: str, file: str = "") -> None:
        self.kinds.append(kind)
        self.parts.append((name, where, file))

    def _step(self, down: list[Any], k: int) -> int:
        # Say how down[k] holds what follows; return where to go on.
        holder, held = down[k], down[k + 1]
        if isinstance(holder, list | deque | tuple):
            at = next((i for i, o in enumerate(holder) if o is held), None)
            fields = getattr(holder, "_fields", None)
            self._say(f".{fields[at]}" if fields and at is not None else f"[{at}]")
            if not isinstance(holder, tuple):
                self.kinds.append("list")
        elif isinstance(holder, dict):
            key = next((key for key, o in list(holder.items()) if o is held), "?")
            hook = isinstance(holder, OrderedDict) and callable(held) and isinstance(key, int)
            self.kinds.append("hook" if hook and not isinstance(held, Tensor) else "dict")
            self._say(f"[{_short(key)}]")
        elif isinstance(holder, types.FunctionType):
            return self._function(holder, down, k)
        elif isinstance(holder, types.MethodType | types.BuiltinMethodType):
            self._say("" if held is holder.__self__ else ".__func__")
        elif isinstance(holder, types.FrameType):
            if is_ours(holder.f_code.co_filename):  # its variables mean nothing to a user
                self.kinds.append("exception")
                expression, where, file = self.parts[-1]
                if not where.endswith(_TRACEBACK):
                    self.parts[-1] = (expression, where + _TRACEBACK, file)
            else:
                self._enter("exception", *_variable(holder, held))
        elif isinstance(holder, types.GeneratorType | types.CoroutineType):
            frame = getattr(holder, "gi_frame", None) or getattr(holder, "cr_frame", None)
            if frame is not None:
                self._enter("generator", *_variable(frame, held))
        elif isinstance(holder, types.TracebackType | BaseException):
            chained = isinstance(held, BaseException | types.TracebackType)
            if isinstance(holder, BaseException) and not chained:
                return self._attribute(holder, down, k)
        elif isinstance(holder, types.CellType):
            self._say("")
        elif isinstance(holder, type) and isinstance(held, dict) and k + 2 < len(down):
            name = next((n for n, v in list(held.items()) if v is down[k + 2]), "?")
            self.kinds.append("attribute")
            self._say(f".{name}")
            return k + 2
        elif isinstance(holder, functools._lru_cache_wrapper):
            name = getattr(holder, "__name__", "a function")
            self._enter("cache", f"{name}()", "a cached result or argument")
        elif isinstance(holder, set | frozenset):
            self.kinds.append("list")
            self._say(" (an element)")
        else:
            return self._attribute(holder, down, k)
        return k + 1

    def _function(self, function: types.FunctionType, down: list[Any], k: int) -> int:
        code, held = function.__code__, down[k + 1]
        if k + 2 == len(down):
            return k + 1
        inner = down[k + 2]
        where, file = f"{function.__qualname__.rpartition('.')[2]}()", code.co_filename
        cells, defaults = function.__closure__, function.__defaults__
        if cells is not None and held is cells:
            pairs = zip(code.co_freevars, cells, strict=True)
            name = next((n for n, cell in pairs if cell is inner), "?")
            self._enter("closure", name, f"closed over by {where}", file)
        elif defaults is not None and held is defaults:
            names = code.co_varnames[: code.co_argcount][-len(defaults) :]
            name = next((n for n, v in zip(names, defaults, strict=True) if v is inner), "?")
            self._enter("default argument", name, f"default argument of {where}", file)
        elif function.__kwdefaults__ is not None and held is function.__kwdefaults__:
            named = function.__kwdefaults__.items()
            name = next((n for n, v in named if v is inner), "?")
            self._enter("default argument", name, f"default argument of {where}", file)
        elif held is function.__dict__:
            name = next((n for n, v in held.items() if v is inner), "?")
            self._say("" if name == "__wrapped__" else f".{name}")
        else:
            return k + 1
        return k + 2

    def _attribute(self, holder: Any, down: list[Any], k: int) -> int:
        held, at = down[k + 1], k + 1
        space = getattr(holder, "__dict__", None)
        if isinstance(space, dict) and held is space and k + 2 < len(down):
            held, at = down[k + 2], k + 2
        name = None
        if isinstance(space, dict):
            name = next((n for n, v in list(space.items()) if v is held), None)
        if name is None:
            slots = [s for c in type(holder).__mro__ for s in _slots(c)]
            slots += ["args", "keywords"] if isinstance(holder, functools.partial) else []
            name = next((s for s in slots if _slot(holder, s) is held), None)
        if isinstance(holder, Tensor):
            self.kinds.append("gradient graph" if name == "_grad" else "tensor")
        elif isinstance(holder, functools.partial):
            self.kinds.append("closure")
        elif isinstance(space, dict) and "_modules" in space and "_parameters" in space:
            self.kinds.append("module attribute")
        elif not isinstance(holder, Node | Held | PackedValue | ViewInfo):
            self.kinds.append("attribute")
        if not isinstance(holder, Tensor | ViewInfo) or name == "_grad":
            self._say(f".{name}" if name else f".<{type(holder).__name__}>")
        return at


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _slot(holder: Any, name: str) -> Any:
    return None if name in ("__dict__", "__weakref__") else getattr(holder, name, None)


def _variable(frame: types.FrameType, held: Any) -> tuple[str, str, str]:
    code = frame.f_code
    name = next((n for n, key in _locals(frame) if key == id(held)), "?")
    return name, f"local variable of {code.co_name}()", code.co_filename


def _short(key: Any) -> str:
    text = repr(key) if isinstance(key, str | int | float | bool | None) else type(key).__name__
    return text if len(text) <= 40 else text[:37] + "..."


def _without_index(expression: str) -> str:
    return re.sub(r"(\[[^\[\]]*\])+$", "", expression)


def _container(expression: str) -> str:
    # `self.logs[0].loss` -> `self.logs`; nothing if no element of a container is on the way
    found = re.match(r"(.*)\[[^\[\]]*\]", expression)
    return _without_index(found[1]) if found else ""


def _tidy(expression: str) -> str:
    # `model._modules['0']._parameters['weight']._grad` -> `model[0].weight.grad`
    def plain(match: re.Match[str]) -> str:
        return f"[{match[1]}]" if match[1].isdigit() else f".{match[1]}"

    expression = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", plain, expression)
    return expression.replace("._grad", ".grad")
