"""The Philox counter-based random number generator: words, uniforms, normals, integers.

It is the same on every device: word ``i`` of (seed, offset) is a word of Philox 4x32-10 at counter
``offset + i // 4`` under the key ``seed``. An op that draws keeps these 16 bytes, a :class:`Rng`,
to draw the same again.

The fillers (:func:`bits`, :func:`uniform`, :func:`normal`, :func:`integers`) write into a
contiguous array of any array module, a chunk at a time. The words and the uniforms are equal bit
for bit everywhere; normals only as far as the device's logarithm and cosine agree.

Source:
    Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    Normals: Box and Muller 1958.

Not optimal: bounded integers are not rejected into exact uniformity; the bias is below 2**-30 for
ranges up to 2**34 and unmeasurable below that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import pi
from typing import Any, NamedTuple

import numpy as np

from ..kernels.cuda import random as on_gpu
from ..kernels.cuda.kernel import has_cuda
from ..spec import SCALARS, ScalarSpec

_MASK32 = 0xFFFFFFFF
MASK64 = 0xFFFFFFFFFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57  # the multipliers of Philox 4x32
_W0, _W1 = 0x9E3779B9, 0xBB67AE85  # what its key grows by in each of ten rounds
_HOST_CHUNK = 512  # counters at a time: six uint64 arrays of it stay within the first cache
_DEVICE_CHUNK = 1 << 20
_BY_HAND = 64  # words up to which Python's integers are quicker than arrays
_COMPILED_FROM = 1 << 16  # words from which loading the compiled kernel pays
_COMPILED_AFTER = 1 << 20  # words in small draws that took as long as loading it would have
_so_far = 0


class Rng(NamedTuple):
    """The start of a draw (seed, offset): an input of a random op, so that it can be repeated.

    Attributes:
        seed: The key, an unsigned 64-bit integer.
        offset: The first counter, an unsigned 64-bit integer.
    """

    seed: int
    offset: int


SCALARS[Rng] = ScalarSpec("rng", -1)  # below every category: it takes no part in promotion


# Filling arrays


def bits(xp: Any, out: Any, rng: Rng, first: int = 0) -> None:
    """Fill a contiguous uint32 array with random words ``first``, ``first + 1``, ... of a draw.

    Args:
        xp: The array module of ``out``.
        out: Any shape, uint32, contiguous.
        rng: The draw.
        first: A multiple of four.
    """
    flat = out.reshape(-1)
    n = flat.size
    counter = rng.offset + first // 4
    if _compiled(xp, n):
        from ..kernels.cpu.random import philox

        philox.bits(flat, rng.seed, counter)
        return
    if xp is not np and n and has_cuda(xp):
        on_gpu.bits(xp, flat, rng.seed, counter)
        return
    if xp is np and n <= _BY_HAND:
        listed = [w for k in range(-(-n // 4)) for w in _philox_of_one(rng.seed, counter + k)]
        flat[...] = listed[:n]
        return
    step = _HOST_CHUNK if xp is np else _DEVICE_CHUNK
    work = [xp.empty(min(step, -(-n // 4)), dtype=xp.uint64) for _ in range(6)] if n else []
    for start in range(0, n, 4 * step):
        stop = min(n, start + 4 * step)
        lanes = _philox(xp, rng.seed, counter + start // 4, -(-(stop - start) // 4), work)
        for lane in range(4):
            target = flat[start + lane : stop : 4]
            xp.copyto(target, lanes[lane][: target.size], casting="unsafe")


def _philox(xp: Any, seed: int, counter: int, n: int, work: list[Any]) -> list[Any]:
    # n counters at once; each word lives in the low half of a uint64, so that products fit.
    c0, c1, c2, c3, p0, p1 = (a[:n] for a in work)
    xp.copyto(c0, xp.arange(n, dtype=xp.uint64))
    xp.add(c0, counter & MASK64, out=c0)
    xp.right_shift(c0, 32, out=c1)
    xp.bitwise_and(c0, _MASK32, out=c0)
    c2[...] = 0
    c3[...] = 0
    k0, k1 = seed & _MASK32, seed >> 32 & _MASK32
    for _ in range(10):
        xp.multiply(c0, _M0, out=p0)
        xp.multiply(c2, _M1, out=p1)
        xp.right_shift(p1, 32, out=c0)
        xp.bitwise_xor(c0, c1, out=c0)
        xp.bitwise_xor(c0, k0, out=c0)
        xp.right_shift(p0, 32, out=c2)
        xp.bitwise_xor(c2, c3, out=c2)
        xp.bitwise_xor(c2, k1, out=c2)
        xp.bitwise_and(p1, _MASK32, out=c1)
        xp.bitwise_and(p0, _MASK32, out=c3)
        k0, k1 = (k0 + _W0) & _MASK32, (k1 + _W1) & _MASK32
    return [c0, c1, c2, c3]


def _philox_of_one(seed: int, counter: int) -> tuple[int, int, int, int]:
    # The definition, in Python's integers: quicker than arrays for a handful of words.
    c0, c1, c2, c3 = counter & _MASK32, counter >> 32 & _MASK32, 0, 0
    k0, k1 = seed & _MASK32, seed >> 32 & _MASK32
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & _MASK32, p0 >> 32 ^ c3 ^ k1, p0 & _MASK32
        k0, k1 = (k0 + _W0) & _MASK32, (k1 + _W1) & _MASK32
    return c0, c1, c2, c3


def _compiled(xp: Any, n: int) -> bool:
    # The compiled kernel gives the same words; it is only a matter of when loading it pays.
    global _so_far
    if xp is not np or n <= 8:
        return False
    if _KERNELS in sys.modules:
        return True
    _so_far += n
    return n >= _COMPILED_FROM or _so_far >= _COMPILED_AFTER


_KERNELS = __package__ + ".kernels.cpu.philox"


def words_of(dtype: Any) -> int:
    """Return the number of words per uniform or normal value of a NumPy dtype."""
    return 2 if dtype.itemsize == 8 else 1


def _chunks(xp: Any, out: Any, per: int) -> Iterator[tuple[Any, Any, int]]:
    # (part of out, uint32 array with `per` words for each element, number of the first word)
    flat = out.reshape(-1)
    n = flat.size
    step = 4 * (_HOST_CHUNK if xp is np else _DEVICE_CHUNK) // per
    words = xp.empty((min(step, n + 1)) * per, dtype=xp.uint32)
    for start in range(0, n, step):
        part = flat[start : start + step]
        yield part, words, start * per


def uniform(xp: Any, out: Any, rng: Rng) -> None:
    """Fill a contiguous array with uniform multiples of 2**-p in [0, 1), p the precision.

    Element ``i`` (in flat order) depends on ``rng`` and ``i`` only. float64 takes two words an
    element, every other type one; float16 and bfloat16 take the leading bits of the word that
    float32 takes 24 of.

    Args:
        xp: The array module of ``out``.
        out: Any shape; float16, bfloat16, float32 or float64; contiguous.
        rng: The draw.
    """
    dtype = out.dtype
    if _compiled(xp, out.size):
        from ..kernels.cpu.random import philox

        philox.uniform(out.reshape(-1), rng.seed, rng.offset, _PRECISION[dtype.name])
        return
    per = words_of(dtype)
    for part, buffer, first in _chunks(xp, out, per):
        words = buffer[: per * part.size]
        bits(xp, words, rng, first)
        if per == 2:
            low = xp.empty(part.size, dtype=xp.float64)
            _uniform_double(xp, part, words, low)
            continue
        precision = _PRECISION[dtype.name]
        xp.right_shift(words, 32 - precision, out=words)
        if precision == 24:
            xp.copyto(part, words, casting="unsafe")
            xp.multiply(part, 2.0**-24, out=part)
        else:
            wide = xp.empty(part.size, dtype=xp.float32)
            xp.copyto(wide, words, casting="unsafe")
            xp.multiply(wide, 2.0**-precision, out=wide)
            xp.copyto(part, wide, casting="unsafe")


_PRECISION = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def _uniform_double(xp: Any, out: Any, words: Any, low: Any) -> None:
    # 27 bits of one word above 26 of the next
    high_words, low_words = words[0::2], words[1::2]
    xp.right_shift(high_words, 5, out=high_words)
    xp.right_shift(low_words, 6, out=low_words)
    xp.copyto(out, high_words, casting="unsafe")
    xp.multiply(out, 67108864.0, out=out)
    xp.copyto(low, low_words, casting="unsafe")
    xp.add(out, low, out=out)
    xp.multiply(out, 2.0**-53, out=out)


def normal(xp: Any, out: Any, rng: Rng, mean: float = 0.0, std: float = 1.0) -> None:
    """Fill a contiguous floating array with standard normal values.

    Elements ``2k`` and ``2k + 1`` are a pair of Box and Muller's: a radius from the first words,
    an angle from the second. float16 and bfloat16 are rounded from the float32 values.

    Args:
        xp: The array module of ``out``.
        out: Any shape; float16, bfloat16, float32 or float64; contiguous.
        rng: The draw.
        mean: Of the values.
        std: Standard deviation, at least 0.
    """
    double = out.dtype.itemsize == 8
    per = 2 if double else 1
    if _compiled(xp, out.size * per):
        from ..kernels.cpu.random import philox

        philox.normal(out.reshape(-1), rng.seed, rng.offset, mean, std)
        return
    real = xp.float64 if double else xp.float32
    for part, buffer, first in _chunks(xp, out, per):
        n = part.size
        pairs = -(-n // 2)
        words = buffer[: 2 * pairs * per]
        bits(xp, words, rng, first)
        both = xp.empty(2 * pairs, dtype=real)
        radius, angle = xp.empty(pairs, dtype=real), xp.empty(pairs, dtype=real)
        if double:
            low = xp.empty(2 * pairs, dtype=real)
            _uniform_double(xp, both, words, low)
            xp.subtract(1.0, both[0::2], out=radius)
            xp.multiply(both[1::2], 2 * pi, out=angle)
        else:  # all 32 bits, centered: the radius reaches 6.7 and its logarithm is finite
            xp.copyto(both, words, casting="unsafe")
            xp.multiply(both[0::2], 2.0**-32, out=radius)
            xp.add(radius, 2.0**-33, out=radius)
            xp.multiply(both[1::2], 2.0**-32 * 2 * pi, out=angle)
        xp.log(radius, out=radius)
        xp.multiply(radius, -2.0, out=radius)
        xp.sqrt(radius, out=radius)
        sine, cosine = both[1::2], both[0::2]
        xp.cos(angle, out=cosine)
        xp.sin(angle, out=sine)
        xp.multiply(cosine, radius, out=cosine)
        xp.multiply(sine, radius, out=sine)
        if std != 1:
            xp.multiply(both, std, out=both)
        if mean != 0:
            xp.add(both, mean, out=both)
        xp.copyto(part, both[:n], casting="unsafe")


def integers(xp: Any, out: Any, rng: Rng, low: int, high: int) -> None:
    """Fill a contiguous array with random integers of [low, high).

    Args:
        xp: The array module of ``out``.
        out: Any shape and real dtype that holds the range; contiguous.
        rng: The draw; two words an element.
        low: The smallest.
        high: One past the largest; ``high - low`` is at most 2**64.
    """
    span = high - low
    if _compiled(xp, 2 * out.size):
        from ..kernels.cpu.random import philox

        philox.integers(out.reshape(-1), rng.seed, rng.offset, low, span)
        return
    for part, buffer, first in _chunks(xp, out, 2):
        n = part.size
        words = buffer[: 2 * n]
        bits(xp, words, rng, first)
        value, tail = xp.empty(n, dtype=xp.uint64), xp.empty(n, dtype=xp.uint64)
        xp.copyto(value, words[0::2])
        xp.copyto(tail, words[1::2])
        if span <= 1 << 32:  # the high half of a product: (value * span + tail * span >> 32) >> 32
            xp.multiply(tail, span, out=tail)
            xp.right_shift(tail, 32, out=tail)
            xp.multiply(value, span, out=value)
            xp.add(value, tail, out=value)
            xp.right_shift(value, 32, out=value)
        else:
            xp.left_shift(value, 32, out=value)
            xp.bitwise_or(value, tail, out=value)
            if span < 1 << 64:
                xp.remainder(value, span, out=value)
        xp.add(value, low & MASK64, out=value)  # wraps to the right signed value
        xp.copyto(part, value.view(xp.int64), casting="unsafe")
