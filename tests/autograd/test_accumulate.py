"""Sums of gradients: into ``.grad``, and on their way there, without a buffer more than needed."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

import lowtide as lt
from lowtide.framework.autograd.accumulate import add_arriving
from lowtide.framework.kernels.runtime import thresholds
from lowtide.nn.functional import linear

SIDE = 64
WEIGHT = SIDE * SIDE * 4


def extra_of(run: Any, device: str = "cpu") -> int:
    """Bytes above what lived before, at the peak of ``run``."""
    lt.reset_peak_memory_stats(device)
    before = lt.memory_allocated(device)
    run()
    return lt.max_memory_allocated(device) - before


# Into .grad


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_second_backward_takes_the_arriving_gradient_and_no_more(device):
    w = lt.ones(SIDE, SIDE, device=device, requires_grad=True)
    x = lt.ones(2, SIDE, device=device)
    extra, places = [], []
    for _ in range(3):
        loss = linear(x, w).sum()
        extra.append(extra_of(loss.backward, device))
        places.append(w.grad.data_ptr())
        del loss
    row = 2 * SIDE * 4  # the output's gradient: the loss's of 4 bytes, spread to its shape
    assert extra == [WEIGHT + row + 4] * 3
    assert len(set(places)) == 1


def test_a_gradient_that_is_one_number_for_all_is_added_without_being_spread():
    w = lt.ones(SIDE, SIDE, requires_grad=True)
    assert extra_of(w.sum().backward) == WEIGHT + 4
    assert extra_of(w.sum().backward) == 4
    assert (w.grad == 2).all()


def test_whoever_holds_grad_sees_the_sum():
    w = lt.ones(3, requires_grad=True)
    (w * 2).sum().backward()
    held = w.grad
    (w * 3).sum().backward()
    assert w.grad is held
    assert held.tolist() == [5.0, 5.0, 5.0]


@pytest.mark.parametrize("dtype", [lt.float16, lt.bfloat16], ids=str)
def test_half_precision_adds_in_pieces(dtype, monkeypatch):
    monkeypatch.setattr(thresholds, "TILE", 512)
    n = 8192
    w = lt.linspace(-1, 1, n).to(dtype).requires_grad_()
    first, second = (lt.linspace(-3, 7, n).mul(k).to(dtype) for k in (1.0, 0.3))
    w.backward(first)
    extra = extra_of(lambda: w.backward(second))
    assert extra <= 3 * 512 * 4  # both and the sum, in float32
    assert w.grad.tolist() == (first + second).tolist()


# On their way


def made(*values: float) -> lt.Tensor:
    """A new tensor that only the caller holds."""
    return lt.tensor(list(values))


def arrive(entry: list[Any], make: Any, create: bool = False) -> int:
    """Let a gradient arrive as the engine does, by one name; where the sum then is."""
    with lt.set_grad_enabled(create):
        g = make()
        add_arriving(entry, 0, g, create)
        g = None
    return entry[0].data_ptr()


def test_a_sum_goes_into_the_pending_gradient_if_nobody_else_holds_it():
    entry = [made(1.0, 2.0)]
    place = entry[0].data_ptr()
    assert extra_of(lambda: arrive(entry, lambda: made(3.0, 4.0))) == 8
    assert (entry[0].tolist(), entry[0].data_ptr()) == ([4.0, 6.0], place)
    arrive(entry, lambda: made(1.0, 1.0))
    assert (entry[0].tolist(), entry[0].data_ptr()) == ([5.0, 7.0], place)


SEEN = {
    "by a name": lambda t: t,
    "by a view": lambda t: t[1:],
    "by an array": lambda t: t.numpy(),
    "by a detached twin": lambda t: t.detach(),
}


@pytest.mark.parametrize("how", SEEN)
def test_a_pending_gradient_that_others_see_stays_and_the_arriving_one_takes_the_sum(how):
    entry = [made(1.0, 2.0)]
    seen = SEEN[how](entry[0])
    place = entry[0].data_ptr()
    new = [0]

    def make():
        g = made(3.0, 4.0)
        new[0] = g.data_ptr()
        return g

    assert arrive(entry, make) == new[0] != place
    assert entry[0].tolist() == [4.0, 6.0]
    assert seen.tolist() == ([2.0] if "view" in how else [1.0, 2.0])


@pytest.mark.parametrize("how", SEEN)
def test_two_gradients_that_others_see_make_a_third(how):
    entry, given = [made(1.0, 2.0)], made(3.0, 4.0)
    seen = [SEEN[how](t) for t in (entry[0], given)]
    places = {entry[0].data_ptr(), given.data_ptr()}
    assert arrive(entry, lambda: given) not in places
    assert entry[0].tolist() == [4.0, 6.0]
    assert given.tolist() == [3.0, 4.0]
    assert seen[1].tolist() == ([4.0] if "view" in how else [3.0, 4.0])


def test_a_gradient_that_is_its_own_summand_is_added_to_itself():
    g = made(1.0, 2.0)
    entry = [g]
    arrive(entry, lambda: g)
    assert (entry[0].tolist(), g.tolist()) == ([2.0, 4.0], [1.0, 2.0])


def test_a_gradient_spread_over_a_shape_is_never_written():
    entry = [lt.ones(1).expand(3)]
    arrive(entry, lambda: made(1.0, 2.0, 3.0))
    assert entry[0].tolist() == [2.0, 3.0, 4.0]
    entry = [made(1.0, 2.0, 3.0)]
    place = entry[0].data_ptr()
    assert arrive(entry, lambda: lt.ones(1).expand(3)) == place
    assert entry[0].tolist() == [2.0, 3.0, 4.0]


def test_a_gradient_that_the_graph_keeps_is_never_written():
    x = lt.ones(2, requires_grad=True)
    entry = [made(1.0, 2.0)]
    kept = x * entry[0]  # saves it for backward
    arrive(entry, lambda: made(3.0, 4.0))
    kept.sum().backward()
    assert x.grad.tolist() == [1.0, 2.0]


def test_a_sum_that_is_part_of_a_graph_is_recorded():
    x = lt.ones(2, requires_grad=True)
    entry = [x * 2]
    arrive(entry, lambda: x * 3, create=True)
    assert entry[0].tolist() == [5.0, 5.0]
    entry[0].sum().backward()
    assert x.grad.tolist() == [5.0, 5.0]


def test_threads_that_share_a_leaf_lose_no_gradient():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads meet wherever they can
    try:
        for _ in range(200):
            w, x = lt.zeros(7, requires_grad=True), lt.ones(7)
            together = threading.Barrier(4)

            def work():
                losses = [(w * x).sum() for _ in range(3)]
                together.wait()
                for loss in losses:
                    loss.backward()

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert w.grad.tolist() == [12.0] * 7
    finally:
        sys.setswitchinterval(before)


# In a backward pass


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("uses", [2, 3, 5])
def test_a_weight_used_often_has_two_buffers(uses, device):
    w = lt.ones(SIDE, SIDE, device=device, requires_grad=True)
    x = lt.ones(2, SIDE, device=device)
    for _ in range(uses):
        x = x @ w
    loss = x.sum()
    del x
    # the sum so far, a further gradient, and at most four gradients of results
    assert 2 * WEIGHT <= extra_of(loss.backward, device) <= 2 * WEIGHT + 4 * 2 * SIDE * 4
