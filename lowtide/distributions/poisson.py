"""PyTorch's place of ``Poisson``."""

from lowtide.framework.distributions.counts import Poisson as Poisson

__all__ = [
    "Poisson",
]
