"""GRU over a whole sequence; ``rnn.py`` explains the loop.

Gates lie side by side in PyTorch's order: reset r, update z, new n, with
``n = tanh(W x + b + r q)`` and ``q = U h + c``. For backward, the node keeps the activated gates
and q, four numbers per unit and step, beside the input and the result. (q could be had again for
one more product per step.)

Source:
    Cho et al.: "Learning Phrase Representations using RNN Encoder-Decoder", 2014; with the reset
    gate after the product, as in cuDNN and PyTorch.
"""

from __future__ import annotations

from ...kernels.common.layout import contiguous
from ...kernels.common.matmul import matmul_into
from ...kernels.common.strided_ufuncs import negate
from ...kernels.cuda import recurrent as recurrent_on_gpu
from ...spec import Spec
from ..linalg.linear import linear
from ..overwrite import write_over
from ..registry import op
from . import rnn
from .lstm import sigmoid_in_place


def _infer(input, w_ih, w_hh, b_ih, b_hh, h0, *, runs, reverse):
    size = w_hh.shape[1]
    rows, batch, hidden = rnn.geometry(
        "gru", input, runs, 3, w_ih, w_hh, (b_ih, b_hh), ((h0, size),)
    )
    kind = rnn.kernel_type(input)
    return (
        input.like((*input.shape[:-1], hidden)),
        input.like((batch, hidden)),
        input.like((rows, 3 * hidden)),
        input.like((rows, hidden)),
        Spec((4 * hidden,), kind),
        Spec((3 * hidden * batch,), kind),
        rnn.transposed_spec(w_hh, kind, input, runs),
    )


def _samples(make):
    base = {"runs": None, "reverse": False}
    weights = make(6, 3), make(6, 2), make(6), make(6)
    yield (make(3, 2, 3), *weights, make(2, 2)), base
    yield (make(3, 2, 3), *weights, None), base | {"reverse": True}
    yield (make(2, 2, 3), *weights[:2], None, None, make(2, 2)), base
    packed = base | {"runs": ((1, 3), (1, 2), (2, 1))}
    yield (make(7, 3), *weights, make(3, 2)), packed
    yield (make(7, 3), *weights, make(3, 2)), packed | {"reverse": True}
    yield (make(3, 0, 3), *weights, make(0, 2)), base


@op(
    infer=_infer,
    returns=("out", "h_n"),
    aux=("gates", "inner"),
    scratch=("bias", "product", "w_hh_t"),
    promote="same",
    layout=contiguous,
    samples=_samples,
    flops=lambda input, w_ih, w_hh, *_, **__: rnn.projection_flops(3, input, w_ih, w_hh),
    autocast="low",
)
def _gru(
    xp, out, h_n, gates, inner, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0, *, runs,
    reverse,
):  # fmt: skip
    """Run a GRU over a sequence.

    Args:
        input: (steps, batch, features), or (rows, features) with ``runs``.
        w_ih: (3 hidden, features).
        w_hh: (3 hidden, hidden).
        b_ih: (3 hidden,), or None.
        b_hh: (3 hidden,), or None.
        h0: (batch, hidden), or None for zeros.
        runs: How many steps have how many rows, or None.
        reverse: From the last step to the first.

    Returns:
        (all states, the last of each sequence).
    """
    _forward(
        _step, xp, out, h_n, gates, inner, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0,
        runs, reverse,
    )  # fmt: skip


@_gru.kernel("cpu", when=rnn.compilable, layout=contiguous)
def _(
    xp, out, h_n, gates, inner, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0, *, runs,
    reverse,
):  # fmt: skip
    from ...kernels.cpu import recurrent

    def step(xp, *arrays):
        recurrent.gru(*arrays)

    _forward(
        step, xp, out, h_n, gates, inner, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0,
        runs, reverse,
    )  # fmt: skip


@_gru.kernel("cuda", when=rnn.on_gpu, layout=contiguous)
def _(
    xp, out, h_n, gates, inner, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0, *, runs,
    reverse,
):  # fmt: skip
    _forward(
        recurrent_on_gpu.gru, xp, out, h_n, gates, inner, bias, product, w_hh_t, input, w_ih, w_hh,
        b_ih, b_hh, h0, runs, reverse,
    )  # fmt: skip


def _forward(
    step, xp, out, h_n, gates, inner, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0,
    runs, reverse,
):  # fmt: skip
    y, hidden = rnn.flat(out), h_n.shape[1]
    wide = 2 * hidden
    # r and z add both biases; n and q keep theirs apart.
    rnn.sum_biases(xp, bias[:wide], *(b if b is None else b[:wide] for b in (b_ih, b_hh)))
    rnn.sum_biases(xp, bias[wide : 3 * hidden], b_ih if b_ih is None else b_ih[wide:])
    rnn.sum_biases(xp, bias[3 * hidden :], b_hh if b_hh is None else b_hh[wide:])
    rnn.begin(xp, h_n, h0)
    matmul_into(xp, rnn.flat(input), w_ih.T, out=gates)
    rnn.transpose_weight(xp, w_hh_t, w_hh)
    for first, count, *_ in rnn.steps(input.shape[:-1], runs, reverse):
        rows, h = slice(first, first + count), h_n[:count]
        made = rnn.recurrent_matmul_into(xp, product, w_hh, w_hh_t, h)
        step(xp, gates[rows], inner[rows], made, bias, h)
        xp.copyto(y[rows], h)


def _thirds(array):
    size = array.shape[1] // 3
    return tuple(array[:, k * size : (k + 1) * size] for k in range(3))


def _step(xp, gates, inner, product, bias, h):
    wide = 2 * h.shape[1]
    r, z, new = _thirds(gates)
    both = gates[:, :wide]
    xp.add(both, product[:, :wide], out=both)
    xp.add(gates, bias[: gates.shape[1]], out=gates)
    xp.add(product[:, wide:], bias[gates.shape[1] :], out=inner)
    sigmoid_in_place(xp, both)
    room = product[:, wide:]  # no longer wanted
    xp.multiply(r, inner, out=room)
    xp.add(new, room, out=new)
    xp.tanh(new, out=new)
    xp.subtract(h, new, out=h)
    xp.multiply(h, z, out=h)
    xp.add(h, new, out=h)


@_gru.vjp("input", "w_ih", "w_hh", "b_ih", "b_hh", "h0", room=("gates",))
def _(
    g_out, g_h_n, needs, input, w_ih, w_hh, b_ih, b_hh, h0, out, gates, inner, runs, reverse, room
):
    given = g_out, g_h_n, input, w_ih, w_hh, h0, out, gates, inner
    attributes = {"runs": runs, "reverse": reverse, "needs": tuple(needs[:5])}
    _, dx, dw_ih, dw_hh, db_ih, db_hh, dh = write_over(room, _gru_grad, *given, **attributes)
    found = (dx, dw_ih, dw_hh, db_ih, db_hh, dh)
    return tuple(d if n else None for d, n in zip(found, needs, strict=True))


@_gru.composite
def _(input, w_ih, w_hh, b_ih, b_hh, h0, *, runs, reverse):
    order = rnn.steps(tuple(input.shape[:-1]), runs, reverse)
    h = rnn.start(h0, input, order[-1 if reverse else 0][1], w_hh.shape[1])
    pre = linear(rnn.flat(input), w_ih, b_ih)
    found = []
    for first, count, *_ in order:
        rx, zx, nx = pre[first : first + count].chunk(3, 1)
        rh, zh, q = linear(h[:count], w_hh, b_hh).chunk(3, 1)
        z = (zx + zh).sigmoid()
        new = (nx + (rx + rh).sigmoid() * q).tanh()
        new = new + z * (h[:count] - new)
        found.append(new)
        h = rnn.advanced(h, new)
    return rnn.packed_again(found, reverse).reshape(*input.shape[:-1], h.shape[-1]), h


def _grad_infer(
    grad_out, grad_h, input, w_ih, w_hh, h0, result, gates, inner, *, runs, reverse, needs
):
    rows, hidden = inner.shape
    kind, batch = rnn.kernel_type(input), runs[0][1] if runs else input.shape[1]
    bias = w_hh.like((w_hh.shape[0] if needs[4] else 0,))
    more = rnn.more_spec(input, w_hh, h0, runs, reverse, needs[2])
    return (
        Spec((rows, 3 * hidden), kind),
        *rnn.gradient_specs(input, w_ih, w_hh, needs),
        bias,
        input.like((batch, hidden)),
        Spec((rows, hidden), kind),
        Spec((batch, 3 * hidden), kind),
        Spec((batch, hidden), kind),
        more,
    )


def _grad_samples(make):
    base = {"runs": None, "reverse": False, "needs": (True,) * 5}
    weights, kept = (make(6, 3), make(6, 2)), rnn.active(make, (3, 2, 2), (3, 2, 6), (3, 2, 2))
    kept = kept[0], *map(rnn.flat, kept[1:])
    x, state = make(3, 2, 3), make(2, 2)
    yield (make(3, 2, 2), state, x, *weights, state, *kept), base
    less = base | {"reverse": True, "needs": (False, True, False, False, True)}
    yield (None, state, x, *weights, None, *kept), less
    packed = base | {"runs": ((1, 3), (1, 2), (2, 1))}
    kept = rnn.active(make, (7, 2), (7, 6), (7, 2))
    yield (make(7, 2), None, make(7, 3), *weights, make(3, 2), *kept), packed
    none, kept = make(3, 0, 2), (make(3, 0, 2), make(0, 6), make(0, 2))
    yield (none, None, make(3, 0, 3), *weights, None, *kept), base


@op(
    infer=_grad_infer,
    returns=("dgates", "dx", "dw_ih", "dw_hh", "db_ih", "db_hh", "dh"),
    scratch=("dinner", "side", "room", "more"),
    layout=contiguous,
    samples=_grad_samples,
    flops=lambda g, h, input, w_ih, w_hh, *_, **__: 2 * rnn.projection_flops(3, input, w_ih, w_hh),
)
def _gru_grad(
    xp, dgates, dx, dw_ih, dw_hh, db_ih, db_hh, dh, dinner, side, room, more, grad_out, grad_h,
    input, w_ih, w_hh, h0, result, gates, inner, *, runs, reverse, needs,
):  # fmt: skip
    """Backward of ``_gru``; ``needs`` selects among input, weights and biases."""
    _backward(
        _slope, xp, dgates, dx, dw_ih, dw_hh, db_ih, db_hh, dh, dinner, side, room, more, grad_out,
        grad_h, input, w_ih, w_hh, h0, result, gates, inner, runs, reverse, needs,
    )  # fmt: skip


@_gru_grad.kernel(
    "cpu",
    when=lambda g, h, input, w_ih, *_, **__: rnn.compilable(input, w_ih),
    layout=contiguous,
    overwrites=("gates",),
)
def _(
    xp, dgates, dx, dw_ih, dw_hh, db_ih, db_hh, dh, dinner, side, room, more, grad_out, grad_h,
    input, w_ih, w_hh, h0, result, gates, inner, *, runs, reverse, needs,
):  # fmt: skip
    from ...kernels.cpu import recurrent

    def slope(xp, *arrays):
        recurrent.gru_grad(*arrays)

    _backward(
        slope, xp, dgates, dx, dw_ih, dw_hh, db_ih, db_hh, dh, dinner, side, room, more, grad_out,
        grad_h, input, w_ih, w_hh, h0, result, gates, inner, runs, reverse, needs,
    )  # fmt: skip


@_gru_grad.kernel(
    "cuda", when=lambda g, h, input, *rest, **_: rnn.on_gpu(input, *rest), layout=contiguous
)
def _(
    xp, dgates, dx, dw_ih, dw_hh, db_ih, db_hh, dh, dinner, side, room, more, grad_out, grad_h,
    input, w_ih, w_hh, h0, result, gates, inner, *, runs, reverse, needs,
):  # fmt: skip
    _backward(
        recurrent_on_gpu.gru_grad, xp, dgates, dx, dw_ih, dw_hh, db_ih, db_hh, dh, dinner, side,
        room, more, grad_out, grad_h, input, w_ih, w_hh, h0, result, gates, inner, runs, reverse,
        needs,
    )  # fmt: skip


def _backward(
    slope, xp, dgates, dx, dw_ih, dw_hh, db_ih, db_hh, dh, dinner, side, room, more, grad_out,
    grad_h, input, w_ih, w_hh, h0, result, gates, inner, runs, reverse, needs,
):  # fmt: skip
    y, shape, wide = rnn.flat(result), input.shape[:-1], 2 * inner.shape[1]
    above = None if grad_out is None else rnn.flat(grad_out)
    rnn.begin(xp, dh, grad_h)
    for step in reversed(rnn.steps(shape, runs, reverse)):
        first, count = step[:2]
        d = dh[:count]
        if above is not None:
            xp.add(d, above[first : first + count], out=d)
        for some, before in rnn.preceding(step, y, h0):
            here = slice(first + some.start, first + some.stop)
            arrays = (dgates[here], dinner[here], side[some], gates[here], inner[here])
            slope(xp, *arrays, before, d[some])
        xp.add(d, matmul_into(xp, side[:count], w_hh, out=room[:count]), out=d)
    if needs[2]:
        ranges = rnn.joined(shape, runs, reverse)
        # The new gate's share reaches the weight through q.
        rnn.weight_gradient(xp, dw_hh[:wide], more[:wide], dgates[:, :wide], y, h0, ranges)
        rnn.weight_gradient(xp, dw_hh[wide:], more[wide:], dinner, y, h0, ranges)
    rnn.input_gradients(xp, dx, dw_ih, db_ih, dgates, input, w_ih, (needs[0], needs[1], needs[3]))
    if needs[4]:
        xp.sum(dgates[:, :wide], axis=0, out=db_hh[:wide])
        xp.sum(dinner, axis=0, out=db_hh[wide:])


def _slope(xp, dgates, dinner, side, gates, inner, before, dh):
    r, z, new = _thirds(gates)
    dr, dz, dn = _thirds(dgates)
    room = side[:, : dh.shape[1]]
    xp.multiply(new, new, out=dn)
    xp.subtract(1, dn, out=dn)
    xp.subtract(1, z, out=dz)
    xp.multiply(dn, dz, out=dn)
    xp.multiply(dn, dh, out=dn)
    xp.multiply(dz, z, out=dz)
    xp.multiply(dz, dh, out=dz)
    if before.shape[0]:
        xp.subtract(before, new, out=room)
    else:
        negate(xp, new, room)
    xp.multiply(dz, room, out=dz)
    xp.subtract(1, r, out=dr)
    xp.multiply(dr, r, out=dr)
    xp.multiply(dr, inner, out=dr)
    xp.multiply(dr, dn, out=dr)
    xp.multiply(dn, r, out=dinner)
    for third, made in zip(_thirds(side), (dr, dz, dinner), strict=True):
        xp.copyto(third, made)
    xp.multiply(dh, z, out=dh)
