"""The way from a variable to an object, in words: ``self.history['loss'][0]``."""

from __future__ import annotations

import functools
import re
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

from ...framework.attribution.frames import is_ours
from ...framework.autograd.node import Node
from ...framework.autograd.saved import Held, PackedValue
from ...framework.tensor import Tensor, ViewInfo
from .container_writes import kept_at, place

_TRACEBACK = ", by the traceback of it"


def variables_of(frame: types.FrameType) -> Iterator[tuple[str, int]]:
    """Return (name, id of value) of a function's variables, and leave no reference behind."""
    # Before Python 3.13 the frame keeps the dict that f_locals makes, and with it the values.
    values: Any = frame.f_locals
    found = [(name, id(value)) for name, value in values.items()]
    if isinstance(values, dict) and sys.getrefcount(values) <= 3:  # else it is the user's locals()
        values.clear()
    return iter(found)


class PathText:
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
            self._frame(holder, held)
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

    def _frame(self, frame: types.FrameType, held: Any) -> None:
        if is_ours(frame.f_code.co_filename):  # its variables mean nothing to a user
            self.kinds.append("exception")
            expression, where, file = self.parts[-1]
            if not where.endswith(_TRACEBACK):
                self.parts[-1] = (expression, where + _TRACEBACK, file)
        else:
            self._enter("exception", *_variable(frame, held))

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
    name = next((n for n, key in variables_of(frame) if key == id(held)), "?")
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
