"""PyTorch's place of ``TransformedDistribution``."""

from lowtide.framework.distributions.transformed_distribution import (
    TransformedDistribution as TransformedDistribution,
)

__all__ = [
    "TransformedDistribution",
]
