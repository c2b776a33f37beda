"""Products of bfloat16 matrices on CPUs that multiply bfloat16 (``kernels/cpu/bfloat16.py``).

Elsewhere, and for float16, operands and result are float32 workspace of twice their size. Here they
are taken as they are: the workspace is a panel of the right matrix for each thread, and up to
``BLOCK`` rows of the left one where its rows lie apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import bfloat16
from ..kernels.copies import copy
from ..spec import Spec

COLUMNS = 64  # of a panel; ROWS and COLUMNS of ``kernels/cpu/bfloat16.py``
ROWS = 6
BLOCK = 512  # rows of the left matrix that are brought together at a time
LEAST = 1 << 18  # multiplications of a matrix from which on the kernel repays its import
_SHARE = 1 << 23  # multiplications below which another thread costs more than it saves


def taken(left: Any, shape: tuple[int, ...], inner: int) -> bool:
    """True if a product of this shape is computed here; ``left`` is an operand's spec."""
    if left.dtype is not bfloat16 or len(shape) < 2 or inner % 2:
        return False
    rows, columns = shape[-2:]
    if rows < ROWS or columns < COLUMNS or rows * columns * inner < LEAST:
        return False
    from ..kernels.cpu.bfloat16 import in_hardware

    return in_hardware()


def workspace(left: Any, shape: tuple[int, ...], inner: int) -> tuple[Spec]:
    """The scratch of such a product."""
    rows, columns = shape[-2:]
    return (left.like((COLUMNS * _parts(columns) + min(rows, BLOCK), inner)),)


def multiply(out: Any, room: Any, left: Any, right: Any, bias: Any = None) -> None:
    """``out = left @ right + bias``, rounded once, of matrices or stacks of them.

    Args:
        out: (*, M, N), in C order.
        room: As :func:`workspace` has it.
        left: (*, M, K), one of its last two dims without gaps.
        right: (*, K, N), likewise.
        bias: (N,), a number in an array, or None.
    """
    if out.ndim == 2:
        _multiply(out, room, left, right, bias)
        return
    batch = out.shape[:-2]
    left, right = (np.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (left, right))
    for at in np.ndindex(*batch):
        _multiply(out[at], room, left[at], right[at], bias)


def _parts(columns: int) -> int:
    from ..kernels.cpu import threads

    return min(threads.LIMIT, -(-columns // COLUMNS))


def _multiply(out: Any, room: Any, left: Any, right: Any, bias: Any) -> None:
    from ..kernels.cpu import bfloat16

    (m, n), inner = out.shape, left.shape[1]
    parts = _parts(n)
    panels = room[: COLUMNS * parts].reshape(parts, inner // 2, COLUMNS, 2).view(np.int16)
    out, left, right = (a.view(np.int16) for a in (out, left, right))
    if left.strides[1] == left.itemsize:
        _panels(out, left, left.strides[0], 4, right, bias, panels)
        return
    packed = room[COLUMNS * parts :].reshape(-1).view(np.int16)
    for first in range(0, m, BLOCK):
        first = max(0, min(first, m - ROWS))  # some rows again rather than too few at the end
        rows = slice(first, min(first + BLOCK, m))
        size = rows.stop - first
        lines = packed[: inner * size].reshape(inner // 2, size, 2)
        bfloat16.pairs()(lines, left[rows].T)
        lines = lines.reshape(inner // 2, 2 * size)
        _panels(out[rows], lines, 4, 4 * size, right, bias, panels)


def _panels(out: Any, left: Any, row: int, pair: int, right: Any, bias: Any, panels: Any) -> None:
    # Some rows of the result, COLUMNS columns at a time; `row` and `pair` are steps in `left`.
    from ..kernels.cpu import bfloat16, threads

    (m, n), inner = out.shape, right.shape[0]
    multiply = bfloat16.panel()

    def share(part: int, start: int, stop: int) -> None:
        for k in range(start, stop):
            j = min(k * COLUMNS, n - COLUMNS)  # likewise
            columns = slice(j, j + COLUMNS)
            _gather(panels[part], right[:, columns])
            multiply(out[:, columns], left, row, pair, panels[part], _floats(bias, columns))

    parts = len(panels) if m * n * inner >= _SHARE else 1
    threads.split(share, -(-n // COLUMNS), parts)


def _gather(panel: Any, right: Any) -> None:
    # Pairs of rows side by side.
    from ..kernels.cpu import bfloat16, moves

    if right.strides[1] == right.itemsize:
        bfloat16.pairs()(panel, right)
        return
    word = np.dtype(np.uint32)
    columns = right.T
    if columns.strides[1] == right.itemsize and columns.strides[0] % 4 == 0:
        words = columns.view(word)
        if words.flags.aligned:
            moves.mover(word, word)(panel.view(word).reshape(1, *words.shape[::-1]), words.T[None])
            return
    copy(panel[:, :, 0], right[::2])
    copy(panel[:, :, 1], right[1::2])


def _floats(bias: Any, columns: slice) -> Any:
    # -0.0 is what leaves every number as it is, zeros too.
    if bias is None:
        return np.full(COLUMNS, -0.0, np.float32)
    if bias.size == 1:
        return np.full(COLUMNS, bias.reshape(()), np.float32)
    return bias[columns].astype(np.float32)
