"""PyTorch's place of ``LogisticNormal``."""

from lowtide.framework.distributions.normal import LogisticNormal as LogisticNormal

__all__ = [
    "LogisticNormal",
]
