"""Where the values of a program lie: offsets in one block of memory.

Best fit by size: the largest value is placed first, each next one into the smallest gap that is
left between the values whose lifetimes meet its own.

Source:
    Pisarchyk and Lee: "Efficient memory management for deep neural net inference", 2020 (greedy by
    size).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..memory.pool import ALIGNMENT


def plan_offsets(lifetimes: Sequence[tuple[int, int, int]]) -> tuple[list[int], int, int]:
    """Place values so that those that live at the same time do not overlap.

    Args:
        lifetimes: (bytes, first row, last row) of each value.

    Returns:
        (offsets, bytes of the block, greatest sum of bytes that live at the same time). Offsets are
        multiples of the pool's alignment; the last figure counts bytes rounded up to it.
    """
    count = len(lifetimes)
    sizes = np.array([-(-n // ALIGNMENT) * ALIGNMENT for n, _, _ in lifetimes], np.int64)
    first = np.array([a for _, a, _ in lifetimes], np.int64)
    last = np.array([b for _, _, b in lifetimes], np.int64)
    offsets = np.zeros(count, np.int64)
    placed = np.zeros(count, bool)
    for k in np.lexsort((first, -sizes)):
        met = placed & (first <= last[k]) & (last >= first[k])
        offsets[k] = _best_gap(offsets[met], sizes[met], int(sizes[k]))
        placed[k] = True
    total = int((offsets + sizes).max()) if count else 0
    return offsets.tolist(), total, greatest_sum(sizes, first, last)


def _best_gap(offsets: np.ndarray, sizes: np.ndarray, wanted: int) -> int:
    # The start of the smallest gap between blocks; behind all of them if none is large enough.
    if not len(offsets):
        return 0
    order = np.argsort(offsets, kind="stable")
    starts = offsets[order]
    ends = np.maximum.accumulate(starts + sizes[order])  # blocks may overlap: they live apart
    begins = np.concatenate(([0], ends[:-1]))
    gaps = starts - begins
    fitting = np.flatnonzero(gaps >= wanted)
    if not len(fitting):
        return int(ends[-1])
    return int(begins[fitting[np.argmin(gaps[fitting])]])


def greatest_sum(sizes: np.ndarray, first: np.ndarray, last: np.ndarray) -> int:
    """Return the greatest sum of sizes that live at the same row."""
    if not len(sizes):
        return 0
    changes = np.zeros(int(last.max()) + 2, np.int64)
    np.add.at(changes, first, sizes)
    np.add.at(changes, last + 1, -sizes)
    return int(changes.cumsum().max())
