"""Normalization functions with PyTorch's names and arguments."""

from __future__ import annotations

from math import prod

from ...dtypes import finfo, float32
from ...interrupts import defer_interrupts
from ...kernels.common.layout import contiguous
from ...modes import no_grad
from ..autocast_policy import WIDE_ON_CUDA
from ..elementwise.arithmetic import div
from ..elementwise.ternary import addcmul
from ..manipulation.pad import pad
from ..pooling.primitives import _avg_pool
from ..registry import function, op
from .primitives import (
    _batch_norm,
    _rms_norm,
    group_norm_view,
    instance_norm_view,
    layer_norm_view,
)

# The public functions


@function(autocast=WIDE_ON_CUDA)
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    """Layer normalization over the last dimensions, then scale and shift.

    Args:
        input: (*, normalized_shape).
        normalized_shape: Sizes of the last dimensions, which are averaged over.
        weight: Of that shape, or None.
        bias: Of that shape, or None.
        eps: Added to the variance.
        cudnn_enable: Accepted and ignored.

    Returns:
        Tensor of the shape of ``input``.

    Memory:
        Keeps input, weight, and two numbers per row.

    Source:
        Ba, Kiros, Hinton: "Layer Normalization", 2016.
    """
    wanted = _normalized("layer_norm", input, normalized_shape, weight=weight, bias=bias)
    n = prod(wanted)
    rows = prod(input.shape[: input.ndim - len(wanted)])
    return layer_norm_view(input, weight, bias, (rows, n), (1,), (1, n), eps)


@function(autocast=WIDE_ON_CUDA)
def rms_norm(input, normalized_shape, weight=None, eps=None):
    """RMS normalization over the last dimensions, then scale.

    Args:
        input: (*, normalized_shape).
        normalized_shape: Sizes of the last dimensions, which are averaged over.
        weight: Of that shape, or None.
        eps: Added to the mean square; None means the machine epsilon of the dtype that it is
            computed in: of float32 for float16 and bfloat16.

    Returns:
        Tensor of the shape of ``input``.

    Memory:
        Keeps input, weight, and one number per row.

    Source:
        Zhang, Sennrich: "Root Mean Square Layer Normalization", 2019.
    """
    wanted = _normalized("rms_norm", input, normalized_shape, weight=weight)
    if weight is not None and weight.dtype is not input.dtype:  # the result is of the input's
        weight = weight.to(float32 if input.dtype.is_half else input.dtype)
    n = prod(wanted)
    rows = prod(input.shape[: input.ndim - len(wanted)])
    if eps is None:
        eps = finfo(float32 if input.dtype.is_half else input.dtype).eps
    return _rms_norm(input, weight, (rows, n), (1,), (1, n), eps)


def _normalized(name, input, normalized_shape, **values):
    wanted = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not wanted:
        raise RuntimeError(
            f"{name}: Expected normalized_shape to be at least 1-dimensional; got (). Pass the "
            "sizes of the last dimensions."
        )
    for which, value in values.items():
        if value is not None and tuple(value.shape) != wanted:
            raise RuntimeError(
                f"{name}: Expected {which} to be of same shape as normalized_shape {wanted}; got "
                f"{tuple(value.shape)}. Reshape it."
            )
    if tuple(input.shape[-len(wanted) :]) != wanted:
        raise RuntimeError(
            f"{name}: Given normalized_shape={list(wanted)}, expected input with shape "
            f"[*, {', '.join(map(str, wanted))}], but got input of size {list(input.shape)}. Pass "
            "the sizes of its last dimensions."
        )
    return wanted


@function(autocast=WIDE_ON_CUDA)
def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    """Group normalization per example, then scale and shift per channel.

    Args:
        input: (N, C, *).
        num_groups: Groups that the C channels are divided into.
        weight: (C,), or None.
        bias: (C,), or None.
        eps: Added to the variance.
        cudnn_enabled: Accepted and ignored.

    Returns:
        Tensor of the shape of ``input``.

    Memory:
        Keeps input, weight, and two numbers per group of each example.

    Source:
        Wu, He: "Group Normalization", 2018.
    """
    if input.ndim < 2:
        raise RuntimeError(
            f"group_norm: Expected at least 2 dimensions for input tensor but received "
            f"{input.ndim}. Pass (N, C, *)."
        )
    n, c = input.shape[:2]
    if num_groups < 1 or c % num_groups:
        raise RuntimeError(
            f"group_norm: Expected number of channels in input to be divisible by num_groups, but "
            f"got input of shape {list(input.shape)} and num_groups={num_groups}."
        )
    shape = (n, num_groups, c // num_groups, prod(input.shape[2:]))
    affine = (1, num_groups, c // num_groups, 1)
    return group_norm_view(input, weight, bias, shape, (2, 3), affine, eps)


@function(public=False)
def batch_norm(
    input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    """Batch normalization per channel, by the batch or by running statistics.

    Args:
        input: (N, C, *).
        running_mean: (C,), or None; updated in place when training.
        running_var: (C,), or None; updated in place when training, with the unbiased variance.
        weight: (C,), or None.
        bias: (C,), or None.
        training: Use the batch's own statistics.
        momentum: Share of the new statistics in the running ones.
        eps: Added to the variance.

    Returns:
        Tensor of the shape of ``input``.

    Raises:
        ValueError: Training on a single value per channel.

    Memory:
        Keeps input, weight, and two numbers per channel.

    Source:
        Ioffe, Szegedy: "Batch Normalization", 2015.
    """
    if input.ndim == 1 and not input.numel():
        return input.clone()
    if input.ndim < 2:
        raise ValueError(f"batch_norm: expected (N, C, *) input; got {tuple(input.shape)}.")
    channels = input.shape[1]
    for which, value in (("running_mean", running_mean), ("running_var", running_var)):
        if value is not None and value.numel() != channels:
            raise RuntimeError(
                f"batch_norm: {which} should contain {channels} elements not {value.numel()}. "
                "Make it for the number of channels of input."
            )
    if not training:
        if running_mean is None or running_var is None:
            raise RuntimeError(
                "batch_norm: Expected running_mean and running_var to be defined when "
                "training=False. Pass both, or training=True."
            )
        return _by_running(input, running_mean, running_var, weight, bias, eps)
    count = input.numel() // max(channels, 1)
    if count == 1:
        raise ValueError(
            "Expected more than 1 value per channel when training, got input size "
            f"{list(input.shape)}. Use a larger batch, or training=False."
        )
    shape = (input.shape[0], channels, prod(input.shape[2:]))
    out, mean, var = _batch_norm(input, weight, bias, shape, (0, 2), (1, channels, 1), eps)
    if count:  # of no examples there is no mean
        _update(running_mean, running_var, mean, var, count, momentum)
    return out


def _by_running(input, running_mean, running_var, weight, bias, eps):
    channels = (-1, *[1] * (input.ndim - 2))
    scale = (running_var + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    shift = -running_mean * scale
    if bias is not None:
        shift = shift + bias
    out = addcmul(shift.view(channels), input, scale.view(channels))
    return out if out.dtype is input.dtype else out.to(input.dtype)


def _update(running_mean, running_var, mean, var, count, momentum):
    m = 0.0 if momentum is None else momentum
    with no_grad(), defer_interrupts():
        if running_mean is not None:
            running_mean._blend_(mean, 1 - m, m)
        if running_var is not None:
            running_var._blend_(var, 1 - m, m * (count / max(count - 1, 1)))


def _blend_infer(input, other, keep, share):
    if other.numel != input.numel:
        raise RuntimeError(
            f"blend takes as many numbers of both; got {tuple(input.shape)} and "
            f"{tuple(other.shape)}."
        )
    return input, input


def _blend_samples(make):
    for n in (4, 0):
        yield (make(n), make(1, n, 1), 0.9, 0.1), {}


@op(
    inplace="_blend_",
    infer=_blend_infer,
    scratch=("term",),
    promote=("arith", ("input", "other")),
    layout=contiguous,
    flops=lambda input, *_: 3 * input.numel,
    samples=_blend_samples,
)
def _blend(xp, out, term, input, other, keep, share):
    """Update a running average: ``keep * input + share * other``, in the shape of ``input``."""
    xp.multiply(other.reshape(term.shape), share, out=term)
    xp.multiply(input, keep, out=out)
    xp.add(out, term, out=out)


@function(public=False)
def instance_norm(
    input,
    running_mean=None,
    running_var=None,
    weight=None,
    bias=None,
    use_input_stats=True,
    momentum=0.1,
    eps=1e-5,
):
    """Instance normalization per channel and example, or by running statistics.

    Args:
        input: (N, C, *).
        running_mean: (C,), or None; updated in place with the average over the batch, and left
            alone where examples have no elements.
        running_var: (C,), or None; likewise, with the unbiased variances.
        weight: (C,), or None.
        bias: (C,), or None.
        use_input_stats: Normalize by the input's own statistics.
        momentum: Share of the new statistics in the running ones.
        eps: Added to the variance.

    Returns:
        Tensor of the shape of ``input``.

    Source:
        Ulyanov, Vedaldi, Lempitsky: "Instance Normalization", 2016.
    """
    n, channels = input.shape[:2]
    count = prod(input.shape[2:])
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise RuntimeError(
                "instance_norm: Expected running_mean and running_var to be defined when "
                "use_input_stats=False. Pass both."
            )
        return _by_running(input, running_mean, running_var, weight, bias, eps)
    if count == 1:
        raise ValueError(
            "Expected more than 1 spatial element when training, got input size "
            f"{list(input.shape)}. Use a larger input."
        )
    if count and (running_mean is not None or running_var is not None):
        with no_grad():
            x = input.detach().reshape(n, channels, count)
            var, mean = x.var(-1, correction=0), x.mean(-1)
            _update(running_mean, running_var, mean.mean(0), var.mean(0), count, momentum)
    shape, affine = (n, channels, count), (1, channels, 1)
    return instance_norm_view(input, weight, bias, shape, (2,), affine, eps)


@function(public=False)
def local_response_norm(input, size, alpha=1e-4, beta=0.75, k=1.0):
    """Local response normalization over neighboring channels.

    Args:
        input: (N, C, *).
        size: Number of neighboring channels, this one included.
        alpha: Factor of the mean square.
        beta: Exponent.
        k: Added to the mean square.

    Returns:
        Tensor of the shape of ``input``.
    """
    if input.ndim < 3:
        raise ValueError(
            f"Expected 3D or higher dimensionality input (got {input.ndim} dimensions)."
        )
    if not input.numel():
        return input
    n, c = input.shape[:2]
    squares = (input * input).reshape(n, 1, c, prod(input.shape[2:]))
    # Zeros before and after the channels: windows of `size` that count them.
    before = size // 2
    padded = _pad_channels(squares, before, (size - 1) // 2)
    mean = _avg_pool(padded, (size, 1), (1, 1), (0, 0), False, True, None)
    return input / (mean * alpha + k).pow(beta).reshape(input.shape)


def _pad_channels(x, before, after):
    return pad(x, (0, 0, before, after))


@function(public=False)
def normalize(input, p=2.0, dim=1, eps=1e-12, out=None):
    """Normalize to unit ``p``-norm along ``dim``: ``input / max(norm, eps)``.

    Args:
        input: Any shape.
        p: Exponent of the norm.
        dim: Dimension, or several, whose norm becomes 1.
        eps: The least divisor.
        out: Where to leave the result.

    Returns:
        Tensor of the shape of ``input``.
    """
    norm = input.norm(p, dim, keepdim=True).clamp_min(eps)
    return div(input, norm, out=out) if out is not None else input / norm
