"""What backward uses is computed again instead of being kept: the same bits, in less memory."""

from __future__ import annotations

import signal
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.capture import binding
from lowtide.framework.capture.passes.recomputing import Recomputing
from lowtide.framework.capture.program import (
    FRESH,
    GIVEN,
    LiveCall,
    StepProgram,
)
from lowtide.framework.kernels.common.copy import rows_known
from lowtide.framework.modes import run_kernel
from lowtide.framework.ops.registry import OPS
from tests.capture.compiled_calls import (
    bits,
    compiled,
    gelu_in_ops,
    peak_of,
    small_bytes,
)
from tests.capture.drawn_recordings import (
    by_hand,
    every,
    join_small_calls,
    reversed_copy,
)

pytestmark = pytest.mark.skipif(not rows_known(), reason="no compiled kernels on this machine")


@pytest.fixture
def joined_small_calls(monkeypatch: Any) -> list[Any]:
    """Small calls are joined, too; the passes."""
    return join_small_calls(monkeypatch)


def test_what_backward_uses_is_computed_from_what_is_kept() -> None:
    first, last = (lt.nn.Parameter(lt.randn(256, 256)) for _ in range(2))

    def step(x: Any) -> Any:
        first.grad = last.grad = None
        loss = (gelu_in_ops(x @ first) @ last).square().mean()
        loss.backward()
        return loss.detach()

    x = lt.randn(512, 256)
    found = compiled(step, x)
    seen = []
    for call in (step, found):
        seen.append([bits(call(x)), bits([first.grad, last.grad])])
    assert seen[0] == seen[1]
    told = lt.compiler.explain(found, x)
    assert "25 elementwise ones in 3 passes, 8 of them twice to keep less" in told
    # As written, the results of six ops are kept beside those of the products.
    assert peak_of(lambda: step(x)) == 9 * x.nbytes + 12
    assert peak_of(lambda: found(x)) == 5 * x.nbytes + small_bytes(found) + 4


def test_interrupts_and_refusals_leave_nothing_behind(monkeypatch: Any) -> None:
    first, last = (lt.nn.Parameter(lt.randn(128, 160)) for _ in range(2))

    def step(x: Any) -> Any:
        first.grad = last.grad = None
        loss = (gelu_in_ops(x @ first) * gelu_in_ops(x @ last)).square().mean()
        loss.backward()
        return loss.detach()

    x = lt.randn(200, 128)
    found = compiled(step, x)
    replay = next(iter(found._kinds.values())).recordings[0].replay
    (segment,) = replay._segments
    rows = segment.args[1]
    expected, held = [bits(step(x)), bits([first.grad, last.grad])], lt.memory_allocated()
    without = held - first.nbytes - last.nbytes

    def stop() -> None:
        signal.raise_signal(signal.SIGINT)

    def check() -> None:
        assert lt.memory_allocated() == without  # zero_grad came first
        assert (first.grad, last.grad) == (None, None)
        step(x)
        assert [bits(found(x)), bits([first.grad, last.grad])] == expected

    for at in range(len(rows)):
        cut = partial(run_kernel, binding.run_rows, [*rows[:at], (stop, []), *rows[at:]])
        with monkeypatch.context() as patch:
            patch.setattr(replay, "_segments", [cut])
            with pytest.raises(KeyboardInterrupt):
                found(x)
        check()
    assert len(rows) > 8
    top = held + replay.peak_bytes
    for room in range(without, top, max(1, (top - without) // 12)):
        lt.set_memory_limit(room)
        try:
            with pytest.raises(lt.MemoryLimitError):
                found(x)
        finally:
            lt.set_memory_limit(inf)
        check()
    lt.set_memory_limit(top)  # the least that a replay takes
    try:
        replays = found.replays
        assert bits(found(x)) == expected[0]
        assert found.replays == replays + 1
    finally:
        lt.set_memory_limit(inf)


def test_what_was_written_since_is_not_computed_again() -> None:
    scale = lt.nn.Parameter(lt.randn(200, 200))
    total = lt.zeros(200, 200)
    optimizer = lt.optim.SGD([scale], 0.1)

    def stepped(x: Any) -> Any:
        y = scale.detach() * x
        z = (y @ x).relu() @ x
        scale.grad = z * 1
        optimizer.step()
        return y * z + scale.detach()

    def added(x: Any) -> Any:
        y = total * x
        z = (y @ x).relu() @ x
        total.add_(z)
        return y * z + total

    for f, changed in ((stepped, scale), (added, total)):
        x = lt.randn(200, 200) * 0.05
        found = compiled(f, x)
        before = changed.detach().clone()
        expected, after = bits(f(x)), bits(changed)
        with lt.no_grad():
            changed.copy_(before)
        assert bits(found(x)) == expected
        assert bits(changed) == after


def test_an_argument_that_is_written_before_backward() -> None:
    class Net(lt.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = lt.nn.Parameter(lt.randn(200, 200))

        def forward(self, x: Any) -> Any:
            return (x * 0.1 + 1).tanh() * self.weight  # backward uses tanh's result, not x

    net = Net()
    found = lt.compile(net)
    for _ in range(6):
        x = lt.randn(200, 200)
        gradients = []
        for call in (net, found):
            net.zero_grad()
            y = call(given := x.clone())
            given.mul_(0)
            y.sum().backward()
            gradients.append(bits(net.weight.grad))
        assert gradients[0] == gradients[1]
    assert found._compiled.replays


def test_random_numbers_are_drawn_once() -> None:
    weight = lt.nn.Parameter(lt.randn(256, 256))

    def step(x: Any) -> Any:
        weight.grad = None
        h = F.dropout(gelu_in_ops(x @ weight), 0.3) * 2
        loss = (h * h).mean()
        loss.backward()
        return loss.detach()

    x = lt.randn(256, 256)
    found = compiled(step, x)
    seen = []
    for call in (step, found):
        lt.manual_seed(1)
        seen.append([bits(call(x)), bits(weight.grad), bits(lt.get_rng_state())])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
def test_the_peak_of_a_call_is_known_before_it(reads: bool, keeps: bool) -> None:
    weight, bias = lt.nn.Parameter(lt.randn(256, 256)), lt.nn.Parameter(lt.randn(256))

    def step(x: Any) -> Any:
        weight.grad = bias.grad = None
        y = gelu_in_ops(x @ weight + bias)
        if reads and y.mean() > 1e9:  # the old gradients stay until then
            y = y * 2
        loss = y.square().mean()
        loss.backward()
        return loss.detach(), y.detach() if keeps else None

    x = lt.randn(300, 256)
    found = compiled(step, x)
    kind = next(iter(found._kinds.values()))
    expected = kind.recordings[0].replay.peak_bytes
    assert f"at most {expected} bytes more than before a call" in lt.compiler.explain(found, x)
    assert peak_of(lambda: found(x)) == expected


def test_which_values_may_be_computed_again(joined_small_calls: list[Any]) -> None:
    def dropped(program: StepProgram) -> set[int]:
        return Recomputing(program, np.arange(len(program.entries)) == 1, every).dropped

    assert dropped(by_hand()) == {1}
    assert dropped(by_hand("reads x")) == {1}
    assert dropped(by_hand("writes x")) == set()
    assert dropped(by_hand("reads y")) == set()
    assert dropped(by_hand(LiveCall(print, None, (), {}))) == set()
    for kind in (FRESH, GIVEN):  # a gradient, which a live call may scale; one that arrives
        for between, expected in (((), {1}), ((LiveCall(print, None, (), {}),), set())):
            program = by_hand(*between)
            program.entries.append(by_hand("reads x").entries[2])
            program.values[0].kind = kind
            assert dropped(program) == expected
    later = by_hand()
    later.backward_at = 2  # x may have been written by then
    assert dropped(later) == set()
    later = by_hand()
    later.backward_at = 2
    later.entries.append(by_hand("reads x").entries[2])
    assert dropped(later) == {1}
    assert Recomputing(by_hand(), np.arange(3) == 1, lambda *_: False).dropped == set()


def test_what_is_computed_again_serves_the_uses_near_by(joined_small_calls: list[Any]) -> None:
    near, far = by_hand(), by_hand(*["reads x"] * 9)
    for program, expected in ((near, 1), (far, 2)):
        add = program.entries[-1]
        program.entries[2:2] = [add]  # uses y, too
        program.values[1].last = len(program.entries) - 1
        found = Recomputing(program, np.arange(len(program.entries)) == 1, every).program()
        assert found is not None
        functions = [row.function for row in found.rows]
        assert functions[:3] == [reversed_copy, OPS["mul"].plain, OPS["_add"].plain]
        assert functions.count(OPS["mul"].plain) == expected
        assert found.values[1].first == -1  # it has no memory any more
