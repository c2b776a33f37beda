"""Budgets that stash what they drop: the same bits, never over, the cheapest way, caps held."""

from __future__ import annotations

import errno
import math

import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.checkpointing import offload, offload_to_disk, pack
from lowtide.framework.autograd.remat.evictor import Evictor
from lowtide.framework.autograd.remat.replay_costs import EvictionRule
from lowtide.framework.checkpointing.disk import SpillFile
from lowtide.framework.devices import backend
from lowtide.framework.memory.events import observe
from tests.budget.kinds import KINDS
from tests.budget.storm import storm
from tests.budget.test_evictor import budget_of
from tests.checkpointing import test_random_programs as programs
from tests.checkpointing.twice import bits, copying, live, outcome, plain

F = nn.functional
LEDGER = backend(lt.device("cpu")).ledger
FAST, SLOW = "1TiB", "1KiB"  # a second
COUNT = 60  # programs a test


pytestmark = pytest.mark.usefixtures("no_collector")


def everything(folder):
    """Stashes that are always cheaper than to compute again."""
    packing = pack()
    packing.speed = 1e15
    return offload_to_disk(folder, min_bytes=1, speed=FAST), packing


def make(device="cpu", blocks=6, width=128, rows=512):
    lt.manual_seed(0)
    net = nn.Sequential(
        *[nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)) for _ in range(blocks)]
    ).to(device)
    optimizer = optim.AdamW(net.parameters())
    x, y = lt.randn(rows, width, device=device), lt.randn(rows, width, device=device)

    def step():
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()

    def state():
        return bits([*net.parameters(), lt.get_rng_state()])

    return step, state


def trained(steps=3, share=0.5, device="cpu", **options):
    """The state after some steps in a budget, the budget, and the most live bytes over it."""
    step, state = make(device)
    ledger = backend(lt.device(device)).ledger
    step()
    start = ledger.live
    ledger.reset_peak()
    step()
    limit = start + int((ledger.peak - start) * share)
    ledger.reset_peak()
    with lt.memory_budget(limit, device, **options) as budget:
        for _ in range(steps):
            step()
    return state(), budget, ledger.peak - limit


def plainly(steps=3, device="cpu"):
    step, state = make(device)
    for _ in range(steps + 2):
        step()
    return state()


@pytest.mark.parametrize(
    "first", [0, *[pytest.param(k, marks=pytest.mark.deep) for k in (1, 2, 3)]]
)
@pytest.mark.parametrize("region", [plain, lt.checkpoint])
def test_random_programs_with_values_stashed_at_every_allocation(first, region, tmp_path):
    different, left, stashed = [], {}, 0
    stashes = everything(tmp_path)
    for seed in range(first * COUNT, (first + 1) * COUNT):
        step, before = programs.program(seed), live()

        def run(region, step=step, seed=seed):
            nonlocal stashed
            budget = storm((0.1, 0.3, 1.0)[seed % 3], seed, stashes=stashes)
            with budget:
                found = step(region)
            stashed += budget.stashed
            return found

        if outcome(step, copying) != outcome(run, region):
            different.append(seed)
        if live() != before:
            left[seed] = live() - before
    assert (different, left) == ([], {})
    assert stashed > COUNT
    assert stashes[0].used_bytes == 0


@pytest.mark.quick(6)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_programs(kind, tmp_path):
    lt.manual_seed(3)
    run = KINDS[kind]()

    def result():
        lt.manual_seed(5)
        return bits(run()), bits(lt.get_rng_state())

    expected, start = result(), live()
    LEDGER.reset_peak()
    result()
    plain_peak, most = LEDGER.peak, 0

    def watch(*_):
        nonlocal most
        most = max(most, LEDGER.live)

    for share in (0.93, 0.86, 0.8, 0.7, 0.6, 0.5):
        limit, most = int(start + share * (plain_peak - start)), 0
        disk = offload_to_disk(tmp_path, min_bytes=1, speed=FAST)
        try:
            with observe(LEDGER, watch), lt.memory_budget(limit, stash=disk) as budget:
                found = result()
        except lt.MemoryLimitError:  # below what its kernels need
            break
        assert most <= limit
        assert found == expected, share
        assert live() == start, share
        assert disk.used_bytes == 0
        assert budget.stashed <= budget.evictions


def test_a_fast_disk_takes_what_a_slow_one_leaves_to_replay(tmp_path):
    expected = plainly()
    state, budget, over = trained(stash=offload_to_disk(tmp_path, speed=FAST))
    assert (state, over <= 0) == (expected, True)
    assert budget.stashed == budget.evictions > 3
    assert 0 < budget.stashed_bytes == budget.evicted_bytes
    state, budget, over = trained(stash=offload_to_disk(tmp_path, speed=SLOW))
    assert (state, over <= 0) == (expected, True)
    assert budget.stashed == 0 < budget.evictions


def test_a_measured_disk_is_as_good_as_one_whose_speed_is_given(tmp_path):
    disk = offload_to_disk(tmp_path)
    assert 1e6 < disk.speed < 1e12
    assert disk.speed == disk.speed  # measured once
    state, _, over = trained(stash=disk)
    assert (state, over <= 0) == (plainly(), True)


def test_what_the_cap_of_a_disk_leaves_is_replayed(tmp_path):
    cap = 3 * 512 * 128 * 4
    disk = offload_to_disk(tmp_path, limit=cap, speed=FAST)
    state, budget, over = trained(stash=disk)
    assert (state, over <= 0) == (plainly(), True)
    assert 0 < budget.stashed < budget.evictions
    assert disk.file_bytes <= cap


def test_a_disk_that_fails_ends_the_op_and_nothing_is_lost(tmp_path, monkeypatch):
    disk = offload_to_disk(tmp_path, speed=FAST)
    step, state = make()
    step()
    start = LEDGER.live
    LEDGER.reset_peak()
    lt.manual_seed(1)
    step()
    limit = start + (LEDGER.peak - start) // 2
    working = type(disk).stash
    calls = []

    def failing(self, tensor):
        calls.append(tensor.shape)
        if len(calls) == 3:
            raise OSError(errno.EIO, "the disk is broken")
        return working(self, tensor)

    monkeypatch.setattr(offload_to_disk, "stash", failing)
    again, state_again = make()
    again()
    with lt.memory_budget(limit + LEDGER.live - start, stash=disk):
        with pytest.raises(OSError, match="the disk is broken"):
            again()
        lt.manual_seed(1)
        again()
    assert state_again() == state()
    assert disk.used_bytes == 0


@pytest.mark.parametrize("to", ["bfloat16", "int8"])
def test_lossy_packing_is_asked_for_by_name(to):
    with pytest.raises(ValueError, match="pass it as lossy="):
        lt.memory_budget("1GiB", stash=pack(to))
    with pytest.raises(ValueError, match="a packing that changes values"):
        lt.memory_budget("1GiB", lossy=pack())
    with pytest.raises(TypeError, match="stash is a stash"):
        lt.memory_budget("1GiB", stash=["disk"])
    packing = pack(to)
    packing.speed = 1e15
    state, budget, over = trained(share=0.4, lossy=packing)
    assert over <= 0
    assert state != plainly()
    assert budget.stashed > (budget.evictions // 3 if to == "bfloat16" else 0)


def test_values_of_a_gpu_go_to_the_host():
    expected = plainly(device="sim")
    before = LEDGER.live
    state, budget, over = trained(device="sim", stash=offload())
    assert (state, over <= 0) == (expected, True)
    assert budget.stashed == budget.evictions > 3
    del budget
    assert LEDGER.live == before


def test_booleans_are_packed_where_they_are_dear():
    packing = pack(min_bytes=1000)
    packing.speed = 1e15
    x = lt.randn(256, 512, requires_grad=True)

    def run():
        h, kept = x, []
        for _ in range(6):
            mask = (h @ h.t()).sum(1, keepdim=True) * h > 0  # dear to compute, cheap to pack
            h = lt.where(mask, h, 0.5 * h)
            kept.append(h)
        h.sum().backward()
        found, x.grad = x.grad, None
        return bits([found])

    expected, start = run(), live()
    LEDGER.reset_peak()
    run()
    limit = start + (LEDGER.peak - start) * 19 // 20
    with lt.memory_budget(limit, stash=packing) as budget:
        assert run() == expected
    assert budget.evictions >= budget.stashed


@pytest.mark.deep
@pytest.mark.parametrize("share", [0.4, 0.5, 0.6, 0.8])
def test_a_plan_with_a_disk_is_what_happens(share, tmp_path):
    step, state = make()
    step()
    start = LEDGER.live
    LEDGER.reset_peak()
    step()
    limit = start + int((LEDGER.peak - start) * share)
    disk = offload_to_disk(tmp_path, min_bytes=1, speed=FAST)
    without, plan = lt.fit(step, budget=limit, tries=0), lt.fit(step, budget=limit, stash=disk)
    assert plan.bound is None
    assert plan.added <= without.added
    assert "no way adds less" not in str(plan)
    path = tmp_path / "plan.json"
    plan.save(path)
    for way in (plan, lt.profiling.Plan.load(path, stash=disk)):
        LEDGER.reset_peak()
        with way:
            step()
        assert LEDGER.peak == plan.peak <= limit
        assert way.stashed > 0
        assert disk.used_bytes == 0
    found = state()
    assert found == plainly(steps=2)
    with pytest.raises(ValueError, match="fit: pack"):
        lt.fit(step, budget=limit, stash=pack("int8"))


def test_nothing_that_a_stashed_value_was_made_from_is_kept_for_its_sake(tmp_path):
    w, v, x = lt.randn(64, 64, requires_grad=True), lt.ones(64, 64, requires_grad=True), lt.ones(64)
    for stashes in ((), everything(tmp_path)):
        evictor = Evictor(EvictionRule(smallest=0), stashes)
        with budget_of(evictor, "1GiB"):
            a = x * w
            b = a + 1
            c, d = b * b, a * v
            of_a, of_b = d.grad_fn.handles[1].value, c.grad_fn.handles[0].value
            evictor.make_room(LEDGER, 0)  # from now on it looks
            del a, b
            if stashes:
                evictor._stash(of_b, math.inf)
            of_b.drop()
            del d  # the last handle of `a`
            evictor.let_go()
            assert (of_a.held is None) is bool(stashes)
            c.sum().backward()
            expected, w.grad = bits([w.grad]), None
            del c
            assert of_b.held is None
            assert expected == bits([2 * (x * w + 1) * x])
            del of_a, of_b


def test_what_was_stashed_once_is_not_written_again(tmp_path, monkeypatch):
    disk = offload_to_disk(tmp_path, min_bytes=1, speed=FAST)
    wrote = []
    put = SpillFile.put
    monkeypatch.setattr(SpillFile, "put", lambda *a: wrote.append(1) or put(*a))
    x = lt.randn(64, 64, requires_grad=True)
    evictor = Evictor(EvictionRule(smallest=0), (disk,))
    with budget_of(evictor, "1GiB"):
        y = x.exp().square()
        value = y.grad_fn.handles[0].value
        evictor.make_room(LEDGER, 0)
        for _ in range(3):
            evictor._stash(value, math.inf)
            evictor._drop(value)
            assert value.held is None
            y.sum().backward(retain_graph=True)
            assert value.held is not None
        assert evictor.evictions == 3
    assert len(wrote) == 1


def test_a_budget_inside_another_has_no_stashes_of_its_own(tmp_path):
    disk = offload_to_disk(tmp_path, speed=FAST)
    step, state = make()
    with lt.memory_budget("1GiB"):
        with pytest.raises(ValueError, match="Pass them to the outer budget"):
            lt.memory_budget("1GiB", stash=disk).__enter__()
        step()
    both = [disk, offload()]
    with lt.memory_budget("1GiB", stash=both), lt.memory_budget("1GiB", stash=both):
        step()
    with lt.memory_budget("1GiB", stash=disk), lt.memory_budget("1GiB"):
        step()
    assert state() == plainly(steps=1)
