"""Tensors without a graph that pile up: drawn loops, counted by the ledger when they are dropped.

A case draws what is kept (an output, a part of it, an array, a batch, a gradient), where (a list, a
dict, a hook's closure, a cache, an exception), and what ends a step. The oracle is the ledger: the
finding's bytes are what it gives back when the container is emptied.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.devices import backend
from lowtide.nn import functional as F
from lowtide.profiling import detect_retained
from tests.profiling.leaks.loops import only

WIDTH, OUT, BATCH, STEPS = 6, 5, 16, 6
NUMBERS = BATCH * OUT * 4  # bytes of an output


def live() -> int:
    return int(backend(lt.device("cpu")).ledger.live)


# What is kept of an output, its input and the model, and the bytes that stay for it


KEPT: dict[str, tuple[Callable[[Any, Any, Any], Any], int]] = {
    "detached": (lambda out, x, m: out.detach(), NUMBERS),
    "clone": (lambda out, x, m: out.detach().clone(), NUMBERS),
    "array": (lambda out, x, m: out.detach().numpy(), NUMBERS),
    "part": (lambda out, x, m: out.detach()[:1], NUMBERS),
    "part of an array": (lambda out, x, m: out.detach().numpy()[:1], NUMBERS),
    "batch": (lambda out, x, m: x, BATCH * WIDTH * 4),
    "named": (lambda out, x, m: {"out": out.detach(), "n": 3}, NUMBERS),
    "pair": (lambda out, x, m: (out.detach(), x), NUMBERS + BATCH * WIDTH * 4),
    "double": (lambda out, x, m: out.detach().double(), 2 * NUMBERS),
    "weights": (
        lambda out, x, m: {k: v.clone() for k, v in m.state_dict().items()},
        (WIDTH + 1) * OUT * 4,
    ),
}


class Log:
    def __init__(self) -> None:
        self.kept: list[Any] = []


# Where: a function that keeps a value, and one that empties the container


def _list(model: Any) -> Any:
    kept: list[Any] = []
    return kept.append, kept.clear


def _by_step(model: Any) -> Any:
    kept: dict[int, Any] = {}
    return lambda v: kept.__setitem__(len(kept), v), kept.clear


def _lists_by_name(model: Any) -> Any:
    kept: dict[str, list[Any]] = {"out": []}
    return lambda v: kept["out"].append(v), kept["out"].clear


def _attribute(model: Any) -> Any:
    log = Log()
    return lambda v: log.kept.append(v), log.kept.clear


def _module_attribute(model: Any) -> Any:
    model.kept = []
    return lambda v: model.kept.append(v), model.kept.clear


def _deque(model: Any) -> Any:
    kept: deque[Any] = deque()
    return kept.append, kept.clear


def _cache(model: Any) -> Any:
    waiting: list[Any] = []

    @functools.cache
    def cached(step: int) -> Any:
        return waiting.pop()

    count = itertools.count()

    def keep(value: Any) -> None:
        waiting.append(value)
        cached(next(count))

    return keep, cached.cache_clear


def _chain(model: Any) -> Any:
    kept: list[Any] = [None]

    def keep(value: Any) -> None:
        kept[0] = [value, kept[0]]

    return keep, kept.clear


WHERE = {
    "list": _list,
    "dict": _by_step,
    "dict of lists": _lists_by_name,
    "attribute": _attribute,
    "module attribute": _module_attribute,
    "deque": _deque,
    "cache": _cache,
}
ENDS = ("optimizer", "backward", "manual", "evaluation", "evaluation with a graph")


def run(ends: str, keep: Callable[[Any], None], what: Any, steps: int = STEPS) -> detect_retained:
    """A watched loop whose steps end so; nothing of the last one stays in a variable."""
    model = nn.Linear(WIDTH, OUT)
    optimizer = lt.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with detect_retained() as watch:
        for _ in range(steps):
            step(ends, model, optimizer, keep, what)
            if ends == "manual":
                watch.step()
    return watch


def step(ends: str, model: Any, optimizer: Any, keep: Any, what: Any) -> None:
    x = lt.randn(BATCH, WIDTH)
    with lt.set_grad_enabled(ends != "evaluation"):
        out = model(x)
        if ends in ("optimizer", "backward"):
            F.mse_loss(out, lt.zeros_like(out)).backward()
            if ends == "optimizer":
                optimizer.step()
            optimizer.zero_grad()
    keep(what(out, x, model))


def check(kept: str, where: str, ends: str) -> None:
    what, nbytes = KEPT[kept]
    keep, empty = WHERE[where](nn.Identity())
    watch = run(ends, keep, what)
    finding = only(watch)
    assert not finding.graph
    assert finding.nodes == 0
    assert finding.growth_bytes_per_step == nbytes, watch.report()
    if kept.startswith("part"):
        assert ".clone()" in finding.fix
    before = live()
    empty()
    assert before - live() == finding.bytes
    assert finding.bytes == STEPS * nbytes


QUICK = [
    ("detached", "list", "optimizer"),
    ("array", "dict", "evaluation"),
    ("part", "module attribute", "backward"),
    ("pair", "attribute", "manual"),
]


@pytest.mark.parametrize(("kept", "where", "ends"), QUICK)
def test_what_piles_up_is_counted_to_the_byte(kept: str, where: str, ends: str) -> None:
    check(kept, where, ends)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(20))
def test_drawn_containers_are_counted_to_the_byte(seed: int) -> None:
    drawn = random.Random(seed)
    for _ in range(10):
        case = drawn.choice(list(KEPT)), drawn.choice(list(WHERE)), drawn.choice(ENDS)
        if case[0] == "batch" and case[2] == "evaluation with a graph":
            continue
        try:
            check(*case)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
