"""PyTorch's place of ``ContinuousBernoulli``."""

from lowtide.framework.distributions.bernoulli import ContinuousBernoulli as ContinuousBernoulli

__all__ = [
    "ContinuousBernoulli",
]
