"""A byte budget as advice: what it promises is what the budget does, and code runs as given."""

from __future__ import annotations

import random

import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.nn import functional as F
from lowtide.profiling import advise, estimate
from lowtide.profiling.estimate import budget_advice


def world(blocks=6, width=96, rows=512, seed=0):
    lt.manual_seed(seed)
    net = nn.Sequential(
        *[nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)) for _ in range(blocks)]
    )
    optimizer = optim.AdamW(net.parameters())
    x, y = lt.randn(rows, width), lt.randn(rows, width)

    def step(x, y):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()

    step.optimizer = optimizer
    return step, x, y


def of_kind(found, kind="budget"):
    return [p for p in found.proposals if p.kind == kind]


def reached(step, x, y, limit, steps=3):
    """The highest live bytes of some steps in a budget."""
    lt.reset_peak_memory_stats()
    with lt.memory_budget(limit):
        for _ in range(steps):
            step(x, y)
    return lt.max_memory_allocated()


def usual(step, x, y, limit):
    """The operations that a budget adds without a plan, as a share of the step's."""

    def within():
        with lt.memory_budget(limit):
            step(x, y)

    return estimate(within).later_flops / estimate(step, x, y).later_flops - 1


def follow(code, step, x, y, **names):
    """The highest live bytes of some steps, run as an advice's code says."""
    names |= {"lowtide": lt, "step": step, "x": x, "y": y}
    code = code.replace("    ...", "    for _ in range(3):\n        step(x, y)")
    lt.reset_peak_memory_stats()
    exec(code, names)
    return lt.max_memory_allocated()


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(6))
def test_the_promised_peak_is_the_budgets(seed):
    draw = random.Random(seed)
    step, x, y = world(draw.randint(3, 8), draw.choice([64, 96, 128]), draw.choice([256, 512]))
    start, plain = lt.memory_allocated(), estimate(step, x, y).needed_bytes()
    limit = start + int((plain - start) * draw.uniform(0.6, 0.95))
    found = advise(step, x, y, limit=limit)
    (budget,) = of_kind(found)
    assert found.proposals[0] is budget
    assert budget.fits
    assert budget.flops >= 0
    assert budget.time > 1
    assert budget.lost == []
    if budget.change.startswith("a planned"):
        assert budget.code.startswith(f"plan = lowtide.fit(step, x, y, budget={limit})\nwith plan:")
        assert usual(step, x, y, limit) >= budget.flops + 0.005
        assert follow(budget.code, step, x, y) <= limit
    else:
        assert budget.code.startswith(f"with lowtide.memory_budget({limit}):")
        assert usual(step, x, y, limit) == pytest.approx(budget.flops)
        assert follow(budget.code, step, x, y) == budget.peak_bytes <= limit


@pytest.mark.deep
@pytest.mark.parametrize(("pays", "planned"), [(-9.0, True), (9.0, False)])
def test_a_plan_is_proposed_where_it_saves_enough(monkeypatch, pays, planned):
    monkeypatch.setattr(budget_advice, "PAYS", pays)
    step, x, y = world(4)
    start, plain = lt.memory_allocated(), estimate(step, x, y).needed_bytes()
    (budget,) = of_kind(advise(step, x, y, limit=start + (plain - start) * 4 // 5))
    assert budget.change.startswith("a planned") == planned == budget.code.startswith("plan = ")


@pytest.mark.deep
def test_where_the_limit_is_too_low_the_least_budget_is_told():
    step, x, y = world()
    step(x, y)  # states and gradients are there
    limit = lt.memory_allocated() + 1000
    found = advise(step, x, y, limit=limit)
    (budget,) = of_kind(found)
    assert not budget.fits
    assert limit < budget.peak_bytes < found.peak_bytes
    assert not any("byte budget" in words for words in found.untried)
    assert budget.code.startswith("plan = lowtide.fit(step, x, y, budget=")
    assert follow(budget.code, step, x, y) <= budget.peak_bytes
    with pytest.raises(lt.MemoryLimitError), lt.memory_budget(limit):
        step(x, y)


@pytest.mark.deep
def test_an_optimizer_in_backward_lowers_what_a_budget_can_reach():
    step, x, y = world(blocks=8, width=160, rows=256)
    alone = advise(step, x, y, limit=lt.memory_allocated() + 1000)
    (least,) = of_kind(alone)
    gradients = 8 * 161 * 160 * 4
    found = advise(step, x, y, limit=least.peak_bytes - gradients // 4)
    (both,) = of_kind(found)
    assert both.fits
    assert both.change.endswith(" + optimizer steps in backward")
    limit = found.limit_bytes
    start = f"plan = lowtide.fit(step, x, y, budget={limit}, in_backward=optimizer)"
    assert both.code.splitlines()[0] == start
    assert "no clipping" in both.cost
    assert follow(both.code, step, x, y, optimizer=step.optimizer) <= limit


@pytest.mark.deep
def test_a_budget_makes_room_for_a_larger_batch_at_a_bounded_price():
    step, x, y = world()
    start, plain = lt.memory_allocated(), estimate(step, x, y).needed_bytes()
    limit = start + (plain - start) * 3 // 4
    found = advise(step, x, y, limit=limit, larger=True)
    (more,) = [p for p in found.larger if "byte budget" in p.change]
    assert more.batch > 512
    assert 0 < more.flops <= 0.5
    assert more.peak_bytes <= limit - limit // 32
    change, around = more.code.splitlines()[:2]
    assert change.startswith(f"batch_size = {more.batch}")
    assert around.startswith(f"with lowtide.memory_budget({limit})")
    wide = [lt.cat([t, t])[: more.batch].clone() for t in (x, y)]
    both = 2 * wide[0].nbytes  # the smaller ones live on beside them
    assert reached(step, *wide, limit + both) <= limit + both


def test_a_step_that_fits_and_one_without_gradients_get_no_budget():
    step, x, y = world()
    assert not of_kind(advise(step, x, y, limit=estimate(step, x, y).needed_bytes()))
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))

    def evaluate(x):
        with lt.no_grad():
            net(x)

    x = lt.randn(512, 64)
    assert not of_kind(advise(evaluate, x, limit=lt.memory_allocated() + 1000))
