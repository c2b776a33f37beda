"""Python integers beyond the dtype of an integer tensor: as PyTorch takes them, or an error."""

from __future__ import annotations

from typing import Any

import pytest

import lowtide as lt

# Results of PyTorch 2.13 for [0, 1, 2, 5] in the dtype: arithmetic is modulo 2 ** bits.
ARITHMETIC: dict[str, tuple[Any, Any, list[int]]] = {
    "x // -1": (lt.uint8, lambda x: x // -1, [0, 0, 0, 0]),
    "x % -1": (lt.uint8, lambda x: x % -1, [0, 1, 2, 5]),
    "x.fmod(300)": (lt.uint8, lambda x: x.fmod(300), [0, 1, 2, 5]),
    "x.remainder_(70000)": (lt.int16, lambda x: x.clone().remainder_(70000), [0, 1, 2, 5]),
    "300 ** x": (lt.int8, lambda x: 300**x, [1, 44, -112, 0]),
    "-1 ** x": (lt.uint8, lambda x: (-1) ** x, [1, 255, 1, 255]),
    "-200 // (x + 1)": (lt.int8, lambda x: -200 // (x + 1), [56, 28, 18, 9]),
    "300 % (x + 1)": (lt.uint8, lambda x: 300 % (x + 1), [0, 0, 2, 2]),
    "div trunc": (lt.uint8, lambda x: x.div(-200, rounding_mode="trunc"), [0, 0, 0, 0]),
    "where": (lt.uint8, lambda x: lt.where(x > 1, x, -1), [255, 255, 2, 5]),
    "addcmul": (lt.uint8, lambda x: lt.addcmul(x, x, x, value=-1), [0, 0, 254, 236]),
    "threshold": (lt.uint8, lambda x: lt.threshold(x, 1, -200), [56, 56, 2, 5]),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_integers_wrap_around(name: str) -> None:
    dtype, function, expected = ARITHMETIC[name]
    found = function(lt.tensor([0, 1, 2, 5]).to(dtype))
    assert (found.tolist(), found.dtype) == (expected, dtype)


@pytest.mark.parametrize("dtype", [lt.uint8, lt.int8, lt.int16])
def test_a_number_that_is_put_has_to_fit(dtype: Any) -> None:
    x = lt.tensor([0, 1, 2, 5]).to(dtype)
    for put in (
        lambda: lt.where(x > 1, x, 70000),
        lambda: lt.addcmul(x, x, x, value=70000),
        lambda: lt.threshold(x, 1, 70000),
        lambda: lt.full_like(x, 70000),
    ):
        with pytest.raises(RuntimeError, match="cannot be converted to type .* without overflow"):
            put()


@pytest.mark.parametrize("dtype", [lt.uint8, lt.int8])
def test_a_bound_beyond_the_dtype_limits_nothing_or_is_refused(dtype: Any) -> None:
    x = lt.tensor([0, 1, 2, 5]).to(dtype)
    assert x.clamp(-300, 300).tolist() == [0, 1, 2, 5]
    assert x.clamp(-300, 2).tolist() == [0, 1, 2, 2]
    assert x.clone().clamp_(1, 300).tolist() == [1, 1, 2, 5]
    for bounds in ((300, None), (None, -300)):
        with pytest.raises(RuntimeError, match=r"clamp: (min|max)=-?300 is not a number of"):
            x.clamp(*bounds)


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
def test_a_divisor_that_wraps_to_zero(name: str) -> None:
    with pytest.raises(RuntimeError, match=f"{name}: ZeroDivisionError"):
        getattr(lt.tensor([1], dtype=lt.uint8), name)(256)
    empty = lt.zeros(2, 0, 3, dtype=lt.int64)
    assert getattr(empty, name)(0).shape == (2, 0, 3)  # nothing is divided


def test_nextafter_of_two_dtypes_is_that_of_both() -> None:
    x, y = lt.tensor([1.0, 2.0]), lt.tensor([2, 2])
    assert x.nextafter(y).tolist() == [1.0 + 2.0**-23, 2.0]
    assert x.half().nextafter(y.bfloat16()).dtype is lt.float32
    with pytest.raises(NotImplementedError, match="nextafter_cpu"):
        y.nextafter(y)


def test_ldexp_where_the_power_is_no_number_of_the_dtype() -> None:
    x = lt.tensor([0.0, 1.4e-45, 2.0**100, -3.0])
    assert x.ldexp(lt.tensor([1000, 255, -200, 2])).tolist() == [0.0, 2.0**106, 2.0**-100, -12.0]
    assert x.half().ldexp(lt.tensor(2)).dtype is lt.float16
    assert lt.tensor([3]).ldexp(lt.tensor([2])).tolist() == [12.0]
    leaf = lt.tensor([0.5, 2.0], requires_grad=True)
    leaf.ldexp(lt.tensor([3, -1])).sum().backward()
    assert leaf.grad.tolist() == [8.0, 0.5]


def test_heaviside_of_integers_is_exact() -> None:
    large = 2**53 + 1
    x, values = lt.tensor([large, -large, 0]), lt.tensor([7, 7, large])
    assert x.heaviside(values).tolist() == [1, 0, large]
    assert x.clone().heaviside_(values).tolist() == [1, 0, large]
    assert x.clone().heaviside_(x).tolist() == [1, 0, 0]
    assert lt.tensor([True, False]).heaviside(lt.tensor(True)).tolist() == [True, True]


def test_the_median_of_no_integers_is_the_least() -> None:  # as PyTorch has it
    assert lt.empty(0, dtype=lt.int32).median().item() == -(2**31)
    assert lt.empty(0).median().isnan()


def test_dims_and_sizes_are_integers() -> None:
    x = lt.ones(4)
    for call in (lambda: x.view(2.0, 2), lambda: x.narrow(0, 0.0, 1), lambda: x.select(0, 1.0)):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            call()
