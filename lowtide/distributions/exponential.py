"""PyTorch's place of ``Exponential``."""

from lowtide.framework.distributions.gamma import Exponential as Exponential

__all__ = [
    "Exponential",
]
