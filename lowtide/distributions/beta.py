"""PyTorch's place of ``Beta``."""

from lowtide.framework.distributions.beta import Beta as Beta

__all__ = [
    "Beta",
]
