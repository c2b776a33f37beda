"""Convolution as users call it: PyTorch's names and arguments, over ops of ``primitives.py``."""

from __future__ import annotations

from ..registry import function
from .primitives import _conv, _conv_input_grad


def several(name: str, value, nd: int) -> tuple[int, ...]:
    """One int per spatial dimension, from an int or a sequence.

    Raises:
        RuntimeError: The sequence has another length.
    """
    if isinstance(value, int):
        return (value,) * nd
    value = tuple(int(v) for v in value)
    if len(value) == 1:
        return value * nd
    if len(value) != nd:
        raise RuntimeError(
            f"{name}: expected one value or {nd} for {nd} spatial dimensions; got {value}."
        )
    return value


def _convolve(name, nd, input, weight, bias, stride, padding, dilation, groups):
    stride, dilation = several(name, stride, nd), several(name, dilation, nd)
    if input.ndim not in (nd + 1, nd + 2) or weight.ndim != nd + 2:
        raise RuntimeError(
            f"Expected {nd + 1}D (unbatched) or {nd + 2}D (batched) input to {name} and "
            f"{nd + 2}D weight; got input {tuple(input.shape)} and weight "
            f"{tuple(weight.shape)}. Add or remove a dimension."
        )
    if isinstance(padding, str):
        pairs = _named_padding(name, padding, weight.shape[2:], stride, dilation)
    else:
        pairs = tuple((p, p) for p in several(name, padding, nd))
    batched = input if input.ndim == nd + 2 else input.unsqueeze(0)
    out = _conv(batched, weight, bias, stride, pairs, dilation, groups)
    return out if batched is input else out.view(out.shape[1:])


def _named_padding(name, padding, kernel, stride, dilation):
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if padding != "same":
        raise RuntimeError(f"{name}: padding must be 'same', 'valid' or numbers; got {padding!r}.")
    if any(s != 1 for s in stride):
        raise RuntimeError(
            f"{name}: padding='same' is not supported for strided convolutions; got stride "
            f"{stride}. Pass numbers."
        )
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return tuple((t // 2, t - t // 2) for t in totals)


@function()
def conv1d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Convolve signals: cross-correlation along the last dimension.

    Args:
        input: (N, C, L), or (C, L) for one signal.
        weight: (O, C / groups, K).
        bias: (O,), or None.
        stride: Between window positions.
        padding: Zeros on both sides; or "same" or "valid".
        dilation: Between the elements of the window.
        groups: Independent groups of channels.

    Returns:
        Tensor (N, O, L_out).

    Memory:
        Keeps input (for the weight's gradient) and weight (for the input's). Workspace: one
        tile for each thread, about 1 MiB beyond a few lines, whatever the batch; none for a large
        depthwise convolution on a CPU.
    """
    return _convolve("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


@function()
def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Convolve images: cross-correlation along the last two dimensions.

    Args:
        input: (N, C, H, W), or (C, H, W) for one image.
        weight: (O, C / groups, KH, KW).
        bias: (O,), or None.
        stride: Between window positions; one int or two.
        padding: Zeros on each side; one int or two; or "same" or "valid".
        dilation: Between the elements of the window; one int or two.
        groups: Independent groups of channels.

    Returns:
        Tensor (N, O, H_out, W_out).

    Memory:
        Keeps input (for the weight's gradient) and weight (for the input's). Workspace: one
        tile for each thread, about 1 MiB beyond a few lines, whatever the batch; none for a large
        depthwise convolution on a CPU.
    """
    return _convolve("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@function()
def conv3d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Convolve volumes: cross-correlation along the last three dimensions.

    The arguments are those of :func:`conv2d`, with one more spatial dimension.
    """
    return _convolve("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


def _transpose(nd, input, weight, bias, stride, padding, output_padding, groups, dilation):
    name = f"conv_transpose{nd}d"
    stride, dilation = several(name, stride, nd), several(name, dilation, nd)
    padding, extra = several(name, padding, nd), several(name, output_padding, nd)
    if input.ndim not in (nd + 1, nd + 2) or weight.ndim != nd + 2:
        raise RuntimeError(
            f"Expected {nd + 1}D (unbatched) or {nd + 2}D (batched) input to {name} and "
            f"{nd + 2}D weight; got input {tuple(input.shape)} and weight "
            f"{tuple(weight.shape)}. Add or remove a dimension."
        )
    if input.shape[-nd - 1] != weight.shape[0] or weight.shape[0] % groups:
        raise RuntimeError(
            f"{name}: weight {tuple(weight.shape)} takes {weight.shape[0]} input channels in "
            f"{groups} groups; got input {tuple(input.shape)}. Pass channels in the dimension "
            "before the spatial ones."
        )
    if any(e >= s and e >= d for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise RuntimeError(
            f"{name}: output padding must be smaller than either stride or dilation; got "
            f"output_padding {extra}, stride {stride}, dilation {dilation}."
        )
    batched = input if input.ndim == nd + 2 else input.unsqueeze(0)
    size = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, s, p, d, k, e in zip(
            batched.shape[2:], stride, padding, dilation, weight.shape[2:], extra, strict=True
        )
    )
    if any(n < 1 for n in size):
        raise RuntimeError(f"{name}: the result would have spatial size {size}. Use less padding.")
    out = _conv_input_grad(
        batched, weight, size, stride, tuple((p, p) for p in padding), dilation, groups
    )
    if bias is not None:
        out = out.add_(bias.view(-1, *[1] * nd))  # nothing else has it, and no gradient wants it
    return out if batched is input else out.view(out.shape[1:])


@function()
def conv_transpose1d(
    input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
):
    """Convolve signals backwards: the adjoint of :func:`conv1d` applied to ``input``.

    Args:
        input: (N, C, L), or (C, L).
        weight: (C, O / groups, K).
        bias: (O,), or None.
        stride: Of the convolution this is the adjoint of: it spreads ``input`` out.
        padding: Of that convolution: it crops the result on both sides.
        output_padding: Extra size on one side, where several inputs lead to one output size.
        groups: Independent groups of channels.
        dilation: Between the elements of the window.

    Returns:
        Tensor (N, O, L_out).

    Memory:
        As :func:`conv1d`.
    """
    return _transpose(1, input, weight, bias, stride, padding, output_padding, groups, dilation)


@function()
def conv_transpose2d(
    input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
):
    """Convolve images backwards: the adjoint of :func:`conv2d` applied to ``input``.

    The arguments are those of :func:`conv_transpose1d`, with one more spatial dimension.
    """
    return _transpose(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


@function()
def conv_transpose3d(
    input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
):
    """Convolve volumes backwards: the adjoint of :func:`conv3d` applied to ``input``.

    The arguments are those of :func:`conv_transpose1d`, with two more spatial dimensions.
    """
    return _transpose(3, input, weight, bias, stride, padding, output_padding, groups, dilation)
