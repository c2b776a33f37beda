"""Embedding bags: sum, mean or maximum of rows of a table, without materializing the rows.

A sum of bags is a trilinear form of table, factors and arriving gradient: entry ``i`` adds
``factors[i] * table[source[i]]`` to ``out[target[i]]``. Its gradient in the table is the same op
with source and target exchanged, so derivatives of any order close.

Bag and factor of an entry follow from what the call was given (``_bag_entries``). They are made as
workspace, forward and backward, and the node keeps the given numbers alone.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import INT, float32, int64
from ...kernels.common.layout import contiguous, tiles
from ...kernels.common.scatter_add import scatter_add
from ...kernels.runtime import thresholds
from ...modes import no_grad
from ...spec import Spec
from ..creation.from_data import tensor
from ..indexing.index_put import take
from ..registry import function, op
from ..sparse.gradients import row_gradient
from .embedding import _index_shares

TILE = 256  # entries at a time on the host, with their rows
NUMBERS_TILE = 1 << 12  # and without


def _tile(table, source):
    # As many rows as there are entries in a tile
    most = TILE
    if not table.on_host:
        most = max(1, thresholds.tile_elements(False) // max(1, table.shape[1]))
    return table.like((min(most, source.shape[0]), table.shape[1]))


def _numbers(count, n):
    return tensor([k * k % count for k in range(n)], dtype=int64)


def _bag_infer(table, factors, source, target, *, rows):
    out = table.like((rows, table.shape[1]))
    return out, _tile(table, source)


def _bag_samples(make):
    for n, rows in ((4, 3), (0, 2)):
        x, f = make(5, 3), make(n)
        n = f.shape[0]
        yield (x, f, _numbers(5, n), _numbers(rows, n)), {"rows": rows}


def _need_rows(index, *tables):
    # Other indices are known to be in range: they were checked in forward, or count bags.
    if index.size and not all(len(table) for table in tables):
        raise RuntimeError("embedding_bag: indices point to rows of a table that has none.")


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
    infer=_bag_infer,
    scratch=("tile",),
    layout=contiguous,
    samples=_bag_samples,
    flops=lambda table, factors, *_, **__: 2 * factors.numel * table.shape[1],
)
def _bag(xp, out, tile, table, factors, source, target, *, rows):
    """Add rows of ``table``, each times its factor, to the rows ``target`` of ``out``."""
    _check_rows(xp, source, table.shape[0])
    _need_rows(target, out)
    _add_rows(xp, out, tile, table, factors, source, target)


def _add_rows(xp, out, tile, table, factors, source, target):
    out.fill(0)
    for here in tiles(source.shape[0], max(1, tile.shape[0])):
        rows = tile[: len(source[here])]
        take(xp, table, source[here], 0, rows)
        xp.multiply(rows, factors[here][:, None], out=rows)
        scatter_add(xp, out, (target[here],), rows)


def _many(table, factors, *_, **__):
    return factors.numel * table.shape[1] >= thresholds.COMPILED_HEAVY and table.dtype.name in (
        "float32",
        "float64",
    )


@_bag.kernel("cpu", when=_many, layout=contiguous, scratch=False)
def _(xp, out, table, factors, source, target, *, rows):
    from ...kernels.cpu import embedding

    _check_rows(xp, source, table.shape[0])
    _need_rows(target, out)
    embedding.bag(out, table, factors, source, target)


@_bag.vjp("table")
def _(g, factors, source, target, table_spec):
    return _bag(g, factors, target, source, table_spec.shape[0])


@_bag.vjp("factors")
def _(g, table, source, target):
    return _bag_products(table, g, source, target)


def _products_infer(a, b, source, target):
    tile = _tile(a, source)
    return a.like(tuple(source.shape)), tile, tile


def _products_samples(make):
    for n in (4, 0):
        a, b = make(5, 3), make(3, 3)
        n = n * a.shape[0] // 5
        yield (a, b[:, : a.shape[1]], _numbers(5, n), _numbers(3, n)), {}


@op(
    infer=_products_infer,
    scratch=("left", "right"),
    layout=contiguous,
    samples=_products_samples,
    flops=lambda a, b, source, target: 2 * source.numel * a.shape[1],
)
def _bag_products(xp, out, left, right, a, b, source, target):
    """The scalar product of ``a[source[i]]`` and ``b[target[i]]`` for each entry."""
    _need_rows(source, a, b)
    for here in tiles(source.shape[0], max(1, left.shape[0])):
        x, y = left[: len(source[here])], right[: len(source[here])]
        take(xp, a, source[here], 0, x)
        take(xp, b, target[here], 0, y)
        xp.multiply(x, y, out=x)
        xp.sum(x, axis=1, out=out[here])


@_bag_products.kernel(
    "cpu", when=lambda a, b, source, target: _many(a, source), layout=contiguous, scratch=False
)
def _(xp, out, a, b, source, target):
    from ...kernels.cpu import embedding

    _need_rows(source, a, b)
    embedding.products(out, a, b, source, target)


@_bag_products.vjp("a")
def _(g, b, source, target, a_spec):
    return _bag(b, g, target, source, a_spec.shape[0])


@_bag_products.vjp("b")
def _(g, a, source, target, b_spec):
    return _bag(a, g, source, target, b_spec.shape[0])


def _winners_infer(table, source, target, counts, *, rows):
    out = table.like((rows, table.shape[1]))
    return out.like(dtype=int64), out


def _winners_samples(make):
    for n, rows in ((4, 3), (0, 2)):
        x, n = make(5, 3), n
        yield ((x, _numbers(5, n), _numbers(rows, n), _numbers(2, n)), {"rows": rows})


@op(
    infer=_winners_infer,
    scratch=("best",),
    layout=contiguous,
    half="exact",
    samples=_winners_samples,
    flops=lambda table, source, *_, **__: source.numel * table.shape[1],
)
def _bag_winners(xp, out, best, table, source, target, counts, *, rows):
    """Return the argmax row of ``table`` per bag and column; -1 for an empty bag.

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


@_bag_winners.kernel(
    "cpu", when=lambda table, source, *_, **__: _many(table, source), layout=contiguous
)
def _(xp, out, best, table, source, target, counts, *, rows):
    from ...kernels.cpu import embedding

    _check_rows(xp, source, table.shape[0])
    embedding.winners(out, best, table, source, target, counts)


# Where the entries belong


def _set_entries(xp, factors, target, counts, source, offsets, weights, *, length, mean, padding):
    """Compute bag and factor of each entry; ``counts`` is workspace, a number per bag."""
    entries = source.shape[0]
    bags = counts.shape[0]
    most = NUMBERS_TILE if xp is np else thresholds.tile_elements(False)
    if offsets is None:
        lines = target.reshape(bags, length)
        for here in tiles(bags, most):
            lines[here] = xp.arange(here.start, here.stop)[:, None]
    else:
        target.fill(0)
        for here in tiles(bags - 1 if entries else 0, most):
            starts = offsets[1 + here.start : 1 + min(here.stop, bags - 1)]
            inside = starts < entries  # the others begin empty bags at the end
            scatter_add(xp, target, (xp.where(inside, starts, 0),), inside.astype(target.dtype))
        xp.cumsum(target, out=target)
    if padding is None:
        factors.fill(1)
    else:
        xp.not_equal(source, padding, out=factors)
    if weights is not None:
        xp.multiply(factors, weights, out=factors)
    if mean:
        counts.fill(0)
        for here in tiles(entries, most):
            scatter_add(xp, counts, (target[here],), factors[here])
        xp.maximum(counts, 1, out=counts)
        for here in tiles(entries, most):
            xp.divide(factors[here], counts[target[here]], out=factors[here])


def _entries_infer(source, offsets, weights, *, bags, dtype, **_):
    return Spec(source.shape, dtype), Spec(source.shape, int64), Spec((bags,), dtype)


def _entries_samples(make):
    x = make(6)
    n = x.shape[0]
    base = {"bags": n // 2, "length": 2, "mean": False, "padding": None, "dtype": x.dtype}
    yield (_numbers(5, n), None, None), base
    yield (_numbers(5, n), None, x.detach()), base | {"padding": 1}
    given = {"bags": 4, "length": 0, "mean": True}
    yield (_numbers(5, n), tensor([0, 2, 2, n]), None), base | given
    yield (_numbers(5, n), tensor([0, 0, 2, 3]), None), base | given | {"padding": 1}
    yield (_numbers(5, 0), None, None), base | {"bags": 0}
    yield (_numbers(5, 0), tensor([0, 0]), None), base | given | {"bags": 2, "dtype": float32}


@op(
    returns=("factors", "target"),
    infer=_entries_infer,
    scratch=("counts",),
    layout=contiguous,
    half="exact",
    samples=_entries_samples,
    flops=lambda source, *_, **__: 2 * source.numel,
)
def _bag_entries(
    xp, factors, target, counts, source, offsets, weights, *, bags, length, mean, padding, dtype
):
    """Compute factor and bag of each entry, without gradient.

    Args:
        source: Row numbers of all entries, bag after bag.
        offsets: Where each bag begins; None where each has ``length`` entries.
        weights: A factor for each entry, or None.
        bags: How many there are.
        length: Of each bag, without ``offsets``.
        mean: Divide by the number of entries of the bag.
        padding: Entries with this row number count for nothing.
        dtype: Of the factors.
    """
    _set_entries(
        xp,
        factors,
        target,
        counts,
        source,
        offsets,
        weights,
        length=length,
        mean=mean,
        padding=padding,
    )


def _bags_infer(table, source, offsets, weights, *, bags, **_):
    out = table.like((bags, table.shape[1]))
    factors = table.like((source.shape[0],))
    counts = table.like((bags,))
    return out, factors, factors.like(dtype=int64), counts, _tile(table, source)


def _bags_samples(make):
    base = {"bags": 3, "length": 2, "mean": False, "padding": None, "by_frequency": False}
    x = make(5, 3)
    rows = x.shape[0]
    n = 6 * rows // 5
    even = base | {"bags": n // 2}
    yield (x, _numbers(rows, n), None, None), even | {"padding": 1}
    yield (x, _numbers(rows, n), None, make(n)), even
    yield (x, _numbers(rows, n), tensor([0, 2, 2]), None), base | {"length": 0, "mean": True}
    yield (x, _numbers(rows, n), tensor([0, 1, n]), make(n)), base | {"length": 0, "padding": 0}
    alone = base | {"bags": 1, "length": 3, "by_frequency": True}  # then it changes nothing
    yield (make(5, 3), _numbers(5, 3), None, None), alone
    yield (make(0, 3), _numbers(5, 0), tensor([0, 0, 0]), None), base | {"length": 0}
    yield (x, _numbers(rows, n), None, make(n)), even | {"sparse": True}


@op(
    infer=_bags_infer,
    scratch=("factors", "target", "counts", "tile"),
    layout=contiguous,
    samples=_bags_samples,
    flops=lambda table, source, *_, **__: 2 * source.numel * table.shape[1],
)
def _embedding_bag(
    xp, out, factors, target, counts, tile, table, source, offsets, weights, *, bags, length, mean,
    padding, by_frequency, sparse=False,
):  # fmt: skip
    """Compute the weighted sum of the rows of each bag: see :func:`_bag_entries`.

    ``by_frequency`` divides the gradient of each row by how often it occurs, ``sparse`` makes it
    a sparse tensor.
    """
    _check_rows(xp, source, table.shape[0])
    _set_entries(
        xp,
        factors,
        target,
        counts,
        source,
        offsets,
        weights,
        length=length,
        mean=mean,
        padding=padding,
    )
    _add_rows(xp, out, tile, table, factors, source, target)


@_embedding_bag.kernel(
    "cpu", when=lambda table, source, *_, **__: _many(table, source), layout=contiguous
)
def _(
    xp, out, factors, target, counts, tile, table, source, offsets, weights, *, bags, length, mean,
    padding, by_frequency, sparse,
):  # fmt: skip
    from ...kernels.cpu import embedding

    _check_rows(xp, source, table.shape[0])
    _set_entries(
        xp,
        factors,
        target,
        counts,
        source,
        offsets,
        weights,
        length=length,
        mean=mean,
        padding=padding,
    )
    embedding.bag(out, table, factors, source, target)


@_embedding_bag.vjp("table")
def _(g, source, offsets, weights, table_spec, bags, length, mean, padding, by_frequency, sparse):
    rows = table_spec.shape[0]
    how = {"bags": bags, "length": length, "mean": mean, "padding": padding, "dtype": g.dtype}
    factors, target = _bag_entries(source, offsets, None, **how)
    if weights is not None:
        factors = factors * weights.to(g.dtype)
    if by_frequency:
        factors = factors * _index_shares(source, rows, g.dtype)
    if sparse and g._spec.runs is None:  # inside vmap gradients are dense
        return row_gradient(g.index_select(0, target) * factors.unsqueeze(1), source, rows, padding)
    return _bag(g, factors, target, source, rows)


@_embedding_bag.vjp("weights")
def _(g, table, source, offsets, bags, length, mean, padding):
    how = {"bags": bags, "length": length, "mean": mean, "padding": padding, "dtype": g.dtype}
    factors, target = _bag_entries(source, offsets, None, **how)
    return _bag_products(table, g, source, target) * factors


def _check_offsets(offsets, count):
    if offsets.device.type == "cpu" and offsets.shape[0]:
        first, last = int(offsets[0].item()), int(offsets.max().item())
        if first != 0:
            raise RuntimeError(
                "embedding_bag: offsets[0] has to be 0, i.e., the first sequence in the mini-batch "
                f"has to start from position 0. However, got {first}"
            )
        if last > count:
            raise RuntimeError(
                f"embedding_bag: offsets[-1] can not be greater than input's length ({count}) but "
                f"got offsets[-1] of {last}"
            )


def _check_bags(input, weight, offsets, mode, scale_grad_by_freq, sparse, per_sample_weights):
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


@function(public=False)
def embedding_bag(
    input,
    weight,
    offsets=None,
    max_norm=None,
    norm_type=2,
    scale_grad_by_freq=False,
    mode="mean",
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    """Compute embedding bags: the sum, mean or maximum of the rows of each bag.

    Args:
        input: (B, N) row numbers, one bag per line; or all bags one after the other, 1-D.
        weight: (rows, features).
        offsets: For 1-D ``input``: (B,), where each bag begins; the first is 0.
        max_norm: Rows that are looked up are first shrunk, in place, to at most this norm.
        norm_type: Which norm.
        scale_grad_by_freq: Divide the gradient of each row by how often it occurs; not for "max".
        mode: "sum", "mean" or "max".
        sparse: The gradient of ``weight`` is a sparse tensor, with one entry for each entry of the
            bags; not for "max".
        per_sample_weights: Factors in the shape of ``input``, for mode "sum".
        include_last_offset: ``offsets`` has one more element, the length of ``input``.
        padding_idx: Entries with this row number do not count.

    Returns:
        Tensor (B, features); an empty bag is zero.

    Raises:
        ValueError: Shapes or arguments do not fit.
        RuntimeError: An entry or offset is out of range (on the CPU).

    Memory:
        Keeps ``input``, ``offsets`` and ``per_sample_weights``; for the gradient of the last,
        ``weight``; for "max" where the rows were that won. Never the rows.
    """
    _check_bags(input, weight, offsets, mode, scale_grad_by_freq, sparse, per_sample_weights)
    rows = weight.shape[0]
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise RuntimeError(
                f"embedding_bag: padding_idx must be within the number of embeddings, -{rows} "
                f"through {rows - 1}, but got {padding_idx}"
            )
        padding_idx %= rows
    if max_norm is not None and weight.numel():
        with no_grad():
            weight._renormalize_rows_(input, float(max_norm), float(norm_type))
    if input.ndim == 2:
        bags, length = input.shape
        offsets = None
    else:
        bags, length = offsets.shape[0] - bool(include_last_offset), 0
        if bags < 0:
            raise RuntimeError(
                "embedding_bag: include_last_offset: number of offsets should be > 0"
            )
        _check_offsets(offsets, input.shape[0])
        offsets = offsets[:bags].to(int64)
        if not bags:  # then no entry is in one
            input = input[:0]
            per_sample_weights = None if per_sample_weights is None else per_sample_weights[:0]
    source = input.reshape(-1).to(int64)
    how = {"bags": bags, "length": length, "padding": padding_idx}
    if mode == "max":
        return _largest(weight, source, offsets, how)
    factors = None if per_sample_weights is None else per_sample_weights.reshape(-1)
    return _embedding_bag(
        weight,
        source,
        offsets,
        factors,
        mean=mode == "mean",
        by_frequency=bool(scale_grad_by_freq),
        sparse=bool(sparse),
        **how,
    )


def _largest(weight, source, offsets, how):
    if not weight.shape[0] and not source.shape[0]:  # bags without entries: there is no row
        return weight.sum(0, keepdim=True).expand(how["bags"], -1)
    with no_grad():
        counts, target = _bag_entries(source, offsets, None, mean=False, dtype=weight.dtype, **how)
        found = _bag_winners(weight, source, target, counts.to(int64), how["bags"])
        empty = found.lt(0)
    return weight.gather(0, found.clamp(min=0)).masked_fill(empty, 0.0)
