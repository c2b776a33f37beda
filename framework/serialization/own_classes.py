"""Objects of a program's own classes in files: Enum members, dataclasses, named tuples, modules.

A file keeps the name of the class and the attributes as data. The default ``load`` builds none of
them. ``load(allow=[Class])`` builds those of the classes given. ``load(weights_only=False)``
imports whatever module a file names, which runs that module's code. Nothing else is called:
no ``__init__``, no ``__new__``, no ``__setstate__``. An object is made empty and its attributes are
put in its ``__dict__`` or slots.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import operator
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import SerializationError
from .atomic_files import Source

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.([^\W\d]\w*|<locals>))*")
_BUILTIN = (dict, list, tuple, set, frozenset, str, bytes, bytearray, int, float, complex)
_PICKLING = (
    "__getstate__",
    "__setstate__",
    "__reduce__",
    "__reduce_ex__",
    "__getnewargs__",
    "__getnewargs_ex__",
)
_OURS = __name__.partition(".")[0]
_MOVED = {  # modules that files written before name by another path
    f"{_OURS}.modules.{old}": f"{_OURS}.modules.{new}"
    for old, new in (
        ("distributed_data_parallel", "parallel.distributed_data_parallel"),
        ("orthogonal", "parametrization.orthogonal"),
        ("parallel", "parallel.data_parallel"),
        ("parametrize", "parametrization.parametrize"),
        ("pruning", "parametrization.pruning"),
        ("spectral_norm", "parametrization.spectral_norm"),
        ("weight_norm", "parametrization.weight_norm"),
    )
}
INSTEAD = {
    "enum": "x.name",
    "dataclass": "dataclasses.asdict(x)",
    "namedtuple": "x._asdict()",
    "module": "x.state_dict()",
}
REGISTRIES = ("_parameters", "_buffers", "_modules")  # no part of a tensor's name in a file
_whole: dict[type, tuple[Callable[[Any], str], Callable[[Any], None]]] = {}
_functions: dict[str, Any] = {}
_names_of: dict[int, str] = {}


def restores_whole(
    base: type, why_not: Callable[[Any], str], finish: Callable[[Any], None]
) -> None:
    """Register a class whose instances, and those of subclasses, are saved with their attributes.

    Args:
        base: The class.
        why_not: Returns why an instance cannot be saved, or an empty text.
        finish: Checks an instance that was built of a file, and completes it.
    """
    _whole[base] = why_not, finish


def restores_functions(functions: dict[str, Any]) -> None:
    """Register functions that modules keep as attributes, such as an activation, by name."""
    _functions.update(functions)
    _names_of.update({id(function): name for name, function in functions.items()})


def function_name(value: Any) -> str | None:
    """Return the name of a registered function, None for any other value."""
    name = _names_of.get(id(value))
    return name if name is not None and _functions[name] is value else None


def function_of(name: Any) -> Any:
    """Return the registered function of a name.

    Raises:
        ValueError: There is none.
    """
    if type(name) is not str or name not in _functions:
        raise ValueError(f"{name!r:.99} is no function of lowtide.nn.functional")
    return _functions[name]


def kind_of(value: Any) -> str | None:
    """Return what an object of an own class is in files, or None if it has no place there."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        return "enum"
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return "namedtuple"
    if isinstance(value, tuple(_whole)):
        return "module"
    if dataclasses.is_dataclass(kind) and not isinstance(value, _BUILTIN):
        return "dataclass"
    return None


def why_not(value: Any, kind: str) -> str:
    """Return why an object cannot be written, or an empty text."""
    cls = type(value)
    try:
        found = cls if "<locals>" in cls.__qualname__ else _walk(sys.modules[cls.__module__], cls)
    except (KeyError, AttributeError):
        found = None
    if found is not cls:
        return (
            f"Its class is not found as {name_of(cls)}: give it that name, or save {INSTEAD[kind]}"
        )
    if kind == "enum":
        known = _member(cls, _names(value))
        return "" if known == value else "It is no combination of members: save x.value"
    if kind == "namedtuple":
        return "It has attributes beside its items: save x._asdict()" if _own(value) else ""
    base = next((b for b in _whole if isinstance(value, b)), object)
    for name in _PICKLING:
        method = getattr(cls, name, None)
        if method is not getattr(base, name, None) and method.__module__ != "dataclasses":
            return f"Its class defines {name}, which no load would call: save {INSTEAD[kind]}"
    return _whole[base][0](value) if base is not object else ""


def name_of(cls: type) -> str:
    """Return the name of a class in files: module and qualified name."""
    return f"{cls.__module__}:{cls.__qualname__}"


def described(value: Any, kind: str) -> dict[str, Any]:
    """Return what a file keeps of an object; the values in it are to be encoded.

    Args:
        value: The object.
        kind: As :func:`kind_of` says.
    """
    if kind == "enum":
        return {"names": _names(value)}
    if kind == "namedtuple":
        return {"fields": list(type(value)._fields), "items": list(value)}
    return {"state": _state(value)}


def _names(value: Any) -> list[str]:
    members = list(value) if isinstance(value, enum.Flag) else [value]
    return [str(m.name) for m in members]


def _own(value: Any) -> dict[str, Any]:
    own: dict[str, Any] = getattr(value, "__dict__", {})
    return own


def _slots(cls: type) -> dict[str, Any]:
    members = {n: m for base in reversed(cls.__mro__) for n, m in vars(base).items()}
    return {n: m for n, m in members.items() if isinstance(m, types.MemberDescriptorType)}


def _state(value: Any) -> dict[str, Any]:
    slots = _slots(type(value))
    return {n: getattr(value, n) for n in slots if hasattr(value, n)} | _own(value)


# Building


class OwnClasses:
    """The classes that a file may name.

    Args:
        allow: These, and with them the modules of lowtide.
        every: All that can be imported.

    Raises:
        TypeError: One of ``allow`` is no class.
    """

    def __init__(self, allow: Iterable[type] = (), every: bool = False) -> None:
        self._allowed: dict[str, type] = {}
        for cls in allow:
            if not isinstance(cls, type):
                raise TypeError(
                    f"load: allow is a list of classes; got {cls!r:.99} in it. Pass the class "
                    "itself, as in allow=[Config]."
                )
            self._allowed[name_of(cls)] = cls
        self._every = every

    def find(self, source: Source, name: Any, kind: str) -> type:
        """Return the class of a name in a file.

        Raises:
            SerializationError: It may not be built, or is not there; or is of another kind.
        """
        if type(name) is not str or len(name) > 1000 or not _NAME.fullmatch(name):
            raise source.error(f"the structure names the class {name!r:.99}")
        module, _, qualified = name.partition(":")
        name = f"{_MOVED.get(module, module)}:{qualified}"
        shown = name.replace(":", ".")
        short = name.rpartition(".")[2].rpartition(":")[2]
        cls = self._allowed.get(name)
        if cls is None and (self._allowed or self._every):
            cls = _imported(source, name, self._every)
        if cls is None:
            raise source.error(
                f"it holds a {kind} of the class {shown}, and load builds objects of classes only "
                "if you say so",
                f"Pass allow=[{short}], or weights_only=False if you trust the file; or save "
                f"{INSTEAD[kind]} instead",
            )
        if not _is_kind(cls, kind):
            raise source.error(f"it holds a {kind} of the class {shown}, which is none")
        return cls


def _imported(source: Source, name: str, every: bool) -> type | None:
    module_name, _, qualified = name.partition(":")
    ours = module_name.partition(".")[0] == _OURS
    module = sys.modules.get(module_name)
    if not ours and not every:
        return None
    hint = "Import it, and pass the class in allow="
    if "<locals>" in qualified:
        raise source.error(
            f"it holds an object of {name.replace(':', '.')}, a class inside of a function, which "
            "no import finds",
            "Pass the class in allow=",
        )
    try:
        if module is None and not ours:
            module = importlib.import_module(module_name)
        found = functools.reduce(lambda at, part: vars(at)[part], qualified.split("."), module)
    except ImportError as error:
        raise source.error(f"module {module_name} cannot be imported: {error}", hint) from None
    except (KeyError, TypeError):
        raise source.error(f"module {module_name} has no class {qualified}", hint) from None
    if not isinstance(found, type) or name_of(found) != name:
        raise source.error(f"{module_name}.{qualified} is no class of that name", hint)
    return found


def _walk(module: Any, cls: type) -> Any:
    return functools.reduce(getattr, cls.__qualname__.split("."), module)


def _is_kind(cls: type, kind: str) -> bool:
    if kind == "enum":
        return issubclass(cls, enum.Enum)
    if kind == "namedtuple":
        return issubclass(cls, tuple) and hasattr(cls, "_fields")
    if kind == "module":
        return issubclass(cls, tuple(_whole))
    return dataclasses.is_dataclass(cls) and not issubclass(cls, _BUILTIN)


def _member(cls: Any, names: list[str]) -> Any:
    members = [cls.__members__[name] for name in names]
    if issubclass(cls, enum.Flag):
        return functools.reduce(operator.or_, members) if members else cls(0)
    if len(members) != 1:
        raise ValueError(f"{len(members)} members of an Enum")
    return members[0]


def member(cls: Any, names: Any) -> Any:
    """Return a member of an Enum by its names.

    Raises:
        ValueError: It has no such member.
    """
    if not isinstance(names, list) or not all(type(name) is str for name in names):
        raise ValueError("the names of a member are no texts")
    unknown = [name for name in names if name not in cls.__members__]
    if unknown:
        raise ValueError(f"{cls.__name__} has no member {unknown[0]!r:.99}")
    return _member(cls, names)


def named_tuple(cls: Any, fields: Any, items: list[Any]) -> Any:
    """Build a named tuple of its items.

    Raises:
        ValueError: The class has other fields.
    """
    if list(cls._fields) != fields or len(fields) != len(items):
        raise ValueError(f"the fields of {cls.__name__} are {cls._fields}; got {fields!r:.300}")
    return tuple.__new__(cls, items)


def with_state(cls: type, state: dict[str, Any]) -> Any:
    """Build an object of a class and its attributes, calling neither.

    Raises:
        ValueError: A field of a dataclass is missing, or has no place.
        TypeError: It is no object of that class that comes of it.
    """
    made: Any = object.__new__(cls)
    slots, own = _slots(cls), getattr(made, "__dict__", None)
    for name, value in state.items():
        if name in slots:
            slots[name].__set__(made, value)
        elif own is None:
            raise ValueError(f"{cls.__name__} has slots, and {name!r:.99} is none of them")
        else:
            own[name] = value
    if dataclasses.is_dataclass(cls):
        known = {name for base in cls.__mro__ for name in vars(base)} - set(slots)
        for field in dataclasses.fields(cls):
            if field.name not in state and field.name not in known:
                raise ValueError(f"{cls.__name__} has a field {field.name!r}, the file has none")
    for base, (_, finish) in _whole.items():
        if issubclass(cls, base):
            finish(made)
    return made


def refused(path: str, value: Any, reason: str) -> SerializationError:
    """Build the error for an object that cannot be written."""
    return SerializationError(
        f"save: {path} is a {name_of(type(value)).replace(':', '.')}. {reason}."
    )


def instead_of(value: Any) -> str:
    """Return what to save instead of an object that has no place in a file."""
    if callable(getattr(value, "state_dict", None)) and not isinstance(value, type):
        return "Save its state_dict(), and load that into a new object with load_state_dict"
    if isinstance(value, type | types.ModuleType) or callable(value):
        return "Save its name, and look that up after loading"
    for kind in (dict, list, tuple, set, str, bytes):
        if isinstance(value, kind):
            return f"Save {kind.__name__}(x) of it"
    if hasattr(value, "__next__"):
        return "Save list(x) of it"
    if getattr(value, "__dict__", None):
        return "Save vars(x), its attributes as a dict, and make the object again after loading"
    return "Save its state_dict(), or plain containers"
