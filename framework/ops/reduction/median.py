"""median and kthvalue.

On the CPU the k-th of many elements is found digit by digit (``kernels/cpu/reduction/sort.py``).
Else the array library orders places, in its temporaries.
"""

from __future__ import annotations

from math import nan, prod

from ...dtypes import int32, int64
from ...kernels.common.layout import contiguous
from ...kernels.common.strided import INFINITY, bits
from ...kernels.runtime import threads
from ...kernels.runtime.threads import LIMIT
from ...spec import Spec
from ..registry import function, op
from .minmax import _pair, into_each, need_elements, one_dim, place, search_samples, share
from .minmax_strided import key_dtype, sortable
from .sort import sort_keys
from .sum import kept, reduced_shape


def _median_samples(make):
    for shape in ((3, 4), (2, 3, 2), (5,), ()):
        yield (make(*shape),), {}


def _median_infer(input):
    return Spec((), input.dtype), input.like((input.numel,))


@op(infer=_median_infer, scratch=("order",), samples=_median_samples, real=True)
def _median(xp, out, order, input):
    """Return the lower of the two middle elements; NaN if there is one."""
    size = input.size
    if not size:  # of integers the least number, as PyTorch has it
        out.fill(xp.iinfo(out.dtype).min if out.dtype.kind in "iu" else nan)
        return
    xp.copyto(order.reshape(input.shape), input)
    order.partition((size - 1) // 2 if order.dtype.kind in "iub" else [(size - 1) // 2, size - 1])
    xp.copyto(out, order[(size - 1) // 2])
    if order.dtype.kind == "f":
        last = order[size - 1 :].reshape(())
        xp.copyto(out, last, where=xp.isnan(last))  # NaN sorts last


@_median.vjp("input")
def _(g, input, out):
    return share(g, input == out, tuple(range(input.ndim)))


def _kth_infer(input, *, k, dim, keepdim, median):
    shape = reduced_shape(input.shape, (dim,), keepdim)
    room = (0,)
    if sortable(input, dim=dim) and input.device.type != "cuda":
        room = (min(LIMIT, prod(input.shape[:dim])), input.shape[dim])
    results = Spec(shape, input.dtype), Spec(shape, int64)
    return *results, input.like(room, key_dtype(input)), input.like(room, int32)


def _kth_samples(make):
    for (x,), attributes in search_samples(make):
        yield (x,), {"k": 1, "median": False, **attributes}
    yield (make(3, 5),), {"k": 3, "dim": 1, "keepdim": False, "median": True}


@op(
    returns=("values", "indices"),
    scratch=("keys", "places"),
    infer=_kth_infer,
    half="exact",
    samples=_kth_samples,
    real=True,
)
def _kthvalue(xp, values, indices, keys, places, input, *, k, dim, keepdim, median):
    """Return the k-th smallest element along ``dim``; for a median, NaN if there is one."""
    if not input.ndim:
        xp.copyto(values, input)
        indices.fill(0)
        return
    if not input.size:
        return
    n = input.shape[dim]
    order = xp.argpartition(sort_keys(xp, input), [k - 1, n - 1] if median else k - 1, axis=dim)
    found = xp.take(order, xp.arange(k - 1, k), axis=dim)
    if median and input.dtype.kind not in "iub":
        last = xp.take(order, xp.arange(n - 1, n), axis=dim)
        value = xp.take_along_axis(input, last, dim)
        found = xp.where(value != value, last, found)
    xp.copyto(values.reshape(found.shape), xp.take_along_axis(input, found, dim))
    xp.copyto(indices.reshape(found.shape), found)


@_kthvalue.kernel("cpu", when=sortable, layout=contiguous)
def _(xp, values, indices, keys, places, input, *, k, dim, keepdim, median):
    from ...kernels.cpu.reduction import sort

    count, columns = prod(input.shape[:dim]), prod(input.shape[dim + 1 :])
    x = bits(input).reshape(count, -1, columns)
    found, where = bits(values).reshape(count, columns), indices.reshape(count, columns)
    keys, infinity = bits(keys), INFINITY.get(input.dtype.name, 0)

    def run(chunk, start, stop):
        room = keys[chunk], places[chunk]
        sort.select(found, where, x, *room, infinity, k - 1, median, start, stop)

    threads.parallel_chunks(run, count, max(1, threads.workers(8 * input.size, count)))


@_kthvalue.vjp("input")
def _(g_values, indices, input_spec, dim, keepdim):
    dims = (dim,) if input_spec.ndim else ()
    return place(kept(g_values, dims, keepdim), kept(indices, dims, keepdim), input_spec, dim)


Median, Kthvalue = _pair("median"), _pair("kthvalue")


@function(method=True)
def median(input, dim=None, keepdim=False, *, out=None):
    """Compute the median, the lower of two; of all, or along a dim with its index.

    Memory:
        Along a dim, keeps the indices; of all, ``input`` and the result.
    """
    if dim is None:
        return _median(input)
    d = one_dim("median", dim, input.ndim)
    need_elements("median", input.shape, (d,), None)
    n = input.shape[d] if input.ndim else 1
    found = _kthvalue(input, k=(n - 1) // 2 + 1, dim=d, keepdim=keepdim, median=True)
    return Median(*into_each("median", out, found, input))


@function(method=True)
def kthvalue(input, k, dim=-1, keepdim=False, *, out=None):
    """Return the ``k``-th smallest element along ``dim`` (1 is the smallest), and its index."""
    d = one_dim("kthvalue", dim, input.ndim)
    need_elements("kthvalue", input.shape, (d,), None)
    n = input.shape[d] if input.ndim else 1
    if not 1 <= k <= n:
        raise RuntimeError(
            f"kthvalue(): selected number k out of range for dimension {d}: k must be in [1, {n}]; "
            f"got {k}. Pass a smaller one."
        )
    found = _kthvalue(input, k=k, dim=d, keepdim=keepdim, median=False)
    return Kthvalue(*into_each("kthvalue", out, found, input))
