"""Calls with the factor among the tensors give what PyTorch gives for them."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore:This overload")]

from tests.ops.test_old_calls import FACTORS, SHAPES  # noqa: E402
from tests.parity.alike import agree  # noqa: E402


def call(T, name, seed, how):
    rng = random.Random(f"{name} {seed} {how}")
    numbers = np.random.default_rng(seed)
    kinds = ("float64", "float64", "int64") if name != "addcdiv" else ("float64",)
    kind = rng.choice(kinds)
    tensors = [
        T.tensor((numbers.random(shape) * 4 + 1).tolist(), dtype=T.float64).to(getattr(T, kind))
        for shape in SHAPES[name]
    ]
    whole = kind == "int64"
    count = len(FACTORS.get(name, ("beta", "alpha")[: rng.choice((1, 2))]))
    given = [rng.choice((2, -1, 3, 1, 0) if whole else (2, -1, 0.5, 1, 0)) for _ in range(count)]
    if rng.random() < 0.2:
        given[0] = T.tensor(given[0])
    input, *rest = tensors
    if how == "in place":
        return getattr(input, f"{name}_")(*given, *rest)
    if how == "method":
        return getattr(input, name)(*given, *rest)
    if name in FACTORS:
        return getattr(T, name)(input, *given, *rest)
    return getattr(T, name)(given[0], input, *given[1:], *rest)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("how", ["function", "method", "in place"])
@pytest.mark.parametrize("name", SHAPES)
def test_an_old_call_is_pytorchs(name, how, seed):
    agree(call, name, seed, how)
