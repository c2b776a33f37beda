"""Integrals and derivatives of integers do not wrap."""

import numpy as np
import pytest

import lowtide as lt

INTEGERS = [lt.uint8, lt.int8, lt.int16, lt.int32, lt.int64]


def samples(dtype):
    info = lt.iinfo(dtype)
    high, low = min(info.max, 2**30), max(info.min, -(2**30))
    return [high, low, high, high, low, 3]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("spacing", [1, 2, 0.5])
def test_areas_are_exact(dtype, spacing):
    y = lt.tensor(samples(dtype), dtype=dtype)
    expected = np.trapezoid(np.array(samples(dtype), float), dx=spacing)
    found = lt.trapezoid(y, dx=spacing)
    assert found.dtype is lt.float32
    assert found.item() == np.float32(expected)
    parts = lt.cumulative_trapezoid(y, dx=spacing)
    assert parts.dtype is lt.float32
    assert parts[-1].item() == np.float32(expected)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_places_are_exact(dtype):
    x = lt.tensor([lt.iinfo(dtype).min // 2, lt.iinfo(dtype).max // 2], dtype=dtype)
    width = float(x[1].item() - x[0].item())
    assert lt.trapezoid(lt.ones(2, dtype=dtype), x).item() == np.float32(width)
    assert lt.trapezoid(lt.ones(2, dtype=lt.float64), x).item() == width


@pytest.mark.parametrize("dtype", INTEGERS[1:])
def test_derivatives_are_exact(dtype):
    y = lt.tensor(samples(dtype), dtype=dtype)
    (found,) = lt.gradient(y)
    assert found.dtype is lt.float32
    expected = np.gradient(np.array(samples(dtype), float)).astype(np.float32)
    assert found.tolist() == expected.tolist()


def test_derivatives_of_bytes_are_refused():
    with pytest.raises(RuntimeError, match="uint8"):
        lt.gradient(lt.tensor([1, 2, 3], dtype=lt.uint8))
