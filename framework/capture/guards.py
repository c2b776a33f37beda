"""What a recording depends on beside its arguments, compared at each call.

All that the walk has come by (``walk.py``) has to be as it was: who is in each dict and list, what
variables and attributes hold, the memory of tensors.
"""

from __future__ import annotations

import types
import weakref
from itertools import chain
from operator import is_
from typing import Any, NamedTuple

from .walk import CONSTANTS, MISSING, Walk, contents_of


class Change(NamedTuple):
    """Something that is not as it was when a call was recorded.

    Attributes:
        name: By which the function reaches it.
        lasting: An object was replaced by another: the recording will not be of use any more.
    """

    name: str
    lasting: bool


class Guards(Walk):
    """What a recording depends on.

    Args:
        function: The function, or module, that is recorded.
        arguments: What it is given that is no tensor: walked too.
        without: Objects that are not walked.

    Raises:
        CannotCompare: Something cannot be compared.
    """

    def __init__(self, function: Any, arguments: Any = (), without: Any = ()) -> None:
        super().__init__(function, arguments, without)
        self._note_contents()
        self._note_tensors()

    def _note_tensors(self) -> None:
        self._marks = [
            (weakref.ref(t._storage), weakref.ref(t._array), t._requires_grad, t._node, t._extra)
            for t in self.tensors
        ]

    def changed(self) -> Change | None:
        """Return what is not as it was; None if all is."""
        return self._changed_containers() or self._changed_names() or self._changed_tensors()

    def _changed_containers(self) -> Change | None:
        # In three calls of C, if nothing has changed.
        contents, empty, keys_now, values_now = self._contents
        if not any(empty):
            now = list(chain.from_iterable(map(_values_of, contents)))
            if len(now) == len(values_now) and all(map(is_, now, values_now)):
                names = list(chain.from_iterable(self._keyed))
                if len(names) == len(keys_now) and all(map(is_, names, keys_now)):
                    return self._changed_arrays()
        for d, keys, values, name in self._dicts:
            if len(d) != len(values) or not all(map(is_, d.values(), values)):
                key, lasting = _differs(d, keys, values)
                if key is not MISSING:
                    dotted = f"{name}.{key}" if isinstance(key, str) else f"{name}[{key!r}]"
                    return Change(dotted, lasting)
            elif list(d) != keys:
                return Change(name, False)
        for d, keys, name in self._partly:
            if list(d) != keys:
                return Change(name, False)
        for items, values, name in self._lists:
            alike = len(items) == len(values) and all(map(is_, items, values))
            if not (alike or _equal_lists(items, values)):
                return Change(name, False)
        return self._changed_arrays()

    def _changed_arrays(self) -> Change | None:
        for d, items, name in self._mappings:
            now = list(dict.items(d))
            if len(now) != len(items) or not all(map(_same_item, now, items)):
                return Change(name, False)
        for array, contents, name in self._arrays:
            if array.tobytes() != contents:
                return Change(name, False)
        return None

    def _note_contents(self) -> None:
        # All containers in a row, for one comparison of who is in them.
        dicts = [d for d, keys, _, _ in self._dicts if keys]
        lists = [items for items, values, _ in self._lists if values]
        empty = [d for d, keys, _, _ in self._dicts if not keys]
        empty += [items for items, values, _ in self._lists if not values]
        self._keyed = [*dicts, *[d for d, _, _ in self._partly]]
        contents = [*dicts, *lists]
        keys = list(chain.from_iterable(self._keyed))
        values = list(chain.from_iterable(map(_values_of, contents)))
        self._contents = contents, empty, keys, values

    def _changed_names(self) -> Change | None:
        for d, key, value, name in self._names:
            now = d.get(key, MISSING)
            if now is not value and not _same(now, value):
                return Change(name, not isinstance(value, CONSTANTS))
        for cell, value, name in self._cells:
            now = contents_of(cell)
            if now is not value and not _same(now, value):
                return Change(name, not isinstance(value, CONSTANTS))
        for owner, key, value, name in self._slots:
            now = getattr(owner, key, MISSING)
            if now is not value and not _same(now, value):
                return Change(name, not isinstance(value, CONSTANTS))
        return None

    def _changed_tensors(self) -> Change | None:
        for t, (storage, array, *rest) in zip(self.tensors, self._marks, strict=True):
            if t._storage is not storage() or t._array is not array():
                return Change("the memory of a parameter or tensor", True)
            requires_grad, node, extra = rest
            if t._requires_grad is not requires_grad or t._node is not node:
                return Change("requires_grad of a parameter or tensor", False)
            if t._extra is not extra:
                return Change("the hooks of a parameter or tensor", False)
        return None


def state_of_live(owner: Any) -> list[Any]:
    """Return what an object holds whose calls are made anew: its attributes, its groups' options.

    Between such calls nothing may change it: a replay would not repeat that.
    """
    found = list(vars(owner).values())
    for group in getattr(owner, "param_groups", ()):
        found += group.values()
    return found


def _differs(d: Any, keys: list[Any], values: list[Any]) -> tuple[Any, bool]:
    # The key of what differs, and whether for good; MISSING if what is not identical is equal.
    for key, value in zip(keys, values, strict=True):
        now = d.get(key, MISSING)
        if now is not value and not _same(now, value):
            return key, not isinstance(value, CONSTANTS)
    new = [key for key in d if key not in keys]
    return (new[0], False) if new else (MISSING, False)


def _equal_lists(items: Any, values: list[Any]) -> bool:
    return len(items) == len(values) and all(
        now is value or _same(now, value) for now, value in zip(items, values, strict=True)
    )


def _same_item(a: tuple[Any, Any], b: tuple[Any, Any]) -> bool:
    return a[0] is b[0] and (a[1] is b[1] or _same(a[1], b[1]))


def _values_of(container: Any) -> Any:
    return container.values() if hasattr(container, "values") else container


def _same(a: Any, b: Any) -> bool:
    # Equal constants of one type; a bound method is another object each time it is asked for.
    if type(a) is not type(b):
        return False
    if isinstance(a, types.MethodType):
        return a.__self__ is b.__self__ and a.__func__ is b.__func__
    if isinstance(a, float | complex) and a != a:
        return bool(b != b)
    return isinstance(a, CONSTANTS) and bool(a == b) and repr(a) == repr(b)
