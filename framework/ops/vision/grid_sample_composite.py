"""``grid_sample`` as a composition of ops, and ``affine_grid``.

A sample is a weighted sum of a few elements of its image. ``_taps`` is that sum, a trilinear
form of image, weights and arriving gradient; the two other sides of the form are its gradients,
and the three close under differentiation. Positions and weights are made of ordinary ops on
arrays of the size of the grid, without channels, so the gradient in the grid needs no formula.
``grid_sample.py`` does the same in one op, which keeps none of that.
"""

from __future__ import annotations

import warnings
from itertools import product
from math import prod

from ...dtypes import int64
from ...kernels.common.compiled_rows import compiled_rows
from ...kernels.common.layout import contiguous, tiles, worth_compiling
from ...kernels.common.scatter_add import scatter_add
from ..creation.fill import full_like, ones, zeros_like
from ..creation.from_data import tensor
from ..creation.ranges import linspace
from ..indexing.index_put import take
from ..manipulation.cat import cat, stack
from ..registry import function, op


def _sample_infer(input, weight, index):
    out = input.like((*input.shape[:2], index.shape[2]))
    return out, out.like(out.shape[1:])


def _sample_indices(count, *shape):
    n = prod(shape)
    return tensor([k * k % count for k in range(n)], dtype=int64).reshape(shape)


def _sample_samples(make):
    for n in (2, 0):
        x, w = make(n, 2, 5), make(n, 3, 4)
        yield (x, w, _sample_indices(x.shape[2], *w.shape)), {}


@op(
    infer=_sample_infer,
    scratch=("taken",),
    layout=contiguous,
    samples=_sample_samples,
    flops=lambda input, weight, index: 2 * input.shape[1] * index.numel,
)
def _taps(xp, out, taken, input, weight, index):
    """``out[n, c, p] = sum_k weight[n, k, p] * input[n, c, index[n, k, p]]``."""
    out.fill(0)
    for n in range(index.shape[0]):
        for k in range(index.shape[1]):
            take(xp, input[n], index[n, k], 1, taken)
            xp.multiply(taken, weight[n, k], out=taken)
            xp.add(out[n], taken, out=out[n])


def _compiled_taps(op, name):
    """Give one of the three a compiled CPU kernel, images by several threads."""

    def fits(first, *others, **_):
        return worth_compiling(first) or any(map(worth_compiling, others[:1]))

    def arguments(out, *arrays, **_):
        work = arrays[-1].size * max(out.shape[1], arrays[0].shape[1])
        return work, out.shape[0], (out, *arrays)

    compiled_rows(op, f"embedding:{name}", when=fits, arguments=arguments)


_compiled_taps(_taps, "taps")


@_taps.vjp("input")
def _(g, weight, index, input_spec):
    return _taps_spread(g, weight, index, input_spec.shape[2])


@_taps.vjp("weight")
def _(g, input, index):
    return _taps_agreement(input, g, index)


def _scatter_infer(grad, weight, index, *, size):
    out = grad.like((*grad.shape[:2], size))
    return out, grad.like((grad.shape[2],))


def _scatter_samples(make):
    for n, size in ((2, 5), (0, 3)):
        g, w = make(n, 2, 4), make(n, 3, 4)
        yield (g, w, _sample_indices(size, *w.shape)), {"size": size}


@op(
    infer=_scatter_infer,
    scratch=("product",),
    layout=contiguous,
    samples=_scatter_samples,
    flops=lambda grad, weight, index, **_: 2 * grad.shape[1] * index.numel,
)
def _taps_spread(xp, out, product, grad, weight, index, *, size):
    """Add each gradient, times its weight, to the elements it was made of."""
    out.fill(0)
    for n in range(index.shape[0]):
        for k in range(index.shape[1]):
            for c in range(grad.shape[1]):
                xp.multiply(grad[n, c], weight[n, k], out=product)
                scatter_add(xp, out[n, c], (index[n, k],), product)


_compiled_taps(_taps_spread, "taps_spread")


@_taps_spread.vjp("grad")
def _(g, weight, index):
    return _taps(g, weight, index)


@_taps_spread.vjp("weight")
def _(g, grad, index):
    return _taps_agreement(g, grad, index)


def _agreement_infer(input, grad, index):
    return index.like(dtype=input.dtype), grad.like(grad.shape[1:])


def _agreement_samples(make):
    for n in (2, 0):
        x, g = make(n, 2, 5), make(n, 2, 4)
        yield (x, g, _sample_indices(x.shape[2], x.shape[0], 3, g.shape[2])), {}


@op(
    infer=_agreement_infer,
    scratch=("taken",),
    layout=contiguous,
    samples=_agreement_samples,
    flops=lambda input, grad, index: 2 * input.shape[1] * index.numel,
)
def _taps_agreement(xp, out, taken, input, grad, index):
    """``out[n, k, p] = sum_c input[n, c, index[n, k, p]] * grad[n, c, p]``."""
    for n in range(index.shape[0]):
        for k in range(index.shape[1]):
            take(xp, input[n], index[n, k], 1, taken)
            xp.multiply(taken, grad[n], out=taken)
            xp.sum(taken, axis=0, out=out[n, k])


_compiled_taps(_taps_agreement, "taps_agreement")


@_taps_agreement.vjp("input")
def _(g, grad, index, input_spec):
    return _taps_spread(grad, g, index, input_spec.shape[2])


@_taps_agreement.vjp("grad")
def _(g, input, index):
    return _taps(input, g, index)


# Positions


def _pixels(at, n, align):
    # From [-1, 1] to positions of elements.
    return (at + 1) * ((n - 1) / 2) if align else (at + 1) * (n / 2) - 0.5


def _clipped(at, n):
    # No gradient at and beyond the edges; NaN goes to the first element.
    inside = (at > 0).logical_and(at < n - 1)
    edge = full_like(at, n - 1).where(at >= n - 1, zeros_like(at))
    return at.where(inside, edge)


def _reflected(at, low, high):
    # ``low`` and ``high`` are twice the positions of the mirrors.
    if low == high:
        return zeros_like(at)
    span, start = (high - low) / 2, low / 2
    off = (at - start).abs()
    turns = (off.detach() / span).floor()
    rest = off - turns * span
    even = turns.remainder(2).eq(0)
    return (rest + start).where(even, span - rest + start)


def _mirrored(at, n, align):
    return _reflected(at, 0, 2 * (n - 1)) if align else _reflected(at, -1, 2 * n - 1)


def _placed(at, n, padding, align):
    """Apply the padding mode to positions."""
    if padding == "border":
        return _clipped(at, n)
    if padding == "reflection":
        return _clipped(_mirrored(at, n, align), n)
    return at


def _cubic(t, k):
    # The weight of the tap at distance t - k, for k in -1..2 and t in [0, 1).
    a = -0.75
    if k in (0, 1):
        x = t if k == 0 else 1 - t
        return ((a + 2) * x - (a + 3)) * x * x + 1
    x = t + 1 if k == -1 else 2 - t
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def _axis_taps(at, n, mode, padding, align):
    """(element, is it inside, weight) of each tap along one dim; weight None stands for one."""
    at = _pixels(at, n, align)
    if mode == "bicubic":
        first = at.detach().floor()
        t = at - first
        found = []
        for k in range(-1, 3):
            place = _placed(first + k, n, padding, align)
            found.append((place, _cubic(t, k)))
    else:
        at = _placed(at, n, padding, align)
        if mode == "nearest":
            found = [(at.detach().round(), None)]
        else:
            first = at.detach().floor()
            t = at - first
            found = [(first, 1 - t), (first + 1, t)]
    taps = []
    for place, weight in found:
        inside = (place >= 0).logical_and(place <= n - 1)
        place = place.where(inside, zeros_like(place)).to(int64)
        taps.append((place, inside, weight))
    return taps


def _grid_taps(grid, sizes, mode, padding, align):
    """(elements, weights) of every tap, both (N, taps, positions), and NaN at lost positions."""
    nd = len(sizes)
    flat = grid.reshape(grid.shape[0], prod(grid.shape[1:-1]), nd)
    axes = [  # the grid's last component is the first dim's
        _axis_taps(flat[..., nd - 1 - d], n, mode, padding, align) for d, n in enumerate(sizes)
    ]
    places, weights, lost = [], [], None
    for taps in product(*axes):
        place, inside, weight = taps[0]
        for (p, i, w), n in zip(taps[1:], sizes[1:], strict=True):
            place = place * n + p
            inside = inside.logical_and(i)
            weight = w if weight is None else weight * w
        if weight is None:  # a constant, but a function of the grid, whose gradient is then 0
            weight = flat[..., 0].where(zeros_like(inside), inside.to(grid.dtype))
        else:
            # A place that is NaN or infinite has no value, though no element of the image either.
            nowhere = inside.logical_or(weight == weight)
            gone = zeros_like(weight).where(nowhere, weight * 0)
            lost = gone if lost is None else lost + gone
            weight = weight.where(inside, zeros_like(weight))
        places.append(place)
        weights.append(weight)
    return stack(places, 1), stack(weights, 1), lost


def composed(input, grid, mode, padding, align):
    """Sample images by a composition of ops, with all indices and weights in memory."""
    sizes = tuple(input.shape[2:])
    index, weight, lost = _grid_taps(grid, sizes, mode, padding, align)
    flat = input.reshape(*input.shape[:2], prod(sizes))
    out = _taps(flat, weight, index)
    if lost is not None:
        out = out + lost.unsqueeze(1)
    return out.reshape(*input.shape[:2], *grid.shape[1:-1])


def check_grid(input, grid, mode):
    """Raise an error for images and grids that do not fit.

    Raises:
        RuntimeError: They do not.
    """
    if input.dtype is not grid.dtype:
        raise RuntimeError(
            "grid_sampler(): expected input and grid to have same dtype, but input has "
            f"{input.dtype} and grid has {grid.dtype}. Convert one with .to()."
        )
    if input.ndim not in (4, 5) or input.ndim != grid.ndim:
        raise RuntimeError(
            "grid_sampler(): expected 4D or 5D input and grid with same number of dimensions, but "
            f"got input with sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if input.shape[0] != grid.shape[0]:
        raise RuntimeError(
            "grid_sampler(): expected grid and input to have same batch size, but got input with "
            f"sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if grid.shape[-1] != input.ndim - 2:
        raise RuntimeError(
            f"grid_sampler(): expected grid to have size {input.ndim - 2} in last dimension, but "
            f"got grid with sizes {list(grid.shape)}"
        )
    if 0 in input.shape[2:]:
        raise RuntimeError(
            "grid_sampler(): expected input to have non-empty spatial dimensions, but input has "
            f"sizes {list(input.shape)}"
        )
    if mode == "bicubic" and input.ndim != 4:
        raise RuntimeError(
            "grid_sampler(): bicubic interpolation only supports 4D input; got "
            f"{list(input.shape)}. Take mode 'bilinear'."
        )


def default_align() -> bool:
    """Warn as PyTorch does when ``align_corners`` is omitted, and return False."""
    warnings.warn(
        "Default grid_sample and affine_grid behavior has changed to align_corners=False since "
        "1.3.0. Please specify align_corners=True if the old behavior is desired. See the "
        "documentation of grid_sample for details.",
        UserWarning,
        stacklevel=3,
    )
    return False


_PLACES = 1 << 12  # along a dim, of all images, at a time


def _affine_infer(theta, *, sizes, align):
    return theta.like((theta.shape[0], *sizes, len(sizes)))


def _affine_samples(make):
    for n, sizes, align in ((2, (3, 2), True), (2, (1, 4), False), (2, (2, 3, 2), False)):
        nd, sizes = len(sizes), tuple(make(*sizes).shape)
        count = n * nd * (nd + 1)
        yield (make(count)[:count].reshape(n, nd, nd + 1),), {"sizes": sizes, "align": align}
    yield (make(0, 2, 3),), {"sizes": (3, 2), "align": True}


@op(
    infer=_affine_infer,
    samples=_affine_samples,
    flops=lambda theta, *, sizes, align: 2 * theta.numel * prod(sizes),
)
def _affine_grid(xp, out, theta, *, sizes, align):
    """``theta`` times (x, y, 1), or (x, y, z, 1), at every place of an image of ``sizes``."""
    nd, batch = len(sizes), theta.shape[0]
    for d in range(nd):
        component = out[..., d]
        component[...] = theta[:, d, nd].reshape(batch, *[1] * nd)
        for e in range(nd):  # the last dim of the image is the first component
            first, last, count = _edges(sizes[nd - 1 - e], align)
            step = (last - first) / max(1, count - 1)
            for some in tiles(count, max(1, _PLACES // max(1, batch))):
                line = (xp.arange(some.start, some.stop) * step + first).astype(out.dtype)
                term = theta[:, d, e, None] * line
                there = component[(slice(None),) * (nd - e) + (some,)]
                xp.add(
                    there, term.reshape(batch, *[1] * (nd - 1 - e), len(line), *[1] * e), out=there
                )


def _edges(n, align):
    # (first, last, count) of the positions along a dim
    if n == 1:
        return 0.0, 0.0, 1
    return (-1.0, 1.0, n) if align else (-(n - 1) / n, (n - 1) / n, n)


@_affine_grid.vjp("theta")
def _(g, sizes, align):
    nd = len(sizes)
    rows = g.reshape(g.shape[0], prod(sizes), nd)
    columns = []
    for e in range(nd):
        line = linspace(*_edges(sizes[nd - 1 - e], align), dtype=g.dtype, device=g.device)
        columns.append(line.reshape(-1, *[1] * e).expand(*sizes).reshape(-1, 1))
    columns.append(ones(prod(sizes), 1, dtype=g.dtype, device=g.device))
    return rows.mT @ cat(columns, 1)


@function(public=False, autocast="low")  # a product of matrices, as PyTorch computes it
def affine_grid(theta, size, align_corners=None):
    """Create a sampling grid for :func:`grid_sample` from an affine map.

    Args:
        theta: (N, 2, 3), or (N, 3, 4) for volumes.
        size: Of the result of sampling: (N, C, H, W) or (N, C, D, H, W).
        align_corners: As for :func:`grid_sample`.

    Returns:
        Tensor (N, H, W, 2) or (N, D, H, W, 3).

    Raises:
        ValueError: ``theta`` does not fit ``size``.
        NotImplementedError: ``size`` has neither 4 nor 5 elements.

    Memory:
        Keeps nothing but sizes.
    """
    align = default_align() if align_corners is None else bool(align_corners)
    if not theta.is_floating_point():
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    size = tuple(int(n) for n in size)
    nd = len(size) - 2
    if nd not in (2, 3):
        raise NotImplementedError(
            "affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, "
            f"respectively. Got size {size}."
        )
    if theta.ndim != 3 or tuple(theta.shape[1:]) != (nd, nd + 1):
        raise ValueError(
            f"Expected a batch of {nd}D affine matrices of shape Nx{nd}x{nd + 1} for size {size}. "
            f"Got {tuple(theta.shape)}."
        )
    if align and min(size[2:]) == 1:
        warnings.warn(
            "Since version 1.3.0, affine_grid behavior has changed for unit-size grids when "
            "align_corners=True. This is not an intended use case of affine_grid. See the "
            "documentation of affine_grid for details.",
            UserWarning,
            stacklevel=2,
        )
    elif min(size) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {size}")
    return _affine_grid(theta, sizes=size[2:], align=align)
