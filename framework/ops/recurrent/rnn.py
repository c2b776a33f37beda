"""Recurrent layers, one op per sequence: shared helpers, and the plain RNN.

A layer in one direction is one op (``_rnn``, ``_lstm``, ``_gru``): the inputs of all steps are
projected by one product, then a loop over time does one product with the recurrent weight and one
pass over the gates per step. Backward is another op with the loop the other way; it collects the
gradients before the activations of all steps, so each weight's gradient is one product too. An op
per time step would record hundreds of nodes and keep the gates several times over.

Sequences of different lengths lie as PyTorch packs them: longest first, the rows of a step after
those of the step before. ``runs`` says how many steps have how many rows, as ((steps, rows), ..);
None means that ``input`` is (steps, batch, features). Products with few rows take OpenBLAS a third
less time the other way round, ``weight @ state.T``, or, where the weight is small enough to stay in
the cache, with a w_hh_t copy of it.

An LSTM in float32 without runs or a projection takes all steps in one call of compiled code
(``kernels/cpu/recurrent_sequence.py``): the recurrent weight is packed once, and threads share the
rows of the batch.

Not optimal: both directions of a bidirectional layer run one after the other.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from ...dtypes import float32
from ...kernels.common.layout import contiguous
from ...kernels.common.matmul import matmul_into
from ...kernels.cpu.compiler import processor
from ...kernels.cuda.kernel import is_float
from ...kernels.runtime import thresholds
from ...spec import Spec
from ..linalg.linear import linear
from ..manipulation.cat import cat
from ..registry import op

SMALL = 1 << 18  # bytes of a recurrent weight of which a w_hh_t copy is made

# Where the rows of a step are, and which rows came before them


@lru_cache(maxsize=128)
def steps(shape, runs, reverse):
    """Yield the steps of a sequence in the order of computation.

    Returns:
        ((start, count, before, carried), ..): rows ``start .. start + count``, of which the first
        ``carried`` continue the rows from ``before`` on, and the others the initial state.
    """
    rows = [n for many, n in runs or (shape[:2],) for _ in range(many)]
    starts = [0]
    for n in rows:
        starts.append(starts[-1] + n)
    order = range(len(rows) - 1, -1, -1) if reverse else range(len(rows))
    found, before, last = [], 0, 0
    for t in order:
        found.append((starts[t], rows[t], before, min(last, rows[t])))
        before, last = starts[t], rows[t]
    return tuple(found)


@lru_cache(maxsize=128)
def joined(shape, runs, reverse):
    """Merge ranges into few, long ones.

    Returns:
        ((start, stop, before, initial), ..): the rows follow those from ``before`` on, or, where
        ``initial``, the rows of the initial state from ``before`` on.
    """
    ranges = []
    for start, count, before, carried in steps(shape, runs, reverse):
        if carried:
            ranges.append((start, start + carried, before, False))
        if carried < count:
            ranges.append((start + carried, start + count, carried, True))
    merged = []
    for each in sorted(ranges):
        if merged and not each[3] and not merged[-1][3]:
            start, stop, before, _ = merged[-1]
            if stop == each[0] and before + stop - start == each[2]:
                merged[-1] = (start, each[1], before, False)
                continue
        merged.append(each)
    return tuple(merged)


def on_gpu(input, *specs, **_):
    """True for operands that are all float32 or all float64; None stands for one left out."""
    return is_float(input, *specs)


def preceding(step, states, initial):
    """Yield (slice of a step's rows, the states before them; none of length 0 if they are zero)."""
    _, count, before, carried = step
    if carried:
        yield slice(0, carried), states[before : before + carried]
    if carried < count:
        rows = slice(carried, count)
        yield rows, states[:0] if initial is None else initial[rows]


# What kernels share


def flat(array):
    """Concatenate the rows of all steps: (rows, features)."""
    return array.reshape(prod(array.shape[:-1]), array.shape[-1])


def begin(xp, state, initial):
    """Set the running state to the initial one, or to zero."""
    if initial is None:
        state.fill(0)
    else:
        xp.copyto(state, initial)


def transposed_spec(w_hh, kind, input, runs):
    """Spec of the buffer for the transposed recurrent weight.

    It is empty for a large weight, and for a single step: a copy takes longer than the product.
    """
    single = (sum(many for many, _ in runs) if runs else input.shape[0]) == 1
    small = w_hh.numel * kind.itemsize <= SMALL and not single
    return Spec(w_hh.shape[::-1] if small else (0, 0), kind)


def transpose_weight(xp, w_hh_t, weight):
    """Fill the buffer with the transposed weight, if there is one."""
    if w_hh_t.size:
        xp.copyto(w_hh_t, weight.T)


def recurrent_matmul_into(xp, buffer, weight, w_hh_t, state):
    """Compute ``state @ weight.T`` into the front of a flat buffer."""
    rows, wide = state.shape[0], weight.shape[0]
    out = buffer[: rows * wide]
    if w_hh_t.size:
        return matmul_into(xp, state, w_hh_t, out=out.reshape(rows, wide))
    return matmul_into(xp, weight, state.T, out=out.reshape(wide, rows)).T


def weight_gradient(xp, target, more, dgates, states, initial, ranges):
    """Compute ``target = dgates.T @ (the state before each row)``; ``more`` holds addends."""
    first = True
    for start, stop, before, fresh in ranges:
        if fresh and initial is None:
            continue
        source = (initial if fresh else states)[before : before + stop - start]
        into = target if first else more
        matmul_into(xp, dgates[start:stop].T, source, out=into)
        if not first:
            xp.add(target, more, out=target)
        first = False
    if first:
        target.fill(0)


def input_gradients(xp, dx, dw, db, dgates, input, weight, needs):
    """Compute gradients of the input projection, where needed."""
    if needs[0]:
        matmul_into(xp, dgates, weight, out=flat(dx))
    if needs[1]:
        matmul_into(xp, dgates.T, flat(input), out=dw)
    if needs[2]:
        xp.sum(dgates, axis=0, out=db)


LINES = 8  # rows that kernels/cpu/recurrent_sequence.py packs together


def panel():
    """Columns that it packs together: those of three registers."""
    return 3 * processor.register_bytes() // 4


def panel_elements(inner, columns):
    """Elements of a packed weight (inner, columns)."""
    wide = panel()
    return -(-columns // wide) * wide * inner


def room_elements(inner, batch):
    """Elements that the rows of a batch are packed in, with a tile of results beside each panel."""
    return -(-batch // LINES) * LINES * (inner + panel())


def sum_biases(xp, out, *biases):
    """Sum the biases that are given."""
    out.fill(0)
    for b in biases:
        if b is not None:
            xp.add(out, b, out=out)


def compilable(input, w_ih, *_, **__):
    """True where a compiled step repays its import."""
    rows = prod(input.shape[:-1])
    return input.dtype.name == "float32" and rows * w_ih.shape[0] >= thresholds.COMPILED_HEAVY


# What infer functions share


def geometry(name, input, runs, gates, w_ih, w_hh, biases, states):
    """Check sizes.

    Args:
        name: The op.
        input: Its first input's spec.
        runs: Its attribute.
        gates: Gates per unit.
        w_ih: Spec of the input's weight.
        w_hh: Spec of the state's weight.
        biases: Specs of biases, or None.
        states: (spec or None, size) of each initial state.

    Returns:
        (rows, batch, size of the layer).

    Raises:
        RuntimeError: They do not fit.
    """
    if runs is None:
        if input.ndim != 3:
            raise RuntimeError(
                f"{name} takes input (steps, batch, features), or (rows, features) with runs; got "
                f"{tuple(input.shape)}. Unsqueeze it."
            )
        rows, batch = input.shape[0] * input.shape[1], input.shape[1]
    else:
        sizes = [n for _, n in runs]
        rows, batch = sum(many * n for many, n in runs), sizes[0]
        if input.ndim != 2 or rows != input.shape[0] or sorted(sizes, reverse=True) != sizes:
            raise RuntimeError(
                f"{name}: runs are (steps, rows) with rows not increasing, {rows} in all; got "
                f"input {tuple(input.shape)} and runs {runs}. Pack the sequences longest first."
            )
    wide = w_ih.shape[0]
    size = wide // gates
    if size * gates != wide or w_ih.shape[1] != input.shape[-1] or w_hh.shape[0] != wide:
        raise RuntimeError(
            f"{name} multiplies input features by w_ih ({gates} hidden, features) and the state by "
            f"w_hh ({gates} hidden, size of the state); got input {tuple(input.shape)}, w_ih "
            f"{tuple(w_ih.shape)} and w_hh {tuple(w_hh.shape)}. Reshape one."
        )
    for b in biases:
        if b is not None and tuple(b.shape) != (wide,):
            raise RuntimeError(f"{name} adds biases ({wide},); got {tuple(b.shape)}.")
    for state, width in states:
        if state is not None and tuple(state.shape) != (batch, width):
            raise RuntimeError(
                f"{name} begins with a state ({batch}, {width}); got {tuple(state.shape)}."
            )
    return rows, batch, size


def projection_flops(gates, input, w_ih, w_hh):
    """FLOPs of the two products and ``gates`` activations."""
    rows = prod(input.shape[:-1])
    return rows * (2 * w_ih.numel + 2 * w_hh.numel + 10 * gates * (w_ih.shape[0] // gates))


def packed_again(steps_of, reverse):
    """Reorder the results of steps, in computed order, to the order of time."""
    return cat(steps_of[::-1] if reverse else steps_of)


def advanced(state, new):
    """Return a composition's running state after a step that had fewer rows."""
    return new if new.shape[0] == state.shape[0] else cat([new, state[new.shape[0] :]])


def start(initial, like, batch, size):
    """Return a composition's initial state."""
    return like.new_zeros(batch, size) if initial is None else initial


# The plain recurrence: h = tanh(W x + U h + b), or relu


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


def kernel_type(spec):
    """Return the dtype in which a kernel computes."""
    return float32 if spec.dtype.is_half else spec.dtype


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


@_rnn.kernel("cpu", when=compilable, layout=contiguous)
def _(
    xp, out, h_n, bias, product, w_hh_t, input, w_ih, w_hh, b_ih, b_hh, h0, *, runs, reverse, squash
):
    from ...kernels.cpu import recurrent

    def step(xp, *arrays):
        recurrent.rnn(*arrays)

    _rnn_forward(
        step,
        xp,
        out,
        h_n,
        bias,
        product,
        w_hh_t,
        input,
        w_ih,
        w_hh,
        b_ih,
        b_hh,
        h0,
        runs,
        reverse,
        squash,
    )


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


def gradient_specs(input, w_ih, w_hh, needs):
    """Specs of the gradients of input, weights and bias: empty where not needed."""
    none = input.like((0,))
    return (
        input if needs[0] else none,
        w_ih if needs[1] else none,
        w_hh if needs[2] else none,
        w_ih.like((w_ih.shape[0],)) if needs[3] else none,
    )


def active(make, *shapes):
    """Samples of activations in (0.1, 0.9): gradients of larger values explode."""
    return tuple(make(*shape, low=0.1, high=0.9) for shape in shapes)


def more_spec(input, w_hh, initial, runs, reverse, needed):
    """Spec of the buffer for addends of the recurrent weight's gradient."""
    ranges = joined(tuple(input.shape[:-1]), runs, reverse)
    count = sum(not (fresh and initial is None) for *_, fresh in ranges)
    return Spec(w_hh.shape if needed and count > 1 else (0,), kernel_type(input))


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


@_rnn_grad.kernel(
    "cpu", when=lambda g, h, input, w_ih, *_, **__: compilable(input, w_ih), layout=contiguous
)
def _(
    xp, dx, dw_ih, dw_hh, db, dh, dgates, more, grad_out, grad_h, input, w_ih, w_hh, h0, result, *,
    runs, reverse, squash, needs,
):  # fmt: skip
    from ...kernels.cpu import recurrent

    def slope(xp, *arrays):
        recurrent.rnn_grad(*arrays)

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
