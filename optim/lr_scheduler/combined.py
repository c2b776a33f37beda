"""Combined schedulers: one after another, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from ..optimizer import Optimizer
from .base import LRScheduler, rates, set_rate, uninterrupted
from .plateau import ReduceLROnPlateau


class _Several(LRScheduler):
    """Base of combined schedulers: the list, its checks, and its state."""

    _schedulers: Sequence[LRScheduler]

    def _check(self, optimizer: Optimizer, schedulers: Sequence[Any]) -> None:
        name = type(self).__name__
        for k, scheduler in enumerate(schedulers):
            if not hasattr(scheduler, "optimizer"):
                raise TypeError(f"{name} at index {k} should have `optimizer` as its attribute.")
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(
                    f"{name} does not support `ReduceLROnPlateau`, whose step takes a value, but "
                    f"got one at index {k}. Step it by itself."
                )
            if scheduler.optimizer is not optimizer:
                raise ValueError(
                    f"{name} expects all schedulers to belong to the same optimizer, but the "
                    f"{type(scheduler).__name__} at index {k} belongs to another."
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the state, including that of each scheduler."""
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state."""
        if len(state_dict["_schedulers"]) != len(self._schedulers):
            raise ValueError(
                f"{type(self).__name__}.load_state_dict: the state is of "
                f"{len(state_dict['_schedulers'])} schedulers, this has {len(self._schedulers)}. "
                "Make it of the same schedulers."
            )
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for scheduler, saved in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(saved)


class SequentialLR(_Several):
    """Run schedulers one after another; each starts at its milestone.

    Args:
        optimizer: The one of all schedules.
        schedulers: In their order.
        milestones: Steps at which the next one begins, one less than schedules.
        last_epoch: The last step that was made.

    Raises:
        ValueError: There is no schedule, one belongs to another optimizer or is a
            ReduceLROnPlateau, or the number of milestones is wrong.
        TypeError: One is no scheduler.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: list[LRScheduler],
        milestones: list[int],
        last_epoch: int = -1,
    ) -> None:
        if len(schedulers) < 1:
            raise ValueError("SequentialLR expects at least one scheduler, but got no scheduler.")
        self._check(optimizer, schedulers)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than "
                f"the number of milestone points, but got {len(schedulers)} schedulers and "
                f"{len(milestones)} milestones."
            )
        self._schedulers = schedulers
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        self.optimizer = optimizer
        # Making the schedules set rates, one over the other. Take that back, and begin the first.
        for group in optimizer.param_groups:
            set_rate(group, group["initial_lr"])
        self.recursive_undo()
        current = schedulers[bisect_right(milestones, 0)]
        current._initial_step()
        self._last_lr = current.get_last_lr()

    def recursive_undo(self, sched: Any = None) -> None:
        """Undo the initial step of each scheduler."""
        scheduler = self if sched is None else sched
        if hasattr(scheduler, "_schedulers"):
            for inner in scheduler._schedulers:
                self.recursive_undo(inner)
        elif hasattr(scheduler, "last_epoch"):
            scheduler.last_epoch -= 1

    @uninterrupted
    def step(self) -> None:
        """Advance by one step."""
        self.last_epoch += 1
        k = bisect_right(self._milestones, self.last_epoch)
        current = self._schedulers[k]
        if k > 0 and self._milestones[k - 1] == self.last_epoch:
            current._update_lr(0)
        else:
            current.step()
        self._last_lr = current.get_last_lr()


class ChainedScheduler(_Several):
    """Apply all schedulers at each step, so that their factors multiply.

    Args:
        schedulers: In the order of their steps.
        optimizer: The one of all schedules; default: the first's.

    Raises:
        ValueError: There is no schedule, or one belongs to another optimizer or is a
            ReduceLROnPlateau.
        TypeError: One is no scheduler.
    """

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if len(schedulers) < 1:
            raise ValueError(
                "ChainedScheduler expects at least one scheduler to be chained, but got no "
                "scheduler."
            )
        self.optimizer = optimizer or getattr(schedulers[0], "optimizer", None)  # type: ignore[assignment]
        self._check(self.optimizer, schedulers)
        self._schedulers = schedulers
        self._last_lr = rates(self.optimizer)

    @uninterrupted
    def step(self) -> None:
        """Advance by one step."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = rates(self.optimizer)
