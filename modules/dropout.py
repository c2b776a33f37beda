"""Dropout layers: active in training, the identity in evaluation.

A layer keeps no mask: its node holds (seed, offset), 16 bytes at any size.
"""

from __future__ import annotations

from ..framework.tensor import Tensor
from . import functional as F
from .module import Module


class _DropoutNd(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(
                f"{type(self).__name__}: dropout probability has to be between 0 and 1, but got "
                f"{p}. Pass the share of zeros."
            )
        self.p = p
        self.inplace = inplace

    def extra_repr(self) -> str:
        """The probability, and whether the input is overwritten."""
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_DropoutNd):
    """Dropout: zero each element with probability ``p``, scale the others by ``1 / (1 - p)``.

    Args:
        p: Probability of a zero, in [0, 1].
        inplace: Write into the input.

    Raises:
        ValueError: ``p`` is outside [0, 1].
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input`` itself in evaluation mode."""
        return F.dropout(input, self.p, self.training, self.inplace)


class Dropout1d(_DropoutNd):
    """Channel dropout for (N, C, L) or (C, L); arguments as :class:`Dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input`` itself in evaluation mode."""
        return F.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(_DropoutNd):
    """Channel dropout for (N, C, H, W); arguments as :class:`Dropout`.

    Three dimensions are (N, C, L), as in PyTorch.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input`` itself in evaluation mode."""
        return F.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(_DropoutNd):
    """Channel dropout for (N, C, D, H, W) or (C, D, H, W); arguments as :class:`Dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input`` itself in evaluation mode."""
        return F.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(_DropoutNd):
    """Alpha dropout: set elements to SELU's negative limit, keeping mean and variance.

    Args:
        p: Probability, in [0, 1].
        inplace: Accepted; as in PyTorch, the input stays as it was.

    Source:
        Klambauer et al.: "Self-Normalizing Neural Networks", 2017.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input`` itself in evaluation mode."""
        return F.alpha_dropout(input, self.p, self.training)


class FeatureAlphaDropout(_DropoutNd):
    """Alpha dropout of whole channels; arguments as :class:`AlphaDropout`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input`` itself in evaluation mode."""
        return F.feature_alpha_dropout(input, self.p, self.training)
