"""Primitives of mask indexing, which save the mask instead of indices.

A place is an integer for each dim, a mask one byte an element: where more than an eighth of it
holds, the mask is the smaller of the two, and often alive anyway. So these ops take the mask and
the number of places, and make the places as workspace, forward and backward. They are otherwise
what ``index_put.py`` does.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...dtypes import int64
from ...kernels.common.layout import tiles
from ...kernels.runtime import thresholds
from ...spec import Spec
from ..registry import op
from .cpu_routes import enough, read_places, write_places
from .index_put import _index, _index_sum, _mask_places, set_places
from .where import every_third

_TILE = 1 << 13  # values at a time on the host


def _ready(array):
    # A mask is walked as it lies.
    return array.dtype.kind != "b" or array.flags.c_contiguous


def _dims(mask, at):
    return tuple(range(at, at + mask.ndim))


def _read_infer(input, mask, index, *, count, at):
    shape = (*input.shape[:at], count, *input.shape[at + mask.ndim :])
    return input.like(shape), Spec((mask.ndim, count if index is None else 0), int64)


def _samples(make):
    # (input, mask, its places, the dim where it begins, other numbers)
    for shape, dims, at in (((3, 4), 1, 0), ((3, 4), 2, 0), ((2, 3), 1, 1), ((0, 3), 1, 0)):
        x = make(*shape)
        mask = every_third(*x.shape[at : at + dims])
        yield x, mask, -(-mask.numel() // 3), at, make(*shape).reshape(-1)


def _read_samples(make):
    for x, mask, count, at, _ in _samples(make):
        yield (x, mask, None), {"count": count, "at": at}
        yield (x, mask, _mask_places(mask)), {"count": count, "at": at}


@op(
    infer=_read_infer,
    scratch=("places",),
    layout=_ready,
    half="exact",
    samples=_read_samples,
)
def _index_masked(xp, out, places, input, mask, index, *, count, at):
    """Read the ``count`` elements where ``mask`` is True; it begins at dim ``at``.

    ``index`` are the places, if they are known; else they are made.
    """
    if index is None:
        set_places(xp, places, mask)
        index = places
    _index.op.plain(xp, out, input, index, dims=_dims(mask, at), at=at)


@_index_masked.kernel(
    "cpu",
    layout=_ready,
    when=lambda input, mask, index, *, count, at: enough(
        prod(_read_infer(input, mask, index, count=count, at=at)[0].shape), input.dtype
    ),
)
def _(xp, out, places, input, mask, index, *, count, at):
    if index is None:
        set_places(xp, places, mask)
        index = places
    if not read_places(out, input, index, _dims(mask, at), at):
        _index.op.plain(xp, out, input, index, dims=_dims(mask, at), at=at)


_index_masked.op.display_name = "index"  # in messages, and for who asks for values by their op


@_index_masked.vjp("input")
def _(g, mask, input_spec, at):
    return _index_masked_grad(g, mask, shape=tuple(input_spec.shape), at=at)


def _sum_infer(input, mask, *, shape, at):
    return input.like(shape), Spec((mask.ndim, input.shape[at]), int64)


def _sum_samples(make):
    for x, mask, count, at, values in _samples(make):
        shape = tuple(x.shape)
        rest = [n for k, n in enumerate(shape) if not at <= k < at + mask.ndim]
        values = values[: prod(rest) * count].reshape(*rest[:at], count, *rest[at:])
        yield (values, mask), {"shape": shape, "at": at}


@op(
    infer=_sum_infer,
    scratch=("places",),
    layout=_ready,
    samples=_sum_samples,
)
def _index_masked_grad(xp, out, places, input, mask, *, shape, at):
    """Add ``input`` into zeros of ``shape`` where ``mask`` is True: the adjoint of reading."""
    set_places(xp, places, mask)
    _index_sum.op.plain(xp, out, input, places, shape=shape, dims=_dims(mask, at), at=at)


@_index_masked_grad.kernel(
    "cpu", layout=_ready, when=lambda input, mask, **_: enough(input.numel, input.dtype)
)
def _(xp, out, places, input, mask, *, shape, at):
    set_places(xp, places, mask)
    dims = _dims(mask, at)
    out.fill(0)  # a mask names no place twice
    if not write_places("put", out, input, places, input.shape, dims, at):
        _index_sum.op.plain(xp, out, input, places, shape=shape, dims=dims, at=at)


@_index_masked_grad.vjp("input")
def _(g, input_spec, mask, at):
    return _index_masked(g, mask, None, count=input_spec.shape[at], at=at)


def _write_samples(make):
    for x, _, _, _, values in _samples(make):
        whole = every_third(*x.shape)
        values = values[: -(-whole.numel() // 3)]
        yield (x, whole, values, None), {}
        yield (x, whole, values, _mask_places(whole)), {}


@op(
    inplace="_masked_scatter_",
    infer=lambda input, mask, values, index: (
        input,
        Spec((mask.ndim, values.shape[0] if index is None else 0), int64),
    ),
    scratch=("places",),
    layout=_ready,
    half="exact",
    samples=_write_samples,
    autocast="promote",
)
def _masked_scatter(xp, out, places, input, mask, values, index):
    """Write ``values``, in order, where ``mask`` is True in a copy; ``index`` as above."""
    if out is not input:
        xp.copyto(out, input)
    if index is None:
        set_places(xp, places, mask)
        index = places
    for here in tiles(values.shape[0], _TILE if xp is np else thresholds.tile_elements(False)):
        out[tuple(index[:, here])] = values[here]


@_masked_scatter.vjp("input")
def _(g, mask):
    return g.masked_fill(mask, 0)


@_masked_scatter.vjp("values")
def _(g, mask, values_spec):
    return _index_masked(g, mask, None, count=values_spec.shape[0], at=0)
