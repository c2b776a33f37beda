"""Sums and extremes of arrays, as kernels take them: NumPy's, without what it puts around them.

``np.sum``, ``np.mean`` and ``np.max`` are Python around a ufunc's ``reduce``, and for a small array
take three times as long as that. The numbers are the same.

A large array is cut into chunks along a dim that is kept: each element of the result is
computed by one thread, in the order in which NumPy always does, so that no bit depends on their
number. A sum of everything to one number stays with one thread.
"""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np

from ..runtime import threads, thresholds
from .schedule import parallel_slices

_LINE = 16  # places along the kept dim that stay together: NumPy goes through single ones otherwise


def total(xp: Any, x: Any, axis: Any, out: Any, keepdims: bool = True) -> None:
    """Add up over ``axis`` (an int or several), in the dtype of ``out``."""
    if xp is np:
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
        _reduce(np.maximum, x, axis, out, keepdims)
    else:
        xp.max(x, axis=axis, keepdims=keepdims, out=out)


def smallest(xp: Any, x: Any, axis: Any, out: Any, keepdims: bool = True) -> None:
    """Find the smallest over ``axis``; NaN is smaller than all."""
    if xp is np:
        _reduce(np.minimum, x, axis, out, keepdims)
    else:
        # Without `out`: CuPy's min takes it for a dtype where CUB reduces.
        xp.copyto(out, xp.min(x, axis=axis, keepdims=keepdims))


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
