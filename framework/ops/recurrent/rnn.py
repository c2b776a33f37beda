"""The plain recurrence over a whole sequence, ``h = tanh(W x + U h + b)``, or with relu.

``sequences.py`` explains the loop. For backward, the node keeps the input, the states and the
weights.
"""

from __future__ import annotations

from math import prod

from ...kernels.common.layout import contiguous
from ...kernels.common.matmul import matmul_into, multiply
from ...spec import Spec
from ..linalg.linear import linear
from ..registry import op
from .sequences import (
    active,
    advanced,
    begin,
    by_step_or_example,
    compilable,
    compiled_step,
    flat,
    geometry,
    gradient_specs,
    input_gradients,
    joined,
    kernel_type,
    lines_of,
    more_spec,
    packed_again,
    panel_elements,
    projection_flops,
    recurrent_matmul_into,
    room_elements,
    start,
    steps,
    sum_biases,
    transpose_weight,
    transposed_spec,
    weight_gradient,
)


def _rnn_infer(input, w_ih, w_hh, b_ih, b_hh, h0, *, runs, reverse, squash):
    size = w_hh.shape[1]
    _, batch, hidden = geometry("rnn", input, runs, 1, w_ih, w_hh, (b_ih, b_hh), ((h0, size),))
    kind = kernel_type(input)
    return (
        input.like((*input.shape[:-1], hidden)),
        input.like((batch, hidden)),
        Spec((hidden,), kind),
        Spec((hidden * batch,), kind),
        transposed_spec(w_hh, kind, input, runs),
    )


def _rnn_samples(make):
    base = {"runs": None, "reverse": False, "squash": True}
    weights = make(3, 2), make(3, 3), make(3), make(3)
    yield (make(4, 2, 2), *weights, make(2, 3)), base
    yield (make(4, 2, 2), *weights, None), base | {"squash": False, "reverse": True}
    yield (make(2, 3, 2), make(3, 2), make(3, 3), None, None, make(3, 3)), base
    packed = base | {"runs": ((2, 3), (1, 2), (2, 1))}
    yield (make(10, 2), *weights, make(3, 3)), packed
    yield (make(10, 2), *weights, make(3, 3)), packed | {"reverse": True}
    yield (make(3, 0, 2), *weights, make(0, 3)), base


@op(
    infer=_rnn_infer,
    returns=("out", "h_n"),
    scratch=("bias", "product", "w_hh_t"),
    promote="same",
    layout=contiguous,
    flops=lambda input, w_ih, w_hh, *_, **__: projection_flops(1, input, w_ih, w_hh),
    samples=_rnn_samples,
    autocast="low",
)
def _rnn(
    xp, out, h_n, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0, *, runs, reverse, squash
):
    """Run an RNN over a sequence, with tanh, or relu without ``squash``.

    Returns:
        (all states, the last of each sequence).

    Memory:
        Keeps the input, the states and the weights.
    """
    _rnn_forward(
        _rnn_step, xp, out, h_n, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0, runs,
        reverse, squash,
    )  # fmt: skip


def _whole(input, w_ih, *_, runs, **__):
    return runs is None and compilable(input, w_ih)


def _packed(input, w_ih, w_hh, *_, **__):
    # The summed bias, the weight's panels and room for those of the state.
    hidden, kind = w_hh.shape[0], kernel_type(input)
    return (
        Spec((hidden,), kind),
        Spec((panel_elements(hidden, hidden),), kind),
        Spec((room_elements(hidden, input.shape[1]),), kind),
    )


@_rnn.kernel("cpu", when=_whole, layout=contiguous, scratch=_packed)
def _(
    xp, out, h_n, bias, panels, room, input, w_ih, w_hh, b_ih, b_hh, h0, *, runs, reverse, squash
):
    from ...kernels.cpu.recurrent import packed_product, rnn_sequence

    hidden, y = w_hh.shape[0], flat(out)
    sum_biases(xp, bias, b_ih, b_hh)
    begin(xp, h_n, h0)
    multiply(flat(input), w_ih.T, y, bias)
    packed_product.pack(panels, w_hh.reshape(-1), hidden, hidden, True)
    arrays = out, h_n, room, panels, squash, reverse
    packed_product.run(rnn_sequence.forward, input.shape[1], y.shape, *arrays)


@_rnn.kernel(
    "cpu",
    when=lambda *specs, **attributes: compilable(*specs[:2]) and not _whole(*specs, **attributes),
    layout=contiguous,
)
def _(
    xp, out, h_n, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0, *, runs, reverse, squash
):
    step = compiled_step("rnn")
    _rnn_forward(
        step, xp, out, h_n, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0, runs, reverse,
        squash,
    )  # fmt: skip


def _rnn_forward(
    step, xp, out, h_n, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0, runs, reverse,
    squash,
):  # fmt: skip
    y = flat(out)
    sum_biases(xp, bias, b_ih, b_hh)
    begin(xp, h_n, h0)
    matmul_into(xp, flat(input), w_ih.T, out=y)
    transpose_weight(xp, w_hh_t, w_hh)
    for first, count, *_ in steps(input.shape[:-1], runs, reverse):
        h = h_n[:count]
        made = recurrent_matmul_into(xp, product, w_hh, w_hh_t, h)
        step(xp, y[first : first + count], made, bias, h, squash)


def _rnn_step(xp, out, product, bias, h, squash):
    xp.add(out, product, out=out)
    xp.add(out, bias, out=out)
    if squash:
        xp.tanh(out, out=out)
    else:
        xp.maximum(out, 0, out=out)
    xp.copyto(h, out)


@_rnn.vjp("input", "w_ih", "w_hh", "b_ih", "b_hh", "h0")
def _(g_out, g_h_n, needs, input, w_ih, w_hh, b_ih, b_hh, h0, out, runs, reverse, squash):
    wanted = (needs[0], needs[1], needs[2], needs[3] or needs[4])
    dx, dw_ih, dw_hh, db, dh = _rnn_grad(
        g_out, g_h_n, input, w_ih, w_hh, h0, out, runs, reverse, squash, wanted
    )
    return tuple(
        d if n else None for d, n in zip((dx, dw_ih, dw_hh, db, db, dh), needs, strict=True)
    )


@_rnn.composite
def _(input, w_ih, w_hh, b_ih, b_hh, h0, *, runs, reverse, squash):
    order = steps(tuple(input.shape[:-1]), runs, reverse)
    h = start(h0, input, order[-1 if reverse else 0][1], w_hh.shape[1])
    pre = linear(flat(input), w_ih, b_ih)
    found = []
    for first, count, *_ in order:
        new = pre[first : first + count] + linear(h[:count], w_hh, b_hh)
        new = new.tanh() if squash else new.relu()
        found.append(new)
        h = advanced(h, new)
    return packed_again(found, reverse).reshape(*input.shape[:-1], h.shape[-1]), h


def _rnn_grad_infer(
    grad_out, grad_h, input, w_ih, w_hh, h0, result, *, runs, reverse, squash, needs
):
    batch = runs[0][1] if runs else input.shape[1]
    return (
        *gradient_specs(input, w_ih, w_hh, needs),
        input.like((batch, w_hh.shape[1])),
        Spec((prod(input.shape[:-1]), w_hh.shape[0]), kernel_type(input)),
        more_spec(input, w_hh, h0, runs, reverse, needs[2]),
    )


def _rnn_grad_samples(make):
    base = {"runs": None, "reverse": False, "squash": True, "needs": (True,) * 4}
    x, weights, kept = make(4, 2, 2), (make(3, 2), make(3, 3)), active(make, (4, 2, 3))
    yield (make(4, 2, 3), make(2, 3), x, *weights, make(2, 3), *kept), base
    less = base | {"squash": False, "reverse": True, "needs": (False, True, False, False)}
    yield (None, make(2, 3), x, *weights, None, *kept), less
    packed = base | {"runs": ((2, 3), (1, 2), (2, 1))}
    yield (make(10, 3), None, make(10, 2), *weights, make(3, 3), *active(make, (10, 3))), packed
    empty = make(3, 0, 3)
    yield (empty, None, make(3, 0, 2), *weights, None, empty), base


@op(
    infer=_rnn_grad_infer,
    returns=("dx", "dw_ih", "dw_hh", "db", "dh"),
    scratch=("dgates", "more"),
    layout=contiguous,
    samples=_rnn_grad_samples,
    flops=lambda g, h, input, w_ih, w_hh, *_, **__: 2 * projection_flops(1, input, w_ih, w_hh),
)
def _rnn_grad(
    xp, dx, dw_ih, dw_hh, db, dh, dgates, more, grad_out, grad_h, input, w_ih, w_hh, h0, result, *,
    runs, reverse, squash, needs,
):  # fmt: skip
    """Backward of ``_rnn``; ``needs`` selects among input, weights and biases."""
    _rnn_backward(
        _rnn_slope, xp, dx, dw_ih, dw_hh, db, dh, dgates, more, grad_out, grad_h, input, w_ih,
        w_hh, h0, result, runs, reverse, squash, needs,
    )  # fmt: skip


def _whole_grad(g, h, input, w_ih, *_, runs, **__):
    return _whole(input, w_ih, runs=runs)


def _packed_grad(g, h, input, w_ih, w_hh, *rest, **attributes):
    # The gradient before activation, addends, the weight's panels and room for those of it.
    hidden, kind = w_hh.shape[0], kernel_type(input)
    return (
        *_rnn_grad_infer(g, h, input, w_ih, w_hh, *rest, **attributes)[-2:],
        Spec((panel_elements(hidden, hidden),), kind),
        Spec((room_elements(hidden, input.shape[1]),), kind),
    )


@_rnn_grad.kernel(
    "cpu",
    when=_whole_grad,
    layout=contiguous,
    layouts={"grad_out": by_step_or_example},
    scratch=_packed_grad,
)
def _(
    xp, dx, dw_ih, dw_hh, db, dh, dgates, more, panels, room, grad_out, grad_h, input, w_ih, w_hh,
    h0, result, *, runs, reverse, squash, needs,
):  # fmt: skip
    from ...kernels.cpu.recurrent import packed_product, rnn_sequence

    y, shape, hidden = flat(result), input.shape[:-1], w_hh.shape[0]
    begin(xp, dh, grad_h)
    packed_product.pack(panels, w_hh.reshape(-1), hidden, hidden, False)
    arrays = dgates, dh, *lines_of(grad_out), y, room, panels, squash, shape[0], reverse
    packed_product.run(rnn_sequence.backward, shape[1], y.shape, *arrays)
    if needs[2]:
        weight_gradient(xp, dw_hh, more, dgates, y, h0, joined(shape, runs, reverse))
    input_gradients(xp, dx, dw_ih, db, dgates, input, w_ih, (needs[0], needs[1], needs[3]))


@_rnn_grad.kernel(
    "cpu",
    when=lambda g, h, input, w_ih, *rest, **attributes: (
        compilable(input, w_ih) and not _whole_grad(g, h, input, w_ih, *rest, **attributes)
    ),
    layout=contiguous,
)
def _(
    xp, dx, dw_ih, dw_hh, db, dh, dgates, more, grad_out, grad_h, input, w_ih, w_hh, h0, result, *,
    runs, reverse, squash, needs,
):  # fmt: skip
    slope = compiled_step("rnn_grad")
    _rnn_backward(
        slope, xp, dx, dw_ih, dw_hh, db, dh, dgates, more, grad_out, grad_h, input, w_ih, w_hh, h0,
        result, runs, reverse, squash, needs,
    )  # fmt: skip


def _rnn_backward(
    slope, xp, dx, dw_ih, dw_hh, db, dh, dgates, more, grad_out, grad_h, input, w_ih, w_hh, h0,
    result, runs, reverse, squash, needs,
):  # fmt: skip
    y, shape = flat(result), input.shape[:-1]
    above = None if grad_out is None else flat(grad_out)
    begin(xp, dh, grad_h)
    for first, count, *_ in reversed(steps(shape, runs, reverse)):
        rows, d = slice(first, first + count), dh[:count]
        if above is not None:
            xp.add(d, above[rows], out=d)
        slope(xp, dgates[rows], y[rows], d, squash)
        matmul_into(xp, dgates[rows], w_hh, out=d)
    if needs[2]:
        weight_gradient(xp, dw_hh, more, dgates, y, h0, joined(shape, runs, reverse))
    input_gradients(xp, dx, dw_ih, db, dgates, input, w_ih, (needs[0], needs[1], needs[3]))


def _rnn_slope(xp, dgates, out, dh, squash):
    if squash:
        xp.multiply(out, out, out=dgates)
        xp.subtract(1, dgates, out=dgates)
    else:
        xp.greater(out, 0, out=dgates)
    xp.multiply(dgates, dh, out=dgates)
