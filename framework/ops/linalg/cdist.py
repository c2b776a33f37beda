"""Distances between the points of two sets: cdist.

The differences of all pairs are many times the points: compiled loops make none of them, NumPy's
calls a tile at a time, forward and backward, and none is kept. Second gradients compute all.
"""

from __future__ import annotations

from math import inf

import numpy as np

from ...dtypes import FLOAT, bool_
from ...kernels.common.layout import contiguous, same_shape_dtype
from ...kernels.common.matmul import matmul_into
from ...kernels.common.schedule import parallel_range
from ...kernels.formula.formula import formula
from ...kernels.runtime import thresholds
from ...spec import Spec
from ..indexing.where import _where
from ..registry import function, op
from ..signatures import broadcast_shapes, per_element
from .matmul import blas_ready, matmul

COMPILED = ("float32", "float64")
_ELEMENTS = 1 << 17  # of a tile of differences on the host


def _tile(batch, p, r, m, host):
    # (batch entries, rows of the first points) of a tile
    most = _ELEMENTS if host else thresholds.tile_elements(host)
    row = max(1, r * m)
    rows = max(1, min(p, most // row))
    return (max(1, min(batch, most // (rows * row))) if rows >= p else 1), rows


def _walk(xp, x1, x2):
    batch, p = x1.shape[:2]
    count, rows = _tile(batch, p, *x2.shape[1:], xp is np)
    for n in range(0, batch, count):
        for r in range(0, p, rows):
            yield slice(n, min(batch, n + count)), slice(r, min(p, r + rows))


def shaped(flat, *shape):
    """Return the first elements of a flat array in a shape."""
    size = 1
    for n in shape:
        size *= n
    return flat[:size].reshape(shape)


def _differences(xp, tile, x1, x2, b, rows):
    a, c = x1[b, rows], x2[b]
    d = shaped(tile, *a.shape[:2], *c.shape[1:])
    xp.subtract(a[:, :, None], c[:, None], out=d)
    return d


def _cdist_infer(x1, x2, *, p):
    batch, rows, m = x1.shape
    r = x2.shape[1]
    count, tile = _tile(batch, rows, r, m, x1.on_host)
    return Spec((batch, rows, r), x1.dtype), Spec((count * tile * r * m,), x1.dtype)


def _cdist_samples(make):
    for p in (2.0, 1.0, 3.0, inf, 1.5):
        yield (make(2, 3, 2), make(2, 4, 2)), {"p": p}
    yield (make(0, 3, 2), make(0, 4, 2)), {"p": 2.0}


@op(
    infer=_cdist_infer,
    scratch=("tile",),
    promote="same",
    samples=_cdist_samples,
    flops=lambda x1, x2, *, p: 3 * x1.numel * x2.shape[1],
)
def _cdist(xp, out, tile, x1, x2, *, p):
    """Compute the norm of each difference of a row of ``x1`` and one of ``x2``."""
    if not x1.shape[2]:
        out.fill(0)
        return
    for b, rows in _walk(xp, x1, x2):
        set_lengths(xp, out[b, rows], _differences(xp, tile, x1, x2, b, rows), p)


def loops():
    """Return the compiled loops of distances."""
    from ...kernels.cpu.linalg import distances

    return distances


def _worth_pairs(*specs, p):
    x1, x2 = specs[-3:-1] if len(specs) == 4 else specs
    return x1.numel * x2.shape[1] >= thresholds.COMPILED_HEAVY and x1.dtype.name in COMPILED


@_cdist.kernel("cpu", when=_worth_pairs, layout=contiguous, scratch=False)
def _(xp, out, x1, x2, *, p):
    work, rows = 3 * out.size * x1.shape[2], x1.shape[0] * x1.shape[1]
    parallel_range(loops().lengths_between, work, rows, out, x1, x2, p)


def set_lengths(xp, to, d, p):
    """Compute the norms of differences, which are used up."""
    if p == 2:
        xp.multiply(d, d, out=d)
        xp.sum(d, axis=-1, out=to)
        xp.sqrt(to, out=to)
        return
    xp.absolute(d, out=d)
    if p == inf:
        xp.max(d, axis=-1, out=to)
        return
    if p == 0:
        xp.sign(d, out=d)
    elif p != 1:
        xp.power(d, p, out=d)
    xp.sum(d, axis=-1, out=to)
    if p not in (0, 1):
        xp.power(to, 1 / p, out=to)


@_cdist.vjp("x1")
def _(g, x1, x2, out, p):
    return _cdist_backward(g, x1, x2, out, p=p)


@_cdist.vjp("x2")
def _(g, x1, x2, out, p):
    return _cdist_backward(g.mT, x2, x1, out.mT, p=p)


def _slope_infer(grad, x1, x2, lengths, *, p):
    batch, rows, m = x1.shape
    r = x2.shape[1]
    count, tile = _tile(batch, rows, r, m, x1.on_host)
    differences = Spec((count * tile * r * m,), x1.dtype)
    weights = (count * tile * r,)
    return x1, differences, differences, Spec(weights, x1.dtype), Spec(weights, bool_)


def _slope_samples(make):
    for p in (2.0, 1.0, 3.0, 0.5):
        sizes = make(2, 3, 4, low=0.5, high=2.0)
        yield (make(2, 3, 4), make(2, 3, 2), make(2, 4, 2), sizes), {"p": p}
    empty = make(0, 3, 4)
    yield (empty, make(0, 3, 2), make(0, 4, 2), empty), {"p": 2.0}


@op(
    infer=_slope_infer,
    scratch=("tile", "size", "weight", "zero"),
    promote="same",
    samples=_slope_samples,
    flops=lambda grad, x1, x2, lengths, *, p: 6 * x1.numel * x2.shape[1],
)
def _cdist_backward(xp, out, tile, size, weight, zero, grad, x1, x2, lengths, *, p):
    """Backward of distances for ``x1``; 0 where two points coincide."""
    if p == 0 or not x1.shape[2]:
        out.fill(0)
        return
    for b, rows in _walk(xp, x1, x2):
        d = _differences(xp, tile, x1, x2, b, rows)
        w, none = shaped(weight, *d.shape[:3]), shaped(zero, *d.shape[:3])
        xp.copyto(w, lengths[b, rows])
        set_slopes(xp, d, w, shaped(size, *d.shape), none, grad[b, rows], p)
        matmul_into(xp, w[:, :, None], d, out=out[b, rows][:, :, None])


def _laid(array):
    # By rows, or by columns.
    return array.flags.c_contiguous or array.swapaxes(-1, -2).flags.c_contiguous


@_cdist_backward.kernel("cpu", when=_worth_pairs, layout=_laid, scratch=False)
def _(xp, out, grad, x1, x2, lengths, *, p):
    if p == 0:
        out.fill(0)
        return
    turned = not grad.flags.c_contiguous
    if turned:
        grad, lengths = grad.swapaxes(-1, -2), lengths.swapaxes(-1, -2)
    grad, x1, x2, lengths = map(np.ascontiguousarray, (grad, x1, x2, lengths))
    work, rows = 6 * lengths.size * x1.shape[2], x1.shape[0] * x1.shape[1]
    arrays = out, grad, x1, x2, lengths, turned, p
    parallel_range(loops().slopes_between, work, rows, *arrays)


def set_slopes(xp, d, w, s, none, grad, p):
    """Compute slopes of differences ``d`` with lengths ``w``, up to factors left in ``w``."""
    least = 1e-300 if d.dtype.itemsize == 8 else 1e-37
    if p != 2:
        xp.absolute(d, out=s)
        xp.sign(d, out=d)
    if p == inf:  # each of several largest, as PyTorch
        xp.equal(s, w[..., None], out=s)
        xp.multiply(d, s, out=d)
    elif p not in (1, 2):
        xp.maximum(s, least, out=s)
        xp.power(s, p - 1, out=s)
        xp.multiply(d, s, out=d)
    if p > 1 and p != inf:
        xp.equal(w, 0, out=none)
        xp.copyto(w, inf, where=none)
    if p == inf:
        w.fill(1)
    else:
        xp.power(w, 1 - p, out=w)
    xp.multiply(w, grad, out=w)


@_cdist_backward.vjp("grad", "x1", "x2", "lengths")
def _(g, needs, grad, x1, x2, lengths, p):
    if p == 0:
        return None, None, None, None
    d = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    h = g.unsqueeze(-2)
    if p == inf:
        return (h * d.sign() * (d.abs() == lengths.unsqueeze(-1))).sum(-1), None, None, None
    zero, same = lengths == 0, d == 0
    safe, size = _where(zero, 1, lengths), _where(same, 1, d.abs())
    scale = _where(zero, 0, safe ** (1 - p))
    along = (h * d.sign() * size ** (p - 1)).sum(-1) * scale
    of_out = along * grad * (1 - p) / safe
    if p == 1:
        return along, None, None, of_out
    flat = 1.0 if p == 2 else 0.0  # the slope's slope where two coordinates are equal
    bend = _where(same, flat, size ** (p - 2)) * (p - 1)
    moved = (grad * scale).unsqueeze(-1) * bend * h
    return along, moved.sum(-2), -moved.sum(-3), of_out


def _euclidean_infer(x1, x2):
    out = x1.like(
        (*broadcast_shapes("cdist", x1.shape[:-2], x2.shape[:-2]), x1.shape[-2], x2.shape[-2])
    )
    return out, x1, x2, x1.like((*x1.shape[:-1], 1)), x2.like((*x2.shape[:-1], 1))


def _euclidean_samples(make):
    yield (make(3, 2), make(4, 2)), {}
    yield (make(2, 3, 2), make(4, 2)), {}
    yield (make(2, 1, 3, 2), make(3, 4, 2)), {}
    yield (make(0, 3, 2), make(0, 4, 2)), {}


@op(
    infer=_euclidean_infer,
    promote="same",
    scratch=("square1", "square2", "sum1", "sum2"),
    layout=blas_ready,
    samples=_euclidean_samples,
    flops=lambda x1, x2: 2 * x1.numel * x2.shape[-2],
)
def _euclidean(xp, out, square1, square2, sum1, sum2, x1, x2):
    """Euclidean distances by a product: ``sqrt(|a|^2 + |b|^2 - 2 a b)``."""
    _set_products(xp, out, square1, square2, sum1, sum2, x1, x2)
    xp.multiply(out, -2, out=out)
    xp.add(out, sum1, out=out)
    xp.add(out, sum2.swapaxes(-1, -2), out=out)
    xp.maximum(out, 0, out=out)
    xp.sqrt(out, out=out)


def _set_products(xp, out, square1, square2, sum1, sum2, x1, x2):
    for x, square, total in ((x1, square1, sum1), (x2, square2, sum2)):
        xp.multiply(x, x, out=square)
        xp.sum(square, axis=-1, keepdims=True, out=total)
    matmul_into(xp, x1, x2.swapaxes(-1, -2), out=out)


def _worth_loop(x1, x2):
    many = x1.numel // max(1, x1.shape[-1]) * x2.shape[-2]
    large = many >= thresholds.COMPILED_HEAVY and min(x1.numel, x2.numel) > 0
    return large and x1.shape[:-2] == x2.shape[:-2] and x1.dtype.name in COMPILED


@_euclidean.kernel("cpu", when=_worth_loop, layout=blas_ready)
def _(xp, out, square1, square2, sum1, sum2, x1, x2):
    _set_products(xp, out, square1, square2, sum1, sum2, x1, x2)
    points = out.shape[-1]
    rows = out.reshape(-1, points)
    arrays = rows, sum1.reshape(-1), sum2.reshape(-1, points)
    parallel_range(loops().lengths_of_products, 4 * out.size, len(rows), *arrays)


_euclidean.op.display_name = "cdist"  # in messages, and for who asks for values by their op


def _over_lengths_samples(make):
    for shape in ((3, 4), (2, 3, 4), (0, 3)):
        yield (make(*shape), make(*shape, low=0.5, high=2.0)), {}


@op(infer=lambda grad, lengths: grad, flops=per_element(2), samples=_over_lengths_samples)
@formula(when=same_shape_dtype)
def _over_lengths(grad, lengths):
    """``grad / lengths``, 0 where two points are one."""
    return grad / lengths if lengths != 0 else 0


@_over_lengths.vjp("grad")
def _(g, lengths):
    return _over_lengths(g, lengths)


@_over_lengths.vjp("lengths")
def _(g, lengths, out):
    return -_over_lengths(g * out, lengths)


@_euclidean.vjp("x1", "x2")
def _(g, needs, x1, x2, out):
    # The sums of g (x1 - x2) / out
    ratio = _over_lengths(g, out)
    first = x1 * ratio.sum(-1, True) - matmul(ratio, x2) if needs[0] else None
    back = ratio.mT
    return first, x2 * back.sum(-1, True) - matmul(back, x1) if needs[1] else None


_MODES = (
    "use_mm_for_euclid_dist_if_necessary",
    "use_mm_for_euclid_dist",
    "donot_use_mm_for_euclid_dist",
)
_MANY = 25  # points from which a product is the faster way to Euclidean distances


@function(autocast="float32")
def cdist(x1, x2, p=2.0, compute_mode=_MODES[0]):
    """Compute the ``p``-norm distances between each point of ``x1`` and each of ``x2``.

    Args:
        x1: (*, P, M), floating point.
        x2: (*, R, M); the leading dims broadcast.
        p: Not negative.
        compute_mode: Whether Euclidean distances go through a matrix product: faster, less exact.
            By default for more than 25 points.

    Returns:
        Tensor (*, P, R).

    Memory:
        Keeps both inputs and the result. The workspace is a tile of differences, about 1 MiB; of
        float32 and float64 on the CPU a block of points for each thread, about 32 KiB.
    """
    if x1.dtype.category != FLOAT or x2.dtype.category != FLOAT:
        bad = x1 if x1.dtype.category != FLOAT else x2
        raise RuntimeError(f"cdist only supports floating-point dtypes, got {bad.dtype}")
    if x1.ndim < 2 or x2.ndim < 2:
        raise RuntimeError("cdist only supports at least 2D tensors; pass points as rows.")
    if x1.shape[-1] != x2.shape[-1]:
        raise RuntimeError(
            f"X1 and X2 must have the same number of columns. X1: {x1.shape[-1]} X2: {x2.shape[-1]}"
        )
    if p < 0:
        raise RuntimeError(f"cdist only supports non-negative p values; got {p}.")
    if compute_mode not in _MODES:
        raise ValueError(f"{compute_mode} is not a valid value for compute_mode")
    many = x1.shape[-2] > _MANY or x2.shape[-2] > _MANY
    if p == 2 and (compute_mode == _MODES[1] or (compute_mode == _MODES[0] and many)):
        return _euclidean(x1, x2)
    batch = broadcast_shapes("cdist", x1.shape[:-2], x2.shape[:-2])
    count = 1
    for n in batch:
        count *= n
    a, b = (x.expand(*batch, *x.shape[-2:]).reshape(count, *x.shape[-2:]) for x in (x1, x2))
    return _cdist(a, b, p=float(p)).reshape(*batch, x1.shape[-2], x2.shape[-2])
