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
whatever belongs together is written in one group of statements without any of these. Each group
leaves every block in exactly one place: on a stack, in an extent, among the ``_loose`` ones between
the two, or in use. What is only derived (extents by end and by size) is marked as stale while it
changes, and derived again by the next reader. A search is one thread's at a time.

Not optimal: folding looks at the stack of every size ever asked for. It happens on a miss only;
a loop whose sizes never repeat pays it often, some ten microseconds for a thousand living blocks.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, insort
from collections.abc import Callable
from contextlib import suppress
from heapq import nsmallest
from operator import itemgetter

from .pages import PAGE, Pages

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
SMALL = 1 << 18  # bytes of a pool in which blocks of one size are never made into others
NO_CAP = 1 << 62
CHUNK = 1 << 16  # bytes of an extent that are given back at once, at least
AHEAD, MOST_AHEAD = 256, 1 << 22  # a share of the cap, and bytes, that are given back ahead
FEW = 4  # pages that are left to be brought one by one
CANDIDATES = 8  # extents looked at for one whose pages are held
SLACK, LEAST_SLACK = 1024, 1 << 17  # a share of the cap, and bytes, by which it may be passed
HUGE = 1 << 21  # bytes of a huge page: the last one touched may reach past the last block

_offset = itemgetter(1)  # of (size, offset)

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

    Args:
        capacity: Its bytes of addresses.
        release: ``release(offset, size)`` gives whole pages back to the system. None: there are
            none behind the addresses; they are counted all the same.
        page: Bytes of a page.
        touch: ``touch(offset, size)`` has the system bring pages at once that were given back, and
            not one by one as they are written; or None.

    Attributes:
        bins: Free blocks by size: offsets, last freed first.
        cap: Bytes of pages to be held at most; the blocks in use may need more.
        grant: ``grant(bytes)``, asked before the pool holds more than ``granted``: returns by how
            many bytes it may grow, at least those, or raises MemoryError. None: it need not ask.
        granted: Bytes of pages that it may hold without asking.
        top: End of the part that is handed out.
        given: Bytes of pages given back so far.
        pages: Which of them are.
        peak: The highest ``held`` since the last reset.
    """

    __slots__ = (
        "_at", "_busy", "_by_size", "_ending", "_loose", "_loose_size", "_stale", "bins", "cap",
        "capacity", "given", "grant", "granted", "pages", "peak", "release", "top", "touch",
    )  # fmt: skip

    def __init__(
        self,
        capacity: int,
        release: Callable[[int, int], None] | None = None,
        page: int = PAGE,
        touch: Callable[[int, int], None] | None = None,
    ) -> None:
        self.capacity = capacity
        self.release = release
        self.touch = touch
        self.cap = NO_CAP
        self.pages = Pages(page)
        self.given = 0
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
        self._busy = False  # another thread searches
        self.top = 0
        self.peak = 0

    @property
    def held(self) -> int:
        """Bytes of pages that may be in memory: what the pool holds reserved."""
        return self.pages.high - self.pages.cold

    @property
    def used(self) -> int:
        """Bytes of the blocks in use, rounded up to the alignment."""
        with _searching:
            free = sum(size * len(stack) for size, stack in list(self.bins.items()))
            free += self._loose_size * len(self._loose)
            return self.top - free - sum(self._at.values())

    def free_extents(self) -> list[tuple[int, int]]:
        """Coalesce all free blocks; return (offset, size) of each, and of what is above the top.

        None during a search.
        """
        with _searching:
            if self._busy:
                return []
            self._busy = True
            try:
                self._mend()
                self._fold()
                return [*self._at.items(), (self.top, self.capacity - self.top)]
            finally:
                self._busy = False

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free block below ``top``, before coalescing."""
        with _searching:
            binned = [size for size, stack in list(self.bins.items()) if stack]
            return max([*binned, *self._at.values()], default=0)

    def take(self, size: int) -> int:
        """Allocate a block of ``size`` bytes (a multiple of the alignment); return its offset.

        An interrupt before the caller has put the offset somewhere loses it: see ``block.py``.

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

    def search(self, size: int, within: bool = False) -> int:
        """Put a free block of ``size`` bytes on its free list, ``bins[size]``.

        That list stays the same object for good.

        Args:
            size: Bytes, a multiple of the alignment.
            within: Not if the pages held would pass the cap by more than a rounding's worth.

        Returns:
            By how many bytes they would; then there is no block. Else 0.

        Raises:
            MemoryError: The mapping has no room.
        """
        with _searching:
            stack = self.bins.setdefault(size, [])
            if size == 0:
                stack.append(0)  # nothing to place: every empty tensor lies at the start
                return 0
            pages = self.pages
            while True:
                place = None
                if not self._busy:  # else this is a finalizer, started inside a search: leave it be
                    self._busy = True
                    try:
                        self._mend()
                        place = self._place(size)
                        if place is None and self.top + size > min(SMALL, self.capacity):
                            self._fold()
                            place = self._place(size)
                        if self.held + size > self.cap:
                            place, lacking = self._shed(size, place)
                            if within and lacking > max(self.cap // SLACK, LEAST_SLACK):
                                return lacking
                        if place is not None:
                            offset = self._by_size[place][1]
                            if self.held + pages.more(offset, offset + size) <= self.granted:
                                self._take(place, size, stack)
                                return 0
                    finally:
                        self._busy = False
                offset = self.top
                end = offset + size
                if place is None:
                    if end > self.capacity and self.grant is None:
                        raise self._full(size)
                    more = pages.more(offset, end)
                    if end <= self.capacity and self.held + more <= self.granted:
                        pages.take(offset, end)
                        if self.top != offset or pages.high < end:
                            continue  # a finalizer's search took it meanwhile, or gave it back
                        held = pages.high - pages.cold  # no calls from the comparison on
                        self.top = end
                        if held > self.peak:
                            self.peak = held
                        stack.append(offset)  # the end of the row
                        return 0
                self._ask(size, place is None)

    def _ask(self, size: int, grows: bool) -> None:
        # Whether the pool may hold more. Free pages may be given back first, so all may change.
        if self.grant is None:
            self.granted = self.capacity
            return
        granted = self.grant(size)
        if grows and self.top + size > self.capacity:
            raise self._full(size)
        self.granted = self.held + max(granted, size)

    def _full(self, size: int) -> MemoryError:
        return MemoryError(f"{size} bytes do not fit: {self.top} of {self.capacity} taken")

    def _place(self, size: int) -> int | None:
        # Of the smallest extent that is large enough; of equal ones, the lowest. Under a cap, of
        # the lowest whose pages are held: a quarter fewer go and come back. Where addresses are
        # few, of the lowest: what lives long gathers at the start, and the free blocks between are
        # larger (a GPT's addresses are 1.09 of its budget instead of 1.2).
        by_size = self._by_size
        place = bisect_left(by_size, (size, -1))
        if place == len(by_size):
            return None
        if self.cap != NO_CAP:
            fitting = by_size[place:]
            best = min(fitting, key=_offset)
            if self.pages.cold and self.capacity > 2 * self.cap:
                for extent in nsmallest(CANDIDATES, fitting, _offset):
                    if not self.pages.more(extent[1], extent[1] + size):
                        best = extent
                        break
            place = bisect_left(by_size, best)
        return place

    def _take(self, place: int, size: int, stack: list[int]) -> None:
        # The start of an extent becomes a block on its stack.
        by_size = self._by_size
        length, offset = by_size[place]
        pages = self.pages
        if pages.cold:
            more = pages.more(offset, offset + size)
            pages.take(offset, offset + size)
            self.peak = max(self.peak, self.held)
            if more > FEW * pages.size and self.touch is not None:
                self.touch(offset, size)
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

    def _shed(self, size: int, place: int | None) -> tuple[int | None, int]:
        # Give pages back until those of a block fit the cap. Returns the place for it, and by how
        # much the cap is passed where too many free extents are less than a page.
        pages = self.pages
        begin = self.top if place is None else self._by_size[place][1]
        if self.held + pages.more(begin, begin + size) <= self.cap:
            return place, 0
        self._fold()
        begin = self._start(size)
        end = begin + size
        more = pages.more(begin, end)
        if self.held + more > self.cap:
            # A little more than is lacking: the next searches then need not come by here.
            target = self.cap - min(self.cap // AHEAD, MOST_AHEAD) - more
            self._give_above(max(self.top, end, pages.high - max(self.held - target, CHUNK)))
            for length, offset in reversed(self._by_size[:]):
                if self.held <= target or length < pages.size:
                    break
                # From the end of the extent on: blocks are cut from its start.
                first = end if offset == begin else offset
                last = pages.warm_end(offset + length)
                while self.held > target and last > first:
                    lacking = -(-(self.held - target) // pages.size) * pages.size
                    part = max(first, last - max(lacking, CHUNK))
                    self._give(part, last)
                    last = pages.warm_end(part)
        lacking = self.held + more - self.cap
        for place, (_, offset) in enumerate(self._by_size):
            if offset == begin:
                return place, lacking
        return None, lacking

    def _start(self, size: int) -> int:
        # Where a block would begin.
        place = self._place(size)
        return self.top if place is None else self._by_size[place][1]

    def _give(self, begin: int, end: int) -> None:
        # Give back the pages of a free extent, or of a part of it.
        begin, end = self.pages.inside(begin, end)
        if begin < end:
            if self.release is not None:
                self.release(begin, end - begin)
            self.given += self.pages.gone(begin, end)

    def _give_above(self, begin: int) -> None:
        # Give back the pages from an address on that is not below the top. They are an extent
        # meanwhile: a finalizer that runs now takes what lies above it.
        pages, top = self.pages, self.top
        if pages.high <= begin:
            return
        end = min(-(-pages.high // HUGE) * HUGE, self.capacity)
        if begin < top or self.top != top:
            return  # a finalizer took what lies there
        self._stale = True  # no call since the comparison
        self._at[top] = end - top
        self.top = end  # the end of the row
        self._mend()
        self._give(begin, end)
        self._lower()
        if self.top == top:  # else the space above was taken
            pages.lower(begin, self)

    def _fold(self) -> None:
        # Every free block becomes part of an extent; one that ends at the top lowers it.
        loose = self._loose
        for size, stack in list(self.bins.items()):
            if stack and size:
                self._loose_size = size
                _move(stack, loose)
                while loose:
                    self._merge(loose[-1], size)
        self._lower()

    def _lower(self) -> None:
        # A free extent that ends at the top lowers it.
        top = self.top
        last = self._ending.get(top)
        if last is not None:
            size = self._at[last]
            place = bisect_left(self._by_size, (size, last))
            if self.top != top:
                return  # a finalizer took what lies above it
            self._stale = True  # no call since the comparison
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
            del at[offset + size]  # no calls from here on
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
        """Reset the peak to what is held now."""
        self.peak = self.held

    def trim(self) -> None:
        """Coalesce all free blocks, and give their pages back to the system."""
        with _searching:
            if self._busy:
                return
            self._busy = True
            try:
                self._mend()
                self._fold()
                for offset, size in sorted(self._at.items()):
                    self._give(offset, offset + size)
                self._give_above(self.top)
                if self.grant is not None:
                    self.granted = min(self.granted, self.held)
            finally:
                self._busy = False


def _move(source: list[int], target: list[int]) -> None:
    # All of one list to the end of another: one call of C code, which neither another thread nor an
    # interrupt divides. What another thread puts there or takes comes before or after.
    with suppress(IndexError):  # the source is empty
        target.extend(iter(source.pop, None))
