"""Margin losses (hinge losses) of scores, distances or similarities."""

from __future__ import annotations

from collections.abc import Callable

from ..framework.tensor import Tensor
from . import functional as F
from .distance import PairwiseDistance
from .loss import _Loss, _WeightedLoss


class MultiMarginLoss(_WeightedLoss):
    """Multi-class hinge loss: the margin of the true class over each other class.

    Args:
        p: Exponent of the hinge, 1 or 2.
        margin: The lead to reach.
        weight: (C,) A factor for each true class.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".

    Raises:
        ValueError: ``p`` is neither 1 nor 2, or ``weight`` is not 1-D.
    """

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        if p not in (1, 2):
            raise ValueError(f"MultiMarginLoss: only p == 1 and p == 2 supported; got {p}.")
        if weight is not None and weight.ndim != 1:
            raise ValueError(
                f"MultiMarginLoss: weight must be None or have 1 dimension; got {weight.ndim}."
            )
        self.p = p
        self.margin = margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare scores (N, C) with classes (N,)."""
        return F.multi_margin_loss(
            input,
            target,
            p=self.p,
            margin=self.margin,
            weight=self.weight,
            reduction=self.reduction,
        )


class MultiLabelMarginLoss(_Loss):
    """Multi-label hinge loss: margins of true over other classes; see :class:`L1Loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare scores (N, C) with lists of classes (N, C) that end at the first -1."""
        return F.multilabel_margin_loss(input, target, reduction=self.reduction)


class SoftMarginLoss(_Loss):
    """Logistic loss ``log(1 + exp(-target * input))``, targets 1 and -1; see :class:`L1Loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare two tensors of one shape."""
        return F.soft_margin_loss(input, target, reduction=self.reduction)


class _MarginLoss(_Loss):
    def __init__(
        self,
        margin: float = 0.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.margin = margin


class HingeEmbeddingLoss(_MarginLoss):
    """Hinge loss of distances: similar pairs have target 1, others -1.

    Args:
        margin: The distance that dissimilar pairs should reach.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".
    """

    def __init__(
        self,
        margin: float = 1.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(margin, size_average, reduce, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare distances with targets of the same shape."""
        return F.hinge_embedding_loss(input, target, margin=self.margin, reduction=self.reduction)


class MarginRankingLoss(_MarginLoss):
    """Ranking hinge loss: ``input1`` should exceed ``input2`` (target 1), or the reverse (-1).

    Args:
        margin: The lead to reach.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".
    """

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """Compare three tensors of one shape."""
        return F.margin_ranking_loss(
            input1, input2, target, margin=self.margin, reduction=self.reduction
        )


class CosineEmbeddingLoss(_MarginLoss):
    """Cosine embedding loss: similar pairs have target 1, others -1 and a margin.

    Args:
        margin: The cosine that dissimilar pairs may have.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".
    """

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        """Compare (N, D) with (N, D), targets (N,); or (D,), (D,) and ()."""
        return F.cosine_embedding_loss(
            input1, input2, target, margin=self.margin, reduction=self.reduction
        )


class TripletMarginLoss(_Loss):
    """Triplet loss: an anchor should be nearer to a positive than to a negative example.

    Args:
        margin: How much nearer it should be.
        p: Exponent of the norm.
        eps: Added to each difference.
        swap: Use the distance between the two examples if it is smaller.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".

    Raises:
        ValueError: ``margin`` is not positive.
    """

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        if margin <= 0:
            raise ValueError(f"TripletMarginLoss: margin must be greater than 0; got {margin}.")
        self.margin = margin
        self.p = p
        self.eps = eps
        self.swap = swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compare three tensors (N, D) or (D,)."""
        return F.triplet_margin_loss(
            anchor,
            positive,
            negative,
            margin=self.margin,
            p=self.p,
            eps=self.eps,
            swap=self.swap,
            reduction=self.reduction,
        )


class TripletMarginWithDistanceLoss(_Loss):
    """Triplet loss with a custom distance function; see :class:`TripletMarginLoss`.

    Args:
        distance_function: Maps two tensors to their distances; :class:`PairwiseDistance` if None.
        margin: How much nearer the positive example should be.
        swap: Use the distance between the two examples if it is smaller.
        reduction: "mean", "sum" or "none".

    Raises:
        ValueError: ``margin`` is not positive.
    """

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if margin <= 0:
            raise ValueError(
                f"TripletMarginWithDistanceLoss: margin must be greater than 0; got {margin}."
            )
        self.distance_function = (
            PairwiseDistance() if distance_function is None else (distance_function)
        )
        self.margin = margin
        self.swap = swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Compare three tensors of one shape."""
        return F.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )
