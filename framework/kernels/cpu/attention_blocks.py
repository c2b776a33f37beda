"""Attention without dropout and masks, float32: whole blocks of rows in compiled code.

A block is some rows of one head: the product with the keys, softmax, the product with the values,
with BLAS by its address, so that no thread asks for the interpreter's lock between them. Threads
take ranges of key heads, each with room for the scores of one block. Causal attention looks at no
key behind a block's last row.

The gradient of a key head is added up over its blocks and the query heads that share it, in their
order: it does not depend on the number of threads.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..runtime import blas, threads, thresholds
from .attention import probabilities, scores_grad, soften
from .linalg.gemm import NAMES, call_gemm
from .support import work_pool
from .support.jit import FUSED, compiled, part

_PLAIN, _TRANSPOSED = 111, 112
_ONE, _ZERO = np.float32(1), np.float32(0)
NOTHING = np.empty((0, 0), np.bool_)  # in place of what dropout keeps


@part
def _address(x: Any, b: int, h: int, row: int) -> Any:
    return x.ctypes.data + b * x.strides[0] + h * x.strides[1] + row * x.strides[2]


@part
def _step(x: Any) -> Any:
    # Elements from row to row; a single row may have any stride.
    return max(x.strides[2] // 4, x.shape[3])


@part
def _room(work: Any, rooms: int, units: int, chunks: int, start: int) -> Any:
    # That of the chunk which begins there.
    size, number = work.size // rooms, (start * chunks + units - 1) // units
    return work[number * size : (number + 1) * size]


@compiled(fastmath=FUSED)
def forward(
    out: Any, lse: Any, work: Any, query: Any, key: Any, value: Any, nothing: Any, scale: Any,
    causal: bool, lines: int, function: int, rooms: int, chunks: int, start: int, stop: int,
) -> None:  # fmt: skip
    """Compute key heads ``start`` to ``stop``, counted over all examples.

    Args:
        out: (B, H, T, E), as are query, key and value with their sizes; the last dim has no gaps.
        lse: (B, H, T).
        work: ``rooms`` times room for ``lines`` rows of scores.
        query: Its H is a multiple of the key's.
        key: (B, G, S, D).
        value: (B, G, S, E).
        nothing: A bool array without elements.
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
    rows = query.shape[2]
    shared = query.shape[1] // key_heads
    room = _room(work, rooms, examples * key_heads, chunks, start)
    for unit in range(start, stop):
        b, g = unit // key_heads, unit % key_heads
        for first in range(0, rows, lines):
            n = min(lines, rows - first)
            columns = min(first + n, keys) if causal else keys
            s = room[: n * columns]
            for h in range(g * shared, (g + 1) * shared):
                sizes = (
                    _PLAIN,
                    _TRANSPOSED,
                    n,
                    columns,
                    size,
                    _address(query, b, h, first),
                    _step(query),
                    _address(key, b, g, 0),
                    _step(key),
                    s.ctypes.data,
                    columns,
                )
                call_gemm(function, sizes, _ONE, _ZERO)
                line = lse[b, h, first : first + n]
                soften(s.reshape(n, columns), line, nothing, scale, first, n, causal, _ONE)
                sizes = (
                    _PLAIN,
                    _PLAIN,
                    n,
                    value.shape[3],
                    columns,
                    s.ctypes.data,
                    columns,
                    _address(value, b, g, 0),
                    _step(value),
                    _address(out, b, h, first),
                    _step(out),
                )
                call_gemm(function, sizes, _ONE, _ZERO)


@compiled(fastmath=FUSED)
def backward(
    dq: Any, dk: Any, dv: Any, work: Any, more: Any, sums: Any, query: Any, key: Any, value: Any,
    out: Any, grad: Any, lse: Any, nothing: Any, scale: Any, causal: bool, lines: int,
    function: int, rooms: int, chunks: int, start: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`forward` for key heads ``start`` to ``stop``.

    Args:
        dq: As ``query``; no array has gaps in its last dim.
        dk: As ``key``.
        dv: As ``value``.
        work: ``rooms`` times room for ``lines`` rows of scores.
        more: The same again.
        sums: ``rooms`` times room for ``lines`` numbers.
        query: (B, H, T, D).
        key: (B, G, S, D).
        value: (B, G, S, E).
        out: What forward computed.
        grad: The gradient of it.
        lse: Likewise what forward computed.
        nothing: A bool array without elements.
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
    rows, wide = query.shape[2], value.shape[3]
    shared = query.shape[1] // key_heads
    units = examples * key_heads
    room, other = _room(work, rooms, units, chunks, start), _room(more, rooms, units, chunks, start)
    dots = _room(sums, rooms, units, chunks, start)
    for unit in range(start, stop):
        b, g = unit // key_heads, unit % key_heads
        dk[b, g, :, :] = _ZERO
        dv[b, g, :, :] = _ZERO
        for first in range(0, rows, lines):
            n = min(lines, rows - first)
            columns = min(first + n, keys) if causal else keys
            s, t, dot = room[: n * columns], other[: n * columns], dots[:n]
            p, q = s.ctypes.data, t.ctypes.data
            for h in range(g * shared, (g + 1) * shared):
                at_query, at_grad = _address(query, b, h, first), _address(grad, b, h, first)
                at_key, at_value = _address(key, b, g, 0), _address(value, b, g, 0)
                sizes = (
                    _PLAIN,
                    _TRANSPOSED,
                    n,
                    columns,
                    size,
                    at_query,
                    _step(query),
                    at_key,
                    _step(key),
                    p,
                    columns,
                )
                call_gemm(function, sizes, _ONE, _ZERO)
                squares, slopes = s.reshape(n, columns), t.reshape(n, columns)
                line = lse[b, h, first : first + n]
                probabilities(squares, slopes, line, nothing, scale, first, n, causal, _ONE)
                sizes = (
                    _TRANSPOSED,
                    _PLAIN,
                    columns,
                    wide,
                    n,
                    p,
                    columns,
                    at_grad,
                    _step(grad),
                    _address(dv, b, g, 0),
                    _step(dv),
                )
                call_gemm(function, sizes, _ONE, _ONE)
                sizes = (
                    _PLAIN,
                    _TRANSPOSED,
                    n,
                    columns,
                    wide,
                    at_grad,
                    _step(grad),
                    at_value,
                    _step(value),
                    q,
                    columns,
                )
                call_gemm(function, sizes, _ONE, _ZERO)
                for i in range(n):
                    above, result = grad[b, h, first + i], out[b, h, first + i]
                    total = _ZERO
                    for e in range(wide):
                        total += above[e] * result[e]
                    dot[i] = total
                scores_grad(slopes, squares, dot, nothing, scale, _ONE)
                sizes = (
                    _PLAIN,
                    _PLAIN,
                    n,
                    size,
                    columns,
                    q,
                    columns,
                    at_key,
                    _step(key),
                    _address(dq, b, h, first),
                    _step(dq),
                )
                call_gemm(function, sizes, _ONE, _ZERO)
                sizes = (
                    _TRANSPOSED,
                    _PLAIN,
                    columns,
                    size,
                    n,
                    q,
                    columns,
                    at_query,
                    _step(query),
                    _address(dk, b, g, 0),
                    _step(dk),
                )
                call_gemm(function, sizes, _ONE, _ONE)


def takes(*arrays: Any) -> bool:
    """True if BLAS can be called by its address, and takes such arrays of four dims as they lie."""
    return function() != 0 and all(
        a.shape[3] > 0
        and (a.strides[3] == 4 or a.shape[3] == 1)
        and (a.shape[2] == 1 or (a.strides[2] % 4 == 0 and a.strides[2] >= 4 * a.shape[3]))
        for a in arrays
    )


@cache
def function() -> int:
    """Address of BLAS's product of float32; 0 if it is not known."""
    return blas.symbol(NAMES["f"])


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
    found = (*arguments, function(), rooms, chunks, 0, units)
    blas.alone(_run, kernel, found, units, chunks)


def _run(kernel: Any, arguments: tuple[Any, ...], units: int, chunks: int) -> None:
    if chunks > 1 and work_pool.available():
        if not work_pool.share(kernel, arguments, units, 0, chunks, chunks):
            kernel(*arguments[:-1], 0)  # compiles it: a range without heads
            work_pool.share(kernel, arguments, units, 0, chunks, chunks)
    else:
        kernel(*arguments[:-3], 1, 0, units)
