"""Patches of images: windows as columns and back, and channels traded for pixels.

``unfold`` and ``fold`` are each other's adjoint, so each is the other's gradient.
"""

from __future__ import annotations

from itertools import product
from math import prod

from ..registry import function, op
from .functional import several
from .im2col import output_size, reach


def _counts(size, kernel, dilation, padding, stride):
    """How many windows there are along each dim."""
    return tuple(
        output_size(n, k, s, (p, p), d)
        for n, k, d, p, s in zip(size, kernel, dilation, padding, stride, strict=True)
    )


def _checked_counts(name, size, kernel, dilation, padding, stride):
    """The same, of arguments that a user gave."""
    for what, values, least in (
        ("kernel_size", kernel, 1),
        ("dilation", dilation, 1),
        ("stride", stride, 1),
        ("padding", padding, 0),
    ):
        if min(values) < least:
            bound = "greater than zero" if least else "non-negative"
            raise RuntimeError(f"{name}: {what} should be {bound}, but got {values}.")
    counts = _counts(size, kernel, dilation, padding, stride)
    if min(counts) < 1:
        raise RuntimeError(
            f"{name}: an image of {tuple(size)} with kernel_size {kernel}, dilation {dilation}, "
            f"padding {padding} and stride {stride} has {counts} windows, but its components must "
            "be at least one. Pad it, or take a smaller kernel."
        )
    return counts


def _shifts(size, counts, kernel, dilation, padding, stride):
    """(element of the window, windows, pixels) for each element of the window."""
    axes = [
        [(j, *reach(j * dilation[d], size[d], counts[d], stride[d], padding[d])) for j in range(k)]
        for d, k in enumerate(kernel)
    ]
    for taps in product(*axes):
        yield tuple(zip(*taps, strict=True))


def _columns_infer(input, *, kernel, dilation, padding, stride):
    if input.ndim not in (3, 4) or 0 in input.shape[-3:]:
        raise RuntimeError(
            "unfold: Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other "
            f"non-zero dimensions for input, but got: {list(input.shape)}. Pass (N, C, H, W)."
        )
    counts = _checked_counts("unfold", input.shape[-2:], kernel, dilation, padding, stride)
    return input.like((*input.shape[:-3], input.shape[-3] * prod(kernel), prod(counts)))


def _columns_samples(make):
    base = {"kernel": (2, 3), "dilation": (1, 1), "padding": (0, 1), "stride": (1, 2)}
    yield (make(2, 3, 4, 5),), base
    yield (make(2, 4, 6),), base | {"dilation": (2, 1)}
    yield (make(0, 2, 4, 5),), base | {"kernel": (2, 2), "padding": (1, 1), "stride": (1, 1)}


@op(
    infer=_columns_infer,
    half="exact",
    flops=lambda *_, **__: 0,
    samples=_columns_samples,
)
def _columns(xp, out, input, *, kernel, dilation, padding, stride):
    """Every window of an image as a column, zeros where it reaches beyond."""
    size = input.shape[-2:]
    counts = _counts(size, kernel, dilation, padding, stride)
    windows = out.reshape(*input.shape[:-2], *kernel, *counts)
    if max(padding):
        out.fill(0)
    for taps, places, pixels in _shifts(size, counts, kernel, dilation, padding, stride):
        target = windows[(..., *taps, slice(None), slice(None))]
        xp.copyto(target[(..., *places)], input[(..., *pixels)])


@_columns.vjp("input")
def _(g, input_spec, kernel, dilation, padding, stride):
    return _image(g, tuple(input_spec.shape[-2:]), kernel, dilation, padding, stride)


def _image_infer(input, *, size, kernel, dilation, padding, stride):
    if input.ndim not in (2, 3) or 0 in input.shape[-2:]:
        raise RuntimeError(
            "fold: Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and "
            f"non-zero dimensions, but got: {list(input.shape)}. Pass (N, C * windows' size, L)."
        )
    if min(kernel) < 1:
        raise RuntimeError(f"fold: kernel size should be greater than zero, but got {kernel}.")
    if input.shape[-2] % prod(kernel):
        raise RuntimeError(
            "fold: Expected size of input's dimension 1 to be divisible by the product of "
            f"kernel_size, but got input.size(1)={input.shape[-2]} and kernel_size={kernel}."
        )
    counts = _checked_counts("fold", size, kernel, dilation, padding, stride)
    if input.shape[-1] != prod(counts):
        raise RuntimeError(
            f"fold: Given output_size={size}, kernel_size={kernel}, dilation={dilation}, "
            f"padding={padding}, stride={stride}, expected size of input's dimension 2 to match "
            f"the calculated number of sliding blocks {counts[0]} * {counts[1]} = {prod(counts)}, "
            f"but got input.size(2)={input.shape[-1]}."
        )
    return input.like((*input.shape[:-2], input.shape[-2] // prod(kernel), *size))


def _image_samples(make):
    base = {"kernel": (2, 3), "dilation": (1, 1), "padding": (0, 1), "stride": (1, 2)}
    for x, extra in (
        (make(2, 2, 4, 5), {}),
        (make(2, 5, 6), {"dilation": (2, 1), "stride": (2, 2)}),
        (make(0, 2, 4, 5), {"kernel": (2, 2), "padding": (1, 1)}),
    ):
        geometry = base | extra
        yield (_columns(x, **geometry).clone(),), geometry | {"size": tuple(x.shape[-2:])}


@op(infer=_image_infer, flops=lambda input, **_: input.numel, samples=_image_samples)
def _image(xp, out, input, *, size, kernel, dilation, padding, stride):
    """Add every column to the pixels of its window."""
    counts = _counts(size, kernel, dilation, padding, stride)
    out.fill(0)
    # Splitting a dim of any array is a view; joining the two of the windows would not be.
    windows = input.reshape(*out.shape[:-2], *kernel, *counts)
    for taps, places, pixels in _shifts(size, counts, kernel, dilation, padding, stride):
        source = windows[(..., *taps, slice(None), slice(None))]
        target = out[(..., *pixels)]
        xp.add(target, source[(..., *places)], out=target)


@_image.vjp("input")
def _(g, kernel, dilation, padding, stride):
    return _columns(g, kernel, dilation, padding, stride)


def _pairs(kernel_size, dilation, padding, stride):
    return (
        several("kernel_size", kernel_size, 2),
        several("dilation", dilation, 2),
        several("padding", padding, 2),
        several("stride", stride, 2),
    )


@function(public=False)
def unfold(input, kernel_size, dilation=1, padding=0, stride=1):
    """Lay out every window of a batch of images as a column.

    Args:
        input: (N, C, H, W) or (C, H, W).
        kernel_size: Of a window; this and the others are ints or pairs.
        dilation: Between the elements of a window.
        padding: Zeros on both sides.
        stride: Between windows.

    Returns:
        Tensor (N, C * elements of a window, number of windows).

    Raises:
        RuntimeError: No window fits, or ``input`` is no image.
    """
    return _columns(input, *_pairs(kernel_size, dilation, padding, stride))


@function(public=False)
def fold(input, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """Add up columns of windows into images: the transpose of :func:`unfold`.

    Args:
        input: (N, C * elements of a window, number of windows), or that without N.
        output_size: (H, W).
        kernel_size: As for :func:`unfold`, like the rest.
        dilation: Between the elements of a window.
        padding: Of the images that the windows were taken from.
        stride: Between windows.

    Returns:
        Tensor (N, C, H, W).

    Raises:
        RuntimeError: The columns are not those of such an image.
    """
    size = several("output_size", output_size, 2)
    return _image(input, size, *_pairs(kernel_size, dilation, padding, stride))


def _three(name, input):
    if input.ndim < 3:
        raise RuntimeError(
            f"{name} expects input to have at least 3 dimensions, but got input with "
            f"{input.ndim} dimension(s)"
        )


@function()
def pixel_shuffle(input, upscale_factor):
    """Turn channels into pixels: (*, C r^2, H, W) to (*, C, H r, W r).

    Args:
        input: (*, C r^2, H, W).
        upscale_factor: r.

    Raises:
        RuntimeError: The channels are not divisible by r^2.

    Source:
        Shi et al.: "Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel
        Convolutional Neural Network", 2016.
    """
    _three("pixel_shuffle", input)
    r = int(upscale_factor)
    if r < 1:
        raise RuntimeError(f"pixel_shuffle expects a positive upscale_factor, but got {r}")
    *lead, c, h, w = input.shape
    if c % (r * r):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square "
            f"of upscale_factor, but input.size(-3)={c} is not divisible by {r * r}"
        )
    n = len(lead)
    apart = input.reshape(*lead, c // (r * r), r, r, h, w)
    order = (*range(n + 1), n + 3, n + 1, n + 4, n + 2)
    return apart.permute(order).reshape(*lead, c // (r * r), h * r, w * r)


@function()
def pixel_unshuffle(input, downscale_factor):
    """Turn pixels into channels: (*, C, H r, W r) to (*, C r^2, H, W).

    Args:
        input: (*, C, H r, W r).
        downscale_factor: r.

    Raises:
        RuntimeError: The height or width is not divisible by r.
    """
    _three("pixel_unshuffle", input)
    r = int(downscale_factor)
    if r < 1:
        raise RuntimeError(f"pixel_unshuffle expects a positive downscale_factor, but got {r}")
    *lead, c, h, w = input.shape
    for what, n in (("height", h), ("width", w)):
        if n % r:
            raise RuntimeError(
                f"pixel_unshuffle expects {what} to be divisible by downscale_factor, but "
                f"input.size({-2 if what == 'height' else -1})={n} is not divisible by {r}"
            )
    n = len(lead)
    apart = input.reshape(*lead, c, h // r, r, w // r, r)
    order = (*range(n + 1), n + 2, n + 4, n + 1, n + 3)
    return apart.permute(order).reshape(*lead, c * r * r, h // r, w // r)


@function()
def channel_shuffle(input, groups):
    """Interleave the channels of groups: channel ``g K + k`` becomes ``k groups + g``.

    Args:
        input: (N, C, *).
        groups: A divisor of C.

    Raises:
        RuntimeError: The channels cannot be divided into that many groups.
    """
    if input.ndim < 3:
        raise RuntimeError(
            f"channel_shuffle expects input with > 2 dims, but got input with sizes "
            f"{list(input.shape)}"
        )
    groups = int(groups)
    if groups < 1:
        raise RuntimeError(
            f"Number of groups to divide channels in must be positive. Value of groups:{groups}"
        )
    n, c, *rest = input.shape
    if c % groups:
        raise RuntimeError(
            f"Number of channels must be divisible by groups. Got {c} channels and {groups} groups."
        )
    apart = input.reshape(n, groups, c // groups, *rest)
    return apart.transpose(1, 2).reshape(n, c, *rest)
