"""PyTorch's place of ``Bernoulli``."""

from lowtide.framework.distributions.bernoulli import Bernoulli as Bernoulli

__all__ = [
    "Bernoulli",
]
