"""Products of a running state with a recurrent weight that is packed once for a whole sequence.

The weight lies in panels of ``WIDTH`` columns, and a state in panels of ``ROWS`` rows, as the
microkernel takes them. The product of a step is added to the gates where they lie, which are
activated next, while they are in the cache. Rows of a batch know nothing of each other, so threads
share those: one call takes all steps, and no thread waits for another between them.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...common.schedule import parallel_range
from ..support.jit import compiled, part
from ..support.microkernel import GROUP, ROWS, TOGETHER, accumulate, copy, transpose

LANES = GROUP // 4
WIDTH = TOGETHER * LANES  # columns of a panel
# Rows that a panel is multiplied with before the next one is: a weight of some MB is read that much
# less often, and the gates of so many rows stay in the cache until they are activated.
TOGETHER_ROWS = 4 * ROWS
NOTHING = np.empty((0, 0), np.float32)


@compiled
def pack(panels: Any, weight: Any, inner: int, columns: int, transposed: bool) -> None:
    """Pack a weight: (inner, columns), or (columns, inner) if it is ``transposed``; both flat."""
    for j in range(0, columns, WIDTH):
        here, wide = j * inner, min(WIDTH, columns - j)
        if wide < WIDTH:
            for k in range(here, here + inner * WIDTH):
                panels[k] = 0
        if transposed:
            for c in range(0, wide, ROWS):
                lines = min(ROWS, wide - c)
                transpose(panels, here + c, WIDTH, weight, (j + c) * inner, inner, lines, inner)
        else:
            for k in range(inner):
                copy(panels, here + k * WIDTH, 1, weight, k * columns + j, 1, wide)


@part
def panel_offsets(inner: Any) -> Any:
    """Where the rows of a panel begin: a few KiB beside the panels."""
    found = np.empty(inner, np.int64)
    for k in range(inner):
        found[k] = k * WIDTH
    return found


@part
def pack_rows(
    room: Any, to: Any, inner: Any, state: Any, first: Any, pitch: Any, rows: Any, columns: Any
) -> None:
    """Pack rows of a state, flat, and ``pitch`` apart, as columns of panels from ``to`` on.

    Args:
        room: Each ROWS rows take ``ROWS * (inner + WIDTH)`` elements of it.
        to: The first column.
        inner: Columns of the whole panels.
        state: Where the rows are.
        first: The first row's first element.
        pitch: From row to row.
        rows: At most TOGETHER_ROWS.
        columns: How many of them are packed.
    """
    for row in range(0, rows, ROWS):
        n, here = min(ROWS, rows - row), row * (inner + WIDTH) + to * ROWS
        if n < ROWS:
            for k in range(here, here + columns * ROWS):
                room[k] = 0
        transpose(room, here, ROWS, state, first + row * pitch, pitch, n, columns)


@part
def add_product(
    out: Any,
    at: Any,
    pitch: Any,
    columns: Any,
    rows: Any,
    inner: Any,
    panels: Any,
    room: Any,
    places: Any,
) -> None:
    """``out[at + r * pitch + c] += (packed rows @ weight)[r, c]``; all arrays are flat.

    Args:
        out: What is added to.
        at: Of the first row's first column.
        pitch: From row to row.
        columns: Of the weight.
        rows: At most TOGETHER_ROWS.
        inner: Columns of the state.
        panels: The packed weight.
        room: The packed rows, each ROWS of them before a tile of results.
        places: Of ``panel_offsets(inner)``.
    """
    for j in range(0, columns, WIDTH):
        wide, here = min(WIDTH, columns - j), j * inner
        for row in range(0, rows, ROWS):
            n, mine = min(ROWS, rows - row), row * (inner + WIDTH)
            to = at + row * pitch + j
            if wide == WIDTH and n == ROWS:
                accumulate(
                    out, to, pitch, room, mine, panels, here, here + LANES, here + 2 * LANES, 1, 0,
                    places,
                )  # fmt: skip
                continue
            tile = room[mine + inner * ROWS : mine + inner * ROWS + ROWS * WIDTH]
            for k in range(ROWS * WIDTH):
                tile[k] = 0
            accumulate(
                tile, 0, WIDTH, room, mine, panels, here, here + LANES, here + 2 * LANES, 1, 0,
                places,
            )  # fmt: skip
            for r in range(n):
                line = out[to + r * pitch : to + r * pitch + wide]
                for c in range(wide):
                    line[c] += tile[r * WIDTH + c]


@part
def keep_state(out: Any, h: Any, first: Any, n: Any) -> None:
    """Copy ``n`` rows of a state from ``first`` on to a step's result."""
    for k in range(first, first + n):
        line, new = out[k], h[k]
        for j in range(new.size):
            line[j] = new[j]


@part
def add_lines(out: Any, source: Any, first: Any, pitch: Any) -> None:
    """Add to each row of ``out`` one of a flat array; they begin at ``first``, ``pitch`` apart."""
    n, columns = out.shape
    for k in range(n):
        line, at = out[k], first + k * pitch
        for j in range(columns):
            line[j] += source[at + j]


def run(kernel: Any, batch: int, shape: tuple[int, ...], *arguments: Any) -> None:
    """Call a sequence's kernel on all rows of a batch, by threads if it pays."""
    units = -(-batch // ROWS)
    parallel_range(kernel, prod(shape), units, *arguments)
