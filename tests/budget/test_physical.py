"""Physical bytes: pages, the whole process, limits on addresses and of control groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend
from lowtide.framework.memory.machine import NoRoomError
from lowtide.framework.memory.pool import NO_CAP
from lowtide.nn import functional as F
from tests.budget.physical import model
from tests.checkpointing.twice import live

CPU = backend(lt.device("cpu"))
MB = 10**6
GROUPS = Path("/sys/fs/cgroup/memory")


def run(case, limit, addresses="", before=""):
    """Findings of ``physical.py`` in a fresh process; ``before`` is a shell command."""
    code = f"{before}\nexec {sys.executable} -m tests.budget.physical {case} {limit} {addresses}"
    out = subprocess.run(
        ["bash", "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert out.returncode == 0, out.stderr[-3000:]
    return json.loads(out.stdout.splitlines()[-1])


def seeded(step):
    lt.manual_seed(1)
    return [step() for _ in range(2)]


@pytest.fixture(scope="module")
def plain():
    return run("plain", 0)


@pytest.mark.quick(1)
@pytest.mark.parametrize("share", [0.65, pytest.param(0.9, marks=pytest.mark.deep)])
def test_what_the_process_holds_is_within_the_budget(plain, share):
    limit = int(share * plain["peak"])
    found = run("watched", limit)
    assert found["losses"] == plain["losses"]
    assert found["peak"] <= limit
    assert found["held"] <= 1.003 * limit
    assert found["given"] > 0
    assert found["evictions"] > 0
    # A huge page that was there before may reach past the last block.
    assert found["worst"] <= 1 << 21
    assert 0.9 * limit < found["resident"] <= 1.003 * limit + (1 << 21)


@pytest.mark.deep
def test_a_budget_of_tensors_gives_no_pages_back(plain):
    limit = int(0.65 * plain["peak"])
    found = run("tensors", limit)
    assert found["losses"] == plain["losses"]
    assert found["peak"] <= limit < found["held"]
    assert found["evictions"] > 0
    assert found["given"] == 0


@pytest.mark.deep
def test_a_budget_of_the_process_leaves_room_for_all_that_is_no_tensor(plain):
    others = run("process", 1 << 40)
    assert (others["evictions"], others["given"]) == (0, 0)
    limit = others["process"] - 20 * MB
    found = run("process", limit)
    assert found["losses"] == plain["losses"]
    assert found["evictions"] > 0
    assert found["process"] <= limit
    assert found["limit"] <= limit - found["others"]


@pytest.mark.deep
def test_addresses_that_are_few_are_enough(plain):
    limit = int(0.7 * plain["peak"])
    addresses = int(1.3 * limit)  # fewer than the plain step's bytes
    assert addresses < plain["peak"]
    found = run("pages", limit, addresses + (1 << 27))
    assert abs(found["capacity"] - addresses) <= 4096
    assert found["losses"] == plain["losses"]


@pytest.mark.deep
@pytest.mark.skipif(
    not os.access(GROUPS / "memory.limit_in_bytes", os.W_OK),
    reason="no control groups of version 1 that this user may make",
)
@pytest.mark.parametrize("case", ["process", "pages"])
def test_in_a_control_group(plain, case):
    group = GROUPS / f"lowtide_{uuid.uuid4().hex}"
    group.mkdir()
    # What libraries take differs from machine to machine. A group is not charged for all of it.
    least = run("process", 1 << 40)["process"] - 20 * MB
    room = least if case == "process" else least - 20 * MB
    try:
        (group / "memory.limit_in_bytes").write_text(str(room))
        # One that fits the group; and one that does not, where the machine's limit makes values go.
        limit = least if case == "process" else least + 84 * MB
        found = run(case, limit, before=f"echo $$ > {group}/cgroup.procs")
        assert found["losses"] == plain["losses"]
        assert found["evictions"] > 0
    finally:
        group.rmdir()


def test_neighbors_go_where_the_pool_has_no_addresses(monkeypatch):
    step, other = model(), model()
    lt.reset_peak_memory_stats()
    first = seeded(step)
    peak = lt.max_memory_allocated() - live()
    with lt.memory_budget(live() + peak) as budget:
        lt.empty_cache()
        monkeypatch.setattr(CPU.pool, "capacity", CPU.pool.top + peak * 3 // 4)
        monkeypatch.setattr(CPU.pool, "granted", CPU.pool.capacity)
        monkeypatch.setattr(CPU.pool, "grant", None)
        assert seeded(other) == first
        assert CPU.pool.top <= CPU.pool.capacity
    assert budget.evictions > 0


def test_values_go_where_the_machine_has_no_room(monkeypatch):
    step, other = model(), model()
    lt.reset_peak_memory_stats()
    before = live()
    first = seeded(step)
    peak = lt.max_memory_allocated() - before
    lt.empty_cache()
    most = CPU.pool.used + peak * 3 // 4

    def grant(more):
        if CPU.pool.used + more > most:
            lt.empty_cache()  # as a Guard does
            raise NoRoomError("the machine is full")
        return more

    monkeypatch.setattr(CPU.pool, "grant", grant)
    monkeypatch.setattr(CPU.pool, "granted", 0)
    with lt.memory_budget("1TiB") as budget:
        assert seeded(other) == first
    assert budget.evictions > 0


@pytest.mark.parametrize("of", ["pages", "tensors"])
def test_values_go_where_free_blocks_are_less_than_a_page(of):
    small = [lt.empty(700) for _ in range(2000)]
    x = lt.ones(256, 256, requires_grad=True)
    lt.empty_cache()
    del small[::2]  # holes of 2.8 KB: 2.8 MB that no page of can go
    with lt.memory_budget(live() + 14 * x.nbytes, of=of) as budget:
        lt.reset_peak_memory_stats()
        y = x
        for _ in range(10):
            y = F.gelu(y)
        assert lt.max_memory_allocated() < budget.limit  # the ledger had room for all
        assert (budget.evictions > 0) is (of == "pages")
        if of == "pages":
            assert lt.memory_reserved() <= budget.limit + (1 << 18)


def test_what_the_rest_of_the_process_takes_lowers_the_limit():
    ledger = CPU.ledger
    with lt.memory_budget("64GiB", of="process"):
        before = ledger.limit
        other = np.ones(64 << 20, np.uint8)
        assert ledger.budgets[-1].make_room(ledger, 0)
        assert ledger.limit <= before - (50 << 20)
        del other


def test_reserved_is_what_was_not_given_back():
    keep = []
    for _ in range(8):
        lt.empty(1 << 20)
        keep.append((lt.empty(1 << 18), lt.empty(1 << 16)))
    lt.empty_cache()
    before = lt.memory_reserved()
    keep = [b for _, b in keep]
    assert lt.memory_reserved() == before
    lt.empty_cache()
    assert lt.memory_reserved() <= before - 7 * (1 << 20)
    stats = lt.memory_stats()
    assert stats["reserved_bytes"] == stats["pool_used_bytes"] + stats["pool_free_bytes"]
    assert 0 <= stats["pool_free_bytes"] < 16 * 4096 * len(keep)


def test_a_budget_leaves_the_pool_as_it_was():
    before = CPU.pool.cap
    with lt.memory_budget("1GiB"):
        assert CPU.pool.cap == 1 << 30
        with lt.memory_budget("1MiB"):
            assert CPU.pool.cap == 1 << 20
        with lt.memory_budget("1MiB", of="tensors"):
            assert CPU.pool.cap == 1 << 30
    assert CPU.pool.cap == before == NO_CAP


def test_huge_pages_are_off_while_pages_go_back():
    with lt.memory_budget(live() + (8 << 20)):
        assert CPU._huge
        large = [lt.empty(1 << 18) for _ in range(7)]
        del large[::2]
        _ = lt.empty(5 << 18)  # more than is between them
        assert not CPU._huge
        del large, _
    assert CPU._huge


def test_mistakes():
    with pytest.raises(ValueError, match='of is "pages", "tensors" or "process", got \'all\''):
        lt.memory_budget("1GiB", of="all")
    with (
        pytest.raises(ValueError, match=r"pages of this process, which those of sim are not"),
        lt.memory_budget("1GiB", "sim", of="process"),
    ):
        pass
    x = lt.ones(4)
    with lt.memory_budget(1000, of="process"), pytest.raises(lt.MemoryLimitError) as caught:
        x * 2
    assert "1000 B for the process (of which the interpreter and libraries take" in str(
        caught.value
    )


def test_pages_from_before_go_when_a_budget_begins():
    kept = lt.empty(1 << 20)
    del kept
    large = lt.empty(64 << 20)
    del large
    assert lt.memory_reserved() > 32 << 20
    with lt.memory_budget(live() + (1 << 20)):
        assert lt.memory_reserved() <= live() + (2 << 20)
