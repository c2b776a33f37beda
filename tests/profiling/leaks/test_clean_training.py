"""Ordinary training keeps nothing, and raises no alarm."""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.nn import functional as F
from lowtide.profiling import detect_retained
from lowtide.utils.data import DataLoader, TensorDataset
from tests.profiling.leaks.loops import BATCH, HIDDEN, WIDTH, batches, loop, mlp, setup, train


@pytest.mark.deep
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


@pytest.mark.deep
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


@pytest.mark.deep
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


@pytest.mark.deep
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


@pytest.mark.deep
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


@pytest.mark.deep
def test_clean_sum_of_losses_within_a_step() -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for _ in range(4):
            total = lt.zeros(())
            for x, y in batches(3):
                total = total + F.mse_loss(model(x), y)
            train(optimizer, total)
    assert watch.findings == [], watch.report()


@pytest.mark.deep
def test_clean_batch_norm_and_dropout() -> None:
    model = nn.Sequential(
        nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Dropout(0.5), nn.Linear(HIDDEN, 1)
    )
    optimizer = lt.optim.SGD(model.parameters(), lr=0.01)
    loop(lambda x, y: train(optimizer, F.mse_loss(model(x), y)))


@pytest.mark.deep
def test_clean_cached_tensors_without_graph() -> None:
    model, optimizer = setup()

    @functools.lru_cache
    def mask(size: int) -> Any:
        return lt.ones(size, size).tril()

    features: deque[Any] = deque(maxlen=2)

    def body(x: Any, y: Any) -> None:
        features.append(x * mask(WIDTH)[-1])
        train(optimizer, F.mse_loss(model(features[-1]), y))

    loop(body)


@pytest.mark.deep
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


@pytest.mark.deep
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
                kept.append(model(x).abs().mean())
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


@pytest.mark.deep
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


@pytest.mark.deep
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


@pytest.mark.deep
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
