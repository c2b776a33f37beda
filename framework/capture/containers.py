"""Lists and dicts that a recorded call is given or returns.

A replay makes new ones: it cannot put anything into those of its arguments. So a call that changes
a list or a dict of its arguments is not recorded, nor one that returns the same one twice, or one
that it was given.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import Any

from ..interop.pytree import tree_map
from ..tensor import Tensor

MUTABLE = (list, dict, deque)


def containers_in(tree: Any) -> list[Any]:
    """Return the lists, dicts and deques of a tree, each as often as it occurs."""
    found: list[Any] = []
    seen: set[int] = set()
    waiting = [tree]
    while waiting:
        x = waiting.pop()
        if isinstance(x, MUTABLE):
            found.append(x)
        if id(x) not in seen:
            seen.add(id(x))
            waiting += _children(x)
    return found


def _children(x: Any) -> list[Any]:
    if isinstance(x, dict):
        return list(x.values())
    return list(x) if isinstance(x, list | tuple | deque) else []


def _pairs(given: Any, copies: Any) -> list[tuple[Any, Any]]:
    # Each container of a tree, with that in its place in a copy of the tree.
    found: dict[tuple[int, int], tuple[Any, Any]] = {}
    seen: set[tuple[int, int]] = set()
    waiting = [(given, copies)]
    while waiting:
        x, y = waiting.pop()
        if (id(x), id(y)) in seen:
            continue
        seen.add((id(x), id(y)))
        if isinstance(x, MUTABLE):
            found[id(x), id(y)] = (x, y)
        waiting += zip(_children(x), _children(y), strict=True)
    return list(found.values())


class GivenContainers:
    """The lists and dicts of a call's arguments, and what was in them before the call.

    Args:
        given: The arguments.
        copies: The same tree as the recorded function gets it, whose lists and dicts are others.
        outer: The caller's tensors, by the ids of those that stand for them in the copy.
    """

    def __init__(self, given: Any, copies: Any, outer: dict[int, Any]) -> None:
        self._pairs = _pairs(given, copies)
        self._outer = outer
        self._contents = [_contents(copy) for _, copy in self._pairs]

    def give_back(self) -> bool:
        """Pass on to the caller's containers what the call has changed; True if it has."""
        changed = False
        for (own, copy), before in zip(self._pairs, self._contents, strict=True):
            now = _contents(copy)
            if len(now) == len(before) and all(
                x is y or (isinstance(x, str | int) and x == y)
                for x, y in zip(now, before, strict=True)
            ):
                continue
            changed = True
            if own is copy:
                continue
            own.clear()
            if isinstance(own, dict):
                own.update({k: self._of_caller(v) for k, v in copy.items()})
            else:
                own.extend(map(self._of_caller, copy))
        return changed

    def _of_caller(self, x: Any) -> Any:
        for own, copy in self._pairs:
            if x is copy:
                return own
        return self.returned(x)

    def returned(self, x: Any) -> Any:
        """Return a tree with the caller's containers and tensors in the place of their copies.

        Other lists and dicts stay who they are.
        """
        if isinstance(x, Tensor):
            return self._outer.get(id(x), x)
        if isinstance(x, list | deque):
            for k, value in enumerate(x):
                x[k] = self._of_caller(value)
            return x
        if isinstance(x, dict):
            for key, value in list(x.items()):
                x[key] = self._of_caller(value)
            return x
        if type(x) is tuple:
            return tuple(map(self._of_caller, x))
        return tree_map(lambda leaf: self._outer.get(id(leaf), leaf), x)

    def are_returned(self, result: Any) -> bool:
        """True if a result has one of these containers in it, or one that is in it twice."""
        found = [id(c) for c in containers_in(result)]
        given = {id(copy) for _, copy in self._pairs}
        return len(set(found)) < len(found) or not given.isdisjoint(found)


def _contents(container: Any) -> list[Any]:
    return list(
        chain.from_iterable(container.items()) if isinstance(container, dict) else container
    )
