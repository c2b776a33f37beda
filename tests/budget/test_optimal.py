"""Plans against the best that any plan could do, found by trying everything.

The programs are chains of elementwise ops on values of one size, without kernels (``sim``), so a
plan is chosen by its operations. :func:`optimum` searches all sequences of computing and freeing
values, so it knows neither the evictor's rules nor the bound's linear program.
"""

from __future__ import annotations

import gc
import heapq
import random

import pytest

import lowtide as lt
from benchmarks.budget import revolve
from lowtide.framework.devices import backend

SMALL, LARGE = 1 << 12, 1 << 14  # elements; of large values gradients are written over others

#: Ops, whether backward reads the input (else the output), and the values that it holds beside
#: what it reads and returns.
OPS = {
    lt.exp: (False, 0),
    lt.sigmoid: (False, 0),
    lt.tanh: (False, 0),
    lt.sin: (True, 1),
    lt.sinh: (True, 1),
    lt.square: (True, 1),
    lt.cos: (True, 2),
}


#: Those whose gradient is written over the one that arrives or, if that is a number, the output.
OVER = {lt.exp, lt.sigmoid, lt.tanh}


def optimum(ops, costs, room, large=False):
    """Return the least cost of a chain's step, first computations included, or None if none fits.

    It is Dijkstra's algorithm over the values that live and the op whose backward is next.

    Args:
        ops: Keys of ``OPS``, in order of the forward pass.
        costs: What computing the result of each op costs.
        room: How many values may live at once, gradients included and the chain's input not.
        large: Gradients are written over other values.
    """
    n = len(ops)
    least = {(0, n + 1): 0}
    heap = [(0, (0, n + 1))]
    while heap:
        cost, (living, stage) = heapq.heappop(heap)
        if cost > least[living, stage]:
            continue
        if stage == 0:
            return cost
        count = living.bit_count() + (stage < n)  # the first gradient is a number
        following = []
        for k in range(1, n + 1):
            if living >> k & 1:
                following.append((cost, (living ^ 1 << k, stage)))
            elif (k == 1 or living >> k - 1 & 1) and count < room:
                following.append((cost + costs[k - 1], (living | 1 << k, stage)))
        if stage == n + 1:
            if living >> n & 1:
                following.append((cost, (living, n)))
        else:
            reads_input, beside = OPS[ops[stage - 1]]
            read = stage - reads_input
            over = large and ops[stage - 1] in OVER
            if (read == 0 or living >> read & 1) and count + (not over) + beside <= room:
                gone = 1 << read if over and stage == n else 0
                following.append((cost, (living & ~gone, stage - 1)))
        for found, state in following:
            if found < least.get(state, found + 1):
                least[state] = found
                heapq.heappush(heap, (found, state))
    return None


class Chain:
    """A step of ops one after the other, and what each costs."""

    def __init__(self, ops, elements=SMALL):
        self.ops, self.size = ops, 4 * elements
        self.x = lt.zeros(elements, device="sim", requires_grad=True)
        self.step()
        self.costs = [operations(lambda op=op: op(self.x.detach())) for op in ops]
        self.plain = operations(self.step)
        gc.collect()  # what earlier tests left would count as room
        self.before = int(backend(lt.device("sim")).ledger.live) - self.size  # without ``x.grad``

    def result(self):
        h = self.x
        for op in self.ops:
            h = op(h)
        return h.sum()

    def step(self):
        self.x.grad = None
        self.result().backward()

    def fit(self, room):
        """Plan for so many values, and half of one for the numbers."""
        limit = self.before + room * self.size + self.size // 2
        return lt.fit(self.step, budget=limit, of="tensors", device="sim")


def operations(program):
    plan = lt.fit(program, budget="1GiB", of="tensors", device="sim", tries=0)
    return plan.cost[1]


@pytest.mark.deep
@pytest.mark.parametrize("_", range(4))
@pytest.mark.parametrize("elements", [SMALL, LARGE])
def test_plans_of_small_chains_are_close_to_the_optimum(elements, _):
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    chain = Chain([draw.choice(list(OPS)) for _ in range(draw.randint(3, 9))], elements)
    refused = fitted = 0
    for room in range(2, len(chain.ops) + 4):
        least = optimum(chain.ops, chain.costs, room, elements == LARGE)
        if least is None:
            refused += 1
            with pytest.raises(lt.InfeasibleBudget) as caught:
                chain.fit(room)
            continue
        fitted += 1
        least -= sum(chain.costs)
        plan = chain.fit(room)
        assert least <= plan.cost[1] - chain.plain <= least + 0.02 * (chain.plain + least)
        assert plan.bound * chain.plain <= least + 1
        if fitted == 1:  # the least budget that can work is found to the value
            assert refused
            least_bytes = caught.value.floor - chain.before
            assert room * chain.size <= least_bytes <= (room + 0.5) * chain.size
    assert fitted


def test_the_formula_of_revolve():
    for layers in range(1, 10):
        for kept in range(1, layers + 1):
            least = optimum([lt.exp] * layers, [1] * layers, kept + 2)
            assert revolve(layers, kept) == least - layers


@pytest.mark.deep
@pytest.mark.parametrize("kept", [20, 12, 6, 4])
def test_equal_chains_are_planned_as_revolve_does(kept):
    layers = 24
    chain = Chain([lt.exp] * layers)
    added = chain.fit(kept + 2).cost[1] - chain.plain
    least = revolve(layers, kept) * chain.costs[0]
    assert least <= added <= least + 0.04 * (chain.plain + least)
