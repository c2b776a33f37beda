"""What is kept after the optimizer's step, or by parts of a value, or where one seldom looks.

In each loop the op that makes the surviving value carries the comment ``made``, and the statement
that keeps it ``kept``. Three steps are enough: what the last one leaves is looked at in the end.
"""

from __future__ import annotations

import contextvars
import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.nn import functional as F
from lowtide.profiling import detect_retained
from tests.profiling.leaks.loops import (
    BATCH,
    WIDTH,
    batches,
    mlp,
    only,
    place,
    setup,
    train,
)

pytestmark = pytest.mark.deep  # one more of many: the other files are quick


def test_averages_of_weights_with_recording_on() -> None:
    model, optimizer = setup()
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    with detect_retained() as watch:
        for x, y in batches():
            train(optimizer, F.mse_loss(model(x), y))
            for name, p in model.named_parameters():
                average[name] = 0.9 * average[name] + 0.1 * p  # made
    f = only(watch)
    assert f.kind == "carried state"
    assert f.line.endswith(place(test_averages_of_weights_with_recording_on, "made"))
    assert "`average['" in f.root
    assert f.fix.startswith("Cut the graph between steps: detach() what average holds")
    # Of each of the four: two products and a sum from three steps, the first without its first
    # product, since what it starts from has no graph.
    assert f.nodes == 4 * (3 * 3 - 1)


def test_what_is_found_on_leaving_is_warned_of() -> None:
    model, optimizer = setup()
    by_step: dict[int, Any] = {}
    watch = detect_retained(warn=True)
    watch.__enter__()
    for step, (x, y) in enumerate(batches()):
        loss = F.mse_loss(model(x), y)
        train(optimizer, loss)
        by_step[step] = loss
    with pytest.warns(UserWarning, match=r"dict: `by_step\[0\]`") as warned:
        watch.__exit__(None, None, None)
    assert [w.filename for w in warned] == [__file__]


def test_growth_is_never_negative() -> None:
    model, optimizer = setup()
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    with detect_retained() as watch:
        for x, y in batches(6):
            train(optimizer, F.mse_loss(model(x), y))
            for name, p in model.named_parameters():
                average[name] = 0.9 * average[name] + 0.1 * p
    f = only(watch)
    assert f.growth_bytes_per_step >= 0
    assert f.growth_nodes_per_step == 4 * 3


def test_a_memory_bank_of_features() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = lt.optim.SGD(model.parameters(), lr=0.1)
    bank = lt.randn(2 * BATCH, WIDTH)
    with detect_retained() as watch:
        for x, _ in batches():
            z = model(x)
            train(optimizer, -(z @ bank.detach().t()).logsumexp(1).mean())
            bank = lt.cat([bank, z])[-2 * BATCH :]  # made
    f = only(watch)
    assert f.kind == "carried state"
    assert f.line.endswith(place(test_a_memory_bank_of_features, "made"))
    assert f.root == "`bank`, local variable of test_a_memory_bank_of_features()"
    assert "bank = bank.detach()" in f.fix


def test_a_dict_filled_after_the_step() -> None:
    for count in (3, 6):
        model, optimizer = setup()
        by_step: dict[int, Any] = {}
        with detect_retained() as watch:
            for step, (x, y) in enumerate(batches(count)):
                loss = F.mse_loss(model(x), y)  # made
                train(optimizer, loss)
                by_step[step] = loss  # kept
        f = only(watch)
        assert f.kind == "dict"
        assert f.root.startswith("`by_step[0]`")
        assert f.line.endswith(place(test_a_dict_filled_after_the_step, "made"))
        assert f.kept_at is not None
        assert f.kept_at.endswith(place(test_a_dict_filled_after_the_step, "kept"))
        assert f.fix == "Keep .item() instead of the tensor in by_step."


def test_a_pool_of_fakes_beside_two_optimizers() -> None:
    generator, critic = nn.Linear(3, WIDTH), mlp()
    of_generator = lt.optim.Adam(generator.parameters())
    of_critic = lt.optim.Adam(critic.parameters())
    pool = []
    with detect_retained() as watch:
        for real, _ in batches():
            fake = generator(lt.randn(BATCH, 3))  # made
            pool.append(fake)  # kept
            train(of_critic, critic(fake.detach()).mean() - critic(real).mean())
            train(of_generator, -critic(fake).mean())
    f = only(watch)
    assert f.kind == "list"
    assert f.line.endswith(place(test_a_pool_of_fakes_beside_two_optimizers, "made"))
    assert f.kept_at is not None
    assert f.kept_at.endswith(place(test_a_pool_of_fakes_beside_two_optimizers, "kept"))
    assert f.steps == 3


def test_parts_of_an_output() -> None:
    for count in (3, 6):
        model, optimizer = setup()
        firsts = []
        with detect_retained() as watch:
            for x, y in batches(count):
                out = model(x)
                train(optimizer, F.mse_loss(out, y))
                firsts.append(out[0])  # made
        f = only(watch)
        assert f.kind == "list"
        assert f.root == "`firsts[0]`, local variable of test_parts_of_an_output()"
        assert f.line.endswith(place(test_parts_of_an_output, "made"))
        assert f.fix == "Keep .item() instead of the tensor in firsts."


def test_a_context_variable() -> None:
    model, optimizer = setup()
    losses: contextvars.ContextVar[list[Any]] = contextvars.ContextVar("losses")

    def run() -> detect_retained:
        losses.set([])
        with detect_retained() as watch:
            for x, y in batches():
                loss = F.mse_loss(model(x), y)
                train(optimizer, loss)
                losses.get().append(loss)
        return watch

    f = only(contextvars.copy_context().run(run))
    assert (f.kind, f.root) == ("list", "`losses[0]`, a context variable")


def test_an_attribute_of_a_class() -> None:
    class Trainer:
        history: ClassVar[list[Any]] = []

    model, optimizer = setup()
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(model(x), y)
            train(optimizer, loss)
            Trainer.history.append(loss)  # kept
    f = only(watch)
    here = test_an_attribute_of_a_class
    assert (f.kind, f.root) == (
        "attribute",
        f"`Trainer.history[0]`, local variable of {here.__name__}()",
    )
    assert f.kept_at is not None
    assert f.kept_at.endswith(place(here, "kept"))
    assert f.fix == "Keep .item() instead of the tensor in history."


def test_arguments_bound_by_a_partial() -> None:
    model, optimizer = setup()
    callbacks = []
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(model(x), y)
            train(optimizer, loss)
            callbacks.append(functools.partial(print, loss))  # kept
    f = only(watch)
    here = test_arguments_bound_by_a_partial
    assert (f.kind, f.root) == (
        "closure",
        f"`callbacks[0].args[0]`, local variable of {here.__name__}()",
    )
    assert f.kept_at is not None
    assert f.kept_at.endswith(place(here, "kept"))
    assert f.fix == "Give the partial .item() instead of the tensor."


def test_a_growing_tuple() -> None:
    model, optimizer = setup()
    records: tuple[Any, ...] = ()
    with detect_retained() as watch:
        for x, y in batches():
            out = model(x)
            train(optimizer, F.mse_loss(out, y))
            records = (*records, out)
    f = only(watch)
    assert f.root == "`records[0]`, local variable of test_a_growing_tuple()"
    assert f.fix == "Keep .detach() instead of the tensor in records."


@dataclass
class Entry:
    step: int
    loss: Any


def test_records_in_a_list() -> None:
    model, optimizer = setup()
    logs = []
    with detect_retained() as watch:
        for step, (x, y) in enumerate(batches()):
            loss = F.mse_loss(model(x), y)  # made
            train(optimizer, loss)
            logs.append(Entry(step, loss))  # kept
    f = only(watch)
    assert f.root == "`logs[0].loss`, local variable of test_records_in_a_list()"
    assert f.line.endswith(place(test_records_in_a_list, "made"))
    assert f.kept_at is not None
    assert f.kept_at.endswith(place(test_records_in_a_list, "kept"))
