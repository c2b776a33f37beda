"""PyTorch's place of ``MixtureSameFamily``."""

from lowtide.framework.distributions.mixture import MixtureSameFamily as MixtureSameFamily

__all__ = [
    "MixtureSameFamily",
]
