"""PyTorch's place of ``Normal``."""

from lowtide.framework.distributions.normal import Normal as Normal

__all__ = [
    "Normal",
]
