"""Adaptive pooling: window sizes follow from the output size.

Max pooling keeps where in its plane each winner was, in the smallest integers that can say it: one
byte for planes of up to 256 elements, two for up to 32768.
"""

from __future__ import annotations

from itertools import product
from math import prod

from ...dtypes import bool_, int32
from ...kernels.common.layout import contiguous, heavy, worth_compiling
from ...kernels.common.schedule import parallel_rows
from ...spec import Spec
from ..creation.from_data import tensor
from ..registry import op
from .primitives import index_dtype

# Windows

_CALLS = 32  # of NumPy's functions, from which a compiled loop takes less for any input


def _worth_averaging(input, *, size):
    return worth_compiling(input) or (heavy(input) and prod(size) >= _CALLS)


def _worth_comparing(input, *, size):
    # Each place is compared by six calls.
    return worth_compiling(input) or (
        heavy(input) and 6 * prod(input.shape[-len(size) :]) >= _CALLS
    )


def _cells(size, out):
    """Yield (position, window) of each output element: indices into the spatial dims."""
    for place in product(*map(range, out)):
        yield (
            place,
            tuple(
                slice(i * n // m, -(-(i + 1) * n // m))
                for i, n, m in zip(place, size, out, strict=True)
            ),
        )


def _adaptive_samples(make):
    yield (make(1, 3, 5, 7),), {"size": (3, 2)}
    yield (make(2, 1, 5),), {"size": (3,)}
    yield (make(0, 1, 5),), {"size": (3,)}


@op(
    infer=lambda input, *, size: input.like((*input.shape[: -len(size)], *size)),
    samples=_adaptive_samples,
    flops=lambda input, **_: input.numel,
)
def _adaptive_avg_pool(xp, out, input, *, size):
    """Average pooling over the windows that divide the input into ``size`` parts."""
    nd = len(size)
    for position, window in _cells(input.shape[-nd:], size):
        view = input[(..., *window)]
        xp.mean(view, axis=tuple(range(-nd, 0)), out=out[(..., *position)])


def _volumes(array, size):
    # (planes, depth, height, width) of an array whose last dims are of that size.
    planes = prod(array.shape[: array.ndim - len(size)])
    return array.reshape(planes, *(1,) * (3 - len(size)), *array.shape[array.ndim - len(size) :])


def _spread(name, elements, size, *arrays):
    from ...kernels.cpu.pooling import adaptive

    arrays = [_volumes(a, size) for a in arrays]
    parallel_rows(getattr(adaptive, name), elements, len(arrays[0]), *arrays)


@_adaptive_avg_pool.kernel("cpu", when=_worth_averaging, layout=contiguous)
def _(xp, out, input, *, size):
    _spread("average", input.size, size, out, input)


@_adaptive_avg_pool.vjp("input")
def _(g, input_spec, size):
    return _adaptive_avg_pool_grad(g, tuple(input_spec.shape[-len(size) :]))


def _adaptive_grad_samples(make):
    yield (make(2, 3, 1, 1),), {"size": (5, 7)}
    yield (make(1, 1, 3, 2)[..., :3, :2].clone(),), {"size": (5, 7)}  # few cells at any scale
    yield (make(1, 2, 3)[..., :3].clone(),), {"size": (5,)}
    yield (make(0, 3),), {"size": (5,)}


@op(
    infer=lambda grad, *, size: (grad.like((*grad.shape[: -len(size)], *size)), grad),
    scratch=("share",),
    flops=lambda grad, **_: grad.numel,
    samples=_adaptive_grad_samples,
)
def _adaptive_avg_pool_grad(xp, out, share, grad, *, size):
    """Backward of adaptive average pooling."""
    nd = len(size)
    out.fill(0)
    spread = (None,) * nd
    for position, window in _cells(size, grad.shape[-nd:]):
        view, here = out[(..., *window)], share[(..., *position)]
        xp.divide(grad[(..., *position)], prod(s.stop - s.start for s in window), out=here)
        xp.add(view, here[(..., *spread)], out=view)


def _worth_spreading(grad, *_, size):
    spread = grad.like((*grad.shape[: -len(size)], *size))
    return worth_compiling(spread) or (heavy(spread) and prod(grad.shape[-len(size) :]) >= _CALLS)


@_adaptive_avg_pool_grad.kernel("cpu", when=_worth_spreading, layout=contiguous, scratch=False)
def _(xp, out, grad, *, size):
    _spread("average_grad", out.size, size, out, grad)


@_adaptive_avg_pool_grad.vjp("grad")
def _(g, grad_spec, size):
    return _adaptive_avg_pool(g, tuple(grad_spec.shape[-len(size) :]))


def _adaptive_max_infer(input, *, size):
    shape = (*input.shape[: -len(size)], *size)
    row = Spec(input.shape[: -len(size)], bool_)
    return Spec(shape, input.dtype), Spec(shape, index_dtype(input.shape[-len(size) :])), row, row


@op(
    infer=_adaptive_max_infer,
    returns=("out", "index"),
    scratch=("larger", "nan"),
    half="exact",
    samples=_adaptive_samples,
    flops=lambda input, **_: input.numel,
)
def _adaptive_max_pool(xp, out, index, larger, nan, input, *, size):
    """Max pooling over ``size`` windows, with indices into the flattened plane."""
    planes = input.shape[-len(size) :]
    for position, window in _cells(planes, size):
        best, where = out[(..., *position)], index[(..., *position)]
        first = True
        for place in product(*[range(s.start, s.stop) for s in window]):
            flat = 0
            for n, i in zip(planes, place, strict=True):
                flat = flat * n + i
            value = input[(..., *place)]
            if first:
                xp.copyto(best, value)
                where[...] = flat
                first = False
                continue
            xp.greater(value, best, out=larger)
            xp.not_equal(value, value, out=nan)
            xp.logical_or(larger, nan, out=larger)
            xp.copyto(best, value, where=larger)
            xp.copyto(where, flat, where=larger, casting="unsafe")


@_adaptive_max_pool.kernel("cpu", when=_worth_comparing, layout=contiguous, scratch=False)
def _(xp, out, index, input, *, size):
    _spread("largest", input.size, size, out, index, input)


@_adaptive_max_pool.vjp("input")
def _(g_out, index, input_spec, size):
    if g_out is None:
        return None
    return _plane_scatter(g_out, index.detach(), tuple(input_spec.shape[-len(size) :]))


def _plane_samples(make, gather):
    for shape in ((2, 1, 1, 4), (2, 3, 3), (0, 4)):
        x = make(*shape)
        dims = 1 if x.ndim < 4 else 2
        lead, size = tuple(x.shape[:-dims]), tuple(x.shape[-dims:])
        index = tensor([0, 2, 2], dtype=int32).expand(*lead, *size[:-1], 3).clone()
        values = x if gather else make(*shape)[..., :3].clone()
        yield (values, index), ({"dims": dims} if gather else {"size": size})


@op(
    infer=lambda grad, index, *, size: grad.like((*grad.shape[: -len(size)], *size)),
    layout=contiguous,
    flops=lambda grad, index, **_: grad.numel,
    samples=lambda make: _plane_samples(make, False),
)
def _plane_scatter(xp, out, grad, index, *, size):
    """Scatter-add values at ``index`` in each plane, in a deterministic order."""
    out.fill(0)
    planes = prod(grad.shape[: -len(size)])
    count = prod(index.shape[-len(size) :])
    flat, values = out.reshape(planes, prod(size)), grad.reshape(planes, count)
    where = index.reshape(planes, count)
    rows = xp.arange(planes)
    for k in range(values.shape[1]):  # one element of every plane: no index twice
        flat[rows, where[:, k]] += values[:, k]


@_plane_scatter.kernel("cpu", when=_worth_spreading, layout=contiguous)
def _(xp, out, grad, index, *, size):
    from ...kernels.cpu.pooling import adaptive

    planes, count = prod(grad.shape[: -len(size)]), prod(index.shape[-len(size) :])
    rows = grad.reshape(planes, count), index.reshape(planes, count)
    parallel_rows(adaptive.scatter, out.size, planes, out.reshape(planes, prod(size)), *rows)


@_plane_scatter.vjp("grad")
def _(g, index, size):
    return _plane_gather(g, index, len(size))


@op(
    infer=lambda input, index, *, dims: index.like(dtype=input.dtype),
    layout=contiguous,
    half="exact",
    samples=lambda make: _plane_samples(make, True),
)
def _plane_gather(xp, out, input, index, *, dims):
    """Gather values at ``index`` from each plane (the last ``dims`` dimensions)."""
    planes = prod(index.shape[:-dims])
    count = prod(index.shape[-dims:])
    flat = input.reshape(planes, prod(input.shape[-dims:]))
    target, where = out.reshape(planes, count), index.reshape(planes, count)
    rows = xp.arange(planes)
    for k in range(where.shape[1]):
        target[:, k] = flat[rows, where[:, k]]


@_plane_gather.vjp("input")
def _(g, index, input_spec, dims):
    return _plane_scatter(g, index, tuple(input_spec.shape[-dims:]))
