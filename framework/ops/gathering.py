"""Gather and scatter along one dim, and their relatives: index_select, index_add, take, one_hot.

``gather`` and ``scatter`` name an element by its own position with one coordinate replaced. On
the CPU they go through the index in pieces that stay in the cache, so no temporary is large.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..dtypes import BOOL, INT, int32, int64
from ..spec import Spec
from ..tensor import Tensor
from .creation import tensor
from .indexing import (
    check_bounds,
    index_accumulate,
    index_assign,
    index_elements,
    mask_places,
    positions,
)
from .registry import broadcast_shapes, function, op
from .selecting import every_third
from .shaping import normal_dim, view_shape

_PIECE = 2048  # index elements handled at a time


# Along one dim


def _pieces(xp, shape):
    """Slices that cut an index of this shape into pieces of bounded size, in C order."""
    if 0 in shape:
        return
    if xp is not np or prod(shape) <= _PIECE:
        yield tuple([slice(0, n) for n in shape])
        return
    axis = 0
    inner = prod(shape[1:])
    while inner > _PIECE:
        axis += 1
        inner //= shape[axis]
    step = max(1, _PIECE // inner)
    tail = tuple([slice(0, n) for n in shape[axis + 1 :]])
    for outer in np.ndindex(shape[:axis]):
        head = tuple([slice(k, k + 1) for k in outer])
        for k in range(0, shape[axis], step):
            yield (*head, slice(k, min(k + step, shape[axis])), *tail)


def _places(xp, index, piece, dim):
    """What names the elements of a piece: ranges in all dims, the index in one."""
    found = []
    for d, part in enumerate(piece):
        if d == dim:
            found.append(index[piece])
        else:
            along = [1] * index.ndim
            along[d] = part.stop - part.start
            found.append(xp.arange(part.start, part.stop).reshape(along))
    return tuple(found)


def _check_index(name, dim, index, shape, others):
    """Refuse an index whose dtype or shape does not fit.

    Args:
        name: Of the op.
        dim: Along which.
        index: Its spec.
        shape: Of the tensor that is indexed.
        others: More shapes that the index must fit inside, in all dims.
    """
    if index.dtype is not int64:
        raise RuntimeError(
            f"{name}(): Expected dtype int64 for index; got {index.dtype.name}. "
            "Convert it with .long()."
        )
    if not index.numel:
        return
    ndim = max(len(shape), 1)
    if max(index.ndim, 1) != ndim or any(max(len(s), 1) != ndim for s in others):
        raise RuntimeError(
            f"{name}(): Index tensor must have the same number of dimensions as input and src "
            f"tensor; got index {tuple(index.shape)} and "
            f"{' and '.join(str(tuple(s)) for s in (shape, *others))}."
        )
    for d, n in enumerate(index.shape):
        if (d != dim and n > shape[d]) or any(n > s[d] for s in others):
            raise RuntimeError(
                f"{name}(): Size does not match at dimension {d}: expected index "
                f"{list(index.shape)} to be no larger than self {list(shape)} apart from "
                f"dimension {dim}"
                + "".join(f" and no larger than src {list(s)}" for s in others)
            )


def _gather_infer(input, index, *, dim):
    _check_index("gather", dim, index, input.shape, ())
    return input.like(index.shape)


def _gather_samples(make):
    x = make(3, 4)
    yield (x, _positions(x.shape[1], x.shape[0], 2)), {"dim": 1}
    yield (x, _positions(x.shape[0], 5, x.shape[1])), {"dim": 0}
    yield (make(), _positions(1)), {"dim": 0}
    yield (make(3, 2), _positions(3, 0, 2)), {"dim": 0}


def _positions(size, *shape):
    return positions((size,), *shape)[0]


@op(name="_gather", method=False, public=False, infer=_gather_infer, samples=_gather_samples)
def gather_along(xp, out, input, index, *, dim):
    """``out[i, j] = input[index[i, j], j]`` for dim 0, and so on."""
    check_bounds(xp, index[None], input.shape or (1,), (dim,))
    if not input.ndim or not index.ndim:
        out[...] = input.reshape(())
        return
    for piece in _pieces(xp, index.shape):
        out[piece] = input[_places(xp, index, piece, dim)]


@gather_along.vjp("input")
def _(g, index, input_spec, dim):
    return scatter_sum(g, index, shape=tuple(input_spec.shape), dim=dim)


def _scatter_sum_samples(make):
    x = make(5, 3)
    yield (x, _positions(4, *x.shape)), {"shape": (4, x.shape[1]), "dim": 0}


@op(
    name="_scatter_sum", method=False, public=False, half="float32", samples=_scatter_sum_samples,
    infer=lambda input, index, *, shape, dim: input.like(shape),
)  # fmt: skip
def scatter_sum(xp, out, input, index, *, shape, dim):
    """Zeros with ``input`` added at the places that ``gather`` reads: its transpose."""
    out.fill(0)
    _add_at(xp, out, index, input, dim)


@scatter_sum.vjp("input")
def _(g, index, dim):
    return gather_along(g, index, dim=dim)


def _add_at(xp, out, index, values, dim):
    if not out.ndim or not index.ndim:
        out += values.reshape(()) if index.size else 0
        return
    if xp is not np or not out.flags.c_contiguous:
        for piece in _pieces(xp, index.shape):
            xp.add.at(out, _places(xp, index, piece, dim), _part(values, piece))
        return
    # np.add.at is fast in one dimension only, so the places are counted in the flat memory.
    flat = out.reshape(-1)
    steps = [s // out.itemsize for s in out.strides]
    for piece in _pieces(xp, index.shape):
        where = np.where(index[piece] < 0, index[piece] + out.shape[dim], index[piece])
        where *= steps[dim]
        for d, place in enumerate(_places(xp, index, piece, dim)):
            if d != dim:
                where += place * steps[d]
        part = _part(values, piece)
        np.add.at(flat, where.reshape(-1), part.reshape(-1) if hasattr(part, "shape") else part)


def _part(values, piece):
    return values[piece] if hasattr(values, "shape") and values.ndim else values


@function(method=True)
def gather(input, dim, index, *, sparse_grad=False, out=None):
    """Take along ``dim`` the element that the index names, for each position of the index.

    Args:
        input: A tensor.
        dim: Along which.
        index: int64, as many dims as ``input``, no larger than it except in ``dim``.
        sparse_grad: Ignored: gradients are dense.
        out: Where to leave the result.

    Returns:
        Tensor in the shape of ``index``.
    """
    d = normal_dim("gather", dim, input.ndim)
    return gather_along(input, index, dim=d, out=out)


def _scatter_infer(input, index, src, *, dim):
    _check_index("scatter", dim, index, input.shape, () if not src.ndim else (src.shape,))
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


@op(
    name="_scatter", method=False, public=False, inplace="_scatter_", infer=_scatter_infer,
    samples=_scatter_samples,
)  # fmt: skip
def scatter_along(xp, out, input, index, src, *, dim):
    """``input`` with ``src`` at the places that ``gather`` would read; the last one stays."""
    check_bounds(xp, index[None], input.shape or (1,), (dim,))
    if out is not input:
        xp.copyto(out, input)
    if not out.ndim or not index.ndim:
        if index.size:
            out[...] = src.reshape(()) if hasattr(src, "shape") else src
        return
    for piece in _pieces(xp, index.shape):
        out[_places(xp, index, piece, dim)] = _part(src, piece)


@scatter_along.vjp("input")
def _(g, index, dim):
    return scatter_along(g, index, 0, dim=dim)


@scatter_along.vjp("src")
def _(g, index, src_spec, dim):
    return _to_source(gather_along(g, index, dim=dim), src_spec)


def _to_source(g, spec):
    """A gradient of the shape of the index in the larger shape of the source."""
    shape = tuple(spec.shape)
    if tuple(g.shape) == shape or not shape:
        return g if shape else g.sum()
    from .padding import pad_constant

    after = tuple([n - m for n, m in zip(shape, g.shape, strict=True)])
    return pad_constant(g, before=(0,) * len(shape), after=after, value=0.0)


def _scatter_add_samples(make):
    x, src = make(3, 4), make(5, 4)
    yield (x, _positions(x.shape[0], *src.shape), src), {"dim": 0}
    yield (x, _positions(x.shape[1], 2, 2), make(3, 2)), {"dim": 1}


@op(
    name="_scatter_add", method=False, public=False, inplace="_scatter_add_", half="float32",
    infer=_scatter_infer, samples=_scatter_add_samples,
)  # fmt: skip
def scatter_add_along(xp, out, input, index, src, *, dim):
    """``input`` with ``src`` added at the places that ``gather`` would read."""
    check_bounds(xp, index[None], input.shape or (1,), (dim,))
    if out is not input:
        xp.copyto(out, input)
    _add_at(xp, out, index, src, dim)


@scatter_add_along.vjp("input")
def _(g):
    return g


@scatter_add_along.vjp("src")
def _(g, index, src_spec, dim):
    return _to_source(gather_along(g, index, dim=dim), src_spec)


def _scattered(name, input, dim, index, src, reduce, in_place):
    d = normal_dim(name, dim, input.ndim)
    if reduce is None:
        return input._scatter_(index, src, dim=d) if in_place else scatter_along(
            input, index, src, dim=d
        )
    if reduce == "add":
        return input._scatter_add_(index, src, dim=d) if in_place else scatter_add_along(
            input, index, src, dim=d
        )
    if reduce != "multiply":
        raise RuntimeError(f"reduce argument must be either add or multiply; got {reduce!r}.")
    if not isinstance(src, Tensor):
        from .creation import full

        src = full(tuple(index.shape), src, dtype=input.dtype, device=input.device)
    out = scatter_reduce(input, d, index, src, "prod")
    return input.copy_(out) if in_place else out


def _source(src, value):
    if (src is None) == (value is None):
        raise TypeError("scatter() takes either src or value. Pass one.")
    return value if src is None else src


@function(method=True)
def scatter(input, dim, index, src=None, *, value=None, reduce=None):
    """Put ``src`` (or a number) at the positions of ``dim`` that the index names, in a copy.

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
def scatter_(input, dim, index, src=None, *, value=None, reduce=None):
    """Put ``src`` at the positions that the index names; the in-place twin of ``scatter``."""
    return _scattered("scatter_", input, dim, index, _source(src, value), reduce, True)


@function(method=True)
def scatter_add(input, dim, index, src):
    """Add ``src`` at the positions of ``dim`` that the index names, in a copy."""
    d = normal_dim("scatter_add", dim, input.ndim)
    return scatter_add_along(input, index, src, dim=d)


@function(method=True, public=False)
def scatter_add_(input, dim, index, src):
    """Add ``src`` at the positions that the index names."""
    return input._scatter_add_(index, src, dim=normal_dim("scatter_add_", dim, input.ndim))


_REDUCERS = {"prod": "multiply", "amax": "maximum", "amin": "minimum"}


def _combine_infer(input, index, src, *, dim, reduce):
    return _scatter_infer(input, index, src, dim=dim)


def _combine_samples(make):
    for reduce in ("prod", "amax", "amin"):
        x, src = make(3, 4), make(4, 4)
        yield (x, _positions(3, 2, 4), src), {"dim": 0, "reduce": reduce}


@op(
    name="_scatter_combine", method=False, public=False, half="float32", infer=_combine_infer,
    samples=_combine_samples,
)  # fmt: skip
def scatter_combine(xp, out, input, index, src, *, dim, reduce):
    """``input`` multiplied with, or the extreme of it and, ``src`` at the places of ``index``."""
    check_bounds(xp, index[None], input.shape or (1,), (dim,))
    xp.copyto(out, input)
    combine = getattr(xp, _REDUCERS[reduce])
    if not out.ndim:
        if index.size:
            combine(out, src.reshape(()), out=out)
        return
    for piece in _pieces(xp, index.shape):
        combine.at(out, _places(xp, index, piece, dim), src[piece])


@scatter_combine.vjp("input", "src")
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
    # Without the element itself: the product of the others. Divided out where no factor is
    # zero; a single zero has the product of the rest, two leave nothing.
    zeros = src == 0
    filled = src.masked_fill(zeros, 1)
    is_zero = (input == 0).to(g.dtype)
    count = is_zero.scatter_add(dim, index, zeros.to(g.dtype))
    rest = scatter_combine(
        input.masked_fill(input == 0, 1), index, filled, dim=dim, reduce="prod"
    )
    one = count == 1

    def without(value, zero, rest, one, none):
        return (rest / value).masked_fill(zero | ~none, 0) + rest.masked_fill(~(zero & one), 0)

    g_input = None
    if needs[0]:
        zero = input == 0
        g_input = g * without(input.masked_fill(zero, 1), zero, rest, one, count == 0)
    if not needs[1]:
        return g_input, None
    at = without(
        filled, zeros, rest.gather(dim, index), one.gather(dim, index),
        (count == 0).gather(dim, index),
    )  # fmt: skip
    return g_input, _to_source(g.gather(dim, index) * at, Spec(shape, src.dtype))


@function(method=True)
def scatter_reduce(input, dim, index, src, reduce, *, include_self=True):
    """Combine ``src`` into the positions of ``dim`` that the index names, in a copy.

    Args:
        input: A tensor.
        dim: Along which.
        index: int64, no larger than ``src``.
        src: A tensor of the dtype of ``input``.
        reduce: "sum", "prod", "mean", "amax" or "amin".
        include_self: The values of ``input`` take part; else only untouched ones stay.
    """
    d = normal_dim("scatter_reduce", dim, input.ndim)
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(
            "reduce argument must be either sum, prod, mean, amax or amin, got "
            f"{reduce!r}."
        )
    if not include_self:
        dtype = input.dtype
        neutral = {"sum": 0, "mean": 0, "prod": 1}.get(reduce)
        if neutral is None:
            neutral = _extreme(dtype, reduce == "amin")
        input = scatter_along(input, index, neutral, dim=d)
    if reduce == "sum":
        return scatter_add_along(input, index, src, dim=d)
    if reduce != "mean":
        return scatter_combine(input, index, src, dim=d, reduce=reduce)
    total = scatter_add_along(input, index, src, dim=d)
    from .creation import ones_like, zeros_like

    with_self = ones_like if include_self else zeros_like
    counts = scatter_add_along(
        with_self(input).detach(), index, ones_like(src).detach(), dim=d
    )
    counts = counts.masked_fill(counts == 0, 1)
    if input.dtype.category == INT:
        return total.div(counts, rounding_mode="floor")
    return total / counts


def _extreme(dtype, largest):
    if dtype.category == BOOL:
        return largest
    if dtype.category == INT:
        info = np.iinfo(dtype.np)
        return int(info.max if largest else info.min)
    return float("inf") if largest else -float("inf")


@function(method=True, public=False)
def scatter_reduce_(input, dim, index, src, reduce, *, include_self=True):
    """Combine ``src`` into this tensor; the in-place twin of ``scatter_reduce``."""
    return input.copy_(scatter_reduce(input, dim, index, src, reduce, include_self=include_self))


# Whole slices of one dim


def _slice_index(name, input, dim, index):
    d = normal_dim(name, dim, input.ndim)
    if index.ndim > 1:
        raise (IndexError if name == "index_select" else RuntimeError)(
            f"{name}(): Index is supposed to be a vector, but got dim: {index.ndim}."
        )
    if index.dtype not in (int32, int64):
        raise RuntimeError(f"{name}(): Expected dtype int32/int64 for index; got {index.dtype}.")
    index = index.to(int64).reshape(1, index.numel())
    if not input.ndim:
        input = view_shape(input, (1,))
    return d, input, index


@function(method=True)
def index_select(input, dim, index, *, out=None):
    """The slices of ``dim`` that a vector of indices names (a copy)."""
    d, x, rows = _slice_index("index_select", input, dim, index)
    if not input.ndim:
        return view_shape(index_elements(x, rows, dims=(0,), at=0), ())
    return index_elements(x, rows, dims=(d,), at=d, out=out)


def _source_slices(name, input, d, index, source):
    shape = list(input.shape)
    if input.ndim:
        shape[d] = index.shape[1]
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"{name}(): self and source expected to have the same dtype, but got (self) "
            f"{input.dtype} and (source) {source.dtype}."
        )
    if source.numel() != prod(shape) or source.ndim > max(input.ndim, 1):
        raise (IndexError if name == "index_copy" else RuntimeError)(
            f"{name}(): Number of indices ({index.shape[1]}) should be equal to source.size(dim), "
            "and the other sizes to self's; got source "
            f"{tuple(source.shape)}, self {tuple(input.shape)}, dim {d}."
        )
    return source if input.ndim else source.reshape(1)


def _written(op_function, name, input, d, x, rows, source, in_place):
    if in_place:
        getattr(x, name)(rows, source, dims=(d,), at=d)
        return input
    out = op_function(x, rows, source, dims=(d,), at=d)
    return out if input.ndim else view_shape(out, ())


def _index_add(input, dim, index, source, alpha, in_place):
    d, x, rows = _slice_index("index_add", input, dim, index)
    source = _source_slices("index_add", input, d, rows, source)
    if alpha != 1:
        source = source * alpha
    return _written(index_accumulate, "_index_put_add_", input, d, x, rows, source, in_place)


@function(method=True)
def index_add(input, dim, index, source, *, alpha=1):
    """Add ``alpha * source`` to the slices of ``dim`` that the index names, in a copy."""
    return _index_add(input, dim, index, source, alpha, False)


@function(method=True, public=False)
def index_add_(input, dim, index, source, *, alpha=1):
    """Add ``alpha * source`` to the slices of ``dim`` that the index names."""
    return _index_add(input, dim, index, source, alpha, True)


def _index_copy(input, dim, index, source, in_place):
    d, x, rows = _slice_index("index_copy", input, dim, index)
    source = _source_slices("index_copy", input, d, rows, source)
    return _written(index_assign, "_index_put_", input, d, x, rows, source, in_place)


@function(method=True)
def index_copy(input, dim, index, source):
    """Put ``source`` into the slices of ``dim`` that the index names, in a copy."""
    return _index_copy(input, dim, index, source, False)


@function(method=True, public=False)
def index_copy_(input, dim, index, source):
    """Put ``source`` into the slices of ``dim`` that the index names."""
    return _index_copy(input, dim, index, source, True)


def _index_fill(input, dim, index, value, in_place):
    d, x, rows = _slice_index("index_fill", input, dim, index)
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(
                "index_fill_ only supports a 0-dimensional value tensor, but got tensor with "
                f"{value.ndim} dimension(s)."
            )
        value = value.to(input.dtype)
    return _written(index_assign, "_index_put_", input, d, x, rows, value, in_place)


@function(method=True)
def index_fill(input, dim, index, value):
    """Put one value into the slices of ``dim`` that the index names, in a copy."""
    return _index_fill(input, dim, index, value, False)


@function(method=True, public=False)
def index_fill_(input, dim, index, value):
    """Put one value into the slices of ``dim`` that the index names."""
    return _index_fill(input, dim, index, value, True)


# Of the flat tensor


@function(method=True)
def take(input, index):
    """The elements of the flat tensor that the index names, in the shape of the index."""
    if index.dtype is not int64:
        raise RuntimeError(f"take(): Expected a long tensor for index, but got {index.dtype}.")
    flat = input.reshape(-1) if input.numel() else input.reshape(0)
    rows = index.contiguous()
    return index_elements(flat, view_shape(rows, (1, *index.shape)), dims=(0,), at=0)


@function(method=True)
def take_along_dim(input, indices, dim=None, *, out=None):
    """``gather`` whose index and input broadcast; no dim: of the flat tensors."""
    if indices.dtype is not int64:
        raise RuntimeError(
            "torch.take_along_dim(): dtype of indices should be Long but got "
            f"{indices.dtype}. Convert it with .long()."
        )
    if dim is None:
        return gather(input.reshape(-1), 0, indices.reshape(-1), out=out)
    if input.ndim != indices.ndim:
        raise RuntimeError(
            "torch.take_along_dim(): input and indices should have the same number of "
            f"dimensions, but got {input.ndim} dimensions for input, and {indices.ndim} "
            "dimensions for indices"
        )
    d = normal_dim("take_along_dim", dim, input.ndim)

    def without(shape, n):
        return (*shape[:d], n, *shape[d + 1 :])

    common = broadcast_shapes(
        "take_along_dim", without(input.shape, 1), without(indices.shape, 1)
    )
    index = indices.expand(without(common, indices.shape[d]))
    return gather(input.expand(without(common, input.shape[d])), d, index, out=out)


@function(method=True)
def masked_select(input, mask, *, out=None):
    """The elements where the mask is True, as a vector; the two broadcast."""
    if mask.dtype.category:
        raise RuntimeError(
            f"masked_select: expected BoolTensor for mask; got {mask.dtype}. Compare it."
        )
    shape = broadcast_shapes("masked_select", input.shape, mask.shape)
    found = input.expand(shape)[mask.expand(shape)] if shape else input.reshape(1)[mask.reshape(1)]
    return found if out is None else out.copy_(found)


def _masked_scatter(input, mask, source, in_place):
    if mask.dtype.category:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )
    if source.dtype is not input.dtype:
        raise RuntimeError(
            "masked_scatter: expected self and source to have same dtypes but got "
            f"{input.dtype} and {source.dtype}"
        )
    shape = broadcast_shapes("masked_scatter", input.shape, mask.shape)
    places = mask_places(mask.expand(shape))
    count = places.shape[1]
    if count > source.numel():
        raise RuntimeError(
            "masked_scatter: expected self and source to have same number of elements: the mask "
            f"is True {count} times, but source has {source.numel()} elements."
        )
    values = source.reshape(-1)[:count]
    dims = tuple(range(len(shape)))
    if not shape:
        return input.index_put((mask,), values) if not in_place else (
            input.masked_fill_(mask, values[0]) if count else input
        )
    if in_place:
        return input._index_put_(places, values, dims=dims, at=0)
    return index_assign(input.expand(shape), places, values, dims=dims, at=0)


@function(method=True)
def masked_scatter(input, mask, source):
    """Put the elements of ``source``, in order, where the mask is True, in a copy."""
    return _masked_scatter(input, mask, source, False)


@function(method=True, public=False)
def masked_scatter_(input, mask, source):
    """Put the elements of ``source``, in order, where the mask is True."""
    return _masked_scatter(input, mask, source, True)


# Indices from values


@op(
    name="_argwhere", method=False, public=False, adopt=True,
    samples=lambda make: iter([((every_third(*make(3, 4).shape),), {}), ((every_third(),), {})]),
)  # fmt: skip
def places_of_nonzero(xp, input):
    """The coordinates of the elements that are not zero, one row each."""
    if not input.ndim:
        return xp.zeros((int(bool(input != 0)), 0), dtype=xp.int64)
    return xp.argwhere(input)


@function(method=True)
def nonzero(input, *, as_tuple=False):
    """The coordinates of the elements that are not zero: (count, ndim), or a vector for each dim."""
    if not as_tuple:
        return places_of_nonzero(input)
    if not input.ndim:
        input = input.unsqueeze(0)
    return places_of_nonzero(input).unbind(1)


@function(method=True)
def argwhere(input):
    """The coordinates of the elements that are not zero: (count, ndim)."""
    return places_of_nonzero(input)


@function()
def one_hot(tensor, num_classes=-1):  # PyTorch's name for the indices
    """A one at the place that each class index names, zeros elsewhere, in a new last dim.

    Args:
        tensor: Class indices (*), int64.
        num_classes: -1 for one more than the largest index.

    Returns:
        Tensor (*, num_classes), int64.
    """
    if tensor.dtype is not int64:
        raise RuntimeError(
            "one_hot is only applicable to index tensor of type LongTensor; got "
            f"{tensor.dtype}. Convert it with .long()."
        )
    if num_classes == 0 or (num_classes < 0 and not tensor.numel()):
        raise RuntimeError(
            "Can not infer total number of classes from empty tensor. Pass num_classes."
            if num_classes
            else "Class values must be smaller than num_classes; got num_classes=0."
        )
    if not tensor.is_meta and tensor.numel():
        if int(tensor.min()) < 0:
            raise RuntimeError("Class values must be non-negative.")
        top = int(tensor.max())
        if num_classes < 0:
            num_classes = top + 1
        elif top >= num_classes:
            raise RuntimeError(
                f"Class values must be smaller than num_classes; got {top} and {num_classes}."
            )
    from .creation import zeros

    out = zeros((*tensor.shape, num_classes), dtype=int64, device=tensor.device)
    return out.scatter_(-1, tensor.unsqueeze(-1), 1) if out.numel() else out


def _bincount_samples(make):
    x = tensor(np.array([0, 3, 1, 3, 2, 0]))
    yield (x, None), {"minlength": 6}
    yield (x, tensor(np.linspace(0.5, 3, 6))), {"minlength": 0}


@op(name="_bincount", method=False, public=False, adopt=True, samples=_bincount_samples)
def counts_of(xp, input, weights, *, minlength):
    """How often each number occurs."""
    if not input.size:
        return xp.zeros(minlength, dtype=xp.int64 if weights is None else xp.float64)
    return xp.bincount(input, weights, minlength)


@function(method=True)
def bincount(input, weights=None, minlength=0):
    """How often each non-negative integer occurs, or the sum of its weights."""
    if input.ndim != 1 or input.dtype.category > INT:
        raise RuntimeError(
            "bincount only supports 1-d non-negative integral inputs; got "
            f"{input.ndim}-d {input.dtype}."
        )
    if minlength < 0:
        raise RuntimeError(f"minlength should be >= 0; got {minlength}.")
    if input.numel() and int(input.min()) < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None:
        if weights.shape != input.shape:
            raise RuntimeError("weights should be 1-d and have the same length as input")
        weights = weights.detach()
        out = counts_of(input, weights.double(), minlength=minlength)
        return out.to(weights.dtype) if weights.dtype.is_floating_point else out
    return counts_of(input, None, minlength=minlength)


def _search_samples(make):
    rising = tensor([-1.0, 0.0, 0.5, 2.0], dtype=make(1).dtype)
    yield (rising, make(2, 3)), {"right": False}
    yield (rising.expand(2, 4), make(2, 3)), {"right": True}


def _search_infer(sorted_sequence, input, *, right):
    if sorted_sequence.ndim != 1 and (
        sorted_sequence.ndim != input.ndim
        or tuple(sorted_sequence.shape[:-1]) != tuple(input.shape[:-1])
    ):
        raise RuntimeError(
            "searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions "
            "of boundaries tensor and input value tensor must match, but we got boundaries tensor "
            f"{list(sorted_sequence.shape)} and input value tensor {list(input.shape)}"
        )
    return Spec(input.shape, int64)


@op(
    name="_searchsorted", method=False, public=False, adopt=True, promote="arith",
    infer=_search_infer, samples=_search_samples,
)  # fmt: skip
def search(xp, sorted_sequence, input, *, right):
    """Where each value would be inserted into a sorted sequence, or row."""
    side = "right" if right else "left"
    if sorted_sequence.ndim == 1:
        return xp.searchsorted(sorted_sequence, input.reshape(-1), side).reshape(input.shape)
    rows = sorted_sequence.reshape(-1, sorted_sequence.shape[-1])
    values = input.reshape(-1, input.shape[-1])
    found = [xp.searchsorted(r, v, side) for r, v in zip(rows, values, strict=True)]
    return xp.stack(found).reshape(input.shape) if found else xp.zeros(input.shape, xp.int64)


@function()
def searchsorted(
    sorted_sequence, input, *, out_int32=False, right=False, side=None, sorter=None, out=None
):
    """Where each value would be inserted into a sorted sequence.

    Args:
        sorted_sequence: Ascending along its last dim.
        input: Values; a number, or a tensor with the same leading dims.
        out_int32: Return int32 instead of int64.
        right: After equal elements instead of before them.
        side: "left" or "right", another way to say so.
        sorter: Indices that sort ``sorted_sequence``.
        out: Where to leave the result.
    """
    if side not in (None, "left", "right") or (side == "left" and right):
        raise RuntimeError(
            "searchsorted(): side can only be 'left' or 'right' and must not contradict right; "
            f"got side={side!r}, right={right}."
        )
    if sorter is not None:
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    given = input
    if not isinstance(given, Tensor):
        given = tensor(given, device=sorted_sequence.device)
    found = search(sorted_sequence.detach(), given.detach(), right=right or side == "right")
    found = found.to(int32) if out_int32 else found
    return found if out is None else out.copy_(found)


@function()
def bucketize(input, boundaries, *, out_int32=False, right=False, out=None):
    """The number of the bucket between ascending boundaries that each value falls into."""
    if boundaries.ndim != 1:
        raise RuntimeError(
            "bucketize(): boundaries tensor must be 1 dimension, but got dim("
            f"{boundaries.ndim})"
        )
    return searchsorted(boundaries, input, out_int32=out_int32, right=right, out=out)
