"""A compiled module gives the bits of the plain one, forward and backward, in any loop."""

from __future__ import annotations

import copy
import gc
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim


class Block(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.inner = nn.Linear(6, width)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.2)
        self.outer = nn.Linear(width, 6)

    def forward(self, x: Any) -> Any:
        h = self.drop(F.gelu(self.norm(self.inner(x))))
        return x + self.outer(h)


class Two(nn.Module):
    """A model of two results, one of which a loop may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.a = nn.Linear(6, 3)
        self.b = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        h = self.block(x)
        return {"a": self.a(h), "b": self.b(h).softmax(-1)}


def data(n: int = 8) -> Any:
    g = np.random.default_rng(1)
    return lt.tensor(g.standard_normal((n, 6)), dtype=lt.float32)


def bits(t: Any) -> Any:
    return None if t is None else np.ascontiguousarray(t.detach().numpy()).tobytes()


def state(net: Any) -> Any:
    grads = [bits(p.grad) for p in net.parameters()]
    return grads, [bits(t) for t in net.state_dict().values()]


Loop = Callable[[Any, int], Any]


def usual(net: Any, k: int) -> Any:
    out = net(data())
    loss = (out * out).mean()
    loss.backward()
    return bits(loss)


def accumulates(net: Any, k: int) -> Any:
    for _ in range(2):
        net(data()).sin().sum().backward()
    return None


def two_at_once(net: Any, k: int) -> Any:
    a, b = net(data()), net(data() * 2)
    (a * b).mean().backward()
    return bits(a), bits(b)


def in_turns(net: Any, k: int) -> Any:
    outs = [net(data(n)).square().mean() for n in (8, 8, 4)]
    for loss in (outs[1], outs[0], outs[2]):
        loss.backward()
    return None


def retained(net: Any, k: int) -> Any:
    loss = net(data()).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return None


def gradient_of_input(net: Any, k: int) -> Any:
    x = data().requires_grad_()
    net(x).square().mean().backward()
    return bits(x.grad)


def between_layers(net: Any, k: int) -> Any:
    w = lt.ones(6, requires_grad=True)
    h = data() * w
    net(h).tanh().mean().backward()
    return bits(w.grad)


def by_grad(net: Any, k: int) -> Any:
    ps = list(net.parameters())
    return [bits(g) for g in lt.autograd.grad(net(data()).square().mean(), ps)]


def of_a_sum(net: Any, k: int) -> Any:
    net(data()).sum().backward()  # what arrives is one number, expanded
    return None


def changes_layout(net: Any, k: int) -> Any:
    out = net(data())
    (out.sum() if k % 2 else out.square().mean()).backward()
    return None


def result_written(net: Any, k: int) -> Any:
    out = net(data())
    out.mul_(2)
    out.square().mean().backward()
    return bits(out)


def evaluates_between(net: Any, k: int) -> Any:
    net.eval()
    with lt.no_grad():
        found = bits(net(data()))
    net.train()
    return found, usual(net, k)


def clipped(net: Any, k: int) -> Any:
    usual(net, k)
    return bits(nn.utils.clip_grad_norm_(net.parameters(), 0.1))


def autocast(net: Any, k: int) -> Any:
    with lt.autocast("cpu", dtype=lt.bfloat16):
        out = net(data())
    out.float().square().mean().backward()
    return bits(out.float())


def through_time(net: Any, k: int) -> Any:
    h, total = data(), 0.0
    for _ in range(4):  # each call takes the result of the one before
        h = net(h).tanh()
        total = total + h.square().mean()
    total.backward()
    return bits(h)


def layouts_in_turn(net: Any, k: int) -> Any:
    a, b = net(data()), net(data() + 1)
    (a.sum() + b.square().mean()).backward()
    return bits(a)


LOOPS: list[Loop] = [usual, accumulates, two_at_once, in_turns, retained, gradient_of_input,
                     between_layers, by_grad, of_a_sum, changes_layout, result_written,
                     evaluates_between, clipped, autocast, through_time,
                     layouts_in_turn]  # fmt: skip


def pair(make: Any = Block) -> Any:
    lt.manual_seed(0)
    net = make()
    return net, copy.deepcopy(net)


def run_both(loop: Loop, net: Any, other: Any, compiled: Any, n: int = 6, expect: int = 3) -> None:
    opts = [optim.AdamW(m.parameters(), lr=1e-2) for m in (net, other)]
    for k in range(n):
        found = []
        for m, called, opt in ((net, net, opts[0]), (other, compiled, opts[1])):
            lt.manual_seed(k)
            opt.zero_grad()
            result = loop(called, k)
            opt.step()
            found.append((result, state(m), bits(lt.get_rng_state())))
        assert found[0] == found[1], k


@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
def test_a_loop_is_equal_bit_for_bit(loop: Loop) -> None:
    net, other = pair()
    compiled = lt.compile(other, fullgraph=True)
    run_both(loop, net, other, compiled)
    assert compiled._compiled.replays >= 3


@pytest.mark.parametrize("part", ["a", "b", "both"])
def test_results_that_a_loss_leaves_out_have_no_gradient(part: str) -> None:
    def loop(net: Any, k: int) -> Any:
        out = net(data())
        loss = sum(v.square().mean() for n, v in out.items() if part in (n, "both"))
        loss.backward()
        return bits(loss)

    net, other = pair(Two)
    compiled = lt.compile(other)
    run_both(loop, net, other, compiled)
    assert compiled._compiled.replays == 4


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.rate = 1.0

    def forward(self, x: Any) -> Any:
        return self.norm(x) * self.rate


class Cell(nn.Module):
    """A recurrent cell, with running averages of what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.cell = nn.GRUCell(6, 6)
        self.out = nn.Linear(6, 2)

    def forward(self, x: Any, h: Any) -> Any:
        h = self.cell(self.norm(x), h)
        return self.out(h), h


def test_results_of_a_call_go_into_the_next() -> None:
    def loop(net: Any, k: int) -> Any:
        h, total = lt.zeros(8, 6), 0.0
        for step in range(4):
            y, h = net(data() + step, h)
            total = total + y.square().mean()
        total.backward()  # of the last call, no gradient of h arrives
        return bits(h)

    net, other = pair(Cell)
    compiled = lt.compile(other, fullgraph=True)
    before = [[b._version for b in m.buffers()] for m in (net, other)]
    run_both(loop, net, other, compiled)
    assert compiled._compiled.replays >= 12
    assert other.norm.num_batches_tracked.item() == 24
    moved = [
        [b._version - v for b, v in zip(m.buffers(), versions, strict=True)]
        for m, versions in zip((net, other), before, strict=True)
    ]
    assert moved == [[24] * 3] * 2


def test_long_loops_are_recorded_too() -> None:
    def loop(net: Any, k: int) -> Any:
        h, total = lt.zeros(8, 6), 0.0
        for step in range(12):
            y, h = net(data() + step, h)
            total = total + y.square().mean()
        total.backward()
        return bits(h)

    net, other = pair(Cell)
    compiled = lt.compile(other, fullgraph=True)
    run_both(loop, net, other, compiled, n=4)
    assert compiled._compiled.recordings <= 4
    assert compiled._compiled.replays >= 30


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


def test_results_without_a_backward_are_given_up() -> None:
    net = lt.compile(Block().eval())
    net._compiled.quiet = True
    for _ in range(8):
        net(data())
    assert net._compiled.replays == 0
    assert "no backward follows" in net._compiled.reasons[0]


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


def test_attributes_that_no_code_of_the_step_names_may_change() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.net = Norm()
            self.history: list[Any] = []
            self.rate = 1.0

        def report(self) -> None:
            print(self.history[-1], self.missing)

        @lt.compile(fullgraph=True)
        def step(self, x: Any) -> Any:
            return self.net(x).square().mean() * self.rate

    t = Trainer()
    for k in range(6):
        t.rate = 1.0 + k // 4
        with lt.no_grad():
            t.history.append(t.step(data()).item())
    assert t.step.replays == 3
    t.missing = 1
    assert t.history[3] * 2 == t.history[4]


def test_averages_that_a_graph_holds_are_left_to_the_function() -> None:
    grads = []
    for compiled in (False, True):
        lt.manual_seed(0)
        net: Any = Norm()
        net = lt.compile(net) if compiled else net
        for _ in range(4):
            net(data()).square().mean().backward()
        held = net.eval()(data())  # its backward reads the running averages
        net.train()
        net(data() * 3).square().mean().backward()
        net.zero_grad()
        held.square().mean().backward()
        grads.append([bits(p.grad) for p in net.parameters()])
    assert grads[0] == grads[1]


def test_running_averages_move_once_a_call() -> None:
    net, other = pair(Norm)
    compiled = lt.compile(other, fullgraph=True)
    run_both(usual, net, other, compiled)
    assert other.norm.num_batches_tracked.item() == 6


def test_what_changes_between_calls_is_noticed() -> None:
    def loop(net: Any, k: int) -> Any:
        net.rate = float(k // 3)
        net.train(k % 4 != 3)
        return usual(net, k)

    net, other = pair(Norm)
    compiled = lt.compile(other, fullgraph=True)
    run_both(loop, net, other, compiled, n=12)
    assert compiled._compiled.replays >= 2


def warm(net: Any) -> None:
    for k in range(3):
        usual(net, k)
    assert net._compiled.replays == 1


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


def test_second_derivatives_are_refused_after_the_recording() -> None:
    net = lt.compile(Block().eval())
    warm(net)
    x = data().requires_grad_()
    for _ in range(2):
        (g,) = lt.autograd.grad(net(x).sum(), x, create_graph=True)  # runs the graph itself
        g.sum().backward()
    net(x).sum().backward()
    with pytest.raises(RuntimeError, match="cannot be differentiated"):
        lt.autograd.grad(net(x).sum(), x, create_graph=True)


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
    assert peaks[-1] <= peaks[3] + (1 << 16)


def test_the_wrapper_is_pytorchs() -> None:
    net = Block()
    compiled = lt.compile(net)
    assert isinstance(compiled, nn.Module)
    assert compiled._orig_mod is net
    assert list(compiled.state_dict()) == [f"_orig_mod.{n}" for n in net.state_dict()]
    compiled.eval()
    assert not net.training
    assert not compiled.training
    compiled.extra = 3
    assert net.extra == 3
    assert compiled.inner is net.inner
    twin = copy.deepcopy(compiled)
    assert bits(twin(data())) == bits(compiled(data()))


def test_a_module_compiles_in_place() -> None:
    net, other = pair()
    assert other.compile(fullgraph=True) is None
    run_both(usual, net, other, other)
    assert other._call_hooks.compiled.replays == 4
    assert list(other.state_dict()) == list(net.state_dict())
    twin = copy.deepcopy(other).eval()
    assert bits(twin(data())) == bits(other.eval()(data()))


def test_hooks_on_all_modules_are_noticed() -> None:
    net = lt.compile(Block().eval(), fullgraph=True)
    with lt.no_grad():
        plain = [bits(net(data())) for _ in range(4)]
        handle = nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 2)
        hooked = bits(net(data()))
        handle.remove()
        assert [*plain, bits(net(data()))] == [plain[0]] * 5
    assert hooked != plain[0]
