"""Pooling kernels: max, average and power average, in any number of dimensions.

Every pooling is linear once its choices are known, so each comes with the adjoint of its linear
part as a separate op, and the two are each other's gradient. Max pooling keeps which element of
its window won, in one byte for windows of up to 256 elements, and not its input.

Windows are walked element by element: one strided view of the whole input for each place in the
window, so a kernel of k elements makes k passes and allocates nothing.
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from ...dtypes import bool_, int16, int32, int64, uint8
from ...kernels.common.layout import contiguous, worth_compiling
from ...kernels.common.schedule import parallel_range, parallel_rows
from ...spec import Spec
from ..convolution.im2col import reach
from ..registry import op

_HEAVY = 4  # an element of a window costs so many of an elementwise loop's


def _pooled_size(n, k, stride, padding, dilation, ceil) -> int:
    span = n + 2 * padding - dilation * (k - 1) - 1
    out = (span + (stride - 1 if ceil else 0)) // stride + 1
    if ceil and (out - 1) * stride >= n + padding:
        out -= 1  # the last window must begin inside the input or its left padding
    return out


def _pooled(name, input, kernel, stride, padding, dilation, ceil):
    nd = len(kernel)
    if any(v < 1 for v in (*kernel, *stride, *dilation)):
        raise RuntimeError(
            f"{name}: kernel size, stride and dilation should be greater than zero; got "
            f"{kernel}, {stride} and {dilation}."
        )
    if any(p < 0 or 2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise RuntimeError(
            f"{name}: pad should be at least 0 and at most half of effective kernel size; got "
            f"padding {padding} and kernel {kernel}. Pad the input instead."
        )
    if input.ndim not in (nd + 1, nd + 2):
        raise RuntimeError(
            f"{name}: Expected {nd + 1}D or {nd + 2}D (batched) input; got "
            f"{tuple(input.shape)}. Add or remove a dimension."
        )
    if 0 in input.shape[-nd - 1 :]:
        raise RuntimeError(
            f"{name}: Expected input with optional 0 dim batch size and other non-zero sizes; got "
            f"{tuple(input.shape)}."
        )
    size = tuple(
        _pooled_size(n, k, s, p, d, ceil)
        for n, k, s, p, d in zip(input.shape[-nd:], kernel, stride, padding, dilation, strict=True)
    )
    if any(n < 1 for n in size):
        raise RuntimeError(
            f"{name}: Output size is too small: input {tuple(input.shape)} with kernel {kernel}, "
            f"stride {stride} and padding {padding} gives spatial size {size}. Pad the input."
        )
    return (*input.shape[:-nd], *size)


def _windows(size, out, kernel, stride, padding, dilation):
    """Yield (number, positions, elements) of each window offset: slices of output and input."""
    axes = [
        [reach(j * dilation[d], size[d], out[d], stride[d], padding[d]) for j in range(k)]
        for d, k in enumerate(kernel)
    ]
    for number, place in enumerate(product(*axes)):
        yield number, (..., *(p for p, _ in place)), (..., *(e for _, e in place))


def index_dtype(size):
    """Return the smallest integer dtype for indices into a window, or plane, of this size."""
    count = prod(size)
    return uint8 if count <= 256 else int16 if count <= 1 << 15 else int32


def _max_pool_infer(input, *, kernel, stride, padding, dilation, ceil):
    shape = _pooled("max_pool", input, kernel, stride, padding, dilation, ceil)
    mask = Spec(shape, bool_)
    return Spec(shape, input.dtype), Spec(shape, index_dtype(kernel)), mask, mask


def _max_pool_samples(make):
    base = {"kernel": (2,), "stride": (2,), "padding": (0,), "dilation": (1,), "ceil": False}
    yield (make(1, 3, 7),), base
    yield (make(2, 3, 7),), base | {"ceil": True, "padding": (1,)}
    base = {
        "kernel": (2, 3),
        "stride": (2, 1),
        "padding": (1, 1),
        "dilation": (1, 2),
        "ceil": False,
    }
    yield (make(2, 2, 6, 7),), base
    yield (make(0, 2, 6, 7),), base


@op(
    infer=_max_pool_infer,
    returns=("out", "index"),
    scratch=("larger", "nan"),
    half="exact",
    samples=_max_pool_samples,
    flops=lambda input, *, kernel, stride, **_: input.numel * prod(kernel) // prod(stride),
)
def _max_pool(xp, out, index, larger, nan, input, *, kernel, stride, padding, dilation, ceil):
    """Max pooling, with the argmax as a number in the window; NaN wins."""
    nd = len(kernel)
    geometry = (input.shape[-nd:], out.shape[-nd:], kernel, stride, padding, dilation)
    places = list(_windows(*geometry))
    covers = all(p.stop - p.start == n for p, n in zip(places[0][1][1:], geometry[1], strict=True))
    # Written backwards, each window ends up with its first element inside the input.
    for number, positions, elements in places[:1] if covers else reversed(places):
        index[positions] = number
        xp.copyto(out[positions], input[elements])
    for number, positions, elements in places[1:]:
        view, best = input[elements], out[positions]
        wins, other = larger[positions], nan[positions]
        xp.greater(view, best, out=wins)
        xp.not_equal(view, view, out=other)
        xp.logical_or(wins, other, out=wins)
        xp.copyto(best, view, where=wins)
        xp.copyto(index[positions], number, where=wins, casting="unsafe")


def _volumes(nd, *arrays):
    # As compiled loops take them: all dims but the last nd are one, and nd becomes three.
    return [a.reshape(-1, *[1] * (3 - nd), *a.shape[a.ndim - nd :]) for a in arrays]


def _window(kernel, stride, padding, dilation):
    # Of three dims.
    more = (1,) * (3 - len(kernel))
    return more + kernel, more + stride, (0,) * len(more) + padding, more + dilation


def _worth_comparing(input, *, kernel, **_):
    # Or six calls of NumPy's for each place of the window take longer than the compiled loop of
    # float32, which `lowtide compile` has made.
    many = prod(kernel) > _HEAVY and input.numel > 0
    return worth_compiling(input) or (many and input.dtype.name == "float32")


@_max_pool.kernel("cpu", when=_worth_comparing, layout=contiguous, scratch=False)
def _(xp, out, index, input, *, kernel, stride, padding, dilation, ceil):
    from ...kernels.cpu.pooling import max_pool3d

    x, y, where = _volumes(len(kernel), input, out, index)
    work = _HEAVY * max(x.size, y.size)
    window = _window(kernel, stride, padding, dilation)
    parallel_rows(max_pool3d.max_pool, work, len(x), y, where, x, *window)


@_max_pool.vjp("input")
def _(g_out, index, input_spec, kernel, stride, padding, dilation):
    if g_out is None:
        return None
    size = tuple(input_spec.shape[-len(kernel) :])
    return _max_pool_grad(g_out, index.detach(), size, kernel, stride, padding, dilation)


def _picks(make):
    """Yield (values, argmax indices, sizes), the samples of the ops on argmax indices."""
    x = make(1, 4, 7)
    base = {"kernel": (3,), "stride": (2,), "padding": (1,), "dilation": (1,)}
    out, index = _max_pool(x, **base, ceil=False)
    yield x, out, index, base
    x = make(2, 2, 5, 6)
    base = {"kernel": (2, 3), "stride": (2, 1), "padding": (1, 1), "dilation": (1, 2)}
    out, index = _max_pool(x, **base, ceil=True)
    yield x, out, index, base
    x = make(0, 1, 7)
    base = {"kernel": (2,), "stride": (2,), "padding": (0,), "dilation": (1,)}
    out, index = _max_pool(x, **base, ceil=False)
    yield x, out, index, base


def _scatter_samples(make):
    for x, out, index, base in _picks(make):
        yield (
            (make(*out.shape) if x.ndim > 3 else out, index),
            base | {"size": tuple(x.shape[-len(base["kernel"]) :])},
        )


def _gather_samples(make):
    for x, _, index, base in _picks(make):
        yield (x, index), base


def _flat_index_samples(make):
    for x, _, index, base in _picks(make):
        yield (index,), base | {"size": tuple(x.shape[-len(base["kernel"]) :])}


def _scatter_infer(grad, index, *, size, kernel, stride, padding, dilation):
    out = Spec((*grad.shape[: -len(kernel)], *size), grad.dtype)
    return out, Spec(grad.shape, bool_), Spec(grad.shape, grad.dtype)


@op(
    infer=_scatter_infer,
    scratch=("won", "product"),
    half="exact",
    flops=lambda grad, index, **_: grad.numel,
    samples=_scatter_samples,
)
def _max_pool_grad(xp, out, won, product, grad, index, *, size, kernel, stride, padding, dilation):
    """Add each gradient at the argmax of its pooling window."""
    out.fill(0)
    geometry = (size, grad.shape[-len(kernel) :], kernel, stride, padding, dilation)
    for number, positions, elements in _windows(*geometry):
        here, view = product[positions], out[elements]
        xp.equal(index[positions], number, out=won[positions])
        xp.multiply(grad[positions], won[positions], out=here)
        xp.add(view, here, out=view)


def _onto_much(grad, *_, size, kernel, **__):
    return _worth_comparing(grad.like((*grad.shape[: -len(size)], *size)), kernel=kernel)


@_max_pool_grad.kernel("cpu", when=_onto_much, layout=contiguous, scratch=False)
def _(xp, out, grad, index, *, size, kernel, stride, padding, dilation):
    from ...kernels.cpu.pooling import max_pool3d

    x, g, where = _volumes(len(kernel), out, grad, index)
    work = _HEAVY * max(x.size, g.size)
    window = _window(kernel, stride, padding, dilation)
    parallel_rows(max_pool3d.max_pool_grad, work, len(x), x, g, where, *window)


@_max_pool_grad.vjp("grad")
def _(g, index, kernel, stride, padding, dilation):
    return _max_pool_pick(g, index, kernel, stride, padding, dilation)


@op(
    scratch=("won",),
    infer=lambda input, index, **_: (index.like(dtype=input.dtype), index.like(dtype=bool_)),
    half="exact",
    flops=lambda input, index, **_: index.numel,
    samples=_gather_samples,
)
def _max_pool_pick(xp, out, won, input, index, *, kernel, stride, padding, dilation):
    """Gather the element at the argmax of each pooling window."""
    out.fill(0)
    nd = len(kernel)
    geometry = (input.shape[-nd:], index.shape[-nd:], kernel, stride, padding, dilation)
    for number, positions, elements in _windows(*geometry):
        xp.equal(index[positions], number, out=won[positions])
        xp.copyto(out[positions], input[elements], where=won[positions])


@_max_pool_pick.vjp("input")
def _(g, index, input_spec, kernel, stride, padding, dilation):
    size = tuple(input_spec.shape[-len(kernel) :])
    return _max_pool_grad(g, index, size, kernel, stride, padding, dilation)


def _flat_index_infer(index, *, size, kernel, stride, padding, dilation):
    flat = Spec(index.shape, int64)
    return flat, flat


@op(
    infer=_flat_index_infer,
    scratch=("along",),
    half="exact",
    samples=_flat_index_samples,
)
def _max_pool_flat_index(xp, out, along, index, *, size, kernel, stride, padding, dilation):
    """Convert argmax in the window to an index into the flattened input plane."""
    out.fill(0)
    nd = len(kernel)
    for d in range(nd):
        n = index.shape[d - nd]
        xp.copyto(along, index, casting="unsafe")
        xp.floor_divide(along, prod(kernel[d + 1 :]), out=along)
        xp.remainder(along, kernel[d], out=along)
        xp.multiply(along, dilation[d], out=along)
        starts = xp.arange(n, dtype=xp.int64) * stride[d] - padding[d]
        xp.add(along, starts.reshape(n, *[1] * (nd - 1 - d)), out=along)
        xp.multiply(out, size[d], out=out)
        xp.add(out, along, out=out)


# Means


def _counts(xp, size, out, kernel, stride, padding, include, divisor, dtype):
    """Return the divisor of each window: a number, or an array over the spatial dims."""
    if divisor:
        return divisor
    lengths = []
    for n, m, k, s, p in zip(size, out, kernel, stride, padding, strict=True):
        if (m - 1) * s + k <= n + 2 * p and (include or not p):  # all windows are complete
            lengths.append(k)
            continue
        start = np.arange(m) * s - p
        stop = np.minimum(start + k, n + p)
        spans = stop - start if include else np.minimum(stop, n) - np.maximum(start, 0)
        lengths.append(int(spans[0]) if (spans == spans[0]).all() else spans)
    if all(isinstance(spans, int) for spans in lengths):
        return prod(lengths)
    total = None
    for m, spans in zip(out, lengths, strict=True):
        row = xp.full(m, spans, dtype=dtype) if isinstance(spans, int) else xp.asarray(spans, dtype)
        total = row if total is None else total[..., None] * row
    return total


def _avg_pool_infer(input, *, kernel, stride, padding, ceil, include, divisor):
    ones = (1,) * len(kernel)
    return input.like(_pooled("avg_pool", input, kernel, stride, padding, ones, ceil))


def _avg_pool_samples(make):
    base = {
        "kernel": (3, 2),
        "stride": (2, 2),
        "padding": (1, 0),
        "ceil": False,
        "include": True,
        "divisor": None,
    }
    yield (make(1, 1, 6, 7),), base
    yield (make(2, 6, 7),), base | {"ceil": True, "include": False}
    yield (make(2, 2, 6, 7),), base | {"divisor": 5}
    base = {"kernel": (2,), "stride": (1,), "padding": (0,), "ceil": False, "include": True}
    yield (make(2, 1, 7),), base | {"divisor": None}
    yield (make(0, 1, 7),), base | {"divisor": None}


def _avg_pool_grad_samples(make):
    base = {"kernel": (3,), "stride": (2,), "padding": (1,), "ceil": False, "include": True}
    x = make(1, 3, 4)
    yield (x,), base | {"size": (2 * x.shape[2] - 1,), "divisor": None}
    yield (x,), base | {"size": (2 * x.shape[2] - 1,), "divisor": 2, "include": False}
    base = {
        "kernel": (2, 2),
        "stride": (1, 2),
        "padding": (0, 1),
        "ceil": True,
        "include": False,
        "divisor": None,
    }
    x = make(2, 2, 3)
    yield (x,), base | {"size": (x.shape[1] + 1, 2 * x.shape[2] - 2)}
    yield (make(0, 1, 2, 3),), base | {"size": (3, 4)}


@op(
    infer=_avg_pool_infer,
    samples=_avg_pool_samples,
    flops=lambda input, *, kernel, stride, **_: input.numel * prod(kernel) // prod(stride),
)
def _avg_pool(xp, out, input, *, kernel, stride, padding, ceil, include, divisor):
    """Average pooling: the sum over ``divisor``, or over the number of elements."""
    nd = len(kernel)
    size, positions = input.shape[-nd:], out.shape[-nd:]
    out.fill(0)
    for _, places, elements in _windows(size, positions, kernel, stride, padding, (1,) * nd):
        view = out[places]
        xp.add(view, input[elements], out=view)
    counts = _counts(xp, size, positions, kernel, stride, padding, include, divisor, out.dtype)
    if out.dtype.kind in "iu":  # as C divides, towards zero
        for plane in out:
            xp.subtract(plane, xp.fmod(plane, counts), out=plane)
        xp.floor_divide(out, counts, out=out)
        return
    xp.divide(out, counts, out=out)


def _worth_compiling_means(input, *_, **__):
    return worth_compiling(input) and input.dtype.name in ("float32", "float64")


def _means(xp, kernel, counts, work, x, out, nd, size, stride, padding):
    # Run a compiled loop over the windows of two arrays.
    from ...kernels.cpu.pooling import avg_pool

    filled, read = _volumes(nd, out, x)
    shape = (1, 1, 1) if not hasattr(counts, "shape") else (1,) * (3 - nd) + counts.shape
    divisor = xp.asarray(counts, dtype=out.dtype).reshape(shape)
    window = _window(size, stride, padding, (1,) * nd)[:3]
    parallel_range(getattr(avg_pool, kernel), work, len(read), filled, read, divisor, *window)


@_avg_pool.kernel("cpu", when=_worth_compiling_means, layout=contiguous)
def _(xp, out, input, *, kernel, stride, padding, ceil, include, divisor):
    nd = len(kernel)
    size, positions = input.shape[-nd:], out.shape[-nd:]
    counts = _counts(xp, size, positions, kernel, stride, padding, include, divisor, out.dtype)
    work = max(input.size, out.size) * prod(kernel)
    _means(xp, "avg_pool", counts, work, input, out, nd, kernel, stride, padding)


@_avg_pool.vjp("input")
def _(g, input_spec, kernel, stride, padding, include, divisor, ceil):
    size = tuple(input_spec.shape[-len(kernel) :])
    return _avg_pool_grad(g, size, kernel, stride, padding, ceil, include, divisor)


@op(
    scratch=("share",),
    infer=lambda grad, *, size, **_: (grad.like((*grad.shape[: -len(size)], *size)), grad),
    flops=lambda grad, *, kernel, **_: grad.numel * prod(kernel),
    samples=_avg_pool_grad_samples,
)
def _avg_pool_grad(xp, out, share, grad, *, size, kernel, stride, padding, ceil, include, divisor):
    """Backward of average pooling."""
    nd = len(kernel)
    positions = grad.shape[-nd:]
    counts = _counts(xp, size, positions, kernel, stride, padding, include, divisor, out.dtype)
    xp.divide(grad, counts, out=share)
    out.fill(0)
    for _, places, elements in _windows(size, positions, kernel, stride, padding, (1,) * nd):
        view = out[elements]
        xp.add(view, share[places], out=view)


@_avg_pool_grad.kernel("cpu", when=_worth_compiling_means, layout=contiguous, scratch=False)
def _(xp, out, grad, *, size, kernel, stride, padding, ceil, include, divisor):
    nd = len(kernel)
    positions = grad.shape[-nd:]
    counts = _counts(xp, size, positions, kernel, stride, padding, include, divisor, out.dtype)
    work = max(grad.size, out.size) * prod(kernel)
    _means(xp, "avg_pool_grad", counts, work, grad, out, nd, kernel, stride, padding)


@_avg_pool_grad.vjp("grad")
def _(g, kernel, stride, padding, ceil, include, divisor):
    return _avg_pool(g, kernel, stride, padding, ceil, include, divisor)
