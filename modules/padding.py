"""Padding of the last one to three dimensions: constant, reflect, replicate, circular."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..framework.ops.convolution.functional import several
from ..framework.tensor import Tensor
from . import functional as F
from .module import Module

Counts = int | Sequence[int]


class _Pad(Module):
    nd: int
    mode: str
    padding: tuple[int, ...]

    def __init__(self, padding: Counts) -> None:
        super().__init__()
        self.padding = several(f"{type(self).__name__}: padding", padding, 2 * self.nd)

    def forward(self, input: Tensor) -> Tensor:
        """Pad the last dimensions."""
        return F.pad(input, self.padding, type(self).mode)

    def extra_repr(self) -> str:
        """The padding sizes."""
        return f"{self.padding}"


class _ConstantPad(_Pad):
    mode = "constant"

    def __init__(self, padding: Counts, value: Any) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        """Pad the last dimensions."""
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        """The padding sizes and the constant."""
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """Pad the last dimension with a constant.

    Args:
        padding: One int for both sides, or (left, right) (for two dimensions: (left, right, top,
            bottom); for three: (left, right, top, bottom, front, back)); negative ones crop.
        value: The constant.
    """

    nd = 1


class ConstantPad2d(_ConstantPad):
    """Pad the last two dimensions with a constant; arguments as :class:`ConstantPad1d`."""

    nd = 2


class ConstantPad3d(_ConstantPad):
    """Pad the last three dimensions with a constant; arguments as :class:`ConstantPad1d`."""

    nd = 3


class _ZeroPad(_ConstantPad):
    def __init__(self, padding: Counts) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        """The padding sizes."""
        return f"{self.padding}"


class ZeroPad1d(_ZeroPad):
    """Pad the last dimension with zeros.

    Args:
        padding: As for :class:`ConstantPad1d`.
    """

    nd = 1


class ZeroPad2d(_ZeroPad):
    """Pad the last two dimensions with zeros; argument as :class:`ConstantPad1d`."""

    nd = 2


class ZeroPad3d(_ZeroPad):
    """Pad the last three dimensions with zeros; argument as :class:`ConstantPad1d`."""

    nd = 3


class ReflectionPad1d(_Pad):
    """Pad the last dimension by reflection, without repeating the edge.

    Args:
        padding: As for :class:`ConstantPad1d`; less than the dimension's size.
    """

    nd, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """Pad the last two dimensions by reflection; argument as :class:`ReflectionPad1d`."""

    nd, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """Pad the last three dimensions by reflection; argument as :class:`ReflectionPad1d`."""

    nd, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """Pad the last dimension by repeating its first and last element.

    Args:
        padding: As for :class:`ConstantPad1d`.
    """

    nd, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """Pad the last two dimensions by repeating edges; see :class:`ConstantPad1d`."""

    nd, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """Pad the last three dimensions by repeating edges; see :class:`ConstantPad1d`."""

    nd, mode = 3, "replicate"


class CircularPad1d(_Pad):
    """Pad the last dimension circularly, with elements from its other end.

    Args:
        padding: As for :class:`ConstantPad1d`; at most the dimension's size.
    """

    nd, mode = 1, "circular"


class CircularPad2d(_Pad):
    """Pad the last two dimensions circularly; argument as :class:`CircularPad1d`."""

    nd, mode = 2, "circular"


class CircularPad3d(_Pad):
    """Pad the last three dimensions circularly; argument as :class:`CircularPad1d`."""

    nd, mode = 3, "circular"
