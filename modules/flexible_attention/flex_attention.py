"""Flexible attention: attention whose scores a function may change, pair by pair."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, TypedDict

from ...framework import execution, ops
from ...framework.checkpointing.regions import checkpointing
from ...framework.dtypes import float32, float64
from ...framework.ops.creation.ranges import arange
from ...framework.tensor import Tensor
from .. import functional as F
from .block_mask import BlockMask, noop_mask, over_pairs

TILE_BYTES = 1 << 23  # of scores


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
        Up to ``TILE_BYTES`` of scores there is one tile: with a ``score_mod`` it keeps the scores
        and the probabilities for backward, (B, Hq, L, S) each, else nothing of them but the mask.
        Above, queries are worked off in tiles of rows, each an activation-checkpointed region:
        backward keeps queries, keys, values and the result, and makes the scores of a tile again.
        Keys before the first and after the last that a tile's blocks let see are left out.
    """
    _check(query, key, value, enable_gqa, block_mask)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    wanted = AuxRequest(lse=return_lse) if return_aux is None else return_aux
    if query.shape[0] != key.shape[0]:
        key, value = (t.expand(query.shape[0], *t.shape[1:]) for t in (key, value))
    call = _Call(score_mod, block_mask, scale, enable_gqa, wanted)
    if block_mask is None and call.by_kernel:  # which has tiles of its own
        out, *extras = call.attend(query, key, value, 0, 0)
    else:
        out, *extras = call.in_tiles(query, key, value)
    if return_aux is not None:
        return out, AuxOutput(*extras)
    return (out, extras[0]) if return_lse else out


class _Call:
    # What stays the same from tile to tile.
    def __init__(
        self,
        score_mod: Callable[..., Tensor] | None,
        block_mask: BlockMask | None,
        scale: float,
        enable_gqa: bool,
        wanted: AuxRequest,
    ) -> None:
        self.score_mod, self.block_mask, self.scale = score_mod, block_mask, scale
        self.enable_gqa, self.wanted = enable_gqa, wanted
        self.by_kernel = score_mod is None and not (wanted.lse or wanted.max_scores)
        self.blocks = None if block_mask is None else block_mask.to_dense().bool()

    def in_tiles(self, query: Tensor, key: Tensor, value: Tensor) -> list[Any]:
        length, keys = query.shape[-2], key.shape[-2]
        row = query.shape[0] * query.shape[1] * keys * query.element_size()
        rows = max(1, TILE_BYTES // max(1, row))
        if self.block_mask is not None and rows < length:
            size = self.block_mask.BLOCK_SIZE[0]
            rows = max(rows // size * size, min(rows, size))
        parts = []
        for begin in range(0, max(length, 1), rows):
            tile = query if rows >= length else query[:, :, begin : begin + rows]
            first, last = self._columns(begin, begin + tile.shape[-2], keys)
            k, v = (t if last - first == keys else t[:, :, first:last] for t in (key, value))
            with nullcontext() if rows >= length else checkpointing():
                parts.append(self.attend(tile, k, v, begin, first))
        if len(parts) == 1:
            return list(parts[0])
        columns = zip(*parts, strict=True)
        return [None if part[0] is None else ops.cat(list(part), 2) for part in columns]

    def _columns(self, begin: int, end: int, keys: int) -> tuple[int, int]:
        # From the first key that a block of these queries lets see, to the last.
        if self.block_mask is None or self.blocks is None:
            return 0, keys
        if self.blocks.device.type == "meta" or not execution.current.knows(self.blocks):
            return 0, keys
        height, width = self.block_mask.BLOCK_SIZE
        seen = self.blocks[..., begin // height : -(-end // height), :].flatten(0, -2).any(0)
        found = [i for i, one in enumerate(seen.tolist()) if one]
        return (found[0] * width, min(keys, (found[-1] + 1) * width)) if found else (0, 0)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, begin: int, first: int) -> Any:
        # Of queries from begin on and keys from first on: the result and what is wanted beside it.
        working = float64 if query.dtype is float64 else float32
        if not key.shape[-2]:  # none of these queries sees a key
            none = query.new_full(query.shape[:-1], -math.inf, dtype=working)
            out = query.new_zeros((*query.shape[:-1], value.shape[-1]))
            return out, none if self.wanted.lse else None, none if self.wanted.max_scores else None
        seen = self._seen(begin, query.shape[-2], first, key.shape[-2])
        if self.by_kernel:
            out = F.scaled_dot_product_attention(
                query, key, value, seen, scale=self.scale, enable_gqa=self.enable_gqa
            )
            return out, None, None
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
        scores = (query @ key.mT).to(working) * self.scale
        if self.score_mod is not None:
            b, h, i, j = (arange(n, device=query.device) for n in scores.shape)
            places = (b, h, i + begin, j + first)
            scores = over_pairs(self.score_mod, True)(scores, *places).to(working)
        if seen is not None:
            scores = scores.masked_fill(~seen, -math.inf)
        largest = scores.amax(-1)
        # softmax of a row that is minus infinity throughout is NaN: such a row gets zeros
        unseen = (largest == -math.inf).unsqueeze(-1)
        weights = scores.masked_fill(unseen, 0.0).softmax(-1).masked_fill(unseen, 0.0)
        out = weights.to(query.dtype) @ value
        lse = scores.logsumexp(-1) if self.wanted.lse else None
        return out, lse, largest if self.wanted.max_scores else None

    def _seen(self, begin: int, rows: int, first: int, columns: int) -> Tensor | None:
        # Which pairs are seen, broadcastable to the scores: by the function, or the blocks alone.
        if self.block_mask is None or self.blocks is None:
            return None
        height, width = self.block_mask.BLOCK_SIZE
        i = arange(begin, begin + rows, device=self.blocks.device)
        j = arange(first, first + columns, device=self.blocks.device)
        blocks: Tensor = self.blocks.index_select(-2, i // height).index_select(-1, j // width)
        if self.block_mask.mask_mod is noop_mask:
            return blocks
        b, h = (arange(n, device=self.blocks.device) for n in blocks.shape[:2])
        found: Tensor = over_pairs(self.block_mask.mask_mod, False)(b, h, i, j) & blocks
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
    if block_mask is None:
        return
    if not isinstance(block_mask, BlockMask):
        raise RuntimeError(
            f"flex_attention: block_mask must be a BlockMask; got {type(block_mask).__name__}. Use "
            "create_block_mask."
        )
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
