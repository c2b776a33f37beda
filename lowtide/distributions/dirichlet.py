"""PyTorch's place of ``Dirichlet``."""

from lowtide.framework.distributions.beta import Dirichlet as Dirichlet

__all__ = [
    "Dirichlet",
]
