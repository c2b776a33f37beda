"""PyTorch's place of ``Weibull``."""

from lowtide.framework.distributions.pareto import Weibull as Weibull

__all__ = [
    "Weibull",
]
