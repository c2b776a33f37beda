"""A tape of elementwise loops, run on one tile of its arrays after the other.

Each elementwise kernel call of a program goes through its arrays from end to end. Where several
follow each other, what one has written is read again from memory by the next. :func:`run_tiles`
calls all their loops (``loop_tape.py``) on a tile before it goes on to the next one. So a tile
stays in the processor's nearest caches, and what only these loops use has no memory but a tile's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .loop_tape import SCRATCH, _run
from .support.jit import compiled

TILE = 2048  # elements of a tile, at most
ROOM = 64  # bytes at a multiple of which a tile's own memory begins
OUTER = 3  # dims around the one that is cut into tiles
PER_TILE, OWN = OUTER, OUTER + 1  # columns of moves


@compiled(signature="i8:1C,i8:1C,i8:2C,i8:2C,i8:2C,i8:1C,i8,i8,i8,i8")
def run_tiles(
    tape: Any,
    bases: Any,
    moves: Any,
    sites: Any,
    counts: Any,
    sizes: Any,
    most: int,
    room: int,
    first: int,
    last: int,
) -> None:
    """Call the loops of a tape on tiles ``first`` to ``last``.

    Args:
        tape: Words, in which each loop goes through one tile. They are copied.
        bases: Addresses of the operands; of those in a tile's own memory, where they begin in it.
        moves: For each operand the bytes from place to place of the outer dims and from tile to
            tile, and whether it lies in a tile's own memory.
        sites: (word, operand, offset in bytes) of each address in the tape.
        counts: The words that are a multiple of a tile's size, and that multiple.
        sizes: Of the outer dims, and of the dim that is cut into tiles.
        most: The size of all tiles but the last ones of this dim.
        room: Bytes of a tile's own memory.
        first: The first tile. They are counted along the dim that is cut, then along those around.
        last: The one behind the last.

    Raises:
        MemoryError: There is no room for the copy, or a loop had none.
    """
    own = tape.copy()
    here = own.ctypes.data
    memory = np.empty(room + ROOM, np.uint8)
    start = (memory.ctypes.data + ROOM - 1) // ROOM * ROOM
    n = sizes[OUTER]
    tiles = (n + most - 1) // most
    for unit in range(first, last):
        tile, place = unit % tiles, unit // tiles
        k, place = place % sizes[2], place // sizes[2]
        i, j = place // sizes[1], place % sizes[1]
        for s in range(sites.shape[0]):
            operand = sites[s, 1]
            move = moves[operand]
            at = bases[operand] + i * move[0] + j * move[1] + k * move[2] + tile * move[PER_TILE]
            own[sites[s, 0]] = at + move[OWN] * start + sites[s, 2]
        count = min(most, n - tile * most)
        for c in range(counts.shape[0]):
            own[counts[c, 0]] = count * counts[c, 1]
        if _run(own, here, SCRATCH, own.size) != 0:
            raise MemoryError
