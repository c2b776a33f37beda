"""Attention in whole blocks of compiled code: the plain kernel's numbers, whatever the threads."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.kernels.cpu import attention_blocks as blocks
from lowtide.framework.kernels.cpu.support import work_pool
from lowtide.framework.kernels.runtime import threads, thresholds
from lowtide.framework.ops.attention.sdpa import _attention
from lowtide.framework.ops.attention.sdpa_backward import _attention_grad

pytestmark = pytest.mark.skipif(
    blocks.function() == 0, reason="the BLAS of this NumPy has no function of that name"
)

# Rows, keys, sizes of keys and values, heads, key heads.
SHAPES = {
    "one": (1, 1, 1, 1, 1, 1),
    "few": (3, 3, 5, 5, 2, 2),
    "shared": (17, 17, 40, 40, 4, 2),
    "odd": (65, 65, 32, 32, 3, 3),
    "values of another size": (130, 130, 16, 24, 2, 1),
    "more keys": (64, 100, 32, 32, 4, 4),
    "fewer keys": (100, 64, 32, 8, 4, 2),
    "no examples": (4, 4, 8, 8, 2, 2),
}


@pytest.fixture(autouse=True)
def small(request, monkeypatch):
    # Thresholds and tiles are read when a plan is made.
    monkeypatch.setattr(thresholds, "COMPILED", 1)
    monkeypatch.setattr(thresholds, "PRODUCT", 1)
    if "lines" in request.fixturenames and request.getfixturevalue("lines"):
        monkeypatch.setattr(thresholds, "TILE_BYTES", 1)  # blocks of 32 rows
    for op in (_attention, _attention_grad):
        op.op.plans.clear()
    yield
    for op in (_attention, _attention_grad):
        op.op.plans.clear()


def numbers(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def attended(name, causal, dtype, before=(2, 3)):
    """The result and the gradients, of heads that were split off rows."""
    rows, keys, size, wide, heads, key_heads = SHAPES[name]
    count = 0 if name == "no examples" else before[0]
    shapes = (rows, heads, size), (keys, key_heads, size), (keys, key_heads, wide)
    given = [
        lt.tensor(numbers((count, *s), k), dtype=dtype).transpose(1, 2).detach().requires_grad_()
        for k, s in enumerate(shapes)
    ]
    out = F.scaled_dot_product_attention(*given, is_causal=causal, enable_gqa=heads != key_heads)
    grad = lt.tensor(numbers((count, heads, rows, wide), 9), dtype=dtype)
    return [t.detach().numpy() for t in (out, *lt.autograd.grad(out, given, grad))]


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_blocks_are_attention_in_float64(name, causal, lines, monkeypatch):
    calls = []
    run = blocks.run
    monkeypatch.setattr(blocks, "run", lambda *args: calls.append(args[0]) or run(*args))
    ours = attended(name, causal, lt.float32)
    assert calls == ([] if name == "no examples" else [blocks.forward, blocks.backward])
    for a, b in zip(ours, attended(name, causal, lt.float64), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not work_pool.available(), reason="threads in compiled code: Linux, 2 cores")
@pytest.mark.parametrize("name", ["shared", "odd", "values of another size"])
def test_threads_change_no_bit(name, monkeypatch):
    found = []
    for wanted in (1, 2, 2):
        monkeypatch.setattr(threads, "_wanted", wanted)
        found.append(attended(name, True, lt.float32))
    for a, *others in zip(*found, strict=True):
        assert [np.array_equal(a, b) for b in others] == [True, True]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row(value):
    q, k, v = (lt.tensor(numbers((1, 2, 9, 8), seed)) for seed in range(3))
    q.numpy()[0, 1, 4, 2] = value
    ours = F.scaled_dot_product_attention(q, k, v).numpy()
    assert np.isnan(ours[0, 1, 4]).all()
    ours[0, 1, 4] = 0
    assert np.isfinite(ours).all()


def test_arrays_with_gaps_in_their_rows_take_the_other_way(monkeypatch):
    monkeypatch.setattr(blocks, "run", None)  # calling it would raise
    wide = lt.tensor(numbers((1, 2, 9, 16), 0))
    q = wide[..., ::2]
    assert not blocks.takes(q.numpy())
    k, v = (lt.tensor(numbers((1, 2, 9, 8), seed)) for seed in (1, 2))
    with pytest.raises(TypeError, match="not callable"):
        F.scaled_dot_product_attention(k, k, v)
    F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)


def test_the_peak_is_the_declared_one():
    def step(device):
        q, k, v = (lt.randn(2, 4, 65, 32, device=device).requires_grad_() for _ in range(3))
        lt.reset_peak_memory_stats(device)
        before = lt.memory_allocated(device)
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
        return lt.max_memory_allocated(device) - before

    assert step("cpu") == step("meta")
