"""PyTorch's place of ``Kumaraswamy``."""

from lowtide.framework.distributions.beta import Kumaraswamy as Kumaraswamy

__all__ = [
    "Kumaraswamy",
]
