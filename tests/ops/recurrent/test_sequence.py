"""Recurrent layers over a whole sequence in compiled code: the composite's numbers at odd sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.cpu.recurrent import packed_product
from lowtide.framework.kernels.cpu.support import work_pool
from lowtide.framework.kernels.runtime import threads
from lowtide.framework.ops.recurrent.gru import _gru
from lowtide.framework.ops.recurrent.lstm import _lstm
from lowtide.framework.ops.recurrent.rnn import _rnn
from lowtide.framework.ops.recurrent.sequences import LINES, panel

# Each kind's op, gates per unit and number of states.
KINDS: dict[str, tuple[Any, int, int]] = {
    "lstm": (_lstm, 4, 2),
    "gru": (_gru, 3, 1),
    "tanh": (_rnn, 1, 1),
    "relu": (_rnn, 1, 1),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def arguments(kind, steps, batch, features, hidden, dtype, states=True, biases=True):
    rng = np.random.default_rng(steps + batch + hidden)
    _, gates, count = KINDS[kind]

    def numbers(*shape):
        values = rng.standard_normal(shape) / np.sqrt(shape[-1])
        return lt.tensor(values.astype(np.float32), dtype=dtype).requires_grad_()

    x, weights = numbers(steps, batch, features), (numbers(gates * hidden, features),)
    weights += (numbers(gates * hidden, hidden),)
    bias = [numbers(gates * hidden) if biases else None for _ in range(2)]
    first = [numbers(batch, hidden) if states else None for _ in range(count)]
    return [x, *weights, *bias, *([None] if kind == "lstm" else []), *first]


def run(kind, given, reverse=False):
    attributes = {"squash": kind == "tanh"} if kind in ("tanh", "relu") else {}
    return KINDS[kind][0](*given, runs=None, reverse=reverse, **attributes)


def learned(kind, given, reverse, outputs=None):
    """All results, and the gradients of some of them."""
    results = run(kind, given, reverse)
    some = range(len(results)) if outputs is None else outputs
    loss = sum((results[k] * (k + 1)).sin().sum() for k in some)
    wanted = [a for a in given if a is not None]
    return [t.detach().numpy() for t in (*results, *lt.autograd.grad(loss, wanted))]


@kinds
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("hidden", [1, 5, 33, 100])
@pytest.mark.parametrize("batch", [1, 3, 17])
def test_odd_sizes(batch, hidden, reverse, kind):
    ours = learned(kind, arguments(kind, 5, batch, 7, hidden, lt.float32), reverse)
    exact = learned(kind, arguments(kind, 5, batch, 7, hidden, lt.float64), reverse)
    for a, b in zip(ours, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@kinds
@pytest.mark.parametrize("outputs", [(0,), (1,), (2,)])
@pytest.mark.parametrize(("states", "biases"), [(False, True), (True, False), (False, False)])
def test_what_may_be_left_out(states, biases, outputs, kind):
    outputs = [min(k, KINDS[kind][2]) for k in outputs]
    ours, exact = (
        learned(kind, arguments(kind, 4, 9, 3, 16, dtype, states, biases), False, outputs)
        for dtype in (lt.float32, lt.float64)
    )
    for a, b in zip(ours, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.skipif(not work_pool.available(), reason="threads in compiled code: Linux, 2 cores")
@kinds
def test_threads_change_no_bit(monkeypatch, kind):
    found = []
    for wanted in (1, 2, 2):
        monkeypatch.setattr(threads, "_wanted", wanted)
        found.append(learned(kind, arguments(kind, 9, 37, 20, 50, lt.float32), False))
    for a, *others in zip(*found, strict=True):
        assert [np.array_equal(a, b) for b in others] == [True, True]


def test_sizes_of_workspace_are_those_of_the_kernel():
    assert (panel(), LINES) == (packed_product.WIDTH, packed_product.ROWS)


@kinds
def test_a_second_backward_gives_the_same(kind):
    given = arguments(kind, 5, 8, 4, 24, lt.float32)
    out = run(kind, given)[0]
    wanted = [a for a in given if a is not None]
    first = lt.autograd.grad(out.sum(), wanted, retain_graph=True)
    for a, b in zip(first, lt.autograd.grad(out.sum(), wanted), strict=True):
        assert np.array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN"])
def test_the_peak_is_the_predicted_one(layer):
    def peak(device):
        with lt.device(device):
            model = getattr(lt.nn, layer)(20, 50)
            x = lt.randn(9, 37, 20)
            lt.reset_peak_memory_stats(device)
            before = lt.memory_allocated(device)
            model(x)[0].sum().backward()
            return lt.max_memory_allocated(device) - before

    assert peak("cpu") == peak("meta")


@kinds
@pytest.mark.parametrize("reverse", [False, True])
def test_a_gradient_by_example_is_taken_as_it_lies(kind, reverse):
    given = arguments(kind, 6, 11, 4, 24, lt.float32)
    wanted = [a for a in given if a is not None]
    values = np.random.default_rng(0).standard_normal((11, 6, 24)).astype(np.float32)
    by_example = lt.tensor(values).transpose(0, 1)

    def found(grad):
        out = run(kind, given, reverse)[0]
        return [g.numpy() for g in lt.autograd.grad(out, wanted, grad)]

    for a, b in zip(found(by_example), found(by_example.contiguous()), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN"])
def test_a_gradient_by_example_is_not_copied(layer):
    def peak(first):
        model = getattr(lt.nn, layer)(20, 50, batch_first=first)
        x = lt.randn(37, 9, 20) if first else lt.randn(9, 37, 20)
        out = model(x)[0]
        grad = lt.ones(37, 9, 50) if first else lt.ones(9, 37, 50)
        lt.reset_peak_memory_stats("cpu")
        before = lt.memory_allocated("cpu")
        out.backward(grad)
        return lt.max_memory_allocated("cpu") - before

    assert peak(True) == peak(False) + 37 * 9 * 20 * 4  # the input, in the order of steps
