"""PyTorch's place of ``FisherSnedecor``."""

from lowtide.framework.distributions.gamma import FisherSnedecor as FisherSnedecor

__all__ = [
    "FisherSnedecor",
]
