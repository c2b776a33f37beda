"""The watcher itself: what it costs the watched, when it looks, how it reports."""

from __future__ import annotations

import gc
import threading
from collections import deque
from typing import Any

import pytest

import lowtide as lt
from lowtide.framework.attribution import scopes
from lowtide.framework.autograd.pass_watchers import watchers
from lowtide.nn import functional as F
from lowtide.profiling import Finding, detect_retained
from tests.profiling.leaks.loops import BATCH, WIDTH, batches, only, setup, train


@pytest.mark.deep
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


@pytest.mark.deep
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
    callbacks = list(gc.callbacks)
    with detect_retained(), detect_retained():
        assert len(watchers.joined) == 2
        assert scopes.listening()
    assert not watchers.joined
    assert gc.callbacks == callbacks
    assert not scopes.listening()


@pytest.mark.deep
def test_nested_watchers_see_the_same() -> None:
    model, optimizer = setup()
    losses = []
    with detect_retained() as outer, detect_retained() as inner:
        for x, y in batches():
            losses.append(F.mse_loss(model(x), y))
            train(optimizer, losses[-1])
    assert only(outer) == only(inner)


@pytest.mark.deep
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


@pytest.mark.deep
def test_growth_is_followed() -> None:
    model, optimizer = setup()
    outputs = []
    with detect_retained() as watch:
        for x, y in batches(8):
            out = model(x)
            outputs.append(out)
            train(optimizer, F.mse_loss(out, y))
    f = only(watch)
    assert f.bytes == 7 * 4 * BATCH  # the variable holds the last one, too
    assert watch.elsewhere_bytes == 4 * BATCH
    assert f.growth_bytes_per_step == 4 * BATCH
    assert f.steps == 8


@pytest.mark.deep
def test_a_bounded_queue_stops_growing() -> None:
    model, optimizer = setup()
    recent: deque[Any] = deque(maxlen=3)
    with detect_retained() as watch:
        for x, y in batches(8):
            loss = F.mse_loss(model(x), y)
            recent.append(loss)
            train(optimizer, loss)
    f = only(watch)
    assert (f.bytes, f.growth_bytes_per_step, watch.elsewhere_bytes) == (8, 0, 4)


@pytest.mark.deep
def test_report_and_warning() -> None:
    model, optimizer = setup()
    losses = []
    watch = detect_retained(warn=True)

    def run() -> None:
        with watch:
            for x, y in batches():
                losses.append(F.mse_loss(model(x), y))
                train(optimizer, losses[-1])

    with pytest.warns(UserWarning, match=r"list: `losses\[0\]`, .*holds 8 B and 10 nodes"):
        run()
    report = watch.report()
    assert report.startswith("1 graph survives its step (3 steps watched)\n")
    assert "fix: Keep .item() instead of the tensor in losses." in report
    with detect_retained() as clean:
        pass
    assert (
        clean.report() == "No graph survives its step, and no tensors pile up (0 steps watched).\n"
    )


@pytest.mark.deep
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


@pytest.mark.deep
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
