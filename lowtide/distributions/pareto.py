"""PyTorch's place of ``Pareto``."""

from lowtide.framework.distributions.pareto import Pareto as Pareto

__all__ = [
    "Pareto",
]
