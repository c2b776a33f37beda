"""PyTorch's place of ``Cauchy``."""

from lowtide.framework.distributions.location_scale import Cauchy as Cauchy

__all__ = [
    "Cauchy",
]
