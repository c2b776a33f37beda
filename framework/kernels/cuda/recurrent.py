"""Cells of recurrent nets on GPUs: all that is elementwise in a step, in one launch.

A thread has one unit of one row. Gates lie side by side, as in ``ops/recurrent``.
"""

from __future__ import annotations

from typing import Any

from .kernel import THREADS, CudaKernel, address, blocks_for

_SIGMOID = """
__device__ inline T sigmoid(T x) { return 1 / (1 + lt_exp(-x)); }
"""

_LSTM = CudaKernel(
    "lt_lstm",
    _SIGMOID
    + """
extern "C" __global__ void lt_lstm(
    T *gates, T *product, T *bias, T *c, T *cells, T *h, long long rows, long long hidden,
    long long down, long long along) {
    LT_EACH(k, rows * hidden) {
        long long r = k / hidden, j = k % hidden;
        T *own = gates + r * 4 * hidden + j, *made = product + r * down, value[4];
        for (int q = 0; q < 4; q++)
            value[q] = own[q * hidden] + made[(q * hidden + j) * along] + bias[q * hidden + j];
        T i = sigmoid(value[0]), f = sigmoid(value[1]), g = lt_tanh(value[2]);
        T o = sigmoid(value[3]), cell = c[k] * f + i * g;
        own[0] = i;
        own[hidden] = f;
        own[2 * hidden] = g;
        own[3 * hidden] = o;
        cells[k] = cell;
        c[k] = cell;
        h[k] = lt_tanh(cell) * o;
    }
}
""",
)

_LSTM_GRAD = CudaKernel(
    "lt_lstm_grad",
    """
/* `before` is null for cells that were zero; `h` gets the state again, or is null. */
extern "C" __global__ void lt_lstm_grad(
    T *dgates, T *gates, T *cells, T *before, T *dh, T *dc, T *h, long long rows,
    long long hidden) {
    LT_EACH(k, rows * hidden) {
        long long at = k / hidden * 4 * hidden + k % hidden;
        T *own = gates + at, *d = dgates + at, t = lt_tanh(cells[k]);
        T i = own[0], f = own[hidden], g = own[2 * hidden], o = own[3 * hidden];
        if (h) h[k] = o * t;
        T to_cell = dc[k] + (1 - t * t) * o * dh[k];
        d[3 * hidden] = dh[k] * t * o * (1 - o);
        d[0] = (1 - i) * i * g * to_cell;
        d[2 * hidden] = (1 - g * g) * i * to_cell;
        d[hidden] = before ? (1 - f) * f * to_cell * before[k] : T(0);
        dc[k] = to_cell * f;
    }
}
""",
)

_GRU = CudaKernel(
    "lt_gru",
    _SIGMOID
    + """
extern "C" __global__ void lt_gru(
    T *gates, T *inner, T *product, T *bias, T *h, long long rows, long long hidden,
    long long down, long long along) {
    LT_EACH(k, rows * hidden) {
        long long j = k % hidden;
        T *own = gates + k / hidden * 3 * hidden + j;
        T *made = product + k / hidden * down + j * along;
        T r = sigmoid(own[0] + made[0] + bias[j]);
        T z = sigmoid(own[hidden] + made[hidden * along] + bias[hidden + j]);
        T q = made[2 * hidden * along] + bias[3 * hidden + j];
        T n = lt_tanh(own[2 * hidden] + bias[2 * hidden + j] + r * q);
        own[0] = r;
        own[hidden] = z;
        own[2 * hidden] = n;
        inner[k] = q;
        h[k] = (h[k] - n) * z + n;
    }
}
""",
)


_GRU_GRAD = CudaKernel(
    "lt_gru_grad",
    """
/* `side` gets what the state's product sends back; `before` is null for a state that was zero. */
extern "C" __global__ void lt_gru_grad(
    T *dgates, T *dinner, T *side, T *gates, T *inner, T *before, T *dh, long long rows,
    long long hidden) {
    LT_EACH(k, rows * hidden) {
        long long at = k / hidden * 3 * hidden + k % hidden;
        T r = gates[at], z = gates[at + hidden], n = gates[at + 2 * hidden];
        T dn = (1 - n * n) * (1 - z) * dh[k];
        T dz = (1 - z) * z * dh[k] * ((before ? before[k] : T(0)) - n);
        T dr = (1 - r) * r * inner[k] * dn;
        dgates[at] = side[at] = dr;
        dgates[at + hidden] = side[at + hidden] = dz;
        dgates[at + 2 * hidden] = dn;
        dinner[k] = side[at + 2 * hidden] = dn * r;
        dh[k] *= z;
    }
}
""",
)


def lstm(xp: Any, gates: Any, product: Any, bias: Any, c: Any, cells: Any, h: Any) -> None:
    """Activate the gates of a step, and make its cells and state; ``product`` may lie turned."""
    rows, hidden = (int(n) for n in c.shape)
    down, along = (s // product.itemsize for s in product.strides)
    _LSTM.launch(
        xp, c.dtype, blocks_for(c.size), THREADS, gates, address(product), bias, c, cells, h, rows,
        hidden, down, along,
    )  # fmt: skip


def lstm_grad(
    xp: Any, dgates: Any, gates: Any, cells: Any, before: Any, dh: Any, dc: Any, h: Any
) -> None:
    """Make the gradients of a step's gates and of the cells before; no rows: no such array."""
    rows, hidden = (int(n) for n in cells.shape)
    before, h = (a if a.shape[0] else 0 for a in (before, h))
    _LSTM_GRAD.launch(
        xp, cells.dtype, blocks_for(cells.size), THREADS, dgates, gates, cells, before, dh, dc, h,
        rows, hidden,
    )  # fmt: skip


def gru(xp: Any, gates: Any, inner: Any, product: Any, bias: Any, h: Any) -> None:
    """Activate the gates of a step, and make its state; ``product`` may lie turned."""
    rows, hidden = (int(n) for n in h.shape)
    down, along = (s // product.itemsize for s in product.strides)
    _GRU.launch(
        xp, h.dtype, blocks_for(h.size), THREADS, gates, inner, address(product), bias, h, rows,
        hidden, down, along,
    )  # fmt: skip


def gru_grad(
    xp: Any, dgates: Any, dinner: Any, side: Any, gates: Any, inner: Any, before: Any, dh: Any
) -> None:
    """Make the gradients of a step's gates, and of the state before by way of them alone."""
    rows, hidden = (int(n) for n in dh.shape)
    _GRU_GRAD.launch(
        xp, dh.dtype, blocks_for(dh.size), THREADS, dgates, dinner, side, gates, inner,
        before if before.shape[0] else 0, dh, rows, hidden,
    )  # fmt: skip
