"""Modules are recorded inside of what runs as it is written."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.framework.capture.inner_modules import InnerModules
from lowtide.framework.modes import local
from lowtide.profiling import MemoryProfiler, estimate
from tests.capture.nets import bits, state

WIDTH = 12


class Block(nn.Module):
    """What can be recorded."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width)
        self.drop, self.outer = nn.Dropout(0.2), nn.Linear(2 * width, width)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        return self.outer(self.drop(F.gelu(self.norm(self.inner(x)))))


class Crossed(Block):
    """It uses its argument and a weight several times."""

    def forward(self, x: Any) -> Any:
        a, b = self.inner(x), self.inner(x.flip(1))
        return self.outer(self.drop(F.silu(self.norm(a)) * b + a)) * x + x.sin()


class Around(nn.Module):
    """A module around another one. Subclasses have a statement that cannot be recorded."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside
        self.seen: list[Any] = []


class Reads(Around):
    def forward(self, x: Any) -> Any:
        h = self.inside(x)
        self.seen.append(h.sum().item())
        return h.tanh()


class Branches(Around):
    def forward(self, x: Any) -> Any:
        if x.sum().item() > 0:
            return self.inside(x)
        return self.inside(-x) * 2


class Selects(Around):
    def forward(self, x: Any) -> Any:
        order = (x[:, 0] > 0).nonzero().flatten()
        h = self.inside(x)
        return h.index_add(0, order, lt.ones(len(order), h.shape[1]))


class Repeats(Around):
    def forward(self, x: Any) -> Any:
        for k in range(2):
            x = self.inside(x) * 0.5
            self.seen.append((k, bool((x > 3).any())))
        return x


class Counts(Around):
    def forward(self, x: Any) -> Any:
        self.inside.calls = len(self.seen)
        self.seen.append(tuple(x.shape))
        with lt.autocast("cpu", enabled=False):
            return self.inside(x) + len(self.seen) % 2


class Keeps(Around):
    def forward(self, x: Any) -> Any:
        self.hidden = self.inside(x)
        return self.hidden * self.hidden.detach().mean()


class Adds(Around):
    def forward(self, x: Any) -> Any:
        h = x + self.inside(x)
        self.seen.append(h.mean().item())
        return h * 0.5 + x


class Chained(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Any) -> Any:
        for part in self.parts:
            x = F.hardtanh(part(x), -3, 3)
        return x


BREAKERS = (Reads, Branches, Selects, Repeats, Counts, Keeps, Adds)


def drawn_net(draw: random.Random, depth: int = 3) -> nn.Module:
    if depth == 0:
        return draw.choice([Block, Crossed])()
    kind = draw.choice([*BREAKERS, "chain", "sequence"])
    if isinstance(kind, type):
        return kind(drawn_net(draw, depth - 1))
    inside = [drawn_net(draw, depth - 1) for _ in range(draw.randint(2, 3))]
    return Chained(*inside) if kind == "chain" else nn.Sequential(*inside)


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lt.CaptureWarning)
        yield


def seen(net: nn.Module) -> list[Any]:
    return [m.seen for m in net.modules() if isinstance(m, Around)]


def batches(count: int, rows: tuple[int, ...] = (6,)) -> Iterator[Any]:
    g = np.random.default_rng(5)
    for k in range(count):
        yield lt.tensor(g.standard_normal((rows[k % len(rows)], WIDTH)), dtype=lt.float32)


def loss_of(net: Any, x: Any, k: int = 0) -> Any:
    lt.manual_seed(k)
    net.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    return bits(loss), state(getattr(net, "_orig_mod", net)), lt.rand(1).item()


def pair(net: nn.Module, **options: Any) -> tuple[nn.Module, nn.Module, Any]:
    other = copy.deepcopy(net)
    return net, other, lt.compile(other, **options)


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(150))
def test_drawn_nets_compute_the_same_bits(seed: int) -> None:
    draw = random.Random(seed)
    lt.manual_seed(seed)
    plain, other, compiled = pair(Chained(draw.choice(BREAKERS)(Block()), drawn_net(draw)))
    optimizers = [optim.SGD(net.parameters(), lr=0.01) for net in (plain, other)]
    at = draw.randrange(8, 20)
    changes = draw.sample(range(4), 2)
    with quiet():
        for k, x in enumerate(batches(32, (6, 6, 6, 4))):
            if k == at:
                for net in (plain, other):
                    change(net, changes, random.Random(seed))
            with lt.no_grad() if k % 9 == 8 else lt.enable_grad():
                if k % 9 == 8:
                    lt.manual_seed(k)
                    expected = bits(plain(x))
                    lt.manual_seed(k)
                    assert bits(compiled(x)) == expected
                    continue
            assert loss_of(compiled, x, k) == loss_of(plain, x, k)
            assert repr(seen(other)) == repr(seen(plain))
            for optimizer in optimizers:
                optimizer.step()
    assert compiled._compiled.replays > 0 or "changes" in compiled._compiled.explain()


def change(net: nn.Module, which: list[int], draw: random.Random) -> None:
    blocks = [m for m in net.modules() if isinstance(m, Block)]
    block = draw.choice(blocks)
    if 0 in which:
        block.outer.weight.requires_grad_(False)
    if 1 in which:
        block.drop.p = 0.5
    if 2 in which:
        block.register_forward_hook(lambda m, args, out: out * 1.5)
    if 3 in which:
        block.norm = nn.BatchNorm1d(2 * WIDTH)


def for_each(function: Callable[[Any], Any], count: int = 20) -> None:
    for x in batches(count):
        function(x)


def run(function: Callable[[Any], Any], count: int = 20) -> None:
    with quiet():
        for_each(function, count)


# What is recorded


def all_parts(compiled: Any) -> list[Any]:
    return [compiled, *(p for part in compiled.parts() for p in all_parts(part))]


def compiled_parts(compiled: Any) -> dict[str, Any]:
    return {part._name: part for part in all_parts(compiled)}


def trained(net: Any) -> Callable[[Any], None]:
    def step(x: Any) -> None:
        net(x).sum().backward()

    return step


def test_blocks_around_a_branch_are_replayed_and_the_warning_says_so() -> None:
    net = lt.compile(Chained(Block(), Reads(Block()), Block()))
    with pytest.warns(lt.CaptureWarning, match=r"Modules that it calls are recorded") as caught:
        for_each(trained(net))
    assert len(caught) == 1
    parts = compiled_parts(net._compiled)
    assert parts["Block"].replays > 5
    assert parts["Reads"].replays > 5
    assert net._compiled.replays > 5
    assert not any(m.seen for m in net.modules() if isinstance(m, Around) and len(m.seen) != 20)
    text = net._compiled.explain()
    assert text.count("    Block: 1 recorded") >= 2
    assert "(self.seen.append(h.sum().item())) runs as it is written" in text


def test_explain_comes_to_an_end_with_all_parts() -> None:
    net = lt.compile(Chained(Block(), Branches(Reads(Block()))).eval())
    x = next(batches(1))
    with lt.no_grad():
        text = lt.compiler.explain(net, x)
    assert "Block: 1 recorded" in text
    assert "Reads.forward" in text


def test_models_in_a_statement_that_is_set_apart_are_replayed() -> None:
    net = nn.Sequential(nn.Linear(WIDTH, 30), nn.GELU(), nn.Linear(30, WIDTH), nn.Tanh())
    plain = copy.deepcopy(net)
    total: list[float] = []

    def accumulate(net: Any, x: Any) -> None:
        net.zero_grad()
        for part in x.split(2):
            loss = net(part).square().mean()
            loss.backward()
            total.append(loss.item())

    compiled = lt.compile(accumulate)
    with quiet():
        for x in batches(12):
            compiled(net, x)
    assert compiled.replays > 4
    expected, total = total, []
    for x in batches(12):
        accumulate(plain, x)
    assert total == expected
    assert state(net) == state(plain)


def test_layers_of_few_kernel_calls_run_as_they_are_written() -> None:
    class Scale(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2

    net = lt.compile(Chained(Scale(), Reads(nn.Identity()), Block()).eval())
    with lt.no_grad():
        run(net)
    parts = compiled_parts(net._compiled)
    assert parts["Block"].replays > 5
    assert not any("Scale" in name and part.replays for name, part in parts.items())
    assert "takes longer" in net._compiled.explain()


def test_fullgraph_is_an_error_and_records_no_part() -> None:
    net = lt.compile(Chained(Block(), Reads(Block())), fullgraph=True)
    x = next(batches(1))
    net(x).sum().backward()
    for _ in range(3):
        with pytest.raises(lt.CaptureError, match="item"):
            net(x).sum().backward()
    assert net._compiled.parts() == []


def test_modules_that_are_called_elsewhere_run_as_they_are_written() -> None:
    calls: list[int] = []

    class Noted(Block):
        def forward(self, x: Any) -> Any:
            calls.append(len(calls))
            return super().forward(x)

    net = Chained(Noted(), Reads(Block()))
    compiled = lt.compile(net)
    run(trained(compiled))
    assert compiled._compiled.replays > 5
    before = len(calls)
    for x in batches(5):
        net.parts[0](x)
        net(x)
    assert len(calls) == before + 10


def test_another_thread_records_nothing_of_what_it_calls() -> None:
    found: list[Any] = []

    class Threads(Around):
        def forward(self, x: Any) -> Any:
            thread = threading.Thread(target=lambda: found.append(local.state.inner))
            thread.start()
            thread.join()
            return self.inside(x) * x.sum().item()

    net = lt.compile(Threads(Block()))
    run(trained(net))
    assert net._compiled.replays > 0
    assert found == [None] * 20


def test_a_forked_process_records_nothing_of_what_it_calls() -> None:
    def told() -> bytes:
        ours, theirs = os.pipe()
        if os.fork() == 0:
            os.write(theirs, repr(local.state.inner).encode())
            os._exit(0)
        os.close(theirs)
        found = os.read(ours, 100)
        os.close(ours)
        os.wait()
        return found

    inner = InnerModules(lambda function, module: None)
    assert inner.run(lambda: local.state.inner) is inner
    assert inner.run(told) == b"None"


def test_modules_in_a_module_that_is_recorded_are_not_recorded_apart() -> None:
    net = lt.compile(Chained(Chained(Block(), Block()), Reads(Block())))
    run(trained(net))
    (forward,) = net._compiled.parts()
    found = [part._name for part in forward.parts() if "lines" not in part._name]
    assert found == ["Chained", "Reads"]


def test_a_function_lets_go_of_models_of_the_past() -> None:
    judged = lt.compile(lambda net, x: net(x).sum())
    refs = []
    with lt.no_grad():
        for count in (6, 80, 6):
            net = Chained(Block()).eval()
            refs.append(weakref.ref(net))
            for x in batches(count):
                judged(net, x)
    assert judged.replays == 6 + 80 + 6 - 9
    assert refs[0]() is None
    assert refs[2]() is net


def test_disabled_functions_and_eager_stances_record_nothing() -> None:
    block = Block()
    kept_out = lt.compiler.disable(block.__call__)

    class Disabled(Around):
        def forward(self, x: Any) -> Any:
            return kept_out(x) + self.inside(x)

    net = lt.compile(Disabled(Block()))
    run(trained(net))
    parts = compiled_parts(net._compiled)
    before = parts["Block"].replays
    assert before > 3
    assert [part._name for part in all_parts(net._compiled)].count("Block") == 1
    with lt.compiler.set_stance("force_eager"):
        run(trained(net), 3)
    assert parts["Block"].replays == before
    lt.compiler.reset()
    assert net._compiled.parts() == []


def test_a_module_that_calls_itself() -> None:
    class Recurs(Around):
        def forward(self, x: Any, depth: int = 3) -> Any:
            h = self.inside(x)
            return h if depth == 0 or h.sum().item() > 1e6 else self(h, depth - 1)

    plain, _, compiled = pair(Recurs(Block()))
    with quiet():
        for k, x in enumerate(batches(10)):
            assert loss_of(compiled, x, k) == loss_of(plain, x, k)


@pytest.mark.parametrize("in_place", [False, True])
def test_hooks_of_a_divided_module_run_in_each_call(in_place: bool) -> None:
    calls: list[str] = []
    net = Reads(Block())
    net.register_forward_pre_hook(lambda m, args: calls.append("before"))
    net.register_forward_hook(lambda m, args, out: calls.append("after"))
    net.register_full_backward_hook(lambda m, i, o: calls.append("backward"))
    compiled: Any = net
    if in_place:
        net.compile()
    else:
        compiled = lt.compile(net)
    with quiet():
        for x in batches(20):
            compiled(x.requires_grad_()).sum().backward()
    assert calls == ["before", "after", "backward"] * 20
    function = net._call_hooks.compiled if in_place else compiled._compiled
    assert compiled_parts(function)["Block"].replays > 3


# What is left behind


class Stopped(Exception):
    pass


@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt])
def test_an_error_in_a_written_statement_leaves_nothing_behind(error: type) -> None:
    class Stops(Around):
        stop = False

        def forward(self, x: Any) -> Any:
            h = self.inside(x)
            if h.sum().item() > -1e9 and self.stop:
                raise error
            return h

    plain, other, compiled = pair(Stops(Block()))
    with quiet():
        for k, x in enumerate(batches(20)):
            for net in (plain, other):
                net.stop = k % 4 == 3
            if k % 4 == 3:
                for net in (plain, compiled):
                    lt.manual_seed(k)
                    with pytest.raises(error):
                        net(x)
            else:
                assert loss_of(compiled, x, k) == loss_of(plain, x, k)
            assert local.state.inner is None
            assert local.state.compiling == 0
    assert compiled._compiled.replays > 5


def used(in_a_function: bool) -> Any:
    net = Chained(Block(), Reads(Block()))
    loop = trained(net)
    step: Any = lt.compile(net)
    if in_a_function:
        step = lt.compile(lambda x: loop(x))
    run(step if in_a_function else trained(step))
    return weakref.ref(net)


def test_models_go_with_their_last_reference() -> None:
    used(True), used(False)
    gc.collect()
    gc.disable()
    try:
        before = lt.memory_allocated()
        assert used(False)() is None
        assert used(True)() is None
        assert lt.memory_allocated() == before
    finally:
        gc.enable()


def test_a_function_forgets_models_that_it_does_not_call_any_more() -> None:
    seen: list[float] = []

    def judged(net: Any, x: Any) -> None:
        for row in x.split(3):
            seen.append(net(row).sum().item())

    compiled = lt.compile(judged)
    refs = []
    with quiet(), lt.no_grad():
        for _ in range(3):
            net = Chained(Block(), Block()).eval()
            refs.append(weakref.ref(net))
            for x in batches(70):
                compiled(net, x)
    net = Chained(Block()).eval()
    for x in batches(340):
        with lt.no_grad(), quiet():
            compiled(net, x)
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


def test_checks_compare_the_parts() -> None:
    net = lt.compile(Chained(Block(), Reads(Block())), check=2)
    run(trained(net), 16)
    assert net._compiled.replays > 5
    stale = itertools.count()

    class Stale(Block):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * float(np.float32(next(stale) // 8))

    wrong = lt.compile(Chained(Stale(), Reads(Block())).eval(), check=1)
    text = ""
    with quiet(), lt.no_grad():
        for x in batches(14):
            try:
                wrong(x)
            except AssertionError as error:
                text = str(error)
    assert "it draws from stale, a count" in wrong._compiled.explain() or "differ" in text


# Bytes


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Any) -> Any:
        return self.last(F.silu(self.first(x)))


def test_estimates_and_profiles_of_a_model_in_parts_are_those_of_its_replays() -> None:
    net = Chained(Wide(), Reads(Wide()), Wide())
    compiled = lt.compile(net)
    x = lt.randn(128, 64)

    def step() -> None:
        net.zero_grad()
        compiled(x).square().mean().backward()

    with quiet():
        for _ in range(14):
            step()
        found = estimate(step)
        before = lt.memory_allocated()
        lt.reset_peak_memory_stats()
        step()
        peak = lt.max_memory_allocated()
        assert found.peak_bytes == peak
        peak -= before
        with MemoryProfiler() as prof:
            step()
    assert prof.peak_bytes == peak + before
    assert prof.at_peak("module")["_orig_mod.parts.1"]
    plain = copy.deepcopy(net)
    plain.zero_grad()
    lt.reset_peak_memory_stats()
    before = lt.memory_allocated()
    plain(x).square().mean().backward()
    assert peak <= 1.05 * (lt.max_memory_allocated() - before)
