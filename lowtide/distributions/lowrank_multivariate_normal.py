"""PyTorch's place of ``LowRankMultivariateNormal``."""

from lowtide.framework.distributions.multivariate_normal import (
    LowRankMultivariateNormal as LowRankMultivariateNormal,
)

__all__ = [
    "LowRankMultivariateNormal",
]
