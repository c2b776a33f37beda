"""``interpolate``: nearest, linear, cubic, area, with and without antialiasing.

Resizing is linear and goes dim by dim: each output position is a weighted sum of a few input
positions, its taps. One op does all of it. Its gradient is the same op with the transposed table
of taps, so nothing is scattered, no sum depends on an order of threads, and derivatives of any
order close. Backward keeps nothing.

Sampling at arbitrary positions (``grid_sample``) is in ``grid_sample_composite.py``.
"""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from math import prod

import numpy as np

from ...dtypes import FLOAT, uint8
from ...kernels.common.layout import contiguous, worth_compiling
from ...kernels.common.schedule import parallel_rows
from ..autocast_policy import WIDE_ON_CUDA, casts
from ..indexing.index_put import take
from ..pooling.functional import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from ..registry import function, op


def _ratio(n, m, align, scale, real):
    # Input positions per output position.
    if align:
        return real(n - 1) / real(m - 1) if m > 1 else real(0)
    return real(1.0 / scale) if scale is not None and scale > 0 else real(n) / real(m)


def _cubic(x, a):
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


@lru_cache(maxsize=256)
def _taps(kind, n, m, align, scale, real):
    """Return (positions, weights) of the taps of each output position: two (taps, m) arrays.

    Args:
        kind: "nearest", "nearest-exact", "linear", "cubic", or "smooth linear", "smooth cubic"
            with antialiasing; after "fixed ", with weights of 16 bits, as for images of bytes.
        n: Size of the input.
        m: Of the output.
        align: The centers of the corner elements keep their place.
        scale: Given by the user, or None.
        real: The type computed in, which decides on ties.
    """
    if kind.startswith("fixed "):
        at, weights = _taps(kind.removeprefix("fixed "), n, m, align, scale, real)
        return at, _of_16_bits(_once(at, weights))
    step = _ratio(n, m, align, scale, real)
    o = np.arange(m).astype(real)
    if kind.startswith("nearest"):
        at = o * step if kind == "nearest" else (o + real(0.5)) * step
        at = np.floor(at.astype(np.float32)).astype(np.int64)
        return np.minimum(at, n - 1)[None], np.ones((1, m), real)
    if kind.startswith("smooth"):
        return _smooth_taps(kind, n, step, o, real)
    at = o * step if align else (o + real(0.5)) * step - real(0.5)
    if kind == "linear":
        at = np.maximum(at, 0)
        if n == m:
            at = o  # exactly
    first = np.minimum(np.floor(at).astype(np.int64), n - 1)
    t = np.clip(at - first, 0, 1).astype(real)
    if kind == "linear":
        return np.stack([first, np.minimum(first + 1, n - 1)]), np.stack([1 - t, t])
    taps = np.arange(-1, 3)[:, None]
    return np.clip(first + taps, 0, n - 1), _cubic(t - taps, -0.75).astype(real)


def _once(at, weights):
    # Taps past an edge have its position: their weights together are one.
    weights = weights.copy()
    for k in range(1, len(at)):
        same = at[k] == at[k - 1]
        weights[k] += np.where(same, weights[k - 1], 0)
        weights[k - 1] = np.where(same, 0, weights[k - 1])
    return weights


def _of_16_bits(weights):
    # As many bits behind the point as leave the largest weight 15.
    most, bits = float(weights.max(initial=0)), 0
    while bits < 22 and int(0.5 + most * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    one = float(1 << bits)
    return np.copysign(np.floor(np.abs(weights) * one + 0.5), weights) / one


def _smooth_taps(kind, n, step, o, real):
    width = 2 if kind == "smooth linear" else 4
    support = width * 0.5 * max(step, 1)
    center = step * (o + real(0.5))
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)
    count = np.minimum((center + support + 0.5).astype(np.int64), n) - first
    taps = np.arange(max(1, int(count.max(initial=1))))[:, None]
    x = (taps + first - center + 0.5) / max(step, 1)
    weights = np.maximum(1 - np.abs(x), 0) if width == 2 else _cubic(x, -0.5)
    weights = np.where(taps < count, weights, 0)
    weights = weights / weights.sum(0)
    return np.minimum(first + taps, n - 1), weights.astype(real)


@lru_cache(maxsize=256)
def _transposed(kind, n, m, align, scale, real):
    """Transpose a table of taps: from outputs per input position."""
    at, weights = _taps(kind, n, m, align, scale, real)
    outputs = np.broadcast_to(np.arange(at.shape[1]), at.shape)
    order = np.argsort(at, axis=None, kind="stable")
    rows, sources, values = (a.ravel()[order] for a in (at, outputs, weights))
    starts = np.searchsorted(rows, np.arange(n))
    place = np.arange(rows.size) - starts[rows]
    depth = int(place.max(initial=0)) + 1
    back, there = np.zeros((depth, n), np.int64), np.zeros((depth, n), real)
    back[place, rows], there[place, rows] = sources, values
    return back, there


def _resize_infer(input, *, dim, size, kind, align, scale, back):
    shape = list(input.shape)
    shape[dim] = size
    out = input.like(shape)
    return out, out


def _resize_samples(make):
    base = {"align": False, "scale": None, "back": False}
    yield (make(2, 3, 5),), base | {"dim": 2, "size": 8, "kind": "linear"}
    yield (make(2, 3, 5),), base | {"dim": 1, "size": 7, "kind": "nearest"}
    yield (make(2, 5, 3),), base | {"dim": 1, "size": 3, "kind": "cubic", "align": True}
    yield (make(2, 7),), base | {"dim": 1, "size": 3, "kind": "smooth cubic"}
    yield (make(0, 4),), base | {"dim": 1, "size": 6, "kind": "nearest-exact", "scale": 1.7}
    yield (make(2, 4),), base | {"dim": 1, "size": 9, "kind": "linear", "back": True}


@op(
    infer=_resize_infer,
    scratch=("term",),
    layout=contiguous,
    samples=_resize_samples,
    flops=lambda input, *, dim, size, **_: 4 * input.numel // max(1, input.shape[dim]) * size,
)
def _resize(xp, out, term, input, *, dim, size, kind, align, scale, back):
    """Resize one dim; ``back`` applies the adjoint of resizing from ``size``."""
    real = np.float64 if input.dtype.itemsize == 8 else np.float32
    n = input.shape[dim]
    table = _transposed if back else _taps
    at, weights = table(kind, *((size, n) if back else (n, size)), align, scale, real)
    at = xp.asarray(at)
    if at.shape[0] == 1 and kind.startswith("nearest") and not back:
        take(xp, input, at[0], dim, out)
        return
    row = [1] * input.ndim
    row[dim] = size
    weights = xp.asarray(weights)
    for k in range(at.shape[0]):
        target = term if k else out
        take(xp, input, at[k], dim, target)
        xp.multiply(target, weights[k].reshape(row), out=target)
        if k:
            xp.add(out, term, out=out)


@_resize.kernel("cpu", when=worth_compiling, layout=contiguous, scratch=False)
def _(xp, out, input, *, dim, size, kind, align, scale, back):
    from ...kernels.cpu import embedding

    real = np.float64 if input.dtype.itemsize == 8 else np.float32
    n = input.shape[dim]
    table = _transposed if back else _taps
    at, weights = table(kind, *((size, n) if back else (n, size)), align, scale, real)
    if at.shape[0] == 1 and kind.startswith("nearest") and not back:
        take(xp, input, at[0], dim, out)
        return
    count, columns = prod(input.shape[:dim]), prod(input.shape[dim + 1 :])
    cubes = [a.reshape(count, a.shape[dim], columns) for a in (out, input)]
    # The taps are every row's: as many of them as rows would be cut, too.
    parallel_rows(lambda *c: embedding.resize(*c, at, weights), out.size, count, *cubes)


@_resize.vjp("input")
def _(g, input_spec, dim, kind, align, scale, back):
    return _resize(g, dim, input_spec.shape[dim], kind, align, scale, not back)


_KINDS = {
    "nearest": ("nearest", None),
    "nearest-exact": ("nearest-exact", None),
    "linear": ("linear", 3),
    "bilinear": ("linear", 4),
    "trilinear": ("linear", 5),
    "bicubic": ("cubic", 4),
}


def _sizes(input, size, scale_factor, recompute, mode):
    """Return (size of each spatial dim, scale of each or None)."""
    nd = input.ndim - 2
    if size is not None and scale_factor is not None:
        raise ValueError(
            "interpolate: only one of size or scale_factor should be defined. Drop one."
        )
    if size is None and scale_factor is None:
        raise ValueError("interpolate: either size or scale_factor should be defined. Pass one.")
    what, given = ("output size", size) if size is not None else ("scale_factor", scale_factor)
    if isinstance(given, list | tuple):
        if len(given) != nd:
            raise ValueError(
                f"Input and {what} must have the same number of spatial dimensions, but got input "
                f"with spatial dimensions of {list(input.shape[2:])} and {what} of {given}. "
                "Please provide input tensor in (N, C, d1, d2, ...,dK) format."
            )
        values = tuple(given)
    else:
        values = (given,) * nd
    if size is not None:
        if recompute:
            raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
        if not all(hasattr(n, "__index__") for n in values):
            raise TypeError(
                "expected size to be one of int or Tuple[int] or Tuple[int, int] or "
                f"Tuple[int, int, int], but got size with types {[type(n) for n in values]}"
            )
        return tuple(int(n) for n in values), (None,) * nd
    factors = tuple(float(f) for f in values)
    sizes = tuple(math.floor(n * f) for n, f in zip(input.shape[2:], factors, strict=True))
    return sizes, (None,) * nd if recompute or mode == "area" else factors


def _check_resize(input, sizes, mode, align_corners, antialias):
    if mode in ("nearest", "area", "nearest-exact") and align_corners is not None:
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: linear | "
            "bilinear | bicubic | trilinear"
        )
    if antialias and not (mode in ("bilinear", "bicubic") and input.ndim == 4):
        raise ValueError(
            "Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D "
            "tensor as input"
        )
    if input.ndim not in (3, 4, 5) or (mode != "area" and mode not in _KINDS):
        raise NotImplementedError(
            "Input Error: Only 3D, 4D and 5D input Tensors supported (got "
            f"{input.ndim}D) for the modes: nearest | linear | bilinear | bicubic | trilinear | "
            f"area | nearest-exact (got {mode})"
        )
    if min(sizes) < 1 or 0 in input.shape[1:]:
        raise RuntimeError(
            "Input and output sizes should be greater than 0, but got input "
            f"{list(input.shape)} and output size {list(sizes)}."
        )


@function(public=False)
def interpolate(
    input,
    size=None,
    scale_factor=None,
    mode="nearest",
    align_corners=None,
    recompute_scale_factor=None,
    antialias=False,
):
    """Resize the spatial dims of a batch, to a size or by a factor.

    Args:
        input: (N, C, L), (N, C, H, W) or (N, C, D, H, W). Images of bytes (uint8) too, with
            "nearest", "nearest-exact", and "bilinear" and "bicubic" as PyTorch rounds them.
        size: Of the result: an int, or one for each spatial dim.
        scale_factor: Instead of ``size``: a number, or one for each.
        mode: "nearest", "nearest-exact", "area"; "linear" (3-D input), "bilinear", "bicubic"
            (4-D), "trilinear" (5-D).
        align_corners: For the modes of the second group: the centers of the corner elements keep
            their place, instead of the outer edges.
        recompute_scale_factor: Sample with the ratio of the integer sizes and not with
            ``scale_factor`` itself.
        antialias: Average over what a smaller result cannot show; "bilinear" and "bicubic".

    Returns:
        Tensor (N, C, *size).

    Raises:
        ValueError: The arguments contradict each other.
        NotImplementedError: The mode does not exist, or not for such an input.

    Memory:
        Keeps nothing.
    """
    sizes, scales = _sizes(input, size, scale_factor, recompute_scale_factor, mode)
    _check_resize(input, sizes, mode, align_corners, antialias)
    if mode == "area":
        pool = (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[input.ndim - 3]
        return pool(input, sizes)
    kind, ndim = _KINDS[mode]
    if ndim not in (None, input.ndim):
        raise NotImplementedError(f"Got {input.ndim}D input, but {mode} mode needs {ndim}D input")
    whole = input.dtype is uint8 and mode in ("bilinear", "bicubic")
    if ndim and input.dtype.category != FLOAT and not whole:
        raise NotImplementedError(
            f"interpolate: mode {mode} is not implemented for {input.dtype}. Convert the input "
            "with .float()."
        )
    return _resampled(input, sizes, scales, kind, bool(align_corners), antialias)


@casts(WIDE_ON_CUDA)
def _resampled(input, sizes, scales, kind, align, antialias):
    if antialias:
        kind = "smooth " + kind
        if tuple(input.shape[2:]) == sizes:
            return input.clone()  # as PyTorch, whatever the scale
    out = input
    if input.dtype is uint8 and not kind.startswith("nearest"):
        for d in (1, 0):
            if sizes[d] != input.shape[d + 2]:  # whatever the scale
                out = _resized_bytes(out, d + 2, sizes[d], kind, align, scales[d])
        return out.clone() if out is input else out
    if input.dtype.is_half and not kind.startswith("nearest"):  # several steps, rounded once
        return _resampled(input.float(), sizes, scales, kind, align, antialias).to(input.dtype)
    # The dim that shrinks most goes first: less to do for the others.
    for d in sorted(range(input.ndim - 2), key=lambda d: sizes[d] / input.shape[d + 2]):
        if sizes[d] != input.shape[d + 2] or scales[d] not in (None, 1.0):
            out = _resize(out, d + 2, sizes[d], kind, align, scales[d], False)
    return out.clone() if out is input else out


def _resized_bytes(input, dim, size, kind, align, scale):
    # As PyTorch: weights are fixed-point numbers, each dim is rounded by itself, halves up. Sums of
    # such products are exact in float64.
    wide = _resize(input.double(), dim, size, "fixed " + kind, align, scale, False)
    return (wide + 0.5).floor().clamp(0, 255).to(uint8)


def _deprecated(name: str) -> None:
    warnings.warn(
        f"`nn.functional.{name}` is deprecated. Use `nn.functional.interpolate` instead.",
        UserWarning,
        stacklevel=3,
    )


@function(public=False)
def upsample(input, size=None, scale_factor=None, mode="nearest", align_corners=None):
    """Resize; a deprecated name of :func:`interpolate`."""
    _deprecated("upsample")
    return interpolate(input, size, scale_factor, mode, align_corners)


@function(public=False)
def upsample_nearest(input, size=None, scale_factor=None):
    """Resize with mode "nearest"; a deprecated name."""
    _deprecated("upsample_nearest")
    return interpolate(input, size, scale_factor, mode="nearest")


@function(public=False)
def upsample_bilinear(input, size=None, scale_factor=None):
    """Resize with mode "bilinear" and aligned corners; a deprecated name."""
    _deprecated("upsample_bilinear")
    return interpolate(input, size, scale_factor, mode="bilinear", align_corners=True)
