"""Calls of a compiled model whose backward does not come: a generator's, an evaluation's."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework.capture import compiled
from tests.capture.nets import bits, state

STEPS = 60


def net(inputs: int, outputs: int) -> Any:
    return nn.Sequential(
        nn.Linear(inputs, 16), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(16, outputs)
    )


def adversarial(critic_steps: int, compiles: bool) -> tuple[Any, Any]:
    """Train a generator and a critic; return the bits of all they have, and the generator."""
    lt.manual_seed(0)
    generator, critic = net(4, 8), net(8, 1)
    optimizers = [optim.Adam(m.parameters(), 1e-3) for m in (generator, critic)]
    g, d = (lt.compile(generator), lt.compile(critic)) if compiles else (generator, critic)
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
        found, g = adversarial(critic_steps, compiles=True)
    assert found == adversarial(critic_steps, compiles=False)[0]
    calls = STEPS * (critic_steps + 1)
    # Until the second backward of a recorded call.
    assert g._compiled.replays >= calls - 3 * (critic_steps + 1)


def test_after_many_calls_without_a_backward_few_are_recorded() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, g = adversarial(9, compiles=True)
    assert found == adversarial(9, compiles=False)[0]
    assert len(caught) <= 1
    assert 0 < g._compiled.replays < STEPS * 10


def test_of_calls_that_never_have_a_backward_few_are_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded, make = [], compiled.Recorder
    monkeypatch.setattr(compiled, "Recorder", lambda *a: recorded.append(a) or make(*a))
    model = lt.compile(net(4, 2))
    model._compiled.quiet = True
    for _ in range(400):
        model(lt.randn(6, 4))
    assert 8 <= len(recorded) <= 40


def test_an_evaluation_with_a_graph_warns_once_and_training_is_replayed_after_it() -> None:
    def run(compiles: bool) -> tuple[Any, Any]:
        lt.manual_seed(0)
        plain = net(4, 2)
        model = lt.compile(plain) if compiles else plain
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
            if compiles and not phase:
                replays = model._compiled.replays
        if compiles:
            assert replays > 50
            assert model._compiled.replays > replays + 100
        return (seen, state(plain), bits(lt.rand(4))), model

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, _ = run(compiles=True)
    assert found == run(compiles=False)[0]
    (warning,) = caught
    assert "no backward follows (call it under no_grad)" in str(warning.message)


def test_fullgraph_refuses_where_no_backward_follows() -> None:
    model = lt.compile(net(4, 2), fullgraph=True)
    for _ in range(9):
        model(lt.randn(6, 4))
    with pytest.raises(lt.CaptureError, match="no backward follows"):
        model(lt.randn(6, 4))
