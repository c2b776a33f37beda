"""Stochastic weight averaging: the SWALR schedule, and the averages.

``AveragedModel`` and ``update_bn`` work on modules, which an optimizer knows nothing of: they are
made in ``modules/averaging.py``, and the face (``lowtide/__init__.py``) puts them here.
"""

from __future__ import annotations

import math
from typing import Any

from .lr_scheduler.base import LRScheduler, per_group, single
from .optimizer import Optimizer, number

AveragedModel: Any
update_bn: Any
get_ema_avg_fn: Any
get_ema_multi_avg_fn: Any
get_swa_avg_fn: Any
get_swa_multi_avg_fn: Any


class SWALR(LRScheduler):
    """Anneal the rate to a constant ``swa_lr`` in ``anneal_epochs`` steps.

    Args:
        optimizer: Whose rates to set.
        swa_lr: Where to go, or one for each group.
        anneal_epochs: Steps to get there.
        anneal_strategy: "cos" or "linear".
        last_epoch: See :class:`~lowtide.optim.lr_scheduler.LRScheduler`.

    Raises:
        ValueError: The strategy is unknown, or ``anneal_epochs`` no integer of at least 0.

    Source:
        Izmailov et al. 2018.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: Any,
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        for group, rate in zip(
            optimizer.param_groups, per_group("swa_lr", optimizer, swa_lr), strict=True
        ):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}."
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}.")
        self._anneal_strategy = anneal_strategy
        self.anneal_epochs = anneal_epochs
        self._for_new_groups = single(swa_lr=swa_lr)
        super().__init__(optimizer, last_epoch)

    def _base_of(self, group: dict[str, Any]) -> float:
        if "swa_lr" not in group:
            group["swa_lr"] = self._for_new("swa_lr", "Give the new group its 'swa_lr'")
        return super()._base_of(group)

    def get_lr(self) -> list[float]:
        """Compute the rates at this step."""
        self._begin_get_lr()
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._share(step - 1), self._share(step)
        found = []
        for group in self.optimizer.param_groups:
            rate, goal = number(group["lr"]), group["swa_lr"]
            begun = goal if before == 1 else (rate - before * goal) / (1 - before)
            found.append(goal * now + begun * (1 - now))
        return found

    def _share(self, step: int) -> float:
        t = max(0, min(1, step / max(1, self.anneal_epochs)))
        return t if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * t)) / 2
