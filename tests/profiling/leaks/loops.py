"""Training loops in which leaks are seeded, and where in them the marked lines are."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import lowtide as lt
from lowtide import nn
from lowtide.profiling import Finding, detect_retained

BATCH, WIDTH, HIDDEN = 16, 4, 8


def mlp() -> Any:
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))


def setup() -> tuple[Any, Any]:
    model = mlp()
    return model, lt.optim.SGD(model.parameters(), lr=0.01)


def batches(count: int = 3) -> Iterator[tuple[Any, Any]]:
    for _ in range(count):
        yield lt.randn(BATCH, WIDTH), lt.randn(BATCH, 1)


def train(optimizer: Any, loss: Any) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def place(function: Callable[..., Any], mark: str) -> str:
    """The end of ``file:line`` of the line of a function that ends in a comment."""
    lines, first = inspect.getsourcelines(function)
    found = [first + k for k, text in enumerate(lines) if text.rstrip().endswith(f"# {mark}")]
    assert len(found) == 1
    file = os.path.basename(inspect.getsourcefile(function) or "")
    return f"{file}:{found[0]}"


def only(watch: detect_retained) -> Finding:
    assert len(watch.findings) == 1, watch.report()
    return watch.findings[0]


def loop(body: Callable[[Any, Any], Any], count: int = 6) -> None:
    """A watched loop; the body's result is dropped."""
    with detect_retained() as watch:
        for x, y in batches(count):
            body(x, y)
    assert watch.findings == [], watch.report()
