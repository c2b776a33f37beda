"""Plain recurrence over a whole sequence in compiled code, float32; see ``packed_product.py``."""

from __future__ import annotations

from typing import Any

from ..support.jit import FUSED, compiled
from ..support.microkernel import ROWS
from .packed_product import TOGETHER_ROWS, WIDTH, add_lines, add_product, pack_rows, panel_offsets
from .single_step import rnn_grad, rnn_units


@compiled(fastmath=FUSED)
def forward(
    out: Any, h: Any, room: Any, panels: Any, squash: bool, reverse: bool, start: int, stop: int
) -> None:
    """Run panels ``start`` to ``stop`` of the batch's rows through all steps.

    Args:
        out: (steps, batch, hidden): inputs and bias, in the end the states.
        h: (batch, hidden): the first state, in the end the last.
        room: Flat, of ``sequences.room_elements(hidden, batch)``.
        panels: The packed weight.
        squash: The activation is tanh, else the positive part.
        reverse: From the last step to the first.
        start: Panels of ROWS rows.
        stop: Behind the last.
    """
    steps, batch, hidden = out.shape
    space = ROWS * (hidden + WIDTH)
    flat, state = out.reshape(-1), h.reshape(-1)
    mine, places = room[start * space : stop * space], panel_offsets(hidden)
    end = min(stop * ROWS, batch)
    for s in range(steps):
        t = steps - 1 - s if reverse else s
        for row in range(start * ROWS, end, TOGETHER_ROWS):
            n, at = min(TOGETHER_ROWS, end - row), (t * batch + row) * hidden
            pack_rows(mine, 0, hidden, state, row * hidden, hidden, n, hidden)
            add_product(flat, at, hidden, hidden, n, hidden, panels, mine, places)
            rnn_units(out[t, row : row + n], h[row : row + n], squash)


@compiled(fastmath=FUSED)
def backward(
    dgates: Any, dh: Any, grad: Any, by_step: int, by_example: int, states: Any, room: Any,
    panels: Any, squash: bool, steps: int, reverse: bool, start: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`forward`'s states before activation, and of the first.

    Args:
        dgates: (steps * batch, hidden).
        dh: (batch, hidden): the gradient of the last state, in the end of the first.
        grad: Of ``out``, flat, or without elements.
        by_step: From a step of it to the next.
        by_example: From an example of it to the next.
        states: ``out``, as (steps * batch, hidden).
        room: Flat, of ``sequences.room_elements(hidden, batch)``.
        panels: The packed weight.
        squash: As in forward.
        steps: How many there are.
        reverse: As forward ran.
        start: Panels of ROWS rows.
        stop: Behind the last.
    """
    batch, hidden = dh.shape
    space = ROWS * (hidden + WIDTH)
    flat, state, places = dgates.reshape(-1), dh.reshape(-1), panel_offsets(hidden)
    mine, end = room[start * space : stop * space], min(stop * ROWS, batch)
    for s in range(steps - 1, -1, -1):
        t = steps - 1 - s if reverse else s
        for row in range(start * ROWS, end, TOGETHER_ROWS):
            n, at = min(TOGETHER_ROWS, end - row), t * batch + row
            d = dh[row : row + n]
            if grad.size:
                add_lines(d, grad, t * by_step + row * by_example, by_example)
            rnn_grad(dgates[at : at + n], states[at : at + n], d, squash)
            for k in range(row * hidden, (row + n) * hidden):
                state[k] = 0
            pack_rows(mine, 0, hidden, flat, at * hidden, hidden, n, hidden)
            add_product(state, row * hidden, hidden, hidden, n, hidden, panels, mine, places)
