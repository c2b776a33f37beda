"""PyTorch's place of ``LogNormal``."""

from lowtide.framework.distributions.normal import LogNormal as LogNormal

__all__ = [
    "LogNormal",
]
