"""NumPy's own loops, called on rows from compiled code, give NumPy's bits, in any layout."""

from __future__ import annotations

import numpy as np
import pytest

from lowtide.framework.kernels.common import shared_ufuncs
from lowtide.framework.kernels.common.copy import copy
from lowtide.framework.kernels.cpu.compiler import library
from lowtide.framework.kernels.cpu.elementwise import arithmetic_rows, ufunc_loops
from lowtide.framework.kernels.runtime import threads, thresholds

pytestmark = pytest.mark.skipif(
    not library.supported(), reason="no libraries of compiled kernels on this system"
)

DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "uint64", "bool")
ROWS, COLUMNS = 9, 130
REPEATED = ("row", "column", "element", "first", "line", "plane", "dims")  # the second operand is


@pytest.fixture
def walks(monkeypatch):
    """The calls of loops, each shared among as many threads as there are, of some elements."""
    for name in ("SHARED_UFUNC", "UFUNC_THREAD", "SHARED", "THREAD"):
        monkeypatch.setattr(thresholds, name, 1)
    monkeypatch.setattr(threads, "_wanted", 2)
    found = []
    run = shared_ufuncs.parallel_range
    monkeypatch.setattr(
        shared_ufuncs, "parallel_range", lambda *args: found.append(args) or run(*args)
    )
    return found


def numbers(dtype, shape, seed):
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.random(shape) < 0.5
    if np.dtype(dtype).kind == "f":
        found = (random.standard_normal(shape) * 3).astype(dtype)
        found.reshape(-1)[:5] = 0.0, -0.0, np.nan, np.inf, -np.inf
        return found
    return random.integers(0, 100, shape).astype(dtype)


def layouts(dtype):
    """Pairs of operands and a result's shape, and whether they lie in rows."""
    full = ROWS, COLUMNS
    x, y = numbers(dtype, full, 0), numbers(dtype, full, 1)
    wide = numbers(dtype, (ROWS, 3 * COLUMNS), 2)
    yield "flat", x, y, True
    yield "a row", x, y[0], True
    yield "a column", x, y[:, :1], True
    yield "one element", x, y[:1, :1], True
    yield "a column first", x[:, :1], y, True
    yield "rows with gaps", wide[:, :COLUMNS], y, True
    yield "every third", wide[:, ::3], y, False
    cube, lines = x.reshape(3, 3, COLUMNS), y[:3, :1].copy()
    yield "a number a line", cube, lines, True
    yield "a plane", cube, y[:3], True
    yield "blocks with gaps", wide.reshape(3, 3, 3 * COLUMNS)[:, :, :COLUMNS], lines, True
    yield "four dims", x[:8].reshape(2, 2, 2, COLUMNS), y[:4].reshape(2, 1, 2, COLUMNS), True
    yield "five dims", x[:8].reshape(2, 2, 2, 1, COLUMNS), y[:2].reshape(2, 1, 1, COLUMNS), False
    yield "backwards", x[:, ::-1], y, False
    yield "transposed", x.reshape(COLUMNS, ROWS).T, y, False


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(shared_ufuncs.SHARED))
def test_every_function_gives_the_bits_of_numpy(name, dtype, walks):
    ufunc, ours = getattr(np, name), getattr(shared_ufuncs._module, name)
    allowed = name in shared_ufuncs._NAMES[np.dtype(dtype).kind]
    for layout, x, y, rows in layouts(dtype):
        inputs = (x, y)[: ufunc.nin]
        if ufunc.nin == 1 and layout.endswith(
            ("row", "column", "element", "first", "line", "plane", "dims")
        ):
            continue
        with np.errstate(all="ignore"):
            try:
                expected = ufunc(*inputs)
            except (TypeError, ValueError):  # NumPy has none for this dtype
                return
            out = np.empty_like(expected, order="C")
            walks.clear()
            assert ours(*inputs, out) is out
        assert out.tobytes() == expected.tobytes(), layout
        of_bool = dtype == "bool" and f"{'?' * ufunc.nin}->?" not in ufunc.types
        has_loop = allowed and not of_bool and expected.dtype in (np.dtype(dtype), np.dtype(bool))
        assert len(walks) == (rows and has_loop), layout


@pytest.mark.parametrize("name", ["add", "maximum", "minimum", "fmax", "power", "less"])
@pytest.mark.parametrize("number", [2.0, -1, 0, np.nan, 1e300, True])
@pytest.mark.parametrize("first", [False, True])
def test_numbers_are_of_the_dtype_of_the_array(name, number, first, walks):
    x = numbers("float32", (3, 5000), 0)
    inputs = (number, x) if first else (x, number)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(*inputs)
        out = np.empty_like(expected)
        getattr(shared_ufuncs._module, name)(*inputs, out=out)
    assert out.tobytes() == expected.tobytes()
    assert len(walks) == 1


def test_integers_that_the_dtype_cannot_hold_are_numpys_error(walks):
    x = np.ones(300, np.int8)
    with pytest.raises(OverflowError):
        shared_ufuncs._module.add(x, 1000, x)
    assert x.tolist() == [1] * 300
    assert not walks


def test_in_place_and_overlapping(walks):
    x = numbers("float32", 5000, 0)
    expected = x + x
    shared_ufuncs._module.add(x, x, x)
    assert x.tobytes() == expected.tobytes()
    assert len(walks) == 1
    for target, source in ((x[1:], x[:-1]), (x[:-1], x[1:])):
        expected = np.negative(source)
        shared_ufuncs._module.negative(source, out=target)
        assert target.tobytes() == expected.tobytes()
    assert len(walks) == 1  # NumPy copies what overlaps


def test_misaligned_and_other_dtypes_are_numpys(walks):
    raw = np.zeros(4 * 300 + 1, np.uint8)[1:]
    x = raw.view(np.float32)
    out = np.empty(300, np.float32)
    shared_ufuncs._module.add(x, x, out)
    shared_ufuncs._module.add(out, out.astype(np.float64), out, casting="same_kind")
    shared_ufuncs._module.multiply(out, np.float64(2), out)
    shared_ufuncs._module.add(out, 1j, np.empty(300, np.complex64))
    assert not walks


def test_copies_are_numpys_too(monkeypatch):
    monkeypatch.setattr(thresholds, "NUMPY_THREADS", 2)
    monkeypatch.setattr(thresholds, "THREAD", 1)
    monkeypatch.setattr(threads, "_wanted", 2)
    out, source = np.zeros((40, 30)), numbers("float64", (40, 30), 0)
    shared_ufuncs._module.copyto(out, source, where=source[:, :1] > 0)
    assert np.array_equal(out, np.where(source[:, :1] > 0, source, 0), equal_nan=True)
    shared_ufuncs._module.copyto(out, 2)
    assert (out == 2).all()
    with pytest.raises(TypeError, match="Cannot cast"):
        shared_ufuncs._module.copyto(np.zeros(300, np.int32), np.zeros(300))


def test_a_structure_that_is_another_one_is_not_used(monkeypatch):
    ufunc_loops.loop_of.cache_clear()
    x = np.dtype(np.float32)
    assert ufunc_loops.loop_of(np.add, x, 2, x) is not None
    ufunc_loops.loop_of.cache_clear()
    monkeypatch.setattr(ufunc_loops, "_is_right", lambda *args: False)
    assert ufunc_loops.loop_of(np.add, x, 2, x) is None
    ufunc_loops.loop_of.cache_clear()


def test_a_wrong_loop_is_found_out():
    x = np.dtype(np.float32)
    assert ufunc_loops._is_right(np.add, (x, x, x), ufunc_loops.loop_of(np.add, x, 2, x))
    assert not ufunc_loops._is_right(np.add, (x, x, x), ufunc_loops.loop_of(np.multiply, x, 2, x))


@pytest.mark.parametrize("name", ["add", "multiply", "divide", "negative", "exp", "maximum"])
def test_operands_that_repeat_one_number_are_computed_once(name, walks):
    ufunc = getattr(np, name)
    x = np.broadcast_to(np.float32(3.5), (20, 300))
    cases = [(x, x), (x, 0.25), (0.25, x)] if ufunc.nin == 2 else [(x,)]
    for inputs in cases:
        out = np.empty((20, 300), np.float32)
        getattr(shared_ufuncs._module, name)(*inputs, out=out)
        assert out.tobytes() == ufunc(*inputs).astype(np.float32).tobytes()
    assert not walks


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(arithmetic_rows.OPERATIONS))
def test_arithmetic_of_short_rows_gives_the_bits_of_numpy(name, dtype, walks):
    random = np.random.default_rng(0)
    ufunc, ours = getattr(np, name), getattr(shared_ufuncs._module, name)
    for _ in range(120):
        shape = (*random.integers(2, 6, random.integers(1, 3)), int(random.integers(2, 40)))
        arrays = []
        for k in range(3):  # the two operands and the result: contiguous, or a part of rows
            wide = numbers(dtype, (*shape[:-1], 2 * shape[-1]), int(random.integers(1000)))
            part = random.random() < 0.5
            array = wide[..., : shape[-1]] if part else np.ascontiguousarray(wide[..., 1::2])
            if k < 2:  # repeated along any of its dims, or not
                ones = tuple(slice(0, 1 if random.random() < 0.4 else None) for _ in shape)
                array = array[ones]
                if random.random() < 0.5:
                    array = np.broadcast_to(array, shape)
            arrays.append(array)
        x, y, out = arrays
        kept = out.base.copy() if out.base is not None else None
        with np.errstate(all="ignore"):
            expected = np.broadcast_to(ufunc(x, y), shape)
            assert ours(x, y, out) is out
        assert out.tobytes() == expected.tobytes(), (shape, x.strides, y.strides)
        if kept is not None:  # nothing beside the rows was written
            kept[..., : shape[-1]] = out
            assert kept.tobytes() == out.base.tobytes()
    assert any(call[0] in arithmetic_rows.LOOPS.values() for call in walks)


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex64", "int16", "uint8"])
def test_copies_of_short_rows_move_every_bit(dtype, monkeypatch):
    monkeypatch.setattr(thresholds, "COMPILED_MOVE", 2)
    random = np.random.default_rng(1)
    for _ in range(60):
        shape = (*random.integers(2, 7, random.integers(1, 4)), int(random.integers(1, 70)))
        wide = random.integers(0, 256, (*shape[:-1], 3 * shape[-1] * np.dtype(dtype).itemsize))
        source = wide.astype(np.uint8).view(dtype)[..., : shape[-1]]
        target = np.zeros((*shape[:-1], 2 * shape[-1]), dtype)
        out = target[..., shape[-1] :] if random.random() < 0.7 else np.empty(shape, dtype)
        copy(out, source)
        assert out.tobytes() == source.tobytes()
        assert not target[..., : shape[-1]].tobytes().strip(b"\0")
