"""Histograms: histc, histogram, histogramdd. None is differentiable."""

from __future__ import annotations

from math import isfinite, prod

from ...dtypes import FLOAT
from ...tensor import Tensor
from ..creation.fill import zeros
from ..creation.ranges import linspace
from ..indexing.nonzero import _searchsorted
from ..indexing.where import _where
from ..inplace import into
from ..registry import function
from .minmax import _pair


def _limits(name, input, low, high, margin):
    low, high = float(low), float(high)
    if low == high and input.numel():
        low, high = (float(v) for v in input.detach().aminmax())
    if not (isfinite(low) and isfinite(high)):
        raise RuntimeError(f"{name}: range of [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError(f"{name}: max must be larger than min; got {low} and {high}.")
    return (low - margin, high + margin) if low == high else (low, high)


@function(method=True)
def histc(input, bins=100, min=0, max=0, *, out=None):
    """Count elements in ``bins`` bins of equal width.

    Args:
        input: Floating point.
        bins: How many.
        min: Where the first starts; elements below are left out.
        max: Where the last ends. Equal to ``min``: both are taken from the data.
        out: Where to leave the result.

    Returns:
        Tensor (bins,), in the dtype of ``input``. Not differentiable.
    """
    if input.dtype.category != FLOAT:
        raise NotImplementedError(
            f'"histogram_cpu" not implemented for {input.dtype}. Convert with .float().'
        )
    if input.dtype.is_half:
        return into(out, histc(input.detach().float(), bins, min, max).to(input.dtype))
    if bins <= 0:
        raise RuntimeError(f"histc: bins must be > 0; got {bins}.")
    low, high = _limits("histc", input, min, max, 1.0)
    x = input.detach().reshape(-1)
    inside = (x >= low) & (x <= high)
    places = _where(inside, (x - low) * (bins / (high - low)), 0).long().clamp_max(bins - 1)
    counts = zeros((bins,), dtype=input.dtype, device=input.device)
    return into(out, counts.index_add(0, places, inside.to(input.dtype)))


Histogram = _pair("histogram", "hist", "bin_edges")


@function(method=True, deep=True, out=True)
def histogram(input, bins=100, *, range=None, weight=None, density=False):
    """Count elements between ascending bin edges; the last bin includes both.

    Args:
        input: Floating point.
        bins: Number of intervals of equal width, or their edges as a vector.
        range: Where the first starts and the last ends; by default, of the data.
        weight: Counts for each element instead of 1; the shape of ``input``.
        density: Divide by the sum and the widths, so that the integral is 1.

    Returns:
        The named pair ``(hist, bin_edges)``, in the dtype of ``input``. Not differentiable.
    """
    if input.dtype.category != FLOAT or input.dtype.is_half:
        raise NotImplementedError(
            f'"histogramdd" not implemented for {input.dtype}. Convert with .float().'
        )
    x = input.detach().reshape(-1)
    if range is not None and len(range) != 2:
        raise RuntimeError("torch.histogramdd: range should have 2 elements")
    edges = _edges(x, bins, range)
    inside, places = _bins(x, edges)
    counts = _counts(input.unsqueeze(-1), x, weight) * inside
    hist = zeros((edges.shape[0] - 1,), dtype=x.dtype, device=x.device)
    hist = hist.index_add(0, places, counts)
    if density:
        hist = hist / (edges.diff() * hist.sum())
    return Histogram(hist, edges)


def _edges(x, bins, range):
    # The edges of one dim, from themselves or from their number.

    if isinstance(bins, Tensor):
        if bins.dtype is not x.dtype:
            raise RuntimeError(
                "torch.histogramdd: input tensor and bins tensors should have the same dtype, but "
                f"got input with dtype {x.dtype} and bins with dtype {bins.dtype}"
            )
        if bins.ndim != 1 or bins.numel() < 2:
            raise RuntimeError(
                "torch.histogram: bins tensor should be a vector of edges, at least two; got "
                f"shape {tuple(bins.shape)}."
            )
        return bins.detach()
    if bins <= 0:
        raise RuntimeError(f"torch.histogramdd(): bins must be > 0, but got {bins}")
    if range is None:
        low, high = _limits("histogram", x, 0, 0, 0.5) if x.numel() else (0.0, 1.0)
    else:
        low, high = map(float, range)
        if not (isfinite(low) and isfinite(high)) or low > high:
            raise RuntimeError(
                f"torch.histogramdd: range [{low}, {high}] must be finite and ascending."
            )
        if low == high:
            low, high = low - 0.5, high + 0.5
    return linspace(low, high, bins + 1, dtype=x.dtype, device=x.device)


def _bins(x, edges):
    # Whether each element is between the edges, and in which interval.
    inside = (x >= edges[0]) & (x <= edges[-1])
    return inside.to(x.dtype), _searchsorted(edges, x.contiguous(), right=True).sub(1).clamp(
        0, edges.shape[0] - 2
    )


def _counts(input, x, weight):
    # What each point counts.
    points = tuple(input.shape[:-1])
    if weight is None:
        return x.new_ones((prod(points),))
    if tuple(weight.shape) != points:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided it should have the same shape as the "
            f"input tensor excluding its innermost dimension, but got {tuple(weight.shape)} for "
            f"{points}"
        )
    if weight.dtype is not input.dtype:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor "
            f"should have the same dtype, but got {input.dtype} and {weight.dtype}"
        )
    return weight.detach().reshape(-1)


HistogramDD = _pair("histogramdd", "hist", "bin_edges")


@function(deep=True)
def histogramdd(input, bins, range=None, weight=None, density=False):
    """Count points in the bins of a grid; the last bin of each dim includes both edges.

    Args:
        input: (*, D), floating point: points with D coordinates.
        bins: The number of intervals of each dim, a list or one for all; or vectors of edges.
        range: The first and the last edge of each dim, one after the other; by default, the data's.
        weight: Counts for each point instead of 1; the shape of ``input`` without its last dim.
        density: Divide by the sum and the volumes, so that the integral is 1.

    Returns:
        The named pair ``(hist, bin_edges)``: (bins of each dim), and a tuple of the edges.
    """
    if input.dtype.category != FLOAT or input.dtype.is_half:
        raise NotImplementedError(
            f'"histogramdd" not implemented for {input.dtype}. Convert with .float().'
        )
    if input.ndim < 2:
        raise RuntimeError(
            "torch.histogramdd: input tensor should have at least 2 dimensions, but got "
            f"{input.ndim}. Unsqueeze it."
        )
    dims = input.shape[-1]
    x = input.detach().reshape(prod(input.shape[:-1]), dims)
    bins = [bins] * dims if isinstance(bins, int) else list(bins)
    if len(bins) != dims:
        raise RuntimeError(
            f"torch.histogramdd: expected bins for each of the {dims} dims; got {len(bins)}."
        )
    if range is not None and len(range) != 2 * dims:
        raise RuntimeError(
            f"torch.histogramdd: for a {dims}-dimensional histogram range should have {2 * dims} "
            f"elements, but got {len(range)}"
        )
    counts = _counts(input, x, weight)
    edges, place = [], None
    for d, b in enumerate(bins):
        given = None if range is None else range[2 * d : 2 * d + 2]
        edges.append(_edges(x.select(1, d), b, given))
        inside, here = _bins(x.select(1, d), edges[d])
        counts = counts * inside
        place = here if place is None else place * (edges[d].shape[0] - 1) + here
    shape = tuple(e.shape[0] - 1 for e in edges)
    hist = zeros((prod(shape),), dtype=x.dtype, device=x.device)
    hist = hist.index_add(0, place, counts).reshape(shape)
    if density:
        hist = hist / hist.sum()
        for d, e in enumerate(edges):
            hist = hist / e.diff().reshape(-1, *[1] * (dims - d - 1))
    return HistogramDD(hist, tuple(edges))
