"""Where a budget may be entered: nesting, decorators, generators, threads, modes, loops."""

from __future__ import annotations

import gc
import re
import threading

import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework.devices import backend
from lowtide.framework.modes import local
from tests.checkpointing.twice import bits, live, message_of

F = nn.functional
LEDGER = backend(lt.device("cpu")).ledger
KIB = 2**10


pytestmark = pytest.mark.usefixtures("no_collector")


@pytest.fixture
def net():
    lt.manual_seed(1)
    return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)])


@pytest.fixture
def x():
    return lt.randn(256, 64)  # 64 KiB, as each of the 16 values that are saved


def room(n):
    """A budget of so many values above what lives."""
    return live() + n * 64 * KIB


def step(net, x):
    net.zero_grad()
    net(x).square().mean().backward()
    found = bits([p.grad for p in net.parameters()])
    net.zero_grad()
    return found


def test_a_loop_with_evaluation_and_files_inside(net, x, tmp_path):
    def loop():
        lt.manual_seed(2)
        net.load_state_dict(state)
        optimizer, losses = optim.AdamW(net.parameters()), []
        for k in range(4):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss)
            with lt.no_grad():
                losses.append(net(x[:16]).mean())
            lt.save(net.state_dict(), tmp_path / f"{k}.pt")
        optimizer.zero_grad()
        return bits([*losses, *net.parameters()])

    state = {k: v.clone() for k, v in net.state_dict().items()}
    expected = loop()
    before = live()
    limit = room(12)
    LEDGER.reset_peak()
    with lt.memory_budget(limit) as budget:
        assert loop() == expected
    assert budget.evictions > 8
    assert LEDGER.peak <= limit
    assert live() == before


def test_what_a_program_keeps_of_a_step_keeps_no_recipe(net, x):
    """A loss in a list holds itself, not the values and inputs that it was made from."""
    with lt.memory_budget("1GiB"):
        losses = []
        for _ in range(3):
            batch = x * 1  # would be held by the recipe of the loss
            loss = net(batch).square().mean()
            loss.backward()
            losses.append(loss)
            net.zero_grad()
            del batch, loss
        before = live()
        del losses
        assert before - live() == 3 * 4


def test_many_steps_leave_nothing_behind(net, x):
    """Versions, standings, and readers of a value that all steps use."""
    scale = lt.ones(64, requires_grad=True)
    sizes = []
    with lt.memory_budget(room(10)) as budget:
        shared = scale * 2  # used by all steps: its graph stays
        evictor = local.state.recorder.evictor
        for _ in range(5):
            for _ in range(20):
                net.zero_grad()
                (net(x * shared)).square().mean().backward(inputs=list(net.parameters()))
            gc.enable()
            gc.collect()
            gc.disable()
            versions = [o for o in gc.get_objects() if type(o).__name__ == "EvictableVersion"]
            readers = [len(v.standing.readers) for v in versions if v.standing is not None]
            sizes.append((len(versions), len(evictor._by_place), max(readers, default=0) > 64))
        del shared, versions
    assert budget.evictions > 500
    assert sizes[1] == sizes[-1]
    assert not sizes[-1][2]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_running_average_keeps_no_recipe(in_place):
    batches = [lt.randn(256, 64) for _ in range(8)]
    with lt.memory_budget("1GiB"):
        average = lt.zeros(256, 64)
        before = live()
        with lt.no_grad():
            while batches:
                if in_place:
                    average.mul_(0.9).add_(batches.pop(), alpha=0.1)
                else:
                    average = 0.9 * average + 0.1 * batches.pop()
        assert live() == before - 8 * 64 * KIB


def test_the_smaller_of_two_budgets_holds(net, x):
    expected = step(net, x)
    small, large = room(10), room(100)
    for outer, inner in ((small, large), (large, small)):
        LEDGER.reset_peak()
        with lt.memory_budget(outer) as first, lt.memory_budget(inner) as second:
            assert LEDGER.limit == small
            assert step(net, x) == expected
        assert LEDGER.peak <= small
        assert first.evictions == second.evictions > 0
    assert LEDGER.limit > 2**60


def test_after_the_inner_budget_the_outer_holds_again(net, x):
    outer = room(10)
    with lt.memory_budget(outer):
        with lt.memory_budget(room(9)):
            pass
        assert LEDGER.limit == outer
        step(net, x)


def test_a_limit_set_inside_holds_and_stays(net, x):
    with lt.memory_budget("1GiB"):
        assert lt.set_memory_limit(room(10)) is None
        assert LEDGER.limit < 2**30
        with pytest.raises(lt.MemoryLimitError, match="would pass the limit"):
            lt.empty(2**29)
    assert lt.get_memory_limit() == LEDGER.limit
    lt.set_memory_limit(None)
    assert LEDGER.limit > 2**60


def test_entering_inside_a_region_is_refused(net, x):
    def inside():
        with lt.memory_budget("1GiB"):
            pass

    text = message_of(lambda: lt.checkpoint(lambda y: inside(), x), RuntimeError)
    assert re.search(r"inside a checkpointed region, begun at .*test_contexts.py:\d+", text)
    assert "Enter the budget outside" in text
    assert LEDGER.budgets == ()
    assert local.state.recorder is None


def test_hooks_around_keep_what_they_return(net, x):
    expected, kept = step(net, x), []
    limit = room(100)

    def pack(t):
        kept.append(t.shape)
        return t

    with lt.autograd.graph.saved_tensors_hooks(pack, lambda t: t), lt.memory_budget(limit):
        assert step(net, x) == expected
    assert len(kept) >= 16


def test_a_decorated_function_goes_on_with_its_budget(net, x):
    expected = step(net, x)
    calls = lt.memory_budget(room(10))
    budgeted = calls(step)
    for _ in range(3):
        assert budgeted(net, x) == expected
    assert calls.evictions > 10
    assert LEDGER.budgets == ()


def test_a_generator_is_within_the_budget_while_it_runs(net, x):
    expected = step(net, x)

    @lt.memory_budget(room(10))
    def losses():
        for _ in range(2):
            net.zero_grad()
            loss = net(x).square().mean()
            yield loss
            loss.backward()
            yield loss

    limits = []
    for loss in losses():
        limits.append(LEDGER.limit)
        assert loss.shape == ()
    assert min(limits) > 2**60
    del loss
    found = bits([p.grad for p in net.parameters()])
    assert found == expected


def test_entered_again_it_drops_what_it_kept_before(net, x):
    expected = step(net, x)
    budget = lt.memory_budget(room(20))
    with budget:
        loss = net(x).square().mean()
    assert budget.evictions == 0
    other = lt.ones(8 * 64 * KIB // 4)
    with budget:
        loss.backward()
    assert budget.evictions > 0
    del loss, other
    found = bits([p.grad for p in net.parameters()])
    assert found == expected


def test_backward_outside_replays_what_was_dropped(net, x):
    expected = step(net, x)
    before = live()
    with lt.memory_budget(room(8)) as budget:
        loss = net(x).square().mean()
    assert budget.evictions > 0
    loss.backward()
    del loss
    assert bits([p.grad for p in net.parameters()]) == expected
    net.zero_grad()
    assert live() == before


def test_a_graph_that_is_dropped_leaves_nothing(net, x):
    before = live()
    with lt.memory_budget(room(8)) as budget:
        loss = net(x).square().mean()
        assert budget.evictions > 0
        del loss
        loss = net(x).square().mean()
    assert live() > before
    del loss
    assert live() == before


def test_no_grad_may_use_what_saved_values_took(net, x):
    expected = step(net, x)
    with lt.memory_budget(room(18)) as budget:
        loss = net(x).square().mean()
        saved = budget.evictions
        with lt.no_grad():
            lt.ones(10 * 64 * KIB // 4)
        assert budget.evictions > saved
        loss.backward()
    del loss
    assert bits([p.grad for p in net.parameters()]) == expected


def test_another_thread_is_refused_and_drops_nothing(net, x):
    seen = []

    def other():
        try:
            lt.ones(10 * 64 * KIB // 4)
        except lt.MemoryLimitError as error:
            seen.append(str(error))

    with lt.memory_budget(room(18)) as budget:
        loss = net(x).square().mean()
        before = budget.evictions
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert budget.evictions == before
    assert len(seen) == 1
    assert "would pass the budget of" in seen[0]
    assert "Only the thread that entered the budget evicts values" in seen[0]
    del loss


def test_two_threads_have_budgets_of_their_own(net, x):
    expected, limit, found = step(net, x), room(40), []

    def work():
        mine = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)])
        mine.load_state_dict(net.state_dict())
        with lt.memory_budget(limit) as budget:
            found.append((step(mine, x), budget))

    LEDGER.reset_peak()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [f for f, _ in found] == [expected, expected]
    assert LEDGER.limit > 2**60
    assert LEDGER.budgets == ()


def test_backward_in_another_thread(net, x):
    expected = step(net, x)
    with lt.memory_budget(room(8)) as budget:
        loss = net(x).square().mean()
    assert budget.evictions > 0
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    del loss
    assert bits([p.grad for p in net.parameters()]) == expected


def test_a_budget_that_does_not_bind_keeps_what_the_plain_step_keeps(net, x):
    net.zero_grad()
    before = live()
    loss = net(x).square().mean()
    plain = live() - before
    del loss
    with lt.memory_budget("1GiB") as budget:
        loss = net(x).square().mean()
        assert live() - before == plain
        loss.backward()
    assert (budget.evictions, budget.replays) == (0, 0)


def test_the_refusal_says_who_asked_and_what_lives(net, x):
    def run():
        with lt.memory_budget(room(3)):
            net(x).square().mean().backward()

    text = message_of(run, lt.MemoryLimitError)
    assert re.search(
        r"^Allocating 64.00 KiB on cpu in backward of \w+Backward0 would pass the budget of "
        r"\d+.\d+ [KM]iB, begun at \S*test_contexts.py:\d+, by [\d.]+ \w+; .* live \(",
        text,
    ), text
    assert "Raise the budget" in text
    assert LEDGER.budgets == ()
    assert local.state.recorder is None
    net.zero_grad()


def test_a_refusal_before_the_first_node_of_backward():
    """Two gradients of one root are added before any node runs."""
    w = lt.ones(256, 64, requires_grad=True)
    y = w * 2
    gradient = lt.ones(256, 64)

    def run():
        with lt.memory_budget(live()):
            lt.autograd.backward([y, y], [gradient, gradient])

    assert "would pass the budget of" in message_of(run, lt.MemoryLimitError)


@pytest.mark.parametrize("limit", [-1, "much", 1.5, None, True])
def test_what_is_no_limit_is_refused(limit):
    with pytest.raises((TypeError, ValueError), match="memory_budget: limit"):
        lt.memory_budget(limit)


def test_the_error_of_a_limit_offers_the_budget_that_works(net, x):
    def refused(work):
        try:
            work()
        except lt.MemoryLimitError as error:
            return str(error)
        return ""

    lt.set_memory_limit(room(9))
    try:
        text = refused(lambda: step(net, x))
        found = re.search(
            r'are saved for backward: .* `with lowtide.memory_budget\("([^"]+)"\)', text
        )
        assert found, text
        net.zero_grad()
        with lt.memory_budget(found[1]) as budget:  # as the message says
            step(net, x)
        assert budget.evictions > 0
        held = net[0](x)  # something is saved, and it is too little
        text = refused(lambda: lt.zeros(1 << 24))
        assert "would pass the limit" in text
        assert re.search(r"live \(.*saved \d", text)
        del held
        assert "are saved for backward" not in text  # they would not make room for it
    finally:
        lt.set_memory_limit(None)
