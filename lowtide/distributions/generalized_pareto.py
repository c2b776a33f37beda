"""PyTorch's place of ``GeneralizedPareto``."""

from lowtide.framework.distributions.pareto import GeneralizedPareto as GeneralizedPareto

__all__ = [
    "GeneralizedPareto",
]
