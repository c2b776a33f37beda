"""Pixel and channel shuffles."""

from __future__ import annotations

from ..framework.tensor import Tensor
from . import functional as F
from .module import Module


class PixelShuffle(Module):
    """Rearrange (*, C * r^2, H, W) to (*, C, H * r, W * r).

    Args:
        upscale_factor: r.

    Source:
        Shi et al.: "Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel
        Convolutional Neural Network", 2016.
    """

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Move channels to space."""
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        """The factor."""
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Rearrange (*, C, H * r, W * r) to (*, C * r^2, H, W): inverse of :class:`PixelShuffle`.

    Args:
        downscale_factor: r.
    """

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Move space to channels."""
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        """The factor."""
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Shuffle the channels of (N, C, *) between ``groups``.

    Args:
        groups: Groups that the channels are divided into.

    Source:
        Zhang et al.: "ShuffleNet", 2017.
    """

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        """Shuffle the channels."""
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        """The number of groups."""
        return f"groups={self.groups}"
