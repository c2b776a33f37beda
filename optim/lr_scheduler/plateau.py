"""ReduceLROnPlateau: a schedule by a measured value."""

from __future__ import annotations

import math
import warnings
from typing import Any, SupportsFloat

from ..optimizer import Optimizer, number
from .base import WHY_NOT_EPOCH, LRScheduler, check_optimizer, rates, set_rate, uninterrupted


class ReduceLROnPlateau(LRScheduler):
    """Multiply the rate by ``factor`` after ``patience`` steps without improvement.

    Args:
        optimizer: Whose rates to set.
        mode: "min" or "max": what is better.
        factor: Below 1.
        patience: Steps without a better value that change nothing.
        threshold: How much better counts.
        threshold_mode: "rel": that share of the best value; "abs": that much.
        cooldown: Steps after a change that do not count.
        min_lr: The lowest rate, or one for each group.
        eps: A smaller change is not made.

    Attributes:
        best: The best value so far.
        num_bad_epochs: Steps since.

    Raises:
        ValueError: The factor is not below 1, or a mode or the length of ``min_lr`` is wrong.
        TypeError: ``optimizer`` is none.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: Any = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1:
            raise ValueError(f"Factor should be < 1.0; got {factor}.")
        check_optimizer(optimizer)
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown! Use 'min' or 'max'.")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown! Use 'rel' or 'abs'.")
        count = len(optimizer.param_groups)
        self.optimizer = optimizer
        self.default_min_lr = None if isinstance(min_lr, list | tuple) else min_lr
        self.min_lrs = list(min_lr) if isinstance(min_lr, list | tuple) else [min_lr] * count
        if len(self.min_lrs) != count:
            raise ValueError(f"expected {count} min_lrs, got {len(self.min_lrs)}.")
        self.factor = factor
        self.patience = patience
        self.cooldown = cooldown
        self.eps = eps
        self.mode = mode
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self.last_epoch = 0
        self._last_lr = rates(optimizer)
        self._reset()

    def _reset(self) -> None:
        self.best = self.mode_worse
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    @property
    def in_cooldown(self) -> bool:
        """True during the steps after a reduction that do not count."""
        return self.cooldown_counter > 0

    @uninterrupted
    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:
        """Take a new value, and reduce the rates if there was no improvement for too long."""
        value = float(metrics)
        if epoch is not None:
            warnings.warn(WHY_NOT_EPOCH, UserWarning, stacklevel=2)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(value, self.best):
            self.best = value
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = rates(self.optimizer)

    def _reduce(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise RuntimeError(
                    f"The number of param groups in the optimizer ({len(groups)}) differs from "
                    f"when ReduceLROnPlateau was made ({len(self.min_lrs)}). Set its min_lrs to a "
                    "list of that length."
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, least in zip(groups, self.min_lrs, strict=True):
            old = float(number(group["lr"]))
            new = max(old * self.factor, least)
            if old - new > self.eps:
                set_rate(group, new)

    def _is_better(self, value: float, best: float) -> bool:
        share = self.threshold if self.threshold_mode == "rel" else 0.0
        amount = self.threshold if self.threshold_mode == "abs" else 0.0
        if self.mode == "min":
            return value < best * (1.0 - share) - amount
        return value > best * (1.0 + share) + amount
