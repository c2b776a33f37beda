"""How the standard library's plain objects are written as JSON: a name, and parts that are data.

An object of a type in the table is ``{"$": name, "items": parts}``, where each part is encoded in
turn. It is built again from its parts by a function of the same row, which checks them.
"""

from __future__ import annotations

import argparse
import datetime
import pathlib
import types
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .pickled_values import FACTORIES, PATHS, path_class
from .size_budget import OBJECT, Budget

PLAIN = (str, int, float, bool, bytes, type(None))
_ELEMENT = 96  # bytes of an element's place in a set, while that grows
_NAMES = {kind: name for name, kind in FACTORIES.items()}


class Standard(NamedTuple):
    """One type: its name in files, its parts, and how it is built from them.

    Attributes:
        name: What ``$`` says.
        parts: The parts of an object.
        build: The object of its parts; takes the budget too.
        cost: Bytes of one, without its parts.
    """

    name: str
    parts: Callable[[Any], list[Any]]
    build: Callable[[list[Any], Budget], Any]
    cost: int = OBJECT


def hashable_plainly(key: Any) -> bool:
    """Return whether a key is a plain value or a flat tuple of them."""
    if type(key) is tuple:
        return all(type(k) in PLAIN for k in key)
    return type(key) in PLAIN


def keys_of(items: Any, budget: Budget) -> list[Any]:
    """Return keys of a set or mapping, after their hashing is booked.

    Raises:
        TypeError: One is no plain value.
    """
    if not isinstance(items, list) or not all(map(hashable_plainly, items)):
        raise TypeError("an element or key is no plain value")
    return [budget.key(item) for item in items]


def why_not(value: Any) -> str:
    """Return the reason why an object of a standard type cannot be written, or an empty text."""
    kind = type(value)
    if kind is defaultdict and value.default_factory not in (None, *_NAMES):
        return "Its default_factory is a function of yours: save dict(x)"
    if kind in (datetime.datetime, datetime.time) and type(value.tzinfo) not in (
        type(None),
        datetime.timezone,
    ):
        return "Its tzinfo is no datetime.timezone: save x.isoformat()"
    if kind in (set, frozenset) and not all(map(hashable_plainly, value)):
        return "As an element of a set: str, bytes, numbers, or tuples of these; save list(x)"
    return ""


# Parts and builders


def _typed(items: list[Any], *kinds: Any) -> list[Any]:
    if len(items) != len(kinds):
        raise ValueError(f"{len(items)} parts, and {len(kinds)} were expected")
    for item, kind in zip(items, kinds, strict=True):
        if not isinstance(item, kind) or (type(item) is bool and kind is int):
            raise TypeError(f"a part is a {type(item).__name__}")
    return items


def _attributes(kind: Any) -> Callable[[list[Any], Budget], Any]:
    def build(items: list[Any], budget: Budget) -> Any:
        (own,) = _typed(items, dict)
        if not all(type(name) is str for name in own):
            raise TypeError("the name of an attribute is no text")
        made = kind()
        made.__dict__.update(own)
        return made

    return build


def _elements(items: list[Any], budget: Budget) -> list[Any]:
    budget.spend(_ELEMENT * len(items))
    return keys_of(items, budget)


def _default(items: list[Any], budget: Budget) -> Any:
    name, own = _typed(items, str | None, dict)
    return defaultdict(None if name is None else FACTORIES[name], own)


def _deque(items: list[Any], budget: Budget) -> Any:
    own, most = _typed(items, list, int | None)
    return deque(own, most)


def _path(kind: str) -> Callable[[list[Any], Budget], Any]:
    return lambda items, budget: path_class(kind)(*_typed(items, str))


def _slice(items: list[Any], budget: Budget) -> Any:
    return slice(*_typed(items, object, object, object))


def _clock(value: Any) -> list[Any]:
    return [value.hour, value.minute, value.second, value.microsecond, value.fold, value.tzinfo]


def _time(items: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    *clock, fold, zone = _typed(items, int, int, int, int, int, datetime.timezone | None)
    return clock, {"fold": fold, "tzinfo": zone}


def _datetime(items: list[Any], budget: Budget) -> Any:
    day = _typed(items[:3], int, int, int)
    clock, more = _time(items[3:])
    return datetime.datetime(*day, *clock, **more)


def _clock_time(items: list[Any], budget: Budget) -> Any:
    clock, more = _time(items)
    return datetime.time(*clock, **more)


def _zone_parts(zone: Any) -> list[Any]:
    args = zone.__getinitargs__()
    return [args[0], args[1] if len(args) > 1 else None]


def _zone(items: list[Any], budget: Budget) -> Any:
    offset, name = _typed(items, datetime.timedelta, str | None)
    return datetime.timezone(offset) if name is None else datetime.timezone(offset, name)


def _three(kind: Any) -> Callable[[list[Any], Budget], Any]:
    return lambda items, budget: kind(*_typed(items, int, int, int))


def _one(kind: Any, part: Any) -> Callable[[list[Any], Budget], Any]:
    return lambda items, budget: kind(*_typed(items, part))


STANDARD: dict[type, Standard] = {
    argparse.Namespace: Standard(
        "Namespace", lambda v: [dict(vars(v))], _attributes(argparse.Namespace)
    ),
    types.SimpleNamespace: Standard(
        "SimpleNamespace", lambda v: [dict(vars(v))], _attributes(types.SimpleNamespace)
    ),
    defaultdict: Standard(
        "defaultdict",
        lambda v: [None if v.default_factory is None else _NAMES[v.default_factory], dict(v)],
        _default,
    ),
    deque: Standard("deque", lambda v: [list(v), v.maxlen], _deque, 700),
    set: Standard("set", list, lambda items, budget: set(_elements(items, budget))),
    frozenset: Standard(
        "frozenset", list, lambda items, budget: frozenset(_elements(items, budget))
    ),
    range: Standard("range", lambda v: [v.start, v.stop, v.step], _three(range)),
    slice: Standard("slice", lambda v: [v.start, v.stop, v.step], _slice),
    datetime.datetime: Standard(
        "datetime", lambda v: [v.year, v.month, v.day, *_clock(v)], _datetime
    ),
    datetime.date: Standard("date", lambda v: [v.year, v.month, v.day], _three(datetime.date)),
    datetime.time: Standard("time", _clock, _clock_time),
    datetime.timedelta: Standard(
        "timedelta", lambda v: [v.days, v.seconds, v.microseconds], _three(datetime.timedelta)
    ),
    datetime.timezone: Standard("timezone", _zone_parts, _zone),
    np.str_: Standard("numpy.str_", lambda v: [str(v)], _one(np.str_, str)),
    np.bytes_: Standard("numpy.bytes_", lambda v: [bytes(v)], _one(np.bytes_, bytes)),
    **{getattr(pathlib, kind): Standard(kind, lambda v: [str(v)], _path(kind)) for kind in PATHS},
}
BUILDERS = {row.name: row for row in STANDARD.values()}
