"""In-place methods leave what the other method returns, in every dtype and for operands that alias.

NumPy may write part of a result before it refuses a call, and a kernel of several passes reads an
operand after its first. Where the target is an operand, both would be seen in numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowtide as lt

DTYPES = [
    lt.bool, lt.uint8, lt.int8, lt.int16, lt.int32, lt.int64, lt.float16, lt.bfloat16, lt.float32,
    lt.float64, lt.complex64, lt.complex128,
]  # fmt: skip
METHODS = sorted(
    n[:-1]
    for n in dir(lt.Tensor)
    if n.endswith("_") and not n.startswith("_") and callable(getattr(lt.Tensor, n[:-1], None))
)
PAIRS = [
    *("other", "row", "itself", "first", 2, -1, 0.5),
]  # second operands: of the same shape, a row, the target, a part of it, numbers
SEVERAL: dict[str, list[tuple[Any, ...]]] = {
    "addcdiv": [("other", "other"), ("itself", "other"), ("other", "itself")],
    "addcmul": [("other", "other"), ("itself", "other"), ("other", "itself")],
    "clamp": [(-1, 2), (None, "other"), ("other", "itself"), (0, "itself"), ("itself", 1)],
    "cumprod": [(0,), (-1,)],
    "cumsum": [(0,), (-1,)],
    "index_add": [(0, "places", "two")],
    "index_copy": [(0, "places", "two")],
    "index_fill": [(0, "places", 2)],
    "lerp": [("other", 0.5), ("itself", 0.5), ("other", "itself"), ("itself", "other")],
    "masked_fill": [("mask", 2)],
    "scatter": [(0, "zeros", "other"), (0, "zeros", 2)],
    "scatter_add": [(0, "zeros", "other")],
    "scatter_reduce": [(0, "zeros", "other", "prod")],
}
ROUNDED_TWICE = {"addcdiv", "addcmul", "round"}  # half precision: a term is a tensor


def drawn(seed: int, shape: tuple[int, ...], dtype: Any) -> Any:
    draw = np.random.default_rng(seed)
    if dtype is lt.bool:
        return lt.tensor(draw.random(shape) < 0.5)
    if not dtype.is_floating_point and not dtype.is_complex:
        return lt.tensor(draw.integers(0 if dtype is lt.uint8 else -4, 5, shape)).to(dtype)
    values = draw.standard_normal(shape) * 3
    values = np.where(draw.random(shape) < 0.2, np.round(values), values)
    if dtype.is_complex:
        values = values + 1j * draw.standard_normal(shape)
    return lt.tensor(values).to(dtype)


def operand(what: Any, target: Any, seed: int) -> Any:
    shape = tuple(target.shape)
    if what == "other":
        return drawn(seed + 7, shape, target.dtype)
    if what == "row":
        return drawn(seed + 7, shape[-1:], target.dtype)
    if what == "itself":
        return target
    if what == "first":
        return target[:1]
    if what == "mask":
        return drawn(seed + 7, shape, lt.bool)
    if what == "places":
        return lt.tensor([1, 0])
    if what == "two":
        return drawn(seed + 7, (2, *shape[1:]), target.dtype)
    if what == "zeros":
        return lt.zeros(shape, dtype=lt.int64)
    return what


def numbers(x: Any) -> Any:
    return x.double().numpy() if x.dtype.is_half else x.numpy()


def differing(name: str, dtype: Any, given: tuple[Any, ...], seed: int) -> str | None:
    """Say how the two methods differ; None if they agree, or one refuses."""
    x = drawn(seed, ((3, 4), (4,), (2, 3, 3))[seed], dtype)
    plain, written = x.clone(), x.clone()
    try:
        expected = getattr(plain, name)(*[operand(a, plain, seed) for a in given])
        if not isinstance(expected, lt.Tensor) or expected.shape != x.shape:
            return None
        expected = expected.to(dtype)
        getattr(written, f"{name}_")(*[operand(a, written, seed) for a in given])
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        return None
    tolerance = 2.0**-6 if dtype.is_half and name in ROUNDED_TWICE else 1e-6
    alike = np.allclose(numbers(written), numbers(expected), tolerance, tolerance, equal_nan=True)
    return None if alike else f"{name}_{given} of {dtype}: {written} instead of {expected}"


@pytest.mark.filterwarnings("ignore")  # of conversions, that complex numbers lose a part
@pytest.mark.quick(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_in_place_methods_leave_what_the_others_return(dtype: Any) -> None:
    lt.manual_seed(0)
    found = [
        differing(name, dtype, given, seed)
        for name in METHODS
        for given in SEVERAL.get(name, [(), *((p,) for p in PAIRS)])
        for seed in range(3)
        if name not in ("bernoulli", "cauchy", "geometric", "random", "uniform", "normal")
    ]
    assert len(found) > 1000
    assert not [f for f in found if f]


@pytest.mark.parametrize("dtype", [lt.int8, lt.int16, lt.int32, lt.int64], ids=str)
def test_integers_to_negative_powers_in_place(dtype: Any) -> None:
    base = lt.arange(-3, 4).to(dtype)
    powers = [[0 if abs(b) > 1 else b if e % 2 else b * b for b in range(-3, 4)] for e in (1, 2)]
    for down, expected in zip((-1, -2), powers, strict=True):
        expected = [0 if b == 0 else p for b, p in zip(range(-3, 4), expected, strict=True)]
        exponent = lt.full((7,), down).to(dtype)
        assert base.clone().pow_(exponent).tolist() == expected
        assert lt.pow(base, exponent, out=exponent).tolist() == expected
    mixed, exponent = base.clone(), lt.tensor([3, 3, 3, 3, 3, 3, -3]).to(dtype)
    assert mixed.pow_(exponent).tolist() == [-27, -8, -1, 0, 1, 8, 0]  # refused by NumPy at the end


def test_a_bound_that_is_the_tensor_itself() -> None:
    for low in (0.0, lt.tensor(0.0), lt.tensor([1.0, 0.0, -9.0])):
        x = lt.tensor([-1.0, 2.0, -3.0])
        expected = x.clamp(low, x.clone()).tolist()
        assert x.clamp_(low, x).tolist() == expected == [-1.0, 2.0, -3.0]


def test_a_view_with_more_dims_of_the_same_memory_is_no_overlap() -> None:
    x = lt.tensor([1.0, 2.0, 3.0])
    x[None, :] = x
    x[None, None] += x
    x.view(1, 3).mul_(x)
    assert x.tolist() == [4.0, 16.0, 36.0]
    with pytest.raises(RuntimeError, match="single memory location"):
        x.view(3, 1).expand(3, 3).mul_(x)
    square = lt.arange(9.0).view(3, 3)
    with pytest.raises(RuntimeError, match="single memory location"):
        square.mul_(square[0].view(3, 1))
