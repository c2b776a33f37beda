"""Backward of attention: probabilities are recomputed tile by tile.

With P the probabilities, G the incoming gradient and D the row sums of ``G * out``: the gradient of
value is ``P^T G``; that of the scores ``P * (G value^T - D)``, from which those of query, key and
mask follow by products and sums. Keys that several query heads share add up their gradients.

Source:
    D from the result instead of the probabilities: Dao et al.: "FlashAttention", 2022.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...dtypes import float32
from ...kernels.common.row_blocks import in_blocks, room_specs
from ...kernels.cpu import attention_blocks
from ...kernels.cuda import attention as on_gpu
from ...random.philox import Rng
from ...spec import Spec
from ..registry import op
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


def _grad_samples(make):
    base = {"p": 0.0, "causal": False, "scale": 0.5, "bias": False}

    def given(mask, rng, batch=1):
        yield make(batch, 1, 3, 3)
        yield from (make(batch, 1, 3, 4), make(batch, 1, 5, 4), make(batch, 1, 5, 3))
        yield from (mask, rng, make(batch, 1, 3, 3))
        lse = make(batch, 1, 3, 1, low=0.5, high=1.5)
        yield lse.to(float32) if lse.dtype.is_half else lse

    yield tuple(given(None, None)), base
    causal = base | {"p": 0.3, "causal": True, "scale": 0.25}
    yield tuple(given(None, Rng(3, 1))), causal
    yield tuple(given(make(1, 5), None)), base | {"bias": True}
    yield tuple(given(None, None, 0)), base


def _grad_infer(grad, query, key, value, attn_mask, rng, result, lse, *, p, causal, scale, bias):
    dtype = lse.dtype
    tiling = Tiling(query.shape, key.shape, causal, dtype.itemsize, query.on_host)
    scores, hidden, words, drawn, kept = workspaces(
        query, key, attn_mask, p=p, causal=causal, tiling=tiling, dtype=dtype
    )
    width = max(query.shape[3], value.shape[3])
    heads = tiling.examples * tiling.group * tiling.shared
    products = tiling.threads * heads * tiling.columns * width
    rows = tiling.threads * tiling.of_one(width)
    dmask = attn_mask if bias else query.like((0,))
    summed = Spec((tiling.elements if bias else 0,), dtype)
    return (
        query, key, value, dmask, scores, scores, hidden, words, drawn, kept,
        Spec((0 if tiling.whole else products,), dtype), Spec((rows,), dtype), summed,
    )  # fmt: skip


@op(
    infer=_grad_infer,
    returns=("dq", "dk", "dv", "dmask"),
    scratch=(
        "scores",
        "grads",
        "hidden",
        "words",
        "drawn",
        "kept",
        "products",
        "weighted",
        "summed",
    ),
    layout=rows_ready,
    samples=_grad_samples,
    flops=lambda grad, query, key, value, *_, **a: 5 * attention_flops(query, key, value, **a) // 2,
)
def _attention_grad(
    xp, dq, dk, dv, dmask, scores, grads, hidden, words, drawn, kept, products, weighted, summed,
    grad, query, key, value, attn_mask, rng, result, lse, *, p, causal, scale, bias,
):  # fmt: skip
    """Gradients of query, key, value and, with ``bias``, mask; probabilities are recomputed."""
    if result.size == 0 or key.shape[2] == 0:
        for d in (dq, dk, dv, dmask):
            d.fill(0)
        return
    dmask.fill(0)
    tiling = Tiling(query.shape, key.shape, causal, lse.dtype.itemsize, xp is np)
    q, o, g, sums, dq = (tiling.split(a) for a in (query, result, grad, lse, dq))
    mask = mask_view(xp, tiling, attn_mask)
    _clear(tiling, causal, dk, dv)
    for tile in tiling:
        b, heads, rows, columns = tile
        s = masked_scores(xp, tiling, scores, hidden, q, key, mask, tile, scale)
        largest = xp.max(s, axis=-1, keepdims=True)
        largest[largest == -xp.inf] = 0  # as in the forward pass
        xp.subtract(s, largest, out=s)
        xp.subtract(s, sums[b, heads, :, rows], out=s)
        xp.exp(s, out=s)
        t = grads[: s.size].reshape(s.shape)
        above = g[b, heads, :, rows]
        if p:
            keep = kept_tile(xp, tiling, kept, words, drawn, rng, tile, s.shape, p)
            xp.multiply(s, keep, out=t)
            xp.divide(t, 1.0 - p, out=t)
            _add_to(xp, tiling, products, dv, tile, t, above)
        else:
            _add_to(xp, tiling, products, dv, tile, s, above)
        xp.matmul(above, value[b, heads, None, :columns].swapaxes(-1, -2), out=t)
        if p:
            xp.multiply(t, keep, out=t)
            xp.divide(t, 1.0 - p, out=t)
        both = weighted[: above.size].reshape(above.shape)
        xp.multiply(above, o[b, heads, :, rows], out=both)
        xp.subtract(t, xp.sum(both, axis=-1, keepdims=True), out=t)
        xp.multiply(t, s, out=t)
        if bias:
            _add_to_mask(xp, tiling, dmask, summed, t, tile)
        xp.multiply(t, scale, out=t)
        xp.matmul(t, key[b, heads, None, :columns], out=dq[b, heads, :, rows])
        _add_to(xp, tiling, products, dk, tile, t, q[b, heads, :, rows])


def _block_scratch(grad, query, key, *_, p, causal, **__):
    tiling = Tiling(query.shape, key.shape, causal, query.dtype.itemsize, True)
    scores, kept = tiling.blocks(p)
    return scores, scores, kept, Spec((tiling.threads * tiling.lines,), scores.dtype)


def _half_scratch(grad, query, key, value, mask, rng, result, lse, *, causal, p, **_):
    halves = (query, key, value, query, key, value, result, grad, lse)
    tiling = block_tiling(query, key, value, causal)
    scores, kept = tiling.blocks(p)
    sums = Spec((tiling.threads * tiling.lines,), scores.dtype)
    return scores, scores, kept, sums, *room_specs(query.shape[0], *halves)


@_attention_grad.kernel(
    "cpu",
    dtypes="half",
    when=lambda grad, *rest, bias, **a: (
        not bias and grad.dtype is rest[0].dtype and worth_blocks(*rest, **a)
    ),
    layout=attention_blocks.rows_lie_close,
    scratch=_half_scratch,
)
def _(
    xp, dq, dk, dv, dmask, scores, grads, kept, sums, *rest, p, causal, scale, bias
):  # fmt: skip
    *rooms, grad, query, key, value, attn_mask, rng, result, lse = rest
    tiling = block_tiling(query, key, value, causal)
    drawn = attention_blocks.dropout_words(rng, p)

    def compute(dq, dk, dv, q, k, v, out, above, low, *mask):
        tiling.batch = len(q)
        arrays = dq, dk, dv, scores, grads, kept, sums, q, k, v, out, above, low
        words = tiling.mask_words(*(mask or [None])), tiling.mask_words(None), *drawn
        tiling.for_each_head(attention_blocks.backward, 5, *arrays, *words, np.float32(scale))

    inputs = [query, key, value, result, grad, lse.reshape(lse.shape[:3])]
    inputs += masks_of_examples(attn_mask, query, key)
    in_blocks(compute, [dq, dk, dv], inputs, rooms)


@_attention_grad.kernel(
    "cpu",
    when=lambda grad, *rest, **_: worth_compiling_attention(*rest),
    layout=attention_blocks.rows_lie_close,
    scratch=_block_scratch,
)
def _(
    xp, dq, dk, dv, dmask, scores, grads, kept, sums, grad, query, key, value, attn_mask, rng,
    result, lse, *, p, causal, scale, bias,
):  # fmt: skip
    dmask.fill(0)
    tiling = Tiling(query.shape, key.shape, causal, lse.dtype.itemsize, True)
    lse = lse.reshape(lse.shape[:3])
    arrays = dq, dk, dv, scores, grads, kept, sums, query, key, value, result, grad, lse
    mask, dmask = tiling.mask_words(attn_mask), tiling.mask_words(dmask if bias else None)
    words = mask, dmask, *attention_blocks.dropout_words(rng, p), np.float32(scale)
    steps = zip(query.shape[:2], dmask[1:3], strict=True)
    shared = bias and any(n > 1 and not step for n, step in steps)
    tiling.for_each_head(attention_blocks.backward, 5, *arrays, *words, alone=shared)


def _scores_on_gpu(grad, query, key, *_, **__):
    dtype = float32 if query.dtype.is_half else query.dtype
    tiles = on_gpu.Tiles(query.shape, key.shape, dtype.itemsize)
    return (Spec((tiles.elements,), dtype),) * 2


@_attention_grad.kernel(
    "cuda",
    when=lambda grad, *rest, bias, **a: not bias and on_gpu.supported(*rest, **a),
    layout=rows_ready,
    scratch=_scores_on_gpu,
)
def _(
    xp, dq, dk, dv, dmask, scores, grads, grad, query, key, value, attn_mask, rng, result, lse, *,
    p, causal, scale, bias,
):  # fmt: skip
    on_gpu.backward(
        xp, dq, dk, dv, scores, grads, grad, query, key, value, attn_mask, rng,
        result, xp.ascontiguousarray(lse), p, causal, scale,
    )  # fmt: skip


def _clear(tiling, causal, dk, dv) -> None:
    if not tiling.whole:
        dk.fill(0)
        dv.fill(0)
    elif causal and tiling.rows < tiling.columns:  # no query looks so far
        dk[:, :, tiling.rows :].fill(0)
        dv[:, :, tiling.rows :].fill(0)


def _add_to(xp, tiling, products, total, tile, rows, other) -> None:
    # total[keys] += rows^T @ other, summed over the query heads that share the keys
    b, heads, _, columns = tile
    target = total[b, heads, :columns]
    if tiling.whole:
        xp.matmul(rows.swapaxes(-1, -2), other, out=target[:, :, None])
        return
    shape = (*rows.shape[:-2], columns, other.shape[-1])
    product = products[: prod(shape)].reshape(shape)
    xp.matmul(rows.swapaxes(-1, -2), other, out=product)
    for j in range(tiling.shared):
        xp.add(target, product[:, :, j], out=target)


def _add_to_mask(xp, tiling, dmask, summed, t, tile) -> None:
    # The gradient of the scores, summed over what the mask was repeated along.
    b, heads, rows, columns = tile
    total = dmask.reshape((1,) * (4 - dmask.ndim) + dmask.shape)
    t = t.reshape(t.shape[0], -1, *t.shape[3:])
    whole = (tiling.batch, tiling.heads, tiling.rows, tiling.columns)
    repeated = [n == 1 and n != m for n, m in zip(total.shape, whole, strict=True)]
    first, last = heads.start * tiling.shared, heads.stop * tiling.shared
    target = total[
        slice(0, 1) if repeated[0] else b,
        slice(0, 1) if repeated[1] else slice(first, last),
        slice(0, 1) if repeated[2] else rows,
        slice(0, 1) if repeated[3] else slice(0, columns),
    ]
    axes = tuple(d for d in range(4) if repeated[d])
    if axes:
        sums = summed[: target.size].reshape(target.shape)
        t = xp.sum(t, axis=axes, keepdims=True, out=sums)
    xp.add(target, t, out=target)
