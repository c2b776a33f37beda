"""Values kept past their step: in lists, sums, dicts and attributes.

In each loop the op that makes the surviving value carries the comment ``made``, and the statement
that keeps it ``kept``; the finding must name exactly these lines by the third step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.nn import functional as F
from lowtide.profiling import detect_retained
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


@pytest.mark.deep
def test_a_loss_kept_in_a_list() -> None:
    model, optimizer = setup()
    losses = []
    with detect_retained() as watch:
        for step, (x, y) in enumerate(batches()):
            loss = F.mse_loss(model(x), y)  # made
            losses.append(loss)  # kept
            train(optimizer, loss)
            assert len(watch.findings) == (step == 2)
    f = only(watch)
    here = test_a_loss_kept_in_a_list
    assert f.line.endswith(place(here, "made"))
    assert f.kept_at is not None
    assert f.kept_at.endswith(place(here, "kept"))
    assert f.kind == "list"
    assert f.root == f"`losses[0]`, local variable of {here.__name__}()"
    # Three floats, of which the variable holds one, too.
    assert (f.bytes, f.growth_bytes_per_step, f.steps) == (8, 4, 3)
    assert watch.elsewhere_bytes == 4
    assert ".item()" in f.fix


@pytest.mark.deep
def test_a_loss_kept_after_the_step() -> None:
    model, optimizer = setup()
    history = []
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(model(x), y)  # made
            train(optimizer, loss)
            history.append({"loss": loss, "lr": 0.01})  # kept
    f = only(watch)
    here = test_a_loss_kept_after_the_step
    assert f.line.endswith(place(here, "made"))
    assert f.kept_at is not None
    assert f.kept_at.endswith(place(here, "kept"))
    assert f.root == f"`history[0]['loss']`, local variable of {here.__name__}()"
    assert (f.bytes, f.growth_bytes_per_step) == (8, 4)  # at the end of step 3 it holds two


@pytest.mark.deep
def test_a_running_sum_of_losses() -> None:
    model, optimizer = setup()
    total = lt.zeros(())
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(model(x), y)
            train(optimizer, loss)
            total = total + loss  # made
    f = only(watch)
    assert f.kind == "running sum"
    assert f.line.endswith(place(test_a_running_sum_of_losses, "made"))
    assert f.root == "`total`, local variable of test_a_running_sum_of_losses()"
    assert (f.bytes, f.growth_bytes_per_step) == (4, 0)  # what grows is the graph itself
    assert f.growth_nodes_per_step > 1
    assert f.fix == "Add the value without its graph: total += x.item()."


def test_a_running_sum_in_place_before_the_step() -> None:
    model, optimizer = setup()
    epoch_loss = lt.zeros(())
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(model(x), y)
            epoch_loss += loss  # made
            train(optimizer, loss)
    f = only(watch)
    assert f.kind == "running sum"
    assert f.line.endswith(place(test_a_running_sum_in_place_before_the_step, "made"))
    assert "`epoch_loss`" in f.root


@pytest.mark.deep
def test_a_dict_of_metrics() -> None:
    model, optimizer = setup()
    metrics: dict[str, list[Any]] = {"loss": [], "accuracy": []}
    with detect_retained() as watch:
        for x, y in batches():
            out = model(x)
            loss = F.mse_loss(out, y)  # made
            metrics["loss"].append(loss)  # kept
            metrics["accuracy"].append((out - y).abs().mean().item())
            train(optimizer, loss)
    f = only(watch)
    here = test_a_dict_of_metrics
    assert f.line.endswith(place(here, "made"))
    assert f.root == f"`metrics['loss'][0]`, local variable of {here.__name__}()"


@pytest.mark.deep
def test_a_dict_by_step() -> None:
    model, optimizer = setup()
    by_step: dict[int, Any] = {}
    with detect_retained() as watch:
        for step, (x, y) in enumerate(batches()):
            loss = F.mse_loss(model(x), y)  # made
            by_step[step] = loss  # kept
            train(optimizer, loss)
    f = only(watch)
    assert f.kind == "dict"
    assert f.line.endswith(place(test_a_dict_by_step, "made"))
    assert f.kept_at is not None
    assert f.kept_at.endswith(place(test_a_dict_by_step, "kept"))


class Recorder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.features: list[Any] = []

    def forward(self, x: Any) -> Any:
        hidden = self.body[1](self.body[0](x))  # made
        self.features.append(hidden)  # kept
        return self.body[2](hidden)


@pytest.mark.deep
def test_an_attribute_of_a_module() -> None:
    wrapper = nn.Sequential(Recorder())
    optimizer = lt.optim.Adam(wrapper.parameters())
    with detect_retained() as watch:
        for x, y in batches():
            train(optimizer, F.mse_loss(wrapper(x), y))
    f = only(watch)
    assert f.kind == "module attribute"
    assert f.line.endswith(place(Recorder, "made"))
    assert f.kept_at is not None
    assert f.kept_at.endswith(place(Recorder, "kept"))
    assert "`wrapper[0].features[0]`" in f.root
    assert (f.bytes, f.growth_bytes_per_step) == (
        3 * 4 * BATCH * HIDDEN,
        4 * BATCH * HIDDEN,
    )
    assert ".detach()" in f.fix


@dataclass
class Meter:
    values: list[Any] = field(default_factory=list)

    def update(self, value: Any) -> None:
        self.values.append(value)  # kept


class Trainer:
    def __init__(self) -> None:
        self.model, self.optimizer = setup()
        self.meter = Meter()

    def run(self) -> None:
        for x, y in batches():
            loss = F.mse_loss(self.model(x), y)  # made
            train(self.optimizer, loss)
            self.meter.update(loss)


@pytest.mark.deep
def test_an_attribute_of_a_users_object() -> None:
    trainer = Trainer()
    with detect_retained() as watch:
        trainer.run()
    f = only(watch)
    assert f.kind == "attribute"
    assert f.line.endswith(place(Trainer, "made"))
    assert "meter.values[0]" in f.root
    assert f.kept_at is not None
    assert f.kept_at.endswith(place(Meter, "kept"))


@pytest.mark.deep
def test_a_validation_loss_with_its_graph() -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for step, (x, y) in enumerate(batches(4)):
            if step == 0:
                validation = F.mse_loss(model(x), y)  # made
            train(optimizer, F.mse_loss(model(x), y))
    f = only(watch)
    assert f.kind == "local variable"
    assert f.line.endswith(place(test_a_validation_loss_with_its_graph, "made"))
    assert f.root == "`validation`, local variable of test_a_validation_loss_with_its_graph()"
    assert f.bytes == 4 * BATCH * (WIDTH + HIDDEN + 2) + 4  # as its backward would need
    assert "no_grad" in f.fix
    assert validation.requires_grad
