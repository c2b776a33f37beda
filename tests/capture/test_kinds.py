"""Calls with many shapes: which of them are recorded, and how much Python's memory that takes."""

from __future__ import annotations

import gc
import random
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.framework.capture import kinds
from tests.capture.nets import bits, state


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(20, 8), nn.Linear(8, 16)
        self.drop, self.outer = nn.Dropout(0.1), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.outer(self.drop(F.gelu(self.inner(self.words(x)))))


def pair() -> tuple[Any, Any, Any]:
    """A step as written, the same compiled, and what tells both nets' states apart."""
    nets, steps = [], []
    for _ in range(2):
        lt.manual_seed(0)
        net = Tagger()
        optimizer = optim.AdamW(net.parameters(), lr=0.01)
        nets.append(net)

        def step(x: Any, net: Any = net, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x).flatten(0, 1), (x % 4).flatten())
            loss.backward()
            optimizer.step()
            return loss.item()

        steps.append(step)

    def same() -> bool:
        return bool(state(nets[0]) == state(nets[1]))

    return steps[0], lt.compile(steps[1]), same


def train(step: Any, compiled: Any, same: Any, lengths: list[int]) -> None:
    for k, n in enumerate(lengths):
        g = np.random.default_rng(k)
        x = lt.tensor(g.integers(0, 20, (3, n)))
        lt.manual_seed(k)
        expected = step(x)
        lt.manual_seed(k)
        assert compiled(x) == expected, (k, n)
    assert same()


def recorded(compiled: Any) -> list[Any]:
    return [kind for kind in compiled._kinds.values() if kind.recordings]


def test_each_of_forty_lengths_is_replayed() -> None:
    step, compiled, same = pair()
    lengths = [*range(1, 41)] * 6
    with warnings.catch_warnings():
        warnings.simplefilter("error", lt.CaptureWarning)
        train(step, compiled, same, lengths)
    assert len(recorded(compiled)) == 40
    assert compiled.replays == 40 * 3


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(6))
def test_those_that_come_often_have_the_room(seed: int, monkeypatch: Any) -> None:
    step, compiled, same = pair()
    draw = random.Random(seed)
    often = draw.sample(range(1, 40), 8)
    train(step, compiled, same, [often[0]] * 4)
    rows = recorded(compiled)[0].recordings[0].rows
    monkeypatch.setattr(kinds, "MOST_ROWS", 10 * rows)
    lengths = [
        draw.choice(often) if draw.random() < 0.7 else draw.randint(40, 70) for _ in range(300)
    ]
    train(step, compiled, same, lengths)
    found = recorded(compiled)
    assert sum(r.rows for kind in found for r in kind.recordings) <= 10 * rows
    before = compiled.replays
    train(step, compiled, same, often * 3)
    assert compiled.replays - before >= 21


@pytest.mark.deep
def test_lengths_of_the_past_make_room(monkeypatch: Any) -> None:
    monkeypatch.setattr(kinds, "_UNUSED", 60)
    step, compiled, same = pair()
    train(step, compiled, same, [1] * 4)
    monkeypatch.setattr(kinds, "MOST_ROWS", 8 * recorded(compiled)[0].recordings[0].rows)
    for first in (1, 21, 41):
        lengths = [*range(first, first + 8)]
        train(step, compiled, same, lengths * 12)
        before = compiled.replays
        train(step, compiled, same, lengths)
        assert compiled.replays == before + 8
        assert len(recorded(compiled)) == 8


def test_calls_that_never_come_twice_are_noted_up_to_a_number() -> None:
    f = lt.compile(lambda x: x * 2 + 1)
    for n in range(1, 65):
        assert f(lt.ones(n)).sum().item() == 3 * n
    with pytest.warns(lt.CaptureWarning, match="called in another way each time"):
        f(lt.ones(65))
    for n in range(66, 200):
        assert f(lt.ones(n)).sum().item() == 3 * n
    assert len(f._kinds) == 64
    for _ in range(4):
        f(lt.ones(3))
    assert f.replays == 2


def test_calls_that_come_seldom_are_forgotten(monkeypatch: Any) -> None:
    monkeypatch.setattr(kinds, "_MOST_KINDS", 80)
    f = lt.compile(lambda x: (x * 2 + 1).exp())
    for _ in range(4):
        f(lt.ones(2, 2))
    for n in range(1, 400):
        f(lt.ones(n))
        f(lt.ones(2, 2))
    assert len(f._kinds) <= 80
    before = f.replays
    f(lt.ones(2, 2))
    assert f.replays == before + 1


def test_recordings_that_make_room_for_others_leave_backwards_that_wait(monkeypatch: Any) -> None:
    monkeypatch.setattr(kinds, "MOST_ROWS", 1)
    net = Tagger().eval()
    model = lt.compile(net)
    for n in [*range(1, 9)] * 4:  # as many as there is always room for
        model(lt.full((2, n), 3, dtype=lt.int64)).sum().backward()
    x = lt.full((2, 1), 3, dtype=lt.int64)
    net.zero_grad()
    net(x).sum().backward()
    expected = state(net)
    waiting = model(x)
    for _ in range(8):
        model(lt.full((2, 30), 3, dtype=lt.int64)).sum().backward()
    assert len(recorded(model._compiled)) == 8
    net.zero_grad()
    waiting.sum().backward()
    assert state(net) == expected


def used() -> Any:
    step, compiled, same = pair()
    train(step, compiled, same, [*range(1, 15)] * 5)
    assert compiled.replays > 20
    return weakref.ref(compiled)


def test_recordings_go_with_the_function() -> None:
    used()
    gc.collect()
    gc.disable()
    try:
        before = lt.memory_allocated()
        assert used()() is None
        assert lt.memory_allocated() == before
    finally:
        gc.enable()


def test_bits_of_a_model_with_lengths_that_vary() -> None:
    net = Tagger().eval()
    model = lt.compile(net)
    with lt.no_grad():
        for n in [*range(1, 31)] * 5:
            x = lt.full((2, n), n % 20, dtype=lt.int64)
            assert bits(model(x)) == bits(net(x))
    assert model._compiled.replays == 60
