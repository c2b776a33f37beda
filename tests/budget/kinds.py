"""Kinds of programs, each a function that returns ``run() -> tensors``, the same every time."""

from __future__ import annotations

from typing import Any

import lowtide as lt
from lowtide import nn, optim

F = nn.functional


def _mlp(*activations: Any, width: int = 64) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), a) for a in activations])


def _gradients(*modules: nn.Module) -> list[Any]:
    found = [p.grad for m in modules for p in m.parameters()]
    for m in modules:
        m.zero_grad()
    return found


def second_gradients() -> Any:
    net = nn.Sequential(
        nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
    )
    x = lt.randn(64, 32).requires_grad_()

    def run() -> Any:
        y = net(x).sum()
        (g,) = lt.autograd.grad(y, x, create_graph=True)
        loss = (g.square().sum(1) - 1).square().mean() + y
        loss.backward()
        found, x.grad = [loss, g, x.grad], None
        return found + _gradients(net)

    return run


def two_backwards() -> Any:
    net = nn.Sequential(_mlp(*[nn.GELU()] * 4), nn.Dropout(0.3))
    x = lt.randn(64, 64)

    def run() -> Any:
        y = net(x).square().mean()
        y.backward(retain_graph=True)
        first = [p.grad.clone() for p in net.parameters()]
        y.backward()
        return first + _gradients(net)

    return run


def writes_in_place() -> Any:
    weights, x = [lt.randn(64, 64).requires_grad_() for _ in range(5)], lt.randn(128, 64)

    def run() -> Any:
        h = x
        for k, w in enumerate(weights):
            h = h @ w
            h *= 0.1
            h.add_(1.0)
            part = h[:, :32]
            part *= 2.0
            if k % 2:
                h.relu_()
            h = h.tanh()
        loss = h.square().sum()
        loss.backward()
        found = [loss, *[w.grad for w in weights]]
        for w in weights:
            w.grad = None
        return found

    return run


def batch_statistics() -> Any:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 64, 4),
    )
    x, optimizer = lt.randn(16, 3, 16, 16), optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    state = {k: v.clone() for k, v in net.state_dict().items()}

    def run() -> Any:
        net.load_state_dict(state)
        optimizer.state.clear()
        for _ in range(2):
            optimizer.zero_grad()
            loss = net(x).logsumexp(1).mean()
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()
        return [loss, *net.parameters(), *net.buffers(), lt.rand(4)]

    return run


def regions_inside() -> Any:
    blocks = [
        nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.1), nn.Linear(128, 64))
        for _ in range(6)
    ]
    x = lt.randn(128, 64)

    def run() -> Any:
        h = x
        for k, block in enumerate(blocks):
            h = h + (lt.checkpoint(block, h) if k % 2 else block(h))
        loss = h.square().mean()
        loss.backward()
        return [loss, *_gradients(*blocks)]

    return run


def hooks_inside() -> Any:
    blocks = [nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)) for _ in range(4)]
    x = lt.randn(128, 64)

    def run() -> Any:
        h = x
        hooks = lt.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)
        for k, block in enumerate(blocks):
            if k == 0:
                with hooks:
                    h = h + block(h)
            else:
                h = h + block(h)
        loss = h.square().mean()
        loss.backward()
        return [loss, *_gradients(*blocks)]

    return run


def accumulation() -> Any:
    net, parts = _mlp(*[nn.Tanh()] * 6), lt.randn(4, 64, 64)
    optimizer = optim.Adam(net.parameters())
    state = {k: v.clone() for k, v in net.state_dict().items()}

    def run() -> Any:
        net.load_state_dict(state)
        optimizer.state.clear()
        losses, total = [], 0.0
        for _ in range(2):
            optimizer.zero_grad()
            for part in parts:
                loss = net(part).square().mean() / 4
                loss.backward()
                losses.append(loss)
                total = total + loss.detach()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        optimizer.zero_grad()
        return [*losses, total, *net.parameters()]

    return run


def two_graphs() -> Any:
    g = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64))
    d = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(), nn.Linear(64, 1))
    z, x = lt.randn(64, 16), lt.randn(64, 64)
    optimizers = [optim.SGD(m.parameters(), lr=0.01) for m in (g, d)]
    states = [{k: v.clone() for k, v in m.state_dict().items()} for m in (g, d)]

    def run() -> Any:
        for m, state in zip((g, d), states, strict=True):
            m.load_state_dict(state)
        for _ in range(2):
            fake = g(z)
            optimizers[1].zero_grad()
            judged = F.softplus(d(fake.detach())).mean() + F.softplus(-d(x)).mean()
            judged.backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            fooled = F.softplus(-d(fake)).mean()
            fooled.backward()
            optimizers[0].step()
        found = [judged, fooled, *g.parameters(), *d.parameters()]
        _gradients(g, d)
        return found

    return run


def recurrent() -> Any:
    net, x = nn.LSTM(32, 48, 2, dropout=0.2, batch_first=True), lt.randn(16, 20, 32)

    def run() -> Any:
        y, _ = net(x)
        loss = y.square().mean()
        loss.backward()
        return [loss, *_gradients(net)]

    return run


class Square(lt.autograd.Function):
    """The square, as a user would write it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


def functions() -> Any:
    weights, x = [lt.randn(64, 64).mul_(0.1).requires_grad_() for _ in range(4)], lt.randn(64, 64)

    def run() -> Any:
        h = x
        for w in weights:
            h = Square.apply(lt.tanh(h @ w))
        loss = h.sum()
        loss.backward()
        found = [loss, *[w.grad for w in weights]]
        for w in weights:
            w.grad = None
        return found

    return run


def mixed_precision() -> Any:
    net, x = _mlp(*[nn.GELU()] * 4), lt.randn(64, 64)

    def run() -> Any:
        with lt.autocast("cpu", dtype=lt.bfloat16):
            loss = net(x).float().square().mean()
        loss.backward()
        return [loss, *_gradients(net)]

    return run


def values_from_outside() -> Any:
    weights, c = [lt.randn(64, 64).requires_grad_() for _ in range(4)], lt.randn(64, 64)

    def run() -> Any:
        h, k = c.clone(), lt.ones(64, 64)
        for w in weights:
            mask = (lt.rand(64, 64) > 0.3).float()
            h = lt.tanh(h @ w) * mask + k
            k.mul_(1.01)
        loss = h.square().mean()
        loss.backward()
        found = [loss, k, *[w.grad for w in weights]]
        for w in weights:
            w.grad = None
        return found

    return run


def held_values() -> Any:
    weights, x = [lt.randn(64, 64).requires_grad_() for _ in range(6)], lt.randn(64, 64)

    def run() -> Any:
        h, seen = x, []
        for w in weights:
            h = lt.tanh(h @ w)
            seen.append(h)
        array = seen[1].detach().numpy()
        loss = sum(s.square().mean() for s in seen)
        loss.backward()
        found = [loss, *seen, *[w.grad for w in weights], lt.tensor(array)]
        for w in weights:
            w.grad = None
        return found

    return run


def evaluation_in_between() -> Any:
    net, x = _mlp(*[nn.SiLU()] * 5), lt.randn(64, 64)
    optimizer = optim.AdamW(net.parameters())
    state = {k: v.clone() for k, v in net.state_dict().items()}

    def run() -> Any:
        net.load_state_dict(state)
        optimizer.state.clear()
        average, seen = lt.zeros(64, 64), []
        for _ in range(3):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            with lt.no_grad():
                average = 0.9 * average + 0.1 * net(x)
                seen.append(net(x).mean())
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()
        return [loss, average, *seen, *net.parameters()]

    return run


KINDS = {
    f.__name__: f
    for f in (
        second_gradients, two_backwards, writes_in_place, batch_statistics, regions_inside,
        hooks_inside, accumulation, two_graphs, recurrent, functions, mixed_precision,
        values_from_outside, held_values, evaluation_in_between,
    )
}  # fmt: skip
