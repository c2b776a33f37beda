"""PyTorch's place of ``InverseGamma``."""

from lowtide.framework.distributions.gamma import InverseGamma as InverseGamma

__all__ = [
    "InverseGamma",
]
