"""PyTorch's place of ``Laplace``."""

from lowtide.framework.distributions.location_scale import Laplace as Laplace

__all__ = [
    "Laplace",
]
