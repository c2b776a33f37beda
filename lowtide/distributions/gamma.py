"""PyTorch's place of ``Gamma``."""

from lowtide.framework.distributions.gamma import Gamma as Gamma

__all__ = [
    "Gamma",
]
