"""Hook dictionaries by kind, and the handle that removes a hook."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import Any

_ids = count()


class RemovableHandle:
    """A handle that removes its hook: ``handle.remove()``, or at the end of ``with handle:``.

    Args:
        hooks: The dict that the hook is in.
        key: Its key there; a new one by default, ``handle.id``, for the caller to use.
    """

    def __init__(self, hooks: Any, key: int | None = None) -> None:
        self._hooks = hooks  # a dict; without a key, the maker of the handle puts the hook there
        self.id = next(_ids) if key is None else key

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
