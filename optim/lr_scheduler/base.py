"""Base of learning rate schedulers."""

from __future__ import annotations

import functools
import types
import warnings
from typing import Any

from ...framework.interrupts import defer_interrupts
from ...framework.tensor import Tensor
from ..optimizer import Optimizer, number

WHY_NOT_EPOCH = (
    "The epoch parameter in `scheduler.step()` is deprecated, as in PyTorch: the closed form of "
    "the schedule is used, where there is one. Call `scheduler.step()` once per step instead."
)


class LRScheduler:
    """Base class of schedulers: subclasses compute the rates in ``get_lr``.

    Making a scheduler sets the rates of step 0. A group whose ``lr`` is a tensor keeps that tensor,
    which is filled.

    Args:
        optimizer: Whose parameter groups to change.
        last_epoch: The last step that was made; -1 begins anew, anything else expects groups with
            ``initial_lr``, as a loaded optimizer has.

    Attributes:
        base_lrs: The rate of each group before any step.
        last_epoch: Steps made.

    Raises:
        TypeError: ``optimizer`` is none.
        KeyError: It resumes, and a group has no ``initial_lr``.
    """

    _get_lr_called_within_step = False
    _is_initial = False
    _last_lr: list[float]

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        for k, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", number(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{k}] when resuming "
                    "scheduler with last_epoch >= 0. Load the optimizer's state first, or begin "
                    "with last_epoch=-1."
                )
        self.base_lrs = [number(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> list[float]:
        """Compute the rates at ``last_epoch``; users call :meth:`get_last_lr`."""
        raise NotImplementedError(f"{type(self).__name__} must define get_lr().")

    def get_last_lr(self) -> list[float]:
        """Return the rate of each group that the last step set."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Advance by one step; call it after ``optimizer.step()``.

        Args:
            epoch: Deprecated: go to that step instead.
        """
        if self._step_count == 1 and not getattr(self.optimizer, "_opt_called", False):
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call "
                "`optimizer.step()` first; otherwise the first value of the schedule is skipped.",
                UserWarning,
                stacklevel=2,
            )
        if epoch is not None:
            warnings.warn(WHY_NOT_EPOCH, UserWarning, stacklevel=2)
        with defer_interrupts():
            before = self._step_count
            self._step_count = before + 1
            try:
                self._update_lr(epoch)
            except BaseException:
                self._step_count = before
                raise

    def _update_lr(self, epoch: int | None = None) -> None:
        with defer_interrupts():
            self._whole_update(epoch)

    def _whole_update(self, epoch: int | None) -> None:
        before = self.last_epoch
        self._get_lr_called_within_step = True
        try:
            if epoch is None:
                self.last_epoch = before + 1
                values = self.get_lr()
            else:
                self.last_epoch = epoch
                closed = getattr(self, "_get_closed_form_lr", self.get_lr)
                values = closed()
            self._write(values)
        except BaseException:
            self.last_epoch = before
            raise
        finally:
            self._get_lr_called_within_step = False

    def _write(self, values: list[float]) -> None:
        found = list(zip(self.optimizer.param_groups, values, strict=True))
        with defer_interrupts():
            for group, value in found:
                set_rate(group, value)
            self._last_lr = rates(self.optimizer)

    def _warn_outside_step(self) -> None:
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use "
                "`get_last_lr()`.",
                UserWarning,
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state; the rates themselves are the optimizer's state."""
        self.__dict__.update(state_dict)


_LRScheduler = LRScheduler  # PyTorch's older name


def uninterrupted(step: Any) -> Any:
    """Wrap ``step`` so that Ctrl-C takes effect at its end, not half-way."""

    @functools.wraps(step)
    def whole(*args: Any, **kwargs: Any) -> Any:
        with defer_interrupts():
            return step(*args, **kwargs)

    return whole


def check_optimizer(optimizer: Any) -> None:
    """Raise an error unless the argument is an optimizer.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"{type(optimizer).__name__} is not an Optimizer. Pass the optimizer itself."
        )


def rates(optimizer: Optimizer) -> list[float]:
    """Return the present rate of each group as Python numbers."""
    return [number(group["lr"]) for group in optimizer.param_groups]


def set_rate(group: dict[str, Any], value: float) -> None:
    """Set the rate of a group; a tensor is written in place."""
    if isinstance(group["lr"], Tensor):
        group["lr"].detach().fill_(float(value))
    else:
        group["lr"] = value


def per_group(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """Expand an option to one value per group.

    Raises:
        ValueError: It is a list of another length.
    """
    count = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. {name} has {len(value)} "
            f"values, param_groups has {count}."
        )
    return list(value)


def saved_callable(function: Any) -> dict[str, Any] | None:
    """Return what a state dict keeps of a callable: an object's attributes, else nothing."""
    return None if isinstance(function, types.FunctionType) else dict(function.__dict__)
