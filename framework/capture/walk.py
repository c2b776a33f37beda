"""What a function can reach, found by walking: what its calls may depend on.

The walk starts at the function: the variables that its code names, in its closure and among its
globals, and from there through functions, modules, objects and containers. Of each dict and list it
notes who is in it (``guards.py`` compares). Code of lowtide, of NumPy and
of the standard library is not walked: it keeps no state that a kernel call depends on, but for the
modes that ``call.py`` compares.

What cannot be compared, such as an iterator, is an error: a recording that uses it would be
silently wrong. Random generators of Python's and NumPy's, and counters, are noted: a recorded call
must not advance them.
"""

from __future__ import annotations

import argparse
import datetime
import decimal
import dis
import enum
import fractions
import functools
import io
import itertools
import logging
import pathlib
import random
import re
import sys
import sysconfig
import threading
import types
import uuid
import weakref
from collections import OrderedDict, deque
from typing import Any

import numpy as np

from ..device import device
from ..dtypes import dtype
from ..errors import CaptureError
from ..memory_format import layout, memory_format
from ..random.generator import Generator
from ..spec import Size
from ..tensor import Tensor

MOST_OBJECTS = 50_000
SMALL_ARRAY = 1 << 12  # bytes of a NumPy array that is compared by its contents
MISSING = object()
CONSTANTS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis),
              type(NotImplemented), np.generic, np.dtype, dtype, device, Size, layout,
              memory_format, range, slice,
              re.Pattern, decimal.Decimal, fractions.Fraction, datetime.date, datetime.timedelta,
              uuid.UUID, pathlib.PurePath, enum.Enum)  # fmt: skip
_OPAQUE = (Generator, logging.Logger, logging.LoggerAdapter, weakref.ref, types.BuiltinFunctionType,
           types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
           types.ClassMethodDescriptorType, types.GetSetDescriptorType, np.ufunc, property,
           threading.local, type(threading.Lock()), type(threading.RLock()))  # fmt: skip
_WALKED_FROM_LIBRARY = (types.SimpleNamespace, argparse.Namespace)
_LIVE_NUMBERS = {
    "param_groups",
    "get_last_lr",
    "get_lr",
    "last_epoch",
    "_last_lr",
    "_step_count",
    "get_scale",
    "_growth_tracker",
}
_NO_GRADIENTS = {
    "autograd", "enable_grad", "grad_fn", "grad_mode", "inference_mode", "is_grad_enabled",
    "no_grad", "requires_grad", "requires_grad_", "set_grad_enabled",
}  # fmt: skip
_ALSO_OTHERS = {"state", "state_dict"}  # such attributes have other objects, too
_BY_NAME = {"getattr", "vars", "__dict__", "asdict", "attrgetter", "__getattribute__", "locals"}
_OF_MAKING = {
    "__init__", "__new__", "__post_init__", "__init_subclass__", "__del__", "__repr__", "__str__",
    "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__",
}  # fmt: skip
_MODULE_BASES = ("Module", "HooksMixin", "StateDictMixin", "ConversionMixin", "FSDPModule")
_OF_MODULES = ("training", "_parameters", "_buffers", "_modules", "_call_hooks")
_FRAMEWORK, _DATA = "lowtide.framework.", "lowtide.framework.data."
_DISTRIBUTIONS = "lowtide.framework.distributions."
_PATHS = tuple({sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib")})


class CannotCompare(CaptureError):
    """Something that a function reaches cannot be compared.

    Attributes:
        names: The names on the way to it, the last one first.
    """

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.names = [n for n in reversed(re.split(r"\W+", name)) if n.isidentifier()]


class Walk:
    """What a function can reach.

    Args:
        function: The function, or module.
        arguments: What it is given that is no tensor: walked too.
        without: Objects that are not walked. Dicts may have other tensors at their places.

    Attributes:
        tensors: The tensors that were found, in the order of the walk.
        live: Objects whose calls replays make anew: optimizers, schedulers, scalers.
        generators: Random generators of Python's and NumPy's, and ``itertools.count`` objects, each
            with the name it was found by.

    Raises:
        CannotCompare: Something cannot be compared.
    """

    def __init__(self, function: Any, arguments: Any = (), without: Any = ()) -> None:
        self.tensors: list[Tensor] = []
        self.live: list[Any] = []
        self.generators: list[tuple[Any, str]] = []
        self._dicts: list[tuple[Any, list[Any], list[Any], str]] = []
        self._mappings: list[tuple[Any, list[tuple[Any, Any]], str]] = []
        self._lists: list[tuple[Any, list[Any], str]] = []
        self._names: list[tuple[Any, str, Any, str]] = []
        self._cells: list[tuple[Any, Any, str]] = []
        self._slots: list[tuple[Any, str, Any, str]] = []
        self._arrays: list[tuple[np.ndarray, bytes, str]] = []
        self._seen: dict[int, Any] = {id(o): o for o in without}
        self._others: set[int] = {id(o) for o in without if isinstance(o, Tensor)}
        self._code: set[Any] = set()
        self._names_live = ""
        self._names_others: list[tuple[str, str]] = []  # (module of the code, attribute it names)
        self._names_by_module: dict[str, set[str]] = {}
        self._live_names: set[str] = set()  # by which live objects were found
        self._named: set[str] = set()  # by the code that was walked
        self._unnamed: dict[str, list[Any]] = {}  # methods that no code has named so far
        self._unread: dict[str, list[Any]] = {}  # attributes that no code has named so far
        self._partly: list[tuple[Any, list[Any], str]] = []  # dicts of which some are compared
        self._dynamic = False  # some code names attributes by strings
        self._waiting: list[tuple[Any, str]] = [
            (function, _name(function)),
            (arguments, "argument"),
        ]
        while self._waiting:
            self._visit(*self._waiting.pop())
        named = self._names_live or self._names_state()
        if self.live and named:
            raise CannotCompare(
                f"it names {named}, which {type(self.live[0]).__name__} changes in each step", named
            )

    def _names_state(self) -> str:
        # An attribute that other objects have too, named in a module that names a live object.
        for module, name in self._names_others:
            if not self._live_names.isdisjoint(self._names_by_module[module]):
                return name
        return ""

    def names_gradients(self) -> bool:
        """True if code names what may read or change gradients, such as ``zero_grad``."""
        return any("grad" in n and n not in _NO_GRADIENTS for n in self._named)

    def reaches(self, x: Any) -> bool:
        """True if the walk has come by an object: it is the same at each call."""
        return id(x) in self._seen

    def _visit(self, value: Any, name: str) -> None:  # noqa: C901 - a branch a kind
        cls = type(value)
        if isinstance(value, (*CONSTANTS, *_OPAQUE)):
            return
        if id(value) in self._seen:
            return
        if len(self._seen) >= MOST_OBJECTS:
            raise CannotCompare(f"it can reach more than {MOST_OBJECTS} objects, by {name}", name)
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            self._tensor(value, name)
        elif isinstance(value, type):
            self._class(value, name, made=True)
        elif isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, types.MethodType):
            self._later((value.__self__, name), (value.__func__, name))
        elif isinstance(value, types.ModuleType):
            return
        elif isinstance(value, functools.partial):
            self._later((value.func, name), (value.args, name), (value.keywords, name))
        elif isinstance(value, staticmethod | classmethod):
            self._later((value.__func__, name))
        elif hasattr(value, "__wrapped__") and callable(value):
            self._later((value.__wrapped__, name))
        elif isinstance(value, dict | types.MappingProxyType):
            self._dict(value, name)
            if cls is not dict and hasattr(value, "__dict__"):
                self._dict(value.__dict__, name)
        elif isinstance(value, list | deque | set):
            self._lists.append((value, list(value), name))
            self._later(*((x, name) for x in value))
        elif isinstance(value, tuple | frozenset):
            self._later(*((x, name) for x in value))
        elif isinstance(value, np.ndarray):
            if value.nbytes > SMALL_ARRAY:
                raise CannotCompare(
                    f"it can reach a NumPy array by {name}, of {value.nbytes} bytes", name
                )
            self._arrays.append((value, value.tobytes(), name))
        elif isinstance(value, random.SystemRandom):
            raise CannotCompare(f"it can reach a random generator, by {name}", name)
        elif _advances(value):
            self.generators.append((value, name))
        elif isinstance(value, io.IOBase) and not value.closed and not value.readable():
            return  # what is written there has no part in kernel calls
        elif hasattr(cls, "__next__"):
            raise CannotCompare(f"it can reach an iterator, by {name}", name)
        elif hasattr(cls, "_captured_live"):
            self._live_object(value, name)
        else:
            self._object(value, name)

    def _later(self, *found: tuple[Any, str]) -> None:
        self._waiting += [(v, n) for v, n in found if not isinstance(v, CONSTANTS)]

    def _tensor(self, t: Tensor, name: str) -> None:
        if t._node is not None:
            raise CannotCompare(f"{name} is a tensor with a graph from outside", name)
        if t._spec.runs is not None or t.device.type != "cpu":
            raise CannotCompare(f"{name} is no dense tensor of the CPU", name)
        self.tensors.append(t)
        if type(t) is not Tensor and t.__dict__:
            self._dict(t.__dict__, name)
        if t._extra is not None:
            self._dict(t._extra, name)

    def _dict(self, d: Any, name: str) -> None:
        if isinstance(d, dict) and _has_own_methods(type(d)):
            found = list(dict.items(d))  # its own methods may do anything, such as import modules
            self._mappings.append((d, found, name))
        else:
            found = list(d.items())
            if self._others and not self._others.isdisjoint(map(id, d.values())):
                self._partly.append((d, list(d), name))
                found = [(key, value) for key, value in found if id(value) not in self._others]
                self._names += [(d, key, value, f"{name}.{key}") for key, value in found]
            else:
                self._dicts.append((d, list(d), list(d.values()), name))
        for key, value in found:
            self._later((value, f"{name}.{key}" if isinstance(key, str) else f"{name}[{key!r}]"))

    def _object(self, value: Any, name: str) -> None:
        cls = type(value)
        if _is_library(cls.__module__) and not isinstance(value, _WALKED_FROM_LIBRARY):
            return
        if cls.__module__.startswith(_DATA):
            raise CannotCompare(f"it can reach a {cls.__name__}, by {name}: pass it batches", name)
        if cls.__dict__.get("_captured_opaque"):
            return  # what of it calls depend on is among their arguments
        if cls.__module__.startswith(_FRAMEWORK) and not cls.__module__.startswith(_DISTRIBUTIONS):
            return  # an op, a backend: they hold caches, and nothing that a call depends on
        self._class(cls, cls.__name__, made=False)
        attributes = getattr(value, "__dict__", None)
        slots = [s for c in cls.__mro__ for s in _slots_of(c)]
        if attributes is None and not slots and cls.__flags__ & (1 << 8):  # made in C: immutable
            raise CannotCompare(
                f"it can reach a {cls.__name__}, by {name}, and cannot compare it", name
            )
        if attributes is not None:
            if _is_users_own(cls):
                self._attributes(attributes, name)
            else:
                self._dict(attributes, name)
        for slot in slots:
            held = getattr(value, slot, MISSING)
            self._slots.append((value, slot, held, f"{name}.{slot}"))
            if held is not MISSING:
                self._later((held, f"{name}.{slot}"))

    def _attributes(self, d: dict[str, Any], name: str) -> None:
        # Of an object of the user's: those that some code names, which may be walked later; and
        # what is a module's.
        self._partly.append((d, list(d), name))
        for key, value in d.items():
            found = (d, key, value, f"{name}.{key}")
            if self._dynamic or key in self._named or key in _OF_MODULES:
                self._attribute(*found)
            else:
                self._unread.setdefault(key, []).append(found)

    def _attribute(self, d: dict[str, Any], key: str, value: Any, name: str) -> None:
        self._names.append((d, key, value, name))
        self._later((value, name))

    def _live_object(self, value: Any, name: str) -> None:
        # What a call makes anew moves with each step: only what it does to tensors is looked at.
        self.live.append(value)
        self._live_names.update(name.split("."))
        for attribute in type(value)._captured_live:
            held = getattr(value, attribute)
            self._slots.append((value, attribute, held, f"{name}.{attribute}"))
            self._later((held, f"{name}.{attribute}"))
        for group in getattr(value, "param_groups", ()):
            params = group["params"]
            self._lists.append((params, list(params), f"{name}.param_groups"))
            self._later(*((p, name) for p in params))

    def _class(self, cls: type, name: str, made: bool) -> None:
        # Its methods; those that make an object only where the code names the class.
        if (cls, made) in self._code:
            return
        self._code.add((cls, made))
        for c in cls.__mro__:
            if _is_library(c.__module__) or is_lowtide(c.__module__):
                continue
            for key, value in vars(c).items():
                if isinstance(value, property):
                    found = (value.fget, f"{c.__name__}.{key}")
                    if key in self._named:
                        self._later(found)
                    else:
                        self._unnamed.setdefault(key, []).append(found)
                elif not key.startswith("__") or callable(value):
                    self._names.append((_Attributes(c), key, value, f"{c.__name__}.{key}"))
                    special = key.startswith("__") and (made or key not in _OF_MAKING)
                    if key in self._named or key == "forward" or special:
                        self._later((value, f"{c.__name__}.{key}"))
                    else:
                        self._unnamed.setdefault(key, []).append((value, f"{c.__name__}.{key}"))

    def _function(self, f: Any, name: str) -> None:
        if _is_library(f.__module__) or is_lowtide(f.__module__):
            for cell in f.__closure__ or ():  # a library's decorator around the user's function
                held = contents_of(cell)
                if isinstance(held, types.FunctionType | types.MethodType | functools.partial):
                    self._later((held, name))
            return
        variables, attributes = _names_in(f.__code__)
        names = variables | attributes
        self._names_live = self._names_live or next(iter(sorted(_LIVE_NUMBERS & attributes)), "")
        module = f.__module__ or ""
        self._names_others += [(module, n) for n in sorted(_ALSO_OTHERS & attributes)]
        self._names_by_module.setdefault(module, set()).update(names, f.__code__.co_freevars)
        self._named |= names
        for method in names & self._unnamed.keys():
            self._later(*self._unnamed.pop(method))
        self._dynamic = self._dynamic or bool(names & _BY_NAME)
        for key in list(self._unread if self._dynamic else names & self._unread.keys()):
            for found in self._unread.pop(key):
                self._attribute(*found)
        for variable, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
            held = contents_of(cell)
            if held is not MISSING:
                self._cells.append((cell, held, variable))
                self._later((held, variable))
        self._later(*((d, f"{name}'s default") for d in f.__defaults__ or ()))
        self._later(*((d, f"{name}'s default") for d in (f.__kwdefaults__ or {}).values()))
        self._global_names(f.__globals__, variables, attributes)

    def _global_names(
        self,
        namespace: dict[str, Any],
        variables: frozenset[str],
        attributes: frozenset[str],
        prefix: str = "",
    ) -> None:
        for key in sorted(variables & namespace.keys()):
            value = namespace[key]
            self._names.append((namespace, key, value, f"{prefix}{key}"))
            if not isinstance(value, types.ModuleType):
                self._later((value, f"{prefix}{key}"))
                continue
            names_of = (id(value), attributes)
            users = not (_is_library(value.__name__) or is_lowtide(value.__name__))
            if users and names_of not in self._code:
                self._code.add(names_of)
                self._global_names(vars(value), attributes, attributes, f"{prefix}{key}.")


def _is_users_own(cls: type) -> bool:
    # A class whose attributes only the user's code reads, but for those of every module.
    ours = [c for c in cls.__mro__ if is_lowtide(c.__module__)]
    return not is_lowtide(cls.__module__) and all(c.__name__ in _MODULE_BASES for c in ours)


def _advances(value: Any) -> bool:
    # NumPy imports its generators when they are asked for: a program that has none goes without.
    if isinstance(value, (random.Random, itertools.count)):
        return True
    kinds = sys.modules.get("numpy.random")
    return kinds is not None and isinstance(value, (kinds.Generator, kinds.RandomState))


@functools.cache
def _has_own_methods(cls: type) -> bool:
    # Whether a kind of dict has other methods than dicts have.
    base: Any = OrderedDict if issubclass(cls, OrderedDict) else dict
    return any(getattr(cls, m) is not getattr(base, m) for m in _OF_DICTS)


_OF_DICTS = ("values", "items", "keys", "get", "__iter__")


class _Attributes:
    # A class's own attributes, as a dict to look names up in.

    __slots__ = ("cls",)

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def get(self, key: str, default: Any) -> Any:
        return self.cls.__dict__.get(key, default)


@functools.lru_cache(maxsize=1024)
def _names_in(code: Any) -> tuple[frozenset[str], frozenset[str]]:
    # The names that code reads as global variables, and those of attributes. Strings count as both:
    # they may be names for getattr, or for globals().
    variables, attributes = set[str](), set[str]()
    for i in dis.get_instructions(code):
        if i.opcode in dis.hasname and isinstance(i.argval, str):
            of_variable = "GLOBAL" in i.opname or i.opname.endswith("_NAME")
            (variables if of_variable else attributes).add(i.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _names_in(constant)
            variables |= inner[0]
            attributes |= inner[1]
        elif isinstance(constant, str) and constant.isidentifier():
            variables.add(constant)
            attributes.add(constant)
    return frozenset(variables), frozenset(attributes)


def _slots_of(cls: type) -> list[str]:
    if _is_library(cls.__module__):
        return []
    slots = cls.__dict__.get("__slots__", ())
    slots = (slots,) if isinstance(slots, str) else slots
    return [s for s in slots if s not in ("__dict__", "__weakref__")]


@functools.cache
def _is_library(name: str | None) -> bool:
    # Of the standard library or NumPy.
    if not name:
        return True
    if name.partition(".")[0] in ("numpy", "builtins", "numba", "cupy"):
        return True
    path = getattr(sys.modules.get(name), "__file__", None)
    if path is None:
        return name != "__main__" and name in sys.stdlib_module_names
    return name.partition(".")[0] in sys.stdlib_module_names and str(path).startswith(_PATHS)


@functools.cache
def is_lowtide(name: str | None) -> bool:
    """True for the name of a module of lowtide's, but for its recipes, which are as a user's."""
    first, _, rest = (name or "").partition(".")
    return first in ("lowtide", "torch") and not rest.startswith("recipes")


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__


def contents_of(cell: Any) -> Any:
    """Return what a variable of a closure holds; ``MISSING`` if it is not set yet."""
    try:
        return cell.cell_contents
    except ValueError:  # empty: a variable that is not set yet
        return MISSING
