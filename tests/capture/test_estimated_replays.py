"""An estimate of a compiled function is that of its replay, to the byte."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.profiling import estimate
from tests.capture.compiled_calls import bits
from tests.capture.test_watched_replays import Deep, step_of, warm


def peak_of(call: Any) -> int:
    """The ledger's peak in a call."""
    gc.collect()
    lt.reset_peak_memory_stats()
    call()
    return lt.max_memory_allocated()


def test_a_compiled_step_is_estimated_as_it_is_replayed() -> None:
    model = Deep()
    optimizer = optim.AdamW(model.parameters())
    step, x = step_of(model, optimizer), lt.randn(512, 64)
    compiled = warm(step, x)
    state, replays = [bits(p) for p in model.parameters()], compiled.replays
    gc.collect()
    written, found = estimate(step, x), estimate(compiled, x)
    assert compiled.replays == replays
    assert [bits(p) for p in model.parameters()] == state
    assert found.peak_bytes == found.steady_bytes < written.peak_bytes
    assert found.peak_bytes == peak_of(lambda: compiled(x))
    assert compiled.replays == replays + 1
    other = {n for n, flops in written.flops_by_op.items() if found.flops_by_op.get(n) != flops}
    assert other <= {"silu", "mul"}  # what is computed twice to keep less
    assert found.flops >= written.flops
    assert found.at_peak("module").as_dict().keys() >= {"blocks.0.first", "blocks.1.last"}


def test_a_compiled_model_is_estimated_as_it_is_replayed() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(16 * 64, 10),
    )  # fmt: skip
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = lt.randn(32, 3, 16, 16), lt.randint(0, 10, (32,))

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    gc.collect()
    first = estimate(step)
    for _ in range(3):
        step()
    written = peak_of(step)
    model.compile()
    for _ in range(5):
        step()
    gc.collect()
    mean, drawn = bits(model[1].running_mean), bits(lt.get_rng_state())
    found = estimate(step)
    assert bits(model[1].running_mean) == mean
    assert bits(lt.get_rng_state()) == drawn
    assert found.peak_bytes == peak_of(step)
    assert written == first.steady_bytes
    assert found.flops == first.flops
    assert found.work == pytest.approx(first.work, rel=0.05)
    assert list(found.guesses) == list(first.guesses)


def test_a_function_that_is_not_recorded_yet_is_estimated_as_it_is_written() -> None:
    model = Deep()
    optimizer = optim.AdamW(model.parameters())
    step, x = step_of(model, optimizer), lt.randn(512, 64)
    compiled = lt.compile(step)
    for _ in range(3):
        assert estimate(compiled, x).peak_bytes == estimate(step, x).peak_bytes
        assert compiled.replays == 0
        compiled(x)


def test_a_number_that_python_compares_is_taken_as_it_was() -> None:
    def clipped(x: Any) -> Any:
        return (x / 2 if x.max() > 5 else x * 3).exp() + 1

    x = lt.randn(400, 400)
    compiled = warm(clipped, x)
    gc.collect()
    found = estimate(compiled, x)
    assert found.peak_bytes == peak_of(lambda: compiled(x))
