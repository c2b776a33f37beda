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
    """Return the lists, dicts and deques of a tree, outermost first, each as often as it occurs."""
    found: list[Any] = []
    waiting = [tree]
    while waiting:
        x = waiting.pop()
        if isinstance(x, MUTABLE):
            if any(x is known for known in found):
                found.append(x)
                continue
            found.append(x)
        if isinstance(x, dict):
            waiting += reversed(x.values())
        elif isinstance(x, list | tuple | deque):
            waiting += reversed(x)
    return found


class GivenContainers:
    """The lists and dicts of a call's arguments, and what was in them before the call.

    Args:
        given: The arguments.
        copies: The same tree as the recorded function gets it, whose lists and dicts are others.
        outer: The caller's tensors, by the ids of those that stand for them in the copy.
    """

    def __init__(self, given: Any, copies: Any, outer: dict[int, Any]) -> None:
        self._given = containers_in(given)
        self._copies = containers_in(copies)
        self._outer = outer
        self._contents = [_contents(c) for c in self._copies]

    def give_back(self) -> bool:
        """Pass on to the caller's containers what the call has changed; True if it has."""
        changed = False
        for own, copy, before in zip(self._given, self._copies, self._contents, strict=True):
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
        for own, copy in zip(self._given, self._copies, strict=True):
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
        return len(set(found)) < len(found) or not set(found).isdisjoint(map(id, self._copies))


def _contents(container: Any) -> list[Any]:
    return list(
        chain.from_iterable(container.items()) if isinstance(container, dict) else container
    )
