"""Numbers that are kept in eight bits an element, in blocks with one scale each: codes to and fro.

``kernels/formula/walks.py`` prints the loop of an optimizer with them. A block passes through the
cache once: its means are decoded, moved on, used, and encoded again. The numbers of a code are
those of ``kernels/common/dynamic_code.py``. A code is computed, not searched for: comparisons find
the decade, and within one the numbers are evenly spaced. That needs no table, so the processor does
sixteen at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.dynamic_code import DECADES, ZERO, limits, numbers
from ..support.jit import FUSED, compiled


def _decades(signed: bool) -> tuple[Any, Any, Any]:
    # Per decade: where its numbers begin, how many there are, and how many a unit would have.
    parts = np.array([2**k if signed else 2 ** (k + 1) for k in range(DECADES)], np.float64)
    first = np.cumsum([1, *parts])[:-1].astype(int)  # rank
    starts = np.array(limits(signed))[first - 1]
    slopes = parts / 0.9 * 10.0 ** np.arange(DECADES - 1, -1, -1)
    return tuple(column.astype(np.float32) for column in (starts, parts, slopes))  # type: ignore


_SIGNED, _UNSIGNED = (np.array(numbers(signed), np.float32) for signed in (True, False))
_M_STARTS, _M_PARTS, _M_SLOPES = _decades(True)
_V_STARTS, _V_PARTS, _V_SLOPES = _decades(False)
_M_LAST, _V_LAST = (np.float32(limits(signed)[-1]) for signed in (True, False))
_M_ONE, _V_ONE = (np.float32(len(limits(signed))) for signed in (True, False))  # the rank of 1
_0, _1, _2 = np.arange(3, dtype=np.float32)  # of that type, or all is computed in float64
_CENTER = np.float32(ZERO)
_SHIFT = np.float32(8 / 9)  # a decade has its parts from 1/10 on: a ninth of them would lie before


@compiled
def decode(mean: Any, codes: Any, scale: Any, signed: Any) -> None:
    """Write the numbers of a block's codes.

    Args:
        mean: Where they go, (elements of the block,), float32 or float64.
        codes: Theirs, uint8.
        scale: The largest magnitude in the block, float32.
        signed: Whether the numbers have a sign.
    """
    if signed:
        for i in range(codes.size):
            mean[i] = _SIGNED[codes[i]] * scale
    else:
        for i in range(codes.size):
            mean[i] = _UNSIGNED[codes[i]] * scale


@compiled(fastmath=FUSED)
def encode(mean: Any, row: Any, codes: Any, signed: Any) -> Any:
    """Find the codes of a block's numbers; return their scale.

    Args:
        mean: The numbers, float32 or float64.
        row: Room for as many numbers, float32.
        codes: Where the codes go.
        signed: Whether the numbers have a sign.
    """
    # Bits of magnitudes are ordered as magnitudes are, and NaN is above all.
    bits, top = row.view(np.int32), np.int32(0)
    for i in range(row.size):
        row[i] = mean[i]
    for i in range(row.size):
        top = max(top, np.int32(bits[i] & 0x7FFFFFFF))
    scale = np.int32(top).view(np.float32)
    if scale != 0:
        for i in range(row.size):
            row[i] /= scale
    if signed:
        for i in range(row.size):
            rank = _signed_rank(abs(row[i]))
            codes[i] = np.int32(_CENTER - min(rank, _CENTER) if row[i] < _0 else _CENTER + rank)
    else:
        for i in range(row.size):
            codes[i] = np.int32(_unsigned_rank(row[i]))
    return scale


@compiled(fastmath=FUSED)
def _signed_rank(y: Any) -> Any:
    """Which of the numbers with a sign has the magnitude next to y, of 0 to 1; NaN is 1."""
    slope, parts = _M_SLOPES[0], _M_PARTS[0]  # the first rank of a decade is parts
    for k in range(1, DECADES):
        if y > _M_STARTS[k]:
            slope, parts = _M_SLOPES[k], _M_PARTS[k]
    rank = min(np.floor(y * slope + parts * _SHIFT), parts + parts - _1)
    rank = rank if y <= _M_LAST else _M_ONE
    return _0 if y <= _M_STARTS[0] else rank


@compiled(fastmath=FUSED)
def _unsigned_rank(y: Any) -> Any:
    """The same without a sign; but what is above 0 stays so: no step shall divide by eps alone."""
    slope, parts = _V_SLOPES[0], _V_PARTS[0]  # the first rank of a decade is parts - 1
    for k in range(1, DECADES):
        if y > _V_STARTS[k]:
            slope, parts = _V_SLOPES[k], _V_PARTS[k]
    rank = min(np.floor(y * slope + (parts * _SHIFT - _1)), parts + parts - _2)
    rank = rank if y <= _V_LAST else _V_ONE
    return max(rank, _1) if y != _0 else _0
