"""LSTM over a whole sequence in compiled code, float32; see ``packed_product.py``."""

from __future__ import annotations

from typing import Any

from ..support.jit import FUSED, compiled
from ..support.microkernel import ROWS
from .packed_product import (
    TOGETHER_ROWS,
    WIDTH,
    add_lines,
    add_product,
    keep_state,
    pack_rows,
    panel_offsets,
)
from .single_step import lstm_grad, lstm_units


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
        room: Flat, of ``sequences.room_elements(hidden, batch)``.
        panels: The packed weight.
        reverse: From the last step to the first.
        start: Panels of ROWS rows.
        stop: Behind the last.
    """
    steps, batch, hidden = out.shape
    wide, space = 4 * hidden, ROWS * (hidden + WIDTH)
    flat, state, places = gates.reshape(-1), h.reshape(-1), panel_offsets(hidden)
    mine, end = room[start * space : stop * space], min(stop * ROWS, batch)
    for s in range(steps):
        t = steps - 1 - s if reverse else s
        for row in range(start * ROWS, end, TOGETHER_ROWS):
            n, at = min(TOGETHER_ROWS, end - row), t * batch + row
            pack_rows(mine, 0, hidden, state, row * hidden, hidden, n, hidden)
            add_product(flat, at * wide, wide, wide, n, hidden, panels, mine, places)
            lstm_units(gates[at : at + n], c[row : row + n], cells[at : at + n], h[row : row + n])
            keep_state(out[t], h, row, n)


@compiled(fastmath=FUSED, overlaps=False)
def backward(
    dgates: Any, dh: Any, dc: Any, grad: Any, by_step: int, by_example: int, gates: Any, cells: Any,
    c0: Any, nothing: Any, room: Any, panels: Any, steps: int, reverse: bool, start: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`forward`'s gates before activation, and of its first states.

    Args:
        dgates: As ``gates``, which it may be.
        dh: (batch, hidden): the gradient of the last state, in the end of the first.
        dc: The same of the cells.
        grad: Of ``out``, flat, or without elements.
        by_step: From a step of it to the next.
        by_example: From an example of it to the next.
        gates: The activated gates.
        cells: The cells of all steps.
        c0: The first cells, or without rows.
        nothing: An array of two dims without elements.
        room: Flat, of ``sequences.room_elements(4 * hidden, batch)``.
        panels: The packed weight.
        steps: How many there are.
        reverse: As forward ran.
        start: Panels of ROWS rows.
        stop: Behind the last.
    """
    batch, hidden = dh.shape
    wide, space = 4 * hidden, ROWS * (4 * hidden + WIDTH)
    flat, state, places = dgates.reshape(-1), dh.reshape(-1), panel_offsets(wide)
    mine, end = room[start * space : stop * space], min(stop * ROWS, batch)
    for s in range(steps - 1, -1, -1):
        t = steps - 1 - s if reverse else s
        before = t + 1 if reverse else t - 1
        for row in range(start * ROWS, end, TOGETHER_ROWS):
            n, at = min(TOGETHER_ROWS, end - row), t * batch + row
            d, e, last = dh[row : row + n], dc[row : row + n], before * batch + row
            if grad.size:
                add_lines(d, grad, t * by_step + row * by_example, by_example)
            some, old, now = dgates[at : at + n], gates[at : at + n], cells[at : at + n]
            if s:
                lstm_grad(some, old, now, cells[last : last + n], d, e, nothing)
            elif c0.shape[0]:
                lstm_grad(some, old, now, c0[row : row + n], d, e, nothing)
            else:
                lstm_grad(some, old, now, nothing, d, e, nothing)
            for k in range(row * hidden, (row + n) * hidden):
                state[k] = 0
            pack_rows(mine, 0, wide, flat, at * wide, wide, n, wide)
            add_product(state, row * hidden, hidden, hidden, n, wide, panels, mine, places)
