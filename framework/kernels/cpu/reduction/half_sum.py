"""Compiled sums of float16 and bfloat16 in float32: each number is widened as it is read.

Sums are of tiles, and then of those sums, so that an error does not grow with their number. Types
as in ``kernels/cpu/elementwise/copy.py``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..elementwise.copy import widened
from ..support.jit import SUMS, compiled

_ZERO = np.float32(0)


@cache
def columns(x: Any) -> Any:
    """``columns(out, x)``: add up the second of the three dims of an array of this dtype."""
    return compiled(_columns, signature=f"f4:2C,{x.kind}{x.itemsize}:3Cr")


@cache
def rows(x: Any) -> Any:
    """``rows(out, x)``: add up the last of the two dims."""
    return compiled(_rows, signature=f"f4:1C,{x.kind}{x.itemsize}:2Cr", fastmath=SUMS)


def _columns(out: Any, x: Any) -> None:
    outer, n, inner = x.shape
    subtotals = np.empty(1024, np.float32)
    for o in range(outer):
        for start in range(0, inner, 1024):
            width = min(1024, inner - start)
            sums = out[o, start : start + width]
            for j in range(width):
                sums[j] = _ZERO
            for first in range(0, n, 64):
                for j in range(width):
                    subtotals[j] = _ZERO
                for i in range(first, min(first + 64, n)):
                    row = x[o, i, start : start + width]
                    for j in range(width):
                        subtotals[j] += widened(row[j])
                for j in range(width):
                    sums[j] += subtotals[j]


def _rows(out: Any, x: Any) -> None:
    n = x.shape[1]
    for o in range(x.shape[0]):
        total = 0.0
        for first in range(0, n, 1024):
            tile = x[o, first : min(first + 1024, n)]
            subtotal: Any = _ZERO
            for i in range(tile.size):
                subtotal += widened(tile[i])
            total += subtotal
        out[o] = total
