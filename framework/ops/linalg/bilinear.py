"""Trilinear forms ``sum_kij x0[r, k] x1[r, i] x2[r, j] weight[k, i, j]``, for each row r.

``bilinear`` and its gradients are such a form with one of the four left out: it is linear in each,
so that gives the gradient in it, and derivatives of any order close. What is kept are the three
operands.

A row of a factor times the weight is a matrix, or the products of two factors are; either is made
for some rows at a time, whichever is smaller, and contracted with what remains. So a form is one
matrix product and a pass over what it makes, or the other way round; the weight is never copied.
"""

from __future__ import annotations

import numpy as np

from ...kernels.common.layout import contiguous, tiles
from ...kernels.common.matmul import matmul_into
from ...kernels.runtime import thresholds
from ..elementwise.arithmetic import conjugate
from ..registry import function, op
from .matmul import as_rows, check_number

_ELEMENTS = 1 << 18  # of the matrices of a tile on the host
_PAIR = -1  # instead of the dim that is contracted first: the products of both factors


def _most(host):
    return _ELEMENTS if host else thresholds.tile_elements(host)


def _route(shape, free):
    """(what is contracted first, elements of the matrix that this makes of a row)."""
    ways = {d: shape[3 - d - free] * shape[free] for d in range(3) if d != free}
    if free != 1:  # then the weight is a matrix of pairs as it lies
        ways[_PAIR] = shape[1] * shape[2 - free]
    return min(ways.items(), key=lambda way: (way[1], way[0]))


def _outer(xp, a, b, tile):
    # The products of the rows' elements: (rows, I * J) in ``tile``
    rows = tile[: a.shape[0] * a.shape[1] * b.shape[1]]
    rows = rows.reshape(a.shape[0], a.shape[1], b.shape[1])
    xp.multiply(a[:, :, None], b[:, None, :], out=rows)
    return rows.reshape(a.shape[0], a.shape[1] * b.shape[1])


def _infer(a, b, weight, *, free):
    check_number("bilinear", a)
    size = _route(weight.shape, free)[1]
    rows = max(1, min(a.shape[0], _most(a.on_host) // max(1, size)))
    return a.like((a.shape[0], weight.shape[free])), a.like((rows * size,))


def _samples(make):
    for free, sizes in (
        (0, (4, 2, 3, 4)),
        (0, (3, 4, 1, 2)),
        (0, (3, 2, 4, 1)),
        (0, (0, 2, 2, 3)),
        (1, (4, 2, 3, 4)),
        (1, (3, 4, 3, 1)),
        (2, (4, 2, 3, 4)),
        (2, (3, 4, 3, 1)),
        (2, (3, 1, 2, 4)),
    ):
        r, *shape = sizes
        first, second = (n for d, n in enumerate(shape) if d != free)
        yield (make(r, first), make(r, second), make(*shape)), {"free": free}


@op(
    infer=_infer,
    scratch=("tile",),
    promote="same",
    layout=contiguous,
    samples=_samples,
    flops=lambda a, b, weight, *, free: (
        a.shape[0] * (2 * weight.numel + 2 * _route(weight.shape, free)[1])
    ),
)
def _trilinear(xp, out, tile, a, b, weight, *, free):
    """The form without the factor of dim ``free``; ``a`` and ``b`` are the others, in order."""
    first, size = _route(weight.shape, free)
    for rows in tiles(a.shape[0], max(1, tile.shape[0] // max(1, size))):
        to = out[rows]
        if first == _PAIR:
            pairs = _outer(xp, a[rows], b[rows], tile)
            flat = weight.reshape(-1, weight.shape[2]) if free else weight.reshape(len(weight), -1)
            matmul_into(xp, pairs, flat if free else flat.T, out=to)
            continue
        x, y = (a[rows], b[rows]) if first < 3 - first - free else (b[rows], a[rows])
        _contract(xp, to, tile, x, y, weight, first, free)


def _contract(xp, out, tile, x, y, weight, first, free):
    # ``x`` belongs to the dim that is contracted first, ``y`` to the second
    k, i, j = weight.shape
    rows = x.shape[0]
    if first == 0:
        made = tile[: rows * i * j].reshape(rows, i, j)
        matmul_into(xp, x, weight.reshape(k, i * j), out=made.reshape(rows, i * j))
        xp.multiply(made, y[:, None, :] if free == 1 else y[:, :, None], out=made)
        xp.sum(made, axis=3 - free, out=out)
        return
    other = weight if first == 1 else weight.swapaxes(1, 2)
    made = tile[: k * rows * other.shape[2]].reshape(k, rows, other.shape[2])
    matmul_into(xp, x[None], other, out=made)
    if free == 0:
        xp.multiply(made, y[None], out=made)
        xp.sum(made, axis=2, out=out.T)
    else:
        xp.multiply(made, y.T[:, :, None], out=made)
        xp.sum(made, axis=0, out=out)


def _in_factor(g, free, d, other, weight):
    # The gradient in the factor of dim ``d``; ``other`` belongs to the remaining one
    other = conjugate(other)
    pair = (g, other) if free < 3 - free - d else (other, g)
    return _trilinear(*pair, conjugate(weight), free=d)


@_trilinear.vjp("a")
def _(g, b, weight, free):
    return _in_factor(g, free, 1 if free == 0 else 0, b, weight)


@_trilinear.vjp("b")
def _(g, a, weight, free):
    return _in_factor(g, free, 1 if free == 2 else 2, a, weight)


@_trilinear.vjp("weight")
def _(g, a, b, free):
    factors = [conjugate(a), conjugate(b)]
    factors.insert(free, g)
    return _trilinear_weight(*factors)


def _weight_route(rows, shape, host):
    """(factor that is left out of the products, elements of these, how many of its dim at once)."""
    ways = {2: shape[0] * shape[1], 1: shape[0] * shape[2], 0: shape[1] * shape[2]}
    left = min(ways, key=lambda d: (ways[d], d))
    whole, along = rows * ways[left], shape[1] if left == 0 else shape[0]
    count = max(1, min(along, _most(host) * along // max(1, whole)))
    return left, rows * count * (ways[left] // max(1, along)), count


def _weight_infer(x0, x1, x2):
    shape = (x0.shape[1], x1.shape[1], x2.shape[1])
    return x0.like(shape), x0.like((_weight_route(x0.shape[0], shape, x0.on_host)[1],))


def _weight_samples(make):
    for r, k, i, j in ((4, 2, 3, 4), (3, 4, 1, 2), (3, 2, 4, 1), (3, 4, 2, 3), (0, 3, 2, 2)):
        yield (make(r, k), make(r, i), make(r, j)), {}


@op(
    infer=_weight_infer,
    scratch=("tile",),
    promote="same",
    layout=contiguous,
    samples=_weight_samples,
    flops=lambda x0, x1, x2: 2 * x0.numel * x1.shape[1] * x2.shape[1],
)
def _trilinear_weight(xp, out, tile, x0, x1, x2):
    """``out[k, i, j] = sum_r x0[r, k] * x1[r, i] * x2[r, j]``."""
    rows, (k, i, j) = x0.shape[0], out.shape
    if not rows:
        out.fill(0)
        return
    left, _, count = _weight_route(rows, out.shape, xp is np)
    if left == 0:
        flat = out.reshape(k, i * j)
        for some in tiles(i, count):
            columns = slice(some.start * j, some.stop * j)
            matmul_into(xp, x0.T, _outer(xp, x1[:, some], x2, tile), out=flat[:, columns])
        return
    y, last = (x1, x2) if left == 2 else (x2, x1)
    for some in tiles(k, count):
        x = x0[:, some].T  # (some of K, rows)
        made = tile[: x.size * y.shape[1]].reshape(*x.shape, y.shape[1])
        xp.multiply(x[:, :, None], y[None], out=made)
        if left == 2:
            matmul_into(xp, made.swapaxes(1, 2), last[None], out=out[some])
        else:
            matmul_into(xp, last.T[None], made, out=out[some])


@_trilinear_weight.vjp("x0")
def _(g, x1, x2):
    return _trilinear(conjugate(x1), conjugate(x2), g, free=0)


@_trilinear_weight.vjp("x1")
def _(g, x0, x2):
    return _trilinear(conjugate(x0), conjugate(x2), g, free=1)


@_trilinear_weight.vjp("x2")
def _(g, x0, x1):
    return _trilinear(conjugate(x0), conjugate(x1), g, free=2)


@function(autocast="promote")
def bilinear(input1, input2, weight, bias=None):
    """Apply a bilinear map to two inputs: ``out[.., o] = input1 @ weight[o] @ input2 + bias[o]``.

    Args:
        input1: (*, M).
        input2: (*, N), with the same leading sizes.
        weight: (O, M, N).
        bias: (O,), or None.

    Returns:
        Tensor (*, O).

    Raises:
        RuntimeError: The sizes do not fit, or the dtypes differ.

    Memory:
        Keeps ``input1``, ``input2`` and ``weight``. Workspace: 1 MiB of float32, or what one row
        makes of the weight if that is more.
    """
    if input1.shape[:-1] != input2.shape[:-1] or tuple(weight.shape[1:]) != (
        input1.shape[-1],
        input2.shape[-1],
    ):
        raise RuntimeError(
            f"bilinear takes input1 (*, M), input2 (*, N) and weight (O, M, N); got "
            f"{tuple(input1.shape)}, {tuple(input2.shape)} and {tuple(weight.shape)}. Transpose "
            "or expand one."
        )
    o, m, n = weight.shape
    lead = tuple(input1.shape[:-1])
    result = _trilinear(as_rows(input1, (m,)), as_rows(input2, (n,)), weight, free=0)
    result = result.reshape(*lead, o)
    return result if bias is None else result + bias
