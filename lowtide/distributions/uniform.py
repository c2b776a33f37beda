"""PyTorch's place of ``Uniform``."""

from lowtide.framework.distributions.location_scale import Uniform as Uniform

__all__ = [
    "Uniform",
]
