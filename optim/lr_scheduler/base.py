"""Base of learning rate schedulers."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ...framework.interrupts import defer_interrupts
from ...framework.modes import live_call
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

    A group that ``optimizer.add_param_group`` adds later takes part from the next step on. Its
    ``initial_lr`` is the ``lr`` it came with, unless it has one. Schedules that go from rate to
    rate go on from its ``lr``; those that compute from ``base_lrs`` use its ``initial_lr``.

    Args:
        optimizer: Whose parameter groups to change.
        last_epoch: The last step that was made; -1 begins anew, anything else expects groups with
            ``initial_lr``, as a loaded optimizer has.

    Attributes:
        base_lrs: The rate of each group before any step; grows with the groups.
        last_epoch: Steps made.

    Raises:
        TypeError: ``optimizer`` is none.
        KeyError: It resumes, and a group has no ``initial_lr``.
    """

    _get_lr_called_within_step = False
    _is_initial = False
    _captured_live: tuple[str, ...] = ()  # replays of compiled functions call step() anew
    _last_lr: list[float]
    _for_new_groups: Mapping[str, Any] = MappingProxyType({})
    """Options that were given as one value, which holds for groups added later; no state."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = live_call(cls.step)  # type: ignore[method-assign]

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

    @live_call
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
            self._take_new_groups()
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
        groups = self.optimizer.param_groups
        if len(values) != len(groups):
            raise ValueError(
                f"{type(self).__name__}.get_lr() must return one rate for each of the optimizer's "
                f"{len(groups)} param groups; got {len(values)}. Read the groups at each call: "
                "add_param_group adds to them."
            )
        found = list(zip(groups, values, strict=True))
        with defer_interrupts():
            for group, value in found:
                set_rate(group, value)
            self._last_lr = rates(self.optimizer)

    def _take_new_groups(self) -> None:
        """Extend what is kept for each group to those that were added since the last step.

        Raises:
            ValueError: An option is a list that has no value for a new group, or there are fewer
                groups than this schedule has seen.
        """
        groups = self.optimizer.param_groups
        if len(groups) < len(self.base_lrs):
            raise ValueError(
                f"{type(self).__name__} has base_lrs of {len(self.base_lrs)} param groups, its "
                f"optimizer has {len(groups)}. Add the others with add_param_group, in their "
                "order, before the state is loaded."
            )
        for group in groups[len(self.base_lrs) :]:
            self.base_lrs.append(self._base_of(group))

    def _base_of(self, group: dict[str, Any]) -> float:
        """Return the rate that a new group has before any step."""
        base: float = group.setdefault("initial_lr", number(group["lr"]))
        return base

    def _extend(self, name: str, values: list[Any], where: str) -> None:
        """Extend a list of one value per group to all groups.

        Args:
            name: The option.
            values: The list, which is the scheduler's attribute ``where``.
            where: Its name.
        """
        count = len(self.optimizer.param_groups)
        if len(values) < count:
            values += [self._for_new(name, f"Append one for each new group to .{where}")] * (
                count - len(values)
            )

    def _for_new(self, name: str, way_out: str) -> Any:
        if name not in self._for_new_groups:
            raise ValueError(
                f"{type(self).__name__}: {name} was given as a list, which has no value for what "
                f"add_param_group added: the optimizer has {len(self.optimizer.param_groups)} "
                f"param groups now. {way_out}, or pass one {name} for all, not in a list."
            )
        return self._for_new_groups[name]

    def _begin_get_lr(self) -> None:
        self._take_new_groups()
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use "
                "`get_last_lr()`.",
                UserWarning,
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the optimizer."""
        own = ("optimizer", "_for_new_groups")
        return {k: v for k, v in self.__dict__.items() if k not in own}

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


def single(**options: Any) -> dict[str, Any]:
    """Return the options that are one value for all groups, present and future."""
    return {k: v for k, v in options.items() if not isinstance(v, list | tuple)}


def saved_callable(function: Any) -> dict[str, Any] | None:
    """Return what a state dict keeps of a callable: an object's attributes, else nothing."""
    return None if isinstance(function, types.FunctionType) else dict(function.__dict__)
