"""Normalization of halves: rows, examples or channels are converted a block at a time.

Sums over all rows, the gradients of weight and bias, are float32 until the end.
"""

from __future__ import annotations

from math import prod

from ...dtypes import float32
from ...kernels.common.copy import copy
from ...kernels.common.layout import contiguous
from ...kernels.common.row_blocks import in_blocks, room_specs
from ...kernels.runtime import threads, thresholds
from ...spec import Spec
from .primitives import (
    _as_groups,
    _batch_norm,
    _grouped,
    _norm_grad,
    _planes,
    _rms_norm,
    _rows,
    group_norm_view,
    instance_norm_view,
    layer_norm_view,
)


def _half_rows(input, *_, shape, axes, **__):
    return input.dtype.is_half and _rows(input.like(dtype=float32), shape=shape, axes=axes)


def _half_groups(input, *_, shape, axes, **__):
    return input.dtype.is_half and _grouped(input.like(dtype=float32), shape=shape, axes=axes)


def _half_planes(input, *_, shape, axes, **__):
    # Planes of one element have loops of their own, over channels side by side.
    if (
        threads.LIMIT > thresholds.CHANNEL_BLOCK_THREADS
        or not input.dtype.is_half
        or shape[-1] == 1
    ):
        return False
    return _planes(input.like(dtype=float32), axes=axes)


def _affine_specs(*specs):
    return tuple(Spec((0 if s is None else s.numel,), float32) for s in specs)


def _rooms(input, *affine, shape, **_):
    return *room_specs(shape[0], input, input), *_affine_specs(*affine)


def _operands(grad, input, weight, mean, rstd):
    # As _gradients has them.
    return input, grad, input, rstd, *([mean] if mean is not None else [])


def _grad_rooms(*specs, shape, affine, **__):
    (w,), line = _affine_specs(specs[2]), Spec((prod(affine),), float32)
    return w, w, w, line, line, *room_specs(shape[0], *_operands(*specs))


def _loops():
    # Compiled loops are imported when they are first used.
    from ...kernels.cpu.normalization import batch_norm, layer_norm

    return batch_norm, layer_norm


def _filled(vector, array):
    # A weight or bias in float32; without elements if it is absent.
    if array is not None:
        copy(vector, array.reshape(-1))
    return vector


@layer_norm_view.kernel("cpu", dtypes="half", when=_half_rows, layout=contiguous, scratch=_rooms)
def _(xp, out, mean, rstd, room, other, w, b, input, weight, bias, *, shape, axes, affine, eps):
    _, layer_norm = _loops()
    w, b = _filled(w, weight), _filled(b, bias)

    def compute(y, mean, rstd, x):
        layer_norm.normalize(y, mean, rstd, x, w, b, eps)

    results = out.reshape(shape), mean.reshape(-1), rstd.reshape(-1)
    in_blocks(compute, results, [input.reshape(shape)], [room, other])


@_rms_norm.kernel("cpu", dtypes="half", when=_half_rows, layout=contiguous, scratch=_rooms)
def _(xp, out, rstd, room, other, w, input, weight, *, shape, axes, affine, eps):
    _, layer_norm = _loops()
    w = _filled(w, weight)

    def compute(y, rstd, x):
        layer_norm.normalize(y, rstd[:0], rstd, x, w, w[:0], eps)

    results = out.reshape(shape), rstd.reshape(-1)
    in_blocks(compute, results, [input.reshape(shape)], [room, other])


@group_norm_view.kernel("cpu", dtypes="half", when=_half_groups, layout=contiguous, scratch=_rooms)
@instance_norm_view.kernel(
    "cpu", dtypes="half", when=_half_groups, layout=contiguous, scratch=_rooms
)
def _(xp, out, mean, rstd, room, other, w, b, input, weight, bias, *, shape, axes, affine, eps):
    batch_norm, _ = _loops()
    w, b, shape = _filled(w, weight), _filled(b, bias), _as_groups(shape)

    def compute(y, mean, rstd, x):
        batch_norm.group_norm(y, mean, rstd, x, w, b, eps)

    results = out.reshape(shape), mean.reshape(shape[:2]), rstd.reshape(shape[:2])
    in_blocks(compute, results, [input.reshape(shape)], [room, other])


@_norm_grad.kernel(
    "cpu",
    dtypes="half",
    when=lambda grad, input, *_, **a: grad.dtype is input.dtype and _half_rows(grad, **a),
    layout=contiguous,
    scratch=_grad_rooms,
    overwrites=("grad", "input"),
)
def _(xp, dx, dw, db, *rest, shape, axes, affine):
    _gradients(xp, _loops()[1].normalize_grad, dx, dw, db, *rest, shape=shape, statistics=(-1,))


@_norm_grad.kernel(
    "cpu",
    dtypes="half",
    when=lambda grad, input, weight, mean, *_, **a: (
        mean is not None and grad.dtype is input.dtype and _half_groups(grad, **a)
    ),
    layout=contiguous,
    scratch=_grad_rooms,
    overwrites=("grad", "input"),
)
def _(xp, dx, dw, db, *rest, shape, axes, affine):
    shape = _as_groups(shape)
    _gradients(
        xp, _loops()[0].group_norm_grad, dx, dw, db, *rest, shape=shape, statistics=shape[:2]
    )


def _gradients(
    xp, run, dx, dw, db, w, dw_sum, dw_here, db_sum, db_here, *rest, shape, statistics
):  # fmt: skip
    *rooms, grad, input, weight, mean, rstd = rest
    w, centered = _filled(w, weight), mean is not None
    dw_sum.fill(0)
    db_sum.fill(0)

    def compute(out, g, x, rstd, *mean):
        run(out, dw_here, db_here, g, x, w, mean[0] if centered else rstd[:0], rstd)
        xp.add(dw_sum, dw_here, out=dw_sum)
        xp.add(db_sum, db_here, out=db_sum)

    inputs = [grad.reshape(shape), input.reshape(shape), rstd.reshape(statistics)]
    inputs += [mean.reshape(statistics)] if centered else []
    in_blocks(compute, [dx.reshape(shape)], inputs, rooms)
    copy(db, db_sum)
    if weight is not None:
        copy(dw, dw_sum)


def _channel_rooms(input, weight, bias, *, shape, **_):
    return *room_specs(shape[1], input, input), *_affine_specs(weight, bias)


@_batch_norm.kernel(
    "cpu", dtypes="half", when=_half_planes, layout=contiguous, scratch=_channel_rooms
)
def _(
    xp, out, mean, var, rstd, room, other, w, b, input, weight, bias, *, shape, axes, affine, eps
):  # fmt: skip
    results = [out.reshape(shape), *(a.reshape(-1) for a in (mean, var, rstd))]
    inputs = [input.reshape(shape), _filled(w, weight), _filled(b, bias)]
    run = _loops()[0].batch_norm
    in_blocks(lambda *arrays: run(*arrays, eps), results, inputs, [room, other], axis=1)


def _channel_grad_rooms(grad, input, weight, mean, rstd, *, shape, **_):
    (w,), line = _affine_specs(weight), Spec((shape[1],), float32)
    return w, w, line, *room_specs(shape[1], input, grad, input, mean, rstd)


@_norm_grad.kernel(
    "cpu",
    dtypes="half",
    when=lambda grad, input, weight, mean, *_, **a: (
        mean is not None and grad.dtype is input.dtype and _half_planes(grad, **a)
    ),
    layout=contiguous,
    scratch=_channel_grad_rooms,
    overwrites=("grad", "input"),
)
def _(xp, dx, dw, db, w, dw_sum, db_sum, *rest, shape, axes, affine):
    *rooms, grad, input, weight, mean, rstd = rest
    results = [dx.reshape(shape), dw_sum, db_sum]
    inputs = [grad.reshape(shape), input.reshape(shape), _filled(w, weight)]
    inputs += [mean.reshape(-1), rstd.reshape(-1)]
    in_blocks(_loops()[0].batch_norm_grad, results, inputs, rooms, axis=1)
    copy(db, db_sum)
    if weight is not None:
        copy(dw, dw_sum)
