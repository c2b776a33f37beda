"""Elementwise kernel calls joined into passes: the same bits, in no more memory."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.capture.passes import joining, members
from lowtide.framework.capture.passes.members import domain_of
from lowtide.framework.capture.passes.recomputing import Recomputing
from lowtide.framework.capture.passes.tiled_pass import TiledPass, pass_of
from lowtide.framework.capture.program import (
    ARENA,
    FRESH,
    GIVEN,
    OUTSIDE,
    LiveCall,
    Place,
    Row,
    StepProgram,
    Value,
)
from lowtide.framework.capture.tape.kernel_loops import KernelTracer
from lowtide.framework.kernels.common.copy import rows_known
from lowtide.framework.kernels.cpu.tiled_tape import TILE
from lowtide.framework.ops.registry import OPS
from tests.capture import test_random_programs as small

pytestmark = pytest.mark.skipif(not rows_known(), reason="no compiled kernels on this machine")


def bits(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [bits(y) for y in x]
    return None if x is None else np.ascontiguousarray(x.detach().numpy()).tobytes()


def compiled(f: Callable[..., Any], *args: Any) -> Any:
    """The function, recorded with these arguments."""
    found = lt.compile(f, fullgraph=True)
    for _ in range(4):
        found(*args)
    assert found.replays
    return found


def passes(found: Any) -> list[int]:
    """How many kernel calls each pass of a compiled function stands for."""
    kind = next(iter(found._kinds.values()))
    rows = kind.recordings[0].replay.program.rows
    return [r.function.count for r in rows if isinstance(r.function, TiledPass)]


def small_bytes(found: Any) -> int:
    """Of the block of small values, which lives as long as a call."""
    kind = next(iter(found._kinds.values()))
    return kind.recordings[0].replay.arena_bytes if found.replays else 0


def same(f: Callable[..., Any], *args: Any) -> list[int]:
    """Compare all bits with the function as written, for several arguments; return the passes."""
    found = compiled(f, *args)
    for k in range(3):
        given = [a.clone() if k == 0 else lt.randn_like(a) for a in args]
        written = [a.clone() for a in given]
        assert bits(found(*given)) == bits(f(*written))
        assert bits(given) == bits(written)
    return passes(found)


# Which calls are joined


def test_a_chain_is_one_pass_and_what_is_inside_needs_no_memory() -> None:
    def f(x: Any, y: Any) -> Any:
        a = x * y + x
        return a.sigmoid() * a - 1

    x, y = lt.randn(300, 400), lt.randn(400)
    found = compiled(f, x, y)
    assert passes(found) == [5]
    told = lt.compiler.explain(found, x, y)
    assert "5 kernel calls; 5 elementwise ones in 1 pass;" in told
    for call, copies in ((f, 3), (found, 1)):
        out = call(x, y)
        del out
        before = lt.memory_allocated()
        lt.reset_peak_memory_stats()
        out = call(x, y)
        assert lt.max_memory_allocated() - before == copies * x.nbytes, call
        del out


@pytest.mark.parametrize("n", [64, 129, TILE - 1, TILE, TILE + 1, 3 * TILE + 5])
@pytest.mark.parametrize("threads", [1, 2])
def test_tiles_of_all_sizes(n: int, threads: int) -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        return (x * y + z).exp() - z / 3, x.abs() * 2

    before = lt.get_num_threads()
    lt.set_num_threads(threads)
    try:
        m = 40_000 // n + 1
        assert same(f, lt.randn(m, n), lt.randn(n), lt.randn(m, 1)) == [6]
        assert same(f, lt.randn(3, m, n), lt.randn(3, 1, n), lt.randn(m, 1)) == [6]
        assert same(f, *(lt.randn(m * n) for _ in range(3))) == [7]
    finally:
        lt.set_num_threads(before)


def test_four_dims_that_cannot_be_joined() -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        return x * y + z

    assert same(f, lt.randn(5, 4, 3, 512), lt.randn(5, 1, 3, 1), lt.randn(4, 1, 512)) == [2]
    five = [lt.randn(2, 5, 4, 3, 512), lt.randn(2, 1, 4, 1, 512), lt.randn(5, 1, 3, 1)]
    assert same(f, *five) == []


def test_elements_that_do_not_lie_side_by_side_are_not_joined() -> None:
    def f(x: Any, y: Any) -> Any:
        return (x[:, ::2] * y[:, ::2] + 1).exp(), (x.t() * y).tanh()

    assert same(f, lt.randn(256, 256), lt.randn(256, 256)) == [2]


def test_a_kernel_that_depends_on_the_number_of_elements_is_not_joined() -> None:
    def plain(out: Any, x: Any) -> None:
        np.multiply(x, 2.0, out=out)

    def sized(out: Any, x: Any) -> None:
        np.multiply(x, float(x.size), out=out)

    places = [Place(n, 0, (200, 200), np.dtype(np.float32), (800, 4)) for n in range(3)]
    for function, expected in ((plain, 2), (sized, None)):
        function.__module__ = "lowtide.framework.ops.tests"
        rows = [Row(function, [places[k + 1], places[k]], [k + 1]) for k in range(2)]
        given = [members.Member(r, (200, 200), [r.arguments[0]], [r.arguments[1]]) for r in rows]
        row = pass_of(given, set(), KernelTracer())
        assert (row.function.count if row is not None else None) == expected


def test_numbers_that_are_special() -> None:
    values = lt.tensor([0.0, -0.0, 1e-45, -1e-40, 3e38, float("inf"), -float("inf"), float("nan")])
    x = values.repeat(64, 64)
    y = values.repeat_interleave(64).repeat(64, 1)
    found = compiled(lambda x, y: ((x * y + x) / y - y).sqrt().maximum(x), x, y)
    assert passes(found) == [6]
    assert bits(found(x, y)) == bits(((x * y + x) / y - y).sqrt().maximum(x))


def test_a_product_and_a_sum_are_rounded_twice() -> None:
    x, y, z = (lt.randn(200, 200) for _ in range(3))
    found = compiled(lambda x, y, z: x * y + z, x, y, z)
    exact = (x.double() * y.double() + z.double()).float()
    assert (found(x, y, z) != exact).any()  # as one rounding would give it
    assert bits(found(x, y, z)) == bits(x * y + z)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: x.t() * y + x,  # no common innermost dim
        lambda x, y: x.int() + y.int() * 2,
        lambda x, y: x[:, ::2] * y[:, ::2] + 1,
        lambda x, y: x[::2] * y[1::2] - x[1::2],
        lambda x, y: (x.flip(0) + y) * x.expand(2, 256, 256),
        lambda x, y: F.silu(x) * F.gelu(y) + F.relu(x) * y,
        lambda x, y: lt.where(x > 0, x * 2, y + 1) * 3,
        lambda x, y: x.clamp(-1, 1).pow(3) + y.pow(0.5),
        lambda x, y: x.double() * 2 + y.double().exp(),
        lambda x, y: (x.half() * y.half() + 1).float(),
        lambda x, y: lt.lerp(x, y, 0.3) * lt.addcmul(x, y, y, value=2),
        lambda x, y: [(x + k) * y for k in range(9)],
        lambda x, y: (x * lt.tensor(2.0) + y) * lt.tensor([3.0]),
        lambda x, y: (x * y).view(2, -1, 256) + y.view(2, -1, 256),
        lambda x, y: (x * y).sum(0) + (x + y).mean(0),
    ],
)
def test_functions_of_all_kinds(f: Any) -> None:
    same(f, lt.randn(256, 256), lt.randn(256, 256))


def test_writes_in_place_come_in_their_order() -> None:
    def f(x: Any, y: Any) -> Any:
        a = x * 2
        b = a + y  # of a before the write
        a.mul_(y).add_(b)
        a[:, :100] += a[:, 100:200]  # an overlap that a pass does not take
        return a - b, b

    assert sum(same(f, lt.randn(100, 200), lt.randn(100, 200))) >= 4


def test_writes_to_what_was_there_before_are_not_joined() -> None:
    total = lt.zeros(200, 200)

    def f(x: Any) -> Any:
        y = x * 2 + 1
        total.add_(y).mul_(0.5)
        return y - total

    x = lt.randn(200, 200)
    found = compiled(f, x)
    assert passes(found) == [2]
    for _ in range(3):
        before = total.clone()
        expected = f(x)
        after = total.clone()
        total.copy_(before)
        assert bits(found(x)) == bits(expected)
        assert bits(total) == bits(after)


def test_a_call_between_that_needs_a_result_ends_a_pass() -> None:
    def f(x: Any, y: Any) -> Any:
        a = x * 2
        other = y @ y  # comes before the pass
        b = a + 1
        c = b @ y  # needs it
        return b * c + c * 3, other

    assert same(f, lt.randn(160, 160), lt.randn(160, 160)) == [2, 3]


def test_numbers_that_python_reads_end_a_pass() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        return y * 3 - 1

    x = lt.ones(200, 200)
    found = compiled(f, x)
    for sign in (1, -1, 1):
        assert bits(found(sign * x)) == bits(f(sign * x))


def test_random_numbers_end_a_pass() -> None:
    def f(x: Any) -> Any:
        y = x * 2 + 1
        z = F.dropout(y, 0.5) * 3 - y
        return z + lt.randn_like(x)

    found, x = compiled(f, lt.randn(200, 200)), lt.randn(200, 200)
    for seed in range(3):
        lt.manual_seed(seed)
        expected = f(x)
        lt.manual_seed(seed)
        assert bits(found(x)) == bits(expected)


def test_a_pass_that_would_raise_the_peak_is_not_made() -> None:
    def f(x: Any) -> Any:
        # Each of `parts` dies where the next result is born.
        parts = [x + k for k in range(4)]
        sums = [p.sum() for p in parts]
        found = []
        while parts:
            found.append(parts.pop() * 2)
        return sum(sums), found

    x = lt.randn(200, 200)
    found = compiled(f, x)
    peaks = []
    for call in (f, found):
        out = call(x)
        del out
        before = lt.memory_allocated()
        lt.reset_peak_memory_stats()
        out = call(x)
        peaks.append(lt.max_memory_allocated() - before)
        assert bits(out) == bits(f(x))
        del out
    assert peaks[1] <= peaks[0] + small_bytes(found)


# What is computed again


def gelu_in_ops(h: Any) -> Any:
    return 0.5 * h * (1 + lt.tanh(0.8 * (h + 0.044 * h * h * h)))


def peak_of(call: Callable[[], Any]) -> int:
    """The highest sum of bytes in a call, beyond what is there before."""
    out = call()
    del out
    before = lt.memory_allocated()
    lt.reset_peak_memory_stats()
    out = call()
    del out
    return lt.max_memory_allocated() - before


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
    assert "27 elementwise ones in 3 passes, 12 of them twice to keep less" in told
    # As written, the results of six ops are kept beside those of the products.
    assert peak_of(lambda: step(x)) == 9 * x.nbytes + 12
    assert peak_of(lambda: found(x)) == 5 * x.nbytes + last.nbytes + small_bytes(found) + 4


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


# Drawn programs


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


@pytest.mark.quick(3)
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
    """Small calls are joined, too, and arrays with short dims; returns the passes."""
    monkeypatch.setattr(members, "LEAST", 1)
    monkeypatch.setattr(members, "SHORTEST", 1)
    found: list[Any] = []

    def noted(*args: Any) -> Any:
        found.append(pass_of(*args))
        return found[-1]

    monkeypatch.setattr(joining, "pass_of", noted)
    return found


@pytest.mark.deep
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("first", range(0, 5 * small.COUNT, small.COUNT))
def test_programs_of_small_tensors(joined_small_calls: list[Any], first: int, split: bool) -> None:
    small.test_programs_replay_the_same_bits(first, split)
    assert sum(row is not None for row in joined_small_calls) > small.COUNT


# Drawn recordings: places that overlap, values of all kinds, other calls between


def _reversed(out: Any, x: Any) -> None:
    out[...] = x.reshape(-1)[: out.size][::-1].reshape(out.shape).copy()


MANY = 4 * TILE + 100  # numbers of a value


class DrawnProgram:
    """A recording on values of some tiles, of which the first two are one memory from outside."""

    def __init__(self, seed: int) -> None:
        self.r = r = random.Random(seed)
        kinds = [OUTSIDE, OUTSIDE, *r.choices([ARENA, ARENA, FRESH], k=5)]
        self.program = StepProgram()
        self.program.values = [Value(n, 4 * MANY, kind) for n, kind in enumerate(kinds)]
        self.program.tensors = [None, None]
        filled = {0, 1}
        for k in range(r.randrange(4, 14)):
            free = [n for n in range(2, 7) if n not in filled]
            if free and (r.random() < 0.5 or k < 2):
                target = r.choice(free)  # filled completely: no place of it is read before
                source = self.all_of(r.choice([*filled]))
                self.add(OPS["mul"].plain, [np, self.all_of(target), source, 0.5])
                filled.add(target)
                continue
            shape = r.choice([(6000,), (6000,), (2, 3000)])
            sources = [self.place(r.choice([*filled]), shape) for _ in range(2)]
            target = r.choice([*filled] if r.random() < 0.2 else [*(filled - {0, 1})] or [0])
            out = r.choice([s for s in sources if s.value == target] or [self.place(target, shape)])
            if r.random() < 0.25:
                self.add(_reversed, [out, sources[0]])
            elif r.random() < 0.3:
                self.add(OPS["neg"].plain, [np, out, sources[0]])
            else:
                name = r.choice(["mul", "_add", "_sub"])
                self.add(OPS[name].plain, [np, out, sources[0], r.choice([sources[1], 1.5])])

    def all_of(self, value: int) -> Place:
        return Place(value, 0, (MANY,), np.dtype(np.float32), (4,))

    def place(self, value: int, shape: tuple[int, ...]) -> Place:
        offset = 4 * self.r.choice([0, 0, 0, 2000, MANY - 6000])
        strides = (4,) if len(shape) == 1 else (12_000, 4)
        return Place(value, offset, shape, np.dtype(np.float32), strides)

    def add(self, function: Any, arguments: list[Any]) -> None:
        k = len(self.program.entries)
        places = [a for a in arguments if isinstance(a, Place)]
        self.program.entries.append(Row(function, arguments, [places[0].value]))
        for p in places:
            value = self.program.values[p.value]
            value.first, value.last = k if value.first < 0 else value.first, k


def ran(program: StepProgram) -> list[bytes]:
    """Make its calls; return what is there afterwards of values that outlive them."""
    random_numbers = np.random.default_rng(0).standard_normal(MANY).astype(np.float32)
    memory = [np.full(MANY, np.nan, np.float32) for _ in program.values]
    memory[0][:] = random_numbers
    if program.values[1].kind == OUTSIDE:
        memory[1] = memory[0]
    for k, row in enumerate(program.rows):
        arrays = [
            np.ndarray(a.shape, a.dtype, memory[a.value], a.offset, a.strides)
            if isinstance(a, Place)
            else a
            for a in row.arguments
        ]
        row.function(*arrays)
        for m, v in zip(memory, program.values, strict=True):
            if v.kind == ARENA and v.last == k:
                m[:] = np.nan  # another value may lie there
    return [m.tobytes() for m, v in zip(memory, program.values, strict=True) if v.kind != ARENA]


def every(program: StepProgram, row: Row) -> bool:
    """All memory is aligned."""
    return True


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


def by_hand(*between: Any) -> StepProgram:
    """``y = x * 2``; some entries; ``z = y + 1``, of x from outside."""
    program = StepProgram(tensors=[None])
    program.values = [Value(0, 4 * MANY, OUTSIDE), Value(1, 4 * MANY, ARENA)]
    program.values += [Value(n, 4 * MANY, FRESH) for n in (2, 3)]
    x, y, z, other = (Place(n, 0, (MANY,), np.dtype(np.float32), (4,)) for n in range(4))
    rows = {
        "reads y": Row(_reversed, [other, y], [3]),
        "writes x": Row(_reversed, [x, other], [0]),
        "reads x": Row(_reversed, [other, x], [3]),
    }
    program.entries = [
        Row(OPS["mul"].plain, [np, y, x, 2.0], [1]),
        Row(_reversed, [other, x], [3]),
        *[rows[e] if isinstance(e, str) else e for e in between],
        Row(OPS["_add"].plain, [np, z, y, 1.0], [2]),
    ]
    for k, row in enumerate(program.entries):
        for p in [a for a in getattr(row, "arguments", []) if isinstance(a, Place)]:
            value = program.values[p.value]
            value.first, value.last = k if value.first < 0 else value.first, k
    return program


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
        assert functions[:3] == [_reversed, OPS["mul"].plain, OPS["_add"].plain]
        assert functions.count(OPS["mul"].plain) == expected
        assert found.values[1].first == -1  # it has no memory any more


def test_a_call_that_reads_what_it_writes_elsewhere_is_not_joined(
    joined_small_calls: list[Any],
) -> None:
    program = by_hand()
    y = program.entries[0].arguments[1]
    late, early = (y._replace(offset=n, shape=(MANY - 100,)) for n in (400, 0))
    program.entries[1] = Row(OPS["_add"].plain, [np, late, early, 1.0], [1])
    program.entries[2] = Row(OPS["mul"].plain, [np, late._replace(value=2), late, 2.0], [2])
    program.values[1].last = 2
    found = joining.joined(program, KernelTracer(), every)
    with np.errstate(all="ignore"):
        assert ran(found) == ran(program)
    assert len(found.entries) == 3


def test_a_backward_begins_behind_what_forward_computes() -> None:
    class Net(lt.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = lt.nn.Parameter(lt.randn(200, 200))

        def forward(self, x: Any) -> Any:
            return x @ self.weight, x * 2 + 1

    net = Net()
    found = lt.compile(net)
    for _ in range(5):
        x, g = lt.randn(200, 200), lt.randn(200, 200)
        y, z = found(x)
        assert bits(z) == bits(x * 2 + 1)
        y.backward(g)
        assert bits(z) == bits(x * 2 + 1)
    assert found._compiled.replays


# The order of operands


@pytest.mark.parametrize("seed", range(20))
def test_operands_are_gone_through_once_each(seed: int) -> None:
    r = random.Random(seed)
    shape = tuple(r.choice([1, 2, 3, 64, 70]) for _ in range(r.randrange(1, 5)))
    places = []
    for k in range(r.randrange(1, 4)):
        of = tuple(1 if k and r.random() < 0.3 else n for n in shape)[r.randrange(2) if k else 0 :]
        strides, step = [0] * len(of), 4
        for d in reversed(range(len(of))):
            strides[d], step = step, step * of[d]
        places.append(Place(k, 0, of, np.dtype(np.float32), tuple(strides)))
    domain = domain_of(shape, places)
    if domain is None:
        assert shape[-1] < 64 or len(shape) > 4
        return
    for p, strides in zip(places, domain.strides, strict=True):
        reach = [np.arange(n) * s for n, s in zip(domain.sizes, strides, strict=True)]
        found = sum(np.meshgrid(*reach, indexing="ij"))
        array = np.arange(np.prod(p.shape, dtype=int)).reshape(p.shape) * 4
        assert sorted(found.ravel()) == sorted(np.broadcast_to(array, shape).ravel())
