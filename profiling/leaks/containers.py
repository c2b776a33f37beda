"""Containers on the way from a variable to a value: which one grows, what a user would drop."""

from __future__ import annotations

from collections import deque
from functools import _lru_cache_wrapper
from types import FrameType, GeneratorType, TracebackType
from typing import Any

from ...framework.tensor import Tensor, ViewInfo
from .ownership import Root
from .referrers import ReferrerPath

# What is dropped with all that it holds; of another object, what leads to the values.
_WHOLE = (list, deque, set, BaseException, FrameType, TracebackType, GeneratorType)
_FIXED = ("dict", "attribute", "module attribute")  # one place a name, which is written again


def grouped(
    members: list[int],
    paths: list[ReferrerPath | None],
    steps: list[int],
    fullest: bool = False,
) -> tuple[dict[Any, list[tuple[int, ReferrerPath]]], dict[Any, set[int]]]:
    """Group values of several steps by the container that holds them.

    Args:
        members: Numbers of the values.
        paths: What keeps each alive.
        steps: The step of each member.
        fullest: Of several containers around a value, take that of the most steps; else the nearest
            with enough.

    Returns:
        The members of each container, and the steps of what it was seen to hold.
    """
    held: dict[Any, set[int]] = {c: set() for t in paths for c in containers(t)}
    for step, path in zip(steps, paths, strict=True):
        if path is not None:
            for container in held.keys() & {*path.ancestors, *containers(path)}:
                held[container].add(step)
    groups: dict[Any, list[tuple[int, ReferrerPath]]] = {}
    for k, path in zip(members, paths, strict=True):
        around = containers(path)
        if fullest:
            around = sorted(around, key=lambda c: -len(held[c]))[:1]
        for container in around:
            assert path is not None
            # Two variables may hold the last and the best by right; two of a list are many.
            fixed = path.kind in _FIXED and container not in path.lists
            if len(held[container]) >= (3 if fixed else 2):
                groups.setdefault(container, []).append((k, path))
                break
    return groups, held


def containers(path: ReferrerPath | None) -> list[Any]:
    """Return ids of the containers of a path, nearest to the value first."""
    if path is None:
        return []
    if path.kind in ("cycle", "unseen"):
        return [path.kind]
    # A tensor is none: it holds its own graph, also where a view of it was made a step later.
    # Nor is the dict inside of a cache: the cache has a list of its own beside it.
    ways = zip(path.above, path.types, [*path.types[1:], object], strict=False)
    found = [
        key
        for key, kind, outer in ways
        if not issubclass(kind, Tensor | ViewInfo) and not issubclass(outer, _lru_cache_wrapper)
    ]
    return found or path.above


def dropped_root(path: ReferrerPath, container: Any = None, graph: bool = True) -> Root | None:
    """Return what a user would drop: a container, else what is nearest to the value.

    Args:
        path: What keeps the value.
        container: Which on the way, by its id.
        graph: The value belongs to a graph.
    """
    if container is None:
        ways = list(zip(path.above, path.types, strict=True))
        lists = [key for key, kind in ways if issubclass(kind, list | deque | set)]
        near = [key for key, kind in ways if not issubclass(kind, Tensor | tuple)]
        container = lists[-1] if lists else next(iter([*near, *path.above]), None)
    if container not in path.above:
        return None
    kind = path.types[path.above.index(container)]
    whole = issubclass(kind, _WHOLE) or (kind is dict and path.kind == "dict")
    whole = whole or (not graph and container in path.plain)
    return Root(container, kind, not whole, graph)


def is_other_holder(path: ReferrerPath) -> bool:
    """False for a way that leads over tensors and tuples alone: it is no second container."""
    plain = [kind for kind in path.types if not issubclass(kind, Tensor | tuple | ViewInfo)]
    return bool(plain) and path.kind not in ("cycle", "unseen")
