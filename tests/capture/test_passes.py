"""Elementwise kernel calls joined into passes: the same bits, in no more memory."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.capture import binding
from lowtide.framework.capture.passes import joining, members
from lowtide.framework.capture.passes.joining import with_passes
from lowtide.framework.capture.passes.members import domain_of
from lowtide.framework.capture.passes.tiled_pass import pass_of
from lowtide.framework.capture.program import (
    Place,
    Row,
)
from lowtide.framework.capture.tape.kernel_loops import KernelTracer
from lowtide.framework.kernels.common.copy import rows_known
from lowtide.framework.kernels.cpu.tiled_tape import TILE
from lowtide.framework.ops.registry import OPS
from tests.capture.compiled_calls import (
    bits,
    compiled,
    passes,
    same,
    small_bytes,
)
from tests.capture.drawn_recordings import (
    MANY,
    by_hand,
    every,
    join_small_calls,
    ran,
)

pytestmark = pytest.mark.skipif(not rows_known(), reason="no compiled kernels on this machine")


@pytest.fixture
def joined_small_calls(monkeypatch: Any) -> list[Any]:
    """Small calls are joined, too; the passes."""
    return join_small_calls(monkeypatch)


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


@pytest.mark.parametrize(
    "n", [16, 17, 64, 129, TILE // 2, TILE // 2 + 1, TILE - 1, TILE, TILE + 1, 3 * TILE + 5]
)
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


@pytest.mark.parametrize("n", [16, 31, 32, 100, 640])
def test_a_tile_has_several_short_rows(n: int) -> None:
    def halves(x: Any, y: Any) -> Any:  # rows that are apart, in both operands and results
        a, b = x.chunk(2, 1)
        return ((a * y + b).tanh() * a - b.exp()) * 2

    def in_place(x: Any, y: Any) -> Any:
        x = x.clone()
        a, b = x.chunk(2, 1)
        a.mul_(y).add_(1)
        b.sub_(a).clamp_(-1, 1)
        return x

    def masks(x: Any, y: Any) -> Any:
        a, b = x.chunk(2, 1)
        return lt.where(a > y, a.double() * 2, b.double()) + 1

    def columns(x: Any, y: Any) -> Any:
        return (x[:, :n] * x[:, :1] + y) / (x[:, -1:] * y - 3)

    m = 40_000 // n + 1
    for f in (halves, in_place, masks, columns):
        counts = same(f, lt.randn(m, 2 * n), lt.randn(n))
        assert sum(counts) >= 2, f


def test_five_dims_that_cannot_be_joined() -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        return x * y + z

    assert same(f, lt.randn(5, 4, 3, 512), lt.randn(5, 1, 3, 1), lt.randn(4, 1, 512)) == [2]
    assert same(f, lt.randn(3, 4, 3, 1500), lt.randn(3, 1, 3, 1), lt.randn(4, 1, 1500)) == [2]
    five = [lt.randn(2, 5, 4, 3, 512), lt.randn(2, 1, 4, 1, 512), lt.randn(5, 1, 3, 1)]
    assert same(f, *five) == [2]
    five = [lt.randn(2, 3, 2, 3, 1500), lt.randn(2, 1, 2, 1, 1500), lt.randn(3, 1, 3, 1)]
    assert same(f, *five) == []
    six = [lt.randn(2, 3, 2, 3, 2, 512), lt.randn(2, 1, 2, 1, 2, 1), lt.randn(3, 1, 3, 1, 512)]
    assert same(f, *six) == []


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


def test_a_second_recording_that_agrees_is_not_planned(monkeypatch: Any) -> None:
    planned: list[Any] = []

    def noted(*args: Any) -> Any:
        planned.append(args)
        return with_passes(*args)

    monkeypatch.setattr(binding, "with_passes", noted)
    x = lt.randn(200, 200)
    found = compiled(lambda x: (x * 2 + 1).exp(), x)
    assert passes(found) == [3]
    assert (found.recordings, len(planned)) == (1, 1)
    model = lt.nn.Sequential(lt.nn.Linear(200, 200), lt.nn.Tanh())
    step = lt.compile(model)
    for _ in range(4):
        step(x).sum().backward()
    assert step._compiled.replays
    assert len(planned) == 2


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


@pytest.mark.parametrize("seed", range(20))
def test_operands_are_gone_through_once_each(seed: int) -> None:
    r = random.Random(seed)
    shape = tuple(r.choice([1, 2, 3, 64, 70]) for _ in range(r.randrange(1, 5)))
    while np.prod(shape) > 1 << 19:  # sorting takes long
        shape = shape[1:]
    places = []
    for k in range(r.randrange(1, 4)):
        of = tuple(1 if k and r.random() < 0.3 else n for n in shape)[r.randrange(2) if k else 0 :]
        strides, step = [0] * len(of), 4
        for d in reversed(range(len(of))):
            strides[d], step = step, step * of[d]
        places.append(Place(k, 0, of, np.dtype(np.float32), tuple(strides)))
    domain = domain_of(shape, places)
    if domain is None:
        assert shape[-1] < 64
        return
    assert domain.row <= TILE // 2
    sizes = [*domain.sizes, domain.row]
    for p, strides in zip(places, domain.strides, strict=True):
        reach = [np.arange(n) * s for n, s in zip(sizes, strides, strict=True)]
        found = sum(np.meshgrid(*reach, indexing="ij"))
        array = np.arange(np.prod(p.shape, dtype=int)).reshape(p.shape) * 4
        everywhere = np.broadcast_to(array, shape)
        assert np.array_equal(np.sort(found, None), np.sort(everywhere, None))
