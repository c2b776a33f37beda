"""Philox 4x32-10 compiled for the CPU: the same words as ``framework.stream.bits``, 20x faster.

:func:`philox4` is there for other kernels to inline, such as dropout. Normals are made of NumPy's
logarithm, sine and cosine between two loops of ours, so that their values do not depend on which of
the two forms drew them.
"""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np

from ..support.jit import compiled, inlined

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_ZERO, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)
_SCALE32, _HALF_STEP = np.float32(2.0**-32), np.float32(2.0**-33)
_TURN32, _TURN = np.float32(2.0**-32 * 2 * pi), 2 * pi
_TOP = np.uint64(1 << 63)
_DIGIT = np.uint64(9)


@inlined
def philox4(seed: Any, counter: Any) -> Any:
    """The four words of a counter under a seed (both uint64), each in a uint64."""
    c0, c1, c2, c3 = counter & _LOW, counter >> _32, _ZERO, _ZERO
    k0, k1 = seed & _LOW, seed >> _32
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0 = (p1 >> _32) ^ c1 ^ k0
        c2 = (p0 >> _32) ^ c3 ^ k1
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@compiled
def _bits(out: Any, seed: Any, counter: Any) -> None:
    n = out.size
    whole = n // 4
    for i in range(whole):
        a, b, c, d = philox4(seed, counter + np.uint64(i))
        out[4 * i] = a
        out[4 * i + 1] = b
        out[4 * i + 2] = c
        out[4 * i + 3] = d
    if 4 * whole < n:
        last = philox4(seed, counter + np.uint64(whole))
        for lane in range(n - 4 * whole):
            out[4 * whole + lane] = last[lane]


@compiled
def _uniform32(out: Any, seed: Any, counter: Any, shift: Any, scale: Any) -> None:
    n = out.size
    whole = n // 4
    for i in range(whole):
        a, b, c, d = philox4(seed, counter + np.uint64(i))
        out[4 * i] = np.float32(np.uint32(a >> shift)) * scale
        out[4 * i + 1] = np.float32(np.uint32(b >> shift)) * scale
        out[4 * i + 2] = np.float32(np.uint32(c >> shift)) * scale
        out[4 * i + 3] = np.float32(np.uint32(d >> shift)) * scale
    if 4 * whole < n:
        last = philox4(seed, counter + np.uint64(whole))
        for lane in range(n - 4 * whole):
            out[4 * whole + lane] = np.float32(np.uint32(last[lane] >> shift)) * scale


@inlined
def _double(high: Any, low: Any) -> Any:
    return (
        np.float64(high >> np.uint64(5)) * 67108864.0 + np.float64(low >> np.uint64(6))
    ) * 2.0**-53


@compiled
def _uniform64(out: Any, seed: Any, counter: Any) -> None:
    n = out.size
    whole = n // 2
    for i in range(whole):
        a, b, c, d = philox4(seed, counter + np.uint64(i))
        out[2 * i] = _double(a, b)
        out[2 * i + 1] = _double(c, d)
    if 2 * whole < n:
        a, b, _, _ = philox4(seed, counter + np.uint64(whole))
        out[n - 1] = _double(a, b)


@compiled
def _polar32(radius: Any, angle: Any, seed: Any, counter: Any) -> None:
    # The logarithm's argument and the angle of each pair of normals.
    n = radius.size
    for i in range(n // 2):
        a, b, c, d = philox4(seed, counter + np.uint64(i))
        radius[2 * i] = np.float32(np.uint32(a)) * _SCALE32 + _HALF_STEP
        radius[2 * i + 1] = np.float32(np.uint32(c)) * _SCALE32 + _HALF_STEP
        angle[2 * i] = np.float32(np.uint32(b)) * _TURN32
        angle[2 * i + 1] = np.float32(np.uint32(d)) * _TURN32
    if n % 2:
        a, b, _, _ = philox4(seed, counter + np.uint64(n // 2))
        radius[n - 1] = np.float32(np.uint32(a)) * _SCALE32 + _HALF_STEP
        angle[n - 1] = np.float32(np.uint32(b)) * _TURN32


@compiled
def _polar64(radius: Any, angle: Any, seed: Any, counter: Any) -> None:
    for i in range(radius.size):
        a, b, c, d = philox4(seed, counter + np.uint64(i))
        radius[i] = 1.0 - _double(a, b)
        angle[i] = _double(c, d) * _TURN


@compiled
def _pairs(out: Any, logs: Any, cosine: Any, sine: Any, mean: Any, std: Any) -> None:
    # Each product and sum rounds by itself, as NumPy's do.
    minus_two = out.dtype.type(-2)
    shifted = mean != 0  # adding a zero would change the sign of another
    for i in range(out.size // 2):
        radius = np.sqrt(logs[i] * minus_two)
        a, b = cosine[i] * radius * std, sine[i] * radius * std
        out[2 * i] = a + mean if shifted else a
        out[2 * i + 1] = b + mean if shifted else b
    if out.size % 2:
        a = cosine[logs.size - 1] * np.sqrt(logs[logs.size - 1] * minus_two) * std
        out[out.size - 1] = a + mean if shifted else a


@compiled
def _integers(out: Any, seed: Any, counter: Any, low: Any, span: Any) -> None:
    # The high half of the product with a span of up to 2**32.
    n = out.size
    for i in range(n // 2):
        a, b, c, d = philox4(seed, counter + np.uint64(i))
        out[2 * i] = np.int64(((a * span + (b * span >> _32)) >> _32) + low)
        out[2 * i + 1] = np.int64(((c * span + (d * span >> _32)) >> _32) + low)
    if n % 2:
        a, b, _, _ = philox4(seed, counter + np.uint64(n // 2))
        out[n - 1] = np.int64(((a * span + (b * span >> _32)) >> _32) + low)


@compiled
def _wide_integers(out: Any, seed: Any, counter: Any, low: Any, span: Any) -> None:
    # The remainder of 64 bits; a span of 0 is one of 2**64.
    for i in range(out.size):
        words = philox4(seed, counter + np.uint64(i // 2))
        a, b = (words[2], words[3]) if i % 2 else (words[0], words[1])
        value = (a << _32) | b
        out[i] = np.int64((value % span if span else value) + low)


@compiled
def _order(
    out: Any, keys: Any, seed: Any, counter: Any, low: Any, stops: Any, shift: Any, ends: Any
) -> None:
    n = keys.size
    stops[:] = 0
    for i in range(n):
        keys[i] = ((keys[i] ^ _TOP) & ~low) | np.uint64(i)  # its place in its low bits
        stops[keys[i] >> shift] += 1
    total = 0
    for k in range(stops.size):
        total, stops[k] = total + stops[k], total
    for i in range(n):
        k = keys[i] >> shift
        out[stops[k]] = keys[i]
        stops[k] += 1
    start = 0
    for k in range(stops.size):
        stop = stops[k]
        _order_bucket(out[start:stop], keys[start:stop], seed, counter, low, shift, ends)
        start = stop


@compiled
def _order_bucket(
    keys: Any, other: Any, seed: Any, counter: Any, low: Any, shift: Any, ends: Any
) -> None:
    # By two digits, from the lower one on; that leaves few out of order.
    first, second = shift - _DIGIT, shift - _DIGIT - _DIGIT
    inside = np.uint64(ends.shape[1] - 1)
    ends[:] = 0
    for i in range(keys.size):
        ends[0, (keys[i] >> first) & inside] += 1
        ends[1, (keys[i] >> second) & inside] += 1
    for d in range(2):
        total = 0
        for k in range(ends.shape[1]):
            total, ends[d, k] = total + ends[d, k], total
    for i in range(keys.size):
        k = (keys[i] >> second) & inside
        other[ends[1, k]] = keys[i]
        ends[1, k] += 1
    for i in range(keys.size):
        k = (other[i] >> first) & inside
        keys[ends[0, k]] = other[i]
        ends[0, k] += 1
    for i in range(1, keys.size):
        key = keys[i]
        j = i
        while j > 0 and keys[j - 1] | low >= key:
            lost = (keys[j - 1] ^ key) & ~low == _ZERO  # the bits that tell them apart
            if lost and not _after(keys[j - 1] & low, key & low, seed, counter):
                break
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key
    for i in range(keys.size):
        keys[i] &= low


@compiled
def _after(i: Any, j: Any, seed: Any, counter: Any) -> Any:
    # Whether key i comes after key j; both are drawn again.
    a, b = philox4(seed, counter + i // _TWO), philox4(seed, counter + j // _TWO)
    x = (a[3] << _32 | a[2]) if i % _TWO else (a[1] << _32 | a[0])
    y = (b[3] << _32 | b[2]) if j % _TWO else (b[1] << _32 | b[0])
    x, y = x ^ _TOP, y ^ _TOP
    return x > y or (x == y and i > j)


def bits(out: Any, seed: int, counter: int) -> None:
    """Fill a contiguous 1-d uint32 array with the words from a counter on."""
    _bits(out, np.uint64(seed), np.uint64(counter & 0xFFFFFFFFFFFFFFFF))


def uniform(out: Any, seed: int, counter: int, precision: int) -> None:
    """Fill a contiguous 1-d floating array with multiples of ``2**-precision`` in [0, 1)."""
    key = np.uint64(seed)
    if out.dtype.itemsize == 8:
        _uniform64(out, key, np.uint64(counter & 0xFFFFFFFFFFFFFFFF))
        return
    shift, scale = np.uint64(32 - precision), np.float32(2.0**-precision)
    if out.dtype == np.float32:
        _uniform32(out, key, np.uint64(counter & 0xFFFFFFFFFFFFFFFF), shift, scale)
        return
    wide = np.empty(min(_TILE_BYTES // 4, out.size), np.float32)
    for first in range(0, out.size, _TILE_BYTES // 4):
        tile = out[first : first + _TILE_BYTES // 4]
        start = np.uint64(counter + first // 4 & 0xFFFFFFFFFFFFFFFF)
        _uniform32(wide[: tile.size], key, start, shift, scale)
        np.copyto(tile, wide[: tile.size], casting="unsafe")


_TILE_BYTES = 1 << 14  # of a buffer


def normal(out: Any, seed: int, counter: int, mean: float, std: float) -> None:
    """Fill a contiguous 1-d floating array with normals."""
    real = np.float64 if out.dtype.itemsize == 8 else np.float32
    pairs = -(-out.size // 2)
    step = max(1, min(_TILE_BYTES // real().itemsize, pairs))
    work = np.empty((3, step), real)
    wide = None if out.dtype == real else np.empty(2 * step, real)
    key, center, scale = np.uint64(seed), real(mean), real(std)
    polar, per = (_polar64, 1) if real is np.float64 else (_polar32, 2)  # pairs of a counter
    for first in range(0, pairs, step):
        tile = out[2 * first : 2 * (first + step)]
        logs, cosine, sine = work[:, : -(-tile.size // 2)]
        polar(logs, sine, key, np.uint64(counter + first // per & 0xFFFFFFFFFFFFFFFF))
        np.log(logs, out=logs)
        np.cos(sine, out=cosine)
        np.sin(sine, out=sine)
        both = tile if wide is None else wide[: tile.size]
        _pairs(both, logs, cosine, sine, center, scale)
        if wide is not None:
            np.copyto(tile, both, casting="unsafe")


def integers(out: Any, seed: int, counter: int, low: int, span: int) -> None:
    """Fill a contiguous 1-d array with integers of ``low .. low + span - 1``, two words each."""
    run = _integers if span <= 1 << 32 else _wide_integers
    key, least = np.uint64(seed), np.uint64(low & 0xFFFFFFFFFFFFFFFF)
    width = np.uint64(span & 0xFFFFFFFFFFFFFFFF)
    if out.dtype == np.int64:
        run(out, key, np.uint64(counter & 0xFFFFFFFFFFFFFFFF), least, width)
        return
    wide = np.empty(min(_TILE_BYTES // 8, out.size), np.int64)
    for first in range(0, out.size, _TILE_BYTES // 8):
        tile = out[first : first + _TILE_BYTES // 8]
        start = np.uint64(counter + first // 2 & 0xFFFFFFFFFFFFFFFF)
        run(wide[: tile.size], key, start, least, width)
        np.copyto(tile, wide[: tile.size], casting="unsafe")


def order(out: Any, keys: Any, seed: int, counter: int, lost: int = 0) -> None:
    """Find the order of random keys: buckets of a few thousand first, and then each bucket's.

    A key carries its place in its low bits. Where these would decide, it is drawn again.

    Args:
        out: (n,), int64.
        keys: (n,), int64, as :func:`bits` draws them; changed.
        seed: Of the draw.
        counter: Its first.
        lost: Low bits to use at least.
    """
    places = max(1, (out.size - 1).bit_length())
    spread = max(1, places - 13)  # the bits that tell buckets of up to 2**13 keys apart
    stops, ends = np.empty(1 << spread, np.int64), np.empty((2, 1 << int(_DIGIT)), np.int32)
    start = np.uint64(counter & 0xFFFFFFFFFFFFFFFF)
    low, shift = np.uint64((1 << max(places, lost)) - 1), np.uint64(64 - spread)
    numbers = out.view(np.uint64), keys.view(np.uint64)
    _order(*numbers, np.uint64(seed), start, low, stops, shift, ends)


@compiled
def kept_rows(out: Any, seed: Any, counter: Any, first: int, step: int, threshold: Any) -> None:
    """Whether words are at least ``threshold``; row ``i`` begins at word ``first + i * step``."""
    rows, columns = out.shape
    for i in range(rows):
        start = first + i * step
        before = min(-start % 4, columns)  # words of a counter that the row before has begun
        whole = (columns - before) // 4
        _kept_part(out[i, :before], seed, counter, start, threshold)
        _kept_whole(out[i, before : before + 4 * whole], seed, counter, start + before, threshold)
        behind = before + 4 * whole
        _kept_part(out[i, behind:], seed, counter, start + behind, threshold)


@compiled
def _kept_whole(out: Any, seed: Any, counter: Any, start: int, threshold: Any) -> None:
    base = counter + np.uint64(start // 4)
    for k in range(out.size // 4):
        a, b, c, d = philox4(seed, base + np.uint64(k))
        out[4 * k] = a >= threshold
        out[4 * k + 1] = b >= threshold
        out[4 * k + 2] = c >= threshold
        out[4 * k + 3] = d >= threshold


@compiled
def _kept_part(out: Any, seed: Any, counter: Any, start: int, threshold: Any) -> None:
    # At most three words of one counter.
    if out.size:
        words = philox4(seed, counter + np.uint64(start // 4))
        for j in range(out.size):
            out[j] = words[start % 4 + j] >= threshold


def kept(out: Any, seed: int, counter: int, first: int, step: int, threshold: int) -> None:
    """Fill a (rows, columns) array of bool with which elements of a mask dropout keeps."""
    start = np.uint64(counter & 0xFFFFFFFFFFFFFFFF)
    kept_rows(out, np.uint64(seed), start, first, step, np.uint64(threshold))
