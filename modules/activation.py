"""Activations as modules."""

from __future__ import annotations

from ..framework.tensor import Tensor
from . import functional as F
from .module import Module


class ReLU(Module):
    """Apply ``max(input, 0)``.

    Args:
        inplace: Write into the input.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Apply it elementwise."""
        return F.relu(input, inplace=self.inplace)

    def extra_repr(self) -> str:
        """``inplace=True`` where it is."""
        return "inplace=True" if self.inplace else ""


class Sigmoid(Module):
    """Apply ``1 / (1 + exp(-input))``."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply it elementwise."""
        return F.sigmoid(input)


class Tanh(Module):
    """Apply the hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply it elementwise."""
        return F.tanh(input)


class GELU(Module):
    """Apply ``input * Phi(input)``.

    Args:
        approximate: ``"none"`` for the error function, ``"tanh"`` for its approximation.
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """Apply it elementwise."""
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        """The approximation."""
        return f"approximate={self.approximate!r}"
