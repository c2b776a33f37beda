"""PyTorch's place of ``Gumbel``."""

from lowtide.framework.distributions.location_scale import Gumbel as Gumbel

__all__ = [
    "Gumbel",
]
