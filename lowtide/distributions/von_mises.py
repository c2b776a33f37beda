"""PyTorch's place of ``VonMises``."""

from lowtide.framework.distributions.von_mises import VonMises as VonMises

__all__ = [
    "VonMises",
]
