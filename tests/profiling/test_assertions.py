"""Assertions on memory: exact peaks and leaks, and what they say of the owners."""

import gc

import pytest

import lowtide as lt
from lowtide.profiling.assertions import MemoryCheck

held = []


@pytest.fixture
def check():
    return MemoryCheck()


def test_a_peak_counts_what_rises_above_the_start(check):
    x = lt.ones(1000)
    assert check.peak(lambda: (x + 1) * 2) == 8000
    assert check.peak(lambda n: lt.zeros(n), 10) == 40
    assert check.peak(lambda: None) == 0
    assert MemoryCheck("meta").peak(lambda: lt.zeros(10, device="meta")) == 40


def test_a_prediction_is_the_same_bytes_and_runs_nothing(check):
    x, seen = lt.ones(1000), []

    def step():
        seen.append(1)
        return (x + 1) * 2

    assert check.predicted_peak(step) == 8000
    assert seen == []
    assert MemoryCheck("meta").predicted_peak(step) == 0


def test_a_limit_holds_to_the_byte_and_names_the_line(check):
    x = lt.ones(1000)
    with check.limit(8000):
        y = (x + 1) * 2
    del y
    with pytest.raises(AssertionError) as caught, check.limit("7999 B"):
        (x + 1) * 2
    text = str(caught.value)
    assert "the block took 7.81 KiB (8000 B) of cpu at its peak, 1 B above the limit of" in text
    assert "test_assertions.py:" in text
    assert "temporary" in text


def test_an_error_of_the_block_passes_through(check):
    with pytest.raises(RuntimeError, match="broadcast|shape"), check.limit(0):
        lt.ones(1000) + lt.ones(999)


def test_what_stays_alive_is_a_leak_with_its_line(check):
    def loses():
        return lt.ones(1000).sum().item()

    def keeps():
        held.append(lt.ones(1000))

    with check.no_leak():
        loses()
    with check.no_leak(allow="4000B"):
        keeps()
    with pytest.raises(AssertionError, match=r"left 3.91 KiB \(4000 B\) alive on cpu") as caught:
        with check.no_leak():
            keeps()
    assert "test_assertions.py:" in str(caught.value)
    held.clear()


def test_a_cycle_is_no_leak(check):
    def cycle():
        ring = [lt.ones(1000)]
        ring.append(ring)

    with check.no_leak():
        cycle()


def test_a_training_step_is_steady_once_its_state_is_there(check):
    model = lt.nn.Linear(8, 8)
    optimizer = lt.optim.AdamW(model.parameters())
    x, losses = lt.ones(4, 8), []

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    check.steady(step)
    with pytest.raises(AssertionError, match="grew over 3 steps|survives its step") as caught:
        check.steady(lambda: losses.append(step()))
    assert "test_assertions.py:" in str(caught.value)


@pytest.mark.parametrize("size", ["12 pounds", -1])
def test_a_size_that_is_none_is_refused(check, size):
    with pytest.raises(ValueError, match="limit: size"), check.limit(size):
        pass


def test_garbage_that_dies_inside_makes_no_room(check):
    """What a test before left in a cycle is collected before, not while it is judged."""

    def judged():
        with check.limit(7999):
            gc.collect()
            return lt.ones(1000), lt.ones(1000)

    gc.disable()
    try:
        cycle = [lt.ones(4000)]
        cycle.append(cycle)
        del cycle
        with pytest.raises(AssertionError, match="above the limit"):
            judged()
    finally:
        gc.enable()
