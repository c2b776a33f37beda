"""Programs drawn at random from layers: what ``test_random_programs.py`` does for ops.

Layers with state (running averages, power iterations), dropout, recurrent and attention layers,
gradients taken half way, modes, lists that hold on to values, writes in place, on the CPU and on a
device of its own; each region has a policy or stash drawn at random, or stands within saved-tensor
hooks. The reference runs without regions; a program that is refused plain is passed over, and one
that is only refused with regions must have written outside of them into what a region reads.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import random
from typing import Any

import pytest

import lowtide as lt
from lowtide import checkpointing as ck
from lowtide import nn
from lowtide.framework.errors import GradientError
from lowtide.framework.modes import local
from tests.checkpointing.twice import live, outcome, plain

F = nn.functional
COUNT = 60  # programs a test; 9000 were run when this was written


def layers(p: float = 0.3) -> nn.ModuleDict:
    """Layers that take a matrix of 4 columns and return one."""
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    return nn.ModuleDict(
        {
            "linear": nn.Linear(4, 4),
            "batch": nn.BatchNorm1d(4),
            "layer": nn.LayerNorm(4),
            "spectral": spectral,
            "dropout": nn.Dropout(p),
            "gelu": nn.GELU(),
            "group": nn.GroupNorm(2, 4),
            "relu": nn.ReLU(inplace=True),
            "gru": nn.GRU(4, 4),
            "attention": nn.MultiheadAttention(4, 2, dropout=p, batch_first=True),
        }
    )


def hooks() -> Any:
    return lt.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t)


class Program:
    """One run of the program of a seed, with regions or without."""

    def __init__(self, seed: int, regions: bool, disk: Any) -> None:
        self.r = random.Random(seed)
        self.regions = regions
        self.policies = [
            None,
            ck.everything,
            ck.save_matmuls,
            ck.save_every(2),
            ck.pack(),
            disk,
            ck.offload(min_bytes=0),
            ck.offload(ahead=0, min_bytes=0),
            ck.policy({"op:exp|linear": "save", "op:sin": disk, "*": "prefer_save"}),
            lambda value: ("save", "recompute", "prefer_save")[value.number % 3],
        ]
        self.layers = layers()
        self.leaves = [lt.randn(4, 4, requires_grad=True), lt.randn(3, 4, requires_grad=True)]
        self.values: list[Any] = [*self.leaves, lt.randn(4, 4)]
        self.held: list[Any] = []
        self.losses: list[Any] = []
        self.wrote_outside = False

    def some(self, depth: int, most: int) -> None:
        for _ in range(self.r.randint(1, most)):
            self.statement(depth)

    def statement(self, depth: int) -> None:
        r, kind = self.r, self.r.random()
        if kind < 0.2 and depth < 4:
            self.region(depth)
        elif kind < 0.26 and depth < 4:
            with r.choice([lt.no_grad, lt.enable_grad])():
                self.some(depth + 1, 3)
        elif kind < 0.36:
            self.write()
        elif kind < 0.4:
            self.held.append(r.choice(self.values))
        elif kind < 0.44:
            self.losses.append(r.choice(self.values).sin().sum())
        elif kind < 0.47 and self.losses and self.losses[-1].requires_grad:
            found = lt.autograd.grad(
                self.losses[-1],
                self.leaves,
                retain_graph=True,
                create_graph=r.random() < 0.5,
                allow_unused=True,
            )
            self.values += [g for g in found if g is not None]
        elif kind < 0.7:
            self.values.append(self.layer(r.choice(self.values)))
        else:
            self.values.append(self.op(r.choice(self.values), r.choice(self.values)))

    def region(self, depth: int) -> None:
        policy, around = self.r.choice(self.policies), self.r.random() < 0.2
        with contextlib.ExitStack() as stack:
            if self.regions:
                if around:
                    stack.enter_context(hooks())
                own = isinstance(policy, ck.Stash)
                stack.enter_context(policy if own else lt.checkpointing(policy))
            self.some(depth + 1, 5)

    def layer(self, x: Any) -> Any:
        name = self.r.choice(list(self.layers))
        layer = self.layers[name]
        if name == "attention":
            return layer(x[None], x[None], x[None], need_weights=self.r.random() < 0.5)[0][0]
        if name == "gru":
            return layer(x)[0]
        return layer(x * 1.5 if name == "relu" else x)

    def op(self, a: Any, b: Any) -> Any:
        kind = self.r.randrange(10)
        if kind == 0:
            return (a @ b.t()) @ b
        if kind == 1:
            return a[:2].repeat(2, 1).exp().clamp(max=3)
        if kind == 2:
            return lt.cat([a[1:], b[:2]])
        if kind == 3:
            return a.softmax(-1).cumsum(0)
        if kind == 4:
            return a * lt.rand_like(a)
        if kind == 5:
            return a.sort(0)[0].view(-1).view(-1, 4)
        if kind == 6:
            return a.t()[:, :3].t().double().sin().float()
        if kind == 7:
            return F.scaled_dot_product_attention(a[None], b[None], b[None], dropout_p=0.2)[0]
        if kind == 8:
            return a.gather(1, lt.randint(0, 4, tuple(a.shape)))
        return a.detach() * a.norm(dim=-1, keepdim=True)

    def write(self) -> None:
        a = self.r.choice(self.values)
        if a.is_leaf or (a._base is not None and a._base.is_leaf):
            a = a * 1.0
            self.values.append(a)
        self.wrote_outside |= self.regions and local.state.recorder is None
        kind = self.r.randrange(5)
        if kind == 0:
            a.mul_(0.9)
        elif kind == 1:
            a[0:2].add_(a.detach()[1].clone())
        elif kind == 2:
            a.sigmoid_()
        elif kind == 3:
            a[a.detach() > 0.5] = 0.1
        else:
            a.t()[1].copy_(a.detach().t()[0])

    def run(self) -> Any:
        self.some(0, 16)
        losses = [*self.losses, *(v.square().mean() for v in [*self.values[3:], *self.held])]
        loss = functools.reduce(lt.add, losses, lt.zeros(()))
        if loss.requires_grad:
            if self.r.random() < 0.3:
                loss.backward(retain_graph=True)
            loss.backward()
        found = [leaf.grad for leaf in (*self.leaves, *self.layers.parameters())]
        return loss, found, dict(self.layers.named_buffers())


@pytest.mark.parametrize(
    ("where", "first"), [("cpu", 0), ("cpu", COUNT), pytest.param("sim", 0, marks=pytest.mark.deep)]
)
def test_programs_of_layers_do_the_same_and_leave_nothing(where, first, tmp_path):
    disk = ck.offload_to_disk(tmp_path, min_bytes=0)
    different, left, same = [], {}, 0
    gc.collect()
    gc.disable()
    try:
        for seed in range(first, first + COUNT):
            before, wrote = live(where), []

            def step(region, seed=seed, wrote=wrote):
                with lt.device(where):
                    program = Program(seed, region is not plain, disk)
                    try:
                        return program.run()
                    finally:
                        wrote[:] = [program.wrote_outside]

            try:
                expected = outcome(step, plain)
            except RuntimeError:  # a write that autograd refuses, or shapes that do not fit
                continue
            try:
                found = outcome(step, lt.checkpoint)
            except GradientError:
                if wrote == [False]:
                    different.append(seed)
                continue
            same += 1
            if found != expected:
                different.append(seed)
            if live(where) != before:
                left[seed] = live(where) - before
    finally:
        gc.enable()
    assert (different, left) == ([], {})
    assert same > COUNT // 3
    assert disk.used_bytes == 0
