"""GRU over a whole sequence; ``sequences.py`` explains the loop.

Gates lie side by side in PyTorch's order: reset r, update z, new n, with
``n = tanh(W x + b + r q)`` and ``q = U h + c``. For backward, the node keeps the activated gates
and q, four numbers per unit and step, beside the input and the result. (q could be had again for
one more product per step.)

Source:
    Cho et al.: "Learning Phrase Representations using RNN Encoder-Decoder", 2014; with the reset
    gate after the product, as in cuDNN and PyTorch.
"""

from __future__ import annotations

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
from .lstm import sigmoid_in_place


def _infer(input, w_ih, w_hh, b_ih, b_hh, h0, *, runs, reverse):
    size = w_hh.shape[1]
    rows, batch, hidden = seq.geometry(
        "gru", input, runs, 3, w_ih, w_hh, (b_ih, b_hh), ((h0, size),)
    )
    kind = seq.kernel_type(input)
    return (
        input.like((*input.shape[:-1], hidden)),
        input.like((batch, hidden)),
        input.like((rows, 3 * hidden)),
        input.like((rows, hidden)),
        Spec((4 * hidden,), kind),
        Spec((3 * hidden * batch,), kind),
        seq.transposed_spec(w_hh, kind, input, runs),
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
    flops=lambda input, w_ih, w_hh, *_, **__: seq.projection_flops(3, input, w_ih, w_hh),
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


def _whole(input, w_ih, *_, runs, **__):
    return runs is None and seq.compilable(input, w_ih)


def _packed(input, w_ih, w_hh, *_, **__):
    # Biases, the weight's panels, apart for q, and room for those of the state.
    hidden, kind = w_hh.shape[1], seq.kernel_type(input)
    return (
        Spec((4 * hidden,), kind),
        Spec((seq.panel_elements(hidden, 2 * hidden),), kind),
        Spec((seq.panel_elements(hidden, hidden),), kind),
        Spec((seq.room_elements(hidden, input.shape[1]),), kind),
    )


@_gru.kernel("cpu", when=_whole, layout=contiguous, scratch=_packed)
def _(
    xp, out, h_n, gates, inner, bias, panels, more, room, input, w_ih, w_hh, b_ih, b_hh, h0, *,
    runs, reverse,
):  # fmt: skip
    from ...kernels.cpu.recurrent import gru_sequence, packed_product

    hidden = w_hh.shape[1]
    wide = 2 * hidden
    _sum_biases(xp, bias, b_ih, b_hh, wide)
    seq.begin(xp, h_n, h0)
    products.multiply(seq.flat(input), w_ih.T, gates, bias[: 3 * hidden])
    packed_product.pack(panels, w_hh[:wide].reshape(-1), hidden, wide, True)
    packed_product.pack(more, w_hh[wide:].reshape(-1), hidden, hidden, True)
    arrays = out, h_n, gates, inner, bias[3 * hidden :], room, panels, more, reverse
    packed_product.run(gru_sequence.forward, input.shape[1], gates.shape, *arrays)


@_gru.kernel(
    "cpu",
    when=lambda *specs, **attributes: (
        seq.compilable(*specs[:2]) and not _whole(*specs, **attributes)
    ),
    layout=contiguous,
)
def _(
    xp, out, h_n, gates, inner, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0, *, runs,
    reverse,
):  # fmt: skip
    step = seq.compiled_step("gru")
    _forward(
        step, xp, out, h_n, gates, inner, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0,
        runs, reverse,
    )  # fmt: skip


@_gru.kernel("cuda", when=seq.on_gpu, layout=contiguous)
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
    y, hidden = seq.flat(out), h_n.shape[1]
    _sum_biases(xp, bias, b_ih, b_hh, 2 * hidden)
    seq.begin(xp, h_n, h0)
    matmul_into(xp, seq.flat(input), w_ih.T, out=gates)
    seq.transpose_weight(xp, w_hh_t, w_hh)
    for first, count, *_ in seq.steps(input.shape[:-1], runs, reverse):
        rows, h = slice(first, first + count), h_n[:count]
        made = seq.recurrent_matmul_into(xp, product, w_hh, w_hh_t, h)
        step(xp, gates[rows], inner[rows], made, bias, h)
        xp.copyto(y[rows], h)


def _sum_biases(xp, bias, b_ih, b_hh, wide):
    # r and z add both biases; n and q keep theirs apart.
    of_n = 3 * wide // 2
    seq.sum_biases(xp, bias[:wide], *(b if b is None else b[:wide] for b in (b_ih, b_hh)))
    seq.sum_biases(xp, bias[wide:of_n], b_ih if b_ih is None else b_ih[wide:])
    seq.sum_biases(xp, bias[of_n:], b_hh if b_hh is None else b_hh[wide:])


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
    order = seq.steps(tuple(input.shape[:-1]), runs, reverse)
    h = seq.start(h0, input, order[-1 if reverse else 0][1], w_hh.shape[1])
    pre = linear(seq.flat(input), w_ih, b_ih)
    found = []
    for first, count, *_ in order:
        rx, zx, nx = pre[first : first + count].chunk(3, 1)
        rh, zh, q = linear(h[:count], w_hh, b_hh).chunk(3, 1)
        z = (zx + zh).sigmoid()
        new = (nx + (rx + rh).sigmoid() * q).tanh()
        new = new + z * (h[:count] - new)
        found.append(new)
        h = seq.advanced(h, new)
    return seq.packed_again(found, reverse).reshape(*input.shape[:-1], h.shape[-1]), h


def _grad_infer(
    grad_out, grad_h, input, w_ih, w_hh, h0, result, gates, inner, *, runs, reverse, needs
):
    rows, hidden = inner.shape
    kind, batch = seq.kernel_type(input), runs[0][1] if runs else input.shape[1]
    bias = w_hh.like((w_hh.shape[0] if needs[4] else 0,))
    more = seq.more_spec(input, w_hh, h0, runs, reverse, needs[2])
    return (
        Spec((rows, 3 * hidden), kind),
        *seq.gradient_specs(input, w_ih, w_hh, needs),
        bias,
        input.like((batch, hidden)),
        Spec((rows, hidden), kind),
        Spec((batch, 3 * hidden), kind),
        Spec((batch, hidden), kind),
        more,
    )


def _grad_samples(make):
    base = {"runs": None, "reverse": False, "needs": (True,) * 5}
    weights, kept = (make(6, 3), make(6, 2)), seq.active(make, (3, 2, 2), (3, 2, 6), (3, 2, 2))
    kept = kept[0], *map(seq.flat, kept[1:])
    x, state = make(3, 2, 3), make(2, 2)
    yield (make(3, 2, 2), state, x, *weights, state, *kept), base
    less = base | {"reverse": True, "needs": (False, True, False, False, True)}
    yield (None, state, x, *weights, None, *kept), less
    packed = base | {"runs": ((1, 3), (1, 2), (2, 1))}
    kept = seq.active(make, (7, 2), (7, 6), (7, 2))
    yield (make(7, 2), None, make(7, 3), *weights, make(3, 2), *kept), packed
    none, kept = make(3, 0, 2), (make(3, 0, 2), make(0, 6), make(0, 2))
    yield (none, None, make(3, 0, 3), *weights, None, *kept), base


@op(
    infer=_grad_infer,
    returns=("dgates", "dx", "dw_ih", "dw_hh", "db_ih", "db_hh", "dh"),
    scratch=("dinner", "side", "room", "more"),
    layout=contiguous,
    samples=_grad_samples,
    flops=lambda g, h, input, w_ih, w_hh, *_, **__: 2 * seq.projection_flops(3, input, w_ih, w_hh),
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


def _whole_grad(g, h, input, w_ih, *_, runs, **__):
    return _whole(input, w_ih, runs=runs)


def _packed_grad(g, h, input, w_ih, w_hh, *rest, **attributes):
    # The gradient of q, addends of the weight's gradient, its panels and room for the gates'.
    inferred = _grad_infer(g, h, input, w_ih, w_hh, *rest, **attributes)
    (wide, hidden), kind = w_hh.shape, seq.kernel_type(input)
    return (
        inferred[-4],
        inferred[-1],
        Spec((seq.panel_elements(wide, hidden),), kind),
        Spec((seq.room_elements(wide, input.shape[1]),), kind),
    )


@_gru_grad.kernel(
    "cpu",
    when=_whole_grad,
    layout=contiguous,
    layouts={"grad_out": seq.by_step_or_example},
    scratch=_packed_grad,
    overwrites=("gates",),
)
def _(
    xp, dgates, dx, dw_ih, dw_hh, db_ih, db_hh, dh, dinner, more, panels, room, grad_out, grad_h,
    input, w_ih, w_hh, h0, result, gates, inner, *, runs, reverse, needs,
):  # fmt: skip
    from ...kernels.cpu.recurrent import gru_sequence, packed_product

    wide, hidden = w_hh.shape
    seq.begin(xp, dh, grad_h)
    packed_product.pack(panels, w_hh.reshape(-1), wide, hidden, False)
    nothing, shape = packed_product.NOTHING, input.shape[:-1]
    first = nothing if h0 is None else h0
    given = *seq.lines_of(grad_out), gates, inner, seq.flat(result), first
    arrays = dgates, dinner, dh, *given, room, panels
    packed_product.run(gru_sequence.backward, shape[1], gates.shape, *arrays, shape[0], reverse)
    _parameter_gradients(
        xp, dgates, dx, dw_ih, dw_hh, db_ih, db_hh, dinner, more, input, w_ih, h0, result, runs,
        reverse, needs,
    )  # fmt: skip


@_gru_grad.kernel(
    "cpu",
    when=lambda g, h, input, w_ih, *rest, **attributes: (
        seq.compilable(input, w_ih) and not _whole_grad(g, h, input, w_ih, *rest, **attributes)
    ),
    layout=contiguous,
    overwrites=("gates",),
)
def _(
    xp, dgates, dx, dw_ih, dw_hh, db_ih, db_hh, dh, dinner, side, room, more, grad_out, grad_h,
    input, w_ih, w_hh, h0, result, gates, inner, *, runs, reverse, needs,
):  # fmt: skip
    slope = seq.compiled_step("gru_grad")
    _backward(
        slope, xp, dgates, dx, dw_ih, dw_hh, db_ih, db_hh, dh, dinner, side, room, more, grad_out,
        grad_h, input, w_ih, w_hh, h0, result, gates, inner, runs, reverse, needs,
    )  # fmt: skip


@_gru_grad.kernel(
    "cuda", when=lambda g, h, input, *rest, **_: seq.on_gpu(input, *rest), layout=contiguous
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
    y, shape = seq.flat(result), input.shape[:-1]
    above = None if grad_out is None else seq.flat(grad_out)
    seq.begin(xp, dh, grad_h)
    for step in reversed(seq.steps(shape, runs, reverse)):
        first, count = step[:2]
        d = dh[:count]
        if above is not None:
            xp.add(d, above[first : first + count], out=d)
        for some, before in seq.preceding(step, y, h0):
            here = slice(first + some.start, first + some.stop)
            arrays = (dgates[here], dinner[here], side[some], gates[here], inner[here])
            slope(xp, *arrays, before, d[some])
        xp.add(d, matmul_into(xp, side[:count], w_hh, out=room[:count]), out=d)
    _parameter_gradients(
        xp, dgates, dx, dw_ih, dw_hh, db_ih, db_hh, dinner, more, input, w_ih, h0, result, runs,
        reverse, needs,
    )  # fmt: skip


def _parameter_gradients(
    xp, dgates, dx, dw_ih, dw_hh, db_ih, db_hh, dinner, more, input, w_ih, h0, result, runs,
    reverse, needs,
):  # fmt: skip
    y, shape, wide = seq.flat(result), input.shape[:-1], 2 * dinner.shape[1]
    if needs[2]:
        ranges = seq.joined(shape, runs, reverse)
        # The new gate's share reaches the weight through q.
        seq.weight_gradient(xp, dw_hh[:wide], more[:wide], dgates[:, :wide], y, h0, ranges)
        seq.weight_gradient(xp, dw_hh[wide:], more[wide:], dinner, y, h0, ranges)
    seq.input_gradients(xp, dx, dw_ih, db_ih, dgates, input, w_ih, (needs[0], needs[1], needs[3]))
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
