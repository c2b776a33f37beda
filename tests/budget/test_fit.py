"""Plans: predicted to the byte, feasible or refused before anything is allocated, monotone."""

from __future__ import annotations

import random
import re

import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework.devices import backend
from tests.budget.kinds import KINDS
from tests.budget.test_programs import Trees, outcome
from tests.checkpointing.twice import bits, live
from tests.profiling.estimate.test_steady_state import world as drawn_step

LEDGER = backend(lt.device("cpu")).ledger


pytestmark = pytest.mark.usefixtures("no_collector")


def chain(depth=8, width=64, rows=256):
    lt.manual_seed(1)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)])
    optimizer, x = optim.AdamW(net.parameters()), lt.randn(rows, width)

    def step():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return net, step


def peak(run):
    LEDGER.reset_peak()
    run()
    return int(LEDGER.peak)


def test_a_plan_for_a_fresh_model_holds_for_all_its_steps():
    net, step = chain()
    parameters = bits(list(net.parameters()))
    before = live(), LEDGER.allocations
    plan = lt.fit(step, budget=live() + 900_000)
    assert (live(), LEDGER.allocations) == before
    assert bits(list(net.parameters())) == parameters
    assert plan.peak <= plan.limit < plan.plain_peak
    assert plan.dropped > 0
    assert 0 < plan.added < 1
    LEDGER.reset_peak()
    with plan:
        for _ in range(3):
            step()
    assert LEDGER.peak == plan.peak


@pytest.mark.quick(2)
@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
def test_peak_and_what_is_dropped_are_those_of_the_real_step(share):
    _, step = chain()
    step()
    start, plain = live(), peak(step)
    plan = lt.fit(step, budget=int(start + share * (plain - start)))
    assert plan.plain_peak == plain
    LEDGER.reset_peak()
    with plan:
        step()
    assert LEDGER.peak == plan.peak <= plan.limit
    assert (plan.evictions, plan.replays) == (plan.dropped, plan.replayed)
    assert sum(d.times for d in plan.decisions) == plan.dropped
    assert sum(d.nbytes for d in plan.decisions) == plan.evicted_bytes


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_programs(kind):
    lt.manual_seed(3)
    run = KINDS[kind]()
    expected = outcome(run)
    start, plain = live(), peak(run)
    try:
        plan = lt.fit(run, budget=int(start + 0.85 * (plain - start)))
    except lt.InfeasibleBudget as error:
        assert error.floor > start + 0.85 * (plain - start)
        assert error.floor_proved <= error.floor
        return
    LEDGER.reset_peak()
    with plan:
        assert outcome(run) == expected
    assert LEDGER.peak == plan.peak <= plan.limit


def test_a_budget_that_does_not_bind():
    _, step = chain()
    step()
    plan = lt.fit(step, budget="1GiB")
    assert (plan.added, plan.dropped, plan.replayed, plan.decisions) == (0.0, 0, 0, [])
    assert plan.peak == plan.plain_peak


@pytest.mark.deep
def test_what_is_below_the_floor_is_refused_before_anything_is_allocated():
    _, step = chain()
    step()
    before = live(), LEDGER.allocations
    with pytest.raises(lt.InfeasibleBudget) as caught:
        lt.fit(step, budget=live() + 10_000)
    assert (live(), LEDGER.allocations) == before
    error = caught.value
    assert isinstance(error, lt.OutOfMemoryError)
    assert live() + 10_000 < error.floor_proved <= error.floor
    text = str(error)
    assert "The least budget found to do is" in text
    assert "test_fit.py:" in text
    assert re.search(r"gradients take [\d.]+ KiB: an optimizer in backward", text)
    assert "the optimizer's state takes 260.00 KiB" in text
    plan = lt.fit(step, budget=int(error.floor * 1.03))
    LEDGER.reset_peak()
    with plan:
        step()
    assert LEDGER.peak <= plan.limit
    assert plan.floor <= error.floor * 1.01


def test_the_floor_is_close_to_what_is_proved():
    _, step = chain()
    step()
    plan = lt.fit(step, budget=live() + 800_000)
    assert plan.floor_proved <= plan.floor <= 1.08 * plan.floor_proved
    assert plan.set_by.startswith(("In backward of ", "In forward"))


@pytest.mark.deep
@pytest.mark.parametrize("count", [2, pytest.param(12, marks=pytest.mark.deep)])
def test_a_larger_budget_never_costs_more(count):
    draw = random.Random(7)
    trees = Trees(draw)
    trees.shape = trees.build(0, 10)
    trees.reset()
    step = trees.step
    start, plain = live(), peak(step)
    trees.reset()
    added = []
    for k in range(count):
        share = 0.7 + 0.35 * k / max(count - 1, 1)
        added.append(lt.fit(step, budget=int(start + share * (plain - start))).cost)
    assert added == sorted(added, reverse=True)


@pytest.mark.deep
def test_inside_a_budget_it_plans_as_outside():
    _, step = chain()
    step()
    outside = lt.fit(step, budget=live() + 700_000)
    with lt.memory_budget("1GiB"):
        inside = lt.fit(step, budget=live() + 700_000)
    assert (inside.peak, inside.dropped) == (outside.peak, outside.dropped)


def test_a_plan_decorates():
    _, step = chain()
    step()
    plan = lt.fit(step, budget=live() + 800_000)
    LEDGER.reset_peak()
    for _ in range(2):
        plan(step)()
    assert LEDGER.peak <= plan.limit
    assert plan.evictions == 2 * plan.dropped


def test_a_step_with_arguments_and_its_result():
    net, _ = chain()
    x = lt.randn(256, 64)

    def step(x, scale, power=1):
        net.zero_grad()
        (net(x) * scale).pow(power).sum().backward()

    plan = lt.fit(step, x, 2.0, power=2, budget=live() + 800_000)
    assert plan.peak <= plan.limit


def test_a_plan_tells_itself():
    _, step = chain()
    step()
    plan = lt.fit(step, budget=live() + 700_000)
    text = str(plan)
    assert text.startswith(f"budget {plan.limit / 2**20:.2f} MiB: peak ")
    assert f"{plan.dropped} values dropped, {plan.replayed} replays" in text
    assert "test_fit.py:" in text
    assert repr(plan).startswith("<Plan: budget ")


def test_a_result_in_place_of_the_step_is_refused():
    _, step = chain()
    with pytest.raises(TypeError, match="fit takes a function"):
        lt.fit(step(), budget="1GiB")
    with pytest.raises(ValueError, match="fit: budget is a size in bytes"):
        lt.fit(step, budget="much")


@pytest.mark.deep
@pytest.mark.parametrize("of", ["pages", "tensors"])
def test_of_what_the_bytes_are(of):
    _, step = chain()
    pool = backend(lt.device("cpu")).pool
    plan = lt.fit(step, budget=live() + 700_000, of=of)
    with plan:
        assert (pool.cap == plan.limit) is (of == "pages")
        step()
    assert plan.of == of
    assert plan.evictions > 0
    with pytest.raises(ValueError, match=r'of is "pages" or "tensors", got \'process\''):
        lt.fit(step, budget="1GiB", of="process")


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(12))
def test_what_is_proved_to_be_needed_is_no_more_than_a_step_takes(seed):
    made = drawn_step(seed)  # its later steps hold small values that nobody wants any more
    step, x, y = made["step"], made["x"], made["y"]
    plan = lt.fit(step, x, y, budget="1GiB", tries=0)
    assert plan.floor_proved <= plan.plain_peak
    again = lt.fit(step, x, y, budget=plan.plain_peak, tries=0)
    assert again.peak <= plan.plain_peak
