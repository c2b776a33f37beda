"""Flexible attention and its block masks, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.nn.attention import flex_attention as ours

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("torch.nn.attention.flex_attention")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

DOCUMENTS = np.repeat(np.arange(6), 50)
PARTS = "kv_num_blocks kv_indices full_kv_num_blocks full_kv_indices q_num_blocks q_indices"
PARTS += " full_q_num_blocks full_q_indices"


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k).abs() <= 40


def by_head(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k + h * 20 - b


def documents(framework: Any) -> Callable[..., Any]:
    document = framework.as_tensor(DOCUMENTS)
    return lambda b, h, q, k: document[q] == document[k]


MASKS: dict[str, Callable[[Any, Any], Callable[..., Any]]] = {
    "causal": lambda framework, flex: causal,
    "window": lambda framework, flex: window,
    "by_head": lambda framework, flex: by_head,
    "documents": lambda framework, flex: documents(framework),
    "both": lambda framework, flex: flex.and_masks(causal, documents(framework)),
    "either": lambda framework, flex: flex.or_masks(by_head, window),
    "noop": lambda framework, flex: flex.noop_mask,
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("size", [64, (32, 128)])
def test_block_masks_have_the_same_parts(mask: str, size: Any) -> None:
    a, b = (
        flex.create_block_mask(MASKS[mask](f, flex), 2, 3, 300, 300, device="cpu", BLOCK_SIZE=size)
        for f, flex in ((lt, ours), (torch, theirs))
    )
    for name in PARTS.split():
        mine, other = getattr(a, name).numpy(), getattr(b, name).numpy()
        assert mine.dtype == other.dtype, name
        assert np.array_equal(mine, other), name
    assert a.shape == b.shape
    assert a.numel() == b.numel()
    assert a.sparsity() == pytest.approx(b.sparsity())
    assert np.array_equal(a.to_dense().numpy(), b.to_dense().numpy())
    assert str(a[0, 0]) == str(b[0, 0])
    for index in ((0,), (slice(None), 1), (slice(None), slice(None), slice(0, 2))):
        part, expected = a[index], b[index]
        assert part.shape == expected.shape
        assert np.array_equal(part.to_dense().numpy(), expected.to_dense().numpy())
    again = theirs.BlockMask.from_kv_blocks(b.kv_num_blocks, b.kv_indices, BLOCK_SIZE=size)
    mine = ours.BlockMask.from_kv_blocks(a.kv_num_blocks, a.kv_indices, BLOCK_SIZE=size)
    assert mine.shape == again.shape
    assert np.array_equal(mine.q_indices.numpy(), again.q_indices.numpy())


def relative(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + (q - k) * 0.01


def soft_cap(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return (score / 3).tanh() * 3


def slopes(framework: Any) -> Callable[..., Any]:
    slope = framework.as_tensor(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    return lambda score, b, h, q, k: score - slope[h] * (q - k).abs()


SCORES: dict[str, Callable[[Any], Callable[..., Any] | None]] = {
    "none": lambda framework: None,
    "relative": lambda framework: relative,
    "soft_cap": lambda framework: soft_cap,
    "slopes": slopes,
}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", ["causal", "documents", None])
@pytest.mark.parametrize("extras", [False, True])
def test_outputs_agree(score: str, mask: str | None, extras: bool) -> None:
    draw = np.random.default_rng(0)
    shapes = (2, 4, 300, 8), (2, 2, 300, 8), (2, 2, 300, 5)
    arrays = [draw.standard_normal(shape, dtype=np.float32) for shape in shapes]
    found = []
    for f, flex in ((lt, ours), (torch, theirs)):
        made = None
        if mask is not None:
            made = flex.create_block_mask(MASKS[mask](f, flex), None, None, 300, 300, device="cpu")
        aux = flex.AuxRequest(lse=True) if extras else None
        out = flex.flex_attention(
            *map(f.as_tensor, arrays), SCORES[score](f), made, enable_gqa=True, return_aux=aux
        )
        found.append([out[0], out[1].lse] if extras else [out])
    for mine, other in zip(*found, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-4, atol=2e-6)


def test_masks_of_scores_agree() -> None:
    def far(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score.masked_fill((q - k).abs() > 3, -float("inf"))

    mine, other = (flex.create_mask(far, 1, 2, 9, 11, device="cpu") for flex in (ours, theirs))
    assert np.array_equal(mine.numpy(), other.numpy())
