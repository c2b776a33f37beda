"""Convolution and transposed convolution layers in one, two and three dimensions.

One base class holds sizes, initial values and ``repr``; padding other than zeros is made by
``F.pad`` before a convolution without padding, so it costs one padded copy of the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..framework.ops.convolution.functional import several
from ..framework.ops.creation.fill import empty
from ..framework.tensor import Tensor
from . import functional as F
from .initialization import init
from .module import Module
from .parameter import Parameter

Size = int | Sequence[int]

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Module):
    """Base of convolutions; ``nd`` is the number of spatial dimensions.

    Attributes:
        weight: (out_channels, in_channels / groups, *kernel_size), for transposed ones
            (in_channels, out_channels / groups, *kernel_size); uniform within ``1 / sqrt(fan_in)``,
            ``fan_in`` being the product of all its sizes but the first.
        bias: (out_channels,), the same distribution; or None.
    """

    nd: int
    transposed = False
    bias: Parameter | None
    padding: str | tuple[int, ...]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size,
        padding: str | Size,
        dilation: Size,
        output_padding: Size,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if groups <= 0:
            raise ValueError(f"{name}: groups must be a positive integer; got {groups}.")
        for what, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if channels % groups:
                raise ValueError(
                    f"{name}: {what} must be divisible by groups; got {channels} and {groups}."
                )
        if padding_mode not in _PADDING_MODES:
            raise ValueError(
                f"{name}: padding_mode must be one of {_PADDING_MODES}; got {padding_mode!r}."
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = several(f"{name}: kernel_size", kernel_size, self.nd)
        self.stride = several(f"{name}: stride", stride, self.nd)
        self.padding = self._read_padding(padding)
        self.dilation = several(f"{name}: dilation", dilation, self.nd)
        self.transposed = self.transposed
        self.output_padding = several(f"{name}: output_padding", output_padding, self.nd)
        self.groups = groups
        self.padding_mode = padding_mode
        self._reversed_padding_repeated_twice = self._sides()
        first, second = out_channels, in_channels
        if self.transposed:
            first, second = second, first
        shape = (first, second // groups, *self.kernel_size)
        self.weight = Parameter(empty(shape, device=device, dtype=dtype))
        if bias:
            self.bias = Parameter(empty(out_channels, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def _read_padding(self, padding: str | Size) -> str | tuple[int, ...]:
        name = type(self).__name__
        if not isinstance(padding, str):
            return several(f"{name}: padding", padding, self.nd)
        if padding not in ("same", "valid"):
            raise ValueError(
                f"{name}: a named padding must be 'same' or 'valid'; got {padding!r}. "
                "Or pass numbers."
            )
        if padding == "same" and any(s != 1 for s in self.stride):
            raise ValueError(
                f"{name}: padding='same' is not supported for strided convolutions; got stride "
                f"{self.stride}. Pass numbers."
            )
        return padding

    def _sides(self) -> list[int]:
        # Counts for F.pad: two for each spatial dimension, the last one first.
        sides: list[int] = []
        for d in reversed(range(self.nd)):
            if isinstance(self.padding, str):
                total = self.dilation[d] * (self.kernel_size[d] - 1)
                total *= self.padding == "same"
                sides += [total // 2, total - total // 2]
            else:
                sides += [self.padding[d]] * 2
        return sides

    def reset_parameters(self) -> None:
        """Reinitialize the parameters from PyTorch's distribution."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = math.prod(self.weight.shape[1:])
            if fan_in:
                bound = 1 / math.sqrt(fan_in)
                init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        """Channels and sizes, as PyTorch shows them."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )
        zeros, ones = (0,) * self.nd, (1,) * self.nd
        for name, usual in (("padding", zeros), ("dilation", ones), ("output_padding", zeros)):
            if getattr(self, name) != usual:
                text += f", {name}={getattr(self, name)}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class _Conv(_ConvNd):
    _function: Any

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: str | Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            0,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = (0,) * self.nd
        function = type(self)._function
        return function(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    def forward(self, input: Tensor) -> Tensor:
        """Map (N, in_channels, *sizes) to (N, out_channels, *sizes); N may be missing."""
        return self._conv_forward(input, self.weight, self.bias)


class Conv1d(_Conv):
    """1d convolution (cross-correlation) of signals (N, C, L).

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the result.
        kernel_size: Size of a window: one int, or one for each spatial dimension.
        stride: Between windows.
        padding: Added on both sides; or "same" (the result is as large as the input) or "valid".
        dilation: Between the elements of a window.
        groups: Independent blocks of channels.
        bias: Whether to add a bias for each channel.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: Where its parameters lie.
        dtype: Their type.

    Raises:
        ValueError: Groups do not divide the channels, or an argument has no such value.
    """

    nd = 1
    _function = staticmethod(F.conv1d)


class Conv2d(_Conv):
    """2d convolution (cross-correlation) of images (N, C, H, W); arguments as :class:`Conv1d`."""

    nd = 2
    _function = staticmethod(F.conv2d)


class Conv3d(_Conv):
    """3d convolution (cross-correlation) of volumes (N, C, D, H, W); see :class:`Conv1d`."""

    nd = 3
    _function = staticmethod(F.conv3d)


class _ConvTransposeNd(_ConvNd):
    transposed = True
    _function: Any

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(
                f'{type(self).__name__}: only "zeros" padding mode is supported; got '
                f"{padding_mode!r}."
            )
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            output_padding,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def _output_padding(self, input: Tensor, output_size: Any) -> tuple[int, ...]:
        """Return the padding of one side that gives the result ``output_size``."""
        if output_size is None:
            return self.output_padding
        name, nd = type(self).__name__, self.nd
        wanted = tuple(int(n) for n in output_size)
        if len(wanted) == input.ndim:
            wanted = wanted[-nd:]
        if len(wanted) != nd:
            raise ValueError(
                f"{name}: output_size must have {nd} or {input.ndim} elements for an input of "
                f"{input.ndim} dimensions; got {len(wanted)}."
            )
        extra = []
        for d, n in enumerate(wanted):
            assert not isinstance(self.padding, str)
            least = (input.shape[d - nd] - 1) * self.stride[d] - 2 * self.padding[d]
            least += self.dilation[d] * (self.kernel_size[d] - 1) + 1
            if not least <= n < least + self.stride[d]:
                raise ValueError(
                    f"{name}: requested an output size of {list(wanted)}, but dimension {d} can "
                    f"only be {least} to {least + self.stride[d] - 1} for an input of "
                    f"{list(input.shape[-nd:])}."
                )
            extra.append(n - least)
        return tuple(extra)

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        """Map (N, in_channels, *sizes) to (N, out_channels, *sizes); N may be missing.

        Args:
            input: The values.
            output_size: The spatial size of the result, where stride leaves a choice.
        """
        extra = self._output_padding(input, output_size)
        function = type(self)._function
        return function(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            extra,
            self.groups,
            self.dilation,
        )


class ConvTranspose1d(_ConvTransposeNd):
    """1d transposed convolution: the adjoint of :class:`Conv1d`, with its own weights.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the result.
        kernel_size: Size of a window: one int, or one for each spatial dimension.
        stride: Between the windows that are added into the result.
        padding: Cropped from the result on both sides.
        output_padding: Added to the result on one side.
        groups: Independent blocks of channels.
        bias: Whether to add a bias for each channel.
        dilation: Between the elements of a window.
        padding_mode: "zeros".
        device: Where its parameters lie.
        dtype: Their type.

    Raises:
        ValueError: Groups do not divide the channels, or the padding mode is another.
    """

    nd = 1
    _function = staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_ConvTransposeNd):
    """2d transposed convolution of images; arguments as :class:`ConvTranspose1d`."""

    nd = 2
    _function = staticmethod(F.conv_transpose2d)


class ConvTranspose3d(_ConvTransposeNd):
    """3d transposed convolution of volumes; arguments as :class:`ConvTranspose1d`."""

    nd = 3
    _function = staticmethod(F.conv_transpose3d)
