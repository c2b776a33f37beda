"""Dropout, whose mask backward draws again from its seed.

The mask is a function of (seed, offset) and the number of the element, or of the channel, so a node
keeps those two integers and no mask, and the gradient is the same op applied to the arriving
gradient.

Source:
    Srivastava et al.: "Dropout", 2014; alpha dropout: Klambauer et al.: "Self-Normalizing Neural
    Networks", 2017. Scaled in training, as PyTorch does, so evaluation changes nothing.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from ...dtypes import bool_, float32, int32
from ...kernels.common.copy import line_copier
from ...kernels.common.layout import contiguous, heavy, tiles
from ...kernels.cuda import random as on_gpu
from ...kernels.cuda.kernel import is_float
from ...kernels.runtime import threads, thresholds
from ...random.generator import draw
from ...random.philox import Rng, bits
from ...spec import Spec
from ..overwrite import write_over
from ..registry import function, op
from ..signatures import per_element

_LEAST_TILE = 1 << 10  # elements: as many as the compiled kernel draws words for at once


def _mask_infer(input, rng, **_):
    if input.dtype.category < 2:
        raise RuntimeError(
            f"dropout: result type Float can't be cast to {input.dtype.name}. Convert the input "
            "with .float()."
        )
    tile = (min(input.numel, thresholds.tile_elements(input.on_host)),)
    return input, Spec(tile, int32), Spec(tile, bool_)


def _mask_samples(make):
    yield (make(3, 4), Rng(3, 5)), {"p": 0.3, "scale": 1 / 0.7, "shift": 0.0, "value": 0.0}
    yield (make(2, 0), Rng(3, 5)), {"p": 0.3, "scale": 1 / 0.7, "shift": 0.0, "value": 0.0}
    yield (make(), Rng(3, 5)), {"p": 0.5, "scale": 2.0, "shift": 0.1, "value": -0.5}


@op(
    inplace="_dropout_",
    infer=_mask_infer,
    scratch=("words", "kept"),
    layout=contiguous,
    flops=per_element(2),
    samples=_mask_samples,
)
def _dropout(xp, out, words, kept, input, rng, *, p, scale, shift, value):
    """``input * scale + shift``, or, with probability ``p`` for each element, ``value``."""
    flat, target = input.reshape(-1), out.reshape(-1)
    random = words.view(xp.uint32)
    for here in tiles(flat.size, thresholds.tile_elements(xp is np)):
        x, y = flat[here], target[here]
        keep = kept[: x.size]
        draw_kept(xp, keep, random[: x.size], rng, here.start, p)
        xp.multiply(x, scale, out=y)
        if shift:
            xp.add(y, shift, out=y)
        if value:
            xp.logical_not(keep, out=keep)
            xp.copyto(y, value, where=keep)
        else:
            xp.multiply(y, keep, out=y)


def _single_tiles(input, rng, **_):
    # A tile in float32 for each thread: together at most half the elements, which is as many bytes
    # as the tensor has, but for tensors of less than two of the smallest tiles.
    chunks = threads.LIMIT
    tile = min(thresholds.TILE, input.numel // (2 * chunks) // _LEAST_TILE * _LEAST_TILE)
    tile = min(input.numel, max(tile, _LEAST_TILE))
    return (Spec((max(1, min(chunks, input.numel // (2 * tile))), tile), float32),)


def _heavy_half(input, rng, **_):
    return heavy(input.like(dtype=float32))


@_dropout.kernel(
    "cpu",
    dtypes="half",
    when=_heavy_half,
    layout=contiguous,
    scratch=_single_tiles,
    overwrites=("input",),
)
def _(xp, out, singles, input, rng, *, p, scale, shift, value):
    from ...kernels.cpu.random import dropout as noise

    flat, target, tile = input.reshape(-1), out.reshape(-1), singles.shape[1]
    widen = line_copier(singles.dtype, flat.dtype)
    narrow = line_copier(target.dtype, singles.dtype)
    numbers = round(p * 2**32), scale, shift, value

    def run(chunk, first, last):
        for start in range(first * tile, min(last * tile, flat.size), tile):
            x = flat[start : start + tile]
            y = singles[chunk, : x.size]
            widen(y, x)
            # Words come in fours, and so do the elements of all tiles but the last.
            noise.dropout(y, y, rng.seed, rng.offset + start // 4, *numbers, together=True)
            narrow(target[start : start + tile], y)

    threads.parallel_chunks(run, -(-flat.size // tile), len(singles))


@_dropout.kernel("cpu", when=heavy, layout=contiguous, scratch=False, overwrites=("input",))
def _(xp, out, input, rng, *, p, scale, shift, value):
    from ...kernels.cpu.random import dropout as noise

    flat, target = input.reshape(-1), out.reshape(-1)
    noise.dropout(target, flat, rng.seed, rng.offset, round(p * 2**32), scale, shift, value)


@_dropout.kernel(
    "cuda", when=lambda input, *_, **__: is_float(input), layout=contiguous, scratch=False
)
def _(xp, out, input, rng, *, p, scale, shift, value):
    on_gpu.dropout(xp, out, input, rng.seed, rng.offset, round(p * 2**32), scale, shift, value)


def draw_kept(xp, kept, words, rng, first, p) -> None:
    """Draw which elements of a mask are kept, from ``first`` (a multiple of four) on."""
    threshold = round(p * 2**32)
    if threshold >> 32:
        kept.fill(False)
    else:
        bits(xp, words, rng, first)
        xp.greater_equal(words, threshold, out=kept)


@_dropout.vjp("input", room=("g",))
def _(g, rng, p, scale, room):
    return write_over(room, _dropout, g, rng, p=p, scale=scale, shift=0.0, value=0.0)


def _probability(name, p):
    if not 0.0 <= p <= 1.0:
        raise ValueError(
            f"{name}: dropout probability has to be between 0 and 1, but got {p}. Pass the share "
            "of zeros."
        )


def zero_some(input, p):
    """Dropout with the mask from the device's generator."""
    rng = draw(input.numel(), input.device)
    return _dropout(input, rng, float(p), 0.0 if p == 1 else 1.0 / (1.0 - p), 0.0, 0.0)


@function(names={"train": "training"})
def dropout(input, p=0.5, training=True, inplace=False):
    """Apply dropout: zero elements with probability ``p``, scale others by ``1 / (1 - p)``.

    Args:
        input: Values of any shape, floating point.
        p: Probability of a zero, in [0, 1].
        training: False returns ``input`` itself.
        inplace: Write into ``input``.

    Returns:
        Tensor of the shape and dtype of ``input``.

    Raises:
        ValueError: ``p`` is outside [0, 1].

    Memory:
        Keeps (seed, offset), 16 bytes at any size: backward draws the mask again.

    Example:
        >>> import lowtide as lt
        >>> lt.dropout(lt.tensor([1.0, 2.0]), p=0.0).tolist()
        [1.0, 2.0]
    """
    _probability("dropout", p)
    if not training or (p == 0 and inplace):
        return input
    if not inplace:
        return zero_some(input, p)
    if not input.is_contiguous():
        return input.copy_(zero_some(input, p))
    rng = draw(input.numel(), input.device)
    return input._dropout_(rng, float(p), 0.0 if p == 1 else 1.0 / (1.0 - p), 0.0, 0.0)


def _channel_infer(input, rng, *, lead, **_):
    _, words, kept = _mask_infer(input, rng)
    noise = Spec(input.shape[:lead], input.dtype)
    count = (min(noise.numel, thresholds.tile_elements(input.on_host)),)
    return input, noise, words.like(count), kept.like(count)


def _channel_samples(make):
    base = {"p": 0.3, "scale": 1.5, "low": 0.0, "shift": 0.0, "lead": 2}
    yield (make(2, 3, 4), Rng(3, 5)), base
    yield (make(2, 0, 3), Rng(3, 5)), base
    yield (make(3, 4), Rng(3, 5)), {"p": 0.5, "scale": 2.0, "low": -0.5, "shift": 0.1, "lead": 1}


@op(
    inplace="_channel_dropout_",
    infer=_channel_infer,
    scratch=("noise", "words", "kept"),
    flops=per_element(2),
    samples=_channel_samples,
)
def _channel_dropout(xp, out, noise, words, kept, input, rng, *, p, scale, low, shift, lead):
    """``input * scale + shift`` in channels that are kept, ``low + shift`` in the others.

    A channel is what the first ``lead`` dims tell apart.
    """
    flat, random = noise.reshape(-1), words.view(xp.uint32)
    for here in tiles(flat.size, thresholds.tile_elements(xp is np)):
        tile = flat[here]
        draw_kept(xp, kept[: tile.size], random[: tile.size], rng, here.start, p)
        xp.copyto(tile, kept[: tile.size])
    each = noise.reshape(*noise.shape, *[1] * (input.ndim - lead))
    xp.multiply(each, scale, out=each)
    xp.multiply(input, each, out=out)
    if low or shift:  # then low where the noise is 0
        xp.equal(each, 0, out=each)
        xp.multiply(each, low, out=each)
        xp.add(each, shift, out=each)
        xp.add(out, each, out=out)


@_channel_dropout.vjp("input")
def _(g, rng, p, scale, lead):
    return _channel_dropout(g, rng, p, scale, 0.0, 0.0, lead)


def _channels(input, p, scale, inplace, batched, low=0.0, shift=0.0):
    lead = 2 if batched else 1
    rng = draw(prod(input.shape[:lead]), input.device)
    run = input._channel_dropout_ if inplace else partial(_channel_dropout, input)
    return run(rng, float(p), scale, low, shift, lead)


def _zero_channels(name, input, p, training, inplace, batched):
    _probability(name, p)
    if not training or p == 0:
        return input
    return _channels(input, p, 0.0 if p == 1 else 1.0 / (1.0 - p), inplace, batched)


@function()
def feature_dropout(input, p, train):
    """Apply dropout to whole channels of (N, C, *)."""
    return _zero_channels("feature_dropout", input, p, train, False, True)


@function(public=False)
def dropout1d(input, p=0.5, training=True, inplace=False):
    """Apply dropout to whole channels of (N, C, L) or (C, L)."""
    if input.ndim not in (2, 3):
        raise RuntimeError(
            f"dropout1d: Expected 2D or 3D input, but received a {input.ndim}D input. "
            "Pass (N, C, L), or (C, L)."
        )
    return _zero_channels("dropout1d", input, p, training, inplace, input.ndim == 3)


@function(public=False)
def dropout2d(input, p=0.5, training=True, inplace=False):
    """Apply dropout to whole channels of (N, C, H, W).

    As in PyTorch, three dimensions are (N, C, L).
    """
    return _zero_channels("dropout2d", input, p, training, inplace, True)


@function(public=False)
def dropout3d(input, p=0.5, training=True, inplace=False):
    """Apply dropout to whole channels of (N, C, D, H, W) or (C, D, H, W)."""
    return _zero_channels("dropout3d", input, p, training, inplace, input.ndim != 4)


_ALPHA = -1.7580993408473766  # what SELU tends to for very negative inputs


def _alpha_terms(p):
    # Chosen so that zero mean and unit variance stay that.
    a = 0.0 if p == 1 else ((1.0 - p) * (1.0 + p * _ALPHA**2)) ** -0.5
    return a, -a * _ALPHA * p


@function(names={"train": "training"})
def alpha_dropout(input, p=0.5, training=False, inplace=False):
    """Apply alpha dropout: set elements to SELU's negative limit, keeping mean and variance.

    Args:
        input: Values of any shape, floating point.
        p: Probability, in [0, 1].
        training: False returns ``input`` itself.
        inplace: Write into ``input``.

    Returns:
        Tensor of the shape and dtype of ``input``.

    Memory:
        Keeps (seed, offset), 16 bytes at any size.
    """
    _probability("alpha_dropout", p)
    if not training or p == 0:
        return input
    a, b = _alpha_terms(p)
    rng = draw(input.numel(), input.device)
    out = _dropout(input, rng, float(p), a, b, a * _ALPHA + b)
    return input.copy_(out) if inplace else out


@function(names={"train": "training"})
def feature_alpha_dropout(input, p=0.5, training=False, inplace=False):
    """Apply alpha dropout to whole channels."""
    _probability("feature_alpha_dropout", p)
    if not training or p == 0:
        return input
    a, b = _alpha_terms(p)
    return _channels(input, p, a, inplace, True, a * _ALPHA, b)
