"""Flexible attention: attention whose scores a function may change, pair by pair."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict

from ..framework.dtypes import float32, float64
from ..framework.ops.creation.ranges import arange
from ..framework.tensor import Tensor
from . import functional as F
from .block_mask import BlockMask, noop_mask, over_pairs


class AuxRequest(NamedTuple):
    """What :func:`flex_attention` returns beside its output."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What :func:`flex_attention` returned beside its output; None for what was not asked for."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


class FlexKernelOptions(TypedDict, total=False):
    """Tuning of PyTorch's kernels for GPUs: taken, and without an effect here."""

    num_warps: int
    num_stages: int
    BLOCK_M: int
    BLOCK_N: int
    BLOCK_M1: int
    BLOCK_N1: int
    BLOCK_M2: int
    BLOCK_N2: int
    PRESCALE_QK: bool
    ROWS_GUARANTEED_SAFE: bool
    BLOCKS_ARE_CONTIGUOUS: bool
    WRITE_DQ: bool
    FORCE_USE_FLEX_ATTENTION: bool
    USE_TMA: bool
    kpack: int
    matrix_instr_nonkdim: int
    waves_per_eu: int
    BACKEND: str


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: FlexKernelOptions | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """Compute attention with scores that ``score_mod`` changes and ``block_mask`` leaves out.

    Args:
        query: (B, Hq, L, E).
        key: (B, Hkv, S, E); B may be 1.
        value: (B, Hkv, S, Ev).
        score_mod: Takes a scaled score and the indices of its batch, head, query and key, all 0-d
            tensors; returns the score that takes its place. It may use other tensors, and they get
            gradients.
        block_mask: Of :func:`create_block_mask`; a query that sees no key gives zeros.
        scale: What scores are multiplied by; 1 / sqrt(E) by default.
        enable_gqa: Whether Hq may be a multiple of Hkv.
        return_lse: Return the logarithm of the sum of exponentials too, (B, Hq, L).
        kernel_options: Taken, and without an effect.
        return_aux: What to return beside the output.

    Returns:
        (B, Hq, L, Ev) in the dtype of ``query``; with ``return_lse`` a pair with the logarithms,
        with ``return_aux`` a pair with an :class:`AuxOutput`.

    Raises:
        ValueError: Shapes or dtypes do not fit.

    Memory:
        Without ``score_mod`` and without extras, that of ``scaled_dot_product_attention``, which
        keeps no scores, and one byte for each pair of a ``block_mask``. Else the scores and the
        probabilities, (B, Hq, L, S) each, are kept for backward.
    """
    _check(query, key, value, enable_gqa, block_mask)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    groups = query.shape[1] // key.shape[1]
    seen = None if block_mask is None else _seen(block_mask, query, key)
    wanted = AuxRequest(lse=return_lse) if return_aux is None else return_aux
    if score_mod is None and not (wanted.lse or wanted.max_scores):
        if query.shape[0] != key.shape[0]:
            key, value = (t.expand(query.shape[0], *t.shape[1:]) for t in (key, value))
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, scale=scale, enable_gqa=enable_gqa
        )
    if groups > 1:
        key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    working = float64 if query.dtype is float64 else float32
    scores = (query @ key.mT).to(working) * scale
    if score_mod is not None:
        indices = [arange(n, device=query.device) for n in scores.shape]
        scores = over_pairs(score_mod, True)(scores, *indices).to(working)
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    largest = scores.amax(-1)
    # softmax of a row that is minus infinity throughout is NaN: such a row gets zeros
    unseen = (largest == -math.inf).unsqueeze(-1)
    weights = scores.masked_fill(unseen, 0.0).softmax(-1).masked_fill(unseen, 0.0)
    out = weights.to(query.dtype) @ value
    if return_aux is None and not return_lse:
        return out
    lse = scores.logsumexp(-1) if wanted.lse else None
    if return_aux is None:
        return out, lse
    return out, AuxOutput(lse, largest if wanted.max_scores else None)


def _seen(block_mask: BlockMask, query: Tensor, key: Tensor) -> Tensor | None:
    # Which pairs are seen, broadcastable to the scores: by the function, or by the blocks alone.
    lengths = query.shape[-2], key.shape[-2]
    if block_mask.seq_lengths != lengths:
        raise ValueError(
            f"flex_attention: block_mask was made for seq_lengths {block_mask.seq_lengths}, and "
            f"query and key have lengths {lengths}. Make it for these with create_block_mask."
        )
    batches, heads = block_mask.shape[0], block_mask.shape[1]
    for name, mine, theirs in (
        ("batches", batches, query.shape[0]),
        ("heads", heads, query.shape[1]),
    ):
        if mine not in (1, theirs):
            raise ValueError(f"flex_attention: block_mask has {mine} {name}, the query {theirs}.")
    blocks = block_mask.to_dense().bool()
    full = blocks.repeat_interleave(block_mask.BLOCK_SIZE[0], -2)[..., : lengths[0], :]
    full = full.repeat_interleave(block_mask.BLOCK_SIZE[1], -1)[..., : lengths[1]]
    if block_mask.mask_mod is noop_mask:
        return full
    sizes = (batches, heads, *lengths)
    indices = [arange(n, device=query.device) for n in sizes]
    found: Tensor = over_pairs(block_mask.mask_mod, False)(*indices).expand(sizes) & full
    return found


def _check(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool, block_mask: BlockMask | None
) -> None:
    if not query.dim() == key.dim() == value.dim() == 4:
        raise NotImplementedError(
            "flex_attention: query, key and value must have 4 dimensions; got "
            f"{query.dim()}, {key.dim()}, {value.dim()}."
        )
    if not query.dtype is key.dtype is value.dtype:
        raise ValueError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype}, key.dtype: {key.dtype}, and value.dtype: {value.dtype} instead."
        )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            "flex_attention: query and key must have the same embedding dimension; got "
            f"{query.shape[-1]} and {key.shape[-1]}."
        )
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f"flex_attention: key and value must agree but for their last dimension; got "
            f"{tuple(key.shape)} and {tuple(value.shape)}."
        )
    if key.shape[0] not in (1, query.shape[0]):
        raise ValueError(
            f"flex_attention: key has {key.shape[0]} batches, query {query.shape[0]}; a key of "
            "one batch serves all."
        )
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError(
            f"flex_attention: query has {query.shape[1]} heads, key {key.shape[1]}. Pass "
            "enable_gqa=True for groups of heads that share a key."
        )
    if query.shape[1] % key.shape[1]:
        raise ValueError(
            f"flex_attention: {query.shape[1]} heads of query are no multiple of "
            f"{key.shape[1]} heads of key."
        )
    if block_mask is not None and not isinstance(block_mask, BlockMask):
        raise RuntimeError(
            f"flex_attention: block_mask must be a BlockMask; got {type(block_mask).__name__}. Use "
            "create_block_mask."
        )
