"""Recurrent layers, one op per sequence: what they share.

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

A layer in float32 without runs or a projection takes all steps in one call of compiled code
(``kernels/cpu/recurrent``): the recurrent weight is packed once, and threads share the rows of the
batch.

Not optimal: both directions of a bidirectional layer run one after the other.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from ...dtypes import float32
from ...kernels.common.matmul import matmul_into
from ...kernels.cpu.compiler import processor
from ...kernels.cuda.kernel import is_float
from ...kernels.runtime import thresholds
from ...spec import Spec
from ..manipulation.cat import cat

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


def by_step_or_example(array):
    """True for (steps, batch, features) in C order, or with one example's steps side by side."""
    return array.flags.c_contiguous or array.transpose(1, 0, 2).flags.c_contiguous


def lines_of(array):
    """Return such an array flat, and how far steps and examples are apart; None: no elements."""
    if array is None:
        return np.empty(0, np.float32), 0, 0
    _, batch, features = array.shape
    if array.flags.c_contiguous:
        return array.reshape(-1), batch * features, features
    turned = array.transpose(1, 0, 2)
    return turned.reshape(-1), features, turned.shape[1] * features


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


def compiled_step(name):
    """Return the compiled loop over a step's gates of this name; it takes no namespace."""
    from ...kernels.cpu.recurrent import single_step

    loop = getattr(single_step, name)
    return lambda xp, *arrays: loop(*arrays)


LINES = 8  # rows that kernels/cpu/recurrent/packed_product.py packs together


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


def kernel_type(spec):
    """Return the dtype in which a kernel computes."""
    return float32 if spec.dtype.is_half else spec.dtype


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
