"""A block of a pool that is freed with the last reference to it."""

from __future__ import annotations

from ..interrupts import finalizer
from .pool import Pool


class Block:
    """A block that is freed with the last reference to it.

    Attributes:
        offset: Where it begins.
        size: Its bytes.

    Raises:
        MemoryError: The pool has no room.
    """

    __slots__ = ("_stack", "offset", "size")
    _stack: list[int]

    def __init__(self, pool: Pool, size: int) -> None:
        self.size = size
        while True:
            stack = pool.bins.get(size)
            if stack:
                self.offset = stack[-1]  # no call before the two lines below
                del stack[-1]
                self._stack = stack
                return
            pool.search(size)

    @finalizer
    def __del__(self) -> None:
        try:
            stack = self._stack
        except AttributeError:  # there was no room
            return
        stack.append(self.offset)
