"""Plans in seconds: times of kernels, how they are kept, and what they decide."""

from __future__ import annotations

import json
import os

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.autograd.remat.replay_costs import EvictionRule
from lowtide.framework.kernels.runtime import cache_folder, kernel_seconds
from lowtide.framework.kernels.runtime.kernel_seconds import FAULT, KernelSeconds, name_of
from lowtide.profiling.estimate import kernel_timing
from lowtide.profiling.estimate.kernel_timing import seconds_of
from tests.checkpointing.twice import bits, live

F = nn.functional


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache, and no times in the process."""
    monkeypatch.setattr(cache_folder, "BASE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_seconds, "_stores", {})
    return tmp_path / "cache" / "times"


@pytest.fixture
def step():
    lt.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)]
    net, x = nn.Sequential(*layers), lt.randn(256, 96)

    def run():
        net.zero_grad()
        F.mse_loss(net(x), x).backward()

    run.net = net
    return run


def budget_of(step, share):
    """What lives before a step, and a share of what it takes above that."""
    step.net.zero_grad()
    lt.reset_peak_memory_stats()
    start = live()
    step()
    peak = lt.max_memory_allocated()
    step.net.zero_grad()
    return start + int(share * (peak - start))


def test_a_step_is_the_sum_of_its_calls_of_python_and_of_page_faults():
    known = KernelSeconds(1)
    known.add({"a\t": (1.0, 2.0, 3.0), "b\t 0:(4, 8)": (0.5, 0.5, 1.0), FAULT: (0.1, 0.2, 0.4)})
    calls, weights = {"a\t": 2, "b\t 0:(4, 8)": 4}, {"a\t": 30, "b\t 0:(4, 8)": 10}
    assert seconds_of(calls, weights, 0.25, 10, known) == ((5.25, 8.25, 14.25), 1.0)
    # A kernel that is not known takes what its work does elsewhere: 6 s for 40.
    found, share = seconds_of({**calls, "c\t": 1}, {**weights, "c\t": 20}, 0.25, 0, known)
    assert share == pytest.approx(40 / 60)
    assert found.typical == pytest.approx(0.25 + 6 + 3)
    assert seconds_of({"c\t": 1}, {"c\t": 20}, 0.25, 0, KernelSeconds(1)) == ((0.25,) * 3, 0.0)


def test_a_plan_tells_its_time_and_keeps_what_it_measured(folder, step):
    limit = budget_of(step, 0.6)
    state = lt.get_rng_state()
    before = live()
    plan = lt.fit(step, budget=limit)
    assert live() == before
    assert lt.equal(lt.get_rng_state(), state)
    least, most = plan.seconds_range
    assert 0 < least <= plan.seconds <= most
    assert plan.plain_seconds > 0
    assert " a step (" in str(plan)
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    kept = json.loads(file.read_text())["kernels"]
    assert any(name.startswith("gelu(<f4[256, 96])") for name in kept)
    assert any(name.startswith("matmul(") for name in kept)
    assert all(0 <= a <= b <= c for a, b, c in kept.values())
    assert kernel_seconds.of_machine().times == {k: tuple(v) for k, v in kept.items()}
    again = KernelSeconds(kernel_seconds.of_machine().threads).load()
    assert again.times == kernel_seconds.of_machine().times


@pytest.mark.deep
def test_what_is_known_is_not_measured_again(folder, step, monkeypatch):
    limit = budget_of(step, 0.6)
    lt.fit(step, budget=limit)
    before = dict(kernel_seconds.of_machine().times)
    runs = []
    monkeypatch.setattr(kernel_timing, "_run", lambda *args: runs.append(args))
    lt.fit(step, budget=limit)
    assert kernel_seconds.of_machine().times == before


@pytest.mark.deep
def test_every_op_that_is_recorded_finds_its_time(folder, step):
    # The evictor knows plans, the measurement calls: both must give a kernel the same name.
    limit = budget_of(step, 0.4)
    lt.fit(step, budget=limit)
    known, asked = kernel_seconds.of_machine(), []
    typical = known.typical
    found = lt.memory_budget(limit, rule=EvictionRule(seconds=known, rate=1e9))
    try:
        known.typical = lambda name: asked.append((name, typical(name))) or typical(name)
        with found:
            step()
    finally:
        del known.typical
    assert found.evictions > 0
    assert asked
    assert [name for name, seconds in asked if seconds is None] == []
    (region,) = found._regions.values()
    costs = region.evictor.costs._costs
    assert costs
    for made, cost in costs.items():
        name = name_of(made.op.name, made.specs, made.attributes)
        assert cost == known.typical(name) * 1e9


@pytest.mark.deep
@pytest.mark.parametrize("dear", ["gelu", "linear"])
def test_what_takes_long_is_kept(folder, step, dear):
    limit = budget_of(step, 0.8)
    lt.fit(step, budget=limit)
    known = kernel_seconds.of_machine()
    known.add(
        {
            key: (1.0,) * 3 if key.startswith(f"{dear}(") else (1e-6,) * 3
            for key in known.times
            if key != FAULT
        }
    )
    known.add({FAULT: (0.0,) * 3})
    plan = lt.fit(step, budget=limit)
    dropped = {decision.op for decision in plan.decisions}
    assert dropped
    assert dear not in dropped
    expected = bits([p.grad for p in run_of(step)])
    lt.manual_seed(5)
    with plan:
        step()
    assert bits([p.grad for p in step.net.parameters()]) == expected


def run_of(step):
    lt.manual_seed(5)
    step()
    return list(step.net.parameters())


@pytest.mark.deep
def test_a_kernel_that_made_up_values_do_not_suit_is_weighed(folder, monkeypatch, step):
    ran = kernel_timing._run

    def only_products(f, args, room):
        if getattr(getattr(f, "op", None), "name", "") in ("linear", "matmul"):
            return ran(f, args, room)
        name = getattr(f, "func", f)
        return ran(f, args, room) if "matmul" in repr(name) else None

    monkeypatch.setattr(kernel_timing, "_run", only_products)
    limit = budget_of(step, 0.6)
    plan = lt.fit(step, budget=limit)
    assert plan.peak <= limit
    assert len(kernel_seconds.of_machine().times) < 12


def test_of_a_device_whose_kernels_cannot_be_measured_there_is_no_time(folder):
    with lt.device("sim"):
        net, x = nn.Sequential(*[nn.Linear(32, 32) for _ in range(6)]), lt.randn(64, 32)

        def step():
            net.zero_grad()
            net(x).square().mean().backward()

        plan = lt.fit(step, budget="90KiB", device="sim")
    assert (plan.seconds, plan.seconds_range, plan.plain_seconds) == (None, None, None)
    assert "a step" not in str(plan).splitlines()[0]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"kernels": 3}',
        '{"kernels": {"a": 1}}',
        '{"kernels": {"a": [1, 2]}}',
        '{"kernels": {"a": [3, 2, 1]}}',
        '{"kernels": {"a": [-1, 0, 0]}}',
        '{"kernels": {"a": [0, 0, Infinity]}}',
        '{"kernels": {"a": [NaN, 0, 0]}}',
        '{"kernels": {"a": ["x", 0, 0]}}',
    ],
)
def test_a_damaged_file_is_as_none(folder, text):
    known = KernelSeconds(3)
    known.add({"a\t": (1.0, 1.0, 1.0)})
    known.save()
    (file,) = folder.iterdir()
    assert KernelSeconds(3).load().times == known.times
    file.write_text(text)
    assert KernelSeconds(3).load().times == {}
    known.save()  # and is written over
    assert KernelSeconds(3).load().times == known.times


def test_times_of_another_library_of_products_are_kept_apart(folder, monkeypatch):
    name = KernelSeconds(1)._file()
    monkeypatch.setattr(kernel_seconds.mkl, "version", lambda: "another")
    assert KernelSeconds(1)._file() != name


def test_where_the_cache_cannot_be_used_nothing_is_kept(folder):
    folder.mkdir(parents=True)
    os.chmod(folder.parent, 0o777)  # others may write there
    known = KernelSeconds(3)
    known.add({"a\t": (1.0, 1.0, 1.0)})
    known.save()
    assert list(folder.iterdir()) == []
    assert known.load().times == {"a\t": (1.0, 1.0, 1.0)}


def test_names_have_no_addresses_and_no_numbers_that_change():
    x = lt.ones(2, 3)._array
    assert name_of("op", [x, 3, 0.5, None, True, object()], {"k": (1, 2)}) == (
        "op(<f4[2, 3], -, -, None, True, -)[('k', (1, 2))]"
    )
    known = KernelSeconds(3)
    known.add({"f(<function at 0x7f>)\t": (1.0, 1.0, 1.0)})
    assert known.typical("f(<function at 0x7f>)") == 1.0


def test_clear_forgets(folder):
    known = kernel_seconds.of_machine()
    known.add({"a\t": (1.0, 1.0, 1.0)})
    known.save()
    assert kernel_seconds.clear() == 1
    assert kernel_seconds.of_machine().times == {}
    assert kernel_seconds.clear() == 0
