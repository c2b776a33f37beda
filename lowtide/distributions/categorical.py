"""PyTorch's place of ``Categorical``."""

from lowtide.framework.distributions.categorical import Categorical as Categorical

__all__ = [
    "Categorical",
]
