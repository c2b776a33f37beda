"""Compiled margins between right and wrong classes, and their slope, an example at a time.

``wrong`` and ``right`` are one row of workspace each. The scores of the wrong classes are put side
by side, so that the loop over them, one for each right class, is a plain sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import SUMS, compiled


@compiled
def listed(target: Any, right: Any) -> Any:
    """How many classes a line names before its end; marks them. A class out of range: minus it."""
    right[:] = False
    for k in range(target.size):
        t = target[k]
        if t < 0:
            return k
        if t >= right.size:
            return -t
        right[t] = True
    return int(target.size)


@compiled(fastmath=SUMS)
def margins(out: Any, wrong: Any, right: Any, x: Any, target: Any) -> Any:
    """The mean over classes of ``max(0, 1 - x[right] + x[wrong])``; a class out of range, or 0."""
    one, zero = x.dtype.type(1), x.dtype.type(0)
    for n in range(x.shape[0]):
        line = x[n]
        count = listed(target[n], right)
        if count < 0:
            return -count
        others = 0
        for j in range(line.size):
            if not right[j]:
                wrong[others] = line[j]
                others += 1
        total = zero
        for k in range(count):
            lead = one - line[target[n, k]]
            for j in range(others):
                margin = lead + wrong[j]
                total += margin if margin > zero else zero  # NaN is left out
        out[n] = total / line.size
    return 0


@compiled(fastmath=SUMS)
def slopes(out: Any, wrong: Any, right: Any, grad: Any, x: Any, target: Any) -> Any:
    """The gradient of :func:`margins`; a class out of range, or 0."""
    one, zero = x.dtype.type(1), x.dtype.type(0)
    sums = np.empty_like(wrong)
    for n in range(x.shape[0]):
        line, slope = x[n], out[n]
        count = listed(target[n], right)
        if count < 0:
            return -count
        others = 0
        for j in range(line.size):
            if not right[j]:
                wrong[others], sums[others] = line[j], zero
                others += 1
        slope[:] = zero
        slope[:] = zero
        for k in range(count):
            lead, last = one - line[target[n, k]], zero
            for j in range(others):
                on = one if lead + wrong[j] > 0 else zero
                sums[j] += on
                last += on
            slope[target[n, k]] -= last
        others = 0
        for j in range(line.size):
            if not right[j]:
                slope[j] = sums[others]
                others += 1
        unit = grad[n] / line.size
        for j in range(line.size):
            slope[j] *= unit
    return 0
