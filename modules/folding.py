"""Fold and Unfold: image patches as columns (im2col), and back (col2im)."""

from __future__ import annotations

from collections.abc import Sequence

from ..framework.tensor import Tensor
from . import functional as F
from .module import Module

Size = int | Sequence[int]


class Unfold(Module):
    """Extract patches of images (N, C, H, W) as columns (N, C * window, number of windows).

    Args:
        kernel_size: Size of a window: one int or two.
        dilation: Between the elements of a window.
        padding: Zeros on both sides.
        stride: Between windows.
    """

    def __init__(
        self, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        """Map (N, C, H, W) or (C, H, W) to columns."""
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        """The arguments, as PyTorch shows them."""
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, "
            f"stride={self.stride}"
        )


class Fold(Module):
    """Sum columns (N, C * window, number of windows) into images: the adjoint of :class:`Unfold`.

    Args:
        output_size: H and W of the images: one int or two.
        kernel_size: Size of a window: one int or two.
        dilation: Between the elements of a window.
        padding: Cropped on both sides.
        stride: Between windows.
    """

    def __init__(
        self,
        output_size: Size,
        kernel_size: Size,
        dilation: Size = 1,
        padding: Size = 0,
        stride: Size = 1,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        """Map columns to (N, C, *output_size); N may be missing."""
        return F.fold(
            input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )

    def extra_repr(self) -> str:
        """The arguments, as PyTorch shows them."""
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, "
            f"dilation={self.dilation}, padding={self.padding}, stride={self.stride}"
        )
