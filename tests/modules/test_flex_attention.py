"""Flexible attention: gradients, rows that see nothing, bytes, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.modules.flexible_attention import flex_attention as flex
from lowtide.nn import functional as F
from lowtide.nn.attention.flex_attention import (
    BlockMask,
    and_masks,
    create_block_mask,
    flex_attention,
)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def made(*shape: int, dtype: Any = lt.float64) -> Any:
    generator = lt.Generator().manual_seed(sum(shape))
    return lt.randn(shape, dtype=dtype, generator=generator).requires_grad_()


def test_gradients_reach_queries_keys_values_and_what_the_function_uses() -> None:
    q, k, v = made(1, 2, 5, 3), made(1, 1, 4, 3), made(1, 1, 4, 2)
    bias = made(5, 4)
    mask = create_block_mask(lambda b, h, q, k: q >= k - h, 1, 2, 5, 4, BLOCK_SIZE=2)

    def attend(q: Any, k: Any, v: Any, bias: Any) -> Any:
        def score(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score * 2 + bias[i, j]

        return flex_attention(q, k, v, score, mask, enable_gqa=True)

    assert lt.autograd.gradcheck(attend, (q, k, v, bias))


@pytest.mark.parametrize("changed", [False, True])
def test_a_query_that_sees_no_key_gets_zeros_and_no_gradient(changed: bool) -> None:
    q, k, v = made(1, 1, 4, 3), made(1, 1, 4, 3), made(1, 1, 4, 3)
    mask = create_block_mask(lambda b, h, q, k: q > k, None, None, 4, 4, BLOCK_SIZE=2)
    score = (lambda s, b, h, i, j: s * 1.0) if changed else None
    out = flex_attention(q, k, v, score, mask)
    assert np.array_equal(out.detach().numpy()[0, 0, 0], [0, 0, 0])
    out.sum().backward()
    assert np.array_equal(q.grad.numpy()[0, 0, 0], [0, 0, 0])
    for leaf in (q, k, v):
        assert np.isfinite(leaf.grad.numpy()).all()


def test_the_way_without_a_function_of_scores_is_that_of_scaled_dot_product_attention() -> None:
    q, k, v = (made(2, 3, 64, 8, dtype=lt.float32) for _ in range(3))
    mask = create_block_mask(causal, None, None, 64, 64, BLOCK_SIZE=16)
    a = flex_attention(q, k, v, None, mask)
    seen = lt.ones(64, 64, dtype=lt.bool).tril()
    assert np.array_equal(
        a.detach().numpy(),
        F.scaled_dot_product_attention(q, k, v, attn_mask=seen).detach().numpy(),
    )


TILED: dict[str, Any] = {
    "causal": (lambda b, h, q, k: q >= k, None),
    "a window": (lambda b, h, q, k: (q - k).abs() < 9, None),
    "some see nothing": (lambda b, h, q, k: (q > 20) & (q >= k + h), None),
    "scores": (None, lambda s, b, h, q, k: s * 2 + (q - k) * 0.1 + h),
    "both": (lambda b, h, q, k: q >= k, lambda s, b, h, q, k: s.tanh() + b),
    "places of a window": (
        lambda b, h, q, k: (q - k).abs() < 9,
        lambda s, b, h, q, k: s + k.double().sin() + q.double().cos() * s,
    ),
}


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", TILED)
@pytest.mark.parametrize("rows", [1, 8, 20])
def test_tiles_compute_what_one_does(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = made(2, 4, 43, 3), made(1, 2, 37, 3), made(1, 2, 37, 2)
    mask_mod, score = TILED[name]
    mask = None
    if mask_mod is not None:
        mask = create_block_mask(mask_mod, None, 4, 43, 37, BLOCK_SIZE=8)
    found = []
    for tile_bytes in (flex.TILE_BYTES, rows * 2 * 4 * 37 * 8):
        monkeypatch.setattr(flex, "TILE_BYTES", tile_bytes)
        both = [
            flex_attention(q, k, v, score, mask, enable_gqa=True),
            *flex_attention(q, k, v, score, mask, enable_gqa=True, return_lse=True),
        ]
        finite = both[2].masked_fill(both[2].isneginf(), 0.0)
        total = both[0].square().sum() + both[1].sum() + finite.sum()
        gradients = lt.autograd.grad(total, (q, k, v))
        found.append([t.detach().numpy() for t in (*both, *gradients)])
    for whole, tiled in zip(*found, strict=True):
        np.testing.assert_allclose(tiled, whole, rtol=1e-9, atol=1e-12)


def test_tiles_keep_no_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (made(1, 2, 128, 4, dtype=lt.float32) for _ in range(3))
    mask = create_block_mask(causal, None, None, 128, 128, BLOCK_SIZE=32)
    monkeypatch.setattr(flex, "TILE_BYTES", 32 * 2 * 128 * 4)
    before = lt.memory_allocated()
    lt.reset_peak_memory_stats()
    out = flex_attention(q, k, v, lambda s, b, h, i, j: s * 2, mask)
    kept = lt.memory_allocated() - before - out.nbytes
    scores = 2 * 128 * 128 * 4
    assert kept < scores // 4
    assert lt.max_memory_allocated() - before < 2 * scores
    lt.autograd.grad(out.sum(), (q, k, v))


def test_without_a_function_of_scores_no_scores_are_kept() -> None:
    q, k, v = (made(1, 8, 256, 8, dtype=lt.float32) for _ in range(3))
    mask = create_block_mask(causal, None, None, 256, 256)
    before = lt.memory_allocated()
    out = flex_attention(q, k, v, None, mask)
    kept = lt.memory_allocated() - before
    log_sums = 8 * 256 * 4
    assert kept == out.nbytes + log_sums + 256 * 256


def test_a_block_mask_leaves_out_whole_blocks_that_it_does_not_list() -> None:
    counts = lt.tensor([[[1, 1]]], dtype=lt.int32)
    indices = lt.tensor([[[[0, 1], [1, 0]]]], dtype=lt.int32)
    mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=2)
    q, k, v = made(1, 1, 4, 3), made(1, 1, 4, 3), made(1, 1, 4, 3)
    blocks = lt.block_diag(lt.ones(2, 2), lt.ones(2, 2)).bool()
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=blocks)
    found = flex_attention(q, k, v, block_mask=mask)
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-12)


def test_what_does_not_fit_is_refused() -> None:
    q = made(1, 4, 6, 3)
    with pytest.raises(ValueError, match="enable_gqa=True"):
        flex_attention(q, q[:, :2], q[:, :2])
    with pytest.raises(ValueError, match="no multiple of 3 heads"):
        flex_attention(q, q[:, :3], q[:, :3], enable_gqa=True)
    with pytest.raises(ValueError, match="same dtype"):
        flex_attention(q, q.float(), q)
    with pytest.raises(ValueError, match="embedding dimension"):
        flex_attention(q, q[..., :2], q)
    with pytest.raises(NotImplementedError, match="4 dimensions"):
        flex_attention(q[0], q[0], q[0])
    with pytest.raises(ValueError, match=r"made for seq_lengths \(4, 4\)"):
        flex_attention(q, q, q, block_mask=create_block_mask(causal, None, None, 4, 4))
    with pytest.raises(ValueError, match="3 heads"):
        flex_attention(q, q, q, block_mask=create_block_mask(causal, None, 3, 6, 6))
    with pytest.raises(RuntimeError, match="must be a BlockMask"):
        flex_attention(q, q, q, block_mask=lt.ones(6, 6))
    with pytest.raises(RuntimeError, match="callable"):
        and_masks(causal, 3)
