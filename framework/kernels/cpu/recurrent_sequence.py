"""LSTM over a whole sequence in compiled code, float32: the recurrent weight packed once.

The weight lies in panels of ``WIDTH`` columns, and a state in panels of ``ROWS`` rows, as the
microkernel takes them; the product of a step is added to the gates where they lie, and activated
while they are in the cache. Rows of a batch know nothing of each other, so threads share those: one
call takes all steps, and no thread waits for another between them.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..common.schedule import parallel_range
from .recurrent import lstm_grad, lstm_units
from .support.jit import FUSED, compiled, part
from .support.microkernel import GROUP, ROWS, TOGETHER, accumulate, copy, transpose

LANES = GROUP // 4
WIDTH = TOGETHER * LANES  # columns of a panel
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
def _add_product(
    out: Any,
    at: Any,
    columns: Any,
    state: Any,
    first: Any,
    rows: Any,
    inner: Any,
    panels: Any,
    room: Any,
    places: Any,
) -> None:
    # out[at + r * columns + c] += (state @ weight)[r, c] for some rows; all flat.
    if rows < ROWS:
        for k in range(inner * ROWS):
            room[k] = 0
    transpose(room, 0, ROWS, state, first, inner, rows, inner)
    tile = room[inner * ROWS : inner * ROWS + ROWS * WIDTH]
    for j in range(0, columns, WIDTH):
        wide, here = min(WIDTH, columns - j), j * inner
        if wide == WIDTH and rows == ROWS:
            accumulate(
                out,
                at + j,
                columns,
                room,
                0,
                panels,
                here,
                here + LANES,
                here + 2 * LANES,
                1,
                0,
                places,
            )
            continue
        for k in range(ROWS * WIDTH):
            tile[k] = 0
        accumulate(
            tile, 0, WIDTH, room, 0, panels, here, here + LANES, here + 2 * LANES, 1, 0, places
        )
        for r in range(rows):
            line = out[at + r * columns + j : at + r * columns + j + wide]
            for c in range(wide):
                line[c] += tile[r * WIDTH + c]


@part
def _panel_offsets(inner: Any) -> Any:
    # Where a panel's rows begin: a few KiB beside the panels.
    found = np.empty(inner, np.int64)
    for k in range(inner):
        found[k] = k * WIDTH
    return found


@compiled(fastmath=FUSED)
def forward(
    out: Any,
    h: Any,
    c: Any,
    gates: Any,
    cells: Any,
    room: Any,
    panels: Any,
    reverse: bool,
    start: int,
    stop: int,
) -> None:
    """Run panels ``start`` to ``stop`` of the batch's rows through all steps.

    Args:
        out: (steps, batch, hidden): the states.
        h: (batch, hidden): the first state, in the end the last.
        c: The same of the cells.
        gates: (steps * batch, 4 hidden): inputs and bias, in the end the activated gates.
        cells: (steps * batch, hidden).
        room: Flat, of ``rnn.room_elements(hidden, batch)``.
        panels: The packed weight.
        reverse: From the last step to the first.
        start: Panels of ROWS rows.
        stop: Behind the last.
    """
    steps, batch, hidden = out.shape
    wide, space = 4 * hidden, ROWS * (hidden + WIDTH)
    flat, state, places = gates.reshape(-1), h.reshape(-1), _panel_offsets(hidden)
    mine = room[start * space : (start + 1) * space]
    for s in range(steps):
        t = steps - 1 - s if reverse else s
        for row in range(start * ROWS, min(stop * ROWS, batch), ROWS):
            n, at = min(ROWS, batch - row), t * batch + row
            _add_product(
                flat, at * wide, wide, state, row * hidden, n, hidden, panels, mine, places
            )
            lstm_units(gates[at : at + n], c[row : row + n], cells[at : at + n], h[row : row + n])
            for k in range(n):
                line, new = out[t, row + k], h[row + k]
                for j in range(hidden):
                    line[j] = new[j]


@compiled(fastmath=FUSED, overlaps=False)
def backward(
    dgates: Any, dh: Any, dc: Any, grad: Any, gates: Any, cells: Any, c0: Any, nothing: Any,
    room: Any, panels: Any, steps: int, reverse: bool, start: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`forward`'s gates before activation, and of its first states.

    Args:
        dgates: As ``gates``, which it may be.
        dh: (batch, hidden): the gradient of the last state, in the end of the first.
        dc: The same of the cells.
        grad: Of ``out``, (steps * batch, hidden), or without rows.
        gates: The activated gates.
        cells: The cells of all steps.
        c0: The first cells, or without rows.
        nothing: An array of two dims without elements.
        room: Flat, of ``rnn.room_elements(4 * hidden, batch)``.
        panels: The packed weight.
        steps: How many there are.
        reverse: As forward ran.
        start: Panels of ROWS rows.
        stop: Behind the last.
    """
    batch, hidden = dh.shape
    wide, space = 4 * hidden, ROWS * (4 * hidden + WIDTH)
    flat, state, places = dgates.reshape(-1), dh.reshape(-1), _panel_offsets(wide)
    mine = room[start * space : (start + 1) * space]
    for s in range(steps - 1, -1, -1):
        t = steps - 1 - s if reverse else s
        before = t + 1 if reverse else t - 1
        for row in range(start * ROWS, min(stop * ROWS, batch), ROWS):
            n, at = min(ROWS, batch - row), t * batch + row
            d, e, last = dh[row : row + n], dc[row : row + n], before * batch + row
            if grad.shape[0]:
                for k in range(n):
                    line, more = d[k], grad[at + k]
                    for j in range(hidden):
                        line[j] += more[j]
            some, old, now = dgates[at : at + n], gates[at : at + n], cells[at : at + n]
            if s:
                lstm_grad(some, old, now, cells[last : last + n], d, e, nothing)
            elif c0.shape[0]:
                lstm_grad(some, old, now, c0[row : row + n], d, e, nothing)
            else:
                lstm_grad(some, old, now, nothing, d, e, nothing)
            for k in range(row * hidden, (row + n) * hidden):
                state[k] = 0
            _add_product(
                state, row * hidden, hidden, flat, at * wide, n, wide, panels, mine, places
            )


def run(kernel: Any, batch: int, shape: tuple[int, ...], *arguments: Any) -> None:
    """Call :func:`forward` or :func:`backward` on all rows of a batch, by threads if it pays."""
    units = -(-batch // ROWS)
    parallel_range(kernel, prod(shape), units, *arguments)
