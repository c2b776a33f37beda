"""Compiled: on which side of a bend each element lies, one bit an element, and gradients by it.

All walk tiles, from ``first`` to ``last``: 4096 elements and their 512 bytes, of which byte j has
at its bit k element ``j + k * 512``; in the last tile, of b bytes, element ``j + k * b``. So every
inner loop runs over neighbours, of elements and bytes alike, and the compiler makes vectors of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, compiled

_NONE = np.uint8(0)


@compiled
def relu(out: Any, bitmask: Any, x: Any, first: int, last: int) -> None:
    """``max(x, 0)``, and the bits of what is not at most 0."""
    for tile in range(first, last):
        here = bitmask[tile * 512 : (tile + 1) * 512]
        here[:] = _NONE
        for k in range(8):
            start = tile * 4096 + k * here.size
            source, target = x[start : start + here.size], out[start : start + here.size]
            one = np.uint8(1 << k)
            for j in range(source.size):
                v = source[j]
                on = not (v <= 0)
                target[j] = v if on else 0
                here[j] |= one if on else _NONE


@compiled(fastmath=FUSED)
def leaky_relu(out: Any, bitmask: Any, x: Any, slope: float, first: int, last: int) -> None:
    """``max(x, 0) + slope * min(x, 0)``, and the bits of what is above 0."""
    factor = x.dtype.type(slope)
    for tile in range(first, last):
        here = bitmask[tile * 512 : (tile + 1) * 512]
        here[:] = _NONE
        for k in range(8):
            start = tile * 4096 + k * here.size
            source, target = x[start : start + here.size], out[start : start + here.size]
            one = np.uint8(1 << k)
            for j in range(source.size):
                v = source[j]
                on = v > 0
                target[j] = v if on else v * factor
                here[j] |= one if on else _NONE


@compiled
def limit(
    out: Any,
    bitmask: Any,
    x: Any,
    lowest: float,
    highest: float,
    floor: float,
    ceiling: float,
    first: int,
    last: int,
) -> None:
    """``min(max(x, lowest), highest)``; bits of numbers not ``<= floor`` and not ``>= ceiling``.

    A floor or ceiling that is NaN is none.
    """
    kind = x.dtype.type
    least, most, below, above = kind(lowest), kind(highest), kind(floor), kind(ceiling)
    for tile in range(first, last):
        here = bitmask[tile * 512 : (tile + 1) * 512]
        here[:] = _NONE
        for k in range(8):
            start = tile * 4096 + k * here.size
            source, target = x[start : start + here.size], out[start : start + here.size]
            one = np.uint8(1 << k)
            for j in range(source.size):
                v = source[j]
                w = least if v < least else v
                target[j] = most if w > most else w
                here[j] |= _NONE if (v <= below) | (v >= above) | (v != v) else one


@compiled
def threshold(
    out: Any, bitmask: Any, x: Any, bound: float, value: float, first: int, last: int
) -> None:
    """``x``, or ``value`` where that is at most ``bound``, and the bits of the others."""
    end, rest = x.dtype.type(bound), x.dtype.type(value)
    for tile in range(first, last):
        here = bitmask[tile * 512 : (tile + 1) * 512]
        here[:] = _NONE
        for k in range(8):
            start = tile * 4096 + k * here.size
            source, target = x[start : start + here.size], out[start : start + here.size]
            one = np.uint8(1 << k)
            for j in range(source.size):
                v = source[j]
                on = not (v <= end)
                target[j] = v if on else rest
                here[j] |= one if on else _NONE


@compiled
def hardsigmoid(out: Any, bitmask: Any, x: Any, first: int, last: int) -> None:
    """``min(max(x + 3, 0), 6) / 6``, and the bits of results between 0 and 1."""
    kind = x.dtype.type
    zero, three, six = kind(0), kind(3), kind(6)
    for tile in range(first, last):
        here = bitmask[tile * 512 : (tile + 1) * 512]
        here[:] = _NONE
        for k in range(8):
            start = tile * 4096 + k * here.size
            source, target = x[start : start + here.size], out[start : start + here.size]
            one = np.uint8(1 << k)
            for j in range(source.size):
                v = source[j] + three
                v = zero if v < zero else v
                v = (six if v > six else v) / six
                target[j] = v
                here[j] |= one if (v > 0) & (v < 1) else _NONE


@compiled
def absolute_error(out: Any, above: Any, apart: Any, x: Any, y: Any, first: int, last: int) -> None:
    """``|x - y|``, and the bits of ``x > y`` and of ``x != y``."""
    for tile in range(first, last):
        here, there = above[tile * 512 : (tile + 1) * 512], apart[tile * 512 : (tile + 1) * 512]
        here[:] = _NONE
        there[:] = _NONE
        for k in range(8):
            start = tile * 4096 + k * here.size
            a, b = x[start : start + here.size], y[start : start + here.size]
            target = out[start : start + here.size]
            one = np.uint8(1 << k)
            for j in range(a.size):
                d = a[j] - b[j]
                target[j] = abs(d)
                here[j] |= _NONE if d <= 0 else one
                there[j] |= _NONE if d == 0 else one


@compiled
def choose(
    out: Any, grad: Any, bitmask: Any, inside: float, outside: float, first: int, last: int
) -> None:
    """``inside * grad`` where the bit is set; else ``outside * grad``, or 0 where that is 0.

    ``grad`` may have one element, for all.
    """
    factor, other = grad.dtype.type(inside), grad.dtype.type(outside)
    nothing = grad.dtype.type(0)
    for tile in range(first, last):
        here = bitmask[tile * 512 : (tile + 1) * 512]
        for k in range(8):
            start = tile * 4096 + k * here.size
            target = out[start : start + here.size]
            one = np.uint8(1 << k)
            if grad.size == 1:
                high = grad[0] * factor
                low = nothing if other == 0 else grad[0] * other
                for j in range(target.size):
                    target[j] = high if here[j] & one else low
                continue
            source = grad[start : start + here.size]
            if other == 0:
                for j in range(source.size):
                    target[j] = source[j] * factor if here[j] & one else nothing
            else:
                for j in range(source.size):
                    target[j] = source[j] * (factor if here[j] & one else other)


@compiled
def signs(out: Any, grad: Any, above: Any, apart: Any, first: int, last: int) -> None:
    """``grad`` where both bits are set, ``-grad`` where only ``apart`` is, else 0.

    ``grad`` may have one element, for all.
    """
    nothing = grad.dtype.type(0)
    for tile in range(first, last):
        here, there = above[tile * 512 : (tile + 1) * 512], apart[tile * 512 : (tile + 1) * 512]
        for k in range(8):
            start = tile * 4096 + k * here.size
            target = out[start : start + here.size]
            one = np.uint8(1 << k)
            if grad.size == 1:
                g = grad[0]
                for j in range(target.size):
                    v = g if here[j] & one else -g
                    target[j] = v if there[j] & one else nothing
            else:
                source = grad[start : start + here.size]
                for j in range(target.size):
                    v = source[j] if here[j] & one else -source[j]
                    target[j] = v if there[j] & one else nothing
