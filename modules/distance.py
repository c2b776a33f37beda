"""Distance and similarity of pairs of vectors."""

from __future__ import annotations

from ..framework.tensor import Tensor
from . import functional as F
from .module import Module


class CosineSimilarity(Module):
    """Cosine similarity of vectors along ``dim``.

    Args:
        dim: The dimension of the vectors.
        eps: The least product of norms to divide by.
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Compare two tensors that broadcast; the result lacks ``dim``."""
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """Pairwise ``p``-norm distance of vectors along the last dimension.

    Args:
        p: Exponent of the norm.
        eps: Added to each difference.
        keepdim: Keep the last dimension, with size 1.
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm = p
        self.eps = eps
        self.keepdim = keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Compare two tensors (N, D) or (D,)."""
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
