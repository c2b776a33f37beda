"""Adaptive softmax: frequent classes in a head, rare ones in tail clusters.

A class of a tail has the probability of its cluster, from the head, times its own within the
cluster. Training runs a tail only on the rows whose target is in it.

Source:
    Grave et al.: "Efficient softmax approximation for GPUs", 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..framework import ops
from ..framework.modes import no_grad
from ..framework.tensor import Tensor
from . import functional as F
from .container import ModuleList, Sequential
from .linear import Linear
from .module import Module


class _ASMoutput(NamedTuple):
    """Log-probabilities of the targets, and their negative mean."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Adaptive log-softmax with loss, for classes sorted by frequency.

    Args:
        in_features: Size of the input's last dimension.
        n_classes: Number of classes; class 0 is the most frequent.
        cutoffs: Increasing class numbers where a new cluster begins; the first ends the head.
        div_value: Tail ``i`` works with ``in_features // div_value ** i`` features.
        head_bias: Whether the head has a bias.
        device: Where its parameters lie.
        dtype: Their type.

    Raises:
        ValueError: The cutoffs are not increasing ints from 1 to ``n_classes - 1``.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        cuts = list(cutoffs)
        if not cuts:
            raise ValueError(
                "AdaptiveLogSoftmaxWithLoss: cutoffs should be a sequence of length larger than 0."
            )
        if any(int(c) != c for c in cuts) or any(
            b <= a for a, b in zip([0, *cuts], [*cuts, n_classes], strict=True)
        ):
            raise ValueError(
                "AdaptiveLogSoftmaxWithLoss: cutoffs should be a sequence of unique, positive "
                "integers sorted in an increasing order, where each value is between 1 and "
                f"n_classes-1; got {cuts} for {n_classes} classes."
            )
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = [*cuts, n_classes]
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = self.cutoffs[0]
        self.n_clusters = len(self.cutoffs) - 1
        self.head_size = self.shortlist_size + self.n_clusters
        like = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, bias=head_bias, **like)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            narrow = int(in_features // div_value ** (i + 1))
            classes = self.cutoffs[i + 1] - self.cutoffs[i]
            self.tail.append(
                Sequential(
                    Linear(in_features, narrow, bias=False, **like),
                    Linear(narrow, classes, bias=False, **like),
                )
            )

    def reset_parameters(self) -> None:
        """Reinitialize every linear layer."""
        self.head.reset_parameters()
        for narrow, wide in self.tail:
            narrow.reset_parameters()
            wide.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> _ASMoutput:
        """Return (output, loss).

        Args:
            input_: (N, in_features), or (in_features,).
            target_: (N,), or ().

        Raises:
            RuntimeError: Shapes differ, or a target is no class.
        """
        self._check(input_, target_)
        batched = target_.ndim > 0
        input = input_ if batched else input_.unsqueeze(0)
        target = target_ if batched else target_.unsqueeze(0)
        with no_grad():
            cluster = ops.zeros_like(target)  # 0 for the head
            for cut in self.cutoffs[:-1]:
                cluster = cluster + target.ge(cut).to(target.dtype)
            place = ops.where(cluster.eq(0), target, cluster + (self.shortlist_size - 1))
        head = F.log_softmax(self.head(input), dim=1)
        output = head.gather(1, place.unsqueeze(1)).squeeze(1)
        for i, tail in enumerate(self.tail):
            with no_grad():
                rows = cluster.eq(i + 1).nonzero().squeeze(1)
            if rows.numel():
                inside = F.log_softmax(tail(input.index_select(0, rows)), dim=1)
                local = target.index_select(0, rows) - self.cutoffs[i]
                output = output.index_add(0, rows, inside.gather(1, local.unsqueeze(1)).squeeze(1))
        loss = (-output).mean()
        return _ASMoutput(output if batched else output.squeeze(0), loss)

    def _check(self, input: Tensor, target: Tensor) -> None:
        name = "AdaptiveLogSoftmaxWithLoss"
        if target.ndim > 1 or input.ndim != target.ndim + 1:
            raise RuntimeError(
                f"{name}: expects input (N, in_features) with target (N,), or (in_features,) with "
                f"(); got {tuple(input.shape)} and {tuple(target.shape)}."
            )
        if target.ndim and input.shape[0] != target.shape[0]:
            raise RuntimeError(
                f"{name}: input and target should have the same size in the batch dimension; got "
                f"{input.shape[0]} and {target.shape[0]}."
            )
        if target.numel():
            low, high = int(target.min().item()), int(target.max().item())
            if low < 0 or high >= self.n_classes:
                raise RuntimeError(
                    f"{name}: target values should be in [0, {self.n_classes - 1}], but values in "
                    f"range [{low}, {high}] were found."
                )

    def _full_log_prob(self, input: Tensor, head: Tensor) -> Tensor:
        parts = [head[:, : self.shortlist_size]]
        for i, tail in enumerate(self.tail):
            of_cluster = head[:, self.shortlist_size + i].unsqueeze(1)
            parts.append(F.log_softmax(tail(input), dim=1) + of_cluster)
        return ops.cat(parts, 1)

    def log_prob(self, input: Tensor) -> Tensor:
        """Compute log-probabilities of all classes: (N, in_features) to (N, n_classes)."""
        return self._full_log_prob(input, F.log_softmax(self.head(input), dim=1))

    def predict(self, input: Tensor) -> Tensor:
        """Return the most probable class per row: (N, in_features) to (N,), int64.

        Tails run only on the rows where the head prefers a cluster to each of its own classes.
        """
        head = F.log_softmax(self.head(input), dim=1)
        best = head.argmax(1)
        rows = best.ge(self.shortlist_size).nonzero().squeeze(1)
        if rows.numel():
            full = self._full_log_prob(input.index_select(0, rows), head.index_select(0, rows))
            best = best.index_copy(0, rows, full.argmax(1))
        return best
