"""Upsampling of spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from ..framework.tensor import Tensor
from . import functional as F
from .module import Module

Size = int | Sequence[int]
Factor = float | Sequence[float]


class Upsample(Module):
    """Resize (N, C, *sizes) to a size or by a factor.

    Args:
        size: Of the result: an int, or one for each spatial dimension.
        scale_factor: Instead of ``size``: a number, or one for each.
        mode: "nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear" or "area".
        align_corners: For linear and cubic modes: the centers of the corners keep their place.
        recompute_scale_factor: Sample with the ratio of the integer sizes.
    """

    def __init__(
        self,
        size: Size | None = None,
        scale_factor: Factor | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.name = type(self).__name__
        self.size = size
        self.scale_factor: float | tuple[float, ...] | None
        if scale_factor is None or isinstance(scale_factor, int | float):
            self.scale_factor = float(scale_factor) if scale_factor else None
        else:
            self.scale_factor = tuple(float(f) for f in scale_factor)
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Map (N, C, *sizes) to (N, C, *new sizes)."""
        return F.interpolate(
            input,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            self.recompute_scale_factor,
        )

    def extra_repr(self) -> str:
        """Factor or size, and mode."""
        if self.scale_factor is not None:
            return f"scale_factor={self.scale_factor!r}, mode={self.mode!r}"
        return f"size={self.size!r}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Upsample images (N, C, H, W) by nearest-neighbor interpolation.

    Args:
        size: Of the result: one int or two.
        scale_factor: Instead of ``size``.
    """

    def __init__(self, size: Size | None = None, scale_factor: Factor | None = None) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """Upsample images (N, C, H, W) bilinearly with aligned corners.

    Args:
        size: Of the result: one int or two.
        scale_factor: Instead of ``size``.
    """

    def __init__(self, size: Size | None = None, scale_factor: Factor | None = None) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)
