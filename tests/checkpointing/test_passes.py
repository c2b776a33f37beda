"""Backward passes through regions: what lives while they run, and what is left when they fail."""

from __future__ import annotations

import threading

import pytest

import lowtide as lt
from tests.checkpointing.twice import assert_same, bits, gradients, live, message_of, plain

pytestmark = pytest.mark.usefixtures("leak_check")


def leaf(*shape):
    return lt.randn(*shape, requires_grad=True)


def test_a_region_comes_back_once_and_falls():
    seen = []

    def chain(x):
        for _ in range(8):
            x = x.tanh()
            x.register_hook(lambda g: seen.append((live() - before) // 400))
        return x

    x = leaf(100)
    before = live()
    lt.checkpoint(chain, x).backward(lt.ones(100))
    # First the output and its gradient, then a gradient on its way; then seven values come back,
    # and each node that has run lets one of them go.
    assert seen == [2, 3, 9, 8, 7, 6, 5, 4]


def test_a_backward_that_runs_out_of_memory_can_be_repeated():
    x, w = leaf(10, 10), leaf(10, 10)

    def f(x):
        for _ in range(6):
            x = (x @ w).tanh()
        return x.sum()

    y = lt.checkpoint(f, x)
    expected = bits(lt.autograd.grad(f(x), [x, w]))
    before = live()
    lt.set_memory_limit(before + 2000, "cpu")
    try:
        message_of(lambda: lt.autograd.grad(y, [x, w], retain_graph=True), lt.OutOfMemoryError)
        assert live() == before
    finally:
        lt.set_memory_limit(None, "cpu")
    assert bits(lt.autograd.grad(y, [x, w], retain_graph=True)) == expected
    assert live() == before


def test_a_saved_value_that_is_looked_at_is_not_kept():
    x = leaf(100)
    y = lt.checkpoint(lambda x: x.exp().sin().exp().sin(), x)
    before = live()
    expected = x.exp().sin().exp()
    assert bits(y.grad_fn._saved_input) == bits(expected)
    del expected
    assert live() == before
    y.sum().backward()


def test_a_backward_inside_a_hook_of_another():
    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)
        inner = []

        def f(x):
            h = (x @ w).tanh()
            return h.exp().sin(), (h * h).cos().exp()

        def hook(g):
            inner.extend(lt.autograd.grad(second, [x, w], retain_graph=True))

        a, b = region(f, x)
        c, second = a * 2, b.sum()
        c.register_hook(hook)
        return gradients(c.sin(), x, w), inner

    assert_same(step)


def test_backward_runs_in_another_thread():
    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)
        y = region(lambda x: ((x @ w).tanh() * x).exp().sin(), x)
        found = []
        worker = threading.Thread(target=lambda: found.extend(gradients(y, x, w)))
        worker.start()
        worker.join()
        return found

    assert_same(step)


def test_two_threads_have_regions_of_their_own():
    together = threading.Barrier(2, timeout=600)
    leaves = [(leaf(8, 8), leaf(8, 8)) for _ in range(2)]

    def step(k, region, wait):
        x, w = leaves[k]
        x.grad = w.grad = None

        def f(x):
            h = (x @ w).tanh()
            wait()
            return (h @ w).exp() if k else h.exp().sin()

        y = region(f, x)
        wait()
        return bits(gradients(y, x, w))

    def work(k):
        found[k] = [step(k, lt.checkpoint, together.wait) for _ in range(5)]

    found = {}
    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k in range(2):
        assert found[k] == [step(k, plain, lambda: None)] * 5


@pytest.mark.parametrize("kind", [lt.optim.SGD, lt.optim.AdamW, lt.optim.Adagrad])
def test_a_region_around_many_training_steps_holds_nothing_of_them(kind):
    def step(region):
        layer = lt.nn.Linear(8, 8)
        more = {"momentum": 0.9} if kind is lt.optim.SGD else {}
        optimizer = kind(layer.parameters(), lr=0.1, **more)
        found = []

        def steps():
            for _ in range(4):
                loss = layer(lt.randn(4, 8)).exp().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(live())

        region(steps) if region is plain else lt.checkpointing()(steps)()
        assert found[0] == found[-1]
        return list(layer.parameters())

    assert_same(step)


def test_one_region_serves_two_threads_at_a_time():
    entered, left = threading.Event(), threading.Event()
    shared = lt.checkpointing()
    x = leaf(100)
    found = {}

    def first():
        before = live()
        with shared:
            entered.set()
            left.wait(600)  # the other leaves while this one is inside
            y = x.exp().sin()
        z = x.exp().sin()
        found["kept"] = live() - before  # what z keeps; nothing of y
        (y + z).sum().backward()

    def second():
        entered.wait(600)
        with shared:
            found["second"] = x.exp().sin()
        left.set()

    threads = [threading.Thread(target=f) for f in (first, second)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    other = found.pop("second")
    assert found == {"kept": 3 * 400 + other.nbytes}
    other.sum().backward()
    assert lt.equal(x.grad, 3 * (x.exp().cos() * x.exp()).detach())


def test_two_threads_walk_one_graph():
    x, w = leaf(20, 20), leaf(20, 20)

    def f(x):
        for _ in range(10):
            x = (x @ w).tanh()
        return x.sum()

    expected = bits(lt.autograd.grad(f(x), [x, w]))
    y = lt.checkpoint(f, x)
    found, together = [], threading.Barrier(2, timeout=600)

    def walk():
        together.wait()
        for _ in range(5):
            found.append(bits(lt.autograd.grad(y, [x, w], retain_graph=True)))

    before = live()
    workers = [threading.Thread(target=walk) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [expected] * 10
    del workers, worker
    assert live() == before


def test_anomaly_mode_finds_the_line_and_changes_nothing():
    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)
        with lt.autograd.detect_anomaly():
            y = region(lambda x: ((x @ w).tanh() * x).exp(), x)
            return gradients(y, x, w)

    assert_same(step)

    x = lt.zeros(2, requires_grad=True)
    with lt.autograd.detect_anomaly():
        y = lt.checkpoint(lambda x: x.exp().sub(1).sqrt().mul(0), x)
        message = message_of(lambda: y.sum().backward(), RuntimeError)
    assert "SqrtBackward0" in message


def test_a_loss_summed_over_steps_lets_regions_go():
    x = leaf(100)
    before = live()
    total = 0.0
    for _ in range(3):
        y = lt.checkpoint(lambda x: x.exp().sin(), x).sum()
        y.backward()
        total += y.item()
        x.grad = None
        del y
        assert live() == before
    assert isinstance(total, float)


def test_retained_gradients_and_inputs_of_backward():
    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)
        inside = []

        def f(x):
            h = (x @ w).tanh()
            inside.append(h)
            return (h * h).exp()

        y = region(f, x)
        h = inside.pop()
        y.sum().backward(inputs=[h, w], retain_graph=True)
        first = [h.grad, w.grad.clone()]
        (g,) = lt.autograd.grad(y, h, lt.ones_like(y), retain_graph=True)
        return first, g, gradients(y, x, w)

    assert_same(step)


def test_a_retained_graph_lets_go_of_what_was_read_before_the_pass_ends() -> None:
    x = lt.randn(50, 50, requires_grad=True)
    start = x * 2
    y = lt.checkpoint(lambda v: v.tanh().tanh().tanh().tanh(), start)
    seen = []
    start.register_hook(lambda g: seen.append(lt.memory_allocated()))
    before = lt.memory_allocated()
    y.backward(lt.ones_like(y), retain_graph=True)
    # The gradient that arrived and the one that the hook is shown; none of the four values.
    assert seen == [before + 2 * x.nbytes]


def test_a_value_that_is_kept_does_not_keep_what_it_was_computed_from() -> None:
    x = lt.randn(50, 50, requires_grad=True)
    lt.reset_peak_memory_stats()
    before = lt.memory_allocated()
    with lt.checkpointing(lt.checkpointing.policies.everything_saveable):
        y = x
        for _ in range(20):
            y = y + 1  # saves nothing
    assert lt.max_memory_allocated() - before == 2 * x.nbytes
