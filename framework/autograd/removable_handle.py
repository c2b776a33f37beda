"""Hook dictionaries by kind, and the handle that removes a hook."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import Any

_ids = count()


class RemovableHandle:
    """A handle that removes its hook: ``handle.remove()``, or at the end of ``with handle:``."""

    def __init__(self, hooks: OrderedDict[int, Any], key: int) -> None:
        self._hooks = hooks
        self.id = key

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def add_hook(extras: dict[Any, Any], kind: Any, hook: Any) -> RemovableHandle:
    """Append a hook to a dict of hooks by kind."""
    hooks = extras.setdefault(kind, OrderedDict())
    key = next(_ids)
    hooks[key] = hook
    return RemovableHandle(hooks, key)
