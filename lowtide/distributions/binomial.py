"""PyTorch's place of ``Binomial``."""

from lowtide.framework.distributions.counts import Binomial as Binomial

__all__ = [
    "Binomial",
]
