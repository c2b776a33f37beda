"""Batch and instance normalization, with running statistics.

The averages are buffers that are written in place and outside the graph, so training does not grow
it, and they count as *buffer* in the ledger.
"""

from __future__ import annotations

import warnings
from typing import Any

from ..framework.ops.creation.fill import empty, ones, zeros
from ..framework.ops.creation.from_data import tensor
from ..framework.tensor import Tensor
from . import functional as F
from .initialization import init
from .module import Module
from .parameter import Parameter


class _NormBase(Module):
    """Base of batch and instance normalization: scale, shift, running statistics.

    Attributes:
        weight: (num_features,), ones; or None.
        bias: (num_features,), zeros; or None.
        running_mean: (num_features,), a buffer; or None.
        running_var: (num_features,), likewise, of unbiased variances.
        num_batches_tracked: (), int64: how many batches went into them; or None.
    """

    _version = 2  # the state dict's; number 1 had no num_batches_tracked
    dimensions: tuple[int, ...]  # that an input may have
    weight: Parameter | None
    bias: Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: Any,
        dtype: Any,
        bias: bool,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        like = {"device": device, "dtype": dtype}
        for name, there in (("weight", affine), ("bias", affine and bias)):
            self.register_parameter(name, Parameter(empty(num_features, **like)) if there else None)
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, **like) if tracked else None)
        self.register_buffer("running_var", ones(num_features, **like) if tracked else None)
        self.register_buffer("num_batches_tracked", tensor(0, device=device) if tracked else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Reset the running statistics: mean 0, variance 1, no batches."""
        if self.track_running_stats:
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Reset the running statistics, the scale to 1, the shift to 0."""
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        count = self.num_batches_tracked
        if count is not None and local_metadata.get("version", 1) < 2:
            fresh = tensor(0) if count.device.type == "meta" else count
            state_dict.setdefault(f"{prefix}num_batches_tracked", fresh)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim not in self.dimensions:
            wanted = " or ".join(f"{n}D" for n in self.dimensions)
            raise ValueError(
                f"{type(self).__name__}: expected {wanted} input (got {input.ndim}D input)."
            )

    def extra_repr(self) -> str:
        """The arguments, as PyTorch shows them."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_NormBase):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias
        )

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each channel of ``input``; in training, update the running statistics."""
        self._check_input_dim(input)
        share = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the plain mean of all batches
                share = _reciprocal(self.num_batches_tracked)
        by_batch = self.training or (self.running_mean is None and self.running_var is None)
        return self._normalized(input, by_batch, share)

    def _normalized(self, input: Tensor, by_batch: bool, share: float) -> Tensor:
        update_or_use = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            self.running_mean if update_or_use else None,
            self.running_var if update_or_use else None,
            self.weight,
            self.bias,
            by_batch,
            share,
            self.eps,
        )


def _reciprocal(count: Tensor) -> float:
    # On meta there is no count to read, and no number that would depend on it.
    return 1.0 if count.device.type == "meta" else 1.0 / float(count.item())


class BatchNorm1d(_BatchNorm):
    """Batch normalization of (N, C) or (N, C, L): each channel over the batch.

    In evaluation mode the running averages take the place of the batch's statistics.

    Args:
        num_features: C.
        eps: Added to the variance.
        momentum: Share of a new batch in the running averages; None for the mean of all batches.
        affine: Whether to learn a scale and a shift.
        track_running_stats: Whether to keep running averages; if not, evaluation too uses the
            batch's statistics.
        device: Where parameters and buffers lie.
        dtype: Their type.
        bias: With ``affine``: whether to learn the shift.

    Raises:
        ValueError: ``forward`` got another number of dimensions, or one value per channel in
            training.

    Source:
        Ioffe, Szegedy: "Batch Normalization", 2015.
    """

    dimensions = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalization of (N, C, H, W); arguments as :class:`BatchNorm1d`."""

    dimensions = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch normalization of (N, C, D, H, W); arguments as :class:`BatchNorm1d`."""

    dimensions = (5,)


class _InstanceNorm(_NormBase):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias
        )

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each channel of each example; the first dimension (N) may be missing."""
        self._check_input_dim(input)
        batched = input.ndim == max(self.dimensions)
        channels = input.shape[1 if batched else 0]
        if channels != self.num_features:
            if self.affine:
                raise ValueError(
                    f"{type(self).__name__}: expected input's size at dim={1 if batched else 0} "
                    f"to match num_features ({self.num_features}), but got: {channels}."
                )
            warnings.warn(
                f"input's size at dim={1 if batched else 0} does not match num_features. You can "
                "silence this warning by not passing in num_features, which is not used because "
                "affine=False",
                UserWarning,
                stacklevel=2,
            )
        out = F.instance_norm(
            input if batched else input.unsqueeze(0),
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )
        return out if batched else out.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """Instance normalization of (N, C, L) or (C, L): each channel of each example.

    Args:
        num_features: C.
        eps: Added to the variance.
        momentum: Share of a new batch in the running averages.
        affine: Whether to learn a scale and a shift.
        track_running_stats: Whether to keep running averages, which evaluation then uses.
        device: Where parameters and buffers lie.
        dtype: Their type.
        bias: With ``affine``: whether to learn the shift.

    Raises:
        ValueError: ``forward`` got another number of dimensions or channels, or one value per
            channel.

    Source:
        Ulyanov, Vedaldi, Lempitsky: "Instance Normalization", 2016.
    """

    dimensions = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Instance normalization of (N, C, H, W) or (C, H, W); see :class:`InstanceNorm1d`."""

    dimensions = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Instance normalization of (N, C, D, H, W) or (C, D, H, W); see :class:`InstanceNorm1d`."""

    dimensions = (4, 5)
