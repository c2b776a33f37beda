"""PyTorch's place of ``StudentT``."""

from lowtide.framework.distributions.gamma import StudentT as StudentT

__all__ = [
    "StudentT",
]
