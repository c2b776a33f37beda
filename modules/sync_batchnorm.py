"""Batch normalization over the batches of all processes, of which there is one for now."""

from __future__ import annotations

from typing import Any

from ..framework.tensor import Tensor
from .batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d, _BatchNorm
from .module import Module


class SyncBatchNorm(_BatchNorm):
    """Batch normalization whose statistics are those of all processes of a group.

    With one process they are those of its batch, so this computes what :class:`BatchNorm1d` does, for
    (N, C) and any (N, C, ...). PyTorch wants a GPU for it in training; here it trains on any device.

    Args:
        num_features: C.
        eps: Added to the variance.
        momentum: Share of a new batch in the running averages; None for the mean of all batches.
        affine: Whether to learn a scale and a shift.
        track_running_stats: Whether to keep running averages.
        process_group: The group, None for the default one; it need not be there, as in PyTorch.
        device: Where parameters and buffers lie.
        dtype: Their type.

    Raises:
        ValueError: ``forward`` got fewer than two dimensions.
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
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(
                f"SyncBatchNorm: expected at least 2D input (got {input.ndim}D input)."
            )

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """Return a module whose batch normalizations are SyncBatchNorm, with the same tensors.

        Args:
            module: Changed in place, unless it is a batch normalization itself.
            process_group: The group of those that take their places.
        """
        converted = module
        if isinstance(module, (BatchNorm1d, BatchNorm2d, BatchNorm3d)):
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
