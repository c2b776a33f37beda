"""Matrix products in bfloat16 on CPUs with bfloat16 instructions.

The kernel is ``kernels/cpu/linalg/bfloat16_matmul.py``.
Elsewhere, and for float16, operands and result are float32 workspace of twice their size. Here they
are taken as they are. The workspace is, for each thread, a panel of the right matrix and up to
``TILE_ROWS`` rows of the left one, whose neighbors are brought together where they lie apart.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...dtypes import bfloat16
from ...kernels.runtime import threads, thresholds
from ...spec import Spec

COLUMNS = 64  # of a panel; ROWS and COLUMNS of ``kernels/cpu/linalg/bfloat16_matmul.py``
ROWS = 6
TILE_ROWS = 256  # rows of the left matrix that are brought together at a time
LEAST = 1 << 18  # multiplications from which on the kernel repays its import


def supports(left: Any, shape: tuple[int, ...], inner: int) -> bool:
    """True if a product of this shape is supported; ``left`` is an operand's spec."""
    if left.dtype is not bfloat16 or len(shape) < 2 or inner % 2:
        return False
    rows, columns = shape[-2:]
    if rows < ROWS or columns < COLUMNS or prod(shape) * inner < LEAST:
        return False
    from ...kernels.cpu.linalg.bfloat16_matmul import in_hardware

    return in_hardware()


def workspace(left: Any, shape: tuple[int, ...], inner: int) -> tuple[Spec]:
    """Return the scratch specs of a product."""
    return (left.like((_chunks(shape) * (COLUMNS + min(shape[-2], TILE_ROWS)), inner)),)


def multiply(out: Any, room: Any, left: Any, right: Any, bias: Any = None) -> None:
    """``out = left @ right + bias``, rounded once, of matrices or stacks of them.

    Args:
        out: (*, M, N), in C order.
        room: As :func:`workspace` has it.
        left: (*, M, K), one of its last two dims without gaps.
        right: (*, K, N), likewise.
        bias: (N,), a number in an array, or None.
    """
    batch = out.shape[:-2] or (1,)
    out = out.reshape(*batch, *out.shape[-2:])
    left, right = (np.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (left, right))
    for at in np.ndindex(*batch[:-1]):
        _multiply(out[at], room, left[at], right[at], bias, _chunks(out.shape))


def _chunks(shape: tuple[int, ...]) -> int:
    return min(threads.LIMIT, max(prod(shape[:-2]), -(-shape[-1] // COLUMNS)))


def _multiply(out: Any, room: Any, left: Any, right: Any, bias: Any, chunks: int) -> None:
    # One dim of matrices: threads take some of them, or some columns of the only one.
    from ...kernels.cpu.linalg import bfloat16_matmul

    batch, _, n = out.shape
    inner = left.shape[2]
    panels = room[: COLUMNS * chunks].view(np.uint32).reshape(chunks, 1, inner // 2, COLUMNS)
    packed = room[COLUMNS * chunks :].view(np.int16).reshape(chunks, -1)
    out, left, right = (a.view(np.int16) for a in (out, left, right))
    words = _words(right)
    added = np.empty(0, np.int16)
    if bias is not None:
        added = np.ascontiguousarray(bias).reshape(-1).view(np.int16)
    products = bfloat16_matmul.products()

    def run(chunk: int, start: int, stop: int) -> None:
        if batch > 1:
            some, columns = slice(start, stop), slice(0, n)
        else:
            some = slice(0, 1)
            columns = slice(min(start * COLUMNS, n - COLUMNS), min(stop * COLUMNS, n))
        if start < stop:
            products(
                out[some, :, columns],
                left[some],
                right[some, :, columns],
                words[some, :, columns],
                added[columns] if added.size > 1 else added,
                packed[chunk],
                panels[chunk],
            )

    count = batch if batch > 1 else -(-n // COLUMNS)
    threads.parallel_chunks(
        run, count, chunks if out.size * inner >= 2 * thresholds.PRODUCT_THREAD else 1
    )


def _words(right: Any) -> Any:
    # Pairs of neighbors in the contracted dim as one number, where they are neighbors in memory.
    if right.strides[2] != right.itemsize and right.strides[1] == right.itemsize:
        words = right.transpose(0, 2, 1).view(np.uint32).transpose(0, 2, 1)
        if words.flags.aligned:
            return words
    return np.empty((0, 0, 0), np.uint32)
