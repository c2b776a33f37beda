"""Recurrent ops: what they keep, packed and reversed sequences, compiled steps, messages."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.ops.recurrent.gru import _gru
from lowtide.framework.ops.recurrent.lstm import _lstm
from lowtide.framework.ops.recurrent.rnn import _rnn
from lowtide.framework.ops.recurrent.sequences import joined, steps
from lowtide.nn.utils import rnn

KINDS = {"RNN": 1, "GRU": 3, "LSTM": 4}
T, N, D, H = 5, 3, 4, 6


def numbers(*shape, seed=0, dtype=lt.float64):
    values = np.random.default_rng((*shape, seed)).standard_normal(shape)
    return lt.tensor(values, dtype=dtype, requires_grad=True)


def weights(kind, features=D, hidden=H, dtype=lt.float64):
    wide = KINDS[kind] * hidden
    shapes = (wide, features), (wide, hidden), (wide,), (wide,)
    return [numbers(*s, seed=k, dtype=dtype) for k, s in enumerate(shapes)]


def run(kind, x, w, states=(), runs=None, reverse=False):
    given = {"runs": runs, "reverse": reverse}
    if kind == "LSTM":
        return _lstm(x, *w, None, *(states or (None, None)), **given)
    if kind == "GRU":
        return _gru(x, *w, *(states or (None,)), **given)
    return _rnn(x, *w, *(states or (None,)), **given, squash=True)


def values(t):
    return t.detach().numpy()


def nodes(t):
    """How many ops the graph behind a tensor holds."""
    seen, left = set(), [t.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen and node.name() != "AccumulateGrad":
            seen.add(node)
            left += [n for n, _ in node.next_functions]
    return len(seen)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_one_node_whatever_the_length(kind):
    for length in (1, 50):
        out = run(kind, numbers(length, N, D), weights(kind))[0]
        assert nodes(out) == 1


# Per row, of hidden size: the states, the gates, and what else a rule needs.
KEPT = {"RNN": 1, "GRU": 1 + 3 + 1, "LSTM": 1 + 4 + 1}


@pytest.mark.parametrize("kind", KINDS)
def test_only_gates_and_states_are_kept(kind):
    x, w = numbers(T, N, D), weights(kind)
    before = testing.live_bytes()
    out, *finals = run(kind, x, w)
    assert testing.live_bytes() - before == (KEPT[kind] * T + len(finals)) * N * H * 8
    made = {f"_{kind.lower()}.{name}" for name in ("out", "gates", "cells", "inner")}
    kept = [n for label, _, _, n in testing.saved_of([out]) if label in made]
    assert sum(kept) == KEPT[kind] * T * N * H * 8


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_stays_after_backward(kind, leak_check):
    x, w = numbers(T, N, D), weights(kind)
    before = testing.live_bytes()
    run(kind, x, w)[0].sum().backward()
    leaves = [x, *w]
    grads = sum(t.grad.untyped_storage().nbytes() for t in leaves)
    assert testing.live_bytes() - before == grads
    assert w[2].grad.data_ptr() != w[3].grad.data_ptr()


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_backward_finds_what_the_first_left(kind):
    x, w = numbers(T, N, D), weights(kind)
    out = run(kind, x, w)[0]
    first = lt.autograd.grad(out.sum(), [x, *w], retain_graph=True)
    again = lt.autograd.grad(out.sum(), [x, *w])
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(values(a), values(b))


@pytest.mark.parametrize("kind", KINDS)
def test_no_state_is_a_state_of_zeros(kind):
    x, w = numbers(T, N, D), weights(kind)
    zeros = [lt.zeros(N, H, dtype=lt.float64)] * (2 if kind == "LSTM" else 1)
    for reverse in (False, True):
        a, b = (run(kind, x, w, s, reverse=reverse) for s in ((), tuple(zeros)))
        for p, q in zip(a, b, strict=True):
            np.testing.assert_array_equal(values(p), values(q))
        ours = lt.autograd.grad(a[0].sum(), w)
        theirs = lt.autograd.grad(b[0].sum(), w)
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(values(p), values(q), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_reverse_is_the_flipped_sequence(kind):
    x, w = numbers(T, N, D), weights(kind)
    there, *last = run(kind, x, w, reverse=True)
    back, *end = run(kind, x.flip(0), w)
    np.testing.assert_allclose(values(there), values(back)[::-1], rtol=1e-14)
    for a, b in zip(last, end, strict=True):
        np.testing.assert_allclose(values(a), values(b), rtol=1e-14)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_run_as_if_each_were_alone(kind, reverse):
    w = weights(kind)
    given = [numbers(n, D, seed=n) for n in (5, 3, 3, 1)]
    packed = rnn.pack_sequence(given)
    assert packed.batch_sizes.tolist() == [4, 3, 3, 1, 1]
    runs = ((1, 4), (2, 3), (2, 1))
    out, *finals = run(kind, packed.data, w, runs=runs, reverse=reverse)
    together = rnn.unpack_sequence(rnn.PackedSequence(out, packed.batch_sizes))
    for k, x in enumerate(given):
        alone, *last = run(kind, x.unsqueeze(1), w, reverse=reverse)
        np.testing.assert_allclose(values(together[k]), values(alone)[:, 0], rtol=1e-11, atol=1e-13)
        for a, b in zip(finals, last, strict=True):
            np.testing.assert_allclose(values(a)[k], values(b)[0], rtol=1e-11, atol=1e-13)


def test_steps_and_ranges_of_packed_rows():
    shape, runs = (6,), ((1, 3), (1, 2), (1, 1))
    assert steps(shape, runs, False) == ((0, 3, 0, 0), (3, 2, 0, 2), (5, 1, 3, 1))
    assert steps(shape, runs, True) == ((5, 1, 0, 0), (3, 2, 5, 1), (0, 3, 3, 2))
    assert joined(shape, runs, True) == (
        (0, 2, 3, False),
        (2, 3, 2, True),
        (3, 4, 5, False),
        (4, 5, 1, True),
        (5, 6, 0, True),
    )
    # Of a batch without gaps, all rows but the first step's are one range.
    assert joined((4, 3), None, False) == ((0, 3, 0, True), (3, 12, 0, False))
    assert joined((4, 3), None, True) == ((0, 9, 3, False), (9, 12, 0, True))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_steps_equal_the_composition(kind, reverse):
    size = (8, 16, 24), 40
    x = numbers(*size[0], dtype=lt.float32)
    w = [(t.detach() * 0.3).requires_grad_() for t in weights(kind, 24, size[1], lt.float32)]
    states = tuple(numbers(16, 40, seed=k, dtype=lt.float32) for k in range(1 + (kind == "LSTM")))
    leaves = [x, *w, *states]
    wide = [t.detach().double().requires_grad_() for t in leaves]
    fused = run(kind, x, w, states, reverse=reverse)
    plain = run(kind, wide[0], wide[1:5], tuple(wide[5:]), reverse=reverse)
    for a, b in zip(fused, plain, strict=True):
        np.testing.assert_allclose(values(a), values(b), rtol=1e-4, atol=1e-5)
    ours = lt.autograd.grad(sum((o**2).sum() for o in fused), leaves)
    theirs = lt.autograd.grad(sum((o**2).sum() for o in plain), wide)
    for a, b in zip(ours, theirs, strict=True):
        scale = np.abs(values(b)).max()
        np.testing.assert_allclose(values(a), values(b), rtol=1e-3, atol=2e-5 * scale)


@pytest.mark.parametrize("kind", KINDS)
def test_not_a_number_and_large_values_pass_through_compiled_steps(kind):
    x = lt.zeros(2, 16, 24)
    x[0, 0, 0], x[0, 1, 0], x[0, 2, 0] = float("nan"), 1e30, -1e30
    w = [t.detach() for t in weights(kind, 24, 240, lt.float32)]
    out = values(run(kind, x, w)[0])
    assert np.isnan(out[:, 0]).all()
    assert np.isfinite(out[:, 1:]).all()
    assert np.abs(out[:, 1:]).max() <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_rounds_once(kind):
    x, w = numbers(T, N, D, dtype=lt.bfloat16), weights(kind, dtype=lt.bfloat16)
    wide = [t.detach().float() for t in (x, *w)]
    low, high = run(kind, x, w)[0], run(kind, wide[0], wide[1:])[0]
    assert low.dtype is lt.bfloat16
    np.testing.assert_array_equal(values(low.float()), values(high.bfloat16().float()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_step_on_meta_has_the_bytes_of_the_real_one(kind):
    stories = []
    for device in ("cpu", "meta"):
        layer = getattr(lt.nn, kind)(D, H, 2, bidirectional=True, dropout=0.3, device=device)
        x = lt.zeros(T, N, D, device=device)
        lt.reset_peak_memory_stats(device)
        before = testing.live_bytes(device)
        out, last = layer(x)
        story = [testing.live_bytes(device) - before]
        out.sum().backward()
        del out, last
        story += [testing.live_bytes(device) - before]
        stories.append([*story, lt.max_memory_allocated(device) - before])
    assert stories[0] == stories[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (T, D)}, r"\(steps, batch, features\)"),
        ({"x": (7, D), "runs": ((2, 3), (1, 2))}, "8 in all"),
        ({"x": (5, D), "runs": ((1, 2), (1, 3))}, "not increasing"),
        ({"x": (T, N, D + 1)}, "multiplies input features by w_ih"),
        ({"h0": (N, H + 1)}, "begins with a state"),
        ({"b_ih": (H,)}, "adds biases"),
    ],
)
def test_mistakes_are_named(change, message):
    w = weights("GRU")
    if "b_ih" in change:
        w[2] = numbers(*change["b_ih"])
    states = (numbers(*change["h0"]),) if "h0" in change else ()
    with pytest.raises(RuntimeError, match=message):
        run("GRU", numbers(*change.get("x", (T, N, D))), w, states, change.get("runs"))


def test_a_projection_must_fit():
    w = weights("LSTM")
    with pytest.raises(RuntimeError, match=r"needs w_hr \(6, 6\)|beside 6 cells"):
        _lstm(numbers(T, N, D), *w, numbers(2, H), None, None, runs=None, reverse=False)


def test_a_length_beyond_the_input_is_refused():
    with pytest.raises(RuntimeError, match="exceeds the 5 steps"):
        rnn.pack_padded_sequence(lt.zeros(T, 2, 3), [7, 5])


def test_packing_copies_once_and_keeps_an_index():
    x = numbers(T, N, D)
    before = testing.live_bytes()
    packed = rnn.pack_padded_sequence(x, [5, 2, 1])
    assert packed.data.shape == (8, D)
    assert testing.live_bytes() - before == 8 * (8 * D + 8 + T)  # rows, index, batch sizes
    packed.data.sum().backward()
    expected = np.zeros((T, N, D))
    for n, end in enumerate((5, 2, 1)):
        expected[:end, n] = 1
    np.testing.assert_array_equal(x.grad.numpy(), expected)
