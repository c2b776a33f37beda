"""PyTorch's place of ``Chi2``."""

from lowtide.framework.distributions.gamma import Chi2 as Chi2

__all__ = [
    "Chi2",
]
