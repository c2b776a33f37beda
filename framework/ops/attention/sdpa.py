"""Scaled dot product attention, computed tile by tile.

No matrix of (queries, keys) exists for the whole batch, or even for one head where that is large:
forward and backward make the scores of a few rows in a workspace of about a megabyte, use them and
overwrite them (``tiling.py``). On other devices than the host, where each call costs more, it has
32 megabytes. For backward, the node keeps query, key, value, the result and one number per row,
``lse``, the logarithm of the row's sum of ``exp(score - largest)``. The
probabilities are recomputed from it and from the largest score, which is found again
(``sdpa_backward.py``): in the sum of the two, as it is usually kept, large scores would leave no
digits for the logarithm.

Source:
    The row statistics kept for backward: Dao et al.: "FlashAttention", 2022. Unlike there, a tile
    has whole rows, since NumPy's matrix products are the inner loop.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...dtypes import BOOL, bool_, float32
from ...kernels.common.row_blocks import in_blocks, room_specs
from ...kernels.cpu import attention_blocks
from ...kernels.cuda import attention as on_gpu
from ...random.generator import draw
from ...random.philox import Rng
from ...spec import Spec
from ..activation.softmax import softmax
from ..creation.fill import ones
from ..creation.from_data import tensor
from ..random.dropout import _dropout as drop
from ..registry import function, op
from ..signatures import broadcast_shapes
from .sdpa_backward import _attention_grad
from .tiling import (
    Tiling,
    attention_flops,
    block_tiling,
    kept_tile,
    mask_view,
    masked_scores,
    masks_of_examples,
    rows_ready,
    workspaces,
    worth_blocks,
    worth_compiling_attention,
)

# How a result lies in memory: (batch, heads, rows, size), or the rows before the heads, or first.
HEADS, ROWS, ROWS_FIRST = (0, 1, 2), (0, 2, 1), (2, 0, 1)


def _attention_infer(query, key, value, attn_mask, rng, *, p, causal, scale, order):
    dtype = float32 if query.dtype.is_half else query.dtype
    tiling = Tiling(query.shape, key.shape, causal, dtype.itemsize, query.on_host)
    out = Spec((*[query.shape[d] for d in order], value.shape[3]), query.dtype)
    lse = Spec((*query.shape[:3], 1), dtype)
    return (
        out,
        lse,
        *workspaces(query, key, attn_mask, p=p, causal=causal, tiling=tiling, dtype=dtype),
    )


def _attention_samples(make):
    base = {"p": 0.0, "causal": False, "scale": 0.5, "order": HEADS}
    q, k, v = make(1, 1, 3, 4), make(1, 1, 5, 4), make(1, 1, 5, 3)
    yield (q, k, v, None, None), base
    q = make(2, 2, 3, 4)
    yield (q, q, q, None, None), base | {"causal": True, "scale": 1.0, "order": ROWS_FIRST}

    def heads(shared):
        return make(2, 2, 3, 4), make(2, shared, 5, 4), make(2, shared, 5, 3)

    yield (*heads(2), make(3, 5), Rng(3, 1)), base | {"p": 0.4}
    yield (*heads(2), make(2, 2, 1, 5), None), base
    yield (*heads(2), make(2, 1, 1, 5), None), base | {"causal": True, "order": ROWS}
    seen = tensor([True, False, True, True, False])
    yield (*heads(1), seen, None), base
    yield (make(0, 1, 3, 4), make(0, 1, 5, 4), make(0, 1, 5, 3), None, None), base
    yield (make(1, 1, 3, 4), make(1, 1, 0, 4), make(1, 1, 0, 3), None, None), base


@op(
    infer=_attention_infer,
    aux=("lse",),
    scratch=("scores", "hidden", "words", "drawn", "kept"),
    promote=("same", ("query", "key", "value")),
    layout=rows_ready,
    flops=attention_flops,
    samples=_attention_samples,
    autocast="low",
)
def _attention(
    xp, out, lse, scores, hidden, words, drawn, kept, query, key, value, attn_mask, rng, *,
    p, causal, scale, order=HEADS,
):  # fmt: skip
    """``softmax(query @ key.mT * scale + mask) @ value`` for each head.

    The dims of the result are permuted: it is (batch, heads, rows, size)[order].
    """
    out = _restored(out, order)
    if out.size == 0 or key.shape[2] == 0:
        out.fill(0)
        lse.fill(0)
        return
    tiling = Tiling(query.shape, key.shape, causal, lse.dtype.itemsize, xp is np)
    q, k, v, o, sums = tiling.split(query), key, value, tiling.split(out), tiling.split(lse)
    mask = mask_view(xp, tiling, attn_mask)
    for tile in tiling:
        b, heads, rows, columns = tile
        s = masked_scores(xp, tiling, scores, hidden, q, k, mask, tile, scale)
        largest = sums[b, heads, :, rows]
        xp.max(s, axis=-1, keepdims=True, out=largest)
        largest[largest == -xp.inf] = 0  # nothing to attend to: the result is zero
        xp.subtract(s, largest, out=s)
        xp.exp(s, out=s)
        total = xp.sum(s, axis=-1, keepdims=True)
        total[total == 0] = 1
        if p:
            keep = kept_tile(xp, tiling, kept, words, drawn, rng, tile, s.shape, p)
            xp.multiply(s, keep, out=s)
        target = o[b, heads, :, rows]
        xp.matmul(s, v[b, heads, None, :columns], out=target)
        divisor = total if not p else total * (1.0 - p)
        xp.divide(target, divisor, out=target)
        xp.log(total, out=largest)


def _block_scratch(query, key, value, attn_mask, *_, p, causal, **__):
    return Tiling(query.shape, key.shape, causal, query.dtype.itemsize, True).blocks(p)


def _half_scratch(query, key, value, *_, causal, p, **__):
    out = query.like((*query.shape[:3], value.shape[3]))
    blocks = block_tiling(query, key, value, causal).blocks(p)
    return *room_specs(query.shape[0], out, query, key, value), *blocks


@_attention.kernel(
    "cpu",
    dtypes="half",
    when=worth_blocks,
    layout=attention_blocks.rows_lie_close,
    scratch=_half_scratch,
)
def _(
    xp, out, lse, room, q_room, k_room, v_room, scores, kept, query, key, value, attn_mask, rng, *,
    p, causal, scale, order=HEADS,
):  # fmt: skip
    tiling = block_tiling(query, key, value, causal)
    words = attention_blocks.dropout_words(rng, p)

    def compute(o, sums, q, k, v, *mask):
        tiling.batch = len(q)
        arrays = o, sums, scores, kept, q, k, v, tiling.mask_words(*(mask or [None]))
        tiling.for_each_head(attention_blocks.forward, 2, *arrays, *words, np.float32(scale))

    results = _restored(out, order), lse.reshape(lse.shape[:3])
    inputs = [query, key, value, *masks_of_examples(attn_mask, query, key)]
    in_blocks(compute, results, inputs, [room, q_room, k_room, v_room])


@_attention.kernel(
    "cpu",
    when=worth_compiling_attention,
    layout=attention_blocks.rows_lie_close,
    scratch=_block_scratch,
)
def _(
    xp, out, lse, scores, kept, query, key, value, attn_mask, rng, *, p, causal, scale, order=HEADS
):  # fmt: skip
    out = _restored(out, order)
    tiling = Tiling(query.shape, key.shape, causal, lse.dtype.itemsize, True)
    arrays = out, lse.reshape(lse.shape[:3]), scores, kept, query, key, value
    words = attention_blocks.dropout_words(rng, p)
    mask = tiling.mask_words(attn_mask)
    tiling.for_each_head(attention_blocks.forward, 2, *arrays, mask, *words, np.float32(scale))


def _scores_on_gpu(query, key, value, *_, **__):
    dtype = float32 if query.dtype.is_half else query.dtype
    tiles = on_gpu.Tiles(query.shape, key.shape, dtype.itemsize)
    return (Spec((tiles.elements,), dtype),)


@_attention.kernel("cuda", when=on_gpu.supported, layout=rows_ready, scratch=_scores_on_gpu)
def _(xp, out, lse, scores, query, key, value, attn_mask, rng, *, p, causal, scale, order=HEADS):
    out = _restored(out, order)
    on_gpu.forward(xp, out, lse, scores, query, key, value, attn_mask, rng, p, causal, scale)


@_attention.vjp("query", "key", "value", "attn_mask")
def _(g, needs, query, key, value, attn_mask, rng, out, lse, p, causal, scale, order):
    g, out = _restored(g, order), _restored(out, order)
    dq, dk, dv, dmask = _attention_grad(
        g, query, key, value, attn_mask, rng, out, lse, p, causal, scale, needs[3]
    )
    return dq, dk, dv, dmask if needs[3] else None


@_attention.composite
def _(query, key, value, attn_mask, rng, *, p, causal, scale, order):
    return plain(query, key, value, attn_mask, rng, p, causal, scale).permute(*order, 3)


def _restored(x, order):
    # As (batch, heads, rows, size), of arrays and tensors alike.
    if order == HEADS:
        return x
    x = x if order == ROWS else x.swapaxes(0, 1)
    return x.swapaxes(1, 2)


def _order_of(query):
    # That of the query: then heads that were split off a product's result are merged by a view.
    _, heads, rows, _ = query._array.strides
    return ROWS if heads < rows else HEADS


def plain(query, key, value, attn_mask, rng, p, causal, scale):
    """Attention in plain ops, with all scores at once."""
    shared = query.shape[1] // max(1, key.shape[1])
    if shared > 1:
        key = key.repeat_interleave(shared, 1)
        value = value.repeat_interleave(shared, 1)
    scores = (query @ key.mT) * scale
    hidden = None
    if causal:
        seen = ones(query.shape[2], key.shape[2], dtype=bool_, device=query.device).tril()
        hidden = seen.logical_not()
    if attn_mask is not None and attn_mask.dtype.category == BOOL:
        hidden = attn_mask.logical_not() if hidden is None else hidden | attn_mask.logical_not()
    elif attn_mask is not None:
        scores = scores + attn_mask
    if hidden is not None:
        # A large number, not infinity: a row where everything is hidden stays finite.
        scores = scores.masked_fill(hidden, -1e30 if query.dtype.itemsize > 2 else -3e4)
    weights = softmax(scores, -1)
    if hidden is not None:
        weights = weights.masked_fill(hidden, 0.0)
    if p:
        scaled = 0.0 if p == 1 else 1.0 / (1.0 - p)
        weights = drop(weights, rng, p, scaled, 0.0, 0.0)
    return weights @ value


def _four(x):
    # (batch, heads, rows, size) of a tensor with fewer or more dims
    if x.ndim == 2:
        return x.unsqueeze(0).unsqueeze(0)
    return x.unsqueeze(1) if x.ndim == 3 else x.reshape(prod(x.shape[:-3]), *x.shape[-3:])


@function(public=False)
def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Compute scaled dot product attention: ``softmax(q @ k.mT * scale + mask) @ v``.

    Args:
        query: (*, H, L, E).
        key: (*, H, S, E); fewer heads with ``enable_gqa``.
        value: (*, H, S, Ev).
        attn_mask: Broadcasting to (*, H, L, S): bool (True takes part), or a number added to the
            scores.
        dropout_p: Probability with which a weight is dropped.
        is_causal: Row ``i`` sees columns up to ``i``.
        scale: Factor of the scores; ``1 / sqrt(E)`` if left out.
        enable_gqa: Each key head serves several query heads.

    Returns:
        Tensor (*, H, L, Ev). A row that sees nothing is zero.

    Memory:
        Keeps query, key, value, the mask, the result and one number per row. No (L, S) matrix is
        kept; the workspace is one tile of scores, about 1 MiB, on other devices 32 MiB. In memory
        the dims of the result are in the query's order: where heads were split off a product's
        result, merging them again is a view, and the product that follows keeps the same bytes.

    Source:
        Vaswani et al.: "Attention Is All You Need", 2017.
    """
    ndim = max(query.ndim, key.ndim, value.ndim)
    if min(query.ndim, key.ndim, value.ndim) > 1:
        query, key, value = (
            x.reshape(*[1] * (ndim - x.ndim), *x.shape) for x in (query, key, value)
        )
    _check(query, key, value, attn_mask, is_causal, enable_gqa)
    scale = max(query.shape[-1], 1) ** -0.5 if scale is None else float(scale)
    lead = broadcast_shapes(
        "scaled_dot_product_attention", query.shape[:-3], key.shape[:-3], value.shape[:-3]
    )
    heads = None
    if query.ndim > 2 and not enable_gqa:
        heads = broadcast_shapes(
            "scaled_dot_product_attention", query.shape[-3:-2], key.shape[-3:-2], value.shape[-3:-2]
        )
    whole = []
    for x in (query, key, value):
        shape = (*lead, *(heads or x.shape[-3:-2]), *x.shape[-2:])
        whole.append(_four(x if tuple(x.shape) == shape else x.expand(shape)))
    q, k, v = whole
    result = (*lead, *(heads or query.shape[-3:-2]), query.shape[-2], value.shape[-1])
    if attn_mask is not None:
        scores = (*result[:-1], key.shape[-2])
        tail = scores[max(0, len(scores) - attn_mask.ndim) :]
        if attn_mask.ndim > len(scores) or any(
            m not in (1, n) for m, n in zip(attn_mask.shape, tail, strict=True)
        ):
            raise RuntimeError(
                f"scaled_dot_product_attention: attn_mask broadcasts to the scores {scores}; got "
                f"{tuple(attn_mask.shape)}. Make each of its dims match or be 1."
            )
        attn_mask = _four_mask(attn_mask, result[:-2], query.ndim)
    out = attended(q, k, v, attn_mask, float(dropout_p), bool(is_causal), scale)
    return out if tuple(out.shape) == result else out.reshape(result)


def attended(query, key, value, mask, p, causal, scale, order=None):
    """Attention of (batch, heads, rows, size) with an optional mask, causal or not.

    In memory the dims of the result are in the given order, or in the query's. As the product that
    follows wants them, for then it keeps the same bytes and no copy.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(
            "scaled_dot_product_attention: dropout probability has to be between 0 and 1, but got "
            f"{p}."
        )
    if mask is not None and mask.dtype.category != BOOL and mask.dtype is not query.dtype:
        raise RuntimeError(
            "scaled_dot_product_attention: Expected attn_mask dtype to be bool or to match query "
            f"dtype; got {mask.dtype} and {query.dtype}. Convert it with .to()."
        )
    rng = draw(prod(query.shape[:3]) * key.shape[2], query.device) if p else None
    if p == 1.0:
        return plain(query, key, value, mask, rng, p, causal, scale)
    order = order or _order_of(query)
    return _restored(_attention(query, key, value, mask, rng, p, causal, scale, order), order)


def _four_mask(mask, lead, ndim):
    if mask.ndim <= 2:
        return mask
    if ndim == 3:
        return mask.unsqueeze(1)
    if ndim == 4 or mask.ndim <= 3:
        return mask
    return mask.expand(*lead, *mask.shape[-2:]).reshape(
        prod(lead[:-1]), *lead[-1:], *mask.shape[-2:]
    )


def _check(query, key, value, mask, causal, grouped):
    name = "scaled_dot_product_attention"
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise RuntimeError(
            f"{name}: query, key and value must be at least 2 dimensional; got "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}."
        )
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise RuntimeError(
            f"{name}: query and key share their last dimension, key and value their rows; got "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}. Transpose one."
        )
    if mask is not None and causal:
        raise RuntimeError(
            f"{name}: Explicit attn_mask should not be set when is_causal=True. Pass one of them."
        )
    if grouped and (
        query.ndim < 3
        or key.shape[-3] != value.shape[-3]
        or query.shape[-3] % max(1, key.shape[-3])
    ):
        raise RuntimeError(
            f"{name}: with enable_gqa, key and value must have the same heads, and a divisor of "
            f"query's; got {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}."
        )


__all__ = ["_attention", "plain", "scaled_dot_product_attention"]
