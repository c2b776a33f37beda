"""Programs drawn at random, replayed on new values: whole steps, and backward outside.

Ops, views, writes in place, random numbers, parts without gradients, regions in regions: those of
``tests/checkpointing/test_random_programs.py``. Some programs branch on values. Between calls
values change, and now and then what requires grad, the mode of a flag, a hook.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from tests.checkpointing.test_random_programs import body

COUNT = 10  # programs a test


class Program(nn.Module):
    """A program of a seed, with leaves and a buffer of its own."""

    def __init__(self, seed: int, split: bool) -> None:
        super().__init__()
        self.seed = seed
        self.split = split
        self.scale = 1.0
        self.regions = seed % 3 == 0
        draws = random.Random(seed + 10_000)
        self.reads = [draws.random() < 0.25 for _ in range(4)]
        self.leaves = nn.ParameterList([nn.Parameter(lt.randn(3, 3)) for _ in range(3)])
        self.register_buffer("mean", lt.zeros(3))

    def forward(self, x: Any) -> Any:
        if self.reads[0] and x.mean() > 0:
            x = x * 2
        if self.reads[1] and int((x > 0).sum()) > 4:
            x = nn.functional.dropout(x, 0.5)
        r = random.Random(self.seed)
        region = lt.checkpoint if self.regions else lambda f, *args: f(*args)
        outs = region(body, r, region, 0, [*self.leaves, x])
        if self.reads[2] and bool((outs[0] > 0.5).any()):
            outs = [*outs, outs[0].cos()]
        loss = sum((out.sin() * (k + self.scale)).sum() for k, out in enumerate(outs))
        if self.reads[3] and loss > 0:
            loss = loss * 0.5
        if self.training:
            self.mean.mul_(0.9).add_(outs[0].detach().mean(0), alpha=0.1)
        if self.split:
            return loss, outs[0].detach() * 2
        if not loss.requires_grad:
            return loss
        loss.backward()
        return loss.detach(), outs[-1].detach().clone()


def bits(x: Any) -> Any:
    if isinstance(x, tuple):
        return [bits(y) for y in x]
    return None if x is None else np.ascontiguousarray(x.detach().numpy()).tobytes()


def call(net: Any, f: Any, k: int) -> Any:
    """Call a program once, with its changes; return all bits that it has made."""
    r = random.Random(1000 * net.seed + k)
    lt.manual_seed(k)
    with lt.no_grad():
        for p in net.leaves:
            p.copy_(lt.randn(3, 3))
    if r.random() < 0.15:
        net.scale = float(r.randrange(2))
    if r.random() < 0.15:
        net.train(not net.training)
    if r.random() < 0.1:
        net.leaves[r.randrange(3)].requires_grad_(r.random() < 0.7)
    if r.random() < 0.5:
        net.zero_grad()
    x = lt.randn(3, 3)
    if r.random() < 0.3:
        x = x.t()
    out = f(x)
    if net.split and out[0].requires_grad:
        out[0].backward()
    return bits(out), [bits(p.grad) for p in net.leaves], bits(net.mean), bits(lt.get_rng_state())


def pair(seed: int, split: bool) -> Any:
    found = []
    for _ in range(2):
        lt.manual_seed(seed)
        found.append(Program(seed, split))
    return found


@pytest.mark.quick(2)
@pytest.mark.parametrize("first", range(0, 250, COUNT))
@pytest.mark.parametrize("split", [False, True])
def test_programs_replay_the_same_bits(first: int, split: bool) -> None:
    different, replays = [], 0
    for seed in range(first, first + COUNT):
        net, other = pair(seed, split)
        compiled = lt.compile(other)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lt.CaptureWarning)
            for k in range(20):
                try:
                    expected = call(net, net, k)
                except lt.GradientError:  # a write hits what backward needs
                    with pytest.raises(lt.GradientError):
                        call(other, compiled, k)
                    break
                if call(other, compiled, k) != expected:
                    different.append((seed, k))
                    break
        replays += compiled._compiled.replays
    assert different == []
    assert replays > COUNT
