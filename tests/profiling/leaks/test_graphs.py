"""Graphs that grow into the next step: through states, buffers, weights, gradients, cycles.

In each loop the op that makes the surviving value carries the comment ``made``, and the statement
that keeps it ``kept``; the finding must name exactly these lines by the third step.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.nn import functional as F
from lowtide.profiling import detect_retained
from lowtide.utils.data import DataLoader
from tests.profiling.leaks.loops import (
    BATCH,
    HIDDEN,
    WIDTH,
    batches,
    mlp,
    only,
    place,
    setup,
    train,
)


def test_a_dataset_that_requires_grad() -> None:
    model, optimizer = setup()
    samples = [(lt.randn(WIDTH, requires_grad=True), lt.zeros(1)) for _ in range(12)]
    loader = DataLoader(samples, batch_size=4)  # type: ignore[arg-type,var-annotated]
    with detect_retained() as watch:
        for x, y in loader:  # made
            train(optimizer, F.mse_loss(model(x), y))
    f = only(watch)
    assert f.kind == "input gradient"
    assert f.line.endswith(place(test_a_dataset_that_requires_grad, "made"))
    assert (f.bytes, f.growth_bytes_per_step) == (12 * 4 * WIDTH, 4 * 4 * WIDTH)
    assert "requires_grad" in f.fix


@pytest.mark.deep
def test_a_finding_of_data_follows_its_growth() -> None:
    model, optimizer = setup()
    samples = [(lt.randn(WIDTH, requires_grad=True), lt.zeros(1)) for _ in range(40)]
    loader = DataLoader(samples, batch_size=4)  # type: ignore[arg-type,var-annotated]
    with detect_retained() as watch:
        for x, y in loader:
            train(optimizer, F.mse_loss(model(x), y))
    f = only(watch)
    assert (f.bytes, f.growth_bytes_per_step) == (40 * 4 * WIDTH, 4 * 4 * WIDTH)


def test_retain_graph_by_habit() -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward(retain_graph=True)  # made
            optimizer.step()
    f = only(watch)
    assert f.kind == "retain_graph"
    assert f.line.endswith(place(test_retain_graph_by_habit, "made"))
    assert f.growth_bytes_per_step == 0
    # The batch with its target, tanh's output and the prediction: what one step's graph holds.
    assert f.bytes == 4 * BATCH * (WIDTH + HIDDEN + 2)


@pytest.mark.deep
def test_a_hidden_state_carried_on() -> None:
    cell = nn.RNN(WIDTH, HIDDEN)
    hidden = lt.zeros(1, 2, HIDDEN)
    with detect_retained() as watch:
        for _ in range(3):
            chunk = lt.randn(5, 2, WIDTH)
            out, hidden = cell(chunk, hidden)  # made
            assert out.shape == (5, 2, HIDDEN)
            watch.step()
    f = only(watch)
    assert f.kind == "carried state"
    assert f.line.endswith(place(test_a_hidden_state_carried_on, "made"))
    assert f.root == "`hidden`, local variable of test_a_hidden_state_carried_on()"
    assert "hidden = hidden.detach()" in f.fix
    assert f.growth_bytes_per_step > 0


@pytest.mark.deep
def test_the_state_of_an_lstm_in_training() -> None:
    cell, head = nn.LSTM(WIDTH, HIDDEN), nn.Linear(HIDDEN, 1)
    state = None
    with detect_retained() as watch:
        for _ in range(3):
            out, state = cell(lt.randn(5, 2, WIDTH), state)  # made
            loss = head(out).pow(2).mean()
            loss.backward(retain_graph=True)
    f = only(watch)
    assert f.kind == "carried state"
    assert f.line.endswith(place(test_the_state_of_an_lstm_in_training, "made"))
    assert "`state[" in f.root


@pytest.mark.deep
def test_a_buffer_that_tracks_the_graph() -> None:
    class Center(nn.Module):
        mean: Any

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(lt.ones(WIDTH))
            self.register_buffer("mean", lt.zeros(WIDTH))

        def forward(self, x: Any) -> Any:
            x = x * self.scale
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)  # made
            return x - x.mean(0)

    model = nn.Sequential(Center(), mlp())
    optimizer = lt.optim.SGD(model.parameters(), lr=0.1)
    with detect_retained() as watch:
        for x, y in batches():
            train(optimizer, F.mse_loss(model(x), y))
    f = only(watch)
    assert f.kind == "carried state"
    assert f.line.endswith(place(test_a_buffer_that_tracks_the_graph, "made"))
    assert f.root.startswith("`model[0].mean`")


@pytest.mark.deep
def test_weights_updated_with_recording_on() -> None:
    w = lt.randn(WIDTH, 1, requires_grad=True)
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(x @ w, y)
            (g,) = lt.autograd.grad(loss, [w])
            w = w - 0.1 * g  # made
            watch.step()
    f = only(watch)
    assert f.kind == "carried state"
    assert f.line.endswith(place(test_weights_updated_with_recording_on, "made"))
    assert "`w`" in f.root


@pytest.mark.deep
def test_gradients_that_accumulate_with_their_graph() -> None:
    model, _ = setup()
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(model(x), y)
            loss.backward(create_graph=True)  # made
    f = only(watch)
    assert f.kind == "gradient graph"
    assert f.line.endswith(place(test_gradients_that_accumulate_with_their_graph, "made"))
    assert ".grad`" in f.root
    assert "zero_grad(set_to_none=True)" in f.fix
    for p in model.parameters():
        p.grad = None


class Knot:
    """Refers to itself, so that only the collector frees what it holds."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.me = self


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.deep
def test_a_cycle_that_nobody_names(collected: bool) -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(model(x), y)  # made
            Knot(loss)
            train(optimizer, loss)
            if collected:
                del loss
                gc.collect()
    f = only(watch)
    assert f.kind == "cycle"
    assert f.line.endswith(place(test_a_cycle_that_nobody_names, "made"))
    assert "freed only by gc" in f.root


@pytest.mark.deep
def test_a_tensor_that_python_does_not_show() -> None:
    import numpy as np

    model, optimizer = setup()
    table = np.empty(3, dtype=object)  # arrays do not tell the collector what they hold
    with detect_retained() as watch:
        for step, (x, y) in enumerate(batches()):
            loss = F.mse_loss(model(x), y)  # made
            table[step] = loss
            train(optimizer, loss)
    f = only(watch)
    assert f.kind == "unseen"
    assert f.line.endswith(place(test_a_tensor_that_python_does_not_show, "made"))


@pytest.mark.deep
def test_a_momentum_kept_with_recording_on() -> None:
    class Careless(lt.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                past = self.state[p].get("momentum", 0.0)
                self.state[p]["momentum"] = 0.9 * past + 0.1 * p * p.grad  # made
                with lt.no_grad():
                    p -= 0.01 * p.grad

    model = mlp()
    optimizer = Careless(model.parameters())
    with detect_retained() as watch:
        for x, y in batches(4):
            train(optimizer, F.mse_loss(model(x), y))
    f = only(watch)
    assert f.kind == "carried state"
    assert f.line.endswith(place(test_a_momentum_kept_with_recording_on, "made"))
    assert "momentum" in f.root
