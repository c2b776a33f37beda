"""Random programs have the same gradients, and what they hold its values, with room and without.

They hold values in every way there is: tensors, views, arrays, retained gradients, hooks, regions.
All values are small, so that shapes are; the sizes from which kernels and rooms are used are, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd import node, overwriting
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.ops import rules
from lowtide.framework.ops.convolution import routes
from lowtide.framework.ops.registry import OPS
from lowtide.framework.tensor import Tensor
from lowtide.nn import functional as F
from tests.ops.test_compiled_entries import SMALL

N, C, L = 4, 6, 8
UNARY: list[Callable[[Any], Any]] = [
    F.gelu, F.silu, F.mish, F.softplus, F.elu, F.hardswish, F.leaky_relu, lt.tanh, lt.sigmoid,
    lt.relu, lt.square, lt.neg,
    lambda t: F.softmax(t, -1),
    lambda t: F.log_softmax(t, 1),
    lambda t: F.layer_norm(t, (L,)),
    lambda t: F.rms_norm(t, (L,)),
    lambda t: F.group_norm(t, 3),
    lambda t: F.dropout(t, 0.3),
    lambda t: t * 0.5,
    lambda t: t / 2.5,
    lambda t: t.exp().clamp(max=5.0),
    lambda t: (t.abs() + 0.1).sqrt(),
    lambda t: t.transpose(1, 2).reshape(N, C, L),
    lambda t: t.view(N, L, C).view(N, C, L),
    lambda t: t.detach() * 1.5 + t,
    lambda t: t.flip(2).contiguous(),
    lambda t: lt.cat([t[:, :3], t[:, 3:]], 1),
    lambda t: t.expand(2, N, C, L).mean(0),
]  # fmt: skip
BINARY: list[Callable[[Any, Any], Any]] = [
    lt.add, lt.sub, lt.mul, lt.maximum,
    lambda a, b: a / (b.square() + 1),
    lambda a, b: lt.where(a > 0, a, b),
    lambda a, b: a @ b.transpose(1, 2) @ b,
    lambda a, b: F.mse_loss(a, b, reduction="none"),
    lambda a, b: F.smooth_l1_loss(a, b) * a,
    lambda a, b: a * b.mean(2, True),
]  # fmt: skip
IN_PLACE: list[Callable[[Any], Any]] = [
    lambda t: t.mul_(0.7),
    lambda t: t.relu_(),
    lambda t: F.silu(t, inplace=True),
    lambda t: t.add_(t.detach() * 2),
]


class Program:
    """A program of a number, and all that it holds."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        lt.manual_seed(seed)
        self.dtype = self.draw.choice([lt.float32, lt.float32, lt.float64, lt.bfloat16])
        self.leaves = [self.leaf(N, C, L) for _ in range(self.draw.randint(1, 3))]
        self.weights = [self.leaf(L, L), self.leaf(C, C, 3)]
        self.held: list[Any] = []
        self.seen: list[Any] = []

    def leaf(self, *shape: int) -> Any:
        return lt.randn(*shape).to(self.dtype).requires_grad_()

    def op(self, live: list[Any]) -> Any:
        draw = self.draw
        kind = draw.choices(["unary", "binary", "linear", "conv", "in place"], [60, 18, 10, 6, 6])
        x = draw.choice(live)
        if kind == ["unary"]:
            return draw.choice(UNARY)(x)
        if kind == ["binary"]:
            return draw.choice(BINARY)(x, draw.choice(live))
        if kind == ["linear"]:
            return F.linear(x, self.weights[0])
        if kind == ["conv"]:
            return F.conv1d(x, self.weights[1], padding=1)
        return draw.choice(IN_PLACE)(x * 1)

    def hold(self, t: Any) -> None:
        how = self.draw.randrange(34)
        if how == 0:
            t.register_hook(self.seen.append)
        if how == 1:
            t.retain_grad()
        ways: list[Callable[[], Any]] = [
            lambda: t, lambda: t, lambda: t.detach(), lambda: t[1:3], lambda: t.data,
            lambda: t.detach().numpy(), lambda: t.detach().numpy()[1],
        ]  # fmt: skip
        if 0 < how < 1 + len(ways):
            self.held.append(ways[how - 1]())

    def loss(self, *live_at_first: Any) -> Any:
        live = list(live_at_first)
        for _ in range(self.draw.randint(3, 14)):
            t = self.op(live)
            self.hold(t)
            if self.draw.random() < 0.6 and len(live) > 1:
                live[self.draw.randrange(len(live))] = t
            else:
                live.append(t)
            del t
        return sum(x.sum() * (k + 1) for k, x in enumerate(live))

    def values(self) -> list[bytes]:
        found = [h.detach().numpy() if isinstance(h, Tensor) else h for h in self.held]
        return [np.ascontiguousarray(a).tobytes() for a in found]

    def run(self) -> list[Any]:
        """Run it; return all gradients. What it holds must not change in backward."""
        inner = [x * 1 for x in self.leaves]
        region = self.draw.random() < 0.3
        total = lt.checkpoint(self.loss, *inner) if region else self.loss(*inner)
        del inner
        before = self.values()
        for left in self.draw.choice([[0], [0], [0], [1, 0]]):
            total.backward(retain_graph=left > 0)
        assert self.values() == before
        tensors = [*self.leaves, *self.weights, *(h for h in self.held if isinstance(h, Tensor))]
        found = [t.grad for t in tensors if t.is_leaf or t.retains_grad] + self.seen
        wide = [None if g is None else g.detach().to(lt.float64) for g in found]
        return [None if g is None else g.numpy().tobytes() for g in wide]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sizes are small; what is yielded counts how often something was overwritten."""
    count = [0]

    def counted(values: Any, candidates: Any) -> Any:
        room = overwriting.find_room(values, candidates)
        count[0] += room is not None
        return room

    for name, value in SMALL.items():
        monkeypatch.setattr(thresholds, name, value)
    monkeypatch.setattr(node, "find_room", counted)
    for op in OPS.values():
        monkeypatch.setattr(op, "plans", {})
    routes.route.cache_clear()
    yield count
    routes.route.cache_clear()


@pytest.mark.quick(8)
@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_what_a_program_holds_and_its_gradients(
    first: int, small: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + 50):
        found = []
        for least in (1, 1 << 60):
            monkeypatch.setattr(rules, "LEAST_ROOM", least)
            for op in OPS.values():
                op.plans.clear()
            found.append(Program(seed).run())
        assert found[0] == found[1], seed
    assert small[0] >= 100
