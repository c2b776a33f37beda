"""Tiling of attention scores into blocks, and the steps that forward and backward share.

Several threads share the workspace; each works on heads of its own, so that none waits for another,
and the products of one head stay with one thread of BLAS.

Dropout of probabilities draws its mask from (seed, offset) by the number of the element in the
full (batch, heads, queries, keys) order, so forward, backward and the plain composition agree,
whatever the blocks.
"""

from __future__ import annotations

from math import prod

from ...dtypes import bool_, float32, int32
from ...kernels.runtime import blas, threads, thresholds
from ...spec import Spec
from ..linalg.matmul import blas_ready
from ..random.dropout import draw_kept


def rows_ready(array):
    """True if an array can be used as it is: by BLAS, or, a bool mask, elementwise."""
    return array.dtype.kind == "b" or blas_ready(array)


def _threads(batch, key_heads):
    # How many threads may share the work: the workspace has a part for each.

    return max(1, min(threads.LIMIT, batch * key_heads)) if blas.controllable() else 1


class Blocks:
    """The partition of the scores: heads of one example, or some rows of one head."""

    def __init__(self, query, key, causal, itemsize) -> None:
        self.batch, self.heads, self.rows, self.size = query
        self.key_heads, self.columns = key[1], key[2]
        self.shared = self.heads // max(1, self.key_heads)  # query heads per key head
        self.causal = causal
        self.threads = _threads(self.batch, self.key_heads)
        line = max(1, self.columns * self.shared * itemsize)
        lines = max(32, thresholds.TILE_BYTES // self.threads // line)
        if lines >= self.rows:
            self.group = max(1, min(self.key_heads, lines // max(1, self.rows)))
            self.lines = max(1, self.rows)
        else:
            self.group = 1
            self.lines = -(-self.rows // -(-self.rows // lines))

    @property
    def tile(self) -> int:
        """Number of scores in the blocks that are computed at a time."""
        return self.threads * self.of_one(self.columns)

    def of_one(self, width: int) -> int:
        """Number of elements of an array with ``width`` values per row of a block."""
        return self.group * self.shared * self.lines * width

    @property
    def whole(self) -> bool:
        """True if each key head belongs to one block only."""
        return self.shared == 1 and self.lines >= self.rows

    def __iter__(self):
        """Yield (example, key heads, rows, number of columns) of each block."""
        return self.within(0, self.batch * self.key_heads)

    def within(self, start, stop):
        """Return the blocks of some key heads, counted over all examples."""
        while start < stop:
            b, h = divmod(start, self.key_heads)
            end = min(h + self.group, self.key_heads, h + stop - start)
            for r in range(0, self.rows, self.lines):
                last = min(r + self.lines, self.rows)
                columns = min(last, self.columns) if self.causal else self.columns
                yield b, slice(h, end), slice(r, last), columns
            start += end - h

    def for_each(self, run, *scratch):
        """Call ``run(block, *parts of scratch)`` for each block, in parallel if it pays."""
        units = self.batch * self.key_heads
        work = 4 * prod((units, self.shared, self.rows, self.columns, self.size))
        parts = self.threads if work >= thresholds.PRODUCT_THREAD else 1

        def share(k, start, stop):
            mine = [a[a.size // self.threads * k :][: a.size // self.threads] for a in scratch]
            for block in self.within(start, stop):
                run(block, *mine)

        if parts == 1:
            share(0, 0, units)
            return
        with blas.single():
            threads.parallel_chunks(share, units, parts)

    def split(self, array):
        """Reshape (batch, heads, ..) to (batch, key heads, heads that share them, ..)."""
        return array.reshape(array.shape[0], self.key_heads, self.shared, *array.shape[2:])


def masked_scores(xp, blocks, scores, hidden, query, key, mask, block, scale):
    """Compute the scores of one block, minus infinity where masked."""
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


def kept_block(xp, blocks, kept, words, drawn, rng, block, shape, p):
    """Return the dropout mask of a block."""
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


def mask_view(xp, blocks, mask):
    """Expand the mask to all scores as a view."""
    if mask is None:
        return None
    full = (blocks.batch, blocks.heads, blocks.rows, blocks.columns)
    return blocks.split(xp.broadcast_to(mask, full))


def workspaces(query, key, mask, *, p, causal, blocks, dtype):
    """Specs of the scratch of one block: scores, masked scores, dropout words and mask."""
    hidden = Spec((blocks.tile if causal or mask is not None else 0,), bool_)
    count = blocks.lines * blocks.columns + 4 if p else 0  # of one head
    kept = Spec((blocks.tile if p else 0,), bool_)
    return Spec((blocks.tile,), dtype), hidden, Spec((count,), int32), Spec((count,), bool_), kept


def attention_flops(query, key, value, *_, causal=False, **__):
    """FLOPs of both products; half of them if causal."""
    pairs = prod(query.shape[:3]) * key.shape[2]
    return 2 * pairs * (query.shape[3] + value.shape[3]) // (2 if causal else 1)


def worth_compiling(query, key, value, attn_mask, *_, **__):
    """True if the compiled kernels apply: no mask, float32, enough scores."""
    pairs = prod(query.shape[:3]) * key.shape[2]
    return attn_mask is None and query.dtype is float32 and pairs >= thresholds.COMPILED


def plain_scores(xp, scores, rows, columns):
    """Compute the products of one block, neither scaled nor masked."""
    shape = (*rows.shape[:3], columns.shape[2])
    s = scores[: prod(shape)].reshape(shape)
    return xp.matmul(rows, columns.swapaxes(-1, -2), out=s)


def kept_rows(blocks, kept, rng, block, scores, p):
    """Return the dropout mask of rows from the compiled kernel; (0, 0) without dropout."""
    if not p:
        return kept.reshape(0, 0)
    from ...kernels.cpu.random import philox

    b, heads, rows, columns = block
    keep = kept[: scores.size].reshape(-1, rows.stop - rows.start, columns)
    for j, h in enumerate(range(heads.start * blocks.shared, heads.stop * blocks.shared)):
        first = ((b * blocks.heads + h) * blocks.rows + rows.start) * blocks.columns
        philox.kept(keep[j], rng.seed, rng.offset, first, blocks.columns, round(p * 2**32))
    return keep.reshape(-1, columns)
