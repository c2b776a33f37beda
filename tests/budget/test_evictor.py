"""What the evictor knows and chooses: costs of what is gone, next reads, what waits for others."""

from __future__ import annotations

import random
from threading import get_ident

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.remat.evictable import BudgetRegion, parents
from lowtide.framework.autograd.remat.evictor import Evictor
from lowtide.framework.autograd.remat.replay_costs import EvictionRule
from lowtide.framework.devices import backend
from lowtide.framework.modes import local
from tests.budget.test_programs import Trees
from tests.checkpointing.twice import live

LEDGER = backend(lt.device("cpu")).ledger


class Counting(Evictor):
    """Compares, at each choice, what it has added up with a sum from scratch."""

    checked = 0

    def _choose(self, ledger, smallest=0):
        scores = self.scores(ledger)
        region, worth = self.region(), {}
        for place, reference in enumerate(self._by_place):
            value = None if reference is None else reference()
            if value is None or value.held is None:
                assert scores[place] == np.inf
                continue
            gone, stack = set(), [value]
            while stack:
                for parent in parents(stack.pop()):
                    if parent.held is None and parent not in gone:
                        gone.add(parent)
                        stack.append(parent)
            cost = value.standing.cost + sum(c.standing.cost for c in gone)
            if local.state.running is None:
                distance = region.clock - value.latest
            else:
                read = value.latest if value.latest <= region.now else value.first
                distance = region.now - read
            worth[place] = cost / value.nbytes / max(distance, 1)
            self.checked += 1
        for place, score in worth.items():
            assert scores[place] == pytest.approx(score, rel=1e-12)
        return super()._choose(ledger, smallest)


def budget_of(evictor, limit):
    budget = lt.memory_budget(limit)
    budget.region = BudgetRegion("a test", evictor)
    budget._regions[get_ident()] = budget.region
    return budget


@pytest.mark.parametrize("seed", [1, *[pytest.param(k, marks=pytest.mark.deep) for k in range(9)]])
def test_costs_are_those_of_a_recount(seed):
    draw = random.Random(seed)
    trees = Trees(draw)
    trees.shape = trees.build(0, 24)
    trees.reset()
    start = live()
    LEDGER.reset_peak()
    trees.step()
    limit = start + int((LEDGER.peak - start) * draw.uniform(0.5, 0.8))
    trees.reset()
    evictor = Counting(EvictionRule())
    with budget_of(evictor, limit):
        trees.step()
    assert evictor.checked > 1000
    assert evictor.evictions > 20


def test_what_nobody_wants_stays_while_something_gone_is_made_from_it(no_collector):
    w, v, x = lt.randn(64, 64, requires_grad=True), lt.ones(64, 64, requires_grad=True), lt.ones(64)
    evictor = Evictor(EvictionRule(smallest=0))
    with budget_of(evictor, "1GiB"):
        a = x * w
        b = a + 1
        c, d = b * b, a * v
        of_a, of_b = d.grad_fn.handles[1].value, c.grad_fn.handles[0].value
        evictor.make_room(LEDGER, 0)  # from now on it looks
        of_b.drop()
        del a, b
        (found,) = lt.autograd.grad(d.sum(), v)  # the last handle of `a` goes
        del d, found
        evictor.settle()
        assert of_a.held is not None  # since `b` is made from it
        c.sum().backward()
        del c
        assert of_a.held is None
        assert of_b.held is None


def test_what_nobody_wants_goes_if_nothing_is_made_from_it(no_collector):
    w, v = lt.randn(64, 64, requires_grad=True), lt.ones(64, 64, requires_grad=True)
    evictor = Evictor(EvictionRule(smallest=0))
    with budget_of(evictor, "1GiB"):
        a = w * 2
        d = a * v
        of_a = d.grad_fn.handles[1].value
        evictor.make_room(LEDGER, 0)
        del a
        (found,) = lt.autograd.grad(d.sum(), v)
        del d, found
        evictor.settle()
        assert of_a.held is None


@pytest.mark.parametrize("smallest", [0, 2**20])
def test_what_is_smaller_than_said_is_not_dropped(smallest):
    w = lt.randn(64, 64, requires_grad=True)
    evictor = Evictor(EvictionRule(smallest=smallest))
    with budget_of(evictor, "1GiB"):
        loss = (w * 2).exp().sin().sum()
        LEDGER.own_limit = LEDGER.live
        try:
            assert evictor.make_room(LEDGER, 1) is (smallest == 0)
        finally:
            LEDGER.own_limit = 1 << 62
    del loss


def test_the_cheapest_for_its_bytes_goes_first(no_collector):
    x = lt.randn(256, 256, requires_grad=True)
    evictor = Evictor(EvictionRule(distance=0.0))
    with budget_of(evictor, "1GiB"):
        product = x @ x
        y = product.exp()  # keeps its result: a few operations for each element
        z = product.sin()  # keeps the product: 256 times as many
        of_y, of_product = y.grad_fn.handles[0].value, z.grad_fn.handles[0].value
        evictor.make_room(LEDGER, 0)
        del product, y
        assert evictor._choose(LEDGER) is of_y
        of_y.drop()
        assert evictor._choose(LEDGER) is of_product


def test_what_is_read_last_goes_first(no_collector):
    x = lt.randn(64, 64, requires_grad=True)
    evictor = Evictor(EvictionRule(smallest=0))
    with budget_of(evictor, "1GiB"):
        values = [(x * k).sin() for k in range(4)]
        versions = [v.grad_fn.handles[0].value for v in values]
        evictor.make_room(LEDGER, 0)
        for value in versions:
            assert evictor._choose(LEDGER) is value
            value.drop()
