"""Loss modules.

``size_average`` and ``reduce`` are PyTorch's old forms of ``reduction``; they are accepted with its
warning. Class and element weights are buffers, so they move with the module.
"""

from __future__ import annotations

import math
from typing import Any

from ..framework.ops.loss.cross_entropy import reduction_of
from ..framework.ops.loss.linear_cross_entropy import LinearCrossEntropyOptions
from ..framework.tensor import Tensor
from . import functional as F
from .linear import Linear
from .module import Module


class _Loss(Module):
    reduction: str

    def __init__(
        self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            reduction = reduction_of(size_average, reduce, reduction)
        self.reduction = reduction


class _WeightedLoss(_Loss):
    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


class L1Loss(_Loss):
    """Absolute error: the mean, the sum, or each element.

    Args:
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare two tensors of one shape."""
        return F.l1_loss(input, target, reduction=self.reduction)


class MSELoss(_Loss):
    """Squared error: the mean, the sum, or each element; arguments as :class:`L1Loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare two tensors of one shape."""
        return F.mse_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """Smooth L1 loss: absolute differences, quadratic below ``beta``.

    Args:
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".
        beta: Where the square ends; the slope beyond is 1.
    """

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        beta: float = 1.0,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare two tensors of one shape."""
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """Huber loss: half squared differences up to ``delta``, then linear with slope ``delta``.

    Args:
        reduction: "mean", "sum" or "none".
        delta: Where the square ends.
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare two tensors of one shape."""
        return F.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


# Of classes


class CrossEntropyLoss(_WeightedLoss):
    """Cross-entropy between logits and class indices or probabilities.

    Args:
        weight: (C,) A factor for each class.
        size_average: Old form of ``reduction``.
        ignore_index: Targets that do not count.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".
        label_smoothing: Share of the target spread over all classes, in [0, 1].
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare logits (N, C, ...) with targets (N, ...) or probabilities (N, C, ...)."""
        return F.cross_entropy(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class LinearCrossEntropyLoss(_WeightedLoss):
    """Linear layer plus cross-entropy, without the complete array of logits.

    Args:
        in_features: Size of each token.
        num_classes: C, the number of classes.
        out_features: Sizes of further dimensions, with a loss at each place.
        bias: Whether the layer adds a bias.
        device: Where its parameters lie.
        dtype: Their type.
        reduction: "mean", "sum" or "none".
        weight: (C,) A factor for each class.
        ignore_index: Targets that do not count; None is -100. Not with probabilities.
        label_smoothing: Share of the target spread over all classes, in [0, 1].
        options: As :func:`linear_cross_entropy` takes them.

    Attributes:
        linear: The layer; its weight is (C * prod(out_features), in_features).

    Raises:
        RuntimeError: ``weight`` is not (C,), or ``label_smoothing`` is out of range.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: LinearCrossEntropyOptions | None = None,
    ) -> None:
        if weight is not None and tuple(weight.shape) != (num_classes,):
            raise RuntimeError(
                f"LinearCrossEntropyLoss: expected weight shape to be {(num_classes,)}, got "
                f"{tuple(weight.shape)}. Pass a factor for each class."
            )
        if not 0.0 <= label_smoothing <= 1.0:
            raise RuntimeError(
                "LinearCrossEntropyLoss: expected label_smoothing to be in range [0, 1], got "
                f"{label_smoothing}."
            )
        super().__init__(weight, reduction=reduction)
        self.num_classes = num_classes
        self.out_features = out_features
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        size = math.prod(out_features, start=num_classes)
        self.linear = Linear(in_features, size, bias=bias, device=device, dtype=dtype)
        self.options = options

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare tokens (N, in_features) with targets (N, ...) or probabilities (N, C, ...)."""
        linear_weight: Tensor = self.linear.weight
        linear_bias: Tensor | None = self.linear.bias
        if self.out_features:
            shape = (self.num_classes, *self.out_features)
            linear_weight = linear_weight.reshape(*shape, self.linear.in_features)
            linear_bias = None if linear_bias is None else linear_bias.reshape(shape)
        return F.linear_cross_entropy(
            input,
            linear_weight,
            target,
            linear_bias=linear_bias,
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
        )

    def extra_repr(self) -> str:
        """Sizes and settings, as PyTorch shows them."""
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, "
            f"out_features={self.out_features}, bias={self.linear.bias is not None}, "
            f"reduction={self.reduction}, ignore_index={self.ignore_index}, "
            f"label_smoothing={self.label_smoothing}, options={self.options}"
        )


class NLLLoss(_WeightedLoss):
    """Negative log-likelihood of each row's class, given log-probabilities.

    Args:
        weight: (C,) A factor for each class.
        size_average: Old form of ``reduction``.
        ignore_index: Targets that do not count.
        reduce: Old form of ``reduction``.
        reduction: "mean" (over the weights), "sum" or "none".
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare log-probabilities (N, C, ...) with classes (N, ...)."""
        return F.nll_loss(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


class MultiLabelSoftMarginLoss(_WeightedLoss):
    """Binary cross-entropy with logits of each class, averaged over classes.

    Args:
        weight: (C,) A factor for each class.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare logits (N, C) with zeros and ones (N, C)."""
        return F.multilabel_soft_margin_loss(
            input, target, weight=self.weight, reduction=self.reduction
        )


class CTCLoss(_Loss):
    """Connectionist temporal classification loss: label sequences without an alignment.

    Args:
        blank: The class that stands for no label.
        reduction: "none", "sum", or "mean": each loss over its target length, then the mean.
        zero_infinity: Sequences too short for their target count as zero.
    """

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        super().__init__(reduction=reduction)
        self.blank = blank
        self.zero_infinity = zero_infinity

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any
    ) -> Tensor:
        """Compare (T, N, C) with targets (N, S) or all in a row; lengths are (N,)."""
        return F.ctc_loss(
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            self.blank,
            self.reduction,
            self.zero_infinity,
        )


# Of probabilities


class BCELoss(_WeightedLoss):
    """Binary cross-entropy between probabilities and targets in [0, 1].

    Args:
        weight: A factor for each element, broadcast.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare two tensors of one shape."""
        return F.binary_cross_entropy(input, target, weight=self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Binary cross-entropy with logits, stable for large values.

    Args:
        weight: A factor for each element, broadcast.
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".
        pos_weight: A factor for the positive targets of each class, broadcast.
    """

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare logits with targets of the same shape."""
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, pos_weight=self.pos_weight, reduction=self.reduction
        )


class KLDivLoss(_Loss):
    """Kullback-Leibler divergence of a target distribution from given log-probabilities.

    Args:
        size_average: Old form of ``reduction``.
        reduce: Old form of ``reduction``.
        reduction: "batchmean" (the sum over N: the mathematical one), "mean", "sum" or "none".
        log_target: The target holds log-probabilities too.
    """

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compare two tensors of one shape."""
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class PoissonNLLLoss(_Loss):
    """Negative log-likelihood of counts under a Poisson distribution.

    Args:
        log_input: The input is the logarithm of the rate.
        full: Add Stirling's approximation of the term without the rate.
        size_average: Old form of ``reduction``.
        eps: Added to the rate before its logarithm.
        reduce: Old form of ``reduction``.
        reduction: "mean", "sum" or "none".
    """

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        size_average: bool | None = None,
        eps: float = 1e-8,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(size_average, reduce, reduction)
        self.log_input = log_input
        self.full = full
        self.eps = eps

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        """Compare rates with counts of the same shape."""
        return F.poisson_nll_loss(
            log_input,
            target,
            log_input=self.log_input,
            full=self.full,
            eps=self.eps,
            reduction=self.reduction,
        )


class GaussianNLLLoss(_Loss):
    """Negative log-likelihood of numbers under normal distributions.

    Args:
        full: Add the constant term.
        eps: The least variance.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.full = full
        self.eps = eps

    def forward(self, input: Tensor, target: Tensor, var: Any) -> Tensor:
        """Compare means with numbers; ``var`` has the same shape, or is a number."""
        return F.gaussian_nll_loss(
            input, target, var, full=self.full, eps=self.eps, reduction=self.reduction
        )
