"""Compiled copies: values, NaN, strides, overlap, threads, against NumPy's and ml_dtypes'."""

import ml_dtypes
import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend
from lowtide.framework.kernels.common import copy as copies
from lowtide.framework.kernels.common.copy import copy
from lowtide.framework.kernels.cpu.elementwise.copy import float16_in_hardware
from lowtide.framework.kernels.runtime import threads, thresholds

HALVES = [np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)]
FLOAT = np.dtype(np.float32)
N = 2 * thresholds.COMPILED_MOVE


def plain(array, dtype):
    """The oracle: NumPy converts, with ml_dtypes' loops."""
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(array).astype(dtype)


def assert_bits(out, expected):
    """Equal in every bit; a NaN is a NaN, of the same sign."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(out), nan)
    np.testing.assert_array_equal(np.signbit(out), np.signbit(expected))
    words = f"u{out.itemsize}"
    np.testing.assert_array_equal(out.view(words)[~nan], expected.view(words)[~nan])


@pytest.fixture
def only_compiled(monkeypatch, request):
    """From here on NumPy must not be asked to copy, unless the processor cannot convert float16."""
    half = getattr(request.node, "callspec", None) and request.node.callspec.params.get("half")
    if half == np.float16 and not float16_in_hardware():
        return

    def refuse(*args, **kwargs):
        raise AssertionError("np.copyto was called")

    monkeypatch.setattr(copies.np, "copyto", refuse)


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_every_half_becomes_its_float(half, only_compiled):
    every = np.arange(1 << 16, dtype=np.uint16).view(half)
    out = np.empty(every.shape, FLOAT)
    copy(out, every)
    assert_bits(out, plain(every, FLOAT))


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_floats_are_rounded_to_the_nearest_half_and_ties_to_even(half, only_compiled):
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, dtype=np.uint64)
    every = plain(np.arange(1 << 16, dtype=np.uint16).view(half), np.float64)
    every = every[np.isfinite(every)]
    ties = (every[:-1] + every[1:]) / 2
    near = [ties * (1 - 1e-6), ties * (1 + 1e-6)]
    with np.errstate(all="ignore"):
        halfway = np.concatenate([every, ties, *near]).astype(FLOAT)
    x = np.concatenate([bits.astype(np.uint32).view(FLOAT), halfway])
    out = np.empty(x.shape, half)
    with np.errstate(over="ignore"):
        copy(out, x)
    assert_bits(out, plain(x, half))


def views(x):
    """Views of a large 3-d array, in all ways that neighbors can lie apart."""
    yield "turned", x.transpose(2, 1, 0)
    yield "planes turned", x.transpose(0, 2, 1)
    yield "rows exchanged", x.transpose(1, 0, 2)
    yield "odd corner", x[:, 1:-2, 3:].transpose(0, 2, 1)
    yield "every second", x[:, :, ::2]
    yield "backwards", x[:, :, ::-1].transpose(0, 2, 1)
    yield "from below", x[::-1, ::-1]
    yield "one element", np.broadcast_to(x[:1, :1, :1], x.shape)
    yield "one column", np.broadcast_to(x[:, :, :1], x.shape)
    yield "one row", np.broadcast_to(x[:, :1], x.shape)
    yield "a column turned", np.broadcast_to(x[:, :, :1], x.shape).transpose(0, 2, 1)


@pytest.mark.parametrize(
    ("source", "target"),
    [(FLOAT, h) for h in HALVES]
    + [(h, FLOAT) for h in HALVES]
    + [(np.dtype(t),) * 2 for t in ("?", "u1", "f2", "f4", "f8", "c8", "c16")]
    + [(FLOAT, np.dtype("f8")), (np.dtype("i8"), FLOAT)],
    ids=str,
)
def test_any_strides(source, target):
    values = np.random.default_rng(0).integers(0, 200, (5, 97, 83))
    x = values.astype(source)
    for name, view in views(x):
        out = np.zeros(view.shape, target)
        copy(out, view)
        np.testing.assert_array_equal(out, plain(view, target), err_msg=name)
        wide = np.zeros((*view.shape[:-1], view.shape[-1] + 3), target)
        copy(wide[..., 1:-2], view)  # the result has gaps
        np.testing.assert_array_equal(wide[..., 1:-2], plain(view, target), err_msg=name)
        assert not wide[..., 0].any(), name
        assert not wide[..., -2:].any(), name
        turned = np.zeros(view.shape[::-1], target).transpose(2, 1, 0)
        copy(turned, view)
        np.testing.assert_array_equal(turned, plain(view, target), err_msg=name)


def test_transpositions_and_repeated_elements_are_compiled(only_compiled):
    x = np.arange(20 * 96 * 100, dtype=FLOAT).reshape(20, 96, 100)
    for view in (
        x.transpose(0, 2, 1),
        x.transpose(2, 1, 0),
        np.broadcast_to(x[:1, :1, :1], x.shape),
    ):
        out = np.empty(view.shape, FLOAT)
        copy(out, view)
        np.testing.assert_array_equal(out, view)


def test_what_overlaps_is_copied_as_if_it_did_not():
    square = np.arange(300 * 300, dtype=FLOAT).reshape(300, 300)
    expected = square.T.copy()
    copy(square, square.T)
    np.testing.assert_array_equal(square, expected)


def test_unaligned_and_read_only_sources():
    raw = np.arange(4 * N + 1, dtype=np.uint8)
    odd = np.frombuffer(raw.tobytes(), FLOAT, N, offset=0)
    crooked = raw[1:].view(FLOAT)
    assert not odd.flags.writeable
    assert not crooked.flags.aligned
    for x in (odd, crooked):
        out = np.empty(N, HALVES[1])
        with np.errstate(all="ignore"):
            copy(out, x)
        assert_bits(out, plain(x, HALVES[1]))


def test_without_the_instructions_for_float16_numpy_converts(monkeypatch):
    from lowtide.framework.kernels.cpu.elementwise import copy as moves

    monkeypatch.setattr(moves, "float16_in_hardware", lambda: False)
    x = np.linspace(-3, 3, N, dtype=FLOAT)
    out = np.empty(N, np.float16)
    assert not copies._copied(out, x)
    copy(out, x)
    assert_bits(out, plain(x, HALVES[1]))


@pytest.mark.parametrize("dtype", [lt.bfloat16, lt.float16, lt.float32])
def test_tensors_take_them(dtype):
    x = lt.randn(160, 240).to(dtype)
    ours = x.t().contiguous()
    assert ours.is_contiguous()
    assert lt.equal(ours, x.t())
    assert lt.equal(ours.float().to(dtype).t(), x)
    target = lt.zeros(240, 160, dtype=lt.float32)
    assert lt.equal(target.copy_(x.t()), ours.float())


def test_the_gradient_of_a_sum_is_spread_in_half_precision():
    x = lt.ones(200, 200, requires_grad=True)
    x.to(lt.bfloat16).sum().backward()
    assert x.grad.dtype is lt.float32
    assert lt.equal(x.grad, lt.ones(200, 200))


def test_copies_take_no_memory_beyond_their_result():
    ledger = backend(lt.device("cpu")).ledger
    x = lt.randn(512, 512).t()
    start = ledger.live
    ledger.reset_peak()
    x.contiguous()
    assert ledger.peak - start == x.nbytes
    ledger.reset_peak()
    x.to(lt.bfloat16)
    assert ledger.peak - start == x.nbytes // 2


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_threads_copy_alike(wanted, monkeypatch):
    monkeypatch.setattr(threads, "_wanted", wanted)
    x = np.random.default_rng(0).standard_normal((3, 700, 701)).astype(FLOAT)
    for view in (
        x,
        x.transpose(0, 2, 1),
        x.transpose(2, 1, 0),
        np.broadcast_to(x[..., :1], x.shape),
    ):
        for dtype in (FLOAT, *HALVES):
            out = np.empty(view.shape, dtype)
            copy(out, view)
            np.testing.assert_array_equal(out, plain(view, dtype))


@pytest.mark.parametrize("seed", range(60))
def test_drawn_copies_by_threads(seed, monkeypatch):
    random = np.random.default_rng(seed)
    for name in ("UFUNC_THREAD", "SHARED", "THREAD", "COPY_THREAD", "COMPILED_MOVE"):
        monkeypatch.setattr(thresholds, name, 1)
    monkeypatch.setattr(threads, "_wanted", 2)
    dtype = random.choice(["u1", "f4", "f8", "i8"])
    ndim = random.integers(1, 5)
    sizes = random.integers(1, [8, 30, 60, 400][-ndim:])

    def drawn(shape):
        # An array of that shape, without gaps or with, that fills its memory with other numbers.
        wide = [n + random.integers(0, 3) * random.integers(0, 2) for n in shape]
        whole = random.integers(0, 100, wide).astype(dtype)
        part = tuple(slice(w - n, None) for n, w in zip(shape, wide, strict=True))
        return whole, part

    (whole, part), (source, of_source) = drawn(sizes), drawn(sizes)
    array = source[of_source]
    if random.random() < 0.2:
        array = np.broadcast_to(array[:1, ...], sizes)
    expected = whole.copy()
    expected[part] = array
    copy(whole[part], array)
    assert whole.tobytes() == expected.tobytes()


def test_rows_are_copied_by_compiled_threads(monkeypatch):
    from lowtide.framework.kernels.cpu.elementwise import copy as kernels

    for name in ("UFUNC_THREAD", "SHARED"):
        monkeypatch.setattr(thresholds, name, 1)
    monkeypatch.setattr(threads, "_wanted", 2)
    calls = []
    run = copies.parallel_range
    monkeypatch.setattr(copies, "parallel_range", lambda *args: calls.append(args) or run(*args))
    x = np.random.default_rng(0).random((6, 40, 500))
    cases = x, x[1:], x[:, 1:], x[:, :, 1:], x[1:, 1:, 1:], x[::2]
    for source in cases:
        out = np.empty(source.shape)
        copy(out, source)
        assert np.array_equal(out, source)
    assert [c[0] for c in calls] == [kernels.copy_rows] * len(cases)
    copy(np.empty((6, 40, 250)), x[:, :, ::2])
    assert len(calls) == len(cases)
