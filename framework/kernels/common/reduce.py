"""Sums and extremes of arrays, as kernels take them: NumPy's, without what it puts around them.

``np.sum``, ``np.mean`` and ``np.max`` are Python around a ufunc's ``reduce``, and for a small array
take three times as long as that. The numbers are the same.

Sums of many float32 are compiled (``cpu/reduction/sums.py``). Extremes, truth and sums of integers
over short rows go on column by column, all rows at once. All else that is large is cut into chunks
along a dim that is kept. Each element of the result, or each part of one, is computed by one
thread in one order, so that no bit depends on their number.
"""

from __future__ import annotations

from functools import partial
from math import nan, prod
from typing import Any

import numpy as np

from ..runtime import threads, thresholds
from .schedule import parallel_range, parallel_rows, parallel_slices

_PART = 1 << 14  # elements of a sum of everything that one thread adds up, at least
_MOST_PARTS = 1 << 12  # of these: their sums are memory that no ledger counts
_SHORTEST = 2  # elements of a line, where lines are added up
_SHORT_ROW = 16  # elements of a row up to which columns are combined
_LONG_ROW = 32  # up to which that is faster than NumPy's own call
_FEW_ROWS = 64  # from which it pays
_LINE = 16  # places along the kept dim that stay together: NumPy goes through single ones otherwise

_float32 = np.dtype(np.float32)


def total(xp: Any, x: Any, axis: Any, out: Any, keepdims: bool = True) -> None:
    """Add up over ``axis`` (an int or several), in the dtype of ``out``."""
    if xp is np:
        large = x.size >= thresholds.COMPILED_SUM
        if out.dtype.kind in "iu" and np.can_cast(x.dtype, out.dtype):
            _of_short_rows(np.add, x, axis, out, keepdims, _SHORT_ROW)
        elif not large or not _compiled_sum(x, axis, out):
            _reduce(np.add, x, axis, out, keepdims)
    else:
        xp.sum(x, axis=axis, dtype=out.dtype, keepdims=keepdims, out=out)


def average(xp: Any, x: Any, axis: Any, out: Any, keepdims: bool = True) -> None:
    """Average over ``axis``, in the dtype of ``out``; nothing averages to NaN."""
    total(xp, x, axis, out, keepdims)
    count = 1
    for d in (axis,) if isinstance(axis, int) else axis:
        count *= x.shape[d]
    if count:
        xp.true_divide(out, count, out=out)
    else:
        out.fill(nan)


def largest(xp: Any, x: Any, axis: Any, out: Any, keepdims: bool = True) -> None:
    """Find the largest over ``axis``; NaN is larger than all."""
    if xp is np:
        _of_short_rows(np.maximum, x, axis, out, keepdims)
    else:
        xp.max(x, axis=axis, keepdims=keepdims, out=out)


def smallest(xp: Any, x: Any, axis: Any, out: Any, keepdims: bool = True) -> None:
    """Find the smallest over ``axis``; NaN is smaller than all."""
    if xp is np:
        _of_short_rows(np.minimum, x, axis, out, keepdims)
    else:
        # Without `out`: CuPy's min takes it for a dtype where CUB reduces.
        xp.copyto(out, xp.min(x, axis=axis, keepdims=keepdims))


def every(xp: Any, x: Any, axis: Any, out: Any, keepdims: bool = True) -> None:
    """Test whether all elements over ``axis`` are nonzero."""
    if xp is np and x.dtype == out.dtype == bool:
        _of_short_rows(np.logical_and, x, axis, out, keepdims)
    else:
        xp.all(x, axis=axis, keepdims=keepdims, out=out)


def some(xp: Any, x: Any, axis: Any, out: Any, keepdims: bool = True) -> None:
    """Test whether any element over ``axis`` is nonzero."""
    if xp is np and x.dtype == out.dtype == bool:
        _of_short_rows(np.logical_or, x, axis, out, keepdims)
    else:
        xp.any(x, axis=axis, keepdims=keepdims, out=out)


def _compiled_sum(x: Any, axis: Any, out: Any) -> bool:
    # Whether a compiled loop did it: of float32 without gaps, over dims that are neighbors.
    if x.dtype != _float32 or out.dtype != _float32 or not x.flags.aligned:
        return False
    from ..cpu.reduction import sums

    if not x.flags.c_contiguous:
        return not any(x.strides) and _sum_of_repeated(sums.of_rows, x, out)
    if not out.flags.c_contiguous or not out.flags.aligned:
        return False
    axes = sorted({d % x.ndim for d in ((axis,) if isinstance(axis, int) else axis)})
    if not axes:
        return False
    if axes[-1] - axes[0] != len(axes) - 1:
        return _sum_of_lines(sums.of_lines, x, axes, out)
    count = prod(x.shape[: axes[0]])
    columns = prod(x.shape[axes[-1] + 1 :])
    n = x.size // (count * columns)
    flat = out.reshape(count, columns)
    if columns > 1:
        blocks = count * -(-columns // sums.WIDE)
        parallel_range(sums.of_columns, x.size, blocks, flat, x.reshape(count, n, columns))
    elif count > 1:
        parallel_rows(sums.of_rows, x.size, count, flat.reshape(-1), x.reshape(count, n))
    else:
        part = max(_PART, n // _MOST_PARTS)
        found = np.empty(-(-n // part))
        parallel_range(sums.of_parts, n, found.size, found, x.reshape(-1), part)
        out[...] = np.add.reduce(found)
    return True


def _sum_of_repeated(of_rows: Any, x: Any, out: Any) -> bool:
    # All sums of one number that is repeated are alike, as of a gradient that a mean sends back:
    # one row is added up, in parts.
    n = x.size // out.size
    row, found = np.empty((1, min(n, _PART)), _float32), np.empty(1, _float32)
    row[...] = x[(slice(0, 1),) * x.ndim].reshape(())
    total = 0.0
    for size, count in ((_PART, n // _PART), (n % _PART, 1)):
        if size and count:
            of_rows(found, row[:, :size])
            total += count * float(found[0])
    out[...] = total
    return True


def _sum_of_lines(loop: Any, x: Any, axes: list[int], out: Any) -> bool:
    # Whether a compiled loop did it: over the last dims, and over others that are neighbors.
    last = x.ndim - 1
    while last - 1 in axes:
        last -= 1
    others = [d for d in axes if d < last]
    length = prod(x.shape[last:])
    if axes[-1] != x.ndim - 1 or length < _SHORTEST or others[-1] - others[0] != len(others) - 1:
        return False
    count, n = prod(x.shape[: others[0]]), prod(x.shape[others[0] : others[-1] + 1])
    shaped = x.reshape(count, n, -1, length)
    lines = shaped.shape[2]
    parallel_range(loop, x.size, count * lines, out.reshape(count, lines), shaped)
    return True


def _of_short_rows(
    ufunc: Any, x: Any, axis: Any, out: Any, keepdims: bool, longest: int = _LONG_ROW
) -> None:
    # Of an array whose last dims make short rows, all rows at once: NumPy takes 40 ns for a row.
    axes = {d % x.ndim for d in ((axis,) if isinstance(axis, int) else axis)} if x.ndim else ()
    kept = x.ndim - len(axes)
    n = prod(x.shape[kept:])
    if (
        axes == {*range(kept, x.ndim)}
        and 1 < n <= longest
        and x.size >= _FEW_ROWS * n
        and x.flags.c_contiguous
        and out.flags.c_contiguous
    ):
        rows, found = x.reshape(-1, n), out.reshape(-1)
        run = partial(_column_by_column, ufunc)
        parallel_slices(run, (found, rows), (0, 0), len(rows), x.size)
    else:
        _reduce(ufunc, x, axis, out, keepdims)


def _column_by_column(ufunc: Any, out: Any, x: Any) -> None:
    n = x.shape[1]
    step = thresholds.TILE // n
    half = np.empty((min(step, len(x)), n // 2), x.dtype) if n > _SHORT_ROW else None
    for start in range(0, len(x), step):
        rows, found = x[start : start + step], out[start : start + step]
        if half is not None:  # first the halves of each row with each other
            last = rows[:, n - 1]
            rows = ufunc(rows[:, : n // 2], rows[:, n // 2 : n // 2 * 2], out=half[: len(rows)])
            if n % 2:
                ufunc(rows[:, 0], last, out=rows[:, 0])
        np.copyto(found, rows[:, 0])
        for j in range(1, rows.shape[1]):
            ufunc(found, rows[:, j], out=found)


def _reduce(ufunc: Any, x: Any, axis: Any, out: Any, keepdims: bool) -> None:
    large = x.size >= thresholds.NUMPY_THREADS and x.dtype == out.dtype
    if not large or not _in_chunks(ufunc, x, axis, out, keepdims):
        ufunc.reduce(x, axis, out.dtype, out, keepdims)


def _in_chunks(ufunc: Any, x: Any, axis: Any, out: Any, keepdims: bool) -> bool:
    # Whether threads did it.
    axes = {d % x.ndim for d in ((axis,) if isinstance(axis, int) else axis)}
    kept = [d for d in range(x.ndim) if d not in axes]
    if not axes or not kept:
        return False
    dim = max(kept, key=lambda d: min(x.shape[d], 8 * _LINE))  # the first that is long enough
    if threads.workers(x.size, x.shape[dim] // _LINE) <= 1:
        return False
    place = dim if keepdims else sum(d < dim for d in kept)

    def run(out: Any, x: Any) -> None:
        ufunc.reduce(x, axis, out.dtype, out, keepdims)

    parallel_slices(run, (out, x), (place, dim), x.shape[dim], x.size, together=_LINE)
    return True
