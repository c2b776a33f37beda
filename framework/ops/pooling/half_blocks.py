"""Pooling of halves: planes are converted a block at a time, for the compiled loops of float32."""

from __future__ import annotations

from math import prod

import numpy as np

from ...dtypes import float32
from ...kernels.common.layout import contiguous
from ...kernels.common.row_blocks import in_blocks, room_specs
from ...kernels.common.schedule import parallel_rows
from .primitives import (
    _HEAVY,
    _avg_pool,
    _avg_pool_grad,
    _counts,
    _max_pool,
    _max_pool_grad,
    _means,
    _onto_much,
    _volumes,
    _window,
    _worth_comparing,
    _worth_compiling_means,
)


def _wide(spec):
    return spec.like(dtype=float32)


def _planes(spec, nd):
    return prod(spec.shape[: spec.ndim - nd])


def _loops():
    # Compiled loops are imported when they are first used.
    from ...kernels.cpu.pooling import max_pool3d

    return max_pool3d


def _max_pool_rooms(input, **attributes):
    out, index, *_ = _max_pool.op.infer(input, **attributes)
    return room_specs(_planes(input, len(attributes["kernel"])), out, index, input)


@_max_pool.kernel(
    "cpu",
    dtypes="half",
    when=lambda input, **a: input.dtype.is_half and _worth_comparing(_wide(input), **a),
    layout=contiguous,
    scratch=_max_pool_rooms,
)
def _(xp, out, index, room, other, input, *, kernel, stride, padding, dilation, ceil):
    loops, window = _loops(), _window(kernel, stride, padding, dilation)

    def compute(y, where, x):
        work = _HEAVY * max(x.size, y.size)
        parallel_rows(loops.max_pool, work, len(x), y, where, x, *window)

    y, where, x = _volumes(len(kernel), out, index, input)
    in_blocks(compute, [y, where], [x], [room, other])


def _like_input(grad, size):
    return grad.like((*grad.shape[: -len(size)], *size))


@_max_pool_grad.kernel(
    "cpu",
    dtypes="half",
    when=lambda grad, index, **a: grad.dtype.is_half and _onto_much(_wide(grad), **a),
    layout=contiguous,
    scratch=lambda grad, index, *, size, **_: room_specs(
        _planes(grad, len(size)), _like_input(grad, size), grad, index
    ),
)
def _(xp, out, room, other, grad, index, *, size, kernel, stride, padding, dilation):
    loops, window = _loops(), _window(kernel, stride, padding, dilation)

    def compute(x, g, where):
        work = _HEAVY * max(x.size, g.size)
        parallel_rows(loops.max_pool_grad, work, len(x), x, g, where, *window)

    x, g, where = _volumes(len(kernel), out, grad, index)
    in_blocks(compute, [x], [g, where], [room, other])


@_avg_pool.kernel(
    "cpu",
    dtypes="half",
    when=lambda input, **_: input.dtype.is_half and _worth_compiling_means(_wide(input)),
    layout=contiguous,
    scratch=lambda input, **a: room_specs(
        _planes(input, len(a["kernel"])), _avg_pool.op.infer(input, **a), input
    ),
)
def _(xp, out, room, other, input, *, kernel, stride, padding, ceil, include, divisor):
    nd = len(kernel)
    given = input.shape[-nd:], out.shape[-nd:], kernel, stride, padding, include, divisor
    counts = _counts(xp, *given, np.float32)

    def compute(y, x):
        work = max(x.size, y.size) * prod(kernel)
        _means(xp, "avg_pool", counts, work, x, y, nd, kernel, stride, padding)

    y, x = (a.reshape(-1, *a.shape[-nd:]) for a in (out, input))
    in_blocks(compute, [y], [x], [room, other])


@_avg_pool_grad.kernel(
    "cpu",
    dtypes="half",
    when=lambda grad, **_: grad.dtype.is_half and _worth_compiling_means(_wide(grad)),
    layout=contiguous,
    scratch=lambda grad, *, size, **_: room_specs(
        _planes(grad, len(size)), _like_input(grad, size), grad
    ),
)
def _(xp, out, room, other, grad, *, size, kernel, stride, padding, ceil, include, divisor):
    nd = len(kernel)
    given = size, grad.shape[-nd:], kernel, stride, padding, include, divisor
    counts = _counts(xp, *given, np.float32)

    def compute(x, g):
        work = max(x.size, g.size) * prod(kernel)
        _means(xp, "avg_pool_grad", counts, work, g, x, nd, kernel, stride, padding)

    x, g = (a.reshape(-1, *a.shape[-nd:]) for a in (out, grad))
    in_blocks(compute, [x], [g], [room, other])
