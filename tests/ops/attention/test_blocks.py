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


def seen(shape, seed):
    return np.random.default_rng(seed).random(shape) < 0.7


# Name -> (the mask of (batch, heads, rows, keys), whether it wants a gradient)
MASKS = {
    "padding": lambda b, h, t, s: seen((b, 1, 1, s), 1),
    "bools": lambda b, h, t, s: seen((t, s), 2),
    "bools of heads": lambda b, h, t, s: seen((h, t, s), 3),
    "every score": lambda b, h, t, s: numbers((b, h, t, s), 4),
    "added to heads": lambda b, h, t, s: numbers((1, h, t, s), 5),
    "added to rows": lambda b, h, t, s: numbers((t, s), 6),
    "added to keys": lambda b, h, t, s: numbers((b, 1, 1, s), 7),
    "of one dim": lambda b, h, t, s: numbers((s,), 8),
}


def attended(name, causal, dtype, mask=None, p=0.0):
    """The result and the gradients, of heads that were split off rows."""
    rows, keys, size, wide, heads, key_heads = SHAPES[name]
    count = 0 if name == "no examples" else 2
    shapes = (rows, heads, size), (keys, key_heads, size), (keys, key_heads, wide)
    given = [
        lt.tensor(numbers((count, *s), k), dtype=dtype).transpose(1, 2).detach().requires_grad_()
        for k, s in enumerate(shapes)
    ]
    options = {"is_causal": causal, "dropout_p": p, "enable_gqa": heads != key_heads}
    wanted = given
    if mask is not None:
        found = MASKS[mask](count, heads, rows, keys)
        options["attn_mask"] = lt.tensor(found)
        if found.dtype != bool:
            options["attn_mask"] = lt.tensor(found, dtype=dtype, requires_grad=True)
            wanted = [*given, options["attn_mask"]]
    lt.manual_seed(5)
    out = F.scaled_dot_product_attention(*given, **options)
    grad = lt.tensor(numbers((count, heads, rows, wide), 9), dtype=dtype)
    return [t.detach().numpy() for t in (out, *lt.autograd.grad(out, wanted, grad))]


@pytest.fixture
def calls(monkeypatch):
    found = []
    run = blocks.run
    monkeypatch.setattr(blocks, "run", lambda *args: found.append(args[0]) or run(*args))
    return found


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_blocks_are_attention_in_float64(name, causal, lines, calls):
    ours = attended(name, causal, lt.float32)
    assert calls == ([] if name == "no examples" else [blocks.forward, blocks.backward])
    for a, b in zip(ours, attended(name, causal, lt.float64), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("mask", [None, *MASKS])
@pytest.mark.parametrize("name", ["few", "shared", "values of another size", "more keys"])
def test_blocks_with_masks_and_dropout(name, mask, p, lines, calls):
    ours = attended(name, mask is None, lt.float32, mask, p)
    assert calls == [blocks.forward, blocks.backward]
    for a, b in zip(ours, attended(name, mask is None, lt.float64, mask, p), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("value", [False, -np.inf])
def test_rows_that_see_nothing_are_zero(value):
    q, k, v = (lt.tensor(numbers((1, 2, 9, 8), s)).requires_grad_() for s in range(3))
    mask = np.zeros((9, 9), np.float32) if value else np.ones((9, 9), bool)
    mask[3] = value
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=lt.tensor(mask))
    grads = lt.autograd.grad(out.sum(), (q, k, v))
    assert not out.detach().numpy()[:, :, 3].any()
    assert out.detach().numpy()[:, :, 4].all()
    assert not grads[0].numpy()[:, :, 3].any()
    assert all(np.isfinite(g.numpy()).all() for g in grads)


def test_masks_may_lie_in_any_way():
    q, k, v = (lt.tensor(numbers((2, 2, 9, 8), s)) for s in range(3))
    every = lt.tensor(seen((2, 2, 9, 9), 4))
    added = lt.tensor(numbers((2, 2, 9, 9), 4))
    shape = (2, 2, 9, 9)
    for x in (every, added):
        masks = x, x.mT, x.flip(-1), x.transpose(0, 1), lt.cat([x, x], -1)[..., ::2], x[..., :1]
        repeated = x[:1, :1], x[:, :, :1], x[..., :1]
        for mask in (*masks, *(m.expand(shape) for m in repeated)):
            ours = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            other = F.scaled_dot_product_attention(
                *(t.double() for t in (q, k, v)),
                attn_mask=mask if mask.dtype is lt.bool else mask.double(),
            )
            np.testing.assert_allclose(ours.numpy(), other.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not work_pool.available(), reason="threads in compiled code: Linux, 2 cores")
@pytest.mark.parametrize("mask", [None, "padding", "every score", "added to rows"])
@pytest.mark.parametrize("name", ["shared", "odd", "values of another size"])
def test_threads_change_no_bit(name, mask, monkeypatch):
    found = []
    for wanted in (1, 2, 2):
        monkeypatch.setattr(threads, "_wanted", wanted)
        found.append(attended(name, mask is None, lt.float32, mask, 0.2))
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


def test_rows_with_gaps_are_copied(calls):
    wide = lt.tensor(numbers((1, 2, 9, 16), 0))
    q = wide[..., ::2]
    assert not blocks.rows_lie_close(q.numpy())
    assert not blocks.rows_lie_close(q.mT.numpy())
    k, v = (lt.tensor(numbers((1, 2, 9, 8), seed)) for seed in (1, 2))
    found = F.scaled_dot_product_attention(q, k, v)
    assert calls == [blocks.forward]
    assert np.array_equal(found.numpy(), F.scaled_dot_product_attention(q.clone(), k, v).numpy())


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_the_peak_is_the_declared_one(p):
    def step(device):
        mask = lt.randn(4, 65, 65, device=device).requires_grad_() if p else None
        q, k, v = (lt.randn(2, 4, 65, 32, device=device).requires_grad_() for _ in range(3))
        lt.reset_peak_memory_stats(device)
        before = lt.memory_allocated(device)
        out = F.scaled_dot_product_attention(q, k, v, mask, p, is_causal=not p)
        out.sum().backward()
        return lt.max_memory_allocated(device) - before

    assert step("cpu") == step("meta")


def test_misaligned_arrays_are_copied(calls):
    raw = np.zeros(4 * 2 * 9 * 8 + 1, np.uint8)[1:]
    array = raw.view(np.float32).reshape(1, 2, 9, 8)
    array[...] = numbers(array.shape, 3)
    q = lt.from_numpy(array)
    assert not q.numpy().flags.aligned
    found = F.scaled_dot_product_attention(q, q, q)
    assert calls == [blocks.forward]
    assert np.array_equal(found.numpy(), F.scaled_dot_product_attention(*[q.clone()] * 3).numpy())
