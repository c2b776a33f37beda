"""Gather and scatter along one dim, and scatter_reduce.

``gather`` and ``scatter`` name an element by its own position with one coordinate replaced. On
the CPU they go through the index in pieces that stay in the cache, so no temporary is large.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..devices.scatter import scatter_add as add_into
from ..dtypes import BOOL, INT, int32, int64
from ..spec import Spec
from ..tensor import Tensor
from .convolution import contiguous, worth_compiling
from .creation import tensor
from .factory import fitted
from .indexing import check_bounds, positions
from .inplace import need_separate
from .registry import function, op
from .shaping import normal_dim

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
    check_bounds(xp, index[None], input.shape or (1,), (dim,), RuntimeError)
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
    yield (make(2, 4), _positions(3, 2, 4)), {"shape": (2, 3), "dim": 1}
    yield (make(0, 4), _positions(3, 0, 4)), {"shape": (0, 3), "dim": 1}


@op(
    name="_scatter_sum", method=False, public=False, half="float32", samples=_scatter_sum_samples,
    infer=lambda input, index, *, shape, dim: input.like(shape),
)  # fmt: skip
def scatter_sum(xp, out, input, index, *, shape, dim):
    """Zeros with ``input`` added at the places that ``gather`` reads: its transpose."""
    out.fill(0)
    _add_at(xp, out, index, input, dim)


def _in_columns(input, index, *, shape, dim):
    # The index reaches over all of the other dims.
    return (
        index.ndim > 0
        and index.shape == input.shape
        and worth_compiling(input)
        and all(m == n for d, (m, n) in enumerate(zip(index.shape, shape, strict=True)) if d != dim)
    )


@scatter_sum.kernel("cpu", when=_in_columns, layout=contiguous)
def _(xp, out, input, index, *, shape, dim):
    from ..kernels.cpu import gathers

    cubes = [
        a.reshape(prod(shape[:dim]), a.shape[dim], prod(shape[dim + 1 :]))
        for a in (out, input, index)
    ]
    gathers.scatter_sum(*cubes)


@scatter_sum.vjp("input")
def _(g, index, dim):
    return gather_along(g, index, dim=dim)


def _add_at(xp, out, index, values, dim):
    if not out.ndim or not index.ndim:
        if index.size:
            values = values.reshape(()) if hasattr(values, "shape") else values
            xp.add(out, values, out=out, casting="unsafe")
        return
    if xp is not np or not out.flags.c_contiguous:
        for piece in _pieces(xp, index.shape):
            add_into(xp, out, _places(xp, index, piece, dim), _part(values, piece))
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
    return gather_along(input, _long(index), dim=d, out=out)


def _long(index):
    # The ops below take int64 only; a narrower index is widened first, an empty one in any dtype.
    if isinstance(index, Tensor) and (index.dtype is int32 or not index.numel()):
        return index.to(int64)
    return index


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
    yield (make(5, 2), index.t().clone(), make(3, 2)), {"dim": 0}
    yield (make(0, 5), index[:0], make(0, 3)), {"dim": 1}


@op(
    name="_scatter", method=False, public=False, inplace="_scatter_", infer=_scatter_infer,
    samples=_scatter_samples,
)  # fmt: skip
def scatter_along(xp, out, input, index, src, *, dim):
    """``input`` with ``src`` at the places that ``gather`` would read; the last one stays."""
    check_bounds(xp, index[None], input.shape or (1,), (dim,), RuntimeError)
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
    yield (make(3, 4), _positions(3, 0, 4), make(0, 4)), {"dim": 0}


@op(
    name="_scatter_add", method=False, public=False, inplace="_scatter_add_", half="float32",
    infer=_scatter_infer, samples=_scatter_add_samples,
    autocast="promote",
)  # fmt: skip
def scatter_add_along(xp, out, input, index, src, *, dim):
    """``input`` with ``src`` added at the places that ``gather`` would read."""
    check_bounds(xp, index[None], input.shape or (1,), (dim,), RuntimeError)
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
    index = _long(index)
    if not isinstance(src, Tensor):
        src = fitted(src, input.dtype)
    if reduce is None:
        return (
            input._scatter_(index, src, dim=d)
            if in_place
            else scatter_along(input, index, src, dim=d)
        )
    if reduce == "add":
        return (
            input._scatter_add_(index, src, dim=d)
            if in_place
            else scatter_add_along(input, index, src, dim=d)
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
    return scatter_add_along(input, _long(index), src, dim=d)


@function(method=True, public=False)
def scatter_add_(input, dim, index, src):
    """Add ``src`` at the positions that the index names."""
    d = normal_dim("scatter_add_", dim, input.ndim)
    return input._scatter_add_(_long(index), src, dim=d)


_REDUCERS = {"prod": "multiply", "amax": "maximum", "amin": "minimum"}


def _combine_infer(input, index, src, *, dim, reduce):
    return _scatter_infer(input, index, src, dim=dim)


def _combine_samples(make):
    for reduce in ("prod", "amax", "amin"):
        x, src = make(3, 4), make(4, 4)
        yield (x, _positions(3, 2, 4), src), {"dim": 0, "reduce": reduce}
        yield (make(2, 4), _positions(4, 2, 3), make(2, 3)), {"dim": 1, "reduce": reduce}
        yield (make(0, 4), _positions(4, 0, 3), make(0, 3)), {"dim": 1, "reduce": reduce}


@op(
    name="_scatter_combine", method=False, public=False, half="float32", infer=_combine_infer,
    samples=_combine_samples,
)  # fmt: skip
def scatter_combine(xp, out, input, index, src, *, dim, reduce):
    """``input`` multiplied with, or the extreme of it and, ``src`` at the places of ``index``."""
    check_bounds(xp, index[None], input.shape or (1,), (dim,), RuntimeError)
    xp.copyto(out, input)
    combine = getattr(xp, _REDUCERS[reduce])
    if not out.ndim:
        if index.size:
            combine(out, src.reshape(()), out=out)
        return
    if xp is np:
        for piece in _pieces(xp, index.shape):
            combine.at(out, _places(xp, index, piece, dim), src[piece])
        return
    # CuPy's ufuncs have few `at`. One index along `dim` never names an element twice.
    whole = [slice(0, n) for n in index.shape]
    for k in range(index.shape[dim]):
        piece = (*whole[:dim], slice(k, k + 1), *whole[dim + 1 :])
        place = _places(xp, index, piece, dim)
        out[place] = combine(out[place], src[piece])


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
    # Without the element itself: the product of the others. Factors that are not zero are
    # multiplied up and divided out again. Of zeros the sum stands for the product: if there is
    # one, it is that one, and without it nothing; if there are two, it leaves the other one. What
    # is then zero still depends on the zeros, which the second derivative wants to know.
    zero, zeros = input == 0, src == 0
    count = zero.to(g.dtype).scatter_add(dim, index, zeros.to(g.dtype))
    nonzero, nonzeros = input.masked_fill(zero, 1), src.masked_fill(zeros, 1)
    rest = scatter_combine(nonzero, index, nonzeros, dim=dim, reduce="prod")
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
    index = _long(index)
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(
            f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce!r}."
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
    counts = scatter_add_along(with_self(input).detach(), index, ones_like(src).detach(), dim=d)
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
