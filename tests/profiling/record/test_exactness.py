"""At every event the owners sum to the ledger, in all and by role, and the ledger to the pool."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from contextlib import ExitStack

import pytest

import lowtide as lt
from lowtide.framework.devices import backend, live_backends
from lowtide.framework.memory.events import observe
from lowtide.framework.memory.ledger import ROLES, SAVED
from lowtide.profiling import MemoryProfiler
from lowtide.profiling.record.recording import BEFORE, replay
from tests.profiling.programs import PROGRAMS, Model, train


@pytest.fixture(autouse=True)
def no_collector():
    """A collection in the middle of an event would book others before it is noted."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def rounded(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def by_role(cells) -> list[int]:
    sums = Counter()
    for (_, role), n in cells.items():
        sums[role] += n
    return [sums[r] for r in range(len(ROLES))]


class Checker:
    """An observer after the profiler's: compares at each event, and remembers for the replay."""

    def __init__(self, prof, be):
        self.prof, self.be = prof, be
        self.seen = []
        self.delta = 0
        self.used = be.pool.used
        self.lock = threading.Lock()

    def __call__(self, event, device, nbytes, role, address, old):
        prof, ledger = self.prof, self.be.ledger
        prof.settle()
        index = prof.recording.devices.index(device)
        books = prof._recorder.accounts[index].books
        assert books.live == ledger.live == sum(books.cells.values())
        assert by_role(books.cells) == ledger.roles
        assert books.saved == ledger.roles[SAVED] == sum(books.savers.values())
        assert all(n > 0 for n in books.cells.values())
        self.seen.append((len(prof.recording.events), ledger.live, ledger.roles[:]))
        if event == "alloc":
            self.delta += rounded(nbytes)
            assert self.be.pool.used - self.used == self.delta
        elif event == "free":
            self.delta -= rounded(nbytes)


@pytest.mark.quick(7)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_owners_sum_to_the_ledger_at_every_event_and_so_does_the_replay(program):
    backend(lt.device("meta")), backend(lt.device("cpu"))
    with MemoryProfiler() as prof, ExitStack() as stack:
        checkers = {}
        for be in live_backends():
            checkers[str(be.device)] = Checker(prof, be)
            stack.enter_context(observe(be.ledger, checkers[str(be.device)]))
        program()
    for name, checker in checkers.items():
        index = prof.recording.devices.index(name)
        expected = iter(checker.seen)
        at, live, roles = next(expected, (None, None, None))
        for position, books in replay(prof.recording, index):
            while position + 1 == at:
                assert (books.live, by_role(books.cells)) == (live, roles)
                at, live, roles = next(expected, (None, None, None))
        assert at is None, "the replay did not come by every event"
    assert len(checkers["cpu"].seen) > 10


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_the_peak_is_the_ledgers_and_nothing_is_unknown(program):
    be = backend(lt.device("cpu"))
    be.ledger.reset_peak()
    with MemoryProfiler() as prof:
        program()
    assert prof.peak("cpu").nbytes == be.ledger.peak
    for by in ("role", "module", "op", "line", "phase", ("module", "role", "line")):
        assert prof.at_peak(by, device="cpu").total == be.ledger.peak
        assert "" not in prof.at_peak(by, device="cpu").as_dict()
    assert all(o.op and o.phase and o.line for o in prof.recording.owners)
    here = "programs.py:"
    lines = {o.line for o in prof.recording.owners} - {BEFORE}
    assert all(here in line for line in lines), lines
    series = prof.timeline("role", device="cpu")
    assert max(series.total) == be.ledger.peak
    for k, total in enumerate(series.total):
        assert sum(column[k] for column in series.series.values()) == total
    saved = prof.timeline("role", device="cpu").series.get("saved", [0])
    assert prof.saved("line", device="cpu").total == max(saved)
    assert prof.saved("op", device="cpu", holder=True).total == max(saved)


@pytest.mark.quick(7)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_without_a_timeline_every_answer_is_the_same(program):
    answers = []
    for timeline in (True, False):
        lt.manual_seed(0)
        with MemoryProfiler(timeline=timeline) as prof:
            program()
            prof.mark("the end")
        keys = ("role", "module", "op", "line", "phase")
        answers.append(
            [prof.at_peak(by, device="cpu", role=None).as_dict() for by in keys]
            + [prof.saved(by, device="cpu").as_dict() for by in keys]
            + [prof.growth("start", "the end", by, device="cpu").as_dict() for by in keys]
            + [[(m.name, m.live, m.peak) for m in prof.marks]]
        )
    assert answers[0] == answers[1]
    assert len(prof.recording.events) == 0
    with pytest.raises(RuntimeError, match="timeline=True"):
        prof.timeline(device="cpu")


def test_what_is_freed_in_the_middle_of_an_allocation_does_not_lower_the_peak():
    be = backend(lt.device("cpu"))
    held = []

    def collect(event, *_):  # as the garbage collector would, before the profiler is told
        if event == "alloc" and held:
            held.pop()

    be.ledger.reset_peak()
    with observe(be.ledger, collect), MemoryProfiler() as prof:
        big = lt.zeros(1000)
        held.append(big)
        del big
        small = lt.zeros(50)
        peak = be.ledger.peak
    assert prof.peak("cpu").nbytes == peak
    line = prof.timeline(device="cpu")
    assert max(line.total) == peak
    assert line.total[-1] == be.ledger.live
    assert list(line.times) == sorted(line.times)
    del small


def test_a_long_run_without_a_timeline_takes_bounded_memory():
    with MemoryProfiler(timeline=False) as prof:
        net = Model()
        optimizer = lt.optim.SGD(net.parameters(), lr=0.1)
        sizes = []
        for _ in range(3):
            for _ in range(8):
                net(lt.randn(1, 3, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            prof.settle()
            sizes.append(
                [len(prof._recorder.log), len(prof._recorder.paths), len(prof.recording.owners)]
                + [len(d.books.blocks) for d in prof._recorder.accounts]
                + [len(d.named) for d in prof._recorder.accounts]
            )
    assert sizes[0] == sizes[1] == sizes[2]
    assert sizes[0][0] == len(prof.recording.events) == 0


@pytest.mark.parametrize("where", ["meta", "sim"])
def test_other_devices_are_as_exact(where):
    be = backend(lt.device(where))
    with MemoryProfiler(where) as prof, observe(be.ledger, Checker(prof, be)):
        x = lt.randn(6, 4, device=where).requires_grad_()
        y = (x @ x.T).exp()
        y.sum().backward()
    assert len(prof.recording.events) > 10
    assert {o.phase for o in prof.recording.owners} == {"forward", "backward", "other"}


def test_the_roles_at_the_peak_are_the_ledgers():
    be = backend(lt.device("cpu"))
    be.ledger.reset_peak()
    with MemoryProfiler() as prof:
        train(Model(), lambda: lt.randn(3, 5, 8), lambda p: lt.optim.Adam(p))
    assert by_role(prof.peak("cpu").cells) == be.ledger.peak_roles


def test_what_the_graph_lets_go_of_at_the_peak_was_saved_there():
    be = backend(lt.device("cpu"))
    a, b = lt.randn(100, requires_grad=True), lt.randn(100, requires_grad=True)
    found = []
    for watched in (False, True):
        be.ledger.reset_peak()
        before = be.ledger.roles[SAVED]
        with MemoryProfiler() if watched else ExitStack() as prof:
            h = a.exp()
            k = b.exp()
            h = h.detach()  # its node goes, its bytes stay
            k = None
        found.append(be.ledger.peak_roles[SAVED] - before)
        if watched:
            assert by_role(prof.peak("cpu").cells) == be.ledger.peak_roles
        del h, k
    assert found == [800, 800]


def test_marks_sum_up_to_what_the_ledger_said_then():
    be = backend(lt.device("cpu"))
    seen = []
    kept = []
    with MemoryProfiler(timeline=False) as prof:
        for k in range(4):
            kept.append(lt.randn(100, k + 1))
            prof.mark(f"round {k}")
            seen.append(be.ledger.roles[:])
    index = prof.recording.devices.index("cpu")
    places = [k for k, m in enumerate(prof.marks) if m.kind == "mark"]
    for k, roles in zip(places, seen, strict=True):
        assert prof.marks[k].roles[index] == roles
        assert by_role(prof.recording.cells_at(k, index)) == roles
    assert prof.growth("round 0", "round 3", "op", device="cpu").total == 400 * (2 + 3 + 4)


def test_threads_end_with_exact_sums_and_their_own_paths_and_lines():
    be = backend(lt.device("cpu"))
    results, errors = [], []

    def work(name):
        try:
            with lt.profiling.scope(name):
                for _ in range(5):
                    x = lt.randn(50, 10, requires_grad=True)
                    (x.exp() * x).sum().backward()
                results.append(x.grad)
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads meet wherever they can
    try:
        with MemoryProfiler() as prof:
            threads = [threading.Thread(target=work, args=(f"worker {k}",)) for k in range(4)]
            for t in threads:
                t.start()
            while any(t.is_alive() for t in threads):
                prof.settle()
            for t in threads:
                t.join()
            prof.settle()
            books = prof._recorder.accounts[prof.recording.devices.index("cpu")].books
            found = (by_role(books.cells), books.live, be.ledger.roles[:], be.ledger.live)
    finally:
        sys.setswitchinterval(interval)
    assert found[:2] == found[2:]
    assert not errors
    made = prof.growth("start", "stop", "module", device="cpu").as_dict()
    for k in range(4):
        assert made[f"worker {k}"] == 2000
    assert {o.phase for o in prof.recording.owners if o.module.startswith("worker")} >= {
        "forward",
        "backward",
    }


def test_nested_and_overlapping_profilers_both_agree_with_the_ledger():
    be = backend(lt.device("cpu"))
    outer = MemoryProfiler("cpu").__enter__()
    x = lt.randn(100, requires_grad=True)
    inner = MemoryProfiler("cpu").__enter__()
    y = (x * 2.0).exp()
    outer.stop()  # out of turn, as a generator would
    z = y.sum()
    for prof in (outer, inner):
        prof.settle()
    assert sum(outer._recorder.accounts[0].books.cells.values()) == be.ledger.live - 4
    assert sum(inner._recorder.accounts[0].books.cells.values()) == be.ledger.live
    z.backward()
    inner.stop()
    assert inner.at_peak("op").as_dict()["before"] >= 400
    assert not be.ledger.observers
    assert not lt.framework.attribution.scopes.listening()
