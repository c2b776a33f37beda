"""Bits of ReLU and similar ops on GPUs, at any length; run by g++ here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.ops.elementwise import bitmask
from tests.devices import cuda_on_cpu
from tests.devices.test_cuda_kernels import on_both

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="there is no g++")


@pytest.mark.parametrize("count", [1 << 14, (1 << 14) + 1, 20479, 20481, 24584])
@pytest.mark.parametrize("name", ["relu", "leaky_relu", "hardtanh", "hardsigmoid", "relu6"])
def test_bitmasks_of_any_length(count: int, name: str) -> None:
    f = getattr(lt.nn.functional, name)
    x = lt.randn(count, dtype=lt.float64) * 3
    x[::97] = float("nan")
    x[::89] = 0.0
    for a, b in zip(*on_both(lambda x: f(x), x), strict=True):
        np.testing.assert_array_equal(b, a)


@pytest.mark.parametrize("count", [1 << 14, (1 << 14) + 1, 20481, 24584])
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_absolute_errors_of_any_length(count: int, reduction: str) -> None:
    x, target = (lt.randn(count, dtype=lt.float64) for _ in range(2))
    target[::89] = x[::89]
    if reduction == "none":
        x[::97] = float("nan")

    def run(x: Any, target: Any) -> Any:
        return lt.nn.functional.l1_loss(x, target, reduction=reduction).view(-1)

    for a, b in zip(*on_both(run, x, target), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


@pytest.mark.parametrize("count", [7, 4096, 5000, 12295])
def test_signs_by_masks_of_any_length(count: int) -> None:
    random = np.random.default_rng(count)
    above, apart = (lt.tensor(random.integers(0, 256, -(-count // 8), np.uint8)) for _ in range(2))
    g = lt.randn(count, dtype=lt.float64)
    for given in (g, g[:1]):

        def run(given: Any, *masks: Any) -> Any:
            return bitmask._sign_by_masks(given.expand(count), *masks)

        for a, b in zip(*on_both(run, given, above, apart), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)
