"""GRU over a whole sequence in compiled code, float32; see ``packed_product.py``."""

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
from .single_step import gru_units, gru_units_grad


@compiled(fastmath=FUSED)
def forward(
    out: Any, h: Any, gates: Any, inner: Any, bias: Any, room: Any, panels: Any, more: Any,
    reverse: bool, start: int, stop: int,
) -> None:  # fmt: skip
    """Run panels ``start`` to ``stop`` of the batch's rows through all steps.

    Args:
        out: (steps, batch, hidden): the states.
        h: (batch, hidden): the first state, in the end the last.
        gates: (steps * batch, 3 hidden): inputs and biases, in the end the activated gates.
        inner: (steps * batch, hidden): in the end q, what the reset gate multiplies.
        bias: (hidden,): of q.
        room: Flat, of ``sequences.room_elements(hidden, batch)``.
        panels: The packed weight of the gates r and z.
        more: The packed weight of q.
        reverse: From the last step to the first.
        start: Panels of ROWS rows.
        stop: Behind the last.
    """
    steps, batch, hidden = out.shape
    wide, space = 3 * hidden, ROWS * (hidden + WIDTH)
    flat, flat_inner, state = gates.reshape(-1), inner.reshape(-1), h.reshape(-1)
    mine, places = room[start * space : stop * space], panel_offsets(hidden)
    end = min(stop * ROWS, batch)
    for s in range(steps):
        t = steps - 1 - s if reverse else s
        for row in range(start * ROWS, end, TOGETHER_ROWS):
            n, at = min(TOGETHER_ROWS, end - row), t * batch + row
            for k in range(n):
                line = inner[at + k]
                for j in range(hidden):
                    line[j] = bias[j]
            pack_rows(mine, 0, hidden, state, row * hidden, hidden, n, hidden)
            add_product(flat, at * wide, wide, 2 * hidden, n, hidden, panels, mine, places)
            add_product(flat_inner, at * hidden, hidden, hidden, n, hidden, more, mine, places)
            gru_units(gates[at : at + n], inner[at : at + n], h[row : row + n])
            keep_state(out[t], h, row, n)


@compiled(fastmath=FUSED, overlaps=False)
def backward(
    dgates: Any, dinner: Any, dh: Any, grad: Any, by_step: int, by_example: int, gates: Any,
    inner: Any, states: Any, h0: Any, room: Any, panels: Any, steps: int, reverse: bool, start: int,
    stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`forward`'s gates before activation, of q and of its state.

    Args:
        dgates: As ``gates``, which it may be.
        dinner: As ``inner``: the gradient of q.
        dh: (batch, hidden): the gradient of the last state, in the end of the first.
        grad: Of ``out``, flat, or without elements.
        by_step: From a step of it to the next.
        by_example: From an example of it to the next.
        gates: The activated gates.
        inner: q.
        states: ``out``, as (steps * batch, hidden).
        h0: The first state, or without rows.
        room: Flat, of ``sequences.room_elements(3 * hidden, batch)``.
        panels: The packed weight.
        steps: How many there are.
        reverse: As forward ran.
        start: Panels of ROWS rows.
        stop: Behind the last.
    """
    batch, hidden = dh.shape
    wide, space = 3 * hidden, ROWS * (3 * hidden + WIDTH)
    flat, flat_inner, state = dgates.reshape(-1), dinner.reshape(-1), dh.reshape(-1)
    mine, places = room[start * space : stop * space], panel_offsets(wide)
    end = min(stop * ROWS, batch)
    for s in range(steps - 1, -1, -1):
        t = steps - 1 - s if reverse else s
        before = t + 1 if reverse else t - 1
        for row in range(start * ROWS, end, TOGETHER_ROWS):
            n, at = min(TOGETHER_ROWS, end - row), t * batch + row
            d, last = dh[row : row + n], before * batch + row
            if grad.size:
                add_lines(d, grad, t * by_step + row * by_example, by_example)
            some, more = dgates[at : at + n], dinner[at : at + n]
            old, q = gates[at : at + n], inner[at : at + n]
            if s:
                gru_units_grad(some, more, old, q, states[last : last + n], d)
            else:
                gru_units_grad(some, more, old, q, h0[row : row + n], d)
            # Those of r and z, and that of q in place of n's, are multiplied with the weight.
            pack_rows(mine, 0, wide, flat, at * wide, wide, n, 2 * hidden)
            pack_rows(mine, 2 * hidden, wide, flat_inner, at * hidden, hidden, n, hidden)
            add_product(state, row * hidden, hidden, hidden, n, wide, panels, mine, places)
