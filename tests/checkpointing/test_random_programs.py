"""Programs drawn at random: ops, writes in place, views, random numbers, regions in regions.

Each is a function of its seed, so a failure names the program that fails. The reference is a plain
run that keeps copies: it refuses no write.
"""

from __future__ import annotations

import gc
import random

import pytest

import lowtide as lt
from tests.checkpointing.twice import copying, live, outcome, plain

F = lt.nn.functional
COUNT = 100  # programs a test; 20 000 of them were run when the mechanism was written


def changed(r, a, b):
    """A value made by writes in place, some through views."""
    kind = r.randrange(7)
    if kind == 0:
        return (a * 1.0).mul_(b.detach().cos())
    if kind == 1:
        c = a * 0.5
        c[r.randrange(3)] = b[r.randrange(3)]
        return c
    if kind == 2:
        c = a.clone()
        c[:, r.randrange(3)].add_(b[0])
        return c
    if kind == 3:
        c = a + b
        c.view(9)[1:5].exp_().clamp_(max=2.0)
        return c.t()
    if kind == 4:
        c = lt.empty(3, 3).copy_(a)
        c[1] += b[1]
        return c.masked_fill_(c > 1, 0.1)
    if kind == 5:
        return a.clone().t_().add_(1)
    if a.grad_fn is not None and not (a._is_view() and a._base.grad_fn is None):
        return a.mul_(0.5)  # itself: it may have flowed in
    return a * 0.5


def computed(r, a, b):
    """A value made by an op or two."""
    kind = r.randrange(9)
    if kind == 0:
        return (a @ b).tanh()
    if kind == 1:
        return a.sin() * b
    if kind == 2:
        return (a + b).sigmoid()
    if kind == 3:
        return F.dropout(a, 0.3)
    if kind == 4:
        with lt.no_grad():
            scale = a.exp().sum(0, keepdim=True)
        return b / (1 + scale.abs())
    if kind == 5:
        return a.t().relu() + lt.rand(3, 3)
    if kind == 6:
        return a.softmax(-1).cumsum(0)
    if kind == 7:
        return lt.cat([a, b], 0)[1:4]
    return a.flip(0).t()[:, [2, 0, 1]]


def body(r, region, depth, values):
    """A few statements; returns some of what they made."""
    values = list(values)
    for _ in range(r.randint(2, 6)):
        kind = r.random()
        if kind < 0.25:
            values.append(changed(r, r.choice(values), r.choice(values)))
        elif kind < 0.8 or depth == 3:
            values.append(computed(r, r.choice(values), r.choice(values)))
        else:
            given = [r.choice(values) for _ in range(r.randint(1, 3))]
            values += region(body, r, region, depth + 1, given)
    return values[-r.randint(1, 4) :]


def program(seed):
    """A step: see ``twice.py``."""

    def step(region):
        r = random.Random(seed)
        leaves = [lt.randn(3, 3, requires_grad=True) for _ in range(3)]
        outs = region(body, r, region, 0, leaves)
        loss = sum((out.sin() * (k + 1)).sum() for k, out in enumerate(outs))
        end = r.random()
        if not loss.requires_grad:
            return [loss]
        if end < 0.3:
            first = lt.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
            penalty = sum((g * g).sum() for g in first if g is not None)
            if not penalty.requires_grad:
                return [loss, *first]
            return [loss, *first, *lt.autograd.grad(penalty, leaves, allow_unused=True)]
        if end < 0.6:
            loss.backward(retain_graph=True)
        loss.backward()
        return [loss, *[x.grad for x in leaves]]

    return step


@pytest.mark.parametrize("first", [0, COUNT])
def test_programs_do_the_same_and_leave_nothing(first):
    different, left = [], {}
    gc.collect()
    gc.disable()
    try:
        for seed in range(first, first + COUNT):
            step = program(seed)
            before = live()
            if outcome(step, copying) != outcome(step, lt.checkpoint):
                different.append(seed)
            if live() != before:
                left[seed] = live() - before
    finally:
        gc.enable()
    assert (different, left) == ([], {})


def test_the_programs_are_worth_running():
    """Enough of them would be refused plain: their writes hit values that backward needs."""
    refused = 0
    for seed in range(COUNT):
        try:
            outcome(program(seed), plain)
        except lt.framework.errors.GradientError:
            refused += 1
    assert refused >= COUNT // 20
