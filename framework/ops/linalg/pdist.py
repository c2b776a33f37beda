"""Distances between all pairs of one set of points: pdist.

The result lists each pair once, ``(0, 1), (0, 2), ...``. Compiled loops make no differences, and
NumPy's calls those to one row at a time, forward and backward. Second gradients compute all.
"""

from __future__ import annotations

from math import inf

import numpy as np

from ...dtypes import bool_
from ...kernels.common.layout import contiguous
from ...kernels.runtime import thresholds
from ...spec import Spec
from ..autocast_policy import WIDE_ON_CUDA
from ..creation.from_data import tensor
from ..registry import function, op
from .cdist import COMPILED, loops, set_lengths, set_slopes, shaped


def _norm(difference, p):
    if not difference.shape[-1]:
        return difference.sum(-1)
    return difference.norm(float(p), -1)


def _condensed_infer(input, *, p):
    n, m = input.shape
    return input.like((n * (n - 1) // 2,)), input.like((max(0, n - 1) * m,))


def _condensed_samples(make):
    for p in (2.0, 1.0, 3.0, inf, 0.0):
        yield (make(4, 2),), {"p": p}
    yield (make(1, 3),), {"p": 2.0}
    yield (make(3, 0),), {"p": 2.0}


@op(
    infer=_condensed_infer,
    scratch=("tile",),
    samples=_condensed_samples,
    flops=lambda input, *, p: 3 * input.numel * input.shape[0] // 2,
)
def _pdist(xp, out, tile, input, *, p):
    """Compute the norms of the differences between each row and all later ones."""
    if not input.shape[1]:
        out.fill(0)
        return
    for row, to in _followers(out, input.shape[0]):
        rest = input[row + 1 :]
        d = shaped(tile, *rest.shape)
        xp.subtract(input[row], rest, out=d)
        set_lengths(xp, to, d, p)


def _worth(*specs, p):
    points = specs[-2 if len(specs) > 1 else -1]
    work = points.numel * points.shape[0]
    return work >= thresholds.COMPILED_HEAVY and points.dtype.name in COMPILED


@_pdist.kernel("cpu", when=_worth, layout=contiguous, scratch=False)
def _(xp, out, input, *, p):
    loops().lengths(out, input, p)


def _followers(pairs, n):
    start = 0
    for row in range(n - 1):
        yield row, pairs[start : start + n - 1 - row]
        start += n - 1 - row


@_pdist.composite
def _(input, *, p):
    n = input.shape[0]
    first, second = (tensor(k, device=input.device) for k in np.triu_indices(n, 1))
    return _norm(input.index_select(0, first) - input.index_select(0, second), p)


@_pdist.vjp("input")
def _(g, input, out, p):
    return _pdist_backward(g, input, out, p=p)


def _condensed_slope_infer(grad, input, lengths, *, p):
    n, m = input.shape
    tile = input.like((max(0, n - 1) * m,))
    return input, tile, tile, input.like((max(0, n - 1),)), Spec((max(0, n - 1),), bool_)


def _condensed_slope_samples(make):
    for p in (2.0, 1.0, 0.5, 3.0):
        x = make(4, 2)
        lengths = _pdist(x, p)
        yield (lengths + 0.5, x, lengths), {"p": p}
    yield (make(0), make(1, 3), make(0)), {"p": 2.0}


@op(
    infer=_condensed_slope_infer,
    scratch=("tile", "size", "weight", "zero"),
    samples=_condensed_slope_samples,
    flops=lambda grad, input, lengths, *, p: 6 * input.numel * input.shape[0] // 2,
)
def _pdist_backward(xp, out, tile, size, weight, zero, grad, input, lengths, *, p):
    """Backward of condensed distances for ``input``; 0 where two points coincide."""
    out.fill(0)
    if p == 0 or not input.shape[1]:
        return
    n = input.shape[0]
    for (row, g), (_, length) in zip(_followers(grad, n), _followers(lengths, n), strict=True):
        rest = input[row + 1 :]
        d = shaped(tile, *rest.shape)
        w, none = weight[: len(rest)], zero[: len(rest)]
        xp.subtract(input[row], rest, out=d)
        xp.copyto(w, length)
        set_slopes(xp, d, w, shaped(size, *d.shape), none, g, p)
        xp.multiply(d, w[:, None], out=d)
        out[row] += xp.sum(d, axis=0)
        xp.subtract(out[row + 1 :], d, out=out[row + 1 :])


@_pdist_backward.kernel("cpu", when=_worth, layout=contiguous, scratch=False)
def _(xp, out, grad, input, lengths, *, p):
    loops().slopes(out, grad, input, lengths, p)


@function(autocast=WIDE_ON_CUDA)
def pdist(input, p=2):
    """Compute the ``p``-norm distances between all pairs of rows, ``(0, 1), (0, 2), ...``.

    Args:
        input: (N, M).
        p: Not negative.

    Returns:
        Tensor (N (N - 1) / 2,).

    Memory:
        Keeps ``input`` and the result; the workspace is the differences to one row.
    """
    if input.ndim != 2:
        raise RuntimeError(
            f"pdist only supports 2D tensors, got: {input.ndim}D. Pass points as rows."
        )
    if p < 0:
        raise RuntimeError(f"pdist only supports non-negative p values; got {p}.")
    return _pdist(input, p=float(p))
