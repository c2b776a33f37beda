"""Primitives of advanced indexing: read, assign and accumulate at index tensors.

Everywhere ``index`` is (k, *B): row j holds the indices of dim ``dims[j]``, within bounds or an
IndexError. The gradient of a copy adds up where an index occurs twice, and is the copy of a
gradient again.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...kernels.common.scatter_add import scatter_add
from ..creation.from_data import tensor
from ..registry import op
from ..signatures import broadcast_shapes
from .cpu_routes import enough, enough_to_add, read_places, write_places
from .where import masks

_TILE_BYTES = 1 << 15  # of a temporary inside a kernel
_MASK_TILE = 1 << 13  # elements of a mask at a time


def check_bounds(xp, index, shape, dims, error=IndexError):
    """Raise an error for indices out of range; not on GPUs, where they wrap around.

    Raises:
        IndexError: An index is out of range (or ``error``).
    """
    if xp is not np or not index.size:
        return
    for row, dim in zip(index, dims, strict=True):
        size = shape[dim]
        if 0 in row.strides:  # expanded: each element once
            row = row[tuple([slice(0, 1) if s == 0 else slice(None) for s in row.strides])]
        if np.maximum.reduce(row.view(np.uint64), axis=None) < size:
            continue  # one pass will mostly do: below 0 would be very large here
        low, high = int(row.min()), int(row.max())
        if low < -size or high >= size:
            raise error(
                f"index {high if high >= size else low} is out of bounds for dimension {dim} "
                f"with size {size}. Indices go up to {size - 1}."
            )


def _lead(array, dims):
    """Move some dims of an array to the front."""
    return array.transpose((*dims, *[k for k in range(array.ndim) if k not in dims]))


def result_shape(shape, index_shape, dims, at):
    """Return the shape of an indexing result: the index's at ``at``, among the other dims."""
    rest = [n for k, n in enumerate(shape) if k not in dims]
    return (*rest[:at], *index_shape[1:], *rest[at:])


def _values_first(xp, values, target, index, at):
    """Broadcast values to the indexing result, the dims of the indices in front."""
    if not hasattr(values, "shape") or not values.ndim:
        return values
    b = index.ndim - 1
    rest = target.shape[index.shape[0] :]
    values = xp.broadcast_to(values, (*rest[:at], *index.shape[1:], *rest[at:]))
    return values.transpose((*range(at, at + b), *range(at), *range(at + b, values.ndim)))


def take(xp, array, index, axis, out):
    """``xp.take`` into ``out``; negative indices count from the end.

    Raises:
        IndexError: There are indices and nothing to take: NumPy would wrap them around for ever.
    """
    if index.size and array.shape[axis] == 0:
        raise IndexError(
            f"index is out of bounds for dimension with size 0: {index.size} indices into shape "
            f"{array.shape}. Pass no indices, or a tensor that has elements there."
        )
    if xp is np:
        np.take(array, index, axis, out=out, mode="wrap")  # mode "raise" would copy `out`
    else:
        xp.take(array, index, axis, out=out)


def _index_infer(input, index, *, dims, at):
    return input.like(result_shape(input.shape, index.shape, dims, at))


def positions(rows, *shape):
    """Indices for samples: row k counts through ``range(rows[k])`` by 2, at least twice."""
    count = prod(shape)
    found = [
        [(k + 2 * i) % n - (n if i % 3 == 2 else 0) for i in range(count)]
        for k, n in enumerate(rows)
    ]
    return tensor(np.array(found, np.int64).reshape(len(rows), *shape))


def _index_samples(make):
    x = make(3, 4)
    yield (x, positions(x.shape[:1], 5)), {"dims": (0,), "at": 0}
    y = make(2, 3, 4)
    yield (y, positions(y.shape[1:], 2, 2)), {"dims": (1, 2), "at": 1}
    yield (y, positions((y.shape[0], y.shape[2]), 3)), {"dims": (0, 2), "at": 0}
    yield (y, positions((y.shape[2],), 0)), {"dims": (2,), "at": 2}


@op(infer=_index_infer, half="exact", samples=_index_samples)
def _index(xp, out, input, index, *, dims, at):
    """Read the elements of ``input`` at ``index``."""
    check_bounds(xp, index, input.shape, dims)
    if not out.size:
        return
    n = prod(index.shape[1:])
    flat = out.reshape((*out.shape[:at], n, *out.shape[at + index.ndim - 1 :]))
    index = index.reshape((len(dims), n))
    if dims == (at,) and input.flags.c_contiguous:
        take(xp, input, index[0], at, flat)
        return
    source = _lead(input, dims)
    target = _lead(flat, (at,))
    row_bytes = prod(target.shape[1:]) * out.dtype.itemsize
    if xp is not np:
        target[...] = source[tuple(index)]
    elif row_bytes > 4096:
        for k in range(n):
            target[k] = source[tuple(index[:, k])]
    else:
        step = _TILE_BYTES // row_bytes
        for k in range(0, n, step):
            target[k : k + step] = source[tuple(index[:, k : k + step])]


@_index.kernel(
    "cpu",
    when=lambda input, index, *, dims, at: enough(
        prod(result_shape(input.shape, index.shape, dims, at)), input.dtype
    ),
)
def _(xp, out, input, index, *, dims, at):
    check_bounds(xp, index, input.shape, dims)
    if not read_places(out, input, index, dims, at):
        _index.op.plain(xp, out, input, index, dims=dims, at=at)


@_index.vjp("input")
def _(g, index, input_spec, dims, at):
    return _index_sum(g, index, shape=tuple(input_spec.shape), dims=dims, at=at)


def accumulate(xp, target, index, values):
    """Add ``values`` (*B, ...) to ``target`` at ``index`` (k, *B), as often as each occurs."""
    where = tuple(index)
    row = prod(target.shape[len(where) :])
    if xp is np and row >= 64 and hasattr(values, "shape") and values.ndim:
        # np.add.at takes 9 ns an element where it is not one-dimensional; np.add 0.3.
        places = index.reshape((len(where), -1)) if index.ndim != 2 else index
        for k, b in enumerate(np.ndindex(index.shape[1:])):
            place = target[tuple(places[:, k])]
            np.add(place, values[b], out=place)
    else:
        scatter_add(xp, target, where, values)


def _index_sum_samples(make):
    x = make(5, 4)
    yield (x, positions((3,), x.shape[0])), {"shape": (3, x.shape[1]), "dims": (0,), "at": 0}
    y = make(2, 3)
    m, n = y.shape
    yield (y, positions((3, 2), m)), {"shape": (3, n, 2), "dims": (0, 2), "at": 0}
    yield (make(2, 5), positions((3,), 5)), {"shape": (2, 3), "dims": (1,), "at": 1}
    yield (make(0, 5), positions((3,), 5)), {"shape": (0, 3), "dims": (1,), "at": 1}


@op(
    samples=_index_sum_samples,
    infer=lambda input, index, *, shape, dims, at: input.like(shape),
)
def _index_sum(xp, out, input, index, *, shape, dims, at):
    """Add ``input`` into zeros of ``shape`` at ``index``: the adjoint of indexing."""
    check_bounds(xp, index, shape, dims)
    out.fill(0)
    target = _lead(out, dims)
    accumulate(xp, target, index, _values_first(xp, input, target, index, at))


@_index_sum.kernel("cpu", when=lambda input, index, **_: enough_to_add(input.numel, input.dtype))
def _(xp, out, input, index, *, shape, dims, at):
    check_bounds(xp, index, shape, dims)
    out.fill(0)
    if not write_places("add", out, input, index, input.shape, dims, at):
        target = _lead(out, dims)
        accumulate(xp, target, index, _values_first(xp, input, target, index, at))


@_index_sum.vjp("input")
def _(g, index, dims, at):
    return _index(g, index, dims=dims, at=at)


def _put_infer(input, index, values, *, dims, at):
    shape = result_shape(input.shape, index.shape, dims, at)
    try:
        fits_in = broadcast_shapes("index_put", shape, values.shape) == tuple(shape)
    except RuntimeError:
        fits_in = False
    if not fits_in:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result of shape {list(shape)}"
        )
    return input


def _put_samples(make):
    x = make(5, 4)
    index = tensor(np.array([[3, 0, -1]], np.int64))  # no index twice: no one's value wins
    yield (x, index, make(1, 4)), {"dims": (0,), "at": 0}
    yield (x, index, 2.0), {"dims": (1,), "at": 1}
    yield (make(0, 4), index, make(0, 3)), {"dims": (1,), "at": 1}


@op(
    inplace="_index_put_",
    infer=_put_infer,
    half="exact",
    samples=_put_samples,
    autocast="promote",
)
def _index_put(xp, out, input, index, values, *, dims, at):
    """Write ``values`` at ``index`` in a copy of ``input``; the last duplicate wins."""
    check_bounds(xp, index, input.shape, dims)
    if out is not input:
        xp.copyto(out, input)
    target = _lead(out, dims)
    target[tuple(index)] = _values_first(xp, values, target, index, at)


def _many(worth):
    def when(input, index, values, *, dims, at):
        return worth(prod(result_shape(input.shape, index.shape, dims, at)), input.dtype)

    return when


@_index_put.kernel("cpu", when=_many(enough))
def _(xp, out, input, index, values, *, dims, at):
    check_bounds(xp, index, input.shape, dims)
    if out is not input:
        xp.copyto(out, input)
    shape = result_shape(out.shape, index.shape, dims, at)
    if not write_places("put", out, values, index, shape, dims, at):
        target = _lead(out, dims)
        target[tuple(index)] = _values_first(xp, values, target, index, at)


@_index_put.vjp("input")
def _(g, index, dims, at):
    return _index_put(g, index, 0, dims=dims, at=at)


@_index_put.vjp("values")
def _(g, index, dims, at):
    return _index(g, index, dims=dims, at=at)


def _put_add_samples(make):
    x = make(3, 4)
    yield (x, positions(x.shape[:1], 5), make(1, 4)), {"dims": (0,), "at": 0}
    yield (x, positions(x.shape, 6), make()), {"dims": (0, 1), "at": 0}
    y = make(2, 5)
    yield (y, positions(y.shape[1:], 3), make(1, 3)), {"dims": (1,), "at": 1}
    yield (make(0, 4), positions((4,), 2), make()), {"dims": (1,), "at": 1}


@op(inplace="_index_put_add_", infer=_put_infer, samples=_put_add_samples)
def _index_put_add(xp, out, input, index, values, *, dims, at):
    """Add ``values`` at ``index`` in a copy of ``input``, accumulating duplicates."""
    check_bounds(xp, index, input.shape, dims)
    if out is not input:
        xp.copyto(out, input)
    target = _lead(out, dims)
    accumulate(xp, target, index, _values_first(xp, values, target, index, at))


@_index_put_add.kernel("cpu", when=_many(enough_to_add))
def _(xp, out, input, index, values, *, dims, at):
    check_bounds(xp, index, input.shape, dims)
    if out is not input:
        xp.copyto(out, input)
    shape = result_shape(out.shape, index.shape, dims, at)
    if not write_places("add", out, values, index, shape, dims, at):
        target = _lead(out, dims)
        accumulate(xp, target, index, _values_first(xp, values, target, index, at))


@_index_put_add.vjp("input")
def _(g):
    return g


@_index_put_add.vjp("values")
def _(g, index, dims, at):
    return _index(g, index, dims=dims, at=at)


def set_places(xp, places, mask):
    """Write the coordinates of nonzero elements of a contiguous array: (ndim, count)."""
    flat, done = mask.reshape(-1), 0
    size = _MASK_TILE if xp is np else max(1, flat.shape[0])
    for start in range(0, flat.shape[0], size):
        found = xp.flatnonzero(flat[start : start + size])
        if start:
            found += start
        rows = places[:, done : done + found.shape[0]]
        done += found.shape[0]
        for row, n in zip(rows[:0:-1], mask.shape[:0:-1], strict=True):
            above = found // n  # a remainder would take five times as long
            xp.multiply(above, n, out=row)
            xp.subtract(found, row, out=row)
            found = above
        rows[0] = found


@op(adopt=True, half="exact", samples=masks)
def _mask_places(xp, mask):
    """Return the coordinates of the True elements of a mask: (ndim, count)."""
    if not mask.ndim:
        return xp.zeros((0, int(mask)), dtype=xp.int64)
    if xp is not np:
        return xp.stack(xp.nonzero(mask))
    if mask.ndim == 1:
        return np.flatnonzero(mask)[None]
    places = np.empty((mask.ndim, np.count_nonzero(mask)), np.int64)
    set_places(xp, places, mask)
    return places
