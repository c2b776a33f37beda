"""Compiled searches along the middle dim of (count, n, columns): the extreme, and the k best.

NaN counts as the largest of all; of equal elements the first is the better one. A search of columns
beside each other goes row by row, so that memory is read in order. The k best are kept in a heap
whose root is the worst of them: an element that is no better than the root, as nearly all soon are,
costs a comparison, and 32 of them are compared at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import compiled, part

_TILE = 1024  # columns at a time: their best values and places stay in the first cache
_GLANCE = 32  # elements compared at once


@compiled
def search(
    values: Any, indices: Any, x: Any, largest: bool, first: int, last: int, begin: int, end: int
) -> None:
    """The largest or smallest of each of the columns ``begin:end``, and where it is first.

    ``values`` without elements is left alone; ``first:last`` are the counts to do.
    """
    n = x.shape[1]
    best, place = np.empty(_TILE, x.dtype), np.empty(_TILE, np.int64)
    for i in range(first, last):
        for start in range(begin, end, _TILE):
            m = min(_TILE, end - start)
            for j in range(m):
                best[j], place[j] = x[i, 0, start + j], 0
            for k in range(1, n):
                row = x[i, k, start : start + m]
                if largest:
                    for j in range(m):
                        v, w = row[j], best[j]
                        wins = (v > w) | ((v != v) & (w == w))
                        best[j] = v if wins else w
                        place[j] = k if wins else place[j]
                else:
                    for j in range(m):
                        v, w = row[j], best[j]
                        wins = (v < w) | ((v != v) & (w == w))
                        best[j] = v if wins else w
                        place[j] = k if wins else place[j]
            for j in range(m):
                indices[i, start + j] = place[j]
            if values.size:
                for j in range(m):
                    values[i, start + j] = best[j]


@part
def _worse(v: Any, i: int, w: Any, j: int, largest: bool) -> Any:
    if v == w or (v != v and w != w):
        return i > j
    if largest:
        return v < w or w != w
    return v > w or v != v


@part
def _sink(heap: Any, places: Any, size: int, at: int, v: Any, i: int, largest: bool) -> None:
    # Put (v, i) at `at` or below it, so that a parent is never better than its children.
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _worse(
            heap[child + 1], places[child + 1], heap[child], places[child], largest
        ):
            child += 1
        if not _worse(heap[child], places[child], v, i, largest):
            break
        heap[at], places[at] = heap[child], places[child]
        at = child
    heap[at], places[at] = v, i


@compiled
def topk(values: Any, indices: Any, x: Any, largest: bool) -> None:
    """The best of each column, best first, and where they are."""
    count, n, columns = x.shape
    k = values.shape[1]
    heap, places = np.empty(k, x.dtype), np.empty(k, np.int64)
    lines, column = x.reshape(-1), np.empty(0 if columns == 1 else n, x.dtype)
    for i in range(count):
        for c in range(columns):
            if columns == 1:
                column = lines[i * n : (i + 1) * n]
            else:
                for j in range(n):
                    column[j] = x[i, j, c]
            for j in range(k):
                heap[j], places[j] = column[j], j
            for j in range(k // 2 - 1, -1, -1):
                _sink(heap, places, k, j, heap[j], places[j], largest)
            j = k
            while j < n:
                root, glance = heap[0], column[j : j + _GLANCE]
                some = False
                if largest:
                    for s in range(glance.size):
                        v = glance[s]
                        some |= (v > root) | (v != v)
                else:
                    for s in range(glance.size):
                        some |= glance[s] < root
                    some |= root != root
                if some:
                    for s in range(glance.size):
                        if _worse(heap[0], places[0], glance[s], j + s, largest):
                            _sink(heap, places, k, 0, glance[s], j + s, largest)
                j += _GLANCE
            for size in range(k - 1, -1, -1):
                values[i, size, c], indices[i, size, c] = heap[0], places[0]
                _sink(heap, places, size, 0, heap[size], places[size], largest)
