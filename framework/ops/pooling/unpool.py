"""Max unpooling, and max pooling functions that always return indices.

Here too are PyTorch's ``*_with_indices`` names of the poolings.
"""

from __future__ import annotations

from math import prod

from ...dtypes import int64
from ..autocast_policy import WIDE_ON_CPU
from ..convolution.functional import several
from ..creation.fill import zeros
from ..registry import function
from . import functional


def _size(input, kernel, stride, padding, output_size):
    nd = len(kernel)
    default = [
        (n - 1) * s + k - 2 * p
        for n, k, s, p in zip(input.shape[-nd:], kernel, stride, padding, strict=True)
    ]
    if output_size is None:
        return default
    wanted = [int(n) for n in output_size]
    if len(wanted) == nd + 2:
        wanted = wanted[2:]
    if len(wanted) != nd:
        raise ValueError(
            f"output_size should be a sequence containing {nd} or {nd + 2} elements, but it has a "
            f"length of '{len(wanted)}'"
        )
    for d, (n, usual, s) in enumerate(zip(wanted, default, stride, strict=True)):
        if not usual - s < n < usual + s:
            raise ValueError(
                f'invalid output_size "{wanted}" (dim {d} must be between {usual - s} and '
                f"{usual + s})"
            )
    return wanted


def _unpool(nd, input, indices, kernel_size, stride, padding, output_size):
    name = f"max_unpool{nd}d"
    kernel = several("kernel_size", kernel_size, nd)
    stride = kernel if stride is None else several("stride", stride, nd)
    size = _size(input, kernel, stride, several("padding", padding, nd), output_size)
    if min(size) < 0:
        raise ValueError(
            "max_unpooling: output_size must contain non-negative spatial dimensions, but got "
            f"{size}. Pass output_size."
        )
    if indices.dtype is not int64:
        raise RuntimeError(
            f"{name}: elements in indices should be type int64 but got: {indices.dtype}. Take "
            "those of a pooling with return_indices=True."
        )
    if input.ndim not in (nd + 1, nd + 2):
        raise RuntimeError(
            f"{name}: Input to {name} should be a {nd + 1}d or {nd + 2}d Tensor, but got a tensor "
            f"with {input.ndim} dimensions. Add or remove a dimension."
        )
    if input.shape != indices.shape:
        raise RuntimeError(
            f"{name}: Expected shape of indices to be that of input ({list(input.shape)}), but got "
            f"{list(indices.shape)}. Pass the indices of the same pooling."
        )
    lead = input.shape[:-nd]
    flat = zeros(*lead, prod(size), dtype=input.dtype, device=input.device)
    if input.numel():
        flat = flat.scatter(-1, indices.reshape(*lead, -1), input.reshape(*lead, -1))
    return flat.reshape(*lead, *size)


@function(public=False, deep=True, autocast=WIDE_ON_CPU)
def max_unpool1d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Compute the partial inverse of max pooling over the last dimension.

    Args:
        input: What ``max_pool1d`` gave.
        indices: Its indices (``return_indices=True``).
        kernel_size: Of that pooling, like the next two.
        stride: Between windows; ``kernel_size`` if left out.
        padding: On both sides.
        output_size: The size to restore where several would be pooled to the same.

    Returns:
        Tensor of the shape of the pooling's input.

    Raises:
        ValueError: No input of ``output_size`` is pooled to this.
        RuntimeError: An index is out of range, or the shapes of input and indices differ.

    Memory:
        Keeps ``indices``.
    """
    return _unpool(1, input, indices, kernel_size, stride, padding, output_size)


@function(public=False, deep=True, autocast=WIDE_ON_CPU)
def max_unpool2d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Compute the partial inverse of 2d max pooling; arguments as :func:`max_unpool1d`."""
    return _unpool(2, input, indices, kernel_size, stride, padding, output_size)


@function(public=False, deep=True, autocast=WIDE_ON_CPU)
def max_unpool3d(input, indices, kernel_size, stride=None, padding=0, output_size=None):
    """Compute the partial inverse of 3d max pooling; arguments as :func:`max_unpool1d`."""
    return _unpool(3, input, indices, kernel_size, stride, padding, output_size)


@function(public=False)
def max_pool1d_with_indices(
    input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
):
    """Apply ``max_pool1d`` and return (values, indices); ``return_indices`` is ignored."""
    return functional.max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


@function(public=False)
def max_pool2d_with_indices(
    input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
):
    """Apply ``max_pool2d`` and return (values, indices); ``return_indices`` is ignored."""
    return functional.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


@function(public=False)
def max_pool3d_with_indices(
    input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
):
    """Apply ``max_pool3d`` and return (values, indices); ``return_indices`` is ignored."""
    return functional.max_pool3d(input, kernel_size, stride, padding, dilation, ceil_mode, True)


@function(public=False)
def adaptive_max_pool1d_with_indices(input, output_size, return_indices=False):
    """Apply ``adaptive_max_pool1d`` and return (values, indices)."""
    return functional.adaptive_max_pool1d(input, output_size, True)


@function(public=False)
def adaptive_max_pool2d_with_indices(input, output_size, return_indices=False):
    """Apply ``adaptive_max_pool2d`` and return (values, indices)."""
    return functional.adaptive_max_pool2d(input, output_size, True)


@function(public=False)
def adaptive_max_pool3d_with_indices(input, output_size, return_indices=False):
    """Apply ``adaptive_max_pool3d`` and return (values, indices)."""
    return functional.adaptive_max_pool3d(input, output_size, True)
