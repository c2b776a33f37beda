"""PyTorch's place of ``NegativeBinomial``."""

from lowtide.framework.distributions.counts import NegativeBinomial as NegativeBinomial

__all__ = [
    "NegativeBinomial",
]
