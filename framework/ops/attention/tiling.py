"""Tiling of attention scores, and the steps that forward and backward share.

Several threads share the workspace; each works on separate heads, so that none waits for another,
and the products of one head stay with one thread of BLAS.

Dropout of probabilities draws its mask from (seed, offset) by the number of the element in the
full (batch, heads, queries, keys) order, so forward, backward and the plain composition agree,
whatever the tiles.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...dtypes import bool_, float32, int32
from ...kernels.common.row_blocks import rows_of_block
from ...kernels.cpu import attention_blocks
from ...kernels.runtime import blas, threads, thresholds
from ...spec import Spec
from ..linalg.matmul import blas_ready
from ..random.dropout import draw_kept


def rows_ready(array):
    """True if an array can be used as it is: by BLAS, or, a bool mask, elementwise."""
    return array.dtype.kind == "b" or blas_ready(array)


def _threads(batch, key_heads):
    # How many threads may work: the workspace has room for a tile of each.

    return max(1, min(threads.LIMIT, batch * key_heads)) if blas.controllable() else 1


class Tiling:
    """The tiles of the scores: some examples, some heads of one, or some rows of one head.

    On the host a tile has one example: more would not stay in the cache.

    Args:
        query: Shape (batch, heads, rows, size).
        key: Shape (batch, key heads, columns, size).
        causal: A row sees the columns up to its own number.
        itemsize: Bytes of a score.
        host: Whether the tiles are for the CPU, whose threads each have one.
    """

    def __init__(self, query, key, causal, itemsize, host) -> None:
        self.batch, self.heads, self.rows, self.size = query
        self.key_heads, self.columns = key[1], key[2]
        self.shared = self.heads // max(1, self.key_heads)  # query heads per key head
        self.causal = causal
        self.threads = _threads(self.batch, self.key_heads) if host else 1
        self.examples = 1
        line = max(1, self.columns * self.shared * itemsize)
        lines = max(32, thresholds.tile_bytes(host) // self.threads // line)
        if lines >= self.rows:
            self.group = max(1, min(self.key_heads, lines // max(1, self.rows)))
            self.lines = max(1, self.rows)
            if not host:
                fit = lines // max(1, self.rows * self.key_heads)
                self.examples = max(1, min(self.batch, fit))
        else:
            self.group = 1
            self.lines = -(-self.rows // -(-self.rows // lines))
        # Dropout draws for these elements at once: they are neighbors in the order of all scores.
        self.drawn = self.lines * self.columns
        if not host and self.lines >= self.rows:
            self.drawn = self.of_one(self.columns)

    @property
    def elements(self) -> int:
        """Number of scores in the tiles that are computed at a time."""
        return self.threads * self.of_one(self.columns)

    def of_one(self, width: int) -> int:
        """Number of elements of an array with ``width`` values per row of a tile."""
        return self.examples * self.group * self.shared * self.lines * width

    @property
    def whole(self) -> bool:
        """True if each key head belongs to one tile only."""
        return self.shared == 1 and self.lines >= self.rows

    def __iter__(self):
        """Yield (examples, key heads, rows, number of columns) of each tile."""
        return self.within(0, self.batch * self.key_heads)

    def within(self, start, stop):
        """Return the tiles of some key heads, counted over all examples."""
        while start < stop:
            b, h = divmod(start, self.key_heads)
            count = max(1, min(self.examples, (stop - start) // self.key_heads))
            end = min(h + self.group, self.key_heads, h + stop - start)
            for r in range(0, self.rows, self.lines):
                last = min(r + self.lines, self.rows)
                columns = min(last, self.columns) if self.causal else self.columns
                yield slice(b, b + count), slice(h, end), slice(r, last), columns
            start += count * (end - h)

    def firsts(self, tile):
        """List the number of the first score of each query head of a tile, among all scores."""
        examples, heads, rows, _ = tile
        return [
            ((b * self.heads + h) * self.rows + rows.start) * self.columns
            for b in range(examples.start, examples.stop)
            for h in range(heads.start * self.shared, heads.stop * self.shared)
        ]

    def for_each_head(self, kernel, products, *arguments, alone=False):
        """Call a kernel of ``kernels/cpu/attention_blocks.py`` for all key heads.

        Args:
            kernel: The kernel.
            products: How many products of all scores' size it makes.
            *arguments: Its arguments, up to ``scale``.
            alone: Whether one thread does all.
        """
        units = self.batch * self.key_heads
        work = 2 * products * prod((units, self.shared, self.rows, self.columns, self.size))
        rooms = 1 if alone else self.threads
        attention_blocks.run(kernel, work, units, rooms, *arguments, self.causal, self.lines)

    def blocks(self, p):
        """Specs of what a block of each thread needs: scores, and what dropout keeps."""
        count = self.threads * self.lines * self.columns
        return Spec((count,), float32), Spec((count if p else 0,), bool_)

    def mask_words(self, mask):
        """Describe a mask, or None, to a compiled kernel."""
        shape = (self.batch, self.heads, self.rows, self.columns)
        return attention_blocks.mask_words(mask, shape)

    def split(self, array):
        """Reshape (batch, heads, ..) to (batch, key heads, heads that share them, ..)."""
        return array.reshape(array.shape[0], self.key_heads, self.shared, *array.shape[2:])


def masked_scores(xp, tiling, scores, hidden, query, key, mask, tile, scale):
    """Compute the scores of one tile, minus infinity where masked."""
    b, heads, rows, columns = tile
    q, k = query[b, heads, :, rows], key[b, heads, None, :columns]
    shape = (*q.shape[:-1], columns)
    s = scores[: prod(shape)].reshape(shape)
    xp.matmul(q, k.swapaxes(-1, -2), out=s)
    xp.multiply(s, scale, out=s)
    if tiling.causal:
        row = xp.arange(rows.start, rows.stop)[:, None]
        future = hidden[: shape[-2] * columns].reshape(shape[-2:])
        xp.greater(xp.arange(columns), row, out=future)
        xp.copyto(s, -xp.inf, where=future)
    if mask is not None:
        here = mask[b, heads, :, rows, :columns]
        if here.dtype.kind == "b":
            hide = hidden[: s.size].reshape(shape)
            xp.logical_not(here, out=hide)
            xp.copyto(s, -xp.inf, where=hide)
        else:
            xp.add(s, here, out=s)
    return s


def kept_tile(xp, tiling, kept, words, drawn, rng, tile, shape, p):
    """Return the dropout mask of a tile."""
    columns = tile[3]
    keep = kept[: prod(shape)].reshape(shape)
    lines = keep.reshape(-1, columns)
    random = words.view(xp.uint32)
    firsts = tiling.firsts(tile)
    if tiling.drawn > tiling.lines * tiling.columns:  # whole heads, one behind the other
        firsts = firsts[:1]
    together = len(lines) // len(firsts)
    count = together * tiling.columns
    for j, first in enumerate(firsts):
        skip = first % 4  # words come in fours
        part = drawn[: count + skip]
        draw_kept(xp, part, random[: count + skip], rng, first - skip, p)
        here = part[skip:].reshape(-1, tiling.columns)
        xp.copyto(lines[j * together : (j + 1) * together], here[:, :columns])
    return keep


def mask_view(xp, tiling, mask):
    """The mask as each tile slices it: expanded to all scores, without memory."""
    if mask is None:
        return None
    full = (tiling.batch, tiling.heads, tiling.rows, tiling.columns)
    return tiling.split(xp.broadcast_to(mask, full))


def workspaces(query, key, mask, *, p, causal, tiling, dtype):
    """Specs of what one tile needs: scores, what is hidden, and words and mask of dropout."""
    hidden = Spec((tiling.elements if causal or mask is not None else 0,), bool_)
    count = tiling.drawn + 4 if p else 0
    kept = Spec((tiling.elements if p else 0,), bool_)
    words, drawn = Spec((count,), int32), Spec((count,), bool_)
    return Spec((tiling.elements,), dtype), hidden, words, drawn, kept


def attention_flops(query, key, value, *_, causal=False, **__):
    """FLOPs of both products; half of them if causal."""
    pairs = prod(query.shape[:3]) * key.shape[2]
    return 2 * pairs * (query.shape[3] + value.shape[3]) // (2 if causal else 1)


def worth_blocks(query, key, value, attn_mask, *_, p, **__):
    """Whether compiled kernels serve halves, of which examples are converted a block at a time.

    Without dropout, whose numbers are counted from the first example; a mask is of bool.
    """
    if not query.dtype.is_half or p or not query.dtype is key.dtype is value.dtype:
        return False
    if not (attn_mask is None or attn_mask.dtype is bool_):
        return False
    floats = (s.like(dtype=float32) for s in (query, key, value))
    return worth_compiling_attention(*floats, attn_mask)


def block_tiling(query, key, value, causal):
    """Return the tiling of a block of examples, by shapes or arrays of all."""
    examples = query.shape[0]
    widest = max(prod(query.shape[1:]), prod(key.shape[1:]), prod(value.shape[1:]))
    widest = max(widest, prod(query.shape[1:3]) * value.shape[3])
    step = rows_of_block(examples, widest)
    return Tiling((step, *query.shape[1:]), (step, *key.shape[1:]), causal, 4, True)


def masks_of_examples(mask, query, key):
    """Return what each block has of a mask: nothing, or a view with an entry for each example."""
    if mask is None:
        return []
    return [np.broadcast_to(mask, (*query.shape[:3], key.shape[2]))]


def worth_compiling_attention(query, key, value, attn_mask, *_, **__):
    """Whether the compiled kernels serve: float32, enough scores, masks with a column a key."""
    pairs = prod(query.shape[:3]) * key.shape[2]
    return (
        query.dtype is float32
        and pairs >= thresholds.COMPILED
        and min(query.shape[3], value.shape[3]) > 0
        and (attn_mask is None or (attn_mask.ndim > 0 and attn_mask.shape[-1] == key.shape[2]))
        and attention_blocks.function() != 0
    )
