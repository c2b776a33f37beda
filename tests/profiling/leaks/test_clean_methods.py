"""Methods with several graphs, optimizers or networks raise no alarm either."""

from __future__ import annotations

from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.nn import functional as F
from lowtide.profiling import detect_retained
from tests.profiling.leaks.loops import BATCH, HIDDEN, WIDTH, batches, loop, mlp, setup, train

pytestmark = pytest.mark.deep  # one more of many: the other files are quick


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


def test_clean_sparsely_used_experts() -> None:
    experts = nn.ModuleList([mlp() for _ in range(4)])
    optimizer = lt.optim.SGD(experts.parameters(), lr=0.01)
    with detect_retained() as watch:
        for step, (x, y) in enumerate(batches(4)):
            loss = F.mse_loss(experts[step](x), y)
            loss.backward()
            optimizer.step()
    assert watch.findings == [], watch.report()
