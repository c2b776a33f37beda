"""Scaled dot product attention, a block of rows at a time.

No matrix of (queries, keys) exists for the whole batch, or even for one head where that is large:
forward and backward make the scores of a few rows in a workspace of about a megabyte, use them and
overwrite them. Several threads share the workspace; each works on heads of its own, so that none
waits for another, and the products of one head stay with one thread of BLAS. For backward, the node keeps query, key, value, the result and one number per row,
the logarithm of the row's sum of exponentials, from which the probabilities are made again.

Dropout of probabilities draws its mask from (seed, offset) by the number of the element in the
full (batch, heads, queries, keys) order, so forward, backward and the plain composition agree,
whatever the blocks.

Source:
    The row statistics kept for backward: Dao et al.: "FlashAttention", 2022. Unlike there, a block
    has whole rows, since NumPy's matrix products are the inner loop.
"""

from __future__ import annotations

from math import prod

from ..dtypes import BOOL, bool_, float32, int32
from ..random import Rng, draw
from ..spec import Spec
from .dropout import draw_kept
from .dropout import mask as drop
from .matmul import blas_ready
from .registry import broadcast_shapes, function, op

TILE = 1 << 20  # bytes of scores at a time, of all threads
WORTH_THREADS = 1 << 22  # operations


def _layout(array):
    # Products take row-major matrices with a gap between rows; masks are only read elementwise.
    return array.dtype.kind == "b" or blas_ready(array)


def _threads(batch, key_heads):
    # How many threads may share the work: the workspace has a part for each.
    from ..kernels.cpu import blas, threads

    return max(1, min(threads.LIMIT, batch * key_heads)) if blas.controllable() else 1


class _Blocks:
    """How the scores are cut: heads of one example at a time, or some rows of one head."""

    def __init__(self, query, key, causal, itemsize) -> None:
        self.batch, self.heads, self.rows, self.size = query
        self.key_heads, self.columns = key[1], key[2]
        self.shared = self.heads // max(1, self.key_heads)  # query heads per key head
        self.causal = causal
        self.threads = _threads(self.batch, self.key_heads)
        line = max(1, self.columns * self.shared * itemsize)
        lines = max(32, TILE // self.threads // line)
        if lines >= self.rows:
            self.group = max(1, min(self.key_heads, lines // max(1, self.rows)))
            self.lines = max(1, self.rows)
        else:
            self.group = 1
            self.lines = -(-self.rows // -(-self.rows // lines))

    @property
    def tile(self) -> int:
        """Elements of the scores of the blocks that are worked on at a time."""
        return self.threads * self.of_one(self.columns)

    def of_one(self, width: int) -> int:
        """Elements of what has ``width`` numbers for each row of a block."""
        return self.group * self.shared * self.lines * width

    @property
    def whole(self) -> bool:
        """Each key head is met by one block only."""
        return self.shared == 1 and self.lines >= self.rows

    def __iter__(self):
        """Yields (example, key heads, rows, number of columns) of each block."""
        return self.within(0, self.batch * self.key_heads)

    def within(self, start, stop):
        """The blocks of some key heads, counted through all examples."""
        while start < stop:
            b, h = divmod(start, self.key_heads)
            end = min(h + self.group, self.key_heads, h + stop - start)
            for r in range(0, self.rows, self.lines):
                last = min(r + self.lines, self.rows)
                columns = min(last, self.columns) if self.causal else self.columns
                yield b, slice(h, end), slice(r, last), columns
            start += end - h

    def spread(self, run, *scratch):
        """Call ``run(block, *parts of scratch)`` for each block, on several threads if it pays."""
        from ..kernels.cpu import blas, threads

        units = self.batch * self.key_heads
        work = 4 * prod((units, self.shared, self.rows, self.columns, self.size))
        parts = self.threads if work >= WORTH_THREADS else 1

        def share(k, start, stop):
            mine = [a[a.size // self.threads * k :][: a.size // self.threads] for a in scratch]
            for block in self.within(start, stop):
                run(block, *mine)

        if parts == 1:
            share(0, 0, units)
            return
        with blas.single():
            threads.split(share, units, parts)

    def split(self, array):
        """(batch, heads, ..) as (batch, key heads, heads that share them, ..)."""
        return array.reshape(array.shape[0], self.key_heads, self.shared, *array.shape[2:])


def _scores(xp, blocks, scores, hidden, query, key, mask, block, scale):
    """The scores of one block, with minus infinity where the mask says so."""
    b, heads, rows, columns = block
    q, k = query[b, heads, :, rows], key[b, heads, None, :columns]
    shape = (*q.shape[:3], columns)
    s = scores[: prod(shape)].reshape(shape)
    xp.matmul(q, k.swapaxes(-1, -2), out=s)
    xp.multiply(s, scale, out=s)
    if blocks.causal:
        row = xp.arange(rows.start, rows.stop)[:, None]
        future = hidden[: shape[2] * columns].reshape(shape[2], columns)
        xp.greater(xp.arange(columns), row, out=future)
        xp.copyto(s, -xp.inf, where=future)
    if mask is not None:
        part = mask[b, heads, :, rows, :columns]
        if part.dtype.kind == "b":
            hide = hidden[: s.size].reshape(shape)
            xp.logical_not(part, out=hide)
            xp.copyto(s, -xp.inf, where=hide)
        else:
            xp.add(s, part, out=s)
    return s


def _kept(xp, blocks, kept, words, drawn, rng, block, shape, p):
    """Which probabilities of a block dropout keeps."""
    b, heads, rows, columns = block
    keep = kept[: prod(shape)].reshape(shape)
    count = (rows.stop - rows.start) * blocks.columns
    random = words.view(xp.uint32)
    for j, h in enumerate(range(heads.start * blocks.shared, heads.stop * blocks.shared)):
        first = ((b * blocks.heads + h) * blocks.rows + rows.start) * blocks.columns
        skip = first % 4  # words come in fours
        head = drawn[: count + skip]
        draw_kept(xp, head, random[: count + skip], rng, first - skip, p)
        here = head[skip:].reshape(-1, blocks.columns)
        xp.copyto(keep[j // blocks.shared, j % blocks.shared], here[:, :columns])
    return keep


def _mask_view(xp, blocks, mask):
    if mask is None:
        return None
    full = (blocks.batch, blocks.heads, blocks.rows, blocks.columns)
    return blocks.split(xp.broadcast_to(mask, full))


def _buffers(query, key, mask, *, p, causal, blocks, dtype):
    hidden = Spec((blocks.tile if causal or mask is not None else 0,), bool_)
    count = blocks.lines * blocks.columns + 4 if p else 0  # of one head
    kept = Spec((blocks.tile if p else 0,), bool_)
    return Spec((blocks.tile,), dtype), hidden, Spec((count,), int32), Spec((count,), bool_), kept


def _attention_infer(query, key, value, attn_mask, rng, *, p, causal, scale):
    dtype = float32 if query.dtype.is_half else query.dtype
    blocks = _Blocks(query.shape, key.shape, causal, dtype.itemsize)
    out = Spec((*query.shape[:3], value.shape[3]), query.dtype)
    lse = Spec((*query.shape[:3], 1), dtype)
    return out, lse, *_buffers(
        query, key, attn_mask, p=p, causal=causal, blocks=blocks, dtype=dtype
    )  # fmt: skip


def _attention_samples(make):
    from .creation import tensor

    base = {"p": 0.0, "causal": False, "scale": 0.5}
    q, k, v = make(1, 1, 3, 4), make(1, 1, 5, 4), make(1, 1, 5, 3)
    yield (q, k, v, None, None), base
    q = make(2, 2, 3, 4)
    yield (q, q, q, None, None), base | {"causal": True, "scale": 1.0}

    def heads(shared):
        return make(2, 2, 3, 4), make(2, shared, 5, 4), make(2, shared, 5, 3)

    yield (*heads(2), make(3, 5), Rng(3, 1)), base | {"p": 0.4}
    yield (*heads(2), make(2, 2, 1, 5), None), base
    yield (*heads(2), make(2, 1, 1, 5), None), base | {"causal": True}
    seen = tensor([True, False, True, True, False])
    yield (*heads(1), seen, None), base
    yield (make(0, 1, 3, 4), make(0, 1, 5, 4), make(0, 1, 5, 3), None, None), base
    yield (make(1, 1, 3, 4), make(1, 1, 0, 4), make(1, 1, 0, 3), None, None), base


def _flops(query, key, value, *_, causal=False, **__):
    pairs = prod(query.shape[:3]) * key.shape[2]
    return 2 * pairs * (query.shape[3] + value.shape[3]) // (2 if causal else 1)


@op(
    name="_attention", method=False, public=False, infer=_attention_infer, aux=("lse",),
    scratch=("scores", "hidden", "words", "drawn", "kept"),
    promote=("same", ("query", "key", "value")), half="float32", layout=_layout,
    flops=_flops, samples=_attention_samples,
    autocast="low",
)  # fmt: skip
def attend(
    xp, out, lse, scores, hidden, words, drawn, kept, query, key, value, attn_mask, rng, *,
    p, causal, scale,
):  # fmt: skip
    """``softmax(query @ key.mT * scale + mask) @ value`` for each head."""
    if out.size == 0 or key.shape[2] == 0:
        out.fill(0)
        lse.fill(0)
        return
    blocks = _Blocks(query.shape, key.shape, causal, lse.dtype.itemsize)
    q, k, v, o, sums = blocks.split(query), key, value, blocks.split(out), blocks.split(lse)
    mask = _mask_view(xp, blocks, attn_mask)
    for block in blocks:
        b, heads, rows, columns = block
        s = _scores(xp, blocks, scores, hidden, q, k, mask, block, scale)
        largest = sums[b, heads, :, rows]
        xp.max(s, axis=-1, keepdims=True, out=largest)
        largest[largest == -xp.inf] = 0  # nothing to attend to: the result is zero
        xp.subtract(s, largest, out=s)
        xp.exp(s, out=s)
        total = xp.sum(s, axis=-1, keepdims=True)
        total[total == 0] = 1
        if p:
            keep = _kept(xp, blocks, kept, words, drawn, rng, block, s.shape, p)
            xp.multiply(s, keep, out=s)
        target = o[b, heads, :, rows]
        xp.matmul(s, v[b, heads, None, :columns], out=target)
        divisor = total if not p else total * (1.0 - p)
        xp.divide(target, divisor, out=target)
        xp.add(largest, xp.log(total), out=largest)


def _compiled(query, key, value, attn_mask, *_, **__):
    pairs = prod(query.shape[:3]) * key.shape[2]
    return attn_mask is None and query.dtype is float32 and pairs >= 1 << 14


@attend.kernel("cpu", when=_compiled, layout=_layout)
def _(
    xp, out, lse, scores, hidden, words, drawn, kept, query, key, value, attn_mask, rng, *,
    p, causal, scale,
):  # fmt: skip
    from ..kernels.cpu.scores import soften

    blocks = _Blocks(query.shape, key.shape, causal, lse.dtype.itemsize)
    q, o, sums = blocks.split(query), blocks.split(out), blocks.split(lse)
    share = xp.float32(1.0 / (1.0 - p)) if p < 1 else xp.float32(xp.inf)

    def run(block, scores, kept):
        b, heads, rows, columns = block
        s = _products(xp, scores, q[b, heads, :, rows], key[b, heads, None, :columns])
        keep = _kept_rows(blocks, kept, rng, block, s, p)
        flat, lines = s.reshape(-1, columns), rows.stop - rows.start
        row = xp.empty(flat.shape[0], lse.dtype)  # one number per row of a block
        soften(flat, row, keep, xp.float32(scale), rows.start, lines, causal, share)
        sums[b, heads, :, rows] = row.reshape(*s.shape[:3], 1)
        xp.matmul(s, value[b, heads, None, :columns], out=o[b, heads, :, rows])

    blocks.spread(run, scores, kept)


def _products(xp, scores, rows, columns):
    shape = (*rows.shape[:3], columns.shape[2])
    s = scores[: prod(shape)].reshape(shape)
    return xp.matmul(rows, columns.swapaxes(-1, -2), out=s)


def _kept_rows(blocks, kept, rng, block, scores, p):
    if not p:
        return kept.reshape(0, 0)
    from ..kernels.cpu import philox

    b, heads, rows, columns = block
    keep = kept[: scores.size].reshape(-1, rows.stop - rows.start, columns)
    for j, h in enumerate(range(heads.start * blocks.shared, heads.stop * blocks.shared)):
        first = ((b * blocks.heads + h) * blocks.rows + rows.start) * blocks.columns
        philox.kept(keep[j], rng.seed, rng.offset, first, blocks.columns, round(p * 2**32))
    return keep.reshape(-1, columns)


@attend.vjp("query", "key", "value", "attn_mask")
def _(g, needs, query, key, value, attn_mask, rng, out, lse, p, causal, scale):
    dq, dk, dv, dmask = attend_grad(
        g, query, key, value, attn_mask, rng, out, lse, p, causal, scale, needs[3]
    )
    return dq, dk, dv, dmask if needs[3] else None


@attend.composite
def _(query, key, value, attn_mask, rng, *, p, causal, scale):
    return plain(query, key, value, attn_mask, rng, p, causal, scale)


def _grad_samples(make):
    base = {"p": 0.0, "causal": False, "scale": 0.5, "bias": False}

    def given(mask, rng, batch=1):
        yield make(batch, 1, 3, 3)
        yield from (make(batch, 1, 3, 4), make(batch, 1, 5, 4), make(batch, 1, 5, 3))
        yield from (mask, rng, make(batch, 1, 3, 3))
        lse = make(batch, 1, 3, 1, low=3.0, high=5.0)
        yield lse.to(float32) if lse.dtype.is_half else lse

    yield tuple(given(None, None)), base
    causal = base | {"p": 0.3, "causal": True, "scale": 0.25}
    yield tuple(given(None, Rng(3, 1))), causal
    yield tuple(given(make(1, 5), None)), base | {"bias": True}
    yield tuple(given(None, None, 0)), base


def _grad_infer(
    grad, query, key, value, attn_mask, rng, result, lse, *, p, causal, scale, bias
):  # fmt: skip
    dtype = lse.dtype
    blocks = _Blocks(query.shape, key.shape, causal, dtype.itemsize)
    scores, hidden, words, drawn, kept = _buffers(
        query, key, attn_mask, p=p, causal=causal, blocks=blocks, dtype=dtype
    )
    width = max(query.shape[3], value.shape[3])
    part = blocks.threads * blocks.group * blocks.shared * blocks.columns * width
    rows = blocks.threads * blocks.of_one(width)
    dmask = attn_mask if bias else query.like((0,))
    summed = Spec((blocks.tile if bias else 0,), dtype)
    return (
        query, key, value, dmask, scores, scores, hidden, words, drawn, kept,
        Spec((0 if blocks.whole else part,), dtype), Spec((rows,), dtype), summed,
    )  # fmt: skip


@op(
    name="_attention_grad", method=False, public=False, infer=_grad_infer,
    returns=("dq", "dk", "dv", "dmask"),
    scratch=("scores", "grads", "hidden", "words", "drawn", "kept", "part", "weighted", "summed"),
    half="float32", layout=_layout, samples=_grad_samples,
    flops=lambda grad, query, key, value, *_, **a: 5 * _flops(query, key, value, **a) // 2,
)  # fmt: skip
def attend_grad(
    xp, dq, dk, dv, dmask, scores, grads, hidden, words, drawn, kept, part, weighted, summed, grad,
    query, key, value, attn_mask, rng, result, lse, *, p, causal, scale, bias,
):  # fmt: skip
    """Gradients in query, key, value and, with ``bias``, mask; probabilities are made again."""
    if result.size == 0 or key.shape[2] == 0:
        for d in (dq, dk, dv, dmask):
            d.fill(0)
        return
    dmask.fill(0)
    blocks = _Blocks(query.shape, key.shape, causal, lse.dtype.itemsize)
    q, o, g, sums, dq = (blocks.split(a) for a in (query, result, grad, lse, dq))
    mask = _mask_view(xp, blocks, attn_mask)
    _clear(blocks, causal, dk, dv)
    for block in blocks:
        b, heads, rows, columns = block
        s = _scores(xp, blocks, scores, hidden, q, key, mask, block, scale)
        xp.subtract(s, sums[b, heads, :, rows], out=s)
        xp.exp(s, out=s)
        t = grads[: s.size].reshape(s.shape)
        above = g[b, heads, :, rows]
        if p:
            keep = _kept(xp, blocks, kept, words, drawn, rng, block, s.shape, p)
            xp.multiply(s, keep, out=t)
            xp.divide(t, 1.0 - p, out=t)
            _add_to(xp, blocks, part, dv, block, t, above)
        else:
            _add_to(xp, blocks, part, dv, block, s, above)
        xp.matmul(above, value[b, heads, None, :columns].swapaxes(-1, -2), out=t)
        if p:
            xp.multiply(t, keep, out=t)
            xp.divide(t, 1.0 - p, out=t)
        both = weighted[: above.size].reshape(above.shape)
        xp.multiply(above, o[b, heads, :, rows], out=both)
        xp.subtract(t, xp.sum(both, axis=-1, keepdims=True), out=t)
        xp.multiply(t, s, out=t)
        if bias:
            _add_to_mask(xp, blocks, dmask, summed, t, block)
        xp.multiply(t, scale, out=t)
        xp.matmul(t, key[b, heads, None, :columns], out=dq[b, heads, :, rows])
        _add_to(xp, blocks, part, dk, block, t, q[b, heads, :, rows])


@attend_grad.kernel("cpu", when=lambda grad, *rest, **_: _compiled(*rest), layout=_layout)
def _(
    xp, dq, dk, dv, dmask, scores, grads, hidden, words, drawn, kept, part, weighted, summed, grad,
    query, key, value, attn_mask, rng, result, lse, *, p, causal, scale, bias,
):  # fmt: skip
    from ..kernels.cpu.scores import probabilities, scores_grad

    blocks = _Blocks(query.shape, key.shape, causal, lse.dtype.itemsize)
    q, o, g, sums, dq = (blocks.split(a) for a in (query, result, grad, lse, dq))
    _clear(blocks, causal, dk, dv)
    factor, share = xp.float32(scale), xp.float32(1.0 / (1.0 - p)) if p < 1 else xp.float32(xp.inf)

    def run(block, scores, grads, kept, part, weighted):
        b, heads, rows, columns = block
        above, lines = g[b, heads, :, rows], rows.stop - rows.start
        s = _products(xp, scores, q[b, heads, :, rows], key[b, heads, None, :columns])
        t = grads[: s.size].reshape(s.shape)
        flat, other = s.reshape(-1, columns), t.reshape(-1, columns)
        keep = _kept_rows(blocks, kept, rng, block, s, p)
        row = xp.ascontiguousarray(sums[b, heads, :, rows]).reshape(-1)
        probabilities(flat, other, row, keep, factor, rows.start, lines, causal, share)
        _add_to(xp, blocks, part, dv, block, t if p else s, above)
        xp.matmul(above, value[b, heads, None, :columns].swapaxes(-1, -2), out=t)
        both = weighted[: above.size].reshape(above.shape)
        xp.multiply(above, o[b, heads, :, rows], out=both)
        dot = xp.sum(both, axis=-1).reshape(-1)
        scores_grad(other, flat, dot, keep, factor, share)
        xp.matmul(t, key[b, heads, None, :columns], out=dq[b, heads, :, rows])
        _add_to(xp, blocks, part, dk, block, t, q[b, heads, :, rows])

    blocks.spread(run, scores, grads, kept, part, weighted)


def _clear(blocks, causal, dk, dv) -> None:
    if not blocks.whole:
        dk.fill(0)
        dv.fill(0)
    elif causal and blocks.rows < blocks.columns:  # no query looks so far
        dk[:, :, blocks.rows :].fill(0)
        dv[:, :, blocks.rows :].fill(0)


def _add_to(xp, blocks, part, total, block, rows, other) -> None:
    # total[keys] += rows^T @ other, summed over the query heads that share the keys
    b, heads, _, columns = block
    target = total[b, heads, :columns]
    if blocks.whole:
        xp.matmul(rows.swapaxes(-1, -2), other, out=target[:, None])
        return
    shape = (*rows.shape[:2], columns, other.shape[-1])
    product = part[: prod(shape)].reshape(shape)
    xp.matmul(rows.swapaxes(-1, -2), other, out=product)
    for j in range(blocks.shared):
        xp.add(target, product[:, j], out=target)


def _add_to_mask(xp, blocks, dmask, summed, t, block) -> None:
    # The gradient of the scores, summed over what the mask was repeated along.
    b, heads, rows, columns = block
    total = dmask.reshape((1,) * (4 - dmask.ndim) + dmask.shape)
    t = t.reshape(1, -1, *t.shape[2:])
    whole = (blocks.batch, blocks.heads, blocks.rows, blocks.columns)
    repeated = [n == 1 and n != m for n, m in zip(total.shape, whole, strict=True)]
    first, last = heads.start * blocks.shared, heads.stop * blocks.shared
    target = total[
        0 if repeated[0] else b,
        slice(0, 1) if repeated[1] else slice(first, last),
        slice(0, 1) if repeated[2] else rows,
        slice(0, 1) if repeated[3] else slice(0, columns),
    ]
    axes = tuple(d for d in (1, 2, 3) if repeated[d])
    if axes:
        shape = (1, *target.shape)
        part = summed[: target.size].reshape(shape)
        t = xp.sum(t, axis=axes, keepdims=True, out=part)
    xp.add(target, t[0], out=target)


def plain(query, key, value, attn_mask, rng, p, causal, scale):
    """The definition in plain ops: all scores at once."""
    from . import ones, softmax

    shared = query.shape[1] // key.shape[1]
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
    return x.unsqueeze(1) if x.ndim == 3 else x.reshape(-1, *x.shape[-3:])


@function(public=False)
def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
    enable_gqa=False,
):  # fmt: skip
    """Attend: mix the rows of ``value`` by how well each query fits each key.

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
        kept; the workspace is one block of scores, about 1 MiB.

    Source:
        Vaswani et al.: "Attention Is All You Need", 2017.
    """
    ndim = max(query.ndim, key.ndim, value.ndim)
    if min(query.ndim, key.ndim, value.ndim) > 1:
        query, key, value = (
            x.reshape(*[1] * (ndim - x.ndim), *x.shape) for x in (query, key, value)
        )
    _check(query, key, value, attn_mask, is_causal, enable_gqa)
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    lead = broadcast_shapes(
        "scaled_dot_product_attention", query.shape[:-3], key.shape[:-3], value.shape[:-3]
    )
    heads = None
    if query.ndim > 2 and not enable_gqa:
        heads = broadcast_shapes(
            "scaled_dot_product_attention", query.shape[-3:-2], key.shape[-3:-2],
            value.shape[-3:-2],
        )  # fmt: skip
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


def attended(query, key, value, mask, p, causal, scale):
    """Attention of (batch, heads, rows, size), with a mask, a causal one, both or neither."""
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
    compute = plain if p == 1.0 else attend
    return compute(query, key, value, mask, rng, p, causal, scale)


def _four_mask(mask, lead, ndim):
    if mask.ndim <= 2:
        return mask
    if ndim == 3:
        return mask.unsqueeze(1)
    if ndim == 4 or mask.ndim <= 3:
        return mask
    return mask.expand(*lead, *mask.shape[-2:]).reshape(-1, lead[-1], *mask.shape[-2:])


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


__all__ = ["attend", "plain", "scaled_dot_product_attention"]
