"""PyTorch's place of ``Independent``."""

from lowtide.framework.distributions.transformed_distribution import Independent as Independent

__all__ = [
    "Independent",
]
