"""Tiling of ``linear_cross_entropy``'s logits, shared by forward and backward.

A tile is the product of some rows of ``input`` (tokens) with some rows of ``linear_weight``
(classes). It is about square: the products that follow contract over both of its sides, and what
they add up to is written once per tile.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from ...dtypes import float32
from ...kernels.common.layout import contiguous
from ...kernels.runtime import thresholds
from ...spec import Spec
from ..linalg.matmul import blas_ready

LIMIT = 1 << 26  # bytes of the workspace, at most
FRACTION = 72  # one in so many bytes of input, linear_weight and their gradients is workspace


def computed(dtype):
    """Return the dtype in which logits of a dtype are computed."""
    return float32 if dtype.is_half else dtype


def tiles_of(
    tokens: int, classes: int, features: int, dtype: Any, host: bool = True
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return rows and columns of the tiles of forward and of backward.

    They are square, unless there are fewer tokens or classes than that. What else the workspace
    has grows with their sides: in backward one product of the longer side, before it is added; for
    inputs of 16 bits the rows that a tile is made from, and in backward the sum of products.
    """
    whole = 2 * (tokens + classes) * features * dtype.itemsize
    room = max(thresholds.tile_bytes(host), min(LIMIT, whole // FRACTION))
    room //= computed(dtype).itemsize
    beside = (2, 4) if dtype.is_half else (0, 1)
    forward, backward = (_within(tokens, classes, room, k * features) for k in beside)
    return forward, backward


def _within(tokens, classes, room, beside):
    side = (isqrt(beside * beside + 4 * room) - beside) // 2  # side ** 2 + side * beside
    side = max(32, side - side % 32)
    rows = min(tokens, side)
    columns = min(classes, max(side, room // max(1, rows + beside)))
    if columns < side:
        rows = min(tokens, max(side, room // max(1, columns + beside)))
    return max(1, rows), max(1, columns)


def ready(array):
    """True if an array can be used by BLAS and compiled loops without a copy."""
    return blas_ready(array) if array.ndim == 2 else contiguous(array)


def room(input, linear_weight, tile):
    """Return the specs of a tile, and of converted rows of 16-bit inputs and weights."""
    dtype, features = computed(input.dtype), input.shape[-1]
    rows, columns = tile
    wide = features if input.dtype.is_half else 0
    return (
        Spec((rows * columns,), dtype),
        Spec((rows * wide,), dtype),
        Spec((columns * wide,), dtype),
    )


def rows_of(xp, array, here, buffer):
    """Return rows of a matrix in the compute dtype, converted into ``buffer`` if needed."""
    rows = array[here]
    if rows.dtype == buffer.dtype:
        return rows
    wide = buffer[: rows.size].reshape(rows.shape)
    xp.copyto(wide, rows, casting="unsafe")
    return wide


def logits_of(xp, work, x, w, linear_bias, columns):
    """Compute a tile of logits."""
    tile = work[: x.shape[0] * w.shape[0]].reshape(x.shape[0], w.shape[0])
    xp.matmul(x, w.T, out=tile)
    if linear_bias is not None:
        xp.add(tile, linear_bias[columns], out=tile)
    return tile


def found_in(xp, target, columns):
    """Return (column of each row's class in a tile, or any column; mask of those found)."""
    here = target - columns.start
    last = columns.stop - columns.start - 1
    inside = (here >= 0) & (here <= last)
    return xp.clip(here, 0, last), inside
