"""Calls of a compiled model whose backward does not come: a generator's, an evaluation's."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn, optim
from tests.capture.nets import bits, state

STEPS = 60


def net(inputs: int, outputs: int) -> Any:
    return nn.Sequential(
        nn.Linear(inputs, 16), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, outputs)
    )


def adversarial(critic_steps: int, compiled: bool) -> tuple[Any, Any]:
    """Train a generator and a critic; return the bits of all they have, and the generator."""
    lt.manual_seed(0)
    generator, critic = net(4, 8), net(8, 1)
    optimizers = [optim.Adam(m.parameters(), 1e-3) for m in (generator, critic)]
    g, d = (lt.compile(generator), lt.compile(critic)) if compiled else (generator, critic)
    for _ in range(STEPS):
        for _ in range(critic_steps):
            made = g(lt.randn(6, 4)).detach()
            loss = d(made).mean() - d(lt.randn(6, 8)).mean()
            optimizers[1].zero_grad()
            loss.backward()
            optimizers[1].step()
        loss = -d(g(lt.randn(6, 4))).mean()
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
    return (state(generator), state(critic), bits(lt.rand(4))), g


@pytest.mark.parametrize("critic_steps", [1, 2, 5, 7])
def test_a_generator_is_replayed_though_most_calls_have_no_backward(critic_steps: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, g = adversarial(critic_steps, compiled=True)
    assert found == adversarial(critic_steps, compiled=False)[0]
    calls = STEPS * (critic_steps + 1)
    # Until the second backward of a recorded call.
    assert g._compiled.replays >= calls - 3 * (critic_steps + 1)


def test_after_many_calls_without_a_backward_few_are_recorded() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, g = adversarial(9, compiled=True)
    assert found == adversarial(9, compiled=False)[0]
    assert len(caught) <= 1
    assert 0 < g._compiled.replays < STEPS * 10


def test_an_evaluation_with_a_graph_warns_once_and_training_is_replayed_after_it() -> None:
    def run(compiled: bool) -> tuple[Any, Any]:
        lt.manual_seed(0)
        plain = net(4, 2)
        model = lt.compile(plain) if compiled else plain
        optimizer = optim.SGD(plain.parameters(), 0.01)
        x, seen = lt.randn(6, 4), []
        for phase in range(2):
            plain.eval()
            for _ in range(100):
                seen.append(model(x).sum().item())
            plain.train()
            for _ in range(150):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            if compiled and not phase:
                replays = model._compiled.replays
        if compiled:
            assert replays > 50
            assert model._compiled.replays > replays + 100
        return (seen, state(plain), bits(lt.rand(4))), model

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, _ = run(compiled=True)
    assert found == run(compiled=False)[0]
    (warning,) = caught
    assert "no backward follows (call it under no_grad)" in str(warning.message)


def test_fullgraph_refuses_where_no_backward_follows() -> None:
    model = lt.compile(net(4, 2), fullgraph=True)
    for _ in range(9):
        model(lt.randn(6, 4))
    with pytest.raises(lt.CaptureError, match="no backward follows"):
        model(lt.randn(6, 4))
