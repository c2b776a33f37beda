"""Compiled dropout: words are drawn, compared and used while they are in the first cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.schedule import parallel_range
from ..support.jit import compiled
from .philox import philox4

_AT_ONCE = 256  # counters, of four words each


def dropout(
    out: Any,
    x: Any,
    seed: int,
    counter: int,
    threshold: int,
    scale: float,
    shift: float,
    value: float,
    together: bool = False,
) -> None:
    """``x * scale + shift`` where a word is at least ``threshold``, else ``value``.

    Args:
        out: Flat; word ``i`` of the draw decides on element ``i``.
        x: Flat, of the same dtype; may be ``out``.
        seed: Of the draw.
        counter: Where it begins.
        threshold: 0 to 2**32.
        scale: A number.
        shift: A number.
        value: 0 stands for ``0 * (x * scale + shift)``, which is nan where that is not finite.
        together: In this thread alone; the caller has divided the work.
    """
    kind = x.dtype.type
    least = np.uint32(min(threshold, 0xFFFFFFFF))
    numbers = kind(scale), kind(shift), kind(value), shift != 0, value != 0
    begin, none = np.uint64(counter & 0xFFFFFFFFFFFFFFFF), threshold >> 32 > 0

    arguments = out, x, np.uint64(seed), begin, least, none, *numbers
    tiles = -(-x.size // (4 * _AT_ONCE))
    if together:
        _dropout(*arguments, 0, tiles)
    else:
        parallel_range(_dropout, 4 * x.size, tiles, *arguments)


@compiled(overlaps=False)
def _dropout(
    out: Any, x: Any, seed: Any, counter: Any, least: Any, none: Any, scale: Any, shift: Any,
    value: Any, shifted: Any, valued: Any, start: int, stop: int,
) -> None:  # fmt: skip
    # For tiles start:stop of 4 * _AT_ONCE elements.
    words = np.empty(4 * _AT_ONCE, np.uint32)
    zero, one = scale * 0, scale * 0 + 1
    for tile in range(start, stop):
        begin = tile * 4 * _AT_ONCE
        count = min(4 * _AT_ONCE, x.size - begin)
        first = counter + np.uint64(tile * _AT_ONCE)
        for i in range(_AT_ONCE):
            a, b, c, d = philox4(seed, first + np.uint64(i))
            words[4 * i] = a
            words[4 * i + 1] = b
            words[4 * i + 2] = c
            words[4 * i + 3] = d
        here, there = out[begin : begin + count], x[begin : begin + count]
        if shifted:
            for j in range(count):
                here[j] = there[j] * scale + shift
        else:
            for j in range(count):
                here[j] = there[j] * scale
        if none:
            for j in range(count):
                here[j] = value if valued else here[j] * zero
        elif valued:
            for j in range(count):
                here[j] = here[j] if words[j] >= least else value
        else:
            for j in range(count):
                here[j] *= one if words[j] >= least else zero
