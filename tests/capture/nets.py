"""Nets, and loops that train a plain and a compiled one side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim

Loop = Callable[[Any, int], Any]


class Block(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.inner = nn.Linear(6, width)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.2)
        self.outer = nn.Linear(width, 6)

    def forward(self, x: Any) -> Any:
        h = self.drop(F.gelu(self.norm(self.inner(x))))
        return x + self.outer(h)


class Two(nn.Module):
    """A model of two results, one of which a loop may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.a = nn.Linear(6, 3)
        self.b = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        h = self.block(x)
        return {"a": self.a(h), "b": self.b(h).softmax(-1)}


def data(n: int = 8) -> Any:
    g = np.random.default_rng(1)
    return lt.tensor(g.standard_normal((n, 6)), dtype=lt.float32)


def bits(t: Any) -> Any:
    return None if t is None else np.ascontiguousarray(t.detach().numpy()).tobytes()


def state(net: Any) -> Any:
    grads = [bits(p.grad) for p in net.parameters()]
    return grads, [bits(t) for t in net.state_dict().values()]


def usual(net: Any, k: int) -> Any:
    out = net(data())
    loss = (out * out).mean()
    loss.backward()
    return bits(loss)


def pair(make: Any = Block) -> Any:
    lt.manual_seed(0)
    net = make()
    return net, copy.deepcopy(net)


def run_both(loop: Loop, net: Any, other: Any, compiled: Any, n: int = 6, expect: int = 3) -> None:
    opts = [optim.AdamW(m.parameters(), lr=1e-2) for m in (net, other)]
    for k in range(n):
        found = []
        for m, called, opt in ((net, net, opts[0]), (other, compiled, opts[1])):
            lt.manual_seed(k)
            opt.zero_grad()
            result = loop(called, k)
            opt.step()
            found.append((result, state(m), bits(lt.get_rng_state())))
        assert found[0] == found[1], k


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.rate = 1.0

    def forward(self, x: Any) -> Any:
        return self.norm(x) * self.rate


class Cell(nn.Module):
    """A recurrent cell, with running averages of what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.cell = nn.GRUCell(6, 6)
        self.out = nn.Linear(6, 2)

    def forward(self, x: Any, h: Any) -> Any:
        h = self.cell(self.norm(x), h)
        return self.out(h), h


def warm(net: Any) -> None:
    for k in range(4):
        usual(net, k)
    assert net._compiled.replays == 1
