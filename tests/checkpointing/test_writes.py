"""Writes in place: inside a region they are replayed, into what flowed in they are refused late."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.errors import GradientError
from tests.checkpointing.twice import assert_same, copying, gradients, live, message_of, plain

F = nn.functional
pytestmark = pytest.mark.usefixtures("leak_check")


def leaf(*shape):
    return lt.randn(*shape, requires_grad=True)


def chained(x, w):
    h = x @ w
    h.relu_().add_(x)
    h.mul_(h)
    h += 1
    return h.exp()


def into_views(x, w):
    h = x * w
    row, column = h[0], h[:, 1]
    row.mul_(2)
    column.add_(row)
    h[1:3, ::2] = x[1:3, ::2].sin()
    h.view(-1)[3:7].exp_()
    return h * row * column.sum()


def read_between_writes(x, w):
    h = x * 1
    a = h.exp()  # saves its output
    h.mul_(w)
    b = h * w  # saves h as it is now
    h.add_(a)
    c = h.sin()  # and again
    h.zero_()
    return a * b + c * h.cos()


def overwritten_after_use(x, w):
    h = (x @ w).tanh()
    y = h + 1  # saves nothing, and is needed again
    h.fill_(0.5)
    return y.exp() * h


def masks(x, w):
    h = x @ w
    h.masked_fill_(h > 0.5, 0.25)
    h[h < -0.5] = -0.25
    h[[0, 2]] = h[[2, 0]] * w[[0, 1]]
    h.index_add_(0, lt.tensor([1, 1]), w[:2]).index_fill_(1, lt.tensor([0]), 2.0)
    return h.sin()


def copies(x, w):
    h = lt.zeros(4, 4)
    for k in range(4):
        h[k] = (x[k] * w[k]).tanh()
    other = lt.empty(4, 4)
    other.copy_(h * x)
    g = other.exp()
    other[0] = 3.0
    other[1:].copy_(h[1:])
    return g * other.cos()


def results_elsewhere(x, w):
    buffer = lt.empty(4, 4)
    with lt.no_grad():
        lt.mul(x, w, out=buffer)
        first = buffer.exp()
        lt.add(first, 1, out=buffer)
    return (x + first).sin() * buffer


def shape_in_place(x, w):
    h = (x @ w).tanh()
    h.t_()
    g = h.exp()
    h.unsqueeze_(0).squeeze_(0).mul_(x)
    return g * h


def with_conversion(x, w):
    h = x * w
    n = (h * 4).to(lt.int32)
    n.mul_(n).clamp_(max=9)
    h.mul_(n).add_(lt.ones(4, dtype=lt.float16))
    return h.sin()


def overlapping(x, w):
    h = x * w
    g = h * h  # keeps h as it was
    h[:, 1].add_(h[0].clone())
    h[:, 2].mul_(h[:, 1])
    return g * h.exp()


def detached(x, w):
    h = (x * w).exp()
    h.detach().mul_(2)
    with lt.no_grad():
        h += 1
    return (h.sum() * x).sin() + h.detach().cos()


def rows_and_columns(x, w):
    h = x * w
    g = h.sin()  # keeps h
    h[:, 1].mul_(h[0])  # reads what it writes
    h[2].add_(h[:, 3])
    return g * h.cos()


def exchanged(x, w):
    h, k = x * w, (x + w).tanh()
    g = h.exp()
    h.data = k.detach()
    with lt.no_grad():
        k.set_((w * 2).exp())
    return g * h.sin() + x * k.detach()


def dropped_in_place(x, w):
    h = F.dropout(x @ w, 0.5, inplace=True)
    h = F.leaky_relu(h, 0.1, inplace=True)
    h = F.rrelu(h, training=True, inplace=True)
    return F.alpha_dropout(h, 0.3, inplace=False).exp()


def random_in_place(x, w):
    noise = lt.empty(4, 4).normal_()
    h = x * noise.uniform_() * lt.empty(4).bernoulli_(0.5)
    h.add_(lt.zeros(4, 4).exponential_())
    return h.exp() * lt.empty(4, 4).random_(5).log_normal_()


CASES = [
    chained, into_views, read_between_writes, overwritten_after_use, masks, copies,
    results_elsewhere, shape_in_place, with_conversion, overlapping, detached, rows_and_columns,
    dropped_in_place, random_in_place,
]  # fmt: skip


@pytest.mark.parametrize("nested", [False, True], ids=["one region", "nested"])
def test_writes_inside_are_the_same(nested):
    for case in CASES:

        def step(region, case=case):
            x, w = leaf(4, 4), leaf(4, 4)
            y = region(lambda x, w: region(case, x.sin(), w) if nested else case(x, w), x, w)
            return y, gradients(y, x, w)

        print(case.__name__)  # shown if it fails
        assert_same(step, copying)


def test_writes_inside_keep_nothing():
    def kept_by(case):
        x, w = leaf(4, 4), leaf(4, 4)
        before = live()
        y = lt.checkpoint(case, x, w)
        after = live()
        y.sum().backward()
        return after - before - y.nbytes

    kept = {case.__name__: kept_by(case) for case in CASES}
    # The indices of masks come from Python: nothing could make them again.
    assert {name: n for name, n in kept.items() if n} == {"masks": 72}


def test_the_graph_can_be_walked_twice():
    for case in CASES:

        def step(region, case=case):
            x, w = leaf(4, 4), leaf(4, 4)
            y = region(case, x, w).sum()
            found = []
            for _ in range(2):
                y.backward(retain_graph=True)
                found += [x.grad.clone(), (x if w.grad is None else w).grad.clone()]
            return found

        assert_same(step, copying)


def test_relu_after_a_convolution():
    def step(region):
        x, layer = leaf(2, 3, 6, 6), nn.Conv2d(3, 4, 3)
        model = nn.Sequential(layer, nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3), nn.ReLU6(True))
        y = region(model, x)
        return y, gradients(y, x, *model.parameters())

    assert_same(step)


def test_a_write_that_plain_refuses_is_refused():
    def f(x):
        h = x.exp()  # keeps its output
        y = h * 2
        h.add_(1)
        return y * h

    def kept_outside(region):
        h = (x * 1).exp()
        y = region(lambda h: h.sin(), h)
        h.add_(1)
        y.sum().backward()

    x = leaf(3)
    for region in (plain, lt.checkpoint):
        message = message_of(partial(kept_outside, region), GradientError)
        assert re.search(r"modified by an inplace operation \(add_ at|operation \(add_ at", message)
    message = message_of(lambda: f(x).sum().backward(), GradientError)
    assert "modified by an inplace operation" in message
    # Recomputed, the value is what it was: what must fail plain need not fail here.
    y = lt.checkpoint(f, x)
    y.sum().backward()
    e = np.exp(x.detach().numpy())
    np.testing.assert_allclose(x.grad.numpy(), 2 * e * (e + 1) + 2 * e * e, rtol=1e-6)


def test_numbers_written_by_numpy_are_kept():
    def f(x):
        h = lt.empty(2, 3)
        h.numpy()[:] = 0.25
        g = x.detach().clone()
        np.sin(g.numpy(), out=g.numpy())
        k = lt.zeros(2, 3)
        shared = np.from_dlpack(k)  # older NumPy makes it read-only
        if shared.flags.writeable:
            shared[...] = 2.0
        np.asarray(k)[...] += 3.0
        n = lt.zeros(2, 3)
        n.array[...] = 4.0
        return (x * h).exp() * g * k * n

    def step(region):
        x = leaf(2, 3)
        y = region(f, x)
        return y, gradients(y, x)

    assert_same(step)


# What flowed in


def test_a_write_into_what_flowed_in_names_both_places():
    x, w = leaf(3), lt.ones(3)
    with lt.checkpointing():
        y = (x + w).exp().sin()
    w.mul_(2)
    message = message_of(lambda: y.sum().backward(), GradientError)
    assert re.search(
        r"region begun at .*test_writes\.py:\d+ .* add read shape \(3,\) at version 0, .* "
        r"operation \(mul_ at .*test_writes\.py:\d+\) has made it version 1",
        message,
    )


def test_a_write_into_what_nobody_must_read_again_is_no_error():
    def step(region):
        x, w = leaf(3), lt.ones(3)
        y = region(lambda x: (x * 2).exp() + w, x)
        w.mul_(2)
        return y, gradients(y, x)

    assert_same(step)


def test_an_optimizer_step_between_forward_and_backward_is_an_error():
    layer = nn.Linear(3, 3)
    optimizer = lt.optim.SGD(layer.parameters(), 0.1)
    y = lt.checkpoint(nn.Sequential(layer, nn.Tanh(), nn.Linear(3, 1)), lt.ones(2, 3))
    z = lt.checkpoint(nn.Sequential(layer, nn.Tanh(), nn.Linear(3, 1)), lt.ones(2, 3))
    y.sum().backward()
    optimizer.step()
    message = message_of(lambda: z.sum().backward(), GradientError)
    assert re.search(
        r"region begun at .* linear read shape \(3, 3\) at version 1, .* "
        r"\(step at .*test_writes.py:293\) .* version 2 since",
        message,
    )


def test_a_region_may_write_into_what_flowed_in():
    def f(h, w):
        h.mul_(w)  # keeps h as it was, for the gradient of w
        g = h + 1
        h[0] = w[1]
        return h.sin() + g

    def step(region):
        x, w = leaf(3, 4), leaf(3, 4)
        h = x * 2
        y = region(f, h, w)
        return y, h, gradients(y * h, x, w)

    assert_same(step)


def test_a_region_keeps_a_copy_of_what_it_has_read_and_overwrites():
    def f(h, row):
        g = h.exp().sin() + h[:, 1:2].t().exp().cos()
        h.mul_(2)
        k = h.exp().sin() * row.exp().sin()
        h.t_()
        k = k * h.cos().exp().sum()
        row.zero_()
        return g * k

    def step(region):
        x = leaf(3, 3)
        h = x * 2
        y = region(f, h, h[1].detach().clone())
        return y, h, gradients(y, x)

    assert_same(step, copying)
    h = leaf(3, 4) * 2
    before = live()
    y = lt.checkpoint(lambda h: h.exp().sin() * h.mul_(2).detach(), h)
    assert live() - before == y.nbytes + 48  # h as it was; as it is now, it is the caller's
    y.sum().backward()


def test_an_activation_in_place_at_the_start_of_a_region():
    for make in (nn.SiLU, nn.Mish, nn.Hardswish, nn.ReLU, nn.ELU, nn.Hardtanh, nn.CELU):

        def step(region, make=make):
            x = leaf(2, 3)
            model = nn.Sequential(make(inplace=True), nn.Linear(3, 2))
            return gradients(region(model, x * 2), x, *model.parameters())

        assert_same(step)


def test_a_buffer_written_inside_and_read_before_and_after():
    def f(x, state):
        state.add_(x.detach().mean())
        h = x * 2
        state.mul_(0.5)
        return h.exp().sin()

    def step(region):
        x, state = leaf(3), lt.ones(())
        y = region(f, x, state)
        y = region(f, y, state)
        return y, state, gradients(y, x)

    assert_same(step)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_updated_once(momentum):
    def step(region):
        model = nn.Sequential(
            nn.Conv2d(2, 3, 1),
            nn.BatchNorm2d(3, momentum=momentum),
            nn.ReLU(True),
            nn.Conv2d(3, 2, 1),
            nn.BatchNorm2d(2, momentum=momentum),
            nn.Sigmoid(),
        )
        x = leaf(2, 2, 3, 3)
        found = []
        for k in range(3):  # gradients of two forwards accumulate in the last
            y = region(model, x) if k < 2 else region(model, x) * region(model, x * 2)
            found += [y, gradients(y, x, *model.parameters())]
        model.eval()
        y = region(model, x)
        return found, gradients(y, x), dict(model.named_buffers())

    assert_same(step)


def test_running_averages_may_change_before_a_replay_reads_them():
    def step(region):
        norm = nn.BatchNorm1d(3).eval()
        x = leaf(4, 3)
        y = region(lambda x: norm(x).exp().sin(), x)
        norm.train()
        norm(x)  # outside of regions: modules' state is theirs to write
        return y, gradients(y, x, *norm.parameters()), dict(norm.named_buffers())

    assert_same(step)


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
@pytest.mark.parametrize("second", ["in a region", "outside"])
def test_a_module_may_change_its_state_in_each_of_two_forwards(norm, second):
    """The critic of a GAN sees real and made-up data before backward, and iterates each time."""

    def step(region):
        critic = nn.Sequential(norm(nn.Linear(4, 4)), nn.Tanh(), norm(nn.Linear(4, 1)))
        x = leaf(3, 4)
        real = region(critic, x)
        fake = region(critic, x * 2) if second == "in a region" else critic(x * 2)
        found = gradients(real - fake, x, *critic.parameters())
        return real, fake, found, dict(critic.named_buffers())

    assert_same(step)


def test_a_region_leaves_others_a_copy_of_what_it_overwrites():
    def step(region):
        x = leaf(3, 4)
        h = x * 2
        y = region(lambda h: (h + 1).exp(), h)
        z = region(lambda h: (h[0] + 1).exp(), h)
        w = region(lambda h: h.add_(1).tanh(), h)
        return y, w, gradients(y * z * w, x)

    assert_same(step)
    h = leaf(3, 4) * 2
    y, z = (lt.checkpoint(lambda h: (h + 1).exp().sin(), h) for _ in range(2))
    before = live()
    w = lt.checkpoint(lambda h: h.add_(1).tanh().sin(), h)
    assert live() - before == w.nbytes + 48  # one copy for both
    (y + z + w).sum().backward()


def test_a_copy_that_does_not_fit_leaves_all_as_it_was():
    x = leaf(2000)
    h = x * 2
    y = lt.checkpoint(lambda h: (h + 1).exp().sin(), h)
    before = h.detach().clone()
    old = lt.set_memory_limit(lt.memory_allocated() + 4000, "cpu")
    try:
        message_of(lambda: lt.checkpoint(lambda h: h.add_(1), h), lt.OutOfMemoryError)
    finally:
        lt.set_memory_limit(old, "cpu")
    assert lt.equal(h, before)
    y.sum().backward()
