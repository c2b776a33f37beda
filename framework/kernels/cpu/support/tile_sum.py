"""The sum of a tile, for loops that sum what a formula gives (``kernels/formula/loop.py``)."""

from __future__ import annotations

from typing import Any

from .jit import SUMS, compiled

TILE = 4096  # elements that exist at a time where only their sum is wanted


@compiled(fastmath=SUMS)
def tile_sum(tile: Any) -> Any:
    """The sum of a flat array, in its dtype."""
    total = tile.dtype.type(0)
    for j in range(tile.size):
        total += tile[j]
    return total
