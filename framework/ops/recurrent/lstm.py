"""LSTM over a whole sequence; ``sequences.py`` explains the loop.

Gates lie side by side in PyTorch's order: input, forget, cell, output. For backward, the node keeps
the activated gates and the cell states, five numbers per unit and step, beside the input and the
result: gates overwrite the projected inputs in place, and ``tanh`` of a cell is taken again.

Source:
    Hochreiter and Schmidhuber: "Long Short-Term Memory", 1997; Gers et al. 2000 (forget gates);
    Sak et al. 2014 (projection of the state).
"""

from __future__ import annotations

from math import prod

from ...kernels.common import matmul as products
from ...kernels.common.layout import contiguous
from ...kernels.common.matmul import matmul_into
from ...kernels.common.strided_ufuncs import negate
from ...kernels.cuda import recurrent as recurrent_on_gpu
from ...spec import Spec
from ..linalg.linear import linear
from ..overwrite import write_over
from ..registry import op
from . import sequences as seq


def _infer(input, w_ih, w_hh, b_ih, b_hh, w_hr, h0, c0, *, runs, reverse):
    size = w_hh.shape[1]
    rows, batch, hidden = seq.geometry(
        "lstm", input, runs, 4, w_ih, w_hh, (b_ih, b_hh), ((h0, size), (c0, w_ih.shape[0] // 4))
    )
    if size != hidden if w_hr is None else tuple(w_hr.shape) != (size, hidden):
        raise RuntimeError(
            f"lstm: a state of size {size} beside {hidden} cells needs w_hr ({size}, {hidden}); "
            f"got {None if w_hr is None else tuple(w_hr.shape)}."
        )
    kind = seq.kernel_type(input)
    return (
        input.like((*input.shape[:-1], size)),
        input.like((batch, size)),
        input.like((batch, hidden)),
        input.like((rows, 4 * hidden)),
        input.like((rows, hidden)),
        Spec((4 * hidden,), kind),
        Spec((4 * hidden * batch,), kind),
        Spec((0 if w_hr is None else batch, hidden), kind),
        seq.transposed_spec(w_hh, kind, input, runs),
    )


def _flops(input, w_ih, w_hh, b_ih, b_hh, w_hr, *_, **__):
    more = 0 if w_hr is None else 2 * prod(input.shape[:-1]) * w_hr.numel
    return seq.projection_flops(4, input, w_ih, w_hh) + more


def _samples(make):
    base = {"runs": None, "reverse": False}
    weights = make(8, 3), make(8, 2), make(8), make(8)
    yield (make(3, 2, 3), *weights, None, make(2, 2), make(2, 2)), base
    yield (make(3, 2, 3), *weights, None, None, None), base | {"reverse": True}
    small = make(12, 2), make(12, 2), None, None, make(2, 3)
    yield (make(3, 2, 2), *small, make(2, 2), make(2, 3)), base
    packed = base | {"runs": ((1, 3), (1, 2), (2, 1))}
    yield (make(7, 3), *weights, None, make(3, 2), make(3, 2)), packed
    yield (make(7, 2), *small, make(3, 2), make(3, 3)), packed | {"reverse": True}
    yield (make(3, 0, 3), *weights, None, make(0, 2), make(0, 2)), base


@op(
    infer=_infer,
    returns=("out", "h_n", "c_n"),
    aux=("gates", "cells"),
    scratch=("bias", "product", "hidden", "w_hh_t"),
    promote="same",
    layout=contiguous,
    flops=_flops,
    samples=_samples,
    autocast="low",
)
def _lstm(
    xp, out, h_n, c_n, gates, cells, bias, product, hidden, w_hh_t, input, w_ih, w_hh, b_ih, b_hh,
    w_hr, h0, c0, *, runs, reverse,
):  # fmt: skip
    """Run an LSTM over a sequence.

    Args:
        input: (steps, batch, features), or (rows, features) with ``runs``.
        w_ih: (4 hidden, features).
        w_hh: (4 hidden, size), size being hidden without ``w_hr``.
        b_ih: (4 hidden,), or None.
        b_hh: (4 hidden,), or None.
        w_hr: (size, hidden) projects the state; or None.
        h0: (batch, size), or None for zeros.
        c0: (batch, hidden), or None for zeros.
        runs: How many steps have how many rows, or None.
        reverse: From the last step to the first.

    Returns:
        (all states, each sequence's last state, its last cells).
    """
    _forward(
        _step, xp, out, h_n, c_n, gates, cells, bias, product, hidden, w_hh_t, input, w_ih, w_hh,
        b_ih, b_hh, w_hr, h0, c0, runs, reverse,
    )  # fmt: skip


def _whole(input, w_ih, w_hh, b_ih, b_hh, w_hr, *_, runs, **__):
    return w_hr is None and runs is None and seq.compilable(input, w_ih)


def _packed(input, w_ih, w_hh, b_ih, *_, **__):
    # The summed bias, the weight's panels and room for those of the state.
    (wide, hidden), kind = w_hh.shape, seq.kernel_type(input)
    return (
        Spec((wide,), kind),
        Spec((seq.panel_elements(hidden, wide),), kind),
        Spec((seq.room_elements(hidden, input.shape[1]),), kind),
    )


@_lstm.kernel("cpu", when=_whole, layout=contiguous, scratch=_packed)
def _(
    xp, out, h_n, c_n, gates, cells, bias, panels, room, input, w_ih, w_hh, b_ih, b_hh, w_hr, h0,
    c0, *, runs, reverse,
):  # fmt: skip
    from ...kernels.cpu.recurrent import lstm_sequence, packed_product

    wide, hidden = w_hh.shape
    seq.sum_biases(xp, bias, b_ih, b_hh)
    seq.begin(xp, h_n, h0)
    seq.begin(xp, c_n, c0)
    products.multiply(seq.flat(input), w_ih.T, gates, bias)
    packed_product.pack(panels, w_hh.reshape(-1), hidden, wide, True)
    arrays = out, h_n, c_n, gates, cells, room, panels, reverse
    packed_product.run(lstm_sequence.forward, input.shape[1], gates.shape, *arrays)


@_lstm.kernel(
    "cpu",
    when=lambda *specs, **attributes: (
        seq.compilable(*specs[:2]) and not _whole(*specs, **attributes)
    ),
    layout=contiguous,
)
def _(
    xp, out, h_n, c_n, gates, cells, bias, product, hidden, w_hh_t, input, w_ih, w_hh, b_ih, b_hh,
    w_hr, h0, c0, *, runs, reverse,
):  # fmt: skip
    step = seq.compiled_step("lstm")
    _forward(
        step, xp, out, h_n, c_n, gates, cells, bias, product, hidden, w_hh_t, input, w_ih, w_hh,
        b_ih, b_hh, w_hr, h0, c0, runs, reverse,
    )  # fmt: skip


@_lstm.kernel("cuda", when=seq.on_gpu, layout=contiguous)
def _(
    xp, out, h_n, c_n, gates, cells, bias, product, hidden, w_hh_t, input, w_ih, w_hh, b_ih, b_hh,
    w_hr, h0, c0, *, runs, reverse,
):  # fmt: skip
    _forward(
        recurrent_on_gpu.lstm, xp, out, h_n, c_n, gates, cells, bias, product, hidden, w_hh_t,
        input, w_ih, w_hh, b_ih, b_hh, w_hr, h0, c0, runs, reverse,
    )  # fmt: skip


def _forward(
    step, xp, out, h_n, c_n, gates, cells, bias, product, hidden, w_hh_t, input, w_ih, w_hh, b_ih,
    b_hh, w_hr, h0, c0, runs, reverse,
):  # fmt: skip
    y = seq.flat(out)
    seq.sum_biases(xp, bias, b_ih, b_hh)
    seq.begin(xp, h_n, h0)
    seq.begin(xp, c_n, c0)
    matmul_into(xp, seq.flat(input), w_ih.T, out=gates)
    seq.transpose_weight(xp, w_hh_t, w_hh)
    for first, count, *_ in seq.steps(input.shape[:-1], runs, reverse):
        rows, h = slice(first, first + count), h_n[:count]
        made = seq.recurrent_matmul_into(xp, product, w_hh, w_hh_t, h)
        state = h if w_hr is None else hidden[:count]
        step(xp, gates[rows], made, bias, c_n[:count], cells[rows], state)
        if w_hr is not None:
            matmul_into(xp, state, w_hr.T, out=h)
        xp.copyto(y[rows], h)


def _quarters(array):
    size = array.shape[1] // 4
    return tuple(array[:, k * size : (k + 1) * size] for k in range(4))


def sigmoid_in_place(xp, array):
    """Apply the sigmoid ``1 / (1 + exp(-array))`` in place."""
    negate(xp, array, array)
    xp.exp(array, out=array)
    xp.add(array, 1, out=array)
    xp.reciprocal(array, out=array)


def _step(xp, gates, product, bias, c, cells, h):
    xp.add(gates, product, out=gates)
    xp.add(gates, bias, out=gates)
    i, f, g, o = _quarters(gates)
    for gate in (i, f, o):
        sigmoid_in_place(xp, gate)
    xp.tanh(g, out=g)
    xp.multiply(c, f, out=c)
    xp.multiply(i, g, out=h)
    xp.add(c, h, out=c)
    xp.copyto(cells, c)
    xp.tanh(c, out=h)
    xp.multiply(h, o, out=h)


@_lstm.vjp("input", "w_ih", "w_hh", "b_ih", "b_hh", "w_hr", "h0", "c0", room=("gates",))
def _(
    g_out, g_h_n, g_c_n, needs, input, w_ih, w_hh, b_ih, b_hh, w_hr, h0, c0, out, gates, cells,
    runs, reverse, room,
):  # fmt: skip
    wanted = (needs[0], needs[1], needs[2], needs[3] or needs[4], needs[5])
    given = g_out, g_h_n, g_c_n, input, w_ih, w_hh, w_hr, h0, c0, out, gates, cells
    attributes = {"runs": runs, "reverse": reverse, "needs": wanted}
    _, dx, dw_ih, dw_hh, db, dw_hr, dh, dc = write_over(room, _lstm_grad, *given, **attributes)
    found = (dx, dw_ih, dw_hh, db, db, dw_hr, dh, dc)
    return tuple(d if n else None for d, n in zip(found, needs, strict=True))


@_lstm.composite
def _(input, w_ih, w_hh, b_ih, b_hh, w_hr, h0, c0, *, runs, reverse):
    order = seq.steps(tuple(input.shape[:-1]), runs, reverse)
    batch = order[-1 if reverse else 0][1]
    h = seq.start(h0, input, batch, w_hh.shape[1])
    c = seq.start(c0, input, batch, w_hh.shape[0] // 4)
    pre = linear(seq.flat(input), w_ih, b_ih)
    found = []
    for first, count, *_ in order:
        both = pre[first : first + count] + linear(h[:count], w_hh, b_hh)
        i, f, g, o = both.chunk(4, 1)
        cell = f.sigmoid() * c[:count] + i.sigmoid() * g.tanh()
        new = o.sigmoid() * cell.tanh()
        if w_hr is not None:
            new = linear(new, w_hr)
        found.append(new)
        h, c = seq.advanced(h, new), seq.advanced(c, cell)
    return seq.packed_again(found, reverse).reshape(*input.shape[:-1], h.shape[-1]), h, c


def _grad_infer(
    grad_out, grad_h, grad_c, input, w_ih, w_hh, w_hr, h0, c0, result, gates, cells, *, runs,
    reverse, needs,
):  # fmt: skip
    rows, hidden = cells.shape
    size, kind = w_hh.shape[1], seq.kernel_type(input)
    batch = runs[0][1] if runs else input.shape[1]
    projected = w_hr is not None
    again = projected and needs[4]
    return (
        Spec((rows, 4 * hidden), kind),
        *seq.gradient_specs(input, w_ih, w_hh, needs),
        w_hr if again else input.like((0,)),
        input.like((batch, size)),
        input.like((batch, hidden)),
        seq.more_spec(input, w_hh, h0, runs, reverse, needs[2]),
        Spec((batch if projected else 0, hidden), kind),
        Spec((rows if again else 0, size), kind),
        Spec((rows if again else 0, hidden), kind),
    )


def _grad_samples(make):
    base = {"runs": None, "reverse": False, "needs": (True,) * 5}
    weights, kept = (make(8, 3), make(8, 2)), seq.active(make, (3, 2, 2), (3, 2, 8), (3, 2, 2))
    kept = kept[0], *map(seq.flat, kept[1:])
    x, state = make(3, 2, 3), make(2, 2)
    yield (make(3, 2, 2), state, state, x, *weights, None, state, state, *kept), base
    less = base | {"reverse": True, "needs": (False, True, False, False, False)}
    yield (None, state, None, x, *weights, None, None, None, *kept), less
    small = make(12, 2), make(12, 2), make(2, 3)
    packed = base | {"runs": ((1, 3), (1, 2), (2, 1))}
    kept = seq.active(make, (7, 2), (7, 12), (7, 3))
    yield (make(7, 2), None, make(3, 3), make(7, 2), *small, None, make(3, 3), *kept), packed
    none, kept = make(3, 0, 2), (make(3, 0, 2), make(0, 8), make(0, 2))
    yield (none, None, None, make(3, 0, 3), *weights, None, None, None, *kept), base


@op(
    infer=_grad_infer,
    returns=("dgates", "dx", "dw_ih", "dw_hh", "db", "dw_hr", "dh", "dc"),
    scratch=("more", "dhidden", "above", "hidden"),
    layout=contiguous,
    samples=_grad_samples,
    flops=lambda g, h, c, x, w_ih, w_hh, *r, **__: 2 * seq.projection_flops(4, x, w_ih, w_hh),
)
def _lstm_grad(
    xp, dgates, dx, dw_ih, dw_hh, db, dw_hr, dh, dc, more, dhidden, above, hidden, grad_out, grad_h,
    grad_c, input, w_ih, w_hh, w_hr, h0, c0, result, gates, cells, *, runs, reverse, needs,
):  # fmt: skip
    """Backward of ``_lstm``; ``needs`` selects among input, weights, bias, projection."""
    _backward(
        _slope, xp, dgates, dx, dw_ih, dw_hh, db, dw_hr, dh, dc, more, dhidden, above, hidden,
        grad_out, grad_h, grad_c, input, w_ih, w_hh, w_hr, h0, c0, result, gates, cells, runs,
        reverse, needs,
    )  # fmt: skip


def _whole_grad(g, h, c, input, w_ih, w_hh, w_hr, *_, runs, **__):
    return _whole(input, w_ih, w_hh, None, None, w_hr, runs=runs)


def _compilable(g, h, c, input, w_ih, *rest, **attributes):
    whole = _whole_grad(g, h, c, input, w_ih, *rest, **attributes)
    return seq.compilable(input, w_ih) and not whole


def _packed_grad(g, h, c, input, w_ih, w_hh, *rest, **attributes):
    # Addends of the weight's gradient, its panels and room for those of the gates.
    inferred = _grad_infer(g, h, c, input, w_ih, w_hh, *rest, **attributes)
    (wide, hidden), kind = w_hh.shape, seq.kernel_type(input)
    return (
        inferred[-4],
        Spec((seq.panel_elements(wide, hidden),), kind),
        Spec((seq.room_elements(wide, input.shape[1]),), kind),
    )


@_lstm_grad.kernel(
    "cpu",
    when=_whole_grad,
    layout=contiguous,
    layouts={"grad_out": seq.by_step_or_example},
    scratch=_packed_grad,
    overwrites=("gates",),
)
def _(
    xp, dgates, dx, dw_ih, dw_hh, db, dw_hr, dh, dc, more, panels, room, grad_out, grad_h, grad_c,
    input, w_ih, w_hh, w_hr, h0, c0, result, gates, cells, *, runs, reverse, needs,
):  # fmt: skip
    from ...kernels.cpu.recurrent import lstm_sequence, packed_product

    wide, hidden = w_hh.shape
    seq.begin(xp, dh, grad_h)
    seq.begin(xp, dc, grad_c)
    packed_product.pack(panels, w_hh.reshape(-1), wide, hidden, False)
    nothing, shape = packed_product.NOTHING, input.shape[:-1]
    first = nothing if c0 is None else c0
    given = *seq.lines_of(grad_out), gates, cells, first, nothing
    arrays = dgates, dh, dc, *given, room, panels, shape[0], reverse
    packed_product.run(lstm_sequence.backward, shape[1], gates.shape, *arrays)
    if needs[2]:
        y = seq.flat(result)
        seq.weight_gradient(xp, dw_hh, more, dgates, y, h0, seq.joined(shape, runs, reverse))
    seq.input_gradients(xp, dx, dw_ih, db, dgates, input, w_ih, (needs[0], needs[1], needs[3]))


@_lstm_grad.kernel("cpu", when=_compilable, layout=contiguous, overwrites=("gates",))
def _(
    xp, dgates, dx, dw_ih, dw_hh, db, dw_hr, dh, dc, more, dhidden, above, hidden, grad_out, grad_h,
    grad_c, input, w_ih, w_hh, w_hr, h0, c0, result, gates, cells, *, runs, reverse, needs,
):  # fmt: skip
    slope = seq.compiled_step("lstm_grad")
    _backward(
        slope, xp, dgates, dx, dw_ih, dw_hh, db, dw_hr, dh, dc, more, dhidden, above, hidden,
        grad_out, grad_h, grad_c, input, w_ih, w_hh, w_hr, h0, c0, result, gates, cells, runs,
        reverse, needs,
    )  # fmt: skip


@_lstm_grad.kernel(
    "cuda", when=lambda g, h, c, input, *rest, **_: seq.on_gpu(input, *rest), layout=contiguous
)
def _(
    xp, dgates, dx, dw_ih, dw_hh, db, dw_hr, dh, dc, more, dhidden, above, hidden, grad_out, grad_h,
    grad_c, input, w_ih, w_hh, w_hr, h0, c0, result, gates, cells, *, runs, reverse, needs,
):  # fmt: skip
    _backward(
        recurrent_on_gpu.lstm_grad, xp, dgates, dx, dw_ih, dw_hh, db, dw_hr, dh, dc, more, dhidden,
        above, hidden, grad_out, grad_h, grad_c, input, w_ih, w_hh, w_hr, h0, c0, result, gates,
        cells, runs, reverse, needs,
    )  # fmt: skip


def _backward(
    slope, xp, dgates, dx, dw_ih, dw_hh, db, dw_hr, dh, dc, more, dhidden, above, hidden, grad_out,
    grad_h, grad_c, input, w_ih, w_hh, w_hr, h0, c0, result, gates, cells, runs, reverse, needs,
):  # fmt: skip
    y, shape = seq.flat(result), input.shape[:-1]
    g = None if grad_out is None else seq.flat(grad_out)
    again = hidden.shape[0] > 0
    seq.begin(xp, dh, grad_h)
    seq.begin(xp, dc, grad_c)
    for step in reversed(seq.steps(shape, runs, reverse)):
        first, count = step[:2]
        rows, d = slice(first, first + count), dh[:count]
        if g is not None:
            xp.add(d, g[rows], out=d)
        if w_hr is not None:
            if again:
                xp.copyto(above[rows], d)
            d = matmul_into(xp, d, w_hr, out=dhidden[:count])
        for some, before in seq.preceding(step, cells, c0):
            here = slice(first + some.start, first + some.stop)
            state = hidden[here] if again else cells[:0]
            slope(xp, dgates[here], gates[here], cells[here], before, d[some], dc[some], state)
        matmul_into(xp, dgates[rows], w_hh, out=dh[:count])
    if dw_hr.size:  # also of no rows: then zeros
        matmul_into(xp, above.T, hidden, out=dw_hr)
    if needs[2]:
        seq.weight_gradient(xp, dw_hh, more, dgates, y, h0, seq.joined(shape, runs, reverse))
    seq.input_gradients(xp, dx, dw_ih, db, dgates, input, w_ih, (needs[0], needs[1], needs[3]))


def _slope(xp, dgates, gates, cells, before, dh, dc, h):
    i, f, g, o = _quarters(gates)
    di, df, dg, do = _quarters(dgates)
    t = di  # tanh(cells), until di is due
    xp.tanh(cells, out=t)
    if h.shape[0]:
        xp.multiply(o, t, out=h)
    xp.multiply(dh, t, out=do)
    xp.multiply(do, o, out=do)
    xp.subtract(1, o, out=df)
    xp.multiply(do, df, out=do)
    xp.multiply(t, t, out=t)
    xp.subtract(1, t, out=t)
    xp.multiply(t, o, out=t)
    xp.multiply(t, dh, out=t)
    xp.add(dc, t, out=dc)
    xp.subtract(1, i, out=di)
    xp.multiply(di, i, out=di)
    xp.multiply(di, g, out=di)
    xp.multiply(di, dc, out=di)
    xp.multiply(g, g, out=dg)
    xp.subtract(1, dg, out=dg)
    xp.multiply(dg, i, out=dg)
    xp.multiply(dg, dc, out=dg)
    if before.shape[0]:
        xp.subtract(1, f, out=df)
        xp.multiply(df, f, out=df)
        xp.multiply(df, dc, out=df)
        xp.multiply(df, before, out=df)
    else:
        df.fill(0)
    xp.multiply(dc, f, out=dc)
