"""Compiled stable sorts along the middle dim of (count, n, columns).

Numbers become unsigned keys of the same order, and keys are sorted digit by digit, from the least
of them (a radix sort with digits of eight bits): a pass over a digit puts each key behind all
smaller ones and keeps the order of equal ones. A digit in which all keys agree needs no pass, so
small integers take two. In rows of a few elements each is compared with all. NumPy's comparisons
decide where its program goes on, which a processor cannot foresee.

Not optimal: a row beyond the second cache would gain from a first pass over the highest digit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import compiled, part

_FEW = 96  # up to this many elements comparing all pairs is faster
_COLUMNS = 1024  # at a time: their best keys and places stay in the first cache
_LANES = 64  # ranges of a single column
_u = np.uint64
_DIGIT = _u(255)


@part
def _key(b: Any, width: int, infinity: Any, descending: bool) -> Any:
    """The bits of a number as an unsigned number of the same order; NaN is the largest."""
    top = _u(1) << _u(width - 1)
    every = (top - _u(1)) | top
    if infinity:
        size = b & (top - _u(1))
        if size == _u(0):
            key = top  # zeros of either sign are equal
        elif size > infinity:
            key = every
        else:
            key = (b ^ every) if b & top else b | top
    else:
        key = b ^ top
    return key ^ every if descending else key


@part
def _rank(keys: Any, ranks: Any, places: Any, found: Any, n: int) -> None:
    # How many keys each is behind. All pairs are compared, but many at once and with no branch.
    ranks[:n] = 0
    for j in range(n):
        key, later, behind = keys[j], keys[j + 1 : n], ranks[j + 1 : n]
        after = np.uint32(0)
        for i in range(later.size):
            one = np.uint32(1) if key <= later[i] else np.uint32(0)
            behind[i] += one
            after += one
        ranks[j] += later.size - after
    for j in range(n):
        found[ranks[j]] = places[j]


@part
def _narrow(keys: Any, places: Any, n: int, kept: int, counts: Any, shift: Any) -> Any:
    # Where few are wanted, leave only the keys that the highest digit does not rule out.
    if 2 * kept > n:
        return n
    counts[:] = 0
    for j in range(n):
        counts[(_u(keys[j]) >> shift) & _DIGIT] += 1
    digit, total = 0, counts[0]
    while total < kept:
        digit += 1
        total += counts[digit]
    m = 0
    for j in range(n):
        key, place = keys[j], places[j]
        keys[m], places[m] = key, place
        m += 1 if (_u(key) >> shift) <= _u(digit) else 0
    return m


@compiled
def sort(
    values: Any,
    indices: Any,
    x: Any,
    keys: Any,
    places: Any,
    infinity: int,
    descending: bool,
    first: int,
    last: int,
) -> None:
    """The first of each column in order, as many as ``indices`` holds, and where they were.

    Args:
        values: Bits as unsigned numbers; without elements it is left alone.
        indices: int64.
        x: Bits as unsigned numbers.
        keys: (2, n), as unsigned numbers of that width.
        places: (2, n).
        infinity: Its bits in a floating-point type; 0 if these are signed integers.
        descending: From the largest on.
        first: The first count to do, and
        last: the one after the last.
    """
    _, n, columns = x.shape
    kept = indices.shape[1]
    width = x.itemsize * 8
    digits = x.itemsize
    ends, infinite = np.empty((digits, 256), np.int64), _u(infinity)
    for i in range(first, last):
        for c in range(columns):
            for j in range(n):
                keys[0, j] = _key(_u(x[i, j, c]), width, infinite, descending)
                places[0, j] = j
            m = _narrow(keys[0], places[0], n, kept, ends[0], _u(width - 8))
            side = 0
            if m <= _FEW:
                _rank(keys[0], keys[1], places[0], places[1], m)
                side = 1
            else:
                ends[:] = 0
                for j in range(m):
                    key = _u(keys[0, j])
                    for d in range(digits):
                        ends[d, (key >> _u(8 * d)) & _DIGIT] += 1
                for d in range(digits):
                    shift, begins = _u(8 * d), ends[d]
                    if begins[(_u(keys[side, 0]) >> shift) & _DIGIT] == m:
                        continue
                    total = 0
                    for s in range(256):
                        here = begins[s]
                        begins[s] = total
                        total += here
                    source, target = keys[side], keys[1 - side]
                    where, there = places[side], places[1 - side]
                    for j in range(m):
                        key = source[j]
                        digit = (_u(key) >> shift) & _DIGIT
                        p = _u(begins[digit])
                        begins[digit] += 1
                        target[p], there[p] = key, where[j]
                    side = 1 - side
            found = places[side]
            for j in range(kept):
                indices[i, j, c] = found[j]
            if values.size:
                for j in range(kept):
                    values[i, j, c] = x[i, found[j], c]


@part
def _raise(
    best: Any, place: Any, row: Any, k: int, width: int, infinity: Any, largest: bool
) -> None:
    every = ~_u(0) >> _u(64 - width)
    for j in range(row.size):
        key = _key(_u(row[j]), width, infinity, False)
        if not largest:
            key = key if key == every else key ^ every
        if k == 0 or key > _u(best[j]):
            best[j], place[j] = key, k


@compiled
def extreme(
    values: Any,
    indices: Any,
    x: Any,
    infinity: int,
    largest: bool,
    first: int,
    last: int,
    begin: int,
    end: int,
) -> None:
    """``selection.search`` for bits of numbers that the processor does not compare itself.

    ``values`` or ``indices`` without elements are left alone.
    A single column is cut into lanes that are searched beside each other.
    """
    _, n, columns = x.shape
    width, infinite = x.itemsize * 8, _u(infinity)
    best, place = np.empty(_COLUMNS, x.dtype), np.empty(_COLUMNS, np.int64)
    lines = x.reshape(-1)
    for i in range(first, last):
        if columns == 1:
            line = lines[i * n : (i + 1) * n]
            for k in range((n + _LANES - 1) // _LANES):
                lane = line[k * _LANES : (k + 1) * _LANES]
                _raise(best, place, lane, k, width, infinite, largest)
            top, at = best[0], place[0] * _LANES
            for j in range(1, min(n, _LANES)):
                here = place[j] * _LANES + j
                if best[j] > top or (best[j] == top and here < at):
                    top, at = best[j], here
            if indices.size:
                indices[i, 0] = at
            if values.size:
                values[i, 0] = line[at]
            continue
        for start in range(begin, end, _COLUMNS):
            m = min(_COLUMNS, end - start)
            for k in range(n):
                row = x[i, k, start : start + m]
                _raise(best, place, row, k, width, infinite, largest)
            if indices.size:
                for j in range(m):
                    indices[i, start + j] = place[j]
            if values.size:
                for j in range(m):
                    values[i, start + j] = x[i, place[j], start + j]


@compiled
def select(
    values: Any,
    indices: Any,
    x: Any,
    keys: Any,
    places: Any,
    infinity: int,
    k: int,
    nan_wins: bool,
    first: int,
    last: int,
) -> None:
    """The element of each column that :func:`sort` puts at ``k``, and where it is.

    Digit by digit from the highest, only the keys that agree with it are kept. Of few elements all
    pairs are compared.

    Args:
        values: Bits as unsigned numbers.
        indices: int64.
        x: Bits as unsigned numbers.
        keys: (n,), as unsigned numbers of that width.
        places: (n,).
        infinity: As for :func:`sort`.
        k: From 0 on.
        nan_wins: The first NaN instead, if there is one.
        first: The first count to do, and
        last: the one after the last.
    """
    _, n, columns = x.shape
    width, infinite = x.itemsize * 8, _u(infinity)
    every = ~_u(0) >> _u(64 - width)
    counts = np.empty(256, np.int64)
    ranks, order = np.empty(_FEW, keys.dtype), np.empty(_FEW, places.dtype)
    for i in range(first, last):
        for c in range(columns):
            odd = -1
            for j in range(n):
                key = _key(_u(x[i, j, c]), width, infinite, False)
                keys[j], places[j] = key, j
                if key == every and odd < 0:
                    odd = j
            m, rank = n, k
            if n <= (_FEW if width == 64 else _FEW // 3):
                _rank(keys, ranks, places, order, n)
                m, places[0], rank = 1, order[k], 0
            for d in range(x.itemsize - 1, -1, -1):
                if m == 1:
                    break
                shift = _u(8 * d)
                counts[:] = 0
                for j in range(m):
                    counts[(_u(keys[j]) >> shift) & _DIGIT] += 1
                digit = 0
                while rank >= counts[digit]:
                    rank -= counts[digit]
                    digit += 1
                if counts[digit] == m:
                    continue
                kept, wanted = 0, _u(digit)
                for j in range(m):
                    key, place = keys[j], places[j]
                    keys[kept], places[kept] = key, place
                    kept += 1 if (_u(key) >> shift) & _DIGIT == wanted else 0
                m = kept
            at = odd if nan_wins and infinity and odd >= 0 else places[rank]
            values[i, c], indices[i, c] = x[i, at, c], at
