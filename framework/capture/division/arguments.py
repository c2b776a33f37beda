"""The arguments of a function by name, and which of them are others at each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

_MOST_VALUES = 4  # of an argument, from which on it counts as changing


def plain_function(function: Any) -> FunctionType:
    """Return the function behind a method, or the function."""
    found: FunctionType = getattr(function, "__func__", function)
    return found


def arguments_of(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return what the parameters stand for in a call of a function or method, by name."""
    if isinstance(function, MethodType):
        function, args = function.__func__, (function.__self__, *args)
    return inspect.signature(function).bind(*args, **kwargs).arguments


class ChangingArguments:
    """Notes the values of arguments, but for their tensors.

    Args:
        key_of: Gives an argument's part of the key of a call.
    """

    def __init__(self, key_of: Callable[[Any], Any]) -> None:
        self._key_of = key_of
        self._values: dict[str, set[Any]] = {}

    def note(self, given: dict[str, Any]) -> list[str]:
        """Note a call's arguments; return the names of those that had more than four values."""
        changing = []
        for name, value in given.items():
            found = self._values.setdefault(name, set())
            found.add(self._key_of(value))
            if len(found) > _MOST_VALUES:
                changing.append(name)
        return changing

    def clear(self) -> None:
        """Forget all values."""
        self._values.clear()
