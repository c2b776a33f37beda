"""Fractional max pooling: pseudorandom windows for any ratio of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..framework.ops.convolution.functional import several
from ..framework.tensor import Tensor
from . import functional as F
from .module import Module

Size = int | Sequence[int]
Ratio = float | Sequence[float]


class _FractionalMaxPoolNd(Module):
    nd: int
    _function: Any

    def __init__(
        self,
        kernel_size: Size,
        output_size: Size | None = None,
        output_ratio: Ratio | None = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if output_size is None and output_ratio is None:
            raise ValueError(
                f"{name} requires specifying either an output size, or a pooling ratio."
            )
        if output_size is not None and output_ratio is not None:
            raise ValueError(f"{name}: only one of output_size and output_ratio may be specified.")
        self.kernel_size = several(f"{name}: kernel_size", kernel_size, self.nd)
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.output_size = (
            None if output_size is None else several(f"{name}: output_size", output_size, self.nd)
        )
        self.output_ratio: tuple[float, ...] | None = None
        if output_ratio is not None:
            if isinstance(output_ratio, int | float):
                ratios: tuple[float, ...] = (output_ratio,) * self.nd
            else:
                ratios = tuple(output_ratio)
            self.output_ratio = ratios
            if not all(0 < r < 1 for r in ratios):
                raise ValueError(
                    f"{name}: output_ratio must be between 0 and 1 (got {output_ratio})."
                )

    def forward(self, input: Tensor) -> Any:
        """Pool (N, C, *sizes); N may be missing. With ``return_indices``: (values, indices)."""
        return type(self)._function(
            input,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            _random_samples=self._random_samples,
        )


class FractionalMaxPool2d(_FractionalMaxPoolNd):
    """Fractional max pooling of images (N, C, H, W).

    Args:
        kernel_size: Size of a window: one int, or one for each spatial dimension.
        output_size: Of the result.
        output_ratio: Instead: its share of the input's size, in (0, 1).
        return_indices: Return also where each maximum was.
        _random_samples: (N, C, 2) numbers in [0, 1) that place the windows in every call.

    Raises:
        ValueError: Not exactly one of size and ratio is given, or a ratio is outside of (0, 1).

    Source:
        Graham: "Fractional Max-Pooling", 2014.
    """

    nd = 2
    _function = staticmethod(F.fractional_max_pool2d)


class FractionalMaxPool3d(_FractionalMaxPoolNd):
    """Fractional max pooling of volumes (N, C, D, H, W); see :class:`FractionalMaxPool2d`."""

    nd = 3
    _function = staticmethod(F.fractional_max_pool3d)
