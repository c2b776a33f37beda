"""Cyclic schedules, which may cycle the momentum inversely."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from ..optimizer import Optimizer
from .base import (
    LRScheduler,
    check_optimizer,
    per_group,
    saved_callable,
    set_rate,
    single,
    uninterrupted,
)


class CosineAnnealingWarmRestarts(LRScheduler):
    """Cosine annealing to ``eta_min`` with restarts, each ``T_mult`` times as long.

    ``eta_min + (base_lr - eta_min) (1 + cos(pi T_cur / T_i)) / 2``, T_cur steps into a period
    of T_i.

    Args:
        optimizer: Whose rates to set.
        T_0: Steps of the first period.
        T_mult: Each period's length by the one before.
        eta_min: The lowest rate.
        last_epoch: See :class:`LRScheduler`.

    Raises:
        ValueError: ``T_0`` or ``T_mult`` is no positive integer, or ``eta_min`` no number.

    Source:
        Loshchilov and Hutter 2017.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if not isinstance(T_0, int) or T_0 <= 0:
            raise ValueError(f"Expected positive integer T_0, but got {T_0}.")
        if not isinstance(T_mult, int) or T_mult < 1:
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}.")
        if not isinstance(eta_min, float | int):
            raise ValueError(
                f"Expected float or int eta_min, but got {eta_min} of type {type(eta_min)}."
            )
        self.T_0 = T_0
        self.T_i = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Compute the rates at ``T_cur``."""
        self._begin_get_lr()
        height = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]

    @uninterrupted
    def step(self, epoch: float | None = None) -> None:
        """Advance by one step, or to a given (possibly fractional) step.

        Raises:
            ValueError: ``epoch`` is negative.
        """
        self._take_new_groups()  # before anything moves: it may raise
        if epoch is None and self.last_epoch >= 0:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        else:
            epoch = 0 if epoch is None else epoch
            if epoch < 0:
                raise ValueError(f"Expected non-negative epoch, but got {epoch}.")
            self.T_cur, self.T_i = self.period(epoch)
        self.last_epoch = math.floor(epoch)
        self._get_lr_called_within_step = True
        try:
            values = self.get_lr()
        finally:
            self._get_lr_called_within_step = False
        self._write(values)

    def period(self, epoch: float) -> tuple[float, int]:
        """Return the position of a step in its period, and the period's length."""
        if self.T_mult == 1:
            return epoch % self.T_0, self.T_0
        length = self.T_0
        while epoch >= length:
            epoch -= length
            length *= self.T_mult
        return epoch, length


class _Momentum:
    """Mixin for schedules that cycle the momentum inversely to the rate."""

    optimizer: Optimizer
    use_beta1: bool

    def _prepare(self, optimizer: Optimizer, lowest: Any, highest: Any, fresh: bool) -> Any:
        """Set momentum bounds for each group.

        Raises:
            ValueError: The optimizer has neither momentum nor betas.
        """
        if not {"momentum", "betas"} & set(optimizer.defaults):
            raise ValueError(
                "optimizer must support momentum or beta1 with `cycle_momentum` option enabled. "
                "Pass cycle_momentum=False."
            )
        self.use_beta1 = "betas" in optimizer.defaults
        lows = per_group("base_momentum", optimizer, lowest)
        highs = per_group("max_momentum", optimizer, highest)
        if fresh:
            for group, low, high in zip(optimizer.param_groups, lows, highs, strict=True):
                self._set(group, high)
                group["max_momentum"], group["base_momentum"] = high, low
        return lows, highs

    def _set(self, group: dict[str, Any], momentum: float) -> None:
        if self.use_beta1:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum


class OneCycleLR(LRScheduler, _Momentum):
    """One-cycle policy: rise to ``max_lr``, then fall to almost zero; momentum inversely.

    Rates go from ``max_lr / div_factor`` up, in ``pct_start`` of the steps, and down to that rate
    divided by ``final_div_factor``; with ``three_phase`` as long down as up, then on to the end.

    Args:
        optimizer: Whose rates to set.
        max_lr: The highest rate, or one for each group.
        total_steps: Of the cycle; or give the next two.
        epochs: Of the cycle.
        steps_per_epoch: In each.
        pct_start: Share of the steps on the way up.
        anneal_strategy: "cos" or "linear".
        cycle_momentum: Move the momentum too (beta1 of an optimizer with betas).
        base_momentum: The lowest.
        max_momentum: The highest.
        div_factor: ``max_lr`` by the first rate.
        final_div_factor: The first rate by the last.
        three_phase: As said.
        last_epoch: See :class:`LRScheduler`.

    A group that is added later may have a separate ``max_lr``.

    Raises:
        ValueError: The steps are not given, an option is out of range, or, in ``step``, there were
            more steps than ``total_steps``.

    Source:
        Smith and Topin 2017, in the form PyTorch computes.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: Any,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: Any = 0.85,
        max_momentum: Any = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        if total_steps is None and (epochs is None or steps_per_epoch is None):
            raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch).")
        given = {"total_steps": total_steps}
        if total_steps is None:
            given = {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
        for name, value in given.items():
            if not isinstance(value, int) or value <= 0:
                raise ValueError(f"Expected positive integer {name}, but got {value}.")
        self.total_steps: int = math.prod(v for v in given.values() if v is not None)
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}.")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}."
            )
        self._anneal_func_type = anneal_strategy
        up = {"lr": ("initial_lr", "max_lr"), "momentum": ("max_momentum", "base_momentum")}
        down = {"lr": ("max_lr", "min_lr"), "momentum": ("base_momentum", "max_momentum")}
        end = float(pct_start * self.total_steps) - 1
        last = self.total_steps - 1
        self._schedule_phases: list[dict[str, Any]] = [{"end_step": end, **up}]
        if three_phase:
            back = {**down, "lr": ("max_lr", "initial_lr")}
            rest = {"lr": ("initial_lr", "min_lr"), "momentum": ("max_momentum", "max_momentum")}
            twice = float(2 * pct_start * self.total_steps) - 2
            self._schedule_phases += [{"end_step": twice, **back}, {"end_step": last, **rest}]
        else:
            self._schedule_phases.append({"end_step": last, **down})
        highest = per_group("max_lr", optimizer, max_lr)
        if last_epoch == -1:
            for group, high in zip(optimizer.param_groups, highest, strict=True):
                group["initial_lr"] = high / div_factor
                group["max_lr"] = high
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._prepare(optimizer, base_momentum, max_momentum, last_epoch == -1)
        self._for_new_groups = {
            **single(max_lr=max_lr, base_momentum=base_momentum, max_momentum=max_momentum),
            "div_factor": div_factor,
            "final_div_factor": final_div_factor,
        }
        super().__init__(optimizer, last_epoch)

    def _base_of(self, group: dict[str, Any]) -> float:
        names = ("max_lr", "base_momentum", "max_momentum")
        for name in names if self.cycle_momentum else names[:1]:
            if name not in group:
                group[name] = self._for_new(name, f"Give the new group a {name!r} of its own")
        first: float = group["max_lr"] / self._for_new_groups["div_factor"]
        group["initial_lr"] = first
        group["min_lr"] = first / self._for_new_groups["final_div_factor"]
        return first

    def get_lr(self) -> list[float]:
        """Compute the rates at ``last_epoch``, and set the momentum."""
        self._begin_get_lr()
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(
                f"Tried to step {step} times. The specified number of total steps is "
                f"{self.total_steps}."
            )
        phase, share = self._phase(step)
        found = []
        for group in self.optimizer.param_groups:
            begin, end = phase["lr"]
            found.append(self._between(group[begin], group[end], share))
            if self.cycle_momentum:
                begin, end = phase["momentum"]
                self._set(group, self._between(group[begin], group[end], share))
        return found

    def _phase(self, step: int) -> tuple[dict[str, Any], float]:
        start = 0.0
        for phase in self._schedule_phases:
            end = phase["end_step"]
            if step <= end or phase is self._schedule_phases[-1]:
                break
            start = end
        return phase, (step - start) / (end - start)

    def _between(self, start: float, end: float, share: float) -> float:
        if self._anneal_func_type == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)


class CyclicLR(LRScheduler, _Momentum):
    """Cyclic learning rate between ``base_lr`` and ``max_lr``; momentum inversely.

    Args:
        optimizer: Whose rates to set.
        base_lr: The lowest rate, or one for each group.
        max_lr: The highest.
        step_size_up: Steps up.
        step_size_down: Steps down; default: as many.
        mode: "triangular"; "triangular2", whose height halves each cycle; "exp_range", whose height
            is scaled by ``gamma^step``.
        gamma: Of the last.
        scale_fn: Scales the height instead of ``mode``.
        scale_mode: Whether ``scale_fn`` takes the "cycle" or the number of "iterations".
        cycle_momentum: Move the momentum too (beta1 of an optimizer with betas).
        base_momentum: The lowest.
        max_momentum: The highest.
        last_epoch: See :class:`LRScheduler`.

    Raises:
        ValueError: The mode is unknown, or the optimizer has no momentum to cycle.

    Source:
        Smith 2017.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: Any,
        max_lr: Any,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: Any = 0.8,
        max_momentum: Any = 0.9,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        lowest = per_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for group, low in zip(optimizer.param_groups, lowest, strict=True):
                set_rate(group, low)
        self.max_lrs = per_group("max_lr", optimizer, max_lr)
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio = up / self.total_size
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError(f"mode is invalid and scale_fn is None; got mode {mode!r}.")
        self.mode = mode
        self.gamma = gamma
        self._scale_fn_custom = scale_fn
        self.scale_mode = scale_mode
        if scale_fn is None:
            self.scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.base_momentums, self.max_momentums = self._prepare(
                optimizer, base_momentum, max_momentum, last_epoch == -1
            )
        self._for_new_groups = single(
            base_lr=base_lr, max_lr=max_lr, base_momentum=base_momentum, max_momentum=max_momentum
        )
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lowest

    def _take_new_groups(self) -> None:
        known = len(self.base_lrs)
        self._extend("max_lr", self.max_lrs, "max_lrs")
        if self.cycle_momentum:
            self._extend("base_momentum", self.base_momentums, "base_momentums")
            self._extend("max_momentum", self.max_momentums, "max_momentums")
        super()._take_new_groups()
        if self.cycle_momentum:
            for k, group in enumerate(self.optimizer.param_groups[known:], known):
                group["base_momentum"] = self.base_momentums[k]
                group["max_momentum"] = self.max_momentums[k]

    def _base_of(self, group: dict[str, Any]) -> float:
        base: float = self._for_new("base_lr", "Append one for each new group to .base_lrs")
        group.setdefault("initial_lr", base)
        return base

    def scale_fn(self, x: float) -> float:
        """Return the amplitude's factor at a cycle or an iteration."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        height: float = 2.0 ** (1 - x) if self.mode == "triangular2" else self.gamma**x
        return height

    def get_lr(self) -> list[float]:
        """Compute the rates at ``last_epoch``, and set the momentum."""
        self._begin_get_lr()
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        rising = x <= self.step_ratio
        height = x / self.step_ratio if rising else (x - 1) / (self.step_ratio - 1)
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            bounds = zip(self.base_momentums, self.max_momentums, strict=True)
            for group, (low, high) in zip(self.optimizer.param_groups, bounds, strict=True):
                self._set(group, high - (high - low) * height * scale)
        pairs = zip(self.base_lrs, self.max_lrs, strict=True)
        return [low + (high - low) * height * scale for low, high in pairs]

    def state_dict(self) -> dict[str, Any]:
        """Return the state; of a custom ``scale_fn`` only an object's attributes."""
        function = self._scale_fn_custom
        saved = None if function is None else saved_callable(function)
        return {**super().state_dict(), "_scale_fn_custom": saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state; ``scale_fn`` stays this scheduler's."""
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_scale_fn_custom"})
        saved = state_dict["_scale_fn_custom"]
        if saved is not None:
            if self._scale_fn_custom is None:
                warnings.warn(
                    "CyclicLR: the state dict has attributes of a scale_fn, this scheduler has "
                    "none. Make it with the same scale_fn.",
                    UserWarning,
                    stacklevel=2,
                )
            else:
                self._scale_fn_custom.__dict__.update(saved)
