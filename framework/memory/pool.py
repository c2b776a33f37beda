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

Not optimal: folding sorts all free blocks. It happens on a miss only; a loop whose shapes never
repeat pays it often.
"""

from __future__ import annotations

import os
import threading
from bisect import insort
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

    __slots__ = ("bins", "capacity", "extents", "peak", "top")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.bins: dict[int, list[int]] = {}
        self.extents: list[tuple[int, int]] = []  # (offset, size), by offset, never touching
        self.top = 0
        self.peak = 0

    @property
    def used(self) -> int:
        """Bytes of the blocks in use, rounded up to the alignment."""
        with _searching:
            free = sum(size * len(stack) for size, stack in list(self.bins.items()))
            return self.top - free - sum(size for _, size in self.extents)

    @property
    def largest_free(self) -> int:
        """Bytes of the largest block that could be handed out below ``top`` without folding."""
        with _searching:
            binned = [size for size, stack in list(self.bins.items()) if stack]
            return max([*binned, *(size for _, size in self.extents)], default=0)

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
            offset = self._best_fit(size)
            if offset is None:
                self._fold()
                offset = self._best_fit(size)
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
        fits = [(length, offset) for offset, length in self.extents if length >= size]
        if not fits:
            return None
        length, offset = min(fits)
        self.extents.remove((offset, length))
        if length > size:
            insort(self.extents, (offset + size, length - size))
        return offset

    def _fold(self) -> None:
        # Every free block becomes part of a merged extent; one that ends at the top lowers it.
        found, self.extents = self.extents, []
        for size, stack in list(self.bins.items()):
            if size:
                found += [(offset, size) for offset in _drain(stack)]
        merged: list[tuple[int, int]] = []
        for offset, length in sorted(found):
            if merged and merged[-1][0] + merged[-1][1] == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((offset, length))
        if merged and sum(merged[-1]) == self.top:
            self.top = merged.pop()[0]
        self.extents = merged

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
            old_top = self.top
            self._fold()
            if release is not None:
                for offset, size in self.extents:
                    release(offset, size)
                release(self.top, old_top - self.top)


def _drain(stack: list[int]) -> list[int]:
    # Not a copy and a clear: another thread may append between the two.
    taken = []
    while stack:
        try:
            taken.append(stack.pop())
        except IndexError:  # another thread was faster
            break
    return taken
