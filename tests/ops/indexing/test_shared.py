"""Gathers, scatters and choices shared among threads give the bits of one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.cpu.support import work_pool
from lowtide.framework.kernels.runtime import threads, thresholds


@pytest.fixture
def shared(monkeypatch):
    """Whether each call that was offered to the pool of compiled threads was taken."""
    for name in ("SHARED", "COMPILED_MOVE", "COMPILED"):
        monkeypatch.setattr(thresholds, name, 1)
    found: list[bool] = []
    share = work_pool.share
    monkeypatch.setattr(work_pool, "share", lambda *args: found.append(share(*args)) or found[-1])
    return found


def programs(random: np.random.Generator) -> Any:
    """Calls of drawn shapes and layouts, by name."""
    n, m, k = (int(random.integers(2, 40)) for _ in range(3))
    x = lt.tensor(random.standard_normal((n, m, k)).astype(np.float32))
    x = (x, x.transpose(0, 1).contiguous().transpose(0, 1), x.flip(-1))[random.integers(3)]
    dim = int(random.integers(3))
    shape = [n, m, k]
    places = lt.tensor(random.integers(-shape[dim], shape[dim], (n, m, k)))
    chosen = lt.tensor(random.integers(0, shape[dim], 25))
    rows, columns = (lt.tensor(random.integers(0, size, 300)) for size in (n, m))
    source = lt.tensor(random.standard_normal((n, m, k)).astype(np.float32))
    picked = source.index_select(dim, chosen)
    mask = lt.tensor(random.random((n, 1, k)) < 0.5)
    yield "gather", lambda: x.gather(dim, places % shape[dim])
    yield "index_select", lambda: x.index_select(dim, chosen)
    yield "index", lambda: x[rows, columns]
    yield "scatter", lambda: x.scatter(dim, places.argsort(dim), source)
    yield "scatter_add", lambda: x.scatter_add(dim, places % shape[dim], source)
    yield "index_add", lambda: x.index_add(dim, chosen, picked)
    yield "scatter_reduce", lambda: x.scatter_reduce(dim, places % shape[dim], source, "amax")
    yield "where", lambda: lt.where(mask, x, source)
    yield "masked_fill", lambda: x.masked_fill(mask, 2.5)


@pytest.mark.skipif(not work_pool.available(), reason="threads in compiled code: Linux, 2 cores")
@pytest.mark.parametrize("seed", range(20))
def test_two_threads_change_no_bit(seed, shared, monkeypatch):
    for name, call in programs(np.random.default_rng(seed)):
        found = []
        for wanted in (1, 2, 2):
            monkeypatch.setattr(threads, "_wanted", wanted)
            found.append(call().numpy().tobytes())
        assert found[0] == found[1] == found[2], name
    assert any(shared)
