"""Leaks seeded into loops are found by the third step, with their line; clean loops raise no alarm.

In each seeded loop the op that makes the surviving value carries the comment ``made``, and the
statement that keeps it ``kept``; the finding must name exactly these lines.
"""

from __future__ import annotations

import functools
import gc
import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework import scopes
from lowtide.framework.autograd import engine
from lowtide.nn import functional as F
from lowtide.profiling import Finding, detect_retained
from lowtide.utils.data import DataLoader, TensorDataset

BATCH, WIDTH, HIDDEN = 16, 4, 8


@pytest.fixture(autouse=True)
def collector(request: pytest.FixtureRequest) -> Iterator[None]:
    """Plain references are found with the garbage collector off; clean loops run with it on."""
    if not request.node.name.startswith("test_clean"):
        gc.disable()
    yield
    gc.enable()


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
    return f"test_retained.py:{found[0]}"


def only(watch: detect_retained) -> Finding:
    assert len(watch.findings) == 1, watch.report()
    return watch.findings[0]


# Seeded


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
    assert (f.bytes, f.growth_bytes_per_step, f.steps) == (12, 4, 3)  # three floats
    assert ".item()" in f.fix


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


def test_a_dataset_that_requires_grad() -> None:
    model, optimizer = setup()
    samples = [(lt.randn(WIDTH, requires_grad=True), lt.zeros(1)) for _ in range(12)]
    loader = DataLoader(samples, batch_size=4)  # type: ignore[arg-type,var-annotated]
    with detect_retained() as watch:
        for x, y in loader:  # made
            train(optimizer, F.mse_loss(model(x), y))
    f = only(watch)
    assert f.kind == "input gradient"
    assert f.line.endswith(place(test_a_dataset_that_requires_grad, "made"))
    assert (f.bytes, f.growth_bytes_per_step) == (12 * 4 * WIDTH, 4 * 4 * WIDTH)
    assert "requires_grad" in f.fix


def test_retain_graph_by_habit() -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward(retain_graph=True)  # made
            optimizer.step()
    f = only(watch)
    assert f.kind == "retain_graph"
    assert f.line.endswith(place(test_retain_graph_by_habit, "made"))
    assert f.growth_bytes_per_step == 0
    # The batch, tanh's output and the difference: what one step's graph holds.
    assert f.bytes == 4 * BATCH * (WIDTH + HIDDEN + 1)


def test_a_hidden_state_carried_on() -> None:
    cell = nn.RNN(WIDTH, HIDDEN)
    hidden = lt.zeros(1, 2, HIDDEN)
    with detect_retained() as watch:
        for _ in range(3):
            chunk = lt.randn(5, 2, WIDTH)
            out, hidden = cell(chunk, hidden)  # made
            assert out.shape == (5, 2, HIDDEN)
            watch.step()
    f = only(watch)
    assert f.kind == "carried state"
    assert f.line.endswith(place(test_a_hidden_state_carried_on, "made"))
    assert f.root == "`hidden`, local variable of test_a_hidden_state_carried_on()"
    assert "hidden = hidden.detach()" in f.fix
    assert f.growth_bytes_per_step > 0


def test_the_state_of_an_lstm_in_training() -> None:
    cell, head = nn.LSTM(WIDTH, HIDDEN), nn.Linear(HIDDEN, 1)
    state = None
    with detect_retained() as watch:
        for _ in range(3):
            out, state = cell(lt.randn(5, 2, WIDTH), state)  # made
            loss = head(out).pow(2).mean()
            loss.backward(retain_graph=True)
    f = only(watch)
    assert f.kind == "carried state"
    assert f.line.endswith(place(test_the_state_of_an_lstm_in_training, "made"))
    assert "`state[" in f.root


def test_a_buffer_that_tracks_the_graph() -> None:
    class Center(nn.Module):
        mean: Any

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(lt.ones(WIDTH))
            self.register_buffer("mean", lt.zeros(WIDTH))

        def forward(self, x: Any) -> Any:
            x = x * self.scale
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)  # made
            return x - x.mean(0)

    model = nn.Sequential(Center(), mlp())
    optimizer = lt.optim.SGD(model.parameters(), lr=0.1)
    with detect_retained() as watch:
        for x, y in batches():
            train(optimizer, F.mse_loss(model(x), y))
    f = only(watch)
    assert f.kind == "carried state"
    assert f.line.endswith(place(test_a_buffer_that_tracks_the_graph, "made"))
    assert f.root.startswith("`model[0].mean`")


def test_weights_updated_with_recording_on() -> None:
    w = lt.randn(WIDTH, 1, requires_grad=True)
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(x @ w, y)
            (g,) = lt.autograd.grad(loss, [w])
            w = w - 0.1 * g  # made
            watch.step()
    f = only(watch)
    assert f.kind == "carried state"
    assert f.line.endswith(place(test_weights_updated_with_recording_on, "made"))
    assert "`w`" in f.root


def test_gradients_that_accumulate_with_their_graph() -> None:
    model, _ = setup()
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(model(x), y)
            loss.backward(create_graph=True)  # made
    f = only(watch)
    assert f.kind == "gradient graph"
    assert f.line.endswith(place(test_gradients_that_accumulate_with_their_graph, "made"))
    assert ".grad`" in f.root
    assert "zero_grad(set_to_none=True)" in f.fix
    for p in model.parameters():
        p.grad = None


class Knot:
    """Refers to itself, so that only the collector frees what it holds."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.me = self


@pytest.mark.parametrize("collected", [False, True])
def test_a_cycle_that_nobody_names(collected: bool) -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for x, y in batches():
            loss = F.mse_loss(model(x), y)  # made
            Knot(loss)
            train(optimizer, loss)
            if collected:
                del loss
                gc.collect()
    f = only(watch)
    assert f.kind == "cycle"
    assert f.line.endswith(place(test_a_cycle_that_nobody_names, "made"))
    assert "freed only by gc" in f.root


def test_a_tensor_that_python_does_not_show() -> None:
    import numpy as np

    model, optimizer = setup()
    table = np.empty(3, dtype=object)  # arrays do not tell the collector what they hold
    with detect_retained() as watch:
        for step, (x, y) in enumerate(batches()):
            loss = F.mse_loss(model(x), y)  # made
            table[step] = loss
            train(optimizer, loss)
    f = only(watch)
    assert f.kind == "unseen"
    assert f.line.endswith(place(test_a_tensor_that_python_does_not_show, "made"))


# Clean


def loop(body: Callable[[Any, Any], Any], count: int = 6) -> None:
    """A watched loop; the body's result is dropped."""
    with detect_retained() as watch:
        for x, y in batches(count):
            body(x, y)
    assert watch.findings == [], watch.report()


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"])
def test_clean_optimizers_with_state(name: str) -> None:
    model = mlp()
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(lt.optim, name)(model.parameters(), lr=0.01, **options)
    with detect_retained() as watch:
        for x, y in batches(6):
            loss = F.mse_loss(model(x), y)
            train(optimizer, loss)
    assert watch.findings == [], watch.report()


def test_clean_numbers_in_lists() -> None:
    model, optimizer = setup()
    losses, outputs = [], deque(maxlen=10)
    with detect_retained() as watch:
        for x, y in batches(6):
            out = model(x)
            loss = F.mse_loss(out, y)
            train(optimizer, loss)
            losses.append(loss.item())
            outputs.append(out.detach())
    assert watch.findings == [], watch.report()


def test_clean_loss_of_the_step_before_and_of_the_best() -> None:
    model, optimizer = setup()
    previous = best = None
    with detect_retained() as watch:
        for x, y in batches(8):
            loss = F.mse_loss(model(x), y)
            train(optimizer, loss)
            if best is None or loss < best:
                best = loss
            if previous is not None:
                previous.item()
            previous = loss
    assert watch.findings == [], watch.report()


def test_clean_average_of_weights() -> None:
    model, optimizer = setup()
    average = lt.optim.swa_utils.AveragedModel(model)
    mine = [p.detach().clone() for p in model.parameters()]

    def body(x: Any, y: Any) -> None:
        train(optimizer, F.mse_loss(model(x), y))
        average.update_parameters(model)
        with lt.no_grad():
            for m, p in zip(mine, model.parameters(), strict=True):
                m.mul_(0.9).add_(p, alpha=0.1)

    loop(body)


def test_clean_accumulation_of_gradients() -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for _ in range(4):
            parts = []
            for x, y in batches(4):
                loss = F.mse_loss(model(x), y) / 4
                loss.backward()
                parts.append(loss)
            optimizer.step()
            optimizer.zero_grad()
            print(sum(p.item() for p in parts))
    assert watch.findings == [], watch.report()


def test_clean_sum_of_losses_within_a_step() -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for _ in range(4):
            total = lt.zeros(())
            for x, y in batches(3):
                total = total + F.mse_loss(model(x), y)
            train(optimizer, total)
    assert watch.findings == [], watch.report()


def test_clean_truncated_backpropagation_through_time() -> None:
    cell, head = nn.LSTM(WIDTH, HIDDEN), nn.Linear(HIDDEN, 1)
    optimizer = lt.optim.Adam([*cell.parameters(), *head.parameters()])
    state = None
    with detect_retained() as watch:
        for _ in range(6):
            out, state = cell(lt.randn(5, 2, WIDTH), state)
            state = tuple(s.detach() for s in state)
            train(optimizer, head(out).pow(2).mean())
    assert watch.findings == [], watch.report()


def test_clean_batch_norm_and_dropout() -> None:
    model = nn.Sequential(
        nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Dropout(0.5), nn.Linear(HIDDEN, 1)
    )
    optimizer = lt.optim.SGD(model.parameters(), lr=0.01)
    loop(lambda x, y: train(optimizer, F.mse_loss(model(x), y)))


def test_clean_cached_tensors_without_graph() -> None:
    model, optimizer = setup()

    @functools.lru_cache
    def mask(size: int) -> Any:
        return lt.ones(size, size).tril()

    features = []

    def body(x: Any, y: Any) -> None:
        features.append(x * mask(WIDTH)[-1])
        train(optimizer, F.mse_loss(model(features[-1]), y))

    loop(body)


@pytest.mark.parametrize("workers", [0, 1])
def test_clean_data_loader(workers: int) -> None:
    model, optimizer = setup()
    data = TensorDataset(lt.randn(24, WIDTH), lt.randn(24, 1))
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers)  # type: ignore[var-annotated]
    with detect_retained() as watch:
        for _ in range(2):
            for x, y in loader:
                loss = F.mse_loss(model(x), y)
                train(optimizer, loss)
    assert watch.findings == [], watch.report()


def test_clean_retain_graph_for_two_losses() -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for x, y in batches(6):
            out = model(x)
            first, second = F.mse_loss(out, y), F.l1_loss(out, y)
            optimizer.zero_grad()
            first.backward(retain_graph=True)
            second.backward()
            optimizer.step()
    assert watch.findings == [], watch.report()


def test_clean_graph_made_once_and_used_in_each_step() -> None:
    encoder = nn.Linear(WIDTH, HIDDEN)
    head = nn.Linear(HIDDEN, 1)
    optimizer = lt.optim.SGD(head.parameters(), lr=0.01)
    with detect_retained() as watch:
        features = encoder(lt.randn(BATCH, WIDTH)).tanh()
        for _, y in batches(6):
            loss = F.mse_loss(head(features.clone()), y)
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            optimizer.step()
    assert watch.findings == [], watch.report()


@pytest.mark.parametrize("critics", [1, 5])
def test_clean_adversarial_networks(critics: int) -> None:
    generator, critic = nn.Linear(3, WIDTH), mlp()
    of_generator = lt.optim.Adam(generator.parameters())
    of_critic = lt.optim.Adam(critic.parameters())
    with detect_retained() as watch:
        for _ in range(4):
            kept = []
            for real, _ in batches(critics):
                fake = generator(lt.randn(BATCH, 3))
                d_loss = critic(fake.detach()).mean() - critic(real).mean()
                train(of_critic, d_loss)
                kept.append(d_loss)
            g_loss = -critic(generator(lt.randn(BATCH, 3))).mean()
            train(of_generator, g_loss)
    assert watch.findings == [], watch.report()


def test_clean_lbfgs() -> None:
    model = mlp()
    optimizer = lt.optim.LBFGS(model.parameters(), max_iter=5)
    with detect_retained() as watch:
        for x, y in batches(4):

            def closure(x: Any = x, y: Any = y) -> Any:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    assert watch.findings == [], watch.report()


def test_clean_gradient_penalty() -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for x, y in batches(6):
            x.requires_grad_()
            out = model(x)
            (g,) = lt.autograd.grad(out.sum(), x, create_graph=True)
            loss = F.mse_loss(out, y) + (g.pow(2).sum(1) - 1).pow(2).mean()
            train(optimizer, loss)
    assert watch.findings == [], watch.report()


def test_clean_create_graph_with_zero_grad() -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for x, y in batches(6):
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward(create_graph=True)
            penalty = sum((p.grad * p.grad).sum() for p in model.parameters())
            optimizer.zero_grad()
            (loss + 0.1 * penalty).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert watch.findings == [], watch.report()


def test_clean_hooks_that_read_shapes() -> None:
    model, optimizer = setup()
    shapes: list[Any] = []
    model[0].register_forward_hook(lambda m, i, o: shapes.append(tuple(o.shape)))
    model[2].register_full_backward_hook(lambda m, i, o: shapes.append(tuple(o[0].shape)))

    def body(x: Any, y: Any) -> None:
        out = model(x)
        out.register_hook(lambda g: shapes.append(tuple(g.shape)))
        train(optimizer, F.mse_loss(out, y))

    loop(body)
    assert len(shapes) == 18


def test_clean_validation_under_no_grad() -> None:
    model, optimizer = setup()
    kept = []
    with detect_retained() as watch:
        for x, y in batches(6):
            loss = F.mse_loss(model(x), y)
            train(optimizer, loss)
            model.eval()
            with lt.no_grad():
                kept.append(model(x))
            model.train()
    assert len(kept) == 6
    assert watch.findings == [], watch.report()


def test_clean_schedule_and_clipping() -> None:
    model, optimizer = setup()
    schedule = lt.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    with detect_retained() as watch:
        for x, y in batches(6):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    assert watch.findings == [], watch.report()


def test_clean_without_optimizer() -> None:
    w = lt.randn(WIDTH, 1, requires_grad=True)
    with detect_retained() as watch:
        for x, y in batches(6):
            loss = F.mse_loss(x @ w, y)
            loss.backward()
            with lt.no_grad():
                assert w.grad is not None
                w -= 0.1 * w.grad
            w.grad = None
    assert watch.findings == [], watch.report()


def test_clean_exceptions_that_are_handled() -> None:
    model, optimizer = setup()
    messages = []
    with detect_retained() as watch:
        for x, y in batches(6):
            try:
                model(x) @ lt.ones(7, 7)
            except RuntimeError as error:
                messages.append(str(error))
            train(optimizer, F.mse_loss(model(x), y))
    assert watch.findings == [], watch.report()


def test_clean_own_function_and_writes_into_views() -> None:
    class Double(lt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    model, optimizer = setup()

    def body(x: Any, y: Any) -> None:
        out = Double.apply(model(x)).clone()
        out[:4] = 0.0
        a, b = out.split(8)
        train(optimizer, F.mse_loss(lt.cat([a, b]), y))

    loop(body)


def test_clean_inner_loop_of_meta_learning() -> None:
    w = nn.Parameter(lt.randn(WIDTH, 1))
    optimizer = lt.optim.SGD([w], lr=0.01)
    with detect_retained() as watch:
        for _ in range(4):
            fast: Any = w
            for x, y in batches(4):
                (g,) = lt.autograd.grad(F.mse_loss(x @ fast, y), fast, create_graph=True)
                fast = fast - 0.1 * g
            x, y = next(batches(1))
            train(optimizer, F.mse_loss(x @ fast, y))
    assert watch.findings == [], watch.report()


def test_clean_policy_gradients() -> None:
    policy, optimizer = setup()
    rewards = []
    with detect_retained() as watch:
        for _ in range(5):
            log_probabilities = []
            for x, _ in batches(4):
                log_probabilities.append(policy(x).mean())
                rewards.append(x.sum().item())
            loss = -lt.stack(log_probabilities).mul(rewards[-1]).sum()
            train(optimizer, loss)
    assert watch.findings == [], watch.report()


def test_clean_optimizers_that_step_during_backward() -> None:
    model = mlp()
    optimizers = {p: lt.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def step(p: Any) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    with detect_retained() as watch:
        for x, y in batches(6):
            loss = F.mse_loss(model(x), y)
            loss.backward()
    assert watch.findings == [], watch.report()


def test_clean_two_backward_passes_a_step() -> None:
    model, optimizer = setup()  # as sharpness-aware minimization has them
    with detect_retained() as watch:
        for x, y in batches(6):
            first = F.mse_loss(model(x), y)
            first.backward()
            with lt.no_grad():
                moved = [0.05 * p.grad for p in model.parameters()]
                for p, d in zip(model.parameters(), moved, strict=True):
                    p.add_(d)
            optimizer.zero_grad()
            second = F.mse_loss(model(x), y)
            second.backward()
            with lt.no_grad():
                for p, d in zip(model.parameters(), moved, strict=True):
                    p.sub_(d)
            optimizer.step()
            optimizer.zero_grad()
    assert watch.findings == [], watch.report()


def test_clean_attribute_that_is_written_anew() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()
            self.last: Any = None

        def forward(self, x: Any) -> Any:
            self.last = self.body(x)
            return self.last

    model = Last()
    optimizer = lt.optim.SGD(model.parameters(), lr=0.01)
    loop(lambda x, y: train(optimizer, F.mse_loss(model(x), y)))


def test_clean_attacks_on_the_batch() -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for x, y in batches(6):
            x.requires_grad_()
            F.mse_loss(model(x), y).backward()
            attacked = (x + 0.01 * x.grad.sign()).detach()
            loss = F.mse_loss(model(attacked), y)
            train(optimizer, loss)
    assert watch.findings == [], watch.report()


def test_clean_phases_with_their_own_optimizers() -> None:
    model, head = setup()[0], None
    with detect_retained() as watch:
        for parameters in (model[2].parameters(), model.parameters()):
            head = lt.optim.Adam(parameters)
            for x, y in batches(5):
                loss = F.mse_loss(model(x), y)
                train(head, loss)
    assert watch.findings == [], watch.report()


def test_clean_mixed_precision() -> None:
    model, optimizer = setup()
    scaler = lt.amp.GradScaler("cpu")
    with detect_retained() as watch:
        for x, y in batches(6):
            with lt.amp.autocast("cpu", dtype=lt.bfloat16):
                loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert watch.findings == [], watch.report()


def test_clean_sparsely_used_experts() -> None:
    experts = nn.ModuleList([mlp() for _ in range(4)])
    optimizer = lt.optim.SGD(experts.parameters(), lr=0.01)
    with detect_retained() as watch:
        for step, (x, y) in enumerate(batches(4)):
            loss = F.mse_loss(experts[step](x), y)
            loss.backward()
            optimizer.step()
    assert watch.findings == [], watch.report()


# The watcher itself


def test_watching_keeps_nothing_alive() -> None:
    model, optimizer = setup()
    losses = []
    x, y = next(batches(1))
    ledger = lt.framework.devices.backend(lt.device("cpu")).ledger
    train(optimizer, F.mse_loss(model(x), y))
    optimizer.zero_grad()
    before = ledger.live
    watch = detect_retained()
    with watch:
        for _ in range(4):
            loss = F.mse_loss(model(x), y)
            losses.append(loss)
            train(optimizer, loss)
        assert watch.findings
        losses.clear()
        del loss
        optimizer.zero_grad()
        assert ledger.live == before
    assert ledger.live == before


def test_locals_of_the_caller_are_left_as_they_are() -> None:
    model, optimizer = setup()
    losses = []
    x, y = next(batches(1))
    space = locals()  # the user's own look at them
    with detect_retained() as watch:
        for _ in range(3):
            losses.append(F.mse_loss(model(x), y))
            train(optimizer, losses[-1])
    assert watch.findings
    assert space["losses"] is losses
    assert space["model"] is model


def test_nothing_is_left_in_place_afterwards() -> None:
    run, callbacks = engine._run, list(gc.callbacks)
    init = lt.autograd.graph.Node.__subclasses__()[0].__init__
    with detect_retained(), detect_retained():
        assert engine._run is not run
        assert scopes.listening()
    assert engine._run is run
    assert gc.callbacks == callbacks
    assert not scopes.listening()
    assert lt.autograd.graph.Node.__subclasses__()[0].__init__ is init


def test_nested_watchers_see_the_same() -> None:
    model, optimizer = setup()
    losses = []
    with detect_retained() as outer, detect_retained() as inner:
        for x, y in batches():
            losses.append(F.mse_loss(model(x), y))
            train(optimizer, losses[-1])
    assert only(outer) == only(inner)


def test_a_leak_in_a_thread() -> None:
    found: list[Finding] = []

    def work() -> None:
        model, optimizer = setup()
        losses = []
        for x, y in batches():
            losses.append(F.mse_loss(model(x), y))
            train(optimizer, losses[-1])
        found.extend(watch.findings)

    with detect_retained() as watch:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [f.kind for f in found] == ["list"]
    assert "losses" in found[0].root


def test_growth_is_followed() -> None:
    model, optimizer = setup()
    outputs = []
    with detect_retained() as watch:
        for x, y in batches(8):
            out = model(x)
            outputs.append(out)
            train(optimizer, F.mse_loss(out, y))
    f = only(watch)
    assert f.bytes == 8 * 4 * BATCH
    assert f.growth_bytes_per_step == 4 * BATCH
    assert f.steps == 8


def test_a_bounded_queue_stops_growing() -> None:
    model, optimizer = setup()
    recent: deque[Any] = deque(maxlen=3)
    with detect_retained() as watch:
        for x, y in batches(8):
            loss = F.mse_loss(model(x), y)
            recent.append(loss)
            train(optimizer, loss)
    f = only(watch)
    assert (f.bytes, f.growth_bytes_per_step) == (12, 0)


def test_report_and_warning() -> None:
    model, optimizer = setup()
    losses = []
    watch = detect_retained(warn=True)

    def run() -> None:
        with watch:
            for x, y in batches():
                losses.append(F.mse_loss(model(x), y))
                train(optimizer, losses[-1])

    with pytest.warns(UserWarning, match=r"list: `losses\[0\]`, .*holds 12 B and 18 nodes"):
        run()
    report = watch.report()
    assert report.startswith("1 graph survives its step (3 steps watched)\n")
    assert "fix: Keep .item() instead of the tensor in losses." in report
    with detect_retained() as clean:
        pass
    assert clean.report() == "No graph survives its step (0 steps watched).\n"


def test_an_error_in_the_loop_leaves_the_findings() -> None:
    model, optimizer = setup()
    losses = []
    watch = detect_retained()

    def run() -> None:
        with watch:
            for x, y in batches(4):
                losses.append(F.mse_loss(model(x), y))
                train(optimizer, losses[-1])
                if len(losses) == 3:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert only(watch).kind == "list"


def test_a_long_run_is_looked_at_ever_less_often_and_once_more_at_its_end() -> None:
    w = lt.ones(WIDTH, requires_grad=True)
    kept = []
    with detect_retained() as watch:
        for _ in range(100):
            kept.append((w * w).sum())
            kept[-1].backward()
            w.grad = None
    f = only(watch)
    assert (f.bytes, f.growth_bytes_per_step) == (400, 4)
    assert (f.nodes, f.growth_nodes_per_step) == (200, 2)
    assert f.steps == 100


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
    assert f.bytes == 4 * BATCH * (WIDTH + HIDDEN + 1) + 4  # as its backward would need
    assert "no_grad" in f.fix
    assert validation.requires_grad


def test_a_momentum_kept_with_recording_on() -> None:
    class Careless(lt.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                past = self.state[p].get("momentum", 0.0)
                self.state[p]["momentum"] = 0.9 * past + 0.1 * p * p.grad  # made
                with lt.no_grad():
                    p -= 0.01 * p.grad

    model = mlp()
    optimizer = Careless(model.parameters())
    with detect_retained() as watch:
        for x, y in batches(4):
            train(optimizer, F.mse_loss(model(x), y))
    f = only(watch)
    assert f.kind == "carried state"
    assert f.line.endswith(place(test_a_momentum_kept_with_recording_on, "made"))
    assert "momentum" in f.root
