"""The pool: which addresses of a reserved mapping are taken, and which are free to reuse.

Reuse is the point: a fresh page costs the kernel more than most arithmetic on it, and a training
step asks for the same sizes again and again. A freed block goes on a stack for exactly its size,
and the next request of that size pops it. Only when that stack is empty does the pool look
further, in this order: the free extents left by merging neighbors (best fit), the stacks folded
into extents, then fresh address space.

The sequence of answers depends only on the sequence of requests, so a meta run and a real run
place every block alike.

Any thread may take and give at any time. ``list.append`` and ``list.pop`` are atomic, so the short
road needs no lock; the search is one thread's at a time, and takes blocks off the stacks one by
one, so that a block given back meanwhile is never lost.

Not optimal: folding looks at the stack of every size ever asked for. It happens on a miss only;
a loop whose sizes never repeat pays it often, some ten microseconds for a thousand living blocks.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, insort
from collections.abc import Callable

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register

# Held during a search. Reentrant: a search may start the garbage collector, and that a finalizer.
_searching = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child must not inherit a search that will never end
    os.register_at_fork(
        before=_searching.acquire,
        after_in_parent=_searching.release,
        after_in_child=_searching.release,
    )


class Pool:
    """Offsets into one mapping of ``capacity`` bytes.

    Attributes:
        bins: Free blocks by size: offsets, last freed first.
        top: End of the part ever handed out; what the pool holds reserved.
        peak: The highest ``top`` since the last reset.
    """

    __slots__ = ("_at", "_busy", "_by_size", "_ending", "bins", "capacity", "peak", "top")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.bins: dict[int, list[int]] = {}
        # Free extents, none touching another: size by offset, offset by end, (size, offset) sorted.
        self._at: dict[int, int] = {}
        self._ending: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []
        self._busy = False  # the three are being changed
        self.top = 0
        self.peak = 0

    @property
    def used(self) -> int:
        """Bytes of the blocks in use, rounded up to the alignment."""
        with _searching:
            free = sum(size * len(stack) for size, stack in list(self.bins.items()))
            return self.top - free - sum(self._at.values())

    @property
    def largest_free(self) -> int:
        """Bytes of the largest block that could be handed out below ``top`` without folding."""
        with _searching:
            binned = [size for size, stack in list(self.bins.items()) if stack]
            return max([*binned, *self._at.values()], default=0)

    def take(self, size: int) -> int:
        """The offset of a free block of ``size`` bytes (a multiple of the alignment).

        Raises:
            MemoryError: The mapping has no room.
        """
        stack = self.bins.get(size)
        return stack.pop() if stack else self.search(size)

    def give(self, offset: int, size: int) -> None:
        """Take a block back."""
        self.bins[size].append(offset)

    def search(self, size: int) -> int:
        """What ``take`` does when no freed block has exactly that size.

        A block given back goes to ``bins[size]``, a list that stays the same object for good.
        """
        with _searching:
            self.bins.setdefault(size, [])
            if size == 0:
                return 0  # nothing to place: every empty tensor lies at the start
            offset = None
            if not self._busy:  # else this is a finalizer, started inside a search: leave it be
                self._busy = True
                try:
                    offset = self._best_fit(size)
                    if offset is None:
                        self._fold()
                        offset = self._best_fit(size)
                finally:
                    self._busy = False
            if offset is None:
                if self.top + size > self.capacity:
                    raise MemoryError(
                        f"{size} bytes do not fit: {self.top} of {self.capacity} taken"
                    )
                offset = self.top
                self.top += size
                self.peak = max(self.peak, self.top)
            return offset

    def _best_fit(self, size: int) -> int | None:
        # The smallest extent that is large enough; of equal ones, the lowest.
        place = bisect_left(self._by_size, (size, -1))
        if place == len(self._by_size):
            return None
        length, offset = self._by_size[place]
        self._remove(offset)
        if length > size:
            self._insert(offset + size, length - size)
        return offset

    def _insert(self, offset: int, size: int) -> None:
        before = self._ending.get(offset)
        if before is not None:
            size += self._remove(before)
            offset = before
        if offset + size in self._at:
            size += self._remove(offset + size)
        self._at[offset] = size
        self._ending[offset + size] = offset
        insort(self._by_size, (size, offset))

    def _remove(self, offset: int) -> int:
        size = self._at.pop(offset)
        del self._ending[offset + size]
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        return size

    def _fold(self) -> None:
        # Every free block becomes part of an extent; one that ends at the top lowers it.
        for size, stack in list(self.bins.items()):
            if stack and size:
                for offset in _drain(stack):
                    self._insert(offset, size)
        last = self._ending.get(self.top)
        if last is not None:
            self.top = last
            self._remove(last)

    def reset_peak(self) -> None:
        """Forget the peak: it starts again from what is reserved now."""
        self.peak = self.top

    def trim(self, release: Callable[[int, int], None] | None = None) -> None:
        """Fold all free blocks, and hand what nobody uses to ``release``.

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
                self._fold()
                if release is not None:
                    for offset, size in sorted(self._at.items()):
                        release(offset, size)
                    release(self.top, max(old_top - self.top, 0))
            finally:
                self._busy = False


def _drain(stack: list[int]) -> list[int]:
    # Not a copy and a clear: another thread may append between the two.
    taken = []
    while stack:
        try:
            taken.append(stack.pop())
        except IndexError:  # another thread was faster
            break
    return taken
