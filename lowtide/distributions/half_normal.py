"""PyTorch's place of ``HalfNormal``."""

from lowtide.framework.distributions.normal import HalfNormal as HalfNormal

__all__ = [
    "HalfNormal",
]
