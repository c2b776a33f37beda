"""Bags of embeddings: the sum, mean or maximum of rows of a table, without the rows themselves.

A sum of bags is a trilinear form of table, factors and arriving gradient: entry ``i`` adds
``factors[i] * table[source[i]]`` to ``out[target[i]]``. Its gradient in the table is the same op
with source and target exchanged, so derivatives of any order close.
"""

from __future__ import annotations

from ..autograd.modes import no_grad
from ..devices.scatter import scatter_add
from ..dtypes import INT, int64
from .convolution import contiguous
from .creation import full_like, ones, zeros
from .embedding import embedding
from .places import take
from .registry import function, op

TILE = 256  # entries at a time


def _numbers(count, n):
    from .creation import tensor

    return tensor([k * k % count for k in range(n)], dtype=int64)


def _bag_infer(table, factors, source, target, *, rows):
    out = table.like((rows, table.shape[1]))
    return out, out.like((min(TILE, source.shape[0]), table.shape[1]))


def _bag_samples(make):
    for n, rows in ((4, 3), (0, 2)):
        x, f = make(5, 3), make(n)
        n = f.shape[0]
        yield (x, f, _numbers(5, n), _numbers(rows, n)), {"rows": rows}


def _check_rows(xp, source, rows):
    if xp.__name__ == "numpy" and source.size:
        low, high = int(source.min()), int(source.max())
        if low < 0 or high >= rows:
            raise RuntimeError(
                f"embedding_bag: Expected idx >= 0 && idx < num_embeddings ({rows}), but found idx "
                f"to be {low if low < 0 else high}. Use a larger table, or map unknown indices "
                "first."
            )


@op(
    name="_bag", method=False, public=False, infer=_bag_infer, scratch=("part",), half="float32",
    layout=contiguous, samples=_bag_samples,
    flops=lambda table, factors, *_, **__: 2 * factors.numel * table.shape[1],
)  # fmt: skip
def bag(xp, out, part, table, factors, source, target, *, rows):
    """Add rows of ``table``, each times its factor, to the rows of ``out`` named by ``target``."""
    _check_rows(xp, source, table.shape[0])
    out.fill(0)
    for start in range(0, source.shape[0], TILE):
        here = slice(start, start + TILE)
        tile = part[: len(source[here])]
        take(xp, table, source[here], 0, tile)
        xp.multiply(tile, factors[here][:, None], out=tile)
        scatter_add(xp, out, (target[here],), tile)


def _many(table, *_, **__):
    factors = _[0]
    return factors.numel * table.shape[1] >= 1 << 12 and table.dtype.name in ("float32", "float64")


@bag.kernel("cpu", when=_many, layout=contiguous, scratch=False)
def _(xp, out, part, table, factors, source, target, *, rows):
    from ..kernels.cpu import gathers

    _check_rows(xp, source, table.shape[0])
    gathers.bag(out, table, factors, source, target)


@bag.vjp("table")
def _(g, factors, source, target, table_spec):
    return bag(g, factors, target, source, table_spec.shape[0])


@bag.vjp("factors")
def _(g, table, source, target):
    return products(table, g, source, target)


def _products_infer(a, b, source, target):
    part = a.like((min(TILE, source.shape[0]), a.shape[1]))
    return a.like(tuple(source.shape)), part, part


def _products_samples(make):
    for n in (4, 0):
        a, b = make(5, 3), make(3, 3)
        n = n * a.shape[0] // 5
        yield (a, b[:, : a.shape[1]], _numbers(5, n), _numbers(3, n)), {}


@op(
    name="_bag_products", method=False, public=False, infer=_products_infer,
    scratch=("left", "right"), half="float32", layout=contiguous, samples=_products_samples,
    flops=lambda a, b, source, target: 2 * source.numel * a.shape[1],
)  # fmt: skip
def products(xp, out, left, right, a, b, source, target):
    """The scalar product of ``a[source[i]]`` and ``b[target[i]]`` for each entry."""
    for start in range(0, source.shape[0], TILE):
        here = slice(start, start + TILE)
        x, y = left[: len(source[here])], right[: len(source[here])]
        take(xp, a, source[here], 0, x)
        take(xp, b, target[here], 0, y)
        xp.multiply(x, y, out=x)
        xp.sum(x, axis=1, out=out[here])


@products.kernel(
    "cpu", when=lambda a, b, source, target: _many(a, source), layout=contiguous, scratch=False
)
def _(xp, out, left, right, a, b, source, target):
    from ..kernels.cpu import gathers

    gathers.products(out, a, b, source, target)


@products.vjp("a")
def _(g, b, source, target, a_spec):
    return bag(b, g, target, source, a_spec.shape[0])


@products.vjp("b")
def _(g, a, source, target, b_spec):
    return bag(a, g, source, target, b_spec.shape[0])


def _winners_infer(table, source, target, counts, *, rows):
    out = table.like((rows, table.shape[1]))
    return out.like(dtype=int64), out


def _winners_samples(make):
    for n, rows in ((4, 3), (0, 2)):
        x, n = make(5, 3), n
        yield (
            (x, _numbers(5, n), _numbers(rows, n), _numbers(2, n)), {"rows": rows},
        )  # fmt: skip


@op(
    name="_bag_winners", method=False, public=False, infer=_winners_infer, scratch=("best",),
    layout=contiguous, samples=_winners_samples,
    flops=lambda table, source, *_, **__: source.numel * table.shape[1],
)  # fmt: skip
def winners(xp, out, best, table, source, target, counts, *, rows):
    """Which row of ``table`` is the largest of each bag, per column; -1 for an empty bag.

    Entries whose ``counts`` is 0 take no part.
    """
    _check_rows(xp, source, table.shape[0])
    out.fill(-1)
    best.fill(0)
    for s, t, c in zip(source.tolist(), target.tolist(), counts.tolist(), strict=True):
        if c:
            row, top, place = table[s], best[t], out[t]
            wins = (place < 0) | (row > top) | (row != row)
            xp.copyto(top, row, where=wins)
            xp.copyto(place, s, where=wins)


@winners.kernel("cpu", when=lambda table, source, *_, **__: _many(table, source), layout=contiguous)
def _(xp, out, best, table, source, target, counts, *, rows):
    from ..kernels.cpu import gathers

    _check_rows(xp, source, table.shape[0])
    gathers.winners(out, best, table, source, target, counts)


def _bags_of(offsets, count, bags, include_last):
    """The bag of each entry, from the bags' first entries."""
    if offsets.device.type == "cpu" and bags:
        first = int(offsets[0].item())
        if first != 0:
            raise RuntimeError(
                "embedding_bag: offsets[0] has to be 0, i.e., the first sequence in the mini-batch "
                f"has to start from position 0. However, got {first}"
            )
        last = int(offsets.max().item())
        if last > count:
            raise RuntimeError(
                f"embedding_bag: offsets[-1] can not be greater than input's length ({count}) but "
                f"got offsets[-1] of {last}"
            )
    starts = offsets[:-1] if include_last else offsets
    marks = zeros(count + 1, dtype=int64, device=offsets.device)
    marks = marks.scatter_add(0, starts.to(int64), ones(bags, dtype=int64, device=offsets.device))
    return (marks.cumsum(0) - 1)[:count].clamp(min=0)


@function(public=False)
def embedding_bag(
    input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False,
    mode="mean", sparse=False, per_sample_weights=None, include_last_offset=False,
    padding_idx=None,
):  # fmt: skip
    """Reduce bags of rows: their sum, mean or maximum.

    Args:
        input: (B, N) row numbers, one bag per line; or all bags one after the other, 1-D.
        weight: (rows, features).
        offsets: For 1-D ``input``: (B,), where each bag begins; the first is 0.
        max_norm: Rows that are looked up are first shrunk, in place, to at most this norm.
        norm_type: Which norm.
        scale_grad_by_freq: Divide the gradient of each row by how often it occurs; not for "max".
        mode: "sum", "mean" or "max".
        sparse: Accepted (not for "max"); gradients are dense.
        per_sample_weights: Factors in the shape of ``input``, for mode "sum".
        include_last_offset: ``offsets`` has one more element, the length of ``input``.
        padding_idx: Entries with this row number do not count.

    Returns:
        Tensor (B, features); an empty bag is zero.

    Raises:
        ValueError: Shapes or arguments do not fit.
        RuntimeError: An entry or offset is out of range (on the CPU).

    Memory:
        Keeps the indices, and for "mean" and "sum" one factor per entry; never the rows.
    """
    if per_sample_weights is not None and input.shape != per_sample_weights.shape:
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({tuple(per_sample_weights.shape)}) is not "
            f"None, then it must have the same shape as the input ({tuple(input.shape)})"
        )
    if weight.ndim != 2:
        raise ValueError(f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.ndim}")
    if input.ndim not in (1, 2):
        raise ValueError(
            f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.ndim}"
        )
    if input.ndim == 2 and offsets is not None:
        raise ValueError(
            "if input is 2D, then offsets has to be None, as input is treated is a mini-batch of "
            f"fixed length sequences. However, found offsets of type {type(offsets)}"
        )
    if input.ndim == 1 and (offsets is None or offsets.ndim != 1):
        raise ValueError(
            f"offsets has to be a 1D Tensor{' but got None' if offsets is None else ''}"
        )
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"mode has to be one of sum, mean or max; got {mode!r}.")
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    if mode == "max" and sparse:
        raise ValueError("max mode does not support sparse weights")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None; it is only supported for mode='sum' "
            f"(got mode={mode!r}). Pass mode='sum'."
        )
    if input.dtype.category != INT:
        raise RuntimeError(
            f"embedding_bag: Expected tensor for argument 'indices' to have an integer dtype; got "
            f"{input.dtype}. Convert it with .to(lowtide.int64)."
        )
    rows = weight.shape[0]
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise RuntimeError(
                f"embedding_bag: padding_idx must be within the number of embeddings, -{rows} "
                f"through {rows - 1}, but got {padding_idx}"
            )
        padding_idx %= rows
    if max_norm is not None:
        with no_grad():
            weight._renormalize_rows_(input, float(max_norm), float(norm_type))
    with no_grad():
        source, target, bags = _entries(input, offsets, include_last_offset)
    return _reduced(
        weight, source, target, bags, mode, scale_grad_by_freq, per_sample_weights, padding_idx
    )


def _entries(input, offsets, include_last):
    # (row number of each entry, its bag, number of bags)
    if input.ndim == 2:
        bags, length = input.shape
        counting = ones(bags, length, dtype=int64, device=input.device).cumsum(0) - 1
        return input.reshape(-1).to(int64), counting.reshape(-1), bags
    bags = offsets.shape[0] - bool(include_last)
    if bags < 0:
        raise RuntimeError("embedding_bag: include_last_offset: number of offsets should be > 0")
    return input.to(int64), _bags_of(offsets, input.shape[0], bags, include_last), bags


def _reduced(weight, source, target, bags, mode, by_frequency, factors, padding):
    like = {"dtype": weight.dtype, "device": weight.device}
    if padding is None:
        counts = ones(source.shape[0], **like)
    else:
        counts = source.ne(padding).to(weight.dtype)
    if mode == "max":
        with no_grad():
            found = winners(weight, source, target, counts.to(int64), bags)
            empty = found.lt(0)
        return weight.gather(0, found.clamp(min=0)).masked_fill(empty, 0.0)
    if factors is not None:
        factors = factors.reshape(-1) * counts
    elif mode == "mean":
        total = zeros(bags, **like).scatter_add(0, target, counts).clamp(min=1)
        factors = counts / total.gather(0, target)
    else:
        factors = counts
    if by_frequency:  # the rows are needed to scale their gradients
        lines = embedding(source, weight, None, None, 2.0, True)
        entries = full_like(source, 1).cumsum(0) - 1
        return bag(lines, factors, entries, target, bags)
    return bag(weight, factors, source, target, bags)
