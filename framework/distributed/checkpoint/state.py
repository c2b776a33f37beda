"""States as flat dicts: a path for each tensor and each other value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...tensor import Tensor


def flatten(state: Any) -> dict[str, Any]:
    """Return the leaves of nested dicts, and of lists that have tensors, by path.

    Raises:
        ValueError: Two have one path.
    """
    found: dict[str, Any] = {}
    _walk(state, "", found)
    return found


def _walk(value: Any, path: str, found: dict[str, Any]) -> None:
    items = _items(value)
    if items is None:
        if path in found:
            raise ValueError(f"save: two values of the state have the path {path!r}; rename one.")
        found[path] = value
        return
    for key, inner in items:
        _walk(inner, f"{path}.{key}" if path else str(key), found)


def _items(value: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(value, Mapping) and value:
        return list(value.items())
    if isinstance(value, list | tuple) and any(map(_has_tensor, value)):
        return list(enumerate(value))
    return None


def _has_tensor(value: Any) -> bool:
    if isinstance(value, Tensor):
        return True
    inner = value.values() if isinstance(value, Mapping) else value
    return isinstance(value, Mapping | list | tuple) and any(map(_has_tensor, inner))


def replace(state: Any, values: Mapping[str, Any], path: str = "") -> None:
    """Write values that are no tensors into a state, by path.

    Raises:
        TypeError: One lies in a tuple.
    """
    for key, inner in _items(state) or ():
        at = f"{path}.{key}" if path else str(key)
        if at in values and _items(inner) is None:
            if isinstance(state, tuple):
                raise TypeError(f"load: {at} lies in a tuple, which cannot be written. Use a list.")
            state[key] = values[at]
        else:
            replace(inner, values, at)


def own_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state in which objects that have a ``state_dict`` are replaced by it."""
    return {
        key: value.state_dict() if _is_stateful(value) else value for key, value in state.items()
    }


def _is_stateful(value: Any) -> bool:
    return (
        not isinstance(value, Tensor | Mapping)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def stateful(state: Mapping[str, Any]) -> list[str]:
    """Return the keys of objects that have a ``state_dict``."""
    return [key for key, value in state.items() if _is_stateful(value)]
