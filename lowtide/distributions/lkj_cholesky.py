"""PyTorch's place of ``LKJCholesky``."""

from lowtide.framework.distributions.matrices import LKJCholesky as LKJCholesky

__all__ = [
    "LKJCholesky",
]
