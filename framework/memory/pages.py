"""Which pages of a pool the system has back.

A pool's addresses cost nothing; its pages do. A page costs memory from the first write to it until
the pool gives it back. So a pool holds all that it handed out, up to the highest address, less the
*cold* pages: those of free extents that were given back and not handed out since.

What is booked here may be more than what is in memory, never less. Pages handed out are booked
before anything can write them, and pages given back only when the system has them.

The collector may run at any call, and a finalizer may then take a block, which changes the ranges:
what was computed from them is then computed again.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from typing import Any

PAGE = mmap.PAGESIZE
_FAR = 1 << 62  # past the end of every range


class Pages:
    """The pages of one pool.

    Args:
        size: Bytes of a page.

    Attributes:
        size: That.
        high: End of what was handed out, and is not given back from there on; in bytes.
        cold: Bytes given back below it.
        ranges: The cold ones: (begin, end), sorted, none touching another.
        changes: How often they have changed.
    """

    __slots__ = ("changes", "cold", "high", "ranges", "size")

    def __init__(self, size: int = PAGE) -> None:
        self.size = size
        self.ranges: list[tuple[int, int]] = []
        self.cold = 0
        self.high = 0
        self.changes = 0

    def more(self, begin: int, end: int) -> int:
        """Return by how much the bytes held grow if a block is handed out."""
        high = self.high
        cold = self._cold_in(begin, end)
        return cold if end <= high else cold + end - (begin if begin > high else high)

    def take(self, begin: int, end: int) -> None:
        """Book a block that is about to be handed out: all pages that it touches."""
        top = end
        begin, end = begin // self.size * self.size, -(-end // self.size) * self.size
        while True:
            seen, ranges = self.changes, self.ranges
            first, last = self._touching(begin, end)
            rest: list[tuple[int, int]] = []
            warm = 0
            for a, b in ranges[first:last]:
                if a < begin:
                    rest.append((a, min(b, begin)))
                if b > end:
                    rest.append((max(a, end), b))
                warm += max(min(b, end) - max(a, begin), 0)
            if self.changes == seen:  # else a finalizer took a block meanwhile; no call here
                self.changes = seen + 1
                ranges[first:last] = rest
                self.cold -= warm
                if top > self.high:
                    self.high = top
                return

    def inside(self, begin: int, end: int) -> tuple[int, int]:
        """Return the range of whole pages in a range of bytes; an empty one if all are cold."""
        begin, end = -(-begin // self.size) * self.size, end // self.size * self.size
        if end <= begin or self._cold_in(begin, end) == end - begin:
            return begin, begin
        return begin, end

    def warm_end(self, end: int) -> int:
        """Return where the pages end that lie before an address and are not cold."""
        end = end // self.size * self.size
        ranges = self.ranges
        k = bisect_left(ranges, (end, 0)) - 1
        return ranges[k][0] if k >= 0 and ranges[k][1] >= end else end

    def gone(self, begin: int, end: int) -> int:
        """Book whole pages that the system has back; return how many bytes of them were held."""
        while True:
            seen, ranges = self.changes, self.ranges
            first, last = self._touching(begin, end)
            cold = end - begin - self._cold_in(begin, end)
            given = cold - max(end - max(self.high, begin), 0)
            wide = [(begin, end)]
            if first < last:
                wide = [(min(begin, ranges[first][0]), max(end, ranges[last - 1][1]))]
            if self.changes == seen:  # as in `take`
                self.changes = seen + 1
                ranges[first:last] = wide
                self.cold += cold
                if end > self.high:
                    self.high = end
                return given

    def lower(self, top: int, pool: Any) -> None:
        """Book that nothing from an address on is held, unless the pool's top has passed it."""
        while True:
            seen = self.changes
            kept = [(a, min(b, top)) for a, b in self.ranges if a < top]
            cold = sum(b - a for a, b in kept)
            if pool.top > top:
                return
            if self.changes == seen:  # as in `take`
                self.changes = seen + 1
                self.ranges = kept
                self.cold = cold
                self.high = top
                return

    def _cold_in(self, begin: int, end: int) -> int:
        found = 0
        ranges = self.ranges
        k = bisect_left(ranges, (begin, 0))
        if k and ranges[k - 1][1] > begin:
            k -= 1
        while k < len(ranges):
            a, b = ranges[k]
            if a >= end:
                break
            found += (b if b < end else end) - (a if a > begin else begin)
            k += 1
        return found

    def _touching(self, begin: int, end: int) -> tuple[int, int]:
        # Of the ranges, those from the first to before the last touch [begin, end].
        ranges = self.ranges
        first = bisect_left(ranges, (begin, 0))
        if first and ranges[first - 1][1] >= begin:
            first -= 1
        return first, bisect_left(ranges, (end, _FAR), first)


__all__ = ["PAGE", "Pages"]
