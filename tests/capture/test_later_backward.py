"""Between a replayed forward and its backward: writes, errors, threads, memory, callers' graphs."""

from __future__ import annotations

import gc
import math
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.nn import functional as F
from tests.capture.nets import (
    Block,
    bits,
    data,
    pair,
    run_both,
    state,
    usual,
    warm,
)
from tests.capture.steps import Setup


def test_a_backward_that_fails_half_way_has_used_its_graph() -> None:
    net = lt.compile(Block(512))
    x = data(512)
    for _ in range(3):
        net(x).square().mean().backward()
    net.zero_grad()
    out = net(x)
    g = lt.ones_like(out)
    held = lt.memory_allocated()
    lt.set_memory_limit(held)
    try:
        with pytest.raises(lt.MemoryLimitError):
            out.backward(g)
    finally:
        lt.set_memory_limit(math.inf)
    gc.collect()  # the error's frames
    assert lt.memory_allocated() < held
    with pytest.raises(lt.GradientError, match="second time"):
        out.backward(g)
    net(x).square().mean().backward()


def test_threads_share_a_compiled_model() -> None:
    lt.manual_seed(0)
    net = Block(64).eval()
    compiled = lt.compile(net)
    xs = [data(64) + k for k in range(4)]
    expected = [lt.autograd.grad(net(x).square().sum(), net.outer.weight)[0] for x in xs]
    for _ in range(3):
        lt.autograd.grad(compiled(xs[0]).square().sum(), net.outer.weight)
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(40):
            (g,) = lt.autograd.grad(compiled(xs[k]).square().sum(), net.outer.weight)
            if bits(g) != bits(expected[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
    assert compiled._compiled.replays > 1


def test_explain_says_that_a_backward_is_awaited() -> None:
    compiled = lt.compile(Block())
    text = lt.compiler.explain(compiled, data())
    assert text.startswith("Block: 0 recorded")
    net = lt.compile(Block())
    out = [net(data()) for _ in range(2)]
    assert "its backward will be when it runs" in net._compiled.explain()
    out[1].sum().backward()
    assert "1 recorded" in net._compiled.explain()
    assert net._compiled.quiet is False


def test_a_function_that_would_compute_something_else_does_not_run_again() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(lt.ones(6))
            self.register_buffer("count", lt.zeros(()))

        def forward(self, x: Any) -> Any:
            self.count.add_(1)
            return x * self.weight * self.count

    net = lt.compile(Counts(), fullgraph=True)
    for _ in range(4):
        net(data()).square().mean().backward()
    out = net(data())
    with pytest.raises(RuntimeError, match="from tensors that it also writes"):
        out.sum().backward()
    assert net.count.item() == 5


def test_a_mode_that_changes_before_backward_is_no_second_call() -> None:
    net = lt.compile(Block(), fullgraph=True)
    for _ in range(4):
        net(data()).square().mean().backward()
    out = net(data())
    net.eval()
    with pytest.raises(RuntimeError, match="training has changed since"):
        out.sum().backward()


@pytest.mark.parametrize("view", [True, False])
def test_a_call_that_is_not_recorded_belongs_to_the_callers_graph(view: bool) -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        if view:
            return x.view(-1)  # a view of what the caller has
        kept.append(x * 2)
        return x.sin()

    compiled = lt.compile(f)
    compiled.quiet = True
    for _ in range(5):
        w = lt.ones(2, 3, requires_grad=True)
        x = w * 3
        compiled(x).sum().backward()
        expected = 3.0 if view else 3 * np.cos(3.0)
        assert np.allclose(w.grad.numpy(), expected)
    assert compiled.replays == 0


def test_an_argument_that_is_written_is_left_to_the_function() -> None:
    net = lt.compile(lambda x: x.mul_(2).sin())
    net.quiet = True
    for _ in range(4):
        w = lt.ones(3, requires_grad=True)
        x = w * 3
        net(x).sum().backward()
        assert np.allclose(w.grad.numpy(), 6 * np.cos(6.0))
    assert net.replays == 0


def test_a_backward_inside_reaches_the_callers_graph() -> None:
    def f(x: Any) -> Any:
        loss = (x * x).sum()
        loss.backward()
        return loss.detach()

    compiled = lt.compile(f)
    compiled.quiet = True
    for _ in range(4):
        w = lt.ones(3, requires_grad=True)
        compiled(w * 2)
        assert w.grad.tolist() == [8.0] * 3
    assert compiled.replays == 0


def test_values_that_backward_reads_are_guarded() -> None:
    net = lt.compile(Block().eval())
    warm(net)
    loss = net(data()).square().mean()
    with lt.no_grad():
        net.outer.weight.mul_(2)
    with pytest.raises(lt.GradientError, match="modified by an inplace"):
        loss.backward()
    x = data()
    loss = net(x).square().mean()
    x.mul_(2)
    with pytest.raises(lt.GradientError, match="modified by an inplace"):
        loss.backward()


def test_data_that_is_replaced_does_not_reach_backward() -> None:
    net, other = pair(lambda: Block().eval())
    compiled = lt.compile(other)
    for m in (net, compiled):
        for _ in range(4):
            for p in m.parameters():
                p.grad = None
            loss = m(data()).square().mean()
            old = m.outer.weight.data
            m.outer.weight.data = old * 0
            loss.backward()
            m.outer.weight.data = old
    assert state(net) == state(other)


def test_a_second_backward_is_refused() -> None:
    net = lt.compile(Block())
    warm(net)
    loss = net(data()).square().mean()
    loss.backward()
    with pytest.raises(lt.GradientError, match="second time"):
        loss.backward()


def test_hooks_run_as_ever() -> None:
    net, other = pair()
    compiled = lt.compile(other)
    seen: list[int] = []
    for m in (net, other):
        m.inner.weight.register_hook(lambda g: g * 2)
        m.outer.weight.register_post_accumulate_grad_hook(lambda p: seen.append(1))
    with pytest.warns(lt.CaptureWarning, match="hooks"):
        run_both(usual, net, other, compiled)
    assert len(seen) == 12


def test_memory_is_let_go_with_the_graph() -> None:
    net = lt.compile(Block(512))
    for _ in range(3):
        net(data(64)).square().mean().backward()
    gc.collect()
    before = lt.memory_allocated()
    loss = net(data(64)).square().mean()
    assert lt.memory_allocated() > before
    del loss
    assert lt.memory_allocated() == before
    net(data(64)).square().mean().backward()
    assert lt.memory_allocated() == before


def test_a_step_peaks_no_higher_than_the_plain_one() -> None:
    peaks = []
    for compiled in (False, True):
        lt.manual_seed(0)
        net = nn.Sequential(Block(512), Block(512), Block(512))
        net = lt.compile(net) if compiled else net
        for _ in range(4):
            for p in net.parameters():
                p.grad = None
            x = data(2048)
            gc.collect()
            before = lt.memory_allocated()
            lt.reset_peak_memory_stats()
            net(x).square().mean().backward()
            peaks.append(lt.max_memory_allocated() - before)
    assert peaks[-1] <= 1.01 * peaks[3]


def test_what_forward_leaves_counts_as_saved() -> None:
    found = []
    for compiled in (False, True):
        lt.manual_seed(0)
        net = Block(512).eval()
        net = lt.compile(net) if compiled else net
        x = data(256)
        for _ in range(3):
            net(x).square().mean().backward()
        gc.collect()
        before = lt.memory_stats()["by_role"]["saved"]
        out = net(x)
        found.append(lt.memory_stats()["by_role"]["saved"] - before)
        del out
    assert 0 < found[1] <= found[0]


def test_a_large_gradient_that_arrives_goes_when_it_was_used() -> None:
    peaks = []
    for compiled in (False, True):
        lt.manual_seed(0)
        width = 256
        net = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        net = lt.compile(net) if compiled else net
        for _ in range(4):
            loss = (net(lt.rand(4096, 8)) * 2).sum()
            gc.collect()
            before = lt.memory_allocated()
            lt.reset_peak_memory_stats()
            loss.backward()
            peaks.append(lt.max_memory_allocated() - before)
    # As written, tanh's gradient is written over tanh's result; here that is a result of the call.
    assert peaks[-1] <= peaks[3] + 4 * 4096 * 256


# Gradients that a call touches, whose results' backward runs later


def sets_to_none(run: Setup, x: Any, y: Any) -> Any:
    run.opt.zero_grad()
    return F.cross_entropy(run.net(x), y)


def sets_one_to_none(run: Setup, x: Any, y: Any) -> Any:
    next(iter(run.net.parameters())).grad = None
    return F.cross_entropy(run.net(x), y)


def fills_with_zeros(run: Setup, x: Any, y: Any) -> Any:
    run.opt.zero_grad(set_to_none=False)
    return F.cross_entropy(run.net(x), y)


def halves(run: Setup, x: Any, y: Any) -> Any:
    for p in run.net.parameters():
        if p.grad is not None:
            p.grad.mul_(0.5)
    return F.cross_entropy(run.net(x), y)


def has_a_backward(run: Setup, x: Any, y: Any) -> Any:
    run.opt.zero_grad()
    F.cross_entropy(run.net(x), y).backward()
    return run.net(x).square().mean()


def has_a_step(run: Setup, x: Any, y: Any) -> Any:
    run.opt.step()
    run.opt.zero_grad()
    return F.cross_entropy(run.net(x), y)


def clips(run: Setup, x: Any, y: Any) -> Any:
    lt.nn.utils.clip_grad_norm_(run.net.parameters(), 0.1)
    return F.cross_entropy(run.net(x), y)


def asks(run: Setup, x: Any, y: Any) -> Any:
    first = next(iter(run.net.parameters())).grad is None
    return F.cross_entropy(run.net(x), y) * (2.0 if first else 1.0)


def sets_and_reads(run: Setup, x: Any, y: Any) -> Any:
    run.opt.zero_grad()
    if x.sum() > 1e9:
        return x.sum()
    return F.cross_entropy(run.net(x), y)


TOUCH = [
    sets_and_reads,
    sets_to_none,
    sets_one_to_none,
    fills_with_zeros,
    halves,
    has_a_backward,
    has_a_step,
    clips,
    asks,
]


@pytest.mark.parametrize("often", [1, 2, 3], ids="none{}".format)
@pytest.mark.parametrize("forward", TOUCH, ids=lambda f: f.__name__)
def test_gradients_that_a_forward_touches_are_as_written(forward: Any, often: int) -> None:
    """Every so many steps the program also sets the gradients to None, or runs an optimizer."""
    found = []
    for is_compiled in (False, True):
        lt.manual_seed(0)
        run = Setup()
        function = lt.compile(forward) if is_compiled else forward
        states = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for k in range(12):
                x, y = lt.randn(8, 6), lt.randint(0, 3, (8,))
                function(run, x, y).backward()
                states.append([p.grad.tolist() for p in run.net.parameters()])
                if k % often == 0:
                    run.opt.step()
                    run.net.zero_grad()
                states.append([p.tolist() for p in run.net.parameters()])
        found.append(states)
    assert found[0] == found[1]
    if forward in (sets_to_none, sets_one_to_none, sets_and_reads):
        assert function.replays > 4


# One tensor in several places


def product(x: Any, y: Any) -> Any:
    return x * y * y


def own_backward(x: Any, y: Any) -> Any:
    z = (x * y * y).sum()
    z.backward()
    return z.detach()


@pytest.mark.parametrize("function", [product, own_backward], ids=lambda f: f.__name__)
def test_a_tensor_that_is_given_twice_has_the_gradient_of_both(function: Any) -> None:
    """In every order: the same tensor twice, a view of it, the same memory, others."""
    found = []
    orders = ["aa", "av", "ab", "va", "vv", "da"]
    for is_compiled in (False, True):
        f = lt.compile(function) if is_compiled else function
        gradients = []
        for k in range(36):
            a = lt.tensor([2.0, 3.0], requires_grad=True)
            v = a.view(2)
            given = {
                "a": a,
                "v": v,
                "b": lt.tensor([5.0, 7.0], requires_grad=True),
                "d": a.detach().requires_grad_(),
            }
            x, y = (given[name] for name in orders[k % 6 if k >= 18 else k // 3])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", lt.CaptureWarning)
                result = f(x, y)
            if result.requires_grad:
                result.sum().backward()
            gradients += [given[name].grad for name in "abd"]
        found.append([None if g is None else g.tolist() for g in gradients])
    assert found[0] == found[1]
    assert f.replays > 0 or function is own_backward


SWITCH = {"on": False}


def sometimes(x: Any, y: Any) -> Any:
    z = (x * y * y).sum()
    if SWITCH["on"]:
        z.backward(retain_graph=True)
    return z.detach()


def test_a_backward_that_only_the_recorded_call_runs_is_passed_on_once() -> None:
    f = lt.compile(sometimes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lt.CaptureWarning)
        for k in range(6):
            SWITCH["on"] = k > 0
            leaf = lt.tensor([2.0, 3.0], requires_grad=True)
            a = leaf * leaf  # keeps the leaf for backward
            f(a, a)
            a.sum().backward()  # the call has kept the graph
            assert leaf.grad is not None
            through = [3 * v**4 if k else 0 for v in (2.0, 3.0)]
            assert leaf.grad.tolist() == [
                (1 + t) * 2 * v for t, v in zip(through, (2, 3), strict=True)
            ]


def test_a_first_call_that_fails_leaves_no_hook_behind() -> None:
    def fails(x: Any) -> Any:
        raise ValueError(x.shape)

    x = lt.ones(2, requires_grad=True) * 2
    with pytest.raises(ValueError, match="2"):
        lt.compile(fails)(x)
    assert not (x._node.extra or {}).get("pre")
