"""Gather along one dim, and its adjoint, scatter-add.

``gather`` names an element by its own position with one coordinate replaced. On the CPU a compiled
kernel reads many elements (``cpu_routes.py``); few go through the index in tiles that stay in the
cache, so no temporary is large. Writing to such places is in ``scatter.py``.
"""

from __future__ import annotations

from functools import wraps
from math import prod

import numpy as np

from ...dtypes import int32, int64
from ...kernels.common.scatter_add import scatter_add as add_into
from ...tensor import Tensor
from ..creation.from_data import tensor
from ..inplace import into, need_separate
from ..registry import function, op
from ..views.reshape import normal_dim
from .cpu_routes import enough, enough_to_add, read_along, write_along
from .index_put import check_bounds, positions

_TILE = 2048  # index elements handled at a time
_FEW = 256  # up to so many naming elements by all dims is faster than counting flat places


def index_tiles(xp, shape):
    """Yield slices that cut an index into tiles of bounded size, in C order."""
    if 0 in shape:
        return
    if xp is not np or prod(shape) <= _TILE:
        yield tuple([slice(0, n) for n in shape])
        return
    axis = 0
    inner = prod(shape[1:])
    while inner > _TILE:
        axis += 1
        inner //= shape[axis]
    step = max(1, _TILE // inner)
    tail = tuple([slice(0, n) for n in shape[axis + 1 :]])
    for outer in np.ndindex(shape[:axis]):
        head = tuple([slice(k, k + 1) for k in outer])
        for k in range(0, shape[axis], step):
            yield (*head, slice(k, min(k + step, shape[axis])), *tail)


def tile_places(xp, index, tile, dim):
    """Return the full index of a tile: ranges in all dims, the given index in one."""
    found = []
    for d, along in enumerate(tile):
        if d == dim:
            found.append(index[tile])
        else:
            shape = [1] * index.ndim
            shape[d] = along.stop - along.start
            found.append(xp.arange(along.start, along.stop).reshape(shape))
    return tuple(found)


def check_index(name, dim, index, shape, others):
    """Raise an error for an index whose dtype or shape does not fit.

    Args:
        name: Of the op.
        dim: Along which.
        index: Its spec.
        shape: Of the tensor that is indexed.
        others: More shapes that the index must fit inside, in all dims.
    """
    if index.dtype is not int64:
        raise RuntimeError(
            f"{name}(): Expected dtype int32/int64 for index; got {index.dtype.name}. "
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
                f"dimension {dim}" + "".join(f" and no larger than src {list(s)}" for s in others)
            )


def _gather_infer(input, index, *, dim):
    check_index("gather", dim, index, input.shape, ())
    return input.like(index.shape)


def _gather_samples(make):
    x = make(3, 4)
    yield (x, sample_positions(x.shape[1], x.shape[0], 2)), {"dim": 1}
    yield (x, sample_positions(x.shape[0], 5, x.shape[1])), {"dim": 0}
    yield (make(), sample_positions(1)), {"dim": 0}
    yield (make(3, 2), sample_positions(3, 0, 2)), {"dim": 0}


def sample_positions(size, *shape):
    """An index of this shape into a dim of this size, for samples."""
    return positions((size,), *shape)[0]


@op(infer=_gather_infer, half="exact", samples=_gather_samples)
def _gather(xp, out, input, index, *, dim):
    """``out[i, j] = input[index[i, j], j]`` for dim 0, and so on."""
    check_bounds(xp, index[None], input.shape or (1,), (dim,), RuntimeError)
    if not input.ndim or not index.ndim:
        out[...] = input.reshape(())
        return
    for tile in index_tiles(xp, index.shape):
        out[tile] = input[tile_places(xp, index, tile, dim)]


@_gather.kernel(
    "cpu", when=lambda input, index, *, dim: input.ndim > 0 and enough(index.numel, input.dtype)
)
def _(xp, out, input, index, *, dim):
    check_bounds(xp, index[None], input.shape, (dim,), RuntimeError)
    if not read_along(out, input, index, dim):
        _gather.op.plain(xp, out, input, index, dim=dim)


@_gather.vjp("input")
def _(g, index, input_spec, dim):
    return _scatter_sum(g, index, shape=tuple(input_spec.shape), dim=dim)


def _scatter_unique_samples(make):
    x = make(2, 3)
    index = tensor(np.array([[1, 0, 4], [2, 4, 0]], np.int64))  # no place twice
    yield (x, index), {"shape": (2, 5), "dim": 1}
    yield (make(3, 2), index.t().clone()), {"shape": (5, 2), "dim": 0}
    yield (make(0, 3), index[:0]), {"shape": (0, 5), "dim": 1}


def _scatter_sum_samples(make):
    x = make(5, 3)
    yield (x, sample_positions(4, *x.shape)), {"shape": (4, x.shape[1]), "dim": 0}
    yield (make(2, 4), sample_positions(3, 2, 4)), {"shape": (2, 3), "dim": 1}
    yield (make(0, 4), sample_positions(3, 0, 4)), {"shape": (0, 3), "dim": 1}


@op(
    samples=_scatter_sum_samples,
    infer=lambda input, index, *, shape, dim: input.like(shape),
)
def _scatter_sum(xp, out, input, index, *, shape, dim):
    """Scatter-add ``input`` into zeros along ``dim``: the adjoint of ``gather``."""
    out.fill(0)
    add_at(xp, out, index, input, dim)


@_scatter_sum.kernel(
    "cpu",
    when=lambda input, index, *, shape, dim: (
        shape != () and enough_to_add(index.numel, input.dtype)
    ),
)
def _(xp, out, input, index, *, shape, dim):
    out.fill(0)
    if not write_along("add", out, input, index, dim):
        add_at(xp, out, index, input, dim)


@_scatter_sum.vjp("input")
def _(g, index, dim):
    return _gather(g, index, dim=dim)


@op(
    half="exact",
    samples=_scatter_unique_samples,
    infer=lambda input, index, *, shape, dim: input.like(shape),
)
def _scatter_unique(xp, out, input, index, *, shape, dim):
    """Scatter ``input`` into zeros along ``dim``, at indices that occur once each."""
    out.fill(0)
    for tile in index_tiles(xp, index.shape):
        out[tile_places(xp, index, tile, dim)] = input[tile]


@_scatter_unique.kernel(
    "cpu", when=lambda input, index, *, shape, dim: enough(index.numel, input.dtype)
)
def _(xp, out, input, index, *, shape, dim):
    out.fill(0)
    if not write_along("put", out, input, index, dim):
        for tile in index_tiles(xp, index.shape):
            out[tile_places(xp, index, tile, dim)] = input[tile]


@_scatter_unique.vjp("input")
def _(g, index, dim):
    return _gather(g, index, dim=dim)


def add_at(xp, out, index, values, dim):
    """Add values at an index, accumulating duplicates."""
    if not out.ndim or not index.ndim:
        if index.size:
            values = values.reshape(()) if hasattr(values, "shape") else values
            xp.add(out, values, out=out, casting="unsafe")
        return
    if xp is not np or not out.flags.c_contiguous or index.size <= _FEW:
        for tile in index_tiles(xp, index.shape):
            add_into(xp, out, tile_places(xp, index, tile, dim), values_of(values, tile))
        return
    # np.add.at is fast in one dimension only, so the places are counted in the flat memory.
    flat = out.reshape(-1)
    steps = [s // out.itemsize for s in out.strides]
    for tile in index_tiles(xp, index.shape):
        where = np.where(index[tile] < 0, index[tile] + out.shape[dim], index[tile])
        where *= steps[dim]
        for d, place in enumerate(tile_places(xp, index, tile, dim)):
            if d != dim:
                where += place * steps[d]
        more = values_of(values, tile)
        np.add.at(flat, where.reshape(-1), more.reshape(-1) if hasattr(more, "shape") else more)


def values_of(values, tile):
    """Return the values of one tile; a number serves all."""
    return values[tile] if hasattr(values, "shape") and values.ndim else values


def lifted(f):
    """Let a function of (input, dim, index, src) take tensors without dims as those of one.

    Where all of them have none, it gets them as they are.
    """
    in_place, as_index = f.__name__.endswith("_"), f.__name__ == "gather"

    @wraps(f)
    def run(input, dim, index, *rest, **more):
        if input.ndim and getattr(index, "ndim", 1) and not _is_one_value(index, rest):
            return f(input, dim, index, *rest, **more)
        others = [x for x in (index, *rest, *more.values()) if isinstance(x, Tensor)]
        if not any(x.ndim for x in (input, *others)):
            return f(input, dim, index, *rest, **more)
        out = more.pop("out", None)
        rest, more = map(_with_dim, rest), {k: _with_dim(x) for k, x in more.items()}
        found = f(_with_dim(input), dim, _with_dim(index), *rest, **more)
        if in_place:
            return input
        return into(out, found.reshape(index.shape if as_index else input.shape))

    return run


def _is_one_value(index, rest):
    # Of the values that are put: a tensor without dims, for an index of one element at most.
    value = rest[0] if rest else None
    return isinstance(value, Tensor) and not value.ndim and index.numel() <= 1


def _with_dim(x):
    return x.reshape(1) if isinstance(x, Tensor) and not x.ndim else x


@function(method=True)
@lifted
def gather(input, dim, index, *, sparse_grad=False, out=None):
    """Gather the elements along ``dim`` that the index names.

    Args:
        input: A tensor.
        dim: Along which.
        index: int64 or int32, as many dims as ``input``, no larger than it except in ``dim``.
        sparse_grad: Ignored: gradients are dense.
        out: Where to leave the result.

    Returns:
        Tensor in the shape of ``index``.
    """
    d = normal_dim("gather", dim, input.ndim)
    if out is not None:
        if out.dtype is not input.dtype:
            raise RuntimeError(
                f"gather(): Expected out tensor to have dtype {input.dtype}, but got {out.dtype} "
                "instead."
            )
        need_separate("gather", out, (input, index))
    return _gather(input, as_long(index), dim=d, out=out)


def as_long(index):
    """Convert an index to int64; int32 is widened, an empty one may have any dtype."""
    if isinstance(index, Tensor) and (index.dtype is int32 or not index.numel()):
        return index.to(int64)
    return index
