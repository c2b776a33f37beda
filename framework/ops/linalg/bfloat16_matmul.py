"""Matrix products in bfloat16 on CPUs with bfloat16 instructions.

The kernels are ``kernels/cpu/linalg/bfloat16_matmul.py``, and ``tile_matmul.py`` for processors
with tile registers and products that are large enough for them.
Elsewhere, and for float16, operands and result are float32 workspace of twice their size. Here they
are taken as they are. The workspace is, for each thread, a panel of the right matrix and up to
``TILE_ROWS`` rows of the left one, whose neighbors are brought together where they lie apart.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...dtypes import bfloat16
from ...kernels.common.schedule import share_units
from ...kernels.runtime import threads, thresholds
from ...spec import Spec

COLUMNS = 64  # of a panel; ROWS and COLUMNS of ``kernels/cpu/linalg/bfloat16_matmul.py``
ROWS = 6
TILE_LEAST = TILE_INNER = 32  # ROWS and INNER of ``kernels/cpu/linalg/tile_matmul.py``
TILES_FASTER = 3  # a thread of tiles must have so many times twice the operations
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
    if in_tiles(shape[-2], inner):
        inner = -(-inner // TILE_INNER) * TILE_INNER
    return (left.like((_chunks(shape) * (COLUMNS + min(shape[-2], TILE_ROWS)), inner)),)


def in_tiles(rows: int, inner: int) -> bool:
    """True if tile registers compute a product of so many rows."""
    from ...kernels.cpu.linalg.tile_matmul import in_hardware

    return rows >= TILE_LEAST and inner >= TILE_INNER and in_hardware()


def multiply(out: Any, room: Any, left: Any, right: Any, bias: Any = None) -> None:
    """``out = left @ right + bias``, rounded once, of matrices or stacks of them.

    Args:
        out: (*, M, N), in C order.
        room: As :func:`workspace` has it.
        left: (*, M, K), one of its last two dims without gaps.
        right: (*, K, N), likewise.
        bias: (N,), a number in an array, or None.
    """
    if out.ndim == left.ndim == right.ndim == 2:
        _multiply(out[None], room, left[None], right[None], bias, _chunks(out.shape))
        return
    batch = out.shape[:-2] or (1,)
    out = out.reshape(*batch, *out.shape[-2:])
    left, right = (np.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (left, right))
    for at in np.ndindex(*batch[:-1]):
        _multiply(out[at], room, left[at], right[at], bias, _chunks(out.shape))


def _chunks(shape: tuple[int, ...]) -> int:
    return min(threads.LIMIT, max(prod(shape[:-2]), -(-shape[-1] // COLUMNS)))


def _multiply(out: Any, room: Any, left: Any, right: Any, bias: Any, chunks: int) -> None:
    # One dim of matrices: threads take some of them, or some columns of the only one.
    from ...kernels.cpu.linalg import bfloat16_matmul, tile_matmul

    batch, rows, n = out.shape
    inner, tiles = left.shape[2], in_tiles(rows, left.shape[2])
    width = room.shape[1] // 2
    panels = room[: COLUMNS * chunks].view(np.uint32).reshape(chunks, width, COLUMNS)
    packed = room[COLUMNS * chunks :]
    kernel: Any
    if tiles:
        kernel = tile_matmul.products()
        packed = packed.view(np.uint32).reshape(chunks, -1, width)
    else:
        kernel = bfloat16_matmul.products()
        packed = packed.view(np.int16).reshape(chunks, -1)
    out, left, right = (a.view(np.int16) for a in (out, left, right))
    added = np.empty(0, np.int16)
    if bias is not None:
        added = np.ascontiguousarray(bias).reshape(-1).view(np.int16)
    units = batch if batch > 1 else -(-n // COLUMNS)
    each = thresholds.PRODUCT << (TILES_FASTER if tiles else 0)
    workers = threads.workers(2 * out.size * inner, min(chunks, units), each)
    arrays = (out, left, right, _words(right), added, packed, panels)
    share_units(kernel, arrays, units, max(1, workers))


def _words(right: Any) -> Any:
    # Pairs of neighbors in the contracted dim as one number, where they are neighbors in memory.
    if right.strides[2] != right.itemsize and right.strides[1] == right.itemsize:
        words = right.transpose(0, 2, 1).view(np.uint32).transpose(0, 2, 1)
        if words.flags.aligned:
            return words
    return np.empty((0, 0, 0), np.uint32)
