"""In a replay, a gradient takes over the memory of a value that ends where it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.capture.binding import Binding
from lowtide.nn import functional as F
from tests.capture.compiled_calls import bits, compiled, peak_of, small_bytes

WIDTH, ROWS = 128, 256
BLOCK = 4 * ROWS * WIDTH


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often memory is taken over."""
    count = [0]
    usual = Binding._take_over

    def counted(self: Any, *args: Any) -> None:
        count[0] += 1
        usual(self, *args)

    monkeypatch.setattr(Binding, "_take_over", counted)
    return count


def layers() -> Any:
    lt.manual_seed(0)
    inner = [m for _ in range(3) for m in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())]
    return nn.Sequential(nn.Linear(16, WIDTH), *inner, nn.Linear(WIDTH, 4))


class Recurrent(nn.Module):
    """Its gates are the most of what it keeps."""

    def __init__(self) -> None:
        super().__init__()
        lt.manual_seed(0)
        self.net = nn.LSTM(16, WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.net(x.view(8, -1, 16))[0][-1])


MODELS: dict[str, Callable[[], Any]] = {"layers": layers, "recurrent": Recurrent}


def gradients(model: Any) -> list[Any]:
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("name", MODELS)
def test_a_step_peaks_no_higher_than_it_does_as_written(name: str, taken: list[int]) -> None:
    model, x = MODELS[name](), lt.randn(ROWS, 16)

    def step(x: Any) -> Any:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    found = compiled(step, x)
    seen = []
    for call in (step, found):
        seen.append([bits(call(x)), bits(gradients(model))])
    assert seen[0] == seen[1]
    taken[0] = 0
    found(x)
    assert taken[0] >= 1
    assert peak_of(lambda: found(x)) <= peak_of(lambda: step(x)) + small_bytes(found)


@pytest.mark.parametrize("name", MODELS)
def test_a_retained_backward_can_be_replayed_again(name: str, taken: list[int]) -> None:
    model, x = MODELS[name](), lt.randn(ROWS, 16)
    found = lt.compile(model)

    def run(call: Any, times: int) -> list[Any]:
        model.zero_grad()
        loss = call(x).square().mean()
        for k in range(times):
            loss.backward(retain_graph=k < times - 1)
        return [bits(loss.detach()), bits(gradients(model))]

    for _ in range(4):
        run(found, 1)
    for times in (1, 3, 2, 1):
        taken[0] = 0
        assert run(found, times) == run(model, times)
        assert taken[0] >= 1


def test_logits_are_their_own_gradient() -> None:
    head, x = nn.Linear(16, 2048), lt.randn(ROWS, 16)
    target = lt.randint(0, 2048, (ROWS,))

    def step(x: Any) -> Any:
        head.zero_grad()
        loss = F.cross_entropy(head(x), target)
        loss.backward()
        return loss.detach()

    found = compiled(step, x)
    logits = 4 * ROWS * 2048
    assert logits < peak_of(lambda: found(x)) < 1.5 * logits
    assert peak_of(lambda: found(x)) <= peak_of(lambda: step(x)) + small_bytes(found)


def test_a_value_that_is_returned_is_left_alone() -> None:
    first = nn.Linear(16, WIDTH)

    def step(x: Any) -> Any:
        first.zero_grad()
        h = first(x)
        F.gelu(h).mul(2).mean().backward()
        return h.detach()

    x = lt.randn(ROWS, 16)
    found = compiled(step, x)
    for _ in range(3):
        assert bits(found(x)) == bits(first(x).detach())
