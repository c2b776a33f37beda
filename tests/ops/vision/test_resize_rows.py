"""Resizing rows of which there are as many as taps: what threads share is not cut among them."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.ops.registry import OPS


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_any_number_of_rows_gives_the_same_numbers(monkeypatch, rows, mode):
    x = np.random.default_rng(0).standard_normal((1, rows, 8))
    f = lt.nn.functional.interpolate
    expected = f(lt.tensor(x), size=20, mode=mode).numpy()
    for name in ("COMPILED", "COMPILED_HEAVY", "THREAD", "CHUNK"):
        monkeypatch.setattr(thresholds, name, 2)
    monkeypatch.setattr(OPS["_resize"], "plans", {})
    found = f(lt.tensor(x, dtype=lt.float32), size=20, mode=mode).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
