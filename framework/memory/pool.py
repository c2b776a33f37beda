"""The memory pool: allocates and reuses blocks of one reserved mapping.

Reuse is the point: a fresh page costs the kernel more than most arithmetic on it, and a training
step asks for the same sizes again and again. A freed block goes on a stack for exactly its size,
and the next request of that size pops it. Only when that stack is empty does the pool look
further, in this order: the free extents left by merging neighbors (best fit), the stacks folded
into extents, then fresh address space. A pool of less than ``SMALL`` takes fresh address space
before it folds: the steps of a tiny model would fold each other's blocks, over and over.

The sequence of answers depends only on the sequence of requests, so a meta run and a real run
place every block alike.

Any thread may take and give at any time, and Ctrl-C may end any of it. CPython switches threads and
raises an interrupt only after calls, at the entry of functions and where a loop jumps back, so
whatever belongs together is written in one row of statements without any of these. Each row leaves
every block in exactly one place: on a stack, in an extent, among the ``_loose`` ones between the
two, or in use. What is only derived (extents by end and by size) is marked as stale while it
changes, and made again by whoever finds that mark. A search is one thread's at a time.

Not optimal: folding looks at the stack of every size ever asked for. It happens on a miss only;
a loop whose sizes never repeat pays it often, some ten microseconds for a thousand living blocks.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, insort
from collections.abc import Callable
from contextlib import suppress

from ..interrupts import finalizer

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
SMALL = 1 << 18  # bytes of a pool in which blocks of one size are never made into others

# Held during a search. Reentrant: a search may start the garbage collector, and that a finalizer.
_searching = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child must not inherit a search that will never end
    os.register_at_fork(
        before=_searching.acquire,
        after_in_parent=_searching.release,
        after_in_child=_searching.release,
    )


class Pool:
    """A memory pool: blocks of one mapping of ``capacity`` bytes.

    Attributes:
        bins: Free blocks by size: offsets, last freed first.
        grant: ``grant(bytes)``, asked before the pool grows past ``granted``: returns how many
            bytes it may grow by, at least those, or raises MemoryError. None: it need not ask.
        granted: Up to where it may grow without being asked.
        top: End of the part ever handed out; what the pool holds reserved.
        peak: The highest ``top`` since the last reset.
    """

    __slots__ = (
        "_at", "_busy", "_by_size", "_ending", "_loose", "_loose_size", "_stale", "bins",
        "capacity", "grant", "granted", "peak", "top",
    )  # fmt: skip

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.grant: Callable[[int], int] | None = None
        self.granted = capacity
        self.bins: dict[int, list[int]] = {}
        self._at: dict[int, int] = {}  # free extents, none touching another: size by offset
        # Derived from them: offset by end, and (size, offset) sorted.
        self._ending: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []
        self._stale = False  # the two do not fit the extents
        self._loose: list[int] = []  # blocks of one size, on their way from a stack to the extents
        self._loose_size = 0
        self._busy = False  # somebody searches
        self.top = 0
        self.peak = 0

    @property
    def used(self) -> int:
        """Bytes of the blocks in use, rounded up to the alignment."""
        with _searching:
            free = sum(size * len(stack) for size, stack in list(self.bins.items()))
            free += self._loose_size * len(self._loose)
            return self.top - free - sum(self._at.values())

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free block below ``top``, before coalescing."""
        with _searching:
            binned = [size for size, stack in list(self.bins.items()) if stack]
            return max([*binned, *self._at.values()], default=0)

    def take(self, size: int) -> int:
        """Allocate a block of ``size`` bytes (a multiple of the alignment); return its offset.

        An interrupt before the caller has put the offset somewhere loses it: see :class:`Block`.

        Raises:
            MemoryError: The mapping has no room.
        """
        while True:
            stack = self.bins.get(size)
            if stack:
                return stack.pop()
            self.search(size)

    def give(self, offset: int, size: int) -> None:
        """Free a block."""
        self.bins[size].append(offset)

    def search(self, size: int) -> None:
        """Put a free block of ``size`` bytes on its free list, ``bins[size]``.

        That list stays the same object for good.

        Raises:
            MemoryError: The mapping has no room.
        """
        with _searching:
            stack = self.bins.setdefault(size, [])
            if size == 0:
                stack.append(0)  # nothing to place: every empty tensor lies at the start
                return
            if not self._busy:  # else this is a finalizer, started inside a search: leave it be
                self._busy = True
                try:
                    self._mend()
                    found = self._best_fit(size, stack)
                    if not found and self.top + size > min(SMALL, self.capacity):
                        self._fold()
                        found = self._best_fit(size, stack)
                    if found:
                        return
                finally:
                    self._busy = False
            while True:
                offset = self.top
                end = offset + size
                if end <= self.granted and end <= self.capacity:
                    break
                if end > self.capacity and self.grant is None:
                    raise MemoryError(f"{size} bytes do not fit: {offset} of {self.capacity} taken")
                self._ask(size)
            self.top = end
            if end > self.peak:
                self.peak = end
            stack.append(offset)  # the end of the row

    def _ask(self, size: int) -> None:
        # Whether the pool may grow. The answer may change the top: free pages are given back first.
        if self.grant is None:
            self.granted = self.capacity
            return
        granted = self.grant(size)
        if self.top + size > self.capacity:
            raise MemoryError(f"{size} bytes do not fit: {self.top} of {self.capacity} taken")
        self.granted = self.top + max(granted, size)

    def _best_fit(self, size: int, stack: list[int]) -> bool:
        # From the smallest extent that is large enough; of equal ones, the lowest.
        by_size = self._by_size
        place = bisect_left(by_size, (size, -1))
        if place == len(by_size):
            return False
        length, offset = by_size[place]
        at, rest = self._at, length - size
        self._stale = True
        del at[offset]
        if rest:
            at[offset + size] = rest
        stack.append(offset)  # the end of the row
        del by_size[place]
        if rest:
            self._ending[offset + length] = offset + size
            insort(by_size, (rest, offset + size))
        else:
            del self._ending[offset + length]
        self._stale = False
        return True

    def _fold(self) -> None:
        # Every free block becomes part of an extent; one that ends at the top lowers it.
        loose = self._loose
        for size, stack in list(self.bins.items()):
            if stack and size:
                self._loose_size = size
                _move(stack, loose)
                while loose:
                    self._merge(loose[-1], size)
        top = self.top
        last = self._ending.get(top)
        if last is not None:
            size = self._at[last]
            place = bisect_left(self._by_size, (size, last))
            self._stale = True
            del self._at[last]
            self.top = last
            del self._ending[top], self._by_size[place]
            self._stale = False

    def _merge(self, offset: int, size: int) -> None:
        # The last of the loose blocks becomes part of an extent, with the neighbors it touches.
        at, ending, by_size = self._at, self._ending, self._by_size
        before, after = ending.get(offset), at.get(offset + size)
        start, end = offset, offset + size
        self._stale = True
        if before is not None:
            start = before
            del by_size[bisect_left(by_size, (at[before], before))]
        if after is not None:
            end += after
            del by_size[bisect_left(by_size, (after, offset + size))]
            del at[offset + size]  # from here on, one row
        if before is not None:
            del ending[offset]
        at[start] = end - start
        ending[end] = start
        del self._loose[-1]  # the end of the row
        insort(by_size, (end - start, start))
        self._stale = False

    def _mend(self) -> None:
        # What an interrupted search has left.
        if self._loose:
            _move(self._loose, self.bins[self._loose_size])
        if self._stale:
            extents = self._at.items()
            self._ending = {offset + size: offset for offset, size in extents}
            self._by_size = sorted((size, offset) for offset, size in extents)
            self._stale = False

    def reset_peak(self) -> None:
        """Reset the peak to what is reserved now."""
        self.peak = self.top

    def trim(self, release: Callable[[int, int], None] | None = None) -> None:
        """Coalesce all free blocks, and pass unused memory to ``release``.

        Args:
            release: Called with (offset, size) of each free extent, and of the part between the
                new top and the old one. No extent is handed out before it returns.
        """
        with _searching:
            if self._busy:
                return
            old_top = self.top
            self._busy = True
            try:
                self._mend()
                self._fold()
                if release is not None:
                    for offset, size in sorted(self._at.items()):
                        release(offset, size)
                    release(self.top, max(old_top - self.top, 0))
                    if self.grant is not None:
                        self.granted = min(self.granted, self.top)
            finally:
                self._busy = False


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
                self.offset = stack[-1]  # one row with the two below
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


def _move(source: list[int], target: list[int]) -> None:
    # All of one list to the end of another: one call of C code, which neither another thread nor an
    # interrupt divides. What another thread puts there or takes comes before or after.
    with suppress(IndexError):  # the source is empty
        target.extend(iter(source.pop, None))
