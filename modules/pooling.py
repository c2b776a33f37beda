"""Pooling layers: max, average, power average (LP), adaptive, and max unpooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..framework.ops.convolution.functional import several
from ..framework.tensor import Tensor
from . import functional as F
from .module import Module

Size = int | Sequence[int]


class _Pool(Module):
    repr_fields: tuple[str, ...] = ()  # the attributes in repr

    def extra_repr(self) -> str:
        """The arguments, as PyTorch shows them."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.repr_fields)


class _MaxPoolNd(_Pool):
    repr_fields = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    _function: Any

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Any:
        """Pool (N, C, *sizes); N may be missing. With ``return_indices``: (values, indices)."""
        return type(self)._function(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            ceil_mode=self.ceil_mode,
            return_indices=self.return_indices,
        )


class MaxPool1d(_MaxPoolNd):
    """1d max pooling of (N, C, L).

    Args:
        kernel_size: Size of a window: one int, or one for each spatial dimension.
        stride: Between windows; ``kernel_size`` if left out.
        padding: Minus infinity on both sides; at most half the window.
        dilation: Between the elements of a window.
        return_indices: Return also where each maximum was, for :class:`MaxUnpool1d`.
        ceil_mode: Also a last window that hangs over the end.
    """

    _function = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPoolNd):
    """2d max pooling of (N, C, H, W); arguments as :class:`MaxPool1d`."""

    _function = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPoolNd):
    """3d max pooling of (N, C, D, H, W); arguments as :class:`MaxPool1d`."""

    _function = staticmethod(F.max_pool3d)


class _MaxUnpoolNd(_Pool):
    repr_fields = ("kernel_size", "stride", "padding")
    nd: int
    _function: Any

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        name = type(self).__name__
        self.kernel_size = several(f"{name}: kernel_size", kernel_size, self.nd)
        chosen = kernel_size if stride is None else stride
        self.stride = several(f"{name}: stride", chosen, self.nd)
        self.padding = several(f"{name}: padding", padding, self.nd)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        """Place values at ``indices``, zeros elsewhere.

        Args:
            input: What the pooling gave.
            indices: Where each value was.
            output_size: The size to restore, where several are pooled to the same.
        """
        return type(self)._function(
            input, indices, self.kernel_size, self.stride, self.padding, output_size
        )


class MaxUnpool1d(_MaxUnpoolNd):
    """Partial inverse of :class:`MaxPool1d`: maxima at their indices, zeros elsewhere.

    Args:
        kernel_size: Of that pooling, like the next two.
        stride: Between windows; ``kernel_size`` if left out.
        padding: On both sides.
    """

    nd = 1
    _function = staticmethod(F.max_unpool1d)


class MaxUnpool2d(_MaxUnpoolNd):
    """Partial inverse of :class:`MaxPool2d`; arguments as :class:`MaxUnpool1d`."""

    nd = 2
    _function = staticmethod(F.max_unpool2d)


class MaxUnpool3d(_MaxUnpoolNd):
    """Partial inverse of :class:`MaxPool3d`; arguments as :class:`MaxUnpool1d`."""

    nd = 3
    _function = staticmethod(F.max_unpool3d)


class _AvgPool(_Pool):
    repr_fields = ("kernel_size", "stride", "padding")


class AvgPool1d(_AvgPool):
    """1d average pooling of (N, C, L).

    Args:
        kernel_size: Size of a window.
        stride: Between windows; ``kernel_size`` if left out.
        padding: Zeros on both sides; at most half the window.
        ceil_mode: Also a last window that hangs over the end.
        count_include_pad: Padding counts as elements.
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = several("AvgPool1d: kernel_size", kernel_size, 1)
        self.stride = several("AvgPool1d: stride", kernel_size if stride is None else stride, 1)
        self.padding = several("AvgPool1d: padding", padding, 1)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        """Map (N, C, L) to (N, C, L_out); N may be missing."""
        return F.avg_pool1d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
        )


class _AvgPoolNd(_AvgPool):
    _function: Any

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        """Pool (N, C, *sizes); N may be missing."""
        return type(self)._function(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class AvgPool2d(_AvgPoolNd):
    """2d average pooling of (N, C, H, W).

    Args:
        kernel_size: Size of a window: one int, or one for each spatial dimension.
        stride: Between windows; ``kernel_size`` if left out.
        padding: Zeros on both sides; at most half the window.
        ceil_mode: Also a last window that hangs over the end.
        count_include_pad: Padding counts as elements.
        divisor_override: What to divide sums by, instead of the number of elements.
    """

    _function = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPoolNd):
    """3d average pooling of (N, C, D, H, W); arguments as :class:`AvgPool2d`."""

    _function = staticmethod(F.avg_pool3d)


class _LPPoolNd(_Pool):
    repr_fields = ("norm_type", "kernel_size", "stride", "ceil_mode")
    _function: Any

    def __init__(
        self,
        norm_type: float,
        kernel_size: Size,
        stride: Size | None = None,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        """Pool (N, C, *sizes); N may be missing."""
        return type(self)._function(
            input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode
        )


class LPPool1d(_LPPoolNd):
    """1d power-average pooling ``(sum x^p)^(1/p)`` of (N, C, L).

    Args:
        norm_type: The exponent p; 1 gives sums, large values approach the maximum.
        kernel_size: Size of a window: one int, or one for each spatial dimension.
        stride: Between windows; ``kernel_size`` if left out.
        ceil_mode: Also a last window that hangs over the end.
    """

    _function = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPoolNd):
    """2d power-average pooling of (N, C, H, W); arguments as :class:`LPPool1d`."""

    _function = staticmethod(F.lp_pool2d)


class LPPool3d(_LPPoolNd):
    """3d power-average pooling of (N, C, D, H, W); arguments as :class:`LPPool1d`."""

    _function = staticmethod(F.lp_pool3d)


class _AdaptiveAvgPoolNd(_Pool):
    repr_fields = ("output_size",)
    _function: Any

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        """Map (N, C, *sizes) to (N, C, *output_size); N may be missing."""
        return type(self)._function(input, self.output_size)


class AdaptiveAvgPool1d(_AdaptiveAvgPoolNd):
    """Adaptive average pooling of (N, C, L) to (N, C, output_size).

    Args:
        output_size: One int, or one for each spatial dimension; None keeps the input's size.
    """

    _function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPoolNd):
    """Adaptive average pooling of (N, C, H, W); argument as :class:`AdaptiveAvgPool1d`."""

    _function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPoolNd):
    """Adaptive average pooling of (N, C, D, H, W); see :class:`AdaptiveAvgPool1d`."""

    _function = staticmethod(F.adaptive_avg_pool3d)


class _AdaptiveMaxPoolNd(_Pool):
    repr_fields = ("output_size",)
    _function: Any

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        """Map (N, C, *sizes) to (N, C, *output_size), or to that and indices."""
        return type(self)._function(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPoolNd):
    """Adaptive max pooling of (N, C, L) to (N, C, output_size).

    Args:
        output_size: One int, or one for each spatial dimension; None keeps the input's size.
        return_indices: Return also where each maximum was.
    """

    _function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPoolNd):
    """Adaptive max pooling of (N, C, H, W); arguments as :class:`AdaptiveMaxPool1d`."""

    _function = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPoolNd):
    """Adaptive max pooling of (N, C, D, H, W); arguments as :class:`AdaptiveMaxPool1d`."""

    _function = staticmethod(F.adaptive_max_pool3d)
