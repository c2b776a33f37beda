"""Further loops that keep no graph, however much they keep: buffers, queues, targets, rollouts."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.nn import functional as F
from lowtide.profiling import detect_retained
from lowtide.utils.checkpoint import checkpoint
from tests.profiling.leaks.loops import BATCH, HIDDEN, WIDTH, batches, loop, mlp, setup, train

pytestmark = pytest.mark.deep  # one more of many: the other files are quick


STEPS = 6


def test_clean_replay_buffer() -> None:
    model, optimizer = setup()
    buffer: deque[Any] = deque(maxlen=3)

    def body(x: Any, y: Any) -> None:
        value = model(x)
        buffer.append((x, value.detach(), y))
        old, _, target = buffer[0]
        train(optimizer, F.mse_loss(model(old), target) + F.mse_loss(value, y))

    loop(body, STEPS)


def test_clean_queue_of_keys_and_momentum_encoder() -> None:
    query = nn.Linear(WIDTH, WIDTH)
    key = copy.deepcopy(query)
    optimizer = lt.optim.SGD(query.parameters(), lr=0.1, momentum=0.9)
    queue = lt.randn(2 * BATCH, WIDTH)
    with detect_retained() as watch:
        for x, _ in batches(STEPS):
            q = query(x)
            with lt.no_grad():
                for a, b in zip(key.parameters(), query.parameters(), strict=True):
                    a.copy_(0.9 * a + 0.1 * b)
                k = key(x)
            train(optimizer, -(q * k).sum(1).mean() + (q @ queue.t()).logsumexp(1).mean())
            queue = lt.cat([queue[BATCH:], k])
    assert watch.findings == [], watch.report()


def test_clean_models_that_take_uneven_turns() -> None:
    one, two = mlp(), mlp()
    of_one, of_two = lt.optim.Adam(one.parameters()), lt.optim.Adam(two.parameters())
    turn = iter(range(2 * STEPS))

    def body(x: Any, y: Any) -> None:
        if next(turn) % 3 == 0:
            train(of_one, F.mse_loss(one(x), y))
        else:
            train(of_two, F.mse_loss(two(x), y))

    loop(body, 2 * STEPS)


def test_clean_last_output_on_the_module() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.last = mlp(), None

        def forward(self, x: Any) -> Any:
            self.last = self.body(x)
            return self.last

    model = Net()
    optimizer = lt.optim.SGD(model.parameters(), lr=0.1)
    loop(lambda x, y: train(optimizer, F.mse_loss(model(x), y)), STEPS)


def test_clean_epochs_over_a_rollout() -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for _ in range(3):
            with lt.no_grad():
                rollout = [(x, y, model(x)) for x, y in batches(3)]
            for _ in range(2):
                for x, y, old in rollout:
                    train(optimizer, ((model(x) - old).exp() * y).mean())
    assert watch.findings == [], watch.report()


def test_clean_cell_unrolled_by_hand() -> None:
    cell, head = nn.LSTMCell(WIDTH, HIDDEN), nn.Linear(HIDDEN, 1)
    optimizer = lt.optim.Adam([*cell.parameters(), *head.parameters()])
    state: Any = (lt.zeros(2, HIDDEN), lt.zeros(2, HIDDEN))
    with detect_retained() as watch:
        for _ in range(STEPS):
            outputs = []
            for _ in range(3):
                state = cell(lt.randn(2, WIDTH), state)
                outputs.append(head(state[0]))
            train(optimizer, lt.stack(outputs).pow(2).mean())
            state = tuple(s.detach() for s in state)
    assert watch.findings == [], watch.report()


def test_clean_the_two_losses_before() -> None:
    model, optimizer = setup()
    before = previous = None
    with detect_retained() as watch:
        for x, y in batches(STEPS):
            loss = F.mse_loss(model(x), y)
            train(optimizer, loss)
            before, previous = previous, loss
    assert watch.findings == [], watch.report()
    assert before is not None


def test_clean_best_and_last_in_a_dict() -> None:
    model, optimizer = setup()
    kept: dict[str, Any] = {"best": None}

    def body(x: Any, y: Any) -> None:
        loss = F.mse_loss(model(x), y)
        train(optimizer, loss)
        if kept["best"] is None or loss < kept["best"]:
            kept["best"] = loss
        kept["last"] = loss

    loop(body, STEPS)


def test_clean_targets_some_steps_behind() -> None:
    model, optimizer = setup()
    lag: deque[Any] = deque(maxlen=5)

    def body(x: Any, y: Any) -> None:
        out = model(x)
        train(optimizer, F.mse_loss(out, lag[0] if lag else y))
        lag.append(out.detach())

    loop(body, STEPS)


def test_clean_copies_of_state_dicts() -> None:
    model, optimizer = setup()
    states: deque[Any] = deque(maxlen=3)
    curve = []

    def body(x: Any, y: Any) -> None:
        loss = F.mse_loss(model(x), y)
        train(optimizer, loss)
        curve.append(float(loss))
        states.append((copy.deepcopy(model.state_dict()), model.state_dict()))

    loop(body, STEPS)


def test_clean_momentum_by_hand() -> None:
    weights = [lt.randn(WIDTH, HIDDEN).requires_grad_(), lt.randn(HIDDEN, 1).requires_grad_()]
    speeds = [lt.zeros_like(w) for w in weights]
    with detect_retained() as watch:
        for x, y in batches(STEPS):
            loss = F.mse_loss((x @ weights[0]).tanh() @ weights[1], y)
            gradients = lt.autograd.grad(loss, weights)
            with lt.no_grad():
                for k, g in enumerate(gradients):
                    speeds[k] = 0.9 * speeds[k] + g
                    weights[k] -= 0.1 * speeds[k]
            watch.step()
    assert watch.findings == [], watch.report()


def test_clean_function_transforms() -> None:
    model = mlp()
    state = {name: p.detach() for name, p in model.named_parameters()}

    def loss_of(state: Any, x: Any, y: Any) -> Any:
        return F.mse_loss(lt.func.functional_call(model, state, (x,)), y)

    losses = []
    with detect_retained() as watch:
        for x, y in batches(STEPS):
            gradients, loss = lt.func.grad_and_value(loss_of)(state, x, y)
            state = {name: p - 0.1 * gradients[name] for name, p in state.items()}
            losses.append(loss)
            watch.step()
    assert watch.findings == [], watch.report()


def test_clean_checkpointed_forward() -> None:
    model, optimizer = setup()

    def body(x: Any, y: Any) -> None:
        train(optimizer, F.mse_loss(checkpoint(model, x, use_reentrant=False), y))

    loop(body, STEPS)


def test_clean_losses_listed_within_an_accumulated_step() -> None:
    model, optimizer = setup()
    with detect_retained() as watch:
        for _ in range(4):
            losses = []
            for x, y in batches(4):
                loss = F.mse_loss(model(x), y)
                (loss / 4).backward()
                losses.append(loss)
            optimizer.step()
            optimizer.zero_grad()
    assert watch.findings == [], watch.report()


def test_clean_hooks_that_keep_detached_values() -> None:
    model, optimizer = setup()
    kept: list[Any] = []
    model[1].register_forward_hook(lambda m, args, out: kept.append(out.detach().mean()))
    model[0].weight.register_hook(lambda g: g * 0.5)
    loop(lambda x, y: train(optimizer, F.mse_loss(model(x), y)), STEPS)
    assert len(kept) == STEPS
