"""sort, argsort, topk, unique.

On the CPU a radix sort orders many elements, and a heap finds a few of the best
(``kernels/cpu/reduction/sort.py``, ``kernels/cpu/reduction/topk.py``). Else the array library
sorts, with its temporaries.

The gradient of a sorted value goes to where it came from, so only the indices are kept.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...dtypes import int32, int64
from ...kernels.common.layout import contiguous
from ...kernels.common.schedule import parallel_rows
from ...kernels.common.strided import INFINITY, bits
from ...kernels.runtime import threads
from ...kernels.runtime.threads import LIMIT
from ...spec import Spec
from ..indexing.cpu_routes import enough_to_add
from ..registry import function, op
from .minmax import _pair, into_each, one_dim, place
from .minmax_strided import key_dtype, sortable

SMALL = 256  # up to this many elements sorting them all is as fast as selecting
_SORTED_WORK = 16  # of an element that is sorted, in additions of one
HEAP = 256  # a heap finds the best of so many times as many elements, or the best 4


def sort_keys(xp, input):
    """Return what an array library sorts in place of ``input``: CuPy sorts no bfloat16.

    float32 has a number for each of bfloat16's, in the same order.
    """
    return input if xp is np or input.dtype.name != "bfloat16" else input.astype("float32")


def _order(xp, input, dim, descending):
    # Stable both ways: equal elements keep their order, and NaN counts as the largest.
    input = sort_keys(xp, input)
    if not descending:
        return xp.argsort(input, axis=dim, kind="stable")
    back = (*[slice(None)] * dim, slice(None, None, -1))
    order = xp.argsort(input[back], axis=dim, kind="stable")[back]
    return xp.subtract(input.shape[dim] - 1, order)


def _taken(xp, input, order, dim):
    # ``take_along_axis`` spends more time on checks than on a few elements.
    if dim != input.ndim - 1 or xp is not np or not order.size:
        return xp.take_along_axis(input, order, dim)
    lines, found = input.reshape(-1, input.shape[dim]), order.reshape(-1, order.shape[dim])
    return lines[np.arange(len(lines))[:, None], found].reshape(order.shape)


def _buffers(input, dim, wanted=True):
    # Keys and places of a row, twice, for each thread.
    if not (wanted and sortable(input, dim=dim)) or input.device.type == "cuda":
        return input.like((0,)), input.like((0,))
    shape = (min(LIMIT, prod(input.shape[:dim])), 2, input.shape[dim])
    return input.like(shape, key_dtype(input)), input.like(shape, int32)


def _run_sort(values, indices, keys, places, input, dim, descending):
    from ...kernels.cpu.reduction import sort as order

    x, found, where = (
        a.reshape(prod(a.shape[:dim]), a.shape[dim], prod(a.shape[dim + 1 :]))
        for a in (input, input[:0] if values is None else values, indices)
    )
    x, found, keys = bits(x), bits(found), bits(keys)
    infinity = INFINITY.get(input.dtype.name, 0)

    def run(chunk, start, stop):
        order.sort(found, where, x, keys[chunk], places[chunk], infinity, descending, start, stop)

    count = x.shape[0]
    chunks = max(1, threads.workers(_SORTED_WORK * input.size, count))
    threads.parallel_chunks(run, count, chunks)


def _sort_infer(input, *, dim, descending):
    return input, input.like(dtype=int64), *_buffers(input, dim)


_SORTED = (((3, 4), 1, False), ((2, 3, 4), 0, True), ((), 0, False), ((0, 3), 0, False))


def _sort_samples(make):
    for shape, dim, down in _SORTED:
        yield (make(*shape),), {"dim": dim, "descending": down}


@op(
    returns=("values", "indices"),
    scratch=("keys", "places"),
    infer=_sort_infer,
    half="exact",
    samples=_sort_samples,
    real=True,
)
def _sort(xp, values, indices, keys, places, input, *, dim, descending):
    """Sort along ``dim``, stably, and return the indices."""
    if not input.ndim:
        xp.copyto(values, input)
        indices.fill(0)
        return
    found = _order(xp, input, dim, descending)
    xp.copyto(indices, found)
    xp.copyto(values, _taken(xp, input, found, dim))


@_sort.kernel("cpu", when=sortable, layout=contiguous)
def _(xp, values, indices, keys, places, input, *, dim, descending):
    _run_sort(values, indices, keys, places, input, dim, descending)


@_sort.vjp("input")
def _(g_values, indices, input_spec, dim):
    return place(g_values, indices, input_spec, dim)


@op(
    scratch=("keys", "places"),
    half="exact",
    samples=_sort_samples,
    real=True,
    infer=lambda input, *, dim, descending: (input.like(dtype=int64), *_buffers(input, dim)),
)
def _argsort(xp, out, keys, places, input, *, dim, descending):
    """Return the indices that sort along ``dim``, stably."""
    xp.copyto(out, _order(xp, input, dim, descending) if input.ndim else 0)


@_argsort.kernel("cpu", when=sortable, layout=contiguous)
def _(xp, out, keys, places, input, *, dim, descending):
    _run_sort(None, out, keys, places, input, dim, descending)


Sort, Topk = _pair("sort"), _pair("topk")


@function(method=True)
def sort(input, dim=-1, descending=False, stable=False, *, out=None):
    """Sort along ``dim``; returns the named pair ``(values, indices)``.

    Sorting is always stable: ``stable`` is accepted for PyTorch's sake.

    Memory:
        Keeps the indices.
    """
    d = one_dim("sort", dim, input.ndim)
    return Sort(*into_each("sort", out, _sort(input, dim=d, descending=descending), input))


@function(method=True, out=True)
def argsort(input, dim=-1, descending=False, stable=False):
    """Return the indices that sort along ``dim``."""
    return _argsort(input, dim=one_dim("argsort", dim, input.ndim), descending=descending)


@function(method=True, out=True)
def msort(input):
    """Sort along the first dim."""
    return sort(input, 0)[0]


def _topk_infer(input, *, k, dim, largest):
    shape = tuple(k if d == dim else n for d, n in enumerate(input.shape))
    sorts = not _few(input, k=k, dim=dim, largest=largest)
    return Spec(shape, input.dtype), Spec(shape, int64), *_buffers(input, dim, sorts)


def _topk_samples(make):
    yield (make(3, 5),), {"k": 2, "dim": 1, "largest": True}
    yield (make(4, 2, 3),), {"k": 3, "dim": 0, "largest": False}
    yield (make(),), {"k": 1, "dim": 0, "largest": True}
    yield (make(3, 4),), {"k": 0, "dim": 1, "largest": True}
    yield (make(0, 3),), {"k": 2, "dim": 1, "largest": True}


@op(
    returns=("values", "indices"),
    scratch=("keys", "places"),
    infer=_topk_infer,
    half="exact",
    samples=_topk_samples,
    real=True,
)
def _topk(xp, values, indices, keys, places, input, *, k, dim, largest):
    """Return the ``k`` largest or smallest along ``dim``, in order, and their indices."""
    if not input.ndim:
        xp.copyto(values, input)
        indices.fill(0)
        return
    n = input.shape[dim]
    if n > SMALL and 0 < k < n // 4 and input.size:
        # Select first, then sort only the chosen. Which of equal elements are chosen is open.
        order = xp.argpartition(sort_keys(xp, input), n - k if largest else k - 1, axis=dim)
        chosen = xp.arange(n - k, n) if largest else xp.arange(k)
        candidates = xp.sort(xp.take(order, chosen, axis=dim), axis=dim)
        found = _taken(xp, input, candidates, dim)
        found = _taken(xp, candidates, _order(xp, found, dim, largest), dim)
    else:
        found = xp.take(_order(xp, input, dim, largest), xp.arange(k), axis=dim)
    xp.copyto(indices, found)
    xp.copyto(values, _taken(xp, input, found, dim))


def _few(input, *, k, dim, largest):
    if not input.ndim or not k or not enough_to_add(input.numel, input.dtype):
        return False
    n = input.shape[dim]
    return k <= 4 or k * HEAP <= n


@_topk.kernel("cpu", when=_few, layout=contiguous)
def _(xp, values, indices, keys, places, input, *, k, dim, largest):
    from ...kernels.cpu.reduction import topk as selection

    cubes = [
        a.reshape(prod(a.shape[:dim]), a.shape[dim], prod(a.shape[dim + 1 :]))
        for a in (values, indices, input)
    ]
    parallel_rows(selection.topk, 2 * input.size, cubes[0].shape[0], *cubes, largest)


@_topk.kernel("cpu", when=sortable, layout=contiguous)
def _(xp, values, indices, keys, places, input, *, k, dim, largest):
    if k:
        _run_sort(values, indices, keys, places, input, dim, largest)


@_topk.vjp("input")
def _(g_values, indices, input_spec, dim):
    return place(g_values, indices, input_spec, dim)


@function(method=True)
def topk(input, k, dim=-1, largest=True, sorted=True, *, out=None):
    """Return the ``k`` largest (or smallest) elements along ``dim``, in order, and their indices.

    Memory:
        Keeps the indices.
    """
    d = one_dim("topk", dim, input.ndim)
    n = input.shape[d] if input.ndim else 1
    if not 0 <= k <= n:
        raise RuntimeError(
            f"topk: selected index k out of range: k must be in [0, {n}] for dim {d} of shape "
            f"{tuple(input.shape)}; got {k}. Pass a smaller one."
        )
    return Topk(*into_each("topk", out, _topk(input, k=k, dim=d, largest=largest), input))


def _unique_samples(make):
    for where in (True, False):
        yield (make(3, 4),), {"dim": None, "where": where}
        yield (make(3, 4),), {"dim": 1, "where": where}
        yield (make(0, 2),), {"dim": None, "where": where}


@op(
    returns=("values", "inverse", "counts"),
    adopt=True,
    half="exact",
    samples=_unique_samples,
)
def _unique(xp, input, *, dim, where):
    """Return distinct elements, or slices along ``dim``, sorted, with indices and counts.

    These two are empty if it is not asked ``where`` they are.
    """
    keys = sort_keys(xp, input)
    if not where:
        values = xp.unique(keys, axis=dim, equal_nan=False)
        return (
            values.astype(input.dtype, copy=False),
            xp.empty((0,), "int64"),
            xp.empty((0,), "int64"),
        )
    values, inverse, counts = xp.unique(
        keys, return_inverse=True, return_counts=True, axis=dim, equal_nan=False
    )
    values = values.astype(input.dtype, copy=False)
    return values, inverse.reshape(input.shape if dim is None else input.shape[dim]), counts


@_unique.kernel(
    "cpu",
    when=lambda input, *, dim, where: (
        where and dim is None and enough_to_add(input.numel, input.dtype)
    ),
)
def _(xp, input, *, dim, where):
    flat = input.reshape(-1)
    n = flat.size
    values, order = np.empty_like(flat), np.empty(n, np.int64)
    keys = np.empty((1, 2, n), np.int32 if flat.itemsize == 4 else np.int64)
    _run_sort(values, order, keys, np.empty((1, 2, n), np.int32), flat, 0, False)
    first = np.empty(n, np.bool_)
    first[0] = True
    np.not_equal(values[1:], values[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    inverse = np.empty(n, np.int64)
    inverse[order] = np.cumsum(first) - 1
    return values[starts], inverse.reshape(input.shape), np.diff(starts, append=n)


@function(method=True)
def unique(input, sorted=True, return_inverse=False, return_counts=False, dim=None):
    """Return the distinct elements, or the distinct slices along ``dim``; always sorted.

    Args:
        input: Any shape.
        sorted: Accepted for PyTorch's sake.
        return_inverse: Also return which distinct element each element is.
        return_counts: Also return how often each occurs.
        dim: None compares elements; an int compares slices.

    Returns:
        The distinct values, or a tuple with what else was asked for. Not differentiable. Its
        shape depends on values, so it does not run on meta.
    """
    d = None if dim is None else one_dim("unique", dim, input.ndim)
    where = return_inverse or return_counts
    values, inverse, counts = _unique(input.detach(), dim=d, where=where)
    results = (values, *([inverse] if return_inverse else []), *([counts] if return_counts else []))
    return results[0] if len(results) == 1 else results


def _run_samples(make):
    yield (make(3, 4),), {"dim": None}
    yield (make(3, 4),), {"dim": 1}
    yield (make(0, 2),), {"dim": None}


@op(
    returns=("values", "inverse", "counts"),
    adopt=True,
    half="exact",
    samples=_run_samples,
)
def _unique_consecutive(xp, input, *, dim):
    """Return the first of each run of equal elements, or slices, with indices and counts."""
    lines = input.reshape(-1) if dim is None else xp.moveaxis(input, dim, 0)
    n = lines.shape[0]
    first = xp.ones((n,), "bool")
    if n > 1:
        changed = lines[1:] != lines[:-1]
        first[1:] = changed.reshape(n - 1, -1).any(axis=1)
    inverse = xp.cumsum(first, dtype="int64") - 1
    starts = xp.flatnonzero(first)
    counts = xp.diff(xp.concatenate((starts, xp.asarray([n], dtype=starts.dtype))))
    if dim is None:
        return lines[first], inverse.reshape(input.shape), counts
    return xp.moveaxis(lines[first], 0, dim), inverse, counts


@function(method=True)
def unique_consecutive(input, return_inverse=False, return_counts=False, dim=None):
    """Remove all but the first of consecutive equal elements, or slices along ``dim``.

    Args:
        input: Any shape.
        return_inverse: Also return which run each element, or slice, belongs to.
        return_counts: Also return how long each run is.
        dim: None compares the elements of the flattened tensor; an int compares slices.
    """
    d = None if dim is None else one_dim("unique_consecutive", dim, input.ndim)
    if d is not None and any(n == 0 for k, n in enumerate(input.shape) if k != d):
        raise RuntimeError(
            "unique_consecutive: There are 0 sized dimensions, and they aren't selected by dim="
            f"{dim}; got shape {tuple(input.shape)}."
        )
    if d is not None and not input.ndim:
        input, d = input.reshape(1), 0
    values, inverse, counts = _unique_consecutive(input.detach(), dim=d)
    results = (values, *([inverse] if return_inverse else []), *([counts] if return_counts else []))
    return results[0] if len(results) == 1 else results
