"""Compiled Adam whose two means are kept in eight bits an element, in blocks with one scale each.

A block passes through the cache once: its means are decoded, moved on, used, and encoded again, so
no mean is ever decoded completely. The numbers of a code are those of
``kernels/common/dynamic_code.py``. A code is computed, not searched for: comparisons find the
decade, and within one the numbers are evenly spaced. That needs no table, so the processor does
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


@compiled(fastmath=FUSED)
def adam(
    p: Any, g: Any, m_codes: Any, v_codes: Any, m_scales: Any, v_scales: Any, sign: Any,
    decay: Any, keep: Any, b1: Any, a1: Any, b2: Any, a2: Any, root: Any, eps: Any, rate: Any,
) -> None:  # fmt: skip
    """Adam, AdamW: ``p = keep p - rate m / (root sqrt(v) + eps)`` with the new means m and v.

    Args:
        p: Parameter, (blocks, elements of a block), float32 or float64.
        g: Gradient, the same.
        m_codes: Means of the gradient, the same shape, uint8.
        v_codes: Means of its square.
        m_scales: The largest magnitude in a block of m, (blocks,), float32.
        v_scales: Of v.
        sign: -1 to maximize.
        decay: L2 penalty.
        keep: Factor of decoupled decay.
        b1: Decay of m; ``a1`` is 1 - b1.
        a1: As said.
        b2: Decay of v; ``a2`` is 1 - b2.
        a2: As said.
        root: Correction of the root.
        eps: Added to the denominator.
        rate: Corrected rate.
    """
    blocks, n = p.shape
    m, v = np.empty(n, np.float32), np.empty(n, np.float32)
    m_bits, v_bits = m.view(np.int32), v.view(np.int32)
    for b in range(blocks):
        m_scale, v_scale = m_scales[b], v_scales[b]
        for i in range(n):
            x = p[b, i]
            d = sign * g[b, i] + decay * x if decay != 0 else sign * g[b, i]
            first = _SIGNED[m_codes[b, i]] * m_scale * b1 + a1 * d
            second = _UNSIGNED[v_codes[b, i]] * v_scale * b2 + a2 * d * d
            m[i] = first
            v[i] = second
            p[b, i] = x * keep - rate * (first / (np.sqrt(second) * root + eps))
        # Bits of magnitudes are ordered as magnitudes are, and NaN is above all.
        m_top, v_top = np.int32(0), np.int32(0)
        for i in range(n):
            m_top = max(m_top, np.int32(m_bits[i] & 0x7FFFFFFF))
            v_top = max(v_top, np.int32(v_bits[i] & 0x7FFFFFFF))
        m_scales[b] = m_scale = np.int32(m_top).view(np.float32)
        v_scales[b] = v_scale = np.int32(v_top).view(np.float32)
        if m_scale != 0:
            for i in range(n):
                m[i] /= m_scale
        if v_scale != 0:
            for i in range(n):
                v[i] /= v_scale
        for i in range(n):
            rank = _signed_rank(abs(m[i]))
            m_codes[b, i] = np.int32(_CENTER - min(rank, _CENTER) if m[i] < _0 else _CENTER + rank)
        for i in range(n):
            v_codes[b, i] = np.int32(_unsigned_rank(v[i]))


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
