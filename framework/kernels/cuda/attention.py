"""Attention on GPUs: products by cuBLAS, and a kernel for the softmax of their rows.

The scores of as many heads as fit the workspace exist at a time, or of some rows of one head where
those are too many. Backward makes the probabilities again, from the scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from ..runtime import thresholds
from .kernel import CudaKernel, address, is_float
from .matmul import multiply
from .random import PHILOX, signed

_SOFTMAX = CudaKernel(
    "lt_attention_softmax",
    PHILOX
    + """
/* Rows of scores become probabilities; `lse` gets the logarithm of each sum, or is `known`. A row
   is that of (example, head, line): of `heads` heads and `lines` lines; the first is number
   `first` of `all_lines`. A mask of numbers is added, one of bools hides where it is false. If
   `dropped` is there it gets the probabilities after dropout; it may be `scores` itself. */
extern "C" __global__ void lt_attention_softmax(
    T *scores, T *lse, T *added, unsigned char *shown, long long columns, long long heads,
    long long lines, long long first, long long all_heads, long long all_lines,
    long long example, long long head, long long causal, long long step0, long long step1,
    long long step2, long long step3, long long known, T *dropped, long long seed,
    long long offset, long long threshold, T rescale) {
    __shared__ T room[32];
    long long line = first + blockIdx.x % lines, h = head + blockIdx.x / lines % heads;
    long long b = example + blockIdx.x / lines / heads;
    long long at = b * step0 + h * step1 + line * step2;
    T *row = scores + blockIdx.x * columns, top = -INFINITY, total = 0;
    for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
        T s = row[c];
        if (added) s += added[at + c * step3];
        if ((causal && c > line) || (shown && !shown[at + c * step3])) s = -INFINITY;
        row[c] = s;
        top = lt_maximum(top, s);
    }
    top = block_max(top, room);
    if (top == -INFINITY) top = 0; /* nothing to attend to: the result is zero */
    for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
        T e = lt_exp(row[c] - top);
        row[c] = e;
        total += e;
    }
    T *kept = lse + (b * all_heads + h) * all_lines + line;
    if (known) {
        total = lt_exp(*kept);
    } else {
        total = block_sum(total, room);
        if (total == 0) total = 1;
        if (threadIdx.x == 0) *kept = lt_log(total);
    }
    long long element = ((b * all_heads + h) * all_lines + line) * columns;
    for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
        T p = row[c] / total;
        row[c] = p;
        if (dropped)
            dropped[blockIdx.x * columns + c] =
                is_kept(seed, offset, element + c, threshold) ? p * rescale : T(0);
    }
}
""",
)

_SOFTMAX_GRAD = CudaKernel(
    "lt_attention_softmax_grad",
    PHILOX
    + """
/* The gradient of each row's scores, in place of that of its probabilities `rows`. From these the
   product of the row of the result, which is `width` long, and its gradient is taken. */
extern "C" __global__ void lt_attention_softmax_grad(
    T *grads, T *rows, T *above, T *result, long long columns, long long width, long long heads,
    long long lines, long long first, long long example, long long head, long long a0, long long a1,
    long long a2, long long a3, long long r0, long long r1, long long r2, long long r3,
    long long all_heads, long long all_lines, long long seed, long long offset,
    long long threshold, T rescale) {
    __shared__ T room[32];
    long long line = first + blockIdx.x % lines, h = head + blockIdx.x / lines % heads;
    long long b = example + blockIdx.x / lines / heads;
    T *g = above + b * a0 + h * a1 + line * a2, *o = result + b * r0 + h * r1 + line * r2;
    T along = 0;
    for (long long d = threadIdx.x; d < width; d += blockDim.x) along += g[d * a3] * o[d * r3];
    along = block_sum(along, room);
    T *t = grads + blockIdx.x * columns, *p = rows + blockIdx.x * columns;
    long long element = ((b * all_heads + h) * all_lines + line) * columns;
    for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
        T d = t[c];
        if (threshold) d = is_kept(seed, offset, element + c, threshold) ? d * rescale : T(0);
        t[c] = (d - along) * p[c];
    }
}
""",
)


class Tiles:
    """The tiles of the scores, each a block of examples, key heads and rows.

    Args:
        query: Shape (batch, heads, rows, size).
        key: Shape (batch, key heads, columns, size).
        itemsize: Bytes of a score.
    """

    def __init__(self, query: Any, key: Any, itemsize: int) -> None:
        self.batch, self.heads, self.rows, _ = query
        self.key_heads, self.columns = key[1], key[2]
        self.shared = self.heads // max(1, self.key_heads)  # query heads per key head
        limit = thresholds.tile_bytes(host=False) // itemsize
        head = max(1, self.shared * self.rows * self.columns)
        self.lines = self.rows
        self.examples = self.group = 1
        if head > limit:
            self.lines = max(1, limit // max(1, self.shared * self.columns))
        elif head * self.key_heads > limit:
            self.group = max(1, limit // head)
        else:
            self.group = self.key_heads
            self.examples = max(1, min(self.batch, limit // max(1, head * self.key_heads)))

    @property
    def elements(self) -> int:
        """Number of scores of the largest tile."""
        return int(self.examples * self.group * self.shared * self.lines * self.columns)

    def __iter__(self) -> Iterator[tuple[slice, slice, slice]]:
        """Yield (examples, key heads, rows) of each tile."""
        for b in range(0, self.batch, self.examples):
            for h in range(0, self.key_heads, self.group):
                for r in range(0, self.rows, max(1, self.lines)):
                    yield (
                        slice(b, min(b + self.examples, self.batch)),
                        slice(h, min(h + self.group, self.key_heads)),
                        slice(r, min(r + self.lines, self.rows)),
                    )

    def split(self, array: Any) -> Any:
        """Reshape (batch, heads, ...) to (batch, key heads, heads that share them, ...)."""
        return array.reshape(array.shape[0], self.key_heads, self.shared, *array.shape[2:])

    def cut(self, buffer: Any, tile: tuple[slice, slice, slice]) -> Any:
        """The part of a flat buffer that holds the scores of a tile."""
        sizes = [s.stop - s.start for s in tile]
        shape = (*sizes[:2], self.shared, sizes[2], self.columns)
        return buffer[: prod(shape)].reshape(shape)

    def places(self, tile: tuple[slice, slice, slice]) -> tuple[int, ...]:
        """Heads and lines of a tile, its first line, example and head, as the kernels take them."""
        examples, heads, rows = tile
        count = (heads.stop - heads.start) * self.shared
        first = (rows.start, examples.start, heads.start * self.shared)
        return (count, rows.stop - rows.start, *first)

    def softmax(
        self,
        xp: Any,
        scores: Any,
        lse: Any,
        mask: Any,
        tile: tuple[slice, slice, slice],
        causal: bool,
        known: bool,
        dropped: Any,
        drops: Any,
    ) -> None:
        """Turn the scores of a tile into probabilities, in place; ``dropped`` after dropout."""
        added, shown = 0, 0
        if mask is not None:
            added, shown = (0, address(mask)) if mask.dtype.kind == "b" else (address(mask), 0)
        heads, lines, first, example, head = self.places(tile)
        _SOFTMAX.launch(
            xp, scores.dtype, scores.size // self.columns, _threads(self.columns), scores, lse,
            added, shown, self.columns, heads, lines, first, self.heads, self.rows, example, head,
            int(causal), *_steps(mask), int(known), dropped if drops[2] else 0, *drops,
        )  # fmt: skip

    def softmax_grad(
        self,
        xp: Any,
        grads: Any,
        rows: Any,
        above: Any,
        result: Any,
        tile: tuple[slice, slice, slice],
        drops: Any,
    ) -> None:
        """Turn the gradients of a tile's probabilities, ``rows``, into those of its scores."""
        _SOFTMAX_GRAD.launch(
            xp, rows.dtype, rows.size // self.columns, _threads(self.columns), grads, rows,
            address(above), address(result), self.columns, int(result.shape[3]),
            *self.places(tile), *_steps(above), *_steps(result), self.heads, self.rows, *drops,
        )  # fmt: skip


def _steps(array: Any) -> tuple[int, ...]:
    return (0,) * 4 if array is None else tuple(s // array.itemsize for s in array.strides)


def supported(query: Any, key: Any, value: Any, mask: Any = None, *_: Any, **given: Any) -> bool:
    """True for operands of attention that the kernels here take."""
    known = mask is None or mask.dtype.name == "bool" or mask.dtype is query.dtype
    sizes = (*query.shape, *key.shape, value.shape[3])
    return known and given["p"] < 1 and is_float(query, key, value) and 0 not in sizes


def _drops(rng: Any, p: float) -> tuple[int, int, int, float]:
    # Seed, offset, threshold and scale of dropout; threshold 0 without.
    if not p:
        return (0, 0, 0, 1.0)
    return signed(rng.seed), signed(rng.offset), round(p * 2**32), 1.0 / (1.0 - p)


def _threads(columns: int) -> int:
    return min(256, -(-columns // 32) * 32)


def _mask(xp: Any, tiles: Tiles, mask: Any) -> Any:
    # Expanded to all scores, without memory.
    if mask is None:
        return None
    full = (tiles.batch, tiles.heads, tiles.rows, tiles.columns)
    return xp.broadcast_to(mask, full)


def _product(xp: Any, a: Any, b: Any, out: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
    if multiply(xp, a, b, out, alpha, beta):
        return
    made = xp.matmul(a, b)
    xp.multiply(made, alpha, out=made)
    if beta:
        xp.add(made, out, out=made)
    xp.copyto(out, made)


def forward(
    xp: Any,
    out: Any,
    lse: Any,
    scores: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    rng: Any,
    p: float,
    causal: bool,
    scale: float,
) -> None:
    """Fill ``out``, (batch, heads, rows, size) of any strides, and ``lse``, contiguous."""
    tiles = Tiles(query.shape, key.shape, scores.itemsize)
    q, o, seen = tiles.split(query), tiles.split(out), _mask(xp, tiles, mask)
    drops = _drops(rng, p)
    for tile in tiles:
        b, h, r = tile
        s = tiles.cut(scores, tile)
        _product(xp, q[b, h, :, r], key[b, h, None].swapaxes(-1, -2), s, scale)
        tiles.softmax(xp, s, lse, seen, tile, causal, False, s, drops)
        _product(xp, s, value[b, h, None], o[b, h, :, r])


def backward(
    xp: Any, dq: Any, dk: Any, dv: Any, scores: Any, grads: Any, grad: Any, query: Any, key: Any,
    value: Any, mask: Any, rng: Any, result: Any, lse: Any, p: float, causal: bool, scale: float,
) -> None:  # fmt: skip
    """Fill the gradients of query, key and value; ``result`` and ``lse`` are forward's."""
    tiles = Tiles(query.shape, key.shape, scores.itemsize)
    q, g, to = tiles.split(query), tiles.split(grad), tiles.split(dq)
    seen, drops = _mask(xp, tiles, mask), _drops(rng, p)
    for tile in tiles:
        b, h, r = tile
        s, t = tiles.cut(scores, tile), tiles.cut(grads, tile)
        rows, above = q[b, h, :, r], g[b, h, :, r]
        _product(xp, rows, key[b, h, None].swapaxes(-1, -2), s, scale)
        tiles.softmax(xp, s, lse, seen, tile, causal, True, t, drops)
        _to_keys(xp, dv[b, h], t if p else s, above, r)
        _product(xp, above, value[b, h, None].swapaxes(-1, -2), t)
        tiles.softmax_grad(xp, t, s, grad, result, tile, drops)
        _product(xp, t, key[b, h, None], to[b, h, :, r], scale)
        _to_keys(xp, dk[b, h], t, rows, r, scale)


def _to_keys(xp: Any, out: Any, rows: Any, other: Any, lines: slice, alpha: float = 1.0) -> None:
    # Query heads that share keys, and further rows of one head, are added up.
    for j in range(rows.shape[2]):
        beta = 1.0 if j or lines.start else 0.0
        _product(xp, rows[:, :, j].swapaxes(-1, -2), other[:, :, j], out, alpha, beta)
