"""Regions in regions, graphs walked more than once, parts of a graph, second gradients."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

import lowtide as lt
from lowtide import nn
from tests.checkpointing.twice import assert_same, gradients, live, message_of, peak_of, plain

pytestmark = pytest.mark.usefixtures("leak_check")


def leaf(*shape, dtype=None):
    return lt.randn(*shape, dtype=dtype, requires_grad=True)


def block(x, w):
    h = (x @ w).tanh()
    return (h * h.exp()).sin() + x


def halves(region, n, x, w):
    """A chain of ``n`` blocks: each half a region of its own, and so on."""
    if n == 1:
        return block(x, w)
    x = region(halves, region, n // 2, x, w)
    return region(halves, region, n - n // 2, x, w)


def firsts(region, n, x, w):
    """The same with regions around first halves only."""
    if n == 1:
        return block(x, w)
    x = region(firsts, region, n // 2, x, w)
    return firsts(region, n - n // 2, x, w)


@pytest.mark.parametrize("build", [halves, firsts], ids=lambda f: f.__name__)
@pytest.mark.parametrize("n", [2, 5, 16])
def test_recursive_nesting(build, n):
    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)
        y = region(build, region, n, x, w)
        return y, gradients(y, x, w)

    assert_same(step)


def test_values_cross_regions_in_all_directions():
    def inner(a, b):
        h = (a * b).exp()
        return h.sin(), h, (a + h).cos()

    def middle(region, x, w):
        u = x.tanh() * w
        a, b, c = region(inner, u, w)
        d, e, f = region(inner, a * c, u)  # of a sibling, and of the region around
        with lt.no_grad():
            shift = region(inner, b, d)[0]
        return a * d.exp() + e * b, f.sin() * u, b, shift

    def outer(region, x, w):
        p, q, r, s = region(middle, region, x, w)
        t, _, _, _ = region(middle, region, p * r, w.exp())
        g, h, _ = region(inner, q, t)
        return (g * p).sin() * h + r * s, q  # inner results outside, and out of all

    def step(region):
        x, w = leaf(3, 4), leaf(3, 4)
        y, q = region(outer, region, x, w)
        z = (y.exp() * q).sin()
        return y, q, gradients(z, x, w)

    assert_same(step)


def test_a_sequence_of_nested_regions_and_plain_code_between():
    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)

        def outer(x):
            kept = []
            for _ in range(3):
                x = region(block, x, w)
                kept.append(x)
                x = block(x, w)
            return x, kept[1]

        y, k = region(outer, x)
        y, _ = region(outer, y * k)
        return y, gradients(y, x, w)

    assert_same(step)


def test_deep_nesting_needs_no_stack():
    def nest(region, depth, x):
        if depth == 0:
            return x
        y = region(nest, region, depth - 1, x.sin())
        return y.cos() if depth % 50 == 0 else y

    def step(region):
        x = leaf(2)
        y = region(nest, region, 300, x)
        return y, gradients(y, x)

    assert_same(step)


def test_many_regions_open_at_once_need_no_stack():
    def step(region):
        x = leaf(2)
        with ExitStack() as regions:
            y = x
            for _ in range(2000):
                if region is not plain:
                    regions.enter_context(lt.checkpointing())
                y = y.sin()
        return y, gradients(y, x)

    assert_same(step)


def test_a_region_open_around_backward():
    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)

        def training(x):
            found = []
            for _ in range(2):
                y = block(x, w)
                y = region(block, y, w)
                found.append(gradients(y, x, w))
                with lt.no_grad():
                    x -= 0.1 * x.grad
                x.grad = None
            return found

        return region(training, x), x

    assert_same(step)


# More than one walk


def test_walking_twice_gives_the_same_and_frees_between():
    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)
        y = region(firsts, region, 6, x, w)
        y.sum().backward(retain_graph=True)
        first = [x.grad.clone(), w.grad.clone()]
        y.sum().backward(retain_graph=True)
        return y, first, gradients(y, x, w)

    assert_same(step)
    x, w = leaf(30, 40), leaf(40, 40)
    y = lt.checkpoint(firsts, lt.checkpoint, 6, x, w).sum()
    before = live()
    y.backward(retain_graph=True)
    x.grad = w.grad = None
    assert live() == before
    first = peak_of(lambda: y.backward(retain_graph=True))
    x.grad = w.grad = None
    assert live() == before
    assert peak_of(lambda: y.backward(retain_graph=True)) == first
    x.grad = w.grad = None
    assert live() == before


def test_two_losses_of_one_region():
    def f(x, w):
        h = block(x, w)
        return (h * w[0]).sin(), (h.exp() * x).cos()

    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)
        a, b = region(f, x, w)
        a.sum().backward(retain_graph=True)
        first = [x.grad.clone(), w.grad.clone()]
        return first, gradients(b, x, w)

    assert_same(step)


class Counter:
    """Counts the kernels that run again, by the name of their op."""

    def __init__(self, monkeypatch):
        from lowtide.framework.autograd.remat import values

        self.names = []
        for kind in (values.OpCall, values.WriteCall, values.FillCall):
            monkeypatch.setattr(kind, "run", self._counting(kind.run))

    def _counting(self, run):
        def counted(maker, *args):
            self.names.append(maker.name)
            return run(maker, *args)

        return counted


def test_only_what_is_wanted_runs_again(monkeypatch):
    counter = Counter(monkeypatch)
    x, w = leaf(3, 4), leaf(4, 4)
    y = lt.checkpoint(lambda x: ((x @ w).tanh() + 1).exp().sum(), x)
    y.backward()
    # The matrix product and tanh bring back what tanh keeps; exp kept its output: tanh + 1.
    assert counter.names == ["matmul", "tanh", "add", "exp"]


def test_what_is_still_alive_does_not_run_again(monkeypatch):
    counter = Counter(monkeypatch)
    x = leaf(3)
    alive = []

    def f(x):
        h = x.exp()
        alive.append(h)
        return h.sin().exp().sum()

    lt.checkpoint(f, x).backward()
    assert counter.names == ["sin", "exp"]
    alive.clear()


def test_gradients_of_chosen_inputs_recompute_no_more_than_they_need(monkeypatch):
    counter = Counter(monkeypatch)
    x, w = leaf(3), leaf(3)

    def f(x, w):
        return x.sin().exp().cos(), w.tan().exp().cos()

    def step(region):
        a, b = region(f, x, w)
        loss = (a + b).sum()
        (gx,) = lt.autograd.grad(loss, x, retain_graph=True)
        if region is not plain:
            assert sorted(counter.names) == ["exp", "sin"]
            counter.names.clear()
        (gw,) = lt.autograd.grad(loss, w)
        if region is not plain:
            assert sorted(counter.names) == ["exp", "tan"]
        return gx, gw

    assert_same(step)


def test_a_loss_of_one_branch_recomputes_that_branch(monkeypatch):
    counter = Counter(monkeypatch)
    x = leaf(3)
    a, b = lt.checkpoint(lambda x: (x.sin().exp().cos(), x.tan().exp().cos()), x)
    a.sum().backward()
    assert sorted(counter.names) == ["exp", "sin"]
    counter.names.clear()
    b.sum().backward()
    assert sorted(counter.names) == ["exp", "tan"]


# Second gradients


def test_second_gradients():
    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)
        y = region(firsts, region, 4, x, w)
        first = lt.autograd.grad(y.sin().sum(), [x, w], create_graph=True)
        penalty = sum((g * g).sum() for g in first)
        penalty.backward()
        return list(first), x.grad, w.grad

    assert_same(step)


def test_gradgradcheck_through_nested_regions():
    x, w = leaf(2, 3, dtype=lt.float64), leaf(3, 3, dtype=lt.float64)

    def f(x, w):
        return lt.checkpoint(firsts, lt.checkpoint, 3, x, w)

    assert lt.autograd.gradcheck(f, (x, w))
    assert lt.autograd.gradgradcheck(f, (x, w))


def test_a_gradient_inside_a_region():
    def f(x, w):
        y = block(x, w)
        (g,) = lt.autograd.grad(y.sum(), w, create_graph=True)
        return (y * y.sin()).sum() + (g * g).sum()

    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)
        y = region(f, x, w)
        y.backward()
        return y, x.grad, w.grad

    assert_same(step)


def test_jacobians_and_transforms_of_a_region():
    def step(region):
        x, w = leaf(3), leaf(3, 3)

        def f(x):
            return region(lambda x: (x @ w).tanh().exp(), x)

        jacobian = lt.autograd.functional.jacobian(f, x, create_graph=True)
        hessian = lt.autograd.functional.hessian(lambda x: f(x).sum(), x)
        return jacobian, hessian, gradients(jacobian, w)

    assert_same(step)


def test_the_graph_freed_by_a_backward_says_so():
    x, w = leaf(3, 4), leaf(4, 4)
    y = lt.checkpoint(block, x, w).sum()
    y.backward()
    assert "freed by an earlier backward" in message_of(y.backward, RuntimeError)


def test_gradients_accumulate_over_forwards_that_are_open_together():
    def step(region):
        x, layer = leaf(3, 4), nn.Linear(4, 4)
        model = nn.Sequential(layer, nn.Dropout(0.5), layer, nn.Tanh())
        first, second = region(model, x), region(model, x * 2)
        return gradients(second, x), gradients(first, x, *layer.parameters())

    assert_same(step)
