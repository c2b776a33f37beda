"""Attention, float32, with masks and dropout: whole blocks of rows in compiled code.

A block is some rows of one head: the product with the keys, softmax, the product with the values,
with BLAS by its address, so that no thread asks for the interpreter's lock between them. Threads
take ranges of key heads, each with room for the scores of one block. Causal attention looks at no
key behind a block's last row.

The gradient of a key head is added up over its blocks and the query heads that share it, in their
order: it does not depend on the number of threads. The gradient of a mask that several key heads
share is added up by one thread.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..common.schedule import share_units
from ..runtime import blas, threads, thresholds
from .attention import ADDED, SEEN, add_to_mask, probabilities, scores_grad, soften, sum_of_products
from .linalg.gemm import call_gemm
from .random.philox import kept_rows
from .support.jit import FUSED, compiled, part
from .support.memory import matrix_at, vector_at

_PLAIN, _TRANSPOSED = 111, 112
_ONE, _ZERO = np.float32(1), np.float32(0)
_NO_MASK = (0, 0, 0, 0, 0)


@part
def _at(x: Any, b: int, h: int, row: int) -> Any:
    # The address of a row, and elements from row to row; a single row may have any stride.
    address = x.ctypes.data + b * x.strides[0] + h * x.strides[1] + row * x.strides[2]
    return address, max(x.strides[2] // 4, x.shape[3])


@part
def _clear(at: Any, rows: int, columns: int, like: Any) -> None:
    # Fill a matrix, which is (address, step), with zeros.
    for i in range(rows):
        row = vector_at(at[0] + 4 * i * at[1], columns, like)
        for j in range(columns):
            row[j] = _ZERO


@part
def _multiply(function: int, kinds: Any, sizes: Any, a: Any, b: Any, out: Any, add: Any) -> None:
    # out = a b + add out, of (rows, columns, terms); each matrix is (address, step).
    words = (*kinds, *sizes, *a, *b, *out)
    call_gemm(function, words, _ONE, add)


@part
def _room(work: Any, rooms: int, units: int, chunks: int, start: int) -> Any:
    # That of the chunk which begins there.
    size, number = work.size // rooms, (start * chunks + units - 1) // units
    return work[number * size : (number + 1) * size]


@part
def _rows_of(mask: Any, b: int, h: int, first: int) -> Any:
    # Of a mask in words: where the rows of a head begin, bytes from row to row, its kind.
    return mask[0] + b * mask[1] + h * mask[2] + first * mask[3], mask[3], mask[4]


@part
def _keep(room: Any, dropout: Any, row: int, n: int, columns: int, keys: int) -> Any:
    # Which elements of a block dropout keeps, numbered among all scores; (0, 0) if it keeps all.
    if room.size == 0:
        return matrix_at(room.ctypes.data, 0, 0, room)
    keep = matrix_at(room.ctypes.data, n, columns, room)
    seed, counter, threshold = np.uint64(dropout[0]), np.uint64(dropout[1]), np.uint64(dropout[2])
    kept_rows(keep, seed, counter, row * keys, keys, threshold)
    return keep


@compiled(
    fastmath=FUSED,
    signature="f4:4A,f4:3C,f4:1C,b1:1C,f4:4Ar,f4:4Ar,f4:4Ar,i8x5,i8x3,f4s,f4s,b1,i8,i8,i8,i8,i8,i8",
)
def forward(
    out: Any, lse: Any, work: Any, kept: Any, query: Any, key: Any, value: Any, mask: Any,
    dropout: Any, rescale: Any, scale: Any, causal: bool, lines: int, function: int, rooms: int,
    chunks: int, start: int, stop: int,
) -> None:  # fmt: skip
    """Compute key heads ``start`` to ``stop``, counted over all examples.

    Args:
        out: (B, H, T, E), as are query, key and value with their sizes; the last dim has no gaps.
        lse: (B, H, T).
        work: ``rooms`` times room for ``lines`` rows of scores.
        kept: The same in bools, or none without dropout.
        query: Its H is a multiple of the key's.
        key: (B, G, S, D).
        value: (B, G, S, E).
        mask: Its address; bytes between examples, heads, rows (0 where it is repeated); its kind.
        dropout: Seed, counter and threshold of the draw, as signed words.
        rescale: Factor of the probabilities that dropout keeps, float32.
        scale: Of the scores, float32.
        causal: Row i looks at keys up to i.
        lines: Rows of a block.
        function: Address of BLAS's function.
        rooms: How many ``work`` has.
        chunks: Into how many ranges all key heads are cut; at most ``rooms``.
        start: The first of them.
        stop: Behind the last.
    """
    examples, key_heads, keys, size = key.shape
    heads, rows = query.shape[1], query.shape[2]
    shared = heads // key_heads
    units = examples * key_heads
    room, bools = _room(work, rooms, units, chunks, start), _room(kept, rooms, units, chunks, start)
    for unit in range(start, stop):
        b, g = unit // key_heads, unit % key_heads
        for first in range(0, rows, lines):
            n = min(lines, rows - first)
            columns = min(first + n, keys) if causal else keys
            s = matrix_at(room.ctypes.data, n, columns, room)
            scores = s.ctypes.data, columns
            for h in range(g * shared, (g + 1) * shared):
                sizes = n, columns, size
                at, other = _at(query, b, h, first), _at(key, b, g, 0)
                _multiply(function, (_PLAIN, _TRANSPOSED), sizes, at, other, scores, _ZERO)
                keep = _keep(bools, dropout, (b * heads + h) * rows + first, n, columns, keys)
                line = lse[b, h, first : first + n]
                here = _rows_of(mask, b, h, first)
                soften(s, line, keep, scale, rescale, here, first, causal)
                sizes = n, value.shape[3], columns
                at, other = _at(value, b, g, 0), _at(out, b, h, first)
                _multiply(function, (_PLAIN, _PLAIN), sizes, scores, at, other, _ZERO)


@compiled(
    fastmath=FUSED,
    signature="f4:4A,f4:4A,f4:4A,f4:1C,f4:1C,b1:1C,f4:1C,f4:4Ar,f4:4Ar,f4:4Ar,f4:4Ar,f4:4Ar,f4:3Ar,"
    "i8x5,i8x5,i8x3,f4s,f4s,b1,i8,i8,i8,i8,i8,i8",
)
def backward(
    dq: Any, dk: Any, dv: Any, work: Any, more: Any, kept: Any, sums: Any, query: Any, key: Any,
    value: Any, out: Any, grad: Any, lse: Any, mask: Any, dmask: Any, dropout: Any, rescale: Any,
    scale: Any, causal: bool, lines: int, function: int, rooms: int, chunks: int, start: int,
    stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`forward` for key heads ``start`` to ``stop``.

    Args:
        dq: As ``query``; no array has gaps in its last dim.
        dk: As ``key``.
        dv: As ``value``.
        work: ``rooms`` times room for ``lines`` rows of scores.
        more: The same again.
        kept: The same in bools, or none without dropout.
        sums: ``rooms`` times room for ``lines`` numbers.
        query: (B, H, T, D).
        key: (B, G, S, D).
        value: (B, G, S, E).
        out: What forward computed.
        grad: The gradient of it.
        lse: Likewise what forward computed.
        mask: As in :func:`forward`.
        dmask: Likewise, of the mask's gradient, which is added to; its kind is 0 if none is wanted.
        dropout: As in :func:`forward`.
        rescale: Factor of the probabilities that dropout keeps, float32.
        scale: Of the scores, float32.
        causal: Row i looks at keys up to i.
        lines: Rows of a block.
        function: Address of BLAS's function.
        rooms: How many ``work`` has.
        chunks: Into how many ranges all key heads are cut; at most ``rooms``.
        start: The first of them.
        stop: Behind the last.
    """
    examples, key_heads, keys, size = key.shape
    heads, rows, wide = query.shape[1], query.shape[2], value.shape[3]
    shared = heads // key_heads
    units = examples * key_heads
    room, other = _room(work, rooms, units, chunks, start), _room(more, rooms, units, chunks, start)
    dots, bools = _room(sums, rooms, units, chunks, start), _room(kept, rooms, units, chunks, start)
    first_scale = _ONE if dmask[4] else scale  # a mask's gradient comes before the scale
    for unit in range(start, stop):
        b, g = unit // key_heads, unit % key_heads
        at_key, at_value = _at(key, b, g, 0), _at(value, b, g, 0)
        _clear(_at(dk, b, g, 0), keys, size, dots)
        _clear(_at(dv, b, g, 0), keys, wide, dots)
        for first in range(0, rows, lines):
            n = min(lines, rows - first)
            columns = min(first + n, keys) if causal else keys
            s = matrix_at(room.ctypes.data, n, columns, room)
            t = matrix_at(other.ctypes.data, n, columns, other)
            dot = dots[:n]
            p, q = (s.ctypes.data, columns), (t.ctypes.data, columns)
            for h in range(g * shared, (g + 1) * shared):
                at_query, at_grad = _at(query, b, h, first), _at(grad, b, h, first)
                sizes = n, columns, size
                _multiply(function, (_PLAIN, _TRANSPOSED), sizes, at_query, at_key, p, _ZERO)
                keep = _keep(bools, dropout, (b * heads + h) * rows + first, n, columns, keys)
                line = lse[b, h, first : first + n]
                here = _rows_of(mask, b, h, first)
                probabilities(s, t, line, keep, scale, rescale, here, first, causal)
                weights = q if keep.size else p
                sizes, target = (columns, wide, n), _at(dv, b, g, 0)
                _multiply(function, (_TRANSPOSED, _PLAIN), sizes, weights, at_grad, target, _ONE)
                sizes = n, columns, wide
                _multiply(function, (_PLAIN, _TRANSPOSED), sizes, at_grad, at_value, q, _ZERO)
                at_out = _at(out, b, h, first)
                for i in range(n):
                    above = vector_at(at_grad[0] + 4 * i * at_grad[1], wide, dot)
                    dot[i] = sum_of_products(
                        above, vector_at(at_out[0] + 4 * i * at_out[1], wide, dot)
                    )
                scores_grad(t, s, dot, keep, first_scale, rescale)
                if dmask[4]:
                    there = _rows_of(dmask, b, h, first)
                    add_to_mask(t, scale, there[0], there[1])
                sizes, target = (n, size, columns), _at(dq, b, h, first)
                _multiply(function, (_PLAIN, _PLAIN), sizes, q, at_key, target, _ZERO)
                sizes, target = (columns, size, n), _at(dk, b, g, 0)
                _multiply(function, (_TRANSPOSED, _PLAIN), sizes, q, at_query, target, _ONE)


def rows_lie_close(array: Any) -> bool:
    """True if the rows of an array have no gaps, so that it can be used as it lies."""
    if array.ndim == 0 or array.size == 0:
        return True
    if not array.flags.aligned:
        return False
    whole = array.shape[-1] == 1 or array.strides[-1] == array.itemsize
    if array.dtype.kind == "b" or array.ndim == 1 or array.shape[-2] == 1:
        return bool(whole)
    step = array.strides[-2]
    return bool(whole and step >= array.itemsize * array.shape[-1] and step % array.itemsize == 0)


@cache
def function() -> int:
    """Address of BLAS's product of float32; 0 if it is not known."""
    return blas.gemm("f")


def mask_words(mask: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Describe a mask, or its gradient, to a kernel; it is repeated to the shape of the scores."""
    if mask is None:
        return _NO_MASK
    strides = np.broadcast_to(mask, shape).strides
    return mask.ctypes.data, *strides[:3], SEEN if mask.dtype.kind == "b" else ADDED


def dropout_words(rng: Any, p: float) -> tuple[tuple[int, int, int], Any]:
    """Describe a draw of dropout to a kernel: ``dropout`` and ``rescale`` of its arguments."""
    if not p:
        return (0, 0, 0), _ONE
    rescale = np.float32(1.0 / (1.0 - p)) if p < 1 else np.float32(np.inf)
    return (_signed(rng.seed), _signed(rng.offset), round(p * 2**32)), rescale


def _signed(word: int) -> int:
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


def run(kernel: Any, work: int, units: int, rooms: int, *arguments: Any) -> None:
    """Call a kernel of this file on ranges of its key heads, by several threads if that pays.

    Args:
        kernel: :func:`forward` or :func:`backward`.
        work: Operations of its products.
        units: Key heads, of all examples.
        rooms: How many ranges there may be at most.
        *arguments: The kernel's, up to ``lines``.
    """
    chunks = max(1, threads.workers(work, min(rooms, units), thresholds.PRODUCT))
    blas.alone(share_units, kernel, (*arguments, function(), rooms), units, chunks)
