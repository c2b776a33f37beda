"""Variable names of parameters outside of modules, and of modules used alone.

A model written in functions has its weights in variables, lists and dicts. When a backward begins,
its graph tells which leaves get a gradient, and the frames on the stack tell what they are called:
``w1``, ``params.w2``, ``layers.0.bias``, a path as a module's parameter has one. The outermost
frame that knows a tensor names it, by the first of its variables, those of loops last: a weight is
kept further out than what passes over it.

Exact, for it goes by identity. It costs a walk over the graph of each backward, and the search one
look for each new leaf. What no running function and no global knows keeps the line of its birth.

The same search tells what an outermost module is called: ``critic``, ``layers.2``, ``agent.value``.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

from ...framework.attribution.frames import USER, kind_of
from ...framework.tensor import Tensor

DEEP = 3  # steps from a variable to a tensor: ``model.layers.0.w``
MOST = 20_000  # values looked at in one search


def leaves(root: Any) -> Iterator[Tensor]:
    """Iterate over the leaves that the graph behind a node leads to; some may repeat."""
    met, pending = {root}, [root]
    while pending:
        for target, _ in pending.pop().edges:
            if not target._is_node:
                yield target
            elif target not in met:
                met.add(target)
                pending.append(target)


def names(wanted: dict[int, Any]) -> dict[int, str]:
    """Find the variable names of some objects in the running program.

    Args:
        wanted: The objects by their ids.

    Returns:
        Paths by id, of those that were found.
    """
    return _searched(wanted).found


def called(module: Any, others: dict[str, Any] | None = None) -> tuple[str, Any, bool] | None:
    """Find the variable name of a module in the running program.

    Args:
        module: One that is called by the program, not by another module.
        others: Gets the modules beside it, by their names.

    Returns:
        Its name; the module that has this name if the other is a part of it, or None; and whether
        it is the only model beside its name: no other variable, attribute or element there is one.
        None if no variable leads to it.
    """
    search = _searched({id(module): module})
    name = search.found.get(id(module))
    if name is None:
        return None
    whole = search.around or module
    mine = {id(m) for m in whole.modules()}
    beside = {
        n: m
        for n, m in search.beside.items()
        if id(m) not in mine and not any(part is whole for part in m.modules())
    }
    alone = not any(_models(m) for m in beside.values())
    if others is not None:
        others.update(beside)
    return name, None if _lists(search.around) else search.around, alone


def _is_module(value: Any) -> bool:
    known = isinstance(_attributes(value).get("_parameters"), dict)
    return known and all(hasattr(type(value), n) for n in ("named_modules", "modules", "children"))


def _modules(space: dict[Any, Any], path: str) -> dict[str, Any]:
    return {f"{path}{key}": value for key, value in space.items() if _is_module(value)}


def _models(module: Any) -> bool:
    # It has parts with parameters: not a single layer, nor a loss.
    return any(True for part in module.children() for _ in part.parameters())


def _lists(module: Any) -> bool:
    # A list or dict of modules, which cannot be called.
    kind = type(module)
    forward = getattr(getattr(kind, "forward", None), "__qualname__", "")
    return hasattr(kind, "__getitem__") and forward == "Module.forward"


def _searched(wanted: dict[int, Any]) -> _Search:
    frames: list[types.FrameType] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if kind_of(file) == USER and "-packages" not in file:
            frames.append(frame)
        frame = frame.f_back
    search = _Search(wanted)
    try:
        seen: set[int] = set()
        while frames and search.missing:
            frame = frames.pop()
            if id(frame.f_globals) not in seen:
                seen.add(id(frame.f_globals))
                search.look_at_variables(frame.f_globals, frame.f_code)
            if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                search.look_at_locals(frame)
    finally:
        del frame, frames  # a frame that knows itself is a cycle, and holds all that it knows
    return search


class _Search:
    def __init__(self, wanted: dict[int, Any]) -> None:
        self.missing = dict(wanted)
        self.found: dict[int, str] = {}
        self.around: Any = None  # a module that has a part of what is wanted
        self.beside: dict[str, Any] = {}  # modules in the same place as the last found, by name
        self.left = MOST
        self.met: set[int] = set()

    def look_at_locals(self, frame: types.FrameType) -> None:
        # Before Python 3.13 the frame keeps the dict, and with it the values; and it is the dict
        # that the function's own locals() returned, which must not change.
        if sys.version_info < (3, 13) and _reads_locals(frame.f_code):
            return
        values: Any = frame.f_locals
        self.look_at_variables(values, frame.f_code)
        if isinstance(values, dict) and sys.getrefcount(values) <= 3:  # else a debugger has it
            values.clear()

    def look_at_variables(self, space: Any, code: types.CodeType) -> None:
        # Those of its loops come last: they pass over what is kept elsewhere.
        passing = _loop_variables(code)
        known = {k: v for k, v in space.items() if k.isidentifier() and k[0] != "_"}
        self.look({k: v for k, v in known.items() if k not in passing}, "", 0)
        self.look({k: v for k, v in known.items() if k in passing}, "", 0)

    def look(self, space: dict[Any, Any], path: str, depth: int) -> None:
        """Search the variables, attributes or elements that ``path`` leads to."""
        for key, value in list(space.items()):
            self.left -= 1
            if self.left < 0 or not self.missing:
                return
            if self.missing.pop(id(value), None) is not None:
                self.found[id(value)] = f"{path}{key}"
                self.beside = _modules(space, path)
            elif depth < DEEP and type(value) not in _PLAIN and id(value) not in self.met:
                self.met.add(id(value))
                if _is_module(value):
                    self.look_at_module(value, f"{path}{key}")
                    if value is self.around:
                        self.beside = _modules(space, path)
                else:
                    self.look(_inside(value, depth), f"{path}{key}.", depth + 1)

    def look_at_module(self, module: Any, path: str) -> None:
        # One that was not called: only its parameters are used, or its parts.
        for name, part in module.named_modules():
            if self.missing.pop(id(part), None) is not None:
                self.found[id(part)] = f"{path}.{name}"
                self.around = module
            for p in part._parameters.values():
                if self.missing.pop(id(p), None) is not None:
                    self.found[id(p)] = f"{path}.{name}" if name else path


@functools.lru_cache(maxsize=64)
def _reads_locals(code: types.CodeType) -> bool:
    names = {"locals", "vars", "dir", "eval", "exec"}
    return not names.isdisjoint(code.co_names) and any(
        step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in names
        for step in dis.get_instructions(code)
    )


@functools.lru_cache(maxsize=64)
def _loop_variables(code: types.CodeType) -> frozenset[str]:
    found: set[str] = set()
    left = 0
    for step in dis.get_instructions(code):
        if step.opname == "FOR_ITER":
            left = 1
        elif left and step.opname.startswith("UNPACK"):
            left += (step.arg or 1) - 1
        elif left and step.opname.startswith("STORE_"):
            # From Python 3.13 on, one instruction may store two.
            stored = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            found.update(stored)
            left -= len(stored)
    return frozenset(found)


_PLAIN = (int, float, bool, str, bytes, type(None), Tensor, type, types.FunctionType)


def _inside(value: Any, depth: int) -> dict[Any, Any]:
    # What may be found under a value, by key; nothing if it is not looked into. No code of the
    # user's runs: a class may have its own idea of what its elements and attributes are.
    if isinstance(value, list | tuple):
        kind: Any = list if isinstance(value, list) else tuple
        first: Any = type(next(kind.__iter__(value), None))
        alike = first in (int, float, bool, str, bytes)  # it is data
        return {} if alike or kind.__len__(value) > MOST else dict(enumerate(kind.__iter__(value)))
    if isinstance(value, dict):
        return dict(dict.items(value)) if dict.__len__(value) <= MOST else {}
    space = _attributes(value)
    if isinstance(value, types.ModuleType):
        file = space.get("__file__") or "<built-in>"
        known = depth == 0 and kind_of(file) == USER and "-packages" not in file
        return {k: v for k, v in space.items() if k[:1] != "_"} if known else {}
    home = str(type(value).__module__).partition(".")[0]
    if home in sys.stdlib_module_names and not isinstance(value, types.SimpleNamespace):
        return {}
    return space


def _attributes(value: Any) -> dict[str, Any]:
    try:
        space = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return space if isinstance(space, dict) else {}
