"""Compiled average pooling is the plain kernel's, for drawn windows, on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.kernels.runtime import threads, thresholds
from lowtide.framework.ops.pooling.primitives import _avg_pool, _avg_pool_grad

POOLS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def pooled(nd: int, x: np.ndarray, grad: Any, options: dict[str, Any]) -> list[np.ndarray]:
    for op in (_avg_pool, _avg_pool_grad):
        op.op.plans.clear()
    t = lt.tensor(x, requires_grad=True)
    out = POOLS[nd](t, **options)
    (given,) = lt.autograd.grad(out, t, lt.tensor(grad(tuple(out.shape)), dtype=out.dtype))
    return [out.detach().numpy(), given.numpy()]


@pytest.mark.quick(20)
@pytest.mark.parametrize("seed", range(80))
def test_drawn_windows(seed, monkeypatch):
    random = np.random.default_rng(seed)
    nd = int(random.integers(1, 4))
    kernel = tuple(int(random.integers(1, 5)) for _ in range(nd))
    options: dict[str, Any] = {
        "kernel_size": kernel,
        "stride": tuple(int(random.integers(1, 5)) for _ in range(nd)),
        "padding": tuple(int(random.integers(0, k // 2 + 1)) for k in kernel),
        "ceil_mode": bool(random.integers(2)),
        "count_include_pad": bool(random.integers(2)),
    }
    if nd > 1 and random.random() < 0.3:
        options["divisor_override"] = 3
    shape = (2, 3, *(int(random.integers(k, 20)) for k in kernel))
    dtype = ("float32", "float64")[random.integers(2)]
    x = random.standard_normal(shape).astype(dtype)

    def grad(shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal(shape)

    monkeypatch.setattr(thresholds, "COMPILED", 1 << 60)
    plain = pooled(nd, x, grad, options)
    monkeypatch.setattr(thresholds, "COMPILED", 1)
    for name in ("SHARED", "THREAD"):
        monkeypatch.setattr(thresholds, name, 1)
    found = []
    for wanted in (1, 2, 2):
        monkeypatch.setattr(threads, "_wanted", wanted)
        found.append(pooled(nd, x, grad, options))
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for a, b in zip(found[0], plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    for others in found[1:]:
        assert [a.tobytes() for a in others] == [a.tobytes() for a in found[0]]
    for op in (_avg_pool, _avg_pool_grad):
        op.op.plans.clear()


def test_what_is_not_finite_stays_in_its_windows():
    x = np.ones((4, 32, 32), np.float32)
    x[1, 5, 6], x[2, 9, 9] = np.nan, np.inf
    ours = F.avg_pool2d(lt.tensor(x), 3, 2, 1).numpy()
    assert np.isnan(ours).sum() == np.isnan(ours[1]).sum() == 2
    assert np.isinf(ours).sum() == np.isinf(ours[2]).sum() == 4
