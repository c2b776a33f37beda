"""A compiled module gives the bits of the plain one, forward and backward, in any loop."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

import lowtide as lt
import lowtide.distributed as dist
from lowtide import nn
from lowtide.distributed.fsdp import fully_shard
from tests.capture.nets import (
    Block,
    Cell,
    Loop,
    Norm,
    Two,
    bits,
    data,
    pair,
    run_both,
    usual,
)


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


@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
def test_a_loop_is_equal_bit_for_bit(loop: Loop) -> None:
    net, other = pair()
    compiled = lt.compile(other, fullgraph=True)
    run_both(loop, net, other, compiled)
    assert compiled._compiled.replays >= 2


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
    assert compiled._compiled.replays == 3


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
    for k in range(7):
        t.rate = 1.0 + k // 5
        with lt.no_grad():
            t.history.append(t.step(data()).item())
    assert t.step.replays == 3
    t.missing = 1
    assert t.history[4] * 2 == t.history[5]


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
    assert other._call_hooks.compiled.replays == 3
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


def test_the_class_of_a_wrapper_is_its_own() -> None:
    net = nn.Linear(4, 4)
    compiled = lt.compile(net)
    kind = type("Other", (type(compiled),), {})
    compiled.__class__ = kind
    assert (type(compiled), type(net)) == (kind, nn.Linear)
    x = lt.randn(2, 4)
    for _ in range(5):
        compiled(x).sum().backward()
    assert bits(compiled(x)) == bits(net(x))
    assert compiled._compiled.replays


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_module_may_be_sharded(in_place: bool) -> None:
    dist.init_process_group("fake", rank=0, world_size=1)
    try:
        lt.manual_seed(0)
        plain = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
        net = copy.deepcopy(plain)
        if in_place:
            net.compile()
        else:
            net = lt.compile(net)
        fully_shard(net)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lt.CaptureWarning)
            for _ in range(6):
                for m in (plain, net):
                    m.zero_grad()
                    m(lt.arange(12.0).view(2, 6)).square().sum().backward()
                for p, q in zip(plain.parameters(), net.parameters(), strict=True):
                    assert bits(p.grad) == bits(q.grad)
    finally:
        dist.destroy_process_group()
