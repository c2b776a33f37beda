"""scatter, scatter_add, scatter_reduce.

Compiled kernels write many elements on the CPU (``cpu_routes.py``); an index of few goes through
the cache in the tiles of ``gather.py``. Where it names a place twice,
``scatter`` keeps the last value; the other two use them all.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import BOOL, INT
from ...spec import Spec
from ...tensor import Tensor
from ..creation.factory import fitted
from ..creation.fill import full
from ..creation.from_data import tensor
from ..manipulation.pad import _pad
from ..registry import function, op
from ..views.reshape import normal_dim
from .cpu_routes import enough, enough_to_add, write_along
from .gather import (
    _gather,
    add_at,
    as_long,
    check_index,
    index_tiles,
    lifted,
    sample_positions,
    tile_places,
    values_of,
)
from .index_put import check_bounds


def _scatter_infer(input, index, src, *, dim):
    check_index("scatter", dim, index, input.shape, () if not src.ndim else (src.shape,))
    if getattr(src, "dtype", None) not in (None, input.dtype):
        raise RuntimeError(
            f"scatter(): Expected self.dtype to be equal to src.dtype; got {input.dtype} and "
            f"{src.dtype}. Convert one."
        )
    return input


def _scatter_samples(make):
    x = make(3, 5)
    index = tensor(np.array([[4, 0, 2], [1, 3, -1]], np.int64))  # no place twice
    yield (x, index, make(3, 4)), {"dim": 1}
    yield (x, index, 2.0), {"dim": 1}
    yield (make(5, 2), index.t().clone(), make(3, 2)), {"dim": 0}
    yield (make(0, 5), index[:0], make(0, 3)), {"dim": 1}


@op(
    inplace="_scatter_",
    infer=_scatter_infer,
    half="exact",
    samples=_scatter_samples,
)
def _scatter(xp, out, input, index, src, *, dim):
    """Scatter ``src`` into a copy of ``input`` along a dim; the last duplicate wins."""
    check_bounds(xp, index[None], input.shape or (1,), (dim,), RuntimeError)
    if out is not input:
        xp.copyto(out, input)
    if not out.ndim or not index.ndim:
        if index.size:
            out[...] = src.reshape(()) if hasattr(src, "shape") else src
        return
    for tile in index_tiles(xp, index.shape):
        out[tile_places(xp, index, tile, dim)] = values_of(src, tile)


@_scatter.kernel(
    "cpu",
    when=lambda input, index, src, *, dim: input.ndim > 0 and enough(index.numel, input.dtype),
)
def _(xp, out, input, index, src, *, dim):
    check_bounds(xp, index[None], input.shape, (dim,), RuntimeError)
    if out is not input:
        xp.copyto(out, input)
    if not write_along("put", out, src, index, dim):
        for tile in index_tiles(xp, index.shape):
            out[tile_places(xp, index, tile, dim)] = values_of(src, tile)


@_scatter.vjp("input")
def _(g, index, dim):
    return _scatter(g, index, 0, dim=dim)


@_scatter.vjp("src")
def _(g, index, src_spec, dim):
    return _to_source(_gather(g, index, dim=dim), src_spec)


def _to_source(g, spec):
    """Embed a gradient of the index's shape in the larger shape of the source."""
    shape = tuple(spec.shape)
    if tuple(g.shape) == shape or not shape:
        return g if shape else g.sum()

    after = tuple([n - m for n, m in zip(shape, g.shape, strict=True)])
    return _pad(g, before=(0,) * len(shape), after=after, value=0.0)


def _scatter_add_samples(make):
    x, src = make(3, 4), make(5, 4)
    yield (x, sample_positions(x.shape[0], *src.shape), src), {"dim": 0}
    yield (x, sample_positions(x.shape[1], 2, 2), make(3, 2)), {"dim": 1}
    yield (make(3, 4), sample_positions(3, 0, 4), make(0, 4)), {"dim": 0}


@op(
    inplace="_scatter_add_",
    infer=_scatter_infer,
    samples=_scatter_add_samples,
    autocast="promote",
)
def _scatter_add(xp, out, input, index, src, *, dim):
    """Scatter-add ``src`` into a copy of ``input`` along a dim."""
    check_bounds(xp, index[None], input.shape or (1,), (dim,), RuntimeError)
    if out is not input:
        xp.copyto(out, input)
    add_at(xp, out, index, src, dim)


def _many(input, index, src, **_):
    return input.ndim > 0 and enough_to_add(index.numel, input.dtype)


@_scatter_add.kernel("cpu", when=_many)
def _(xp, out, input, index, src, *, dim):
    check_bounds(xp, index[None], input.shape, (dim,), RuntimeError)
    if out is not input:
        xp.copyto(out, input)
    if not write_along("add", out, src, index, dim):
        add_at(xp, out, index, src, dim)


@_scatter_add.vjp("input")
def _(g):
    return g


@_scatter_add.vjp("src")
def _(g, index, src_spec, dim):
    return _to_source(_gather(g, index, dim=dim), src_spec)


def _scattered(name, input, dim, index, src, reduce, in_place):
    d = normal_dim(name, dim, input.ndim)
    index = as_long(index)
    if not isinstance(src, Tensor):
        src = fitted(src, input.dtype)
    if reduce is None:
        return (
            input._scatter_(index, src, dim=d) if in_place else _scatter(input, index, src, dim=d)
        )
    if reduce == "add":
        return (
            input._scatter_add_(index, src, dim=d)
            if in_place
            else _scatter_add(input, index, src, dim=d)
        )
    if reduce != "multiply":
        raise RuntimeError(f"reduce argument must be either add or multiply; got {reduce!r}.")
    if not isinstance(src, Tensor):
        src = full(tuple(index.shape), src, dtype=input.dtype, device=input.device)
    out = scatter_reduce(input, d, index, src, "prod")
    return input.copy_(out) if in_place else out


def _source(src, value):
    if (src is None) == (value is None):
        raise TypeError("scatter() takes either src or value. Pass one.")
    return value if src is None else src


@function(method=True, out=True)
@lifted
def scatter(input, dim, index, src=None, *, value=None, reduce=None):
    """Write ``src`` (or a number) at the positions of ``dim`` that the index names, in a copy.

    Args:
        input: A tensor.
        dim: Along which.
        index: int64; no larger than ``src`` in any dim, nor than ``input`` except in ``dim``.
        src: A tensor of the dtype of ``input``, or a number.
        value: The number, by keyword.
        reduce: "add" or "multiply" combines with what is there.
    """
    return _scattered("scatter", input, dim, index, _source(src, value), reduce, False)


@function(method=True, public=False)
@lifted
def scatter_(input, dim, index, src=None, *, value=None, reduce=None):
    """Write ``src`` at the positions that the index names; in-place version of ``scatter``."""
    return _scattered("scatter_", input, dim, index, _source(src, value), reduce, True)


@function(method=True, out=True)
@lifted
def scatter_add(input, dim, index, src):
    """Add ``src`` at the positions of ``dim`` that the index names, in a copy."""
    d = normal_dim("scatter_add", dim, input.ndim)
    return _scatter_add(input, as_long(index), src, dim=d)


@function(method=True, public=False)
@lifted
def scatter_add_(input, dim, index, src):
    """Add ``src`` at the positions that the index names."""
    d = normal_dim("scatter_add_", dim, input.ndim)
    return input._scatter_add_(as_long(index), src, dim=d)


_REDUCERS = {"prod": "multiply", "amax": "maximum", "amin": "minimum"}


def _combine_infer(input, index, src, *, dim, reduce):
    return _scatter_infer(input, index, src, dim=dim)


def _combine_samples(make):
    for reduce in ("prod", "amax", "amin"):
        x, src = make(3, 4), make(4, 4)
        yield (x, sample_positions(3, 2, 4), src), {"dim": 0, "reduce": reduce}
        yield (make(2, 4), sample_positions(4, 2, 3), make(2, 3)), {"dim": 1, "reduce": reduce}
        yield (make(0, 4), sample_positions(4, 0, 3), make(0, 3)), {"dim": 1, "reduce": reduce}


@op(infer=_combine_infer, samples=_combine_samples)
def _scatter_combine(xp, out, input, index, src, *, dim, reduce):
    """Scatter ``src`` into a copy of ``input``, reduced by product, maximum or minimum."""
    check_bounds(xp, index[None], input.shape or (1,), (dim,), RuntimeError)
    xp.copyto(out, input)
    combine = getattr(xp, _REDUCERS[reduce])
    if not out.ndim:
        if index.size:
            combine(out, src.reshape(()), out=out)
        return
    if xp is np:
        for tile in index_tiles(xp, index.shape):
            combine.at(out, tile_places(xp, index, tile, dim), src[tile])
        return
    # CuPy's ufuncs have few `at`. One index along `dim` never names an element twice.
    whole = [slice(0, n) for n in index.shape]
    for k in range(index.shape[dim]):
        row = (*whole[:dim], slice(k, k + 1), *whole[dim + 1 :])
        place = tile_places(xp, index, row, dim)
        out[place] = combine(out[place], src[row])


@_scatter_combine.kernel("cpu", when=_many)
def _(xp, out, input, index, src, *, dim, reduce):
    check_bounds(xp, index[None], input.shape, (dim,), RuntimeError)
    xp.copyto(out, input)
    if not write_along(_REDUCERS[reduce], out, src, index, dim):
        _scatter_combine.op.plain(xp, out, input, index, src, dim=dim, reduce=reduce)


@_scatter_combine.vjp("input", "src")
def _(g, needs, input, index, src, out, dim, reduce):
    inside = src if src.shape == index.shape else src[tuple([slice(0, n) for n in index.shape])]
    if reduce == "prod":
        return _product_gradients(g, needs, input, index, inside, out, dim, src.shape)
    # Equal extremes share the gradient.
    won = (inside == out.gather(dim, index)).to(g.dtype)
    kept = (input == out).to(g.dtype)
    share = g / kept.scatter_add(dim, index, won)
    g_src = _to_source(share.gather(dim, index) * won, src._spec) if needs[1] else None
    return share * kept if needs[0] else None, g_src


def _product_gradients(g, needs, input, index, src, out, dim, shape):
    # Without the element itself: the product of the others. Factors that are not zero are
    # multiplied up and divided out again. Of zeros the sum stands for the product: if there is
    # one, it is that one, and without it nothing; if there are two, it leaves the other one. What
    # is then zero still depends on the zeros, which the second derivative wants to know.
    zero, zeros = input == 0, src == 0
    count = zero.to(g.dtype).scatter_add(dim, index, zeros.to(g.dtype))
    nonzero, nonzeros = input.masked_fill(zero, 1), src.masked_fill(zeros, 1)
    rest = _scatter_combine(nonzero, index, nonzeros, dim=dim, reduce="prod")
    lost = input.masked_fill(~zero, 0)
    lost = lost.scatter_add(dim, index, src.masked_fill(~zeros, 0))

    def without(value, zero, divisor, rest, lost, count):
        nothing = rest.masked_fill(count != 0, 0)  # no zero at all
        one, two = (rest * lost).masked_fill(count != 1, 0), rest.masked_fill(count != 1, 0)
        other = (rest * (lost - value)).masked_fill(count != 2, 0)
        return ((nothing + one) / divisor).masked_fill(zero, 0) + (two + other).masked_fill(
            ~zero, 0
        )

    g_input = None
    if needs[0]:
        g_input = g * without(input, zero, nonzero, rest, lost, count)
    if not needs[1]:
        return g_input, None
    rest, lost, count, g = (x.gather(dim, index) for x in (rest, lost, count, g))
    at = without(src, zeros, nonzeros, rest, lost, count)
    return g_input, _to_source(g * at, Spec(shape, src.dtype))


@function(method=True, out=True)
@lifted
def scatter_reduce(input, dim, index, src, reduce, *, include_self=True):
    """Scatter and reduce ``src`` along ``dim``, in a copy.

    Args:
        input: A tensor.
        dim: Along which.
        index: int64, no larger than ``src``.
        src: A tensor of the dtype of ``input``.
        reduce: "sum", "prod", "mean", "amax" or "amin".
        include_self: The values of ``input`` take part; else only untouched ones stay.
    """
    d = normal_dim("scatter_reduce", dim, input.ndim)
    index = as_long(index)
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(
            f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce!r}."
        )
    if not include_self:
        dtype = input.dtype
        neutral = {"sum": 0, "mean": 0, "prod": 1}.get(reduce)
        if neutral is None:
            neutral = _extreme(dtype, reduce == "amin")
        input = _scatter(input, index, neutral, dim=d)
    if reduce == "sum":
        return _scatter_add(input, index, src, dim=d)
    if reduce != "mean":
        return _scatter_combine(input, index, src, dim=d, reduce=reduce)
    total = _scatter_add(input, index, src, dim=d)
    counts = _counts(input, d, index, int(include_self))
    counts = counts.masked_fill(counts == 0, 1)
    if input.dtype.category == INT:
        return total.div(counts, rounding_mode="floor")
    return total / counts


def _counts(input, dim, index, start):
    # How many values each element takes. Along a dim that the index is expanded over all are alike.

    shape = list(input.shape)
    for k, n in enumerate(index.shape):
        if k != dim and n == shape[k] and n > 1 and not index.stride(k):
            shape[k], index = 1, index.narrow(k, 0, 1)
    counts = full(tuple(shape), start, dtype=input.dtype, device=input.device)
    return counts._scatter_add_(index, 1, dim=dim)


def _extreme(dtype, largest):
    if dtype.category == BOOL:
        return largest
    if dtype.category == INT:
        info = np.iinfo(dtype.np)
        return int(info.max if largest else info.min)
    return float("inf") if largest else -float("inf")


@function(method=True, public=False)
@lifted
def scatter_reduce_(input, dim, index, src, reduce, *, include_self=True):
    """Scatter and reduce ``src`` into this tensor; in-place version of ``scatter_reduce``."""
    return input.copy_(scatter_reduce(input, dim, index, src, reduce, include_self=include_self))
