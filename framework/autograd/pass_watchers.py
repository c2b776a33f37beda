"""Observers of backward passes: detectors of leaks and of wasted memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..tensor import Tensor


class PassWatcher(Protocol):
    """An observer of backward passes."""

    def begin_pass(self, roots: list[Tensor], retain: bool, create: bool, inputs: Any) -> None:
        """Record the start of a backward pass."""

    def end_pass(self, accumulated: bool) -> None:
        """Record the end of a backward pass, also of one that raised."""


class PassWatchers:
    """The watchers of all threads.

    Attributes:
        joined: In the order in which they joined; replaced, never changed.
    """

    __slots__ = ("_lock", "joined")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.joined: tuple[PassWatcher, ...] = ()

    def join(self, watcher: PassWatcher) -> None:
        """Tell ``watcher`` of every backward pass, until it leaves."""
        with self._lock:
            self.joined = (*self.joined, watcher)

    def leave(self, watcher: PassWatcher) -> None:
        """Tell it no more."""
        with self._lock:
            self.joined = tuple(w for w in self.joined if w is not watcher)


watchers = PassWatchers()

__all__ = ["PassWatcher", "PassWatchers", "watchers"]
