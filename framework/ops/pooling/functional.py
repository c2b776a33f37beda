"""Pooling functions with PyTorch's names and arguments."""

from __future__ import annotations

from math import prod

from ...dtypes import int64
from ..autocast_policy import WIDE_ON_CPU
from ..convolution.functional import several
from ..indexing.where import _where
from ..registry import function
from .adaptive import _adaptive_avg_pool, _adaptive_max_pool
from .primitives import _avg_pool, _max_pool, _max_pool_flat_index

# The public functions: PyTorch's arguments


def _arguments(nd, kernel_size, stride, padding, dilation=1):
    kernel = several("kernel_size", kernel_size, nd)
    if stride is None or (not isinstance(stride, int) and len(stride) == 0):
        stride = kernel
    return (
        kernel,
        several("stride", stride, nd),
        several("padding", padding, nd),
        several("dilation", dilation, nd),
    )


def _max_pool_nd(nd, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices):
    geometry = _arguments(nd, kernel_size, stride, padding, dilation)
    out, index = _max_pool(input, *geometry, bool(ceil_mode))
    if not return_indices:
        return out
    return out, _max_pool_flat_index(index, tuple(input.shape[-nd:]), *geometry)


@function()
def max_pool1d(
    input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
):
    """Apply max pooling over the last dimension.

    Args:
        input: (N, C, L) or (C, L).
        kernel_size: Elements of a window.
        stride: Between windows; ``kernel_size`` if left out.
        padding: Minus infinity on both sides; at most half the window.
        dilation: Between the elements of a window.
        ceil_mode: Also a last window that hangs over the end.
        return_indices: Return also where each maximum was, as int64.

    Returns:
        Tensor (N, C, L_out), or (that, indices).

    Memory:
        Keeps one byte per output element, and not the input.
    """
    return _max_pool_nd(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@function()
def max_pool2d(
    input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
):
    """Apply max pooling over the last two dimensions.

    The arguments are those of :func:`max_pool1d`, ints or pairs. Indices count in the flattened
    H x W plane.
    """
    return _max_pool_nd(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@function(autocast=WIDE_ON_CPU)
def max_pool3d(
    input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
):
    """Apply max pooling over the last three dimensions.

    The arguments are those of :func:`max_pool1d`, ints or triples.
    """
    return _max_pool_nd(3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _avg_pool_nd(nd, input, kernel_size, stride, padding, ceil_mode, include, divisor_override):
    kernel, stride, padding, _ = _arguments(nd, kernel_size, stride, padding)
    if divisor_override == 0:
        raise RuntimeError("avg_pool: divisor must be not zero. Pass None for the window's size.")
    return _avg_pool(
        input, kernel, stride, padding, bool(ceil_mode), bool(include), divisor_override
    )


@function()
def avg_pool1d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    """Apply average pooling over the last dimension.

    Args:
        input: (N, C, L) or (C, L).
        kernel_size: Elements of a window.
        stride: Between windows; ``kernel_size`` if left out.
        padding: Zeros on both sides; at most half the window.
        ceil_mode: Also a last window that hangs over the end.
        count_include_pad: Padding counts as elements.

    Returns:
        Tensor (N, C, L_out).
    """
    return _avg_pool_nd(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


@function()
def avg_pool2d(
    input,
    kernel_size,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
):
    """Apply average pooling over the last two dimensions.

    The arguments are those of :func:`avg_pool1d`, ints or pairs; ``divisor_override`` replaces the
    number of elements.
    """
    return _avg_pool_nd(
        2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


@function(autocast=WIDE_ON_CPU)
def avg_pool3d(
    input,
    kernel_size,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
):
    """Apply average pooling over the last three dimensions.

    The arguments are those of :func:`avg_pool2d`, ints or triples.
    """
    return _avg_pool_nd(
        3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def _adaptive_size(name, nd, input, output_size):
    if input.ndim not in (nd + 1, nd + 2):
        sizes_given = nd > 1 and not isinstance(output_size, int)
        raise (ValueError if sizes_given and input.ndim <= nd else RuntimeError)(
            f"{name}: Expected {nd + 1}D or {nd + 2}D input; got {tuple(input.shape)}. "
            "Add or remove a dimension."
        )
    wanted = (output_size,) * nd if output_size is None else output_size
    wanted = (wanted,) * nd if isinstance(wanted, int) else tuple(wanted)
    if len(wanted) != nd:
        raise RuntimeError(f"{name}: output_size must have {nd} elements; got {wanted}.")
    size = tuple(n if w is None else w for w, n in zip(wanted, input.shape[-nd:], strict=True))
    if any(n < 0 for n in size) or 0 in input.shape[-nd:]:
        raise RuntimeError(
            f"{name}: Expected output sizes of at least 0 and non-zero spatial dimensions; got "
            f"{wanted} for input {tuple(input.shape)}."
        )
    return size


def _even(size, input):
    # If every window has the same size, ordinary pooling does it.
    n = input.shape[-len(size) :]
    if all(m and k % m == 0 for k, m in zip(n, size, strict=True)):
        return tuple(k // m for k, m in zip(n, size, strict=True))
    return None


def _adaptive_avg(name, nd, input, output_size):
    size = _adaptive_size(name, nd, input, output_size)
    kernel = _even(size, input)
    if kernel is not None and prod(kernel) <= prod(size) > 1:  # a pass for each element is less
        return _avg_pool(input, kernel, kernel, (0,) * nd, False, True, None)
    return _adaptive_avg_pool(input, size)


def _adaptive_max(name, nd, input, output_size, return_indices):
    size = _adaptive_size(name, nd, input, output_size)
    kernel = _even(size, input)
    if kernel is not None:
        geometry = (kernel, kernel, (0,) * nd, (1,) * nd)
        out, index = _max_pool(input, *geometry, False)
        if return_indices:
            index = _max_pool_flat_index(index, tuple(input.shape[-nd:]), *geometry)
    else:
        out, index = _adaptive_max_pool(input, size)
        if return_indices:
            index = index.to(int64)
    return (out, index) if return_indices else out


@function()
def adaptive_avg_pool1d(input, output_size):
    """Apply adaptive average pooling of the last dimension to ``output_size``."""
    return _adaptive_avg("adaptive_avg_pool1d", 1, input, output_size)


@function(public=False)
def adaptive_avg_pool2d(input, output_size):
    """Apply adaptive average pooling to ``output_size`` (one int or two).

    None in ``output_size`` keeps the input's size.
    """
    return _adaptive_avg("adaptive_avg_pool2d", 2, input, output_size)


@function(public=False, autocast=WIDE_ON_CPU)
def adaptive_avg_pool3d(input, output_size):
    """Apply adaptive average pooling to ``output_size`` (one int or three)."""
    return _adaptive_avg("adaptive_avg_pool3d", 3, input, output_size)


@function(public=False)
def adaptive_max_pool1d(input, output_size, return_indices=False):
    """Apply adaptive max pooling of the last dimension to ``output_size``."""
    return _adaptive_max("adaptive_max_pool1d", 1, input, output_size, return_indices)


@function(public=False)
def adaptive_max_pool2d(input, output_size, return_indices=False):
    """Apply adaptive max pooling to ``output_size`` (one int or two)."""
    return _adaptive_max("adaptive_max_pool2d", 2, input, output_size, return_indices)


@function(public=False, autocast=WIDE_ON_CPU)
def adaptive_max_pool3d(input, output_size, return_indices=False):
    """Apply adaptive max pooling to ``output_size`` (one int or three)."""
    return _adaptive_max("adaptive_max_pool3d", 3, input, output_size, return_indices)


def _lp_pool(nd, input, norm_type, kernel_size, stride, ceil_mode):
    p = float(norm_type)
    if p == 0:
        raise ZeroDivisionError(
            f"lp_pool{nd}d: there is no root of order 0. Pass a norm_type other than 0."
        )
    kernel, stride, padding, _ = _arguments(nd, kernel_size, stride, 0)
    powers = input.pow(p)
    mean = _avg_pool(powers, kernel, stride, padding, bool(ceil_mode), True, None)
    # Where all are 0 the root has no slope, and the gradient is 0.
    total = _where(mean == 0, 0, mean * float(prod(kernel)))
    return total.pow(1.0 / p)


@function(public=False)
def lp_pool1d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """Apply power-average pooling ``(sum x^p)^(1/p)`` over the last dimension."""
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


@function(public=False)
def lp_pool2d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """Apply power-average pooling ``(sum x^p)^(1/p)`` over the last two dimensions."""
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


@function(public=False)
def lp_pool3d(input, norm_type, kernel_size, stride=None, ceil_mode=False):
    """Apply power-average pooling ``(sum x^p)^(1/p)`` over the last three dimensions."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)
