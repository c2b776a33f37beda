"""PyTorch's place of ``Wishart``."""

from lowtide.framework.distributions.matrices import Wishart as Wishart

__all__ = [
    "Wishart",
]
