"""Whoever else may hold a graph: closures, hooks, frames, globals, caches, slots.

In each loop the op that makes the surviving value carries the comment ``made``, and the statement
that keeps it ``kept``; the finding must name exactly these lines by the third step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.nn import functional as F
from lowtide.profiling import detect_retained
from tests.profiling.leaks.loops import BATCH, HIDDEN, WIDTH, batches, only, place, setup, train

pytestmark = pytest.mark.deep  # one more of many: the other files are quick


def test_a_closure() -> None:
    model, optimizer = setup()
    callbacks: list[Callable[[], float]] = []
    with detect_retained() as watch:
        for x, y in batches():

            def log(value: Any) -> Callable[[], float]:
                return lambda: float(value)

            loss = F.mse_loss(model(x), y)  # made
            train(optimizer, loss)
            callbacks.append(log(loss))
    f = only(watch)
    assert f.kind == "closure"
    assert f.line.endswith(place(test_a_closure, "made"))
    assert f.root.startswith("`value`, closed over by <lambda>(); in `callbacks[0]`, local")


def test_a_hook() -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for x, y in batches():
            out = model(x)
            scale = out.abs().mean()  # made
            model[0].weight.register_hook(lambda g, s=scale: g / (1 + s.item()))
            train(optimizer, F.mse_loss(out, y))
    f = only(watch)
    assert f.kind == "hook"
    assert f.line.endswith(place(test_a_hook, "made"))
    assert "default argument of <lambda>()" in f.root
    assert "model[0].weight" in f.root
    assert "remove" in f.fix


def test_the_frame_of_an_exception() -> None:
    model, optimizer = setup()
    failures = []

    def forward(x: Any) -> Any:
        hidden = model[1](model[0](x))  # made
        if x is not None:
            raise ValueError("no finite activation")
        return hidden

    with detect_retained() as watch:
        for x, y in batches():
            try:
                forward(x)
            except ValueError as error:
                failures.append(error)
            train(optimizer, F.mse_loss(model(x), y))
    f = only(watch)
    assert f.kind == "exception"
    assert f.line.endswith(place(test_the_frame_of_an_exception, "made"))
    assert f.root.startswith("`hidden`, local variable of forward(); in `failures[0]")
    assert f.growth_bytes_per_step == 4 * BATCH * (WIDTH + HIDDEN)  # the batch and tanh's output


def test_the_exception_of_one_step() -> None:
    model, optimizer = setup()
    last_error: Exception | None = None

    def risky(x: Any) -> Any:
        hidden = model[1](model[0](x))  # made
        raise MemoryError(hidden.shape)

    with detect_retained() as watch:
        for step, (x, y) in enumerate(batches()):
            if step == 0:
                try:
                    risky(x)
                except MemoryError as error:
                    last_error = error
            train(optimizer, F.mse_loss(model(x), y))
    f = only(watch)
    assert last_error is not None
    assert f.kind == "exception"
    assert f.line.endswith(place(test_the_exception_of_one_step, "made"))
    assert f.growth_bytes_per_step == 0
    assert f.bytes == 4 * BATCH * (WIDTH + HIDDEN)


seen_by_all: list[Any] = []


def test_a_global() -> None:
    model, optimizer = setup()
    try:
        with detect_retained() as watch:
            for x, y in batches():
                loss = F.mse_loss(model(x), y)  # made
                seen_by_all.append(loss)  # kept
                train(optimizer, loss)
        f = only(watch)
    finally:
        seen_by_all.clear()
    assert f.line.endswith(place(test_a_global, "made"))
    assert f.root == f"`seen_by_all[0]`, global of {__name__}"
    assert f.kind == "list"
    assert f.kept_at is not None
    assert f.kept_at.endswith(place(test_a_global, "kept"))


def test_a_generator() -> None:
    model, optimizer = setup()

    def steps() -> Iterator[Any]:
        outputs = []
        for x, y in batches():
            out = model(x)  # made
            outputs.append(out)  # kept
            yield out, y

    running = steps()
    with detect_retained() as watch:
        for out, y in running:
            train(optimizer, F.mse_loss(out, y))
            if len(watch.findings):
                break
    f = only(watch)
    assert f.kind == "generator"
    assert f.line.endswith(place(test_a_generator, "made"))
    assert f.root.startswith("`outputs[0]`, local variable of steps()")
    assert f.kept_at is not None
    assert f.kept_at.endswith(place(test_a_generator, "kept"))


def test_a_cache() -> None:
    model, optimizer = setup()
    positions = nn.Embedding(8, WIDTH)

    @functools.lru_cache(maxsize=64)
    def encoding(length: int) -> Any:
        return positions(lt.arange(length)).cumsum(0)  # made

    with detect_retained() as watch:
        for step, (x, y) in enumerate(batches()):
            out = model(x + encoding(step + 1)[0])
            train(optimizer, F.mse_loss(out, y))
    f = only(watch)
    assert f.kind == "cache"
    assert f.line.endswith(place(test_a_cache, "made"))
    assert "cached" in f.root
    assert "cache_clear" in f.fix


def test_a_default_argument() -> None:
    model, optimizer = setup()

    def smooth(value: Any, past: list[Any] = []) -> float:  # noqa: B006
        past.append(value)  # kept
        return sum(float(v) for v in past) / len(past)

    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(model(x), y)  # made
            train(optimizer, loss)
            smooth(loss)
    f = only(watch)
    assert f.kind == "default argument"
    assert f.line.endswith(place(test_a_default_argument, "made"))
    assert f.root.startswith("`past[0]`, default argument of smooth()")
    assert f.kept_at is not None
    assert f.kept_at.endswith(place(test_a_default_argument, "kept"))


def test_an_attribute_in_slots_and_a_partial() -> None:
    class Slotted:
        __slots__ = ("seen",)

        def __init__(self) -> None:
            self.seen: list[Any] = []

    model, optimizer = setup()
    holder = Slotted()
    record = functools.partial(holder.seen.append)
    del holder
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(model(x), y)  # made
            record(loss)
            train(optimizer, loss)
    f = only(watch)
    assert f.line.endswith(place(test_an_attribute_in_slots_and_a_partial, "made"))
    assert "`record" in f.root
