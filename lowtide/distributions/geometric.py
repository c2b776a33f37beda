"""PyTorch's place of ``Geometric``."""

from lowtide.framework.distributions.bernoulli import Geometric as Geometric

__all__ = [
    "Geometric",
]
