"""PyTorch's place of ``MultivariateNormal``."""

from lowtide.framework.distributions.multivariate_normal import (
    MultivariateNormal as MultivariateNormal,
)

__all__ = [
    "MultivariateNormal",
]
