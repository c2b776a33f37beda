"""The pool: which addresses of a reserved mapping are taken, and which are free to reuse.

Reuse is the point: a fresh page costs the kernel more than most arithmetic on it, and a training
step asks for the same sizes again and again. A freed block goes on a stack for exactly its size,
and the next request of that size pops it. Only when that stack is empty does the pool look
further, in this order: the free extents left by merging neighbors (best fit), the stacks folded
into extents, then fresh address space.

The sequence of answers depends only on the sequence of requests, so a meta run and a real run
place every block alike.

Not optimal: folding sorts all free blocks. It happens on a miss only; a loop whose shapes never
repeat pays it often.
"""

from __future__ import annotations

from bisect import insort

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


class Pool:
    """Offsets into one mapping of ``capacity`` bytes.

    Attributes:
        bins: Free blocks by size: offsets, last freed first.
        top: End of the part ever handed out; what the pool holds reserved.
    """

    __slots__ = ("bins", "capacity", "extents", "top")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.bins: dict[int, list[int]] = {}
        self.extents: list[tuple[int, int]] = []  # (offset, size), by offset, never touching
        self.top = 0

    @property
    def used(self) -> int:
        """Bytes of the blocks in use, rounded up to the alignment."""
        free = sum(size * len(stack) for size, stack in self.bins.items())
        return self.top - free - sum(size for _, size in self.extents)

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
        self.bins.setdefault(size, [])
        if size == 0:
            return 0
        offset = self._best_fit(size)
        if offset is None:
            self._fold()
            offset = self._best_fit(size)
        if offset is None:
            if self.top + size > self.capacity:
                raise MemoryError(f"{size} bytes do not fit: {self.top} of {self.capacity} taken")
            offset = self.top
            self.top += size
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
        blocks = [(o, size) for size, stack in self.bins.items() if size for o in stack]
        for stack in self.bins.values():
            stack.clear()
        merged: list[tuple[int, int]] = []
        for offset, length in sorted(self.extents + blocks):
            if merged and merged[-1][0] + merged[-1][1] == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((offset, length))
        if merged and sum(merged[-1]) == self.top:
            self.top = merged.pop()[0]
        self.extents = merged

    def trim(self) -> list[tuple[int, int]]:
        """Fold all free blocks; what lies in the gaps, and where the top was, may be unmapped.

        Returns:
            (offset, size) of each free extent, the part above the new top included.
        """
        old_top = self.top
        self._fold()
        return [*self.extents, (self.top, old_top - self.top)]
