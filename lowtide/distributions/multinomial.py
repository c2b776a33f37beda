"""PyTorch's place of ``Multinomial``."""

from lowtide.framework.distributions.categorical import Multinomial as Multinomial

__all__ = [
    "Multinomial",
]
