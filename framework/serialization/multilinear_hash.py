"""A 64-bit multilinear hash with fixed keys: a checksum as fast as memory.

The bytes are little-endian words of 32 bits, the last one filled up with zeros. A row is 2048
words, its sum ``s = w[0] * k[0] + w[1] * k[1] + ...`` over the words it has. Rows are combined in
their order, beginning with the number of bytes: ``t = nbytes``, then ``t = t * M + s`` for each.
All of it modulo 2**64. The keys ``k`` are odd, distinct and of 32 bits: the upper half of
splitmix64's outputs 1 to 2048 for the seed 0, with the lowest bit set. ``M`` is 5 modulo 8.

What is always found, by arithmetic and not by chance:

- any change within one word, a flipped bit for one: ``d * k`` with ``0 < |d| < 2**32`` is not 0
  modulo 2**64, nor is it after a multiplication by a power of ``M``, which is odd;
- any burst of up to 32 bits that falls into two words: one changes by ``u * 2**s``, the next by
  ``v`` with ``0 < |v| < 2**s``. An odd multiple of ``v`` is none of ``2**s``, so they never cancel;
- any two flipped bits of a row: as ``2**a * k[i] = 2**b * k[j]`` with odd keys means that ``a`` is
  ``b`` and ``i`` is ``j``, and no side reaches 2**63; likewise in one column of two rows, since
  ``M**n`` is 1 or -1 modulo no more than ``2**(2 + log2(n))``;
- any two different words of a row that change places: ``(w[i] - w[j]) * (k[i] - k[j])`` is no
  product with 0, and stays below 2**64.

Anything else, rows or blocks that change places or are written over, it finds but for a chance:
one case in 2**64 where the damage is as good as random, and some one in 2**31 where it is a few
words of a row, which then must have met just the keys that hide it. It is no signature: who knows
the keys can deceive it.

Source:
    Multilinear hashing of strings: Lemire and Kaser, "Strongly universal string hashing is fast",
    2014. Keys: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.

Two implementations give the same number. NumPy's does 4 GB/s, as zlib's CRC-32 does. The compiled
one does over 40, and must be compiled once on a machine: it is used from ``COMPILED`` bytes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import numpy as np

from ..kernels.runtime import threads

WORDS = 2048  # of a row
ROW = 4 * WORDS  # bytes
BLOCK = 1 << 20  # bytes that are moved, then summed while they are in the cache; whole rows
GROUP = 16  # blocks between two looks at Ctrl-C, where threads share them
LARGE = 1 << 23  # bytes from which on threads share the blocks
COMPILED = 1 << 26  # bytes in all from which on the compiled sum is worth it
M = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_STRIP = 8  # rows that NumPy takes at a time: they and what is made of them stay in the cache

Summer = Callable[[memoryview], int]


def sum_of(memory: memoryview, total: int | None = None) -> int:
    """Return the checksum of bytes in memory.

    Args:
        memory: The bytes, contiguous.
        total: How many there are in the whole file, for the choice of the implementation.
    """
    nbytes = memory.nbytes
    large = nbytes >= LARGE
    return sum_while(nbytes, lambda start, stop: memory[start:stop], total or nbytes, large)


def sum_while(nbytes: int, move: Callable[[int, int], memoryview], total: int, shared: bool) -> int:
    """Copy bytes block by block, and return their checksum.

    Args:
        nbytes: How many.
        move: Moves the bytes from ``start`` to ``stop`` and returns where they lie now.
        total: How many bytes the whole file has.
        shared: Whether threads shall call ``move``, in any order. All of them have ended their
            work when this returns or raises; Ctrl-C waits for a group of blocks.
    """
    summer = summer_for(total)
    blocks = -(-nbytes // BLOCK)
    sums = [0] * blocks

    def run(k: int) -> None:
        start = k * BLOCK
        sums[k] = summer(move(start, min(start + BLOCK, nbytes)))

    workers = threads.get_num_threads() if shared else 1
    for first in range(0, blocks, GROUP):
        group = range(first, min(first + GROUP, blocks))
        if workers > 1:
            threads.parallel_calls(run, [(k,) for k in group], workers)
        else:
            for k in group:
                run(k)
    return _combined(nbytes, sums)


def sum_of_pieces(nbytes: int, pieces: Iterable[memoryview], total: int) -> int:
    """Return the checksum of bytes that arrive in pieces of any size."""
    summer, sums, rest = summer_for(total), [], bytearray()
    for piece in pieces:
        start = 0
        while start < piece.nbytes:
            part = piece[start : start + BLOCK - len(rest)]
            start += part.nbytes
            if rest or part.nbytes < BLOCK:
                rest += part
                if len(rest) == BLOCK:
                    sums.append(summer(memoryview(rest)))
                    rest = bytearray()
            else:
                sums.append(summer(part))
    if rest:
        sums.append(summer(memoryview(rest)))
    return _combined(nbytes, sums)


def _combined(nbytes: int, sums: list[int]) -> int:
    # Every block but the last has BLOCK bytes; each sum began with 0.
    t, step = nbytes & _MASK, pow(M, BLOCK // ROW, 1 << 64)
    for k, part in enumerate(sums):
        if k == len(sums) - 1:
            step = pow(M, -(-(nbytes - k * BLOCK) // ROW), 1 << 64)
        t = (t * step + part) & _MASK
    return t


# Sums of one block, beginning with 0


def summer_for(total: int) -> Summer:
    """Return the faster implementation for a total number of bytes."""
    if total >= COMPILED and sys.byteorder == "little":
        from ..kernels.cpu.multilinear_hash import sum_of_rows  # here, and not first in a thread

        return partial(_compiled, sum_of_rows)
    return with_numpy


def _compiled(sum_of_rows: Any, block: memoryview) -> int:
    whole = block.nbytes // ROW * ROW
    t = 0
    if whole:
        words = np.frombuffer(block[:whole], np.uint32)
        t = int(sum_of_rows(words, keys(), np.uint64(M)))
    return _with_rest(t, block[whole:])


def with_numpy(block: memoryview) -> int:
    """Return the checksum of a block, computed by NumPy."""
    whole = block.nbytes // ROW * ROW
    t = 0
    if whole:
        low, high = _pairs()
        rows = np.frombuffer(block[:whole], "<u8").reshape(-1, WORDS // 2)
        for first in range(0, len(rows), _STRIP):
            strip = rows[first : first + _STRIP]
            for part in (np.dot(strip, low) + np.dot(strip >> _HALF, high)).tolist():
                t = (t * M + part) & _MASK
    return _with_rest(t, block[whole:])


def _with_rest(t: int, rest: memoryview) -> int:
    # A last row that is not whole: zeros after it would change nothing.
    if not rest.nbytes:
        return t
    low, high = _pairs()
    row = np.frombuffer(bytes(rest) + b"\0" * (-rest.nbytes % 8), "<u8")
    part = int(np.dot(row, low[: row.size])) + int(np.dot(row >> _HALF, high[: row.size]))
    return (t * M + part) & _MASK


_HALF = np.uint64(32)


@cache
def keys() -> Any:
    """Return the key of each word of a row."""
    x = np.arange(1, WORDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    found = (x >> _HALF | np.uint64(1)).astype(np.uint32)  # splitmix64's last step keeps this half
    found.flags.writeable = False
    return found


@cache
def _pairs() -> tuple[Any, Any]:
    # For two words at a time, w = low + high * 2**32: w * k + high * (k' - k * 2**32) is
    # low * k + high * k' modulo 2**64.
    low, high = keys()[0::2].astype(np.uint64), keys()[1::2].astype(np.uint64)
    return low, high - (low << _HALF)
