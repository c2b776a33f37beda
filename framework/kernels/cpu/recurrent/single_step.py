"""Compiled steps of recurrent layers, for float32: what happens between two matrix products.

One pass over a step's gates: add the recurrent product and the bias, apply the activations in
place, make the new states; backward likewise turns the gradient of the states into that of the
gates. ``product`` is (batch, gates), in row-major or column-major order.

tanh below 0.6 is an odd polynomial (least squares on Chebyshev points), so that small values keep
their relative precision; above, it is made of ``exp``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, compiled, inlined
from ..support.vector_math import exp32

_ZERO, _ONE, _TWO, _BEND = np.float32(0), np.float32(1), np.float32(2), np.float32(0.6)
_T0, _T1, _T2, _T3, _T4 = (
    np.float32(v)
    for v in (-0.33333297511, 0.133319152994, -0.0537832933, 0.0207946177, -0.0058939453)
)


@inlined
def _sigmoid(x: Any) -> Any:
    return _ONE / (_ONE + exp32(-x))


@inlined
def tanh32(x: Any) -> Any:
    """``tanh(x)`` of a float32, within 2 units in the last place."""
    a = abs(x)
    rest = _ONE - _TWO / (exp32(a + a) + _ONE)
    rest = -rest if x < _ZERO else rest
    y = x * x
    p = _T4 * y + _T3
    p = p * y + _T2
    p = p * y + _T1
    p = p * y + _T0
    return x + x * (y * p) if a < _BEND else rest


@compiled(fastmath=FUSED)
def _collect(gates: Any, product: Any, bias: Any) -> None:
    # gates += product + bias, in tiles: a column of gates would meet one set of the cache only
    n, width = gates.shape
    for start in range(0, width, 64):
        end = min(start + 64, width)
        for i in range(n):
            for j in range(start, end):
                gates[i, j] += product[i, j] + bias[j]


@compiled(fastmath=FUSED)
def lstm(gates: Any, product: Any, bias: Any, c: Any, cells: Any, h: Any) -> None:
    """Gates i, f, g, o: ``c = f c + i g``, kept in ``cells`` too, and ``h = o tanh(c)``."""
    _collect(gates, product, bias)
    lstm_units(gates, c, cells, h)


@compiled(fastmath=FUSED)
def lstm_units(gates: Any, c: Any, cells: Any, h: Any) -> None:
    """Activate gates of which all addends are there, and make the new states."""
    n, hidden = c.shape
    for k in range(n):
        row = gates[k]
        i, f = row[:hidden], row[hidden : 2 * hidden]
        g, o = row[2 * hidden : 3 * hidden], row[3 * hidden :]
        for j in range(2 * hidden):
            row[j] = _sigmoid(row[j])
        for j in range(hidden):
            g[j] = tanh32(g[j])
        for j in range(hidden):
            o[j] = _sigmoid(o[j])
        # Short loops: one with many arrays is not vectorized.
        for j in range(hidden):
            c[k, j] = f[j] * c[k, j] + i[j] * g[j]
        for j in range(hidden):
            cells[k, j] = c[k, j]
        for j in range(hidden):
            h[k, j] = o[j] * tanh32(c[k, j])


@compiled(fastmath=FUSED, overlaps=False)
def lstm_grad(dgates: Any, gates: Any, cells: Any, before: Any, dh: Any, dc: Any, h: Any) -> None:
    """Gradient of the gates before activation; ``dc`` becomes that of the cells before.

    ``dgates`` may be ``gates``: a loop reads all that it needs of a gate before it writes there.
    ``before`` and ``h`` have a length of 0 where there were no cells before, or where the new state
    is not wanted again.
    """
    n, hidden = dh.shape
    again, line = h.shape[0] > 0, np.empty(hidden, np.float32)
    for k in range(n):
        row, out = gates[k], dgates[k]
        i, f = row[:hidden], row[hidden : 2 * hidden]
        g, o = row[2 * hidden : 3 * hidden], row[3 * hidden :]
        di, df = out[:hidden], out[hidden : 2 * hidden]
        dg, do = out[2 * hidden : 3 * hidden], out[3 * hidden :]
        for j in range(hidden):
            line[j] = tanh32(cells[k, j])
        if again:
            for j in range(hidden):
                h[k, j] = o[j] * line[j]
        for j in range(hidden):
            t = line[j]
            down = dh[k, j] * o[j]
            dc[k, j] += down * (_ONE - t * t)
            do[j] = down * t * (_ONE - o[j])
        for j in range(hidden):
            opened, new, d = i[j], g[j], dc[k, j]
            dg[j] = d * opened * (_ONE - new * new)
            di[j] = d * opened * new * (_ONE - opened)
        if before.shape[0]:
            for j in range(hidden):
                kept = f[j]
                d = dc[k, j] * kept
                dc[k, j] = d
                df[j] = d * before[k, j] * (_ONE - kept)
        else:
            for j in range(hidden):
                dc[k, j] *= f[j]
            for j in range(hidden):  # apart from that loop: zeros could be written before it reads
                df[j] = _ZERO


@compiled(fastmath=FUSED)
def gru(gates: Any, inner: Any, product: Any, bias: Any, h: Any) -> None:
    """Gates r, z, n: ``q = product_n + bias``, ``n = tanh(n + r q)``, ``h = n + z (h - n)``.

    ``q`` is kept in ``inner``. The last quarter of ``bias`` belongs to q.
    """
    n, hidden = h.shape
    _collect(gates[:, : 2 * hidden], product, bias)
    inner[:] = _ZERO
    _collect(inner, product[:, 2 * hidden :], bias[3 * hidden :])
    for k in range(n):
        new = gates[k, 2 * hidden :]
        for j in range(hidden):
            new[j] += bias[2 * hidden + j]
    gru_units(gates, inner, h)


@compiled(fastmath=FUSED)
def gru_units(gates: Any, inner: Any, h: Any) -> None:
    """Activate gates of which all addends are there, q in ``inner``, and make the new state."""
    n, hidden = h.shape
    for k in range(n):
        row = gates[k]
        r, z, new = row[:hidden], row[hidden : 2 * hidden], row[2 * hidden :]
        for j in range(2 * hidden):
            row[j] = _sigmoid(row[j])
        for j in range(hidden):
            v = tanh32(new[j] + r[j] * inner[k, j])
            new[j] = v
            h[k, j] = v + z[j] * (h[k, j] - v)


@compiled(fastmath=FUSED, overlaps=False)
def gru_grad(
    dgates: Any, dinner: Any, hidden_side: Any, gates: Any, inner: Any, before: Any, dh: Any
) -> None:
    """Gradients of the gates r, z, n before activation, and of q; ``dh`` becomes ``dh z``.

    ``dgates`` may be ``gates``. ``hidden_side`` receives those of r, z and q side by side, for the
    product with the weight.
    """
    gru_units_grad(dgates, dinner, gates, inner, before, dh)
    n, hidden = dh.shape
    for k in range(n):
        side, out = hidden_side[k], dgates[k]
        for j in range(2 * hidden):
            side[j] = out[j]
        for j in range(hidden):
            side[2 * hidden + j] = dinner[k, j]


@compiled(fastmath=FUSED, overlaps=False)
def gru_units_grad(dgates: Any, dinner: Any, gates: Any, inner: Any, before: Any, dh: Any) -> None:
    """The same, without a copy side by side."""
    n, hidden = dh.shape
    known = before.shape[0] > 0
    for k in range(n):
        row, out = gates[k], dgates[k]
        for j in range(hidden):
            r, z, new = row[j], row[hidden + j], row[2 * hidden + j]
            d = dh[k, j]
            dn = d * (_ONE - z) * (_ONE - new * new)
            last = before[k, j] if known else _ZERO
            out[j] = dn * inner[k, j] * r * (_ONE - r)
            out[hidden + j] = d * (last - new) * z * (_ONE - z)
            out[2 * hidden + j] = dn
            dinner[k, j] = dn * r
            dh[k, j] = d * z


@compiled(fastmath=FUSED)
def rnn(out: Any, product: Any, bias: Any, h: Any, squash: Any) -> None:
    """``out = h = tanh(out + product + bias)``, or the positive part instead of tanh."""
    _collect(out, product, bias)
    rnn_units(out, h, squash)


@compiled(fastmath=FUSED)
def rnn_units(out: Any, h: Any, squash: Any) -> None:
    """Activate states of which all addends are there."""
    n, hidden = h.shape
    for k in range(n):
        for j in range(hidden):
            v = out[k, j]
            positive = _ZERO if v < _ZERO else v
            v = tanh32(v) if squash else positive
            out[k, j] = v
            h[k, j] = v


@compiled(fastmath=FUSED)
def rnn_grad(dgates: Any, out: Any, dh: Any, squash: Any) -> None:
    """The gradient before activation, from the result."""
    n, hidden = dh.shape
    for k in range(n):
        for j in range(hidden):
            v = out[k, j]
            passed = dh[k, j] if v > _ZERO else _ZERO
            dgates[k, j] = dh[k, j] * (_ONE - v * v) if squash else passed
