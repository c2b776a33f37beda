"""Small kernel calls as loops of NumPy's: the same bits, or the kernel itself."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn
from lowtide.framework.capture.program import DrawNumber, EmptyArray, Place, Row
from lowtide.framework.capture.tape.kernel_loops import KernelTracer
from lowtide.framework.capture.tape.numpy_loops import MOST, walked
from lowtide.framework.capture.tape.tape import Tape
from lowtide.framework.capture.tape.traced_array import TracedArray
from lowtide.framework.kernels.common import shared_ufuncs
from lowtide.framework.kernels.common.copy import rows_known
from lowtide.framework.kernels.cpu import loop_tape
from lowtide.framework.kernels.cpu.compiler import signature
from lowtide.framework.kernels.cpu.support.jit import compiled

pytestmark = pytest.mark.skipif(not rows_known(), reason="no compiled kernels on this machine")

OF_FLOATS = sorted(shared_ufuncs._OF_FLOATS)
OF_INTEGERS = sorted(shared_ufuncs._OF_INTEGERS)
DTYPES = ["f", "d", "e", "i", "q", "h", "b", "B", "?", "F"]


def ours(function: Any) -> Any:
    """The function as one of lowtide's own kernels."""
    function.__module__ = "lowtide.framework.ops.tests"
    return function


class Case:
    """Arrays in memory of their own, and the places that say where they lie."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random, self.dense = random, False
        self.memory: list[np.ndarray] = []
        self.places: list[Place] = []
        self.arrays: list[np.ndarray] = []

    def add(self, shape: tuple[int, ...], dtype: Any, like: int | None = None) -> Place:
        """An array of drawn strides; or the memory of another one."""
        dtype = np.dtype(dtype)
        if like is not None:
            place = self.places[like]
        else:
            order = [*range(len(shape))][::-1]
            if not self.dense:
                order = [int(d) for d in self.random.permutation(len(shape))]
            strides, step = [0] * len(shape), dtype.itemsize
            for d in order:
                gap = 1 if self.dense else int(self.random.choice([1, 1, 2]))
                strides[d], step = step * gap, step * gap * shape[d]
            offset = dtype.itemsize * int(self.random.integers(3))
            place = Place(len(self.memory), offset, shape, dtype, tuple(strides))
            self.memory.append(np.zeros((step + offset) // 16 + 2, np.complex128).view(np.uint8))
        self.places.append(place)
        array = np.ndarray(
            place.shape, dtype, self.memory[place.value], place.offset, place.strides
        )
        if dtype.kind in "fc":
            array[...] = self.random.standard_normal(shape)
        else:
            array[...] = self.random.integers(0, 100, shape)
        self.arrays.append(array)
        return place

    def both(self, function: Any, *more: Any) -> bool:
        """Run a kernel call and what stands for it; False if nothing does."""
        row = Row(ours(function), [*self.places, *more], [])
        taped = KernelTracer().taped(row)
        if taped is None:
            return False
        before = [m.copy() for m in self.memory]
        tape = Tape([taped])
        for number, sites in tape.sites.items():
            sites.bind(self.memory[number].ctypes.data)
        for _ in range(2):  # the loops may not change their own words
            for m, b in zip(self.memory, before, strict=True):
                m[:] = b
            tape.run()
        found = [m.tobytes() for m in self.memory]
        for m, b in zip(self.memory, before, strict=True):
            m[:] = b
        with np.errstate(all="ignore"):
            function(*self.arrays, *more)
        assert found == [m.tobytes() for m in self.memory]
        return True


def shapes(random: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape, and one that broadcasts to it."""
    shape = tuple(int(n) for n in random.choice([1, 2, 3, 5, 17], random.integers(1, 5)))
    other = tuple(1 if random.random() < 0.3 else n for n in shape)
    return shape, other[int(random.integers(len(other))) :]


@pytest.mark.parametrize("dtype", DTYPES)
def test_ufuncs_of_drawn_layouts(dtype: str) -> None:
    random = np.random.default_rng([*dtype.encode()])
    taken = 0
    for name in OF_FLOATS if np.dtype(dtype).kind in "fc" else OF_INTEGERS:
        ufunc = getattr(np, name)
        result = next((t[-1] for t in ufunc.types if t.startswith(dtype * ufunc.nin + "->")), None)
        if result is None:
            continue
        for _ in range(4):
            case = Case(random)
            shape, other = shapes(random)
            case.add(shape, result)
            case.add(shape, dtype)
            if ufunc.nin == 2:
                case.add(other, dtype)
            taken += case.both(lambda out, *inputs, ufunc=ufunc: ufunc(*inputs, out=out))
    assert taken > 20


def test_arrays_before_the_tensor_whose_address_is_known() -> None:
    case = Case(np.random.default_rng(0))
    x, y = (case.add((4, 8), np.float32) for _ in range(2))
    for k, before in ((0, 68), (1, 4)):
        place = (x, y)[k]
        memory = np.zeros(1024, np.uint8)
        case.memory[k] = memory[128:]
        case.places[k] = place._replace(offset=place.offset - before)
        case.arrays[k] = np.ndarray(
            (4, 8), np.float32, memory, 128 + place.offset - before, place.strides
        )
        case.arrays[k][...] = np.arange(32).reshape(4, 8)
    assert case.both(lambda out, x: np.multiply(x, 2.0, out=out))
    assert case.arrays[0].sum() == 2 * np.arange(32).sum()


@pytest.mark.parametrize("seed", range(30))
def test_chains_on_shared_memory(seed: int) -> None:
    random = np.random.default_rng(seed)
    case = Case(random)
    shape, other = shapes(random)
    for _ in range(3):
        case.add(shape, np.float32)
    case.add(other, np.float32)

    def kernel(out: Any, a: Any, b: Any, c: Any, number: float) -> None:
        np.multiply(a, number, out=out)
        np.add(out, c, out=out)
        a -= b
        out[...] = np.maximum(out, a, out=out)
        b[..., :1] = c[..., :1]
        a.fill(number)
        np.exp(b, out=b)
        np.copyto(a, b)

    assert case.both(kernel, float(random.standard_normal()))


def reduced(case: Case, shape: tuple[int, ...], axes: tuple[int, ...]) -> list[bool]:
    kept = tuple(1 if d in axes else n for d, n in enumerate(shape))
    taken = []
    for ufunc in (np.add, np.multiply, np.maximum, np.minimum):
        for keepdims in (True, False):
            out = kept if keepdims else tuple(n for d, n in enumerate(shape) if d not in axes)
            case.places, case.arrays = [], []
            case.add(out, np.float32)
            case.add(shape, np.float32)

            def kernel(out: Any, x: Any, ufunc: Any = ufunc, keepdims: bool = keepdims) -> None:
                ufunc.reduce(x, axes, out.dtype, out, keepdims)

            taken.append(case.both(kernel))
    return taken


@pytest.mark.quick(60)
@pytest.mark.parametrize("seed", range(200))
def test_reductions_of_drawn_layouts(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = tuple(int(n) for n in random.choice([1, 2, 7, 33], random.integers(1, 4)))
    axes = tuple(d for d in range(len(shape)) if random.random() < 0.5) or (len(shape) - 1,)
    reduced(Case(random), shape, axes)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_reductions_of_what_has_no_gaps_are_on_tapes(axes: tuple[int, ...]) -> None:
    case = Case(np.random.default_rng(0))
    case.dense = True
    assert all(reduced(case, (3, 7, 33), axes))


@pytest.mark.parametrize("dtype", ["f", "d", "F"])
@pytest.mark.parametrize("stack", [(), (3,), (2, 3)])
def test_products_of_drawn_layouts(dtype: str, stack: tuple[int, ...]) -> None:
    random = np.random.default_rng(len(stack))
    for _ in range(10):
        m, k, n = (int(x) for x in random.choice([1, 2, 5, 16], 3))
        case = Case(random)
        case.add((*stack, m, n), dtype)
        case.add((*stack, m, k), dtype)
        case.add(((k, n) if random.random() < 0.5 else (*stack, k, n)), dtype)
        assert case.both(lambda out, a, b: np.matmul(a, b, out=out))


def test_dims_are_ordered_and_joined_as_numpy_does() -> None:
    assert walked((4, 1, 8), [(32, 0, 4), (32, 7, 4)]) == ([32], [[4], [4]])
    assert walked((4, 8), [(4, 16), (4, 16)]) == ([32], [[4], [4]])
    assert walked((4, 8), [(32, 4), (4, 16)]) == ([4, 8], [[32, 4], [4, 16]])
    assert walked((4, 8), [(0, 4), (32, 4)]) == ([4, 8], [[0, 4], [32, 4]])
    assert walked((1, 1), [(9, 9)]) == ([1], [[0]])


@pytest.mark.parametrize("seed", range(60))
def test_elements_come_in_numpys_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = tuple(int(n) for n in random.choice([1, 2, 3, 5], random.integers(1, 5)))
    arrays = []
    for _ in range(3):
        case = Case(random)
        case.add(shape, np.int64)
        (array,) = case.arrays
        array[...] = np.arange(array.size).reshape(shape)
        cut = [slice(0, 1) if random.random() < 0.2 else slice(None) for _ in shape]
        arrays.append(np.broadcast_to(array[tuple(cut)], shape))
    flags: Any = ["external_loop"]
    expected = [
        tuple(tuple(x.tolist()) for x in chunks)
        for chunks in np.nditer(arrays, flags, [["readonly"]] * 3, order="K")
    ]
    strides = [[0 if n == 1 else s for n, s in zip(shape, a.strides, strict=True)] for a in arrays]
    walk = walked(shape, strides)
    ways = [as_strided(a, walk.sizes, s) for a, s in zip(arrays, walk.strides, strict=True)]
    found = [
        tuple(tuple(w[outer].tolist()) for w in ways) for outer in np.ndindex(*walk.sizes[:-1])
    ]
    assert found == expected


def refused(function: Any, *places: Any) -> bool:
    return KernelTracer().taped(Row(function, [*places], [])) is None


X = Place(0, 0, (4, 8), np.dtype(np.float32), (32, 4))
Y = Place(1, 0, (4, 8), np.dtype(np.float32), (32, 4))
KERNELS = {
    "it reads numbers": lambda out, x: np.add(x, float(np.asarray(x)[0, 0]), out=out),
    "it branches on numbers": lambda out, x: np.copyto(out, x) if x[0, 0] > 0 else None,
    "it allocates": lambda out, x: np.copyto(out, x + x),
    "it copies": lambda out, x: np.copyto(out, x.copy()),
    "it takes elements": lambda out, x: np.copyto(out, x[[0, 1, 2, 3]]),
    "it converts": lambda out, x: np.add(x, np.ones((4, 8)), out=out, casting="unsafe"),
    "it computes behind it": lambda out, x: np.add(np.asarray(x), 1, out=np.asarray(out)),
    "it overlaps": lambda out, x: np.add(x[1:], 1.0, out=x[:-1]),
    "its mask is what it writes": lambda out, x: np.copyto(
        out.view(np.bool_)[1:], True, where=out.view(np.bool_)[:-1]
    ),
    "it counts": lambda out, x, k=[0]: (k.append(0), np.add(x, float(len(k)), out=out)),
    "it sorts": lambda out, x: x.sort(),
    "it raises": lambda out, x: [][0],
}


@pytest.mark.parametrize("what", KERNELS)
def test_a_kernel_stays_as_it_is(what: str) -> None:
    assert refused(ours(KERNELS[what]), Y, X)


def test_what_is_no_small_kernel_call_stays_as_it_is() -> None:
    add = ours(lambda out, x, *_: np.add(x, 1.0, out=out))
    assert not refused(add, Y, X)
    large = Place(0, 0, (MOST + 1,), np.dtype(np.float32), (4,))
    assert refused(add, large._replace(value=1), large)
    assert refused(add, Y, X, DrawNumber(0))
    for nothing in (X._replace(shape=(0, 8)), X._replace(shape=(4, 0))):
        assert refused(add, Y, X, nothing)
    for unaligned in (X._replace(offset=2), X._replace(strides=(33, 4))):
        assert refused(add, Y, X, unaligned)
    assert not refused(add, Y, X, EmptyArray((0,), np.dtype(np.float32)))
    column = X._replace(shape=(16, 8), strides=(1 << 17, 4))  # tracing takes memory for its gaps
    assert refused(add, Y._replace(shape=(16, 8)), column)
    assert refused(ours(lambda out: np.add(1.0, 2.0, out=out)), Y)
    add.__module__ = "my_kernels"  # it may do more than compute
    assert refused(add, Y, X)
    wrapped = ours(lambda *arrays: add(*arrays))
    wrapped.__wrapped__ = add
    assert refused(functools.partial(wrapped), Y, X)


def test_kernel_calls_of_one_kind_are_traced_once() -> None:
    ran = []

    def kernel(out: Any, x: Any, *_: Any) -> None:
        ran.append(type(x))
        np.add(x, 1.0, out=out)

    tracer = KernelTracer()
    for number in range(5):
        assert tracer.taped(Row(ours(kernel), [Y._replace(value=9 + number), X], [])) is not None
    first = len(ran)
    assert ran.count(TracedArray) == 1  # and then on drawn numbers
    assert first < 5 * 5
    assert tracer.taped(Row(kernel, [Y, X, 2], [])) is not None
    assert tracer.taped(Row(kernel, [X, X], [])) is not None
    assert tracer.taped(Row(kernel, [Y, X._replace(offset=64)], [])) is not None
    assert len(ran) == 4 * first


def test_a_step_of_small_ops_is_on_tapes_and_peaks_no_higher() -> None:
    lt.manual_seed(0)
    cell = nn.GRUCell(6, 6)
    x = lt.randn(5, 4, 6)

    def step(x: Any) -> Any:
        cell.zero_grad()
        h = lt.zeros(4, 6)
        for t in range(5):
            h = cell(x[t], h) * F.softmax(h, -1).sum(-1, keepdim=True)
        loss = (h * h).mean()
        loss.backward()
        return loss.detach()

    compiled = lt.compile(step, fullgraph=True)
    peaks = []
    for call in (step, compiled):
        for _ in range(5):
            lt.reset_peak_memory_stats()
            found = call(x)
        grads = [p.grad.numpy().tobytes() for p in cell.parameters()]
        peaks.append((lt.max_memory_allocated(), found.item(), grads))
    assert peaks[1][1:] == peaks[0][1:]
    assert compiled.replays == 2
    assert "small ones on" in lt.compiler.explain(step, x)


def test_memory_that_is_not_aligned_is_no_recorded_call() -> None:
    bits = np.zeros(4 * 8 + 1, np.uint8)[1:].view(np.float32)
    assert not bits.flags.aligned
    compiled = lt.compile(lambda x: x + 1)
    with pytest.warns(lt.CaptureWarning, match="not contiguous, or not aligned"):
        compiled(lt.from_numpy(bits))
    for k in range(5):
        bits[:] = k
        assert compiled(lt.from_numpy(bits)).tolist() == [k + 1.0] * 8
    assert compiled.replays == 0


def unaligned(n: int) -> Any:
    return lt.from_numpy(np.ones(4 * n + 1, np.uint8)[1:].view(np.float32))


def test_a_gradient_that_is_not_aligned_arrives_at_a_compiled_module() -> None:
    net = nn.Linear(6, 4)
    compiled = lt.compile(net)
    x = lt.randn(3, 6)
    for k in range(6):
        net.zero_grad()
        g = unaligned(12).reshape(3, 4) if k == 5 else lt.ones(3, 4)
        compiled(x).backward(g)
    expected = net.weight.grad
    net.zero_grad()
    net(x).backward(unaligned(12).reshape(3, 4).clone())
    assert net.weight.grad.tolist() == expected.tolist()


def test_a_tensor_that_is_not_aligned_is_used_by_a_compiled_function() -> None:
    shift = unaligned(8)
    compiled = lt.compile(lambda x: (x * 2 - shift).exp(), fullgraph=True)
    for k in range(6):
        x = lt.randn(8)
        assert compiled(x).tolist() == (x * 2 - shift).exp().tolist(), k
    assert compiled.replays == 3


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", ["f", "d", "e", "h", "?", "q"])
def test_masked_copies_of_drawn_layouts(dtype: str) -> None:
    random = np.random.default_rng([*dtype.encode()])
    for k in range(12):
        case = Case(random)
        shape, other = shapes(random)
        case.add(shape, dtype)
        case.add(shape if k % 2 else other, dtype)
        case.add(other if k % 2 else shape, "?")

        def kernel(out: Any, x: Any, mask: Any, number: Any = k) -> None:
            np.copyto(out, x, where=mask)
            np.copyto(out, True if number else x, where=mask)

        assert case.both(kernel)


@compiled
def _weighted(out: Any, x: Any, factor: Any, shift: Any, size: Any, kept: Any, skip: Any) -> None:
    for i in range(size[0]):
        for j in range(size[1]):
            if kept or j != skip:
                out[i, j] = x[i, j] * factor + shift


@compiled
def _sum_of(x: Any) -> float:
    total = 0.0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            total += x[i, j]
    return total


@pytest.mark.parametrize("kept", [True, False])
def test_compiled_kernels_with_arguments_of_all_kinds(kept: bool) -> None:
    for seed in range(4):
        case = Case(np.random.default_rng(seed))
        case.add((3, 5), np.float32)
        case.add((3, 5), np.float32)

        def kernel(out: Any, x: Any) -> None:
            out.fill(7)
            _weighted(out, x, np.float32(0.5), -2.5, (3, 5), kept, 2)

        assert case.both(kernel)


def test_kernels_that_tell_something_or_use_other_memory_stay_as_they_are() -> None:
    other = np.ones((4, 8), np.float32)

    def telling(out: Any, x: Any) -> None:
        out.fill(_sum_of(x))

    def elsewhere(out: Any, x: Any) -> None:
        _weighted(out, other, np.float32(1), 0.0, (4, 8), True, 0)

    def by_address(out: Any, x: Any) -> None:
        at = x.__array_interface__["data"][0]
        _weighted(out, x, np.float32(1), 0.0, (at - at, 8), True, at)

    def threads(out: Any, x: Any) -> None:
        if not _weighted.share(0, 0, 1, 1, 4, 3, out, x, np.float32(1), 0.0, (4, 8), True, 0):
            _weighted(out, x, np.float32(1), 0.0, (4, 8), True, 0)

    for kernel in (telling, elsewhere, by_address, threads):
        assert refused(ours(kernel), Y, X), kernel.__name__


@compiled
def _scatter(out: Any, index: Any, at: Any) -> None:
    for i in range(index.shape[0]):
        out[index[i] + at, 0] = 3.0


def test_compiled_kernels_are_traced_with_indices_that_are_inside() -> None:
    index = Place(2, 0, (4,), np.dtype(np.int64), (8,))
    one = Place(1, 0, (1, 1), np.dtype(np.float32), (4, 4))
    seen = []

    def kernel(out: Any, index: Any, at: int) -> None:
        seen.append(int(np.asarray(index).max()))
        _scatter(out, index, at)

    assert not refused(ours(kernel), one, index, 0)
    assert not any(seen)
    assert refused(kernel, one, index, 1)  # it writes beyond its memory
    assert refused(kernel, one, index, -5)


@compiled
def _any_above(index: Any, limit: int) -> bool:
    found = False
    for i in range(index.shape[0]):
        found |= index[i] > limit
    return found


def test_a_question_is_asked_at_each_run_of_a_tape() -> None:
    # The answer True leads to what Python does then, and the tape goes on behind that call.
    asked = []

    def kernel(out: Any, x: Any, index: Any, limit: int) -> None:
        if _any_above(index, limit):
            asked.append(limit)
            out.fill(-1)
        else:
            np.multiply(x, 2, out=out)

    case = Case(np.random.default_rng(0))
    case.dense = True
    for _ in range(3):
        case.add((4, 8), np.float32)
    case.add((4,), np.int64)
    x, first, second, index = case.places
    arguments = [[first, x, index, 3], [second, first, index, 5]]
    taped = [KernelTracer().taped(Row(ours(kernel), a, [])) for a in arguments]
    arrays = [[case.arrays[k] if k < 4 else k for k in a] for a in ([1, 0, 3], [2, 1, 3])]
    tape = Tape(
        [
            t._replace(call=(kernel, [*a, limit]))
            for t, a, limit in zip(taped, arrays, (3, 5), strict=True)
            if t is not None and t.loops.asks
        ]
    )
    assert tape.count == 2
    for number, sites in tape.sites.items():
        sites.bind(case.memory[number].ctypes.data)
    case.arrays[0][:] = 1
    case.arrays[3][:] = 0
    for value, expected in ((0, 4), (4, -2), (6, -1), (3, 4), (5, -2)):
        asked.clear()
        case.arrays[3][2] = value
        tape.run()
        assert (case.arrays[2] == expected).all(), value
        assert asked == [limit for limit in (3, 5) if value > limit]


def test_a_question_after_a_write_leaves_the_call_as_it_is() -> None:
    index = Place(2, 0, (4,), np.dtype(np.int64), (8,))

    def first(out: Any, x: Any, index: Any) -> None:
        if not _any_above(index, 3):
            np.multiply(x, 2, out=out)

    def after(out: Any, x: Any, index: Any) -> None:
        np.multiply(x, 2, out=out)
        if _any_above(index, 3):
            out.fill(-1)

    def always(out: Any, x: Any, index: Any) -> None:
        if _any_above(index, -1):
            np.multiply(x, 2, out=out)

    assert not refused(ours(first), Y, X, index)
    assert refused(ours(after), Y, X, index)
    assert refused(ours(always), Y, X, index)


def test_class_numbers_are_checked_by_each_replay() -> None:
    net = nn.Linear(6, 4)
    optimizer = lt.optim.SGD(net.parameters(), 0.1)

    def step(x: lt.Tensor, target: lt.Tensor) -> lt.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled_step = lt.compile(step, fullgraph=True)
    x, target = lt.randn(3, 6), lt.tensor([0, 3, 2])
    for _ in range(5):
        compiled_step(x, target)
    assert "; 9 small ones on 1 tapes" in lt.compiler.explain(compiled_step, x, target)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    for bad in (4, -1, 1 << 40):
        with pytest.raises(IndexError, match=f"Target {bad} is out of bounds"):
            compiled_step(x, lt.tensor([0, bad, 2]))
        assert all((net.state_dict()[k] == v).all() for k, v in before.items())
    ignored = lt.tensor([0, -100, 2])
    weights = {k: v.clone() for k, v in net.state_dict().items()}
    found = compiled_step(x, ignored)
    net.load_state_dict(weights)
    assert found == step(x, ignored)


def test_a_kernel_without_memory_is_an_error() -> None:
    @compiled
    def allocating(out: Any, n: Any) -> None:
        room = np.empty(n)
        room[0] = 1
        out[0] = room[0]

    out = np.zeros(1)
    address, arguments, kinds, result = allocating.packed((out, 3))
    assert result is None
    words, arrays = signature.packed(arguments, kinds)
    tape = np.array([0] * loop_tape.SCRATCH + loop_tape.kernel_call(address, words), np.int64)
    first = loop_tape.SCRATCH + loop_tape.HEAD
    for k, x in arrays:
        tape[first + k] = x.ctypes.data
    loop_tape.run(tape, tape.ctypes.data)
    assert out[0] == 1
    tape[first + 3] = 1 << 60
    with pytest.raises(MemoryError):
        loop_tape.run(tape, tape.ctypes.data)
