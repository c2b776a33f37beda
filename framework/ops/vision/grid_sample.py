"""``grid_sample``: sampling images at given positions, with compiled kernels.

A sample is a weighted sum of a few elements. Which, and with what weights, is made for some
positions at a time, forward and backward; what is kept are the image and the grid. The composition
(``grid_sample_composite.py``) computes all elements and weights: it is the path of second
gradients.

Not optimal: on a GPU, 65536 positions at a time, whose weights are outside of the ledger.
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from ...kernels.common.compiled_rows import compiled_rows
from ...kernels.common.layout import contiguous, tiles
from ...kernels.common.scatter_add import scatter_add
from ...kernels.runtime import thresholds
from ..indexing.index_put import take
from ..registry import function, op
from .grid_sample_composite import check_grid, composed, default_align

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


def _tiles(xp, count):
    return tiles(count, 256 if xp is np else thresholds.TILE)


# Positions, as arrays


def _placed(xp, at, n, padding, align):
    # (positions with the padding mode applied, their slope)
    slope = xp.ones_like(at)
    if padding == "reflection":
        low, span = (0.0, n - 1) if align else (-0.5, n)
        if span == 0:
            return xp.zeros_like(at), xp.zeros_like(at)
        off = at - low
        slope = xp.where(off < 0, -slope, slope)
        off = xp.absolute(off)
        turns = xp.floor(off / span)
        rest = off - turns * span
        even = turns % 2 == 0
        at = xp.where(even, rest, span - rest) + low
        slope = xp.where(even, slope, -slope)
    if padding != "zeros":
        inside = (at > 0) & (at < n - 1)
        at = xp.where(inside, at, xp.where(at >= n - 1, n - 1, 0)).astype(at.dtype)
        slope = xp.where(inside, slope, 0)
    return at, slope


def _cubic(t, k):
    # (weight of the tap at distance t - k, its slope), for k in -1..2 and t in [0, 1)
    a = -0.75
    if k in (0, 1):
        x = t if k == 0 else 1 - t
        value = ((a + 2) * x - (a + 3)) * x * x + 1
        slope = (3 * (a + 2) * x - 2 * (a + 3)) * x
        return value, slope if k == 0 else -slope
    x = t + 1 if k == -1 else 2 - t
    value = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    slope = (3 * a * x - 10 * a) * x + 8 * a
    return value, slope if k == -1 else -slope


def _along(xp, at, n, mode, padding, align, values=True):
    """Yield (element, weight, derivative of the weight) of each tap along one dim.

    Outside is 0. But a place that is NaN or infinite has no value either: with ``values`` its
    weights stay NaN, and without them, for the gradient in the image, it is outside of that.
    """
    scale = (n - 1) / 2 if align else n / 2
    at = (at + 1) * scale - (0.0 if align else 0.5)
    if mode == "bicubic":
        first = xp.floor(at)
        t = at - first
        found = [
            (_placed(xp, first + k, n, padding, align)[0], *_cubic(t, k)) for k in range(-1, 3)
        ]
    else:
        at, turn = _placed(xp, at, n, padding, align)
        if mode == "nearest":
            found = [(xp.rint(at), xp.ones_like(at), xp.zeros_like(at))]
        else:
            first = xp.floor(at)
            t = at - first
            found = [(first, 1 - t, -turn), (first + 1, t, turn)]
    taps = []
    for place, weight, slope in found:
        inside = (place >= 0) & (place <= n - 1)
        slope = slope * scale
        weight, slope = (xp.where(inside | (values & (v != v)), v, 0) for v in (weight, slope))
        taps.append((xp.where(inside, place, 0).astype(np.int64), weight, slope))
    return taps


def _taps(xp, grid, sizes, how):
    """(elements, weights and slopes of all dims) of each tap, of positions (m, dims)."""
    nd = len(sizes)
    axes = [_along(xp, grid[:, nd - 1 - d], n, *how) for d, n in enumerate(sizes)]
    for taps in product(*axes):
        index = taps[0][0]
        for (place, _, _), n in zip(taps[1:], sizes[1:], strict=True):
            index = index * n + place
        yield index, [t[1:] for t in taps]


def _product(factors):
    found = factors[0]
    for f in factors[1:]:
        found = found * f
    return found


# The op and its gradients


def _positions(grid):
    return prod(grid.shape[1:-1])


def _image_infer(input, grid, **_):
    out = input.like((*input.shape[:2], *grid.shape[1:-1]))
    return out, _tile(input, grid)


def _tile(image, grid):
    return image.like((image.shape[1] * min(_positions(grid), thresholds.TILE),))


def _settings(make):
    # (gradient, image, grid, attributes)
    for mode, padding, align in (
        ("bilinear", "zeros", False),
        ("bilinear", "border", True),
        ("bilinear", "reflection", False),
        ("bilinear", "reflection", True),
        ("nearest", "zeros", True),
        ("nearest", "border", False),
        ("bicubic", "zeros", False),
        ("bicubic", "reflection", True),
    ):
        for nd in (2, 3):
            if mode == "bicubic" and nd == 3:
                continue
            sizes = (3, 4, 2)[:nd]
            to = (2, 3, 2)[:nd]
            grid = make(2, *to, nd, low=-1.3, high=1.3)[..., :nd]
            how = {"mode": mode, "padding": padding, "align": align}
            yield make(2, 2, *to), make(2, 2, *sizes), grid, how
    how = {"mode": "bilinear", "padding": "reflection", "align": True}
    for n, height in ((2, 1), (0, 3)):
        yield make(n, 2, 2, 3), make(n, 2, height, 4), make(n, 2, 3, 2)[..., :2], how


def _image_samples(make):
    for _, x, grid, how in _settings(make):
        yield (x, grid), how


def _flops(first, grid, *rest, mode, **_):
    taps = {"bilinear": 2, "nearest": 1, "bicubic": 4}[mode] ** grid.shape[-1]
    return 2 * taps * first.shape[1] * prod(grid.shape[:-1])


@op(
    infer=_image_infer,
    scratch=("tile",),
    layout=contiguous,
    samples=_image_samples,
    flops=_flops,
)
def _grid_sample(xp, out, tile, input, grid, *, mode, padding, align):
    """Compute weighted sums of the elements of ``input`` around each position of ``grid``."""
    for x, to, some, taps in _walk(xp, tile, input, out, grid, mode, padding, align):
        to.fill(0)
        for index, factors in taps:
            take(xp, x, index, 1, some)
            xp.multiply(some, _product([w for w, _ in factors]), out=some)
            xp.add(to, some, out=to)


def _walk(xp, tile, image, values, grid, mode, padding, align):
    """(an image, its values at some positions, workspace like these, the taps)."""
    sizes, (batch, channels) = image.shape[2:], image.shape[:2]
    count = prod(grid.shape[1:-1])
    places = grid.reshape(batch, count, len(sizes))
    flat = image.reshape(batch, channels, prod(sizes))
    values = values.reshape(batch, channels, count)
    for n in range(batch):
        for here in _tiles(xp, count):
            some = places[n, here]
            space = tile[: channels * len(some)].reshape(channels, len(some))
            taps = _taps(xp, some, sizes, (mode, padding, align))
            yield flat[n], values[n][:, here], space, taps


def _compiled_images(op, name, of_image):
    """Give one of the three a compiled CPU kernel, images by several threads."""

    def fits(first, second, *_, **__):
        enough = max(first.numel, second.numel) >= thresholds.COMPILED_HEAVY // 4
        return enough and first.dtype.name in ("float32", "float64")

    def arguments(out, *arrays, mode, padding, align, sizes=None):
        sizes = arrays[of_image].shape[2:] if sizes is None else sizes
        flat = [_rows(out), *[_rows(a) for a in arrays[:-1]], _flat_grid(arrays[-1])]
        if name == "grid_grad":
            flat[0] = _flat_grid(out)
        how = MODES.index(mode), PADDINGS.index(padding), align
        work = arrays[-1].size * arrays[0].shape[1] * 4
        return work, out.shape[0], (*flat, tuple(sizes), *how)

    compiled_rows(op, f"vision:{name}", when=fits, arguments=arguments)


def _rows(array):
    return array.reshape(*array.shape[:2], prod(array.shape[2:]))


def _flat_grid(grid):
    return grid.reshape(grid.shape[0], prod(grid.shape[1:-1]), grid.shape[-1])


_compiled_images(_grid_sample, "image", 0)


@_grid_sample.composite
def _(input, grid, *, mode, padding, align):
    return composed(input, grid, mode, padding, align)


@_grid_sample.vjp("input")
def _(g, grid, input_spec, mode, padding, align):
    return _grid_sample_image_grad(g, grid, mode, padding, align, tuple(input_spec.shape[2:]))


@_grid_sample.vjp("grid")
def _(g, input, grid, mode, padding, align):
    return _grid_sample_grid_grad(g, input, grid, mode, padding, align)


def _image_grad_samples(make):
    for g, x, grid, how in _settings(make):
        yield (g, grid), how | {"sizes": tuple(x.shape[2:])}


@op(
    scratch=("tile",),
    layout=contiguous,
    samples=_image_grad_samples,
    infer=lambda grad, grid, *, sizes, **_: (
        grad.like((*grad.shape[:2], *sizes)),
        grad.like((min(_positions(grid), thresholds.TILE),)),
    ),
    flops=_flops,
)
def _grid_sample_image_grad(xp, out, tile, grad, grid, *, mode, padding, align, sizes):
    """Backward of grid_sample for the input."""
    out.fill(0)
    count = _positions(grid)
    for n in range(out.shape[0]):
        image, line = _rows(out)[n], _rows(grad)[n]
        places = grid[n].reshape(count, len(sizes))
        for here in _tiles(xp, count):
            for index, factors in _taps(xp, places[here], sizes, (mode, padding, align, False)):
                weight = _product([w for w, _ in factors])
                for c in range(out.shape[1]):
                    some = tile[: len(weight)]
                    xp.multiply(line[c, here], weight, out=some)
                    scatter_add(xp, image[c], (index,), some)


_compiled_images(_grid_sample_image_grad, "image_grad", 0)


def _grid_grad_samples(make):
    for g, x, grid, how in _settings(make):
        yield (g, x, grid), how


@op(
    scratch=("tile",),
    layout=contiguous,
    samples=_grid_grad_samples,
    infer=lambda grad, input, grid, **_: (grid, _tile(input, grid)),
    flops=lambda grad, input, grid, **how: _flops(input, grid, **how),
)
def _grid_sample_grid_grad(xp, out, tile, grad, input, grid, *, mode, padding, align):
    """Backward of grid_sample for the grid."""
    out.fill(0)
    nd = grid.shape[-1]
    rows = _flat_grid(out)
    n, start = 0, 0
    for x, g, some, taps in _walk(xp, tile, input, grad, grid, mode, padding, align):
        to = rows[n, start : start + g.shape[1]]
        for index, factors in taps:
            take(xp, x, index, 1, some)
            xp.multiply(some, g, out=some)
            agreed = xp.sum(some, axis=0)
            for d in range(nd):
                slope = _product([s if d == e else w for e, (w, s) in enumerate(factors)])
                xp.add(to[:, nd - 1 - d], agreed * slope, out=to[:, nd - 1 - d])
        start += g.shape[1]
        if start == rows.shape[1]:
            n, start = n + 1, 0


_compiled_images(_grid_sample_grid_grad, "grid_grad", 1)


@function(public=False, autocast={"cpu": "float32", "cuda": "promote"})
def grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=None):
    """Sample images at given positions.

    Args:
        input: (N, C, H, W) or (N, C, D, H, W).
        grid: (N, H_out, W_out, 2) or (N, D_out, H_out, W_out, 3): positions (x, y) or (x, y, z),
            from -1 to 1 across the image.
        mode: "bilinear" (trilinear for 5-D), "nearest", or "bicubic" (4-D).
        padding_mode: What lies outside: "zeros", "border" (the nearest edge), or "reflection".
        align_corners: -1 and 1 are the centers of the corner elements instead of their edges.

    Returns:
        Tensor (N, C, *sizes of the grid).

    Raises:
        ValueError: There is no such mode.
        RuntimeError: The shapes or dtypes do not fit.

    Memory:
        Keeps ``grid``, and ``input`` where the grid needs a gradient.

    Source:
        Jaderberg et al.: "Spatial Transformer Networks", 2015.
    """
    if mode not in MODES:
        raise ValueError(
            "nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', "
            f"but got: '{mode}'"
        )
    if padding_mode not in PADDINGS:
        raise ValueError(
            "nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or "
            f"'reflection', but got: '{padding_mode}'"
        )
    align = default_align() if align_corners is None else bool(align_corners)
    check_grid(input, grid, mode)
    return _grid_sample(input, grid, mode=mode, padding=padding_mode, align=align)
