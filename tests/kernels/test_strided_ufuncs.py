"""Negation and tests of floats through every stride, where NumPy's own are wrong."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.common import strided_ufuncs

STEPS = [*range(1, 18), 32, -1, -2, -4, -8]
LENGTHS = (3, 9, 40)
FLOATS = ("float16", "float32", "float64")
NUMBERS = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64", "complex64")


def strided(values: np.ndarray, step: int) -> np.ndarray:
    room = np.zeros(len(values) * abs(step), values.dtype)[::step][: len(values)]
    room[:] = values
    return room


def numbers(dtype: str, count: int) -> np.ndarray:
    values = np.arange(count) * 7 % 11 - (0 if dtype[0] == "u" else 4)
    made = values.astype(dtype)
    if dtype in FLOATS:
        made[1::5], made[2::7], made[0] = np.inf, np.nan, -0.0
    return made


@pytest.mark.parametrize("dtype", NUMBERS)
def test_negation_through_every_stride(dtype: str) -> None:
    for length in LENGTHS:
        values = numbers(dtype, length)
        expected = np.negative(values)
        for step in STEPS:
            array = strided(values, step)
            for out_step in (1, 2, 4, step):
                out = strided(np.ones_like(values), out_step)
                strided_ufuncs.negate(np, array, out)
                np.testing.assert_array_equal(out, expected, f"{step} to {out_step}")
                if dtype in FLOATS:
                    zeros = out == 0
                    assert (np.copysign(1, out)[zeros] == np.copysign(1, expected)[zeros]).all()
            strided_ufuncs.negate(np, array, array)
            np.testing.assert_array_equal(array, expected, f"{step} in place")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("ours", "numpys"),
    [(strided_ufuncs.finite, np.isfinite), (strided_ufuncs.sign_bit, np.signbit)],
    ids=["finite", "sign_bit"],
)
def test_claims_through_every_stride(dtype: str, ours, numpys) -> None:
    for length in LENGTHS:
        values = numbers(dtype, length)
        expected = numpys(values)
        for step in STEPS:
            for out_step in (1, 2, 4, -3):
                out = strided(np.ones(length, bool), out_step)
                ours(np, strided(values, step), out)
                np.testing.assert_array_equal(out, expected, f"{step} to {out_step}")


@pytest.mark.parametrize("wide", [2, 4, 8, 16])
@pytest.mark.parametrize("dtype", [lt.float32, lt.float64, lt.int32, lt.int64], ids=str)
def test_a_column_in_place(dtype: lt.dtype, wide: int) -> None:
    matrix = lt.arange(9 * wide, dtype=dtype).reshape(9, wide)
    expected = matrix.numpy().copy()
    expected[:, 0] *= -1
    matrix[:, 0].neg_()
    np.testing.assert_array_equal(matrix.numpy(), expected)


def test_a_column_of_results() -> None:
    x = lt.tensor([0.0, lt.inf, -1.0, lt.nan, 2.0, -lt.inf, 3.0, 4.0, -0.0])
    for op in (lt.isfinite, lt.signbit):
        out = lt.ones(9, 3, dtype=lt.bool)
        op(x, out=out[:, 1])
        np.testing.assert_array_equal(out[:, 1].numpy(), op(x).numpy())


def test_a_column_of_activations() -> None:
    generator = np.random.default_rng(0)
    for name in ("sigmoid", "logsigmoid", "silu", "erf", "softplus"):
        op = getattr(lt, name, None) or getattr(lt.nn.functional, name)
        x = lt.tensor(generator.standard_normal((9, 4), dtype=np.float32))
        np.testing.assert_array_equal(op(x[:, 0]).numpy(), op(x[:, 0].clone()).numpy())
    x = lt.tensor(generator.standard_normal((9, 4), dtype=np.float32))
    expected = x[:, 0].clone().sigmoid().numpy()
    x[:, 0].sigmoid_()
    np.testing.assert_array_equal(x[:, 0].numpy(), expected)


def test_kernels_call_these() -> None:
    """No kernel calls NumPy's own with an output that may be strided."""
    ops = pathlib.Path(lt.framework.__file__).parent / "ops"
    banned = re.compile(r"xp\.(negative|signbit)\(|xp\.isfinite\(.*out=")
    found = [str(path) for path in sorted(ops.rglob("*.py")) if banned.search(path.read_text())]
    assert not found, f"use kernels.common.strided_ufuncs in {found}"
