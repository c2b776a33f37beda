"""Passes in drawn programs and in drawn recordings."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.capture.passes import joining
from lowtide.framework.capture.passes.recomputing import Recomputing
from lowtide.framework.capture.tape.kernel_loops import KernelTracer
from lowtide.framework.kernels.common.copy import rows_known
from tests.capture import test_random_programs as small
from tests.capture.compiled_calls import (
    bits,
    passes,
    small_bytes,
)
from tests.capture.drawn_recordings import (
    DrawnProgram,
    every,
    join_small_calls,
    ran,
)

pytestmark = pytest.mark.skipif(not rows_known(), reason="no compiled kernels on this machine")


UNARY: list[Callable[[Any], Any]] = [
    lambda x: x.tanh(), lambda x: x.sigmoid(), lambda x: -x, lambda x: x.exp(), lambda x: x.abs(),
    lambda x: F.silu(x), lambda x: F.gelu(x), lambda x: F.relu(x), lambda x: x.pow(2),
    lambda x: x * 0.5, lambda x: 1 - x, lambda x: x.clamp(-1, 1), lambda x: F.softplus(x),
    lambda x: x.detach() + x, lambda x: x.sin(), lambda x: x.softmax(-1), lambda x: x.square(),
]  # fmt: skip
BINARY: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y, lambda x, y: x * y, lambda x, y: x - y, lambda x, y: x / (y.abs() + 1),
    lambda x, y: x.maximum(y), lambda x, y: lt.where(x > y, x, y * 2),
    lambda x, y: x + y.mean(-1, keepdim=True), lambda x, y: x * y.sum(0),
    lambda x, y: lt.lerp(x, y, 0.25), lambda x, y: (x.t() * y.t()).t(),
]  # fmt: skip
SHAPES = [(130, 131), (9, 17, 128), (1, 20_000), (5, 4099)]


def drawn(seed: int) -> tuple[Callable[..., Any], list[Any]]:
    """A function of tensors, and leaves for it."""
    r = random.Random(seed)
    shape = r.choice(SHAPES)
    leaves = [shape, shape, shape[-1:], (*shape[:-1], 1)]
    steps = [
        (r.randrange(4), r.randrange(len(UNARY)), r.randrange(len(BINARY)), r.random(), r.random())
        for _ in range(r.randrange(3, 12))
    ]

    def f(*given: Any) -> Any:
        values = [x * 1 for x in given[:2]]
        for kind, unary, binary, a, b in steps:
            x = values[int(a * len(values))]
            y = [*values, *given[2:]][int(b * (len(values) + 2))]
            if kind == 0:
                values.append(UNARY[unary](x))
            elif kind == 3:
                with lt.no_grad():
                    x.mul_(0.5).add_(y.detach())
            elif x.dim() == 2 or binary != 9:
                values.append(BINARY[binary](x, y if y.dim() == x.dim() or binary != 9 else x))
        out = values[-1]
        return (out * out).mean() + sum(v.mean() for v in values[2:-1]), out.detach()

    return f, [lt.randn(*s) for s in leaves]


@pytest.mark.quick(1)
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_drawn_programs_have_the_same_bits_and_no_higher_peak(first: int) -> None:
    calls = 0
    for seed in range(first, first + 20):
        lt.manual_seed(seed)
        f, leaves = drawn(seed)
        params = [lt.nn.Parameter(x) for x in leaves]

        def step() -> Any:
            for p in params:
                p.grad = None
            loss, out = f(*params)
            loss.backward()
            return loss.detach(), out

        found = lt.compile(step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lt.CaptureWarning)
            try:
                for _ in range(4):
                    found()
            except lt.GradientError:  # a write hits what backward needs
                continue
            peaks, seen = [], []
            for call in (step, found):
                out = call()
                del out
                before = lt.memory_allocated()
                lt.reset_peak_memory_stats()
                out = call()
                peaks.append(lt.max_memory_allocated())
                seen.append([bits(out), bits([p.grad for p in params])])
                del out
        assert seen[0] == seen[1], seed
        assert peaks[1] <= peaks[0] + small_bytes(found), (seed, peaks)
        if found.replays:
            kind = next(iter(found._kinds.values()))
            assert peaks[1] - before == kind.recordings[0].replay.peak_bytes, seed
        calls += sum(passes(found)) if found.replays else 0
    assert calls > 100


@pytest.fixture
def joined_small_calls(monkeypatch: Any) -> list[Any]:
    """Small calls are joined, too; the passes."""
    return join_small_calls(monkeypatch)


@pytest.mark.deep
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("first", range(0, 5 * small.COUNT, small.COUNT))
def test_programs_of_small_tensors(joined_small_calls: list[Any], first: int, split: bool) -> None:
    small.test_programs_replay_the_same_bits(first, split)
    assert sum(row is not None for row in joined_small_calls) > small.COUNT


@pytest.mark.deep
def test_drawn_recordings_compute_the_same(joined_small_calls: list[Any]) -> None:
    made = different = computed_again = 0
    tracer = KernelTracer()
    for seed in range(400):
        drawn_program = DrawnProgram(seed)
        before = drawn_program.program
        after = joining.joined(before, tracer, every)
        made += after is not before
        assert joining.live_bytes(after).max() <= joining.live_bytes(before).max()
        with np.errstate(all="ignore"):
            expected = ran(before)
            different += expected != ran(after)
            both = joining.with_passes(before, tracer, every)
            different += expected != ran(both)
            assert joining.live_bytes(both).max() <= joining.live_bytes(after).max()
            # With a peak anywhere: values are computed again whether that is of use or not.
            for peak in np.eye(len(before.entries)):
                again = Recomputing(before, peak, every).program()
                if again is not None:
                    computed_again += 1
                    different += expected != ran(again)
    assert different == 0
    assert made > 150
    assert computed_again > 100
