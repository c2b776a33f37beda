"""Batch normalization with the statistics of all processes of a group."""

from __future__ import annotations

from typing import Any

from ..framework.autograd.function import Function
from ..framework.autograd.once_differentiable import once_differentiable
from ..framework.distributed import collectives
from ..framework.distributed.process_group import GroupMember, ProcessGroup, resolve
from ..framework.dtypes import float32
from ..framework.ops.creation.fill import empty
from ..framework.ops.manipulation.cat import cat
from ..framework.tensor import Tensor
from . import functional as F
from .batchnorm import _BatchNorm
from .module import Module


class SyncBatchNorm(_BatchNorm):
    """Batch normalization whose statistics are those of all processes of a group.

    With one process, and in evaluation, it computes what :class:`BatchNorm1d` does, for (N, C) and
    any (N, C, ...). In training each forward gathers mean, variance and count of all ranks, and
    each backward sums two numbers a channel over them. PyTorch wants a GPU for it in training; here
    it trains on any device.

    Args:
        num_features: C.
        eps: Added to the variance.
        momentum: Share of a new batch in the running averages; None for the mean of all batches.
        affine: Whether to learn a scale and a shift.
        track_running_stats: Whether to keep running averages.
        process_group: The group, None for the default one; it need not be there, as in PyTorch.
        device: Where parameters and buffers lie.
        dtype: Their type.
        bias: With ``affine``: whether to learn the shift.

    Raises:
        ValueError: ``forward`` got fewer than two dimensions, or one value a channel in all ranks.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(
                f"SyncBatchNorm: expected at least 2D input (got {input.ndim}D input)."
            )

    def _normalized(self, input: Tensor, by_batch: bool, share: float) -> Tensor:
        there = self.process_group is not None or GroupMember.WORLD is not None
        if by_batch and there:
            group = resolve(self.process_group, "SyncBatchNorm")
            if group.size() > 1:
                return self._over_ranks(input, share, group)
        return super()._normalized(input, by_batch, share)

    def _over_ranks(self, input: Tensor, share: float, group: ProcessGroup) -> Tensor:
        out, mean, variance, count = _OverRanks.apply(
            input, self.weight, self.bias, self.eps, group
        )
        if self.training and self.running_mean is not None and self.running_var is not None:
            n = count.item()
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            unbiased = variance * (n / max(n - 1, 1))
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        found: Tensor = out
        return found

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """Return a module whose batch normalizations are SyncBatchNorm, with the same tensors.

        Args:
            module: Changed in place, unless it is a batch normalization itself.
            process_group: The group of those that take their places.
        """
        converted = module
        if isinstance(module, _BatchNorm):
            made = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_group,
            )
            made.weight, made.bias = module.weight, module.bias
            made.running_mean, made.running_var = module.running_mean, module.running_var
            made.num_batches_tracked = module.num_batches_tracked
            made.training = module.training
            converted = made
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return converted


class _OverRanks(Function):
    """Normalize by the statistics of all ranks.

    Keeps the input, and mean and inverse deviation of each channel.

    Source:
        Chan, Golub, LeVeque: "Algorithms for Computing the Sample Variance", 1983, for the
        variance of several parts; Ioffe, Szegedy: "Batch Normalization", 2015, for the gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Any, bias: Any, eps: float, group: ProcessGroup
    ) -> Any:
        dims = [d for d in range(x.ndim) if d != 1]
        channels, own = x.shape[1], x.numel() // max(1, x.shape[1])
        wide = x.to(float32) if x.dtype.itemsize < 4 else x
        mean = wide.sum(dims) / max(1, own)  # a rank may have no input
        spread = (wide - _along(mean, x)).square().sum(dims)
        count = empty(1, dtype=wide.dtype, device=x.device).fill_(own)
        every = empty(group.size(), 2 * channels + 1, dtype=wide.dtype, device=x.device)
        collectives.all_gather_into_tensor(every, cat([mean, spread, count]), group)
        means, spreads, counts = every.split([channels, channels, 1], 1)
        total = counts.sum()
        if float(total) <= 1:
            raise ValueError(
                "SyncBatchNorm: expected more than 1 value per channel over all ranks when "
                f"training; got input of shape {tuple(x.shape)}."
            )
        mean = (means * counts).sum(0) / total
        variance = (spreads + counts * (means - mean).square()).sum(0) / total
        scale = (variance + eps).rsqrt()
        out = F.batch_norm(
            wide,
            mean,
            variance,
            None if weight is None else weight.to(wide.dtype),
            None if bias is None else bias.to(wide.dtype),
            False,
            0.0,
            eps,
        ).to(x.dtype)
        ctx.save_for_backward(x, weight, mean, scale, total)
        ctx.group, ctx.dims, ctx.has_bias = group, dims, bias is not None
        ctx.mark_non_differentiable(mean, variance, total)
        return out, mean, variance, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        x, weight, mean, scale, total = ctx.saved_tensors
        wide = mean.dtype
        g = grad.to(wide)
        hat = (x.to(wide) - _along(mean, x)) * _along(scale, x)
        of_bias, of_weight = g.sum(ctx.dims), (g * hat).sum(ctx.dims)
        sums = cat([of_bias, of_weight])
        collectives.all_reduce(sums, group=ctx.group)
        shift, slope = (sums / total).chunk(2)
        factor = scale if weight is None else scale * weight.to(wide)
        of_x = (g - _along(shift, x) - hat * _along(slope, x)) * _along(factor, x)
        of_x = of_x.to(x.dtype)
        if weight is None:
            return of_x, None, None, None, None
        last = of_bias.to(weight.dtype) if ctx.has_bias else None
        return of_x, of_weight.to(weight.dtype), last, None, None


def _along(channels: Tensor, x: Tensor) -> Tensor:
    # A number a channel, in a shape that broadcasts over x.
    found: Tensor = channels.view(1, -1, *[1] * (x.ndim - 2))
    return found
