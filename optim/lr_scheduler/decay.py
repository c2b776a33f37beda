"""Decaying schedules, and those given by a function."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ..optimizer import Optimizer, number
from .base import LRScheduler, saved_callable, single


class _Chainable(LRScheduler):
    """Base of schedules with a closed form and a recursive form."""

    def at(self, step: int, base_lr: float) -> float:
        """Return the rate at a step, in closed form."""
        raise NotImplementedError

    def following(self, lr: float, base_lr: float, step: int) -> float:
        """Return the rate at ``step``, from the one before."""
        raise NotImplementedError

    def first(self, lr: float, base_lr: float, step: int) -> float:
        """Return the initial rate; ``step`` is not 0 when resuming."""
        return lr

    def get_lr(self) -> list[float]:
        """Compute the rates at ``last_epoch`` from the present ones."""
        self._begin_get_lr()
        move = self.first if self._is_initial else self.following
        return [
            move(number(group["lr"]), base, self.last_epoch)
            for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True)
        ]

    def _get_closed_form_lr(self) -> list[float]:
        return [self.at(self.last_epoch, base) for base in self.base_lrs]


class _ByFunction(LRScheduler):
    """Base of schedules given by user functions."""

    lr_lambdas: list[Callable[[int], float]]

    def __init__(self, optimizer: Optimizer, lr_lambda: Any, last_epoch: int = -1) -> None:
        count = len(optimizer.param_groups)
        if isinstance(lr_lambda, list | tuple):
            if len(lr_lambda) != count:
                raise ValueError(
                    f"Expected {count} lr_lambdas, but got {len(lr_lambda)}. Pass one function for "
                    "each of optimizer.param_groups, or one for all, not in a list."
                )
            self.lr_lambdas = list(lr_lambda)
        else:
            self.lr_lambdas = [lr_lambda] * count
        for function in self.lr_lambdas:
            if not callable(function):
                raise TypeError(
                    f"lr_lambda should be a function, but got {type(function).__name__}."
                )
        self._for_new_groups = single(lr_lambda=lr_lambda)
        super().__init__(optimizer, last_epoch)

    def _take_new_groups(self) -> None:
        super()._take_new_groups()
        self._extend("lr_lambda", self.lr_lambdas, "lr_lambdas")

    def state_dict(self) -> dict[str, Any]:
        """Return the state; of each function only an object's attributes."""
        saved = [saved_callable(f) for f in self.lr_lambdas]
        return {**super().state_dict(), "lr_lambdas": saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state; the functions stay this scheduler's."""
        count = len(state_dict["lr_lambdas"])
        if len(self.lr_lambdas) < count and "lr_lambda" in self._for_new_groups:
            more = count - len(self.lr_lambdas)
            self.lr_lambdas += [self._for_new_groups["lr_lambda"]] * more
        if len(self.lr_lambdas) != count:
            raise ValueError(
                f"{type(self).__name__}.load_state_dict: the state has {count} lr_lambdas, this "
                f"scheduler has {len(self.lr_lambdas)}. Make it with one for each param group "
                "that was there when the state was saved."
            )
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        for function, saved in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if saved is not None:
                function.__dict__.update(saved)


class LambdaLR(_ByFunction):
    """Set the rate to ``base_lr f(step)``.

    Args:
        optimizer: Whose rates to set.
        lr_lambda: f, or one for each group; f holds for groups that are added later, too.
        last_epoch: See :class:`LRScheduler`.
    """

    def get_lr(self) -> list[float]:
        """Compute the rates at ``last_epoch``."""
        self._begin_get_lr()
        pairs = zip(self.lr_lambdas, self.base_lrs, strict=True)
        return [base * f(self.last_epoch) for f, base in pairs]


class MultiplicativeLR(_ByFunction):
    """Multiply the rate by ``f(step)`` at each step, from step 1 on.

    Args:
        optimizer: Whose rates to set.
        lr_lambda: f, or one for each group.
        last_epoch: See :class:`LRScheduler`.
    """

    def get_lr(self) -> list[float]:
        """Compute the rates at ``last_epoch`` from the present ones."""
        self._begin_get_lr()
        lrs = [number(group["lr"]) for group in self.optimizer.param_groups]
        if self._is_initial:
            return lrs
        return [lr * f(self.last_epoch) for f, lr in zip(self.lr_lambdas, lrs, strict=True)]


class StepLR(_Chainable):
    """Multiply by ``gamma`` every ``step_size`` steps: ``base_lr gamma^(step // step_size)``.

    Args:
        optimizer: Whose rates to set.
        step_size: Steps between.
        gamma: Factor.
        last_epoch: See :class:`LRScheduler`.
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def at(self, step: int, base_lr: float) -> float:
        """The rate at a step."""
        return base_lr * self.gamma ** (step // self.step_size)

    def following(self, lr: float, base_lr: float, step: int) -> float:
        """The rate at ``step``, from the one before."""
        return lr * self.gamma if step and step % self.step_size == 0 else lr

    first = following


class MultiStepLR(_Chainable):
    """Multiply by ``gamma`` at each milestone.

    Args:
        optimizer: Whose rates to set.
        milestones: Steps; one that is listed twice counts twice.
        gamma: Factor.
        last_epoch: See :class:`LRScheduler`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def at(self, step: int, base_lr: float) -> float:
        """The rate at a step."""
        return base_lr * self.gamma ** bisect_right(sorted(self.milestones.elements()), step)

    def following(self, lr: float, base_lr: float, step: int) -> float:
        """The rate at ``step``, from the one before."""
        return lr * self.gamma ** self.milestones[step] if step in self.milestones else lr

    first = following

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, also if JSON turned the milestones into strings."""
        super().load_state_dict(state_dict)
        self.milestones = Counter({int(k): n for k, n in self.milestones.items()})


class ConstantLR(_Chainable):
    """Set the rate to ``factor base_lr`` for ``total_iters`` steps, then to ``base_lr``.

    Args:
        optimizer: Whose rates to set.
        factor: In [0, 1].
        total_iters: Steps with the factor.
        last_epoch: See :class:`LRScheduler`.

    Raises:
        ValueError: The factor is outside [0, 1].
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if factor > 1 or factor < 0:
            raise ValueError(
                f"Constant multiplicative factor expected to be between 0 and 1; got {factor}."
            )
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def at(self, step: int, base_lr: float) -> float:
        """The rate at a step."""
        return base_lr * (self.factor + (step >= self.total_iters) * (1 - self.factor))

    def following(self, lr: float, base_lr: float, step: int) -> float:
        """The rate at ``step``, from the one before."""
        if step == 0:
            return lr * self.factor
        if step != self.total_iters:
            return lr
        return lr * (1 / self.factor) if self.factor else base_lr

    first = following


class LinearLR(_Chainable):
    """Change linearly from ``start_factor base_lr`` to ``end_factor base_lr`` in ``total_iters``.

    Args:
        optimizer: Whose rates to set.
        start_factor: In (0, 1].
        end_factor: In [0, 1].
        total_iters: Steps to the end.
        last_epoch: See :class:`LRScheduler`.

    Raises:
        ValueError: A factor is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if start_factor > 1 or start_factor <= 0:
            raise ValueError(
                "Starting multiplicative factor expected to be greater than 0 and less or equal "
                f"to 1; got {start_factor}."
            )
        if end_factor > 1 or end_factor < 0:
            raise ValueError(
                f"Ending multiplicative factor expected to be between 0 and 1; got {end_factor}."
            )
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def at(self, step: int, base_lr: float) -> float:
        """The rate at a step."""
        change = self.end_factor - self.start_factor
        return base_lr * (
            self.start_factor + change * min(self.total_iters, step) / self.total_iters
        )

    def following(self, lr: float, base_lr: float, step: int) -> float:
        """The rate at ``step``, from the one before."""
        if step == 0:
            return lr * self.start_factor
        if step > self.total_iters:
            return lr
        change = self.end_factor - self.start_factor
        return lr * (1 + change / (self.total_iters * self.start_factor + (step - 1) * change))

    def first(self, lr: float, base_lr: float, step: int) -> float:
        """The rate that making the scheduler sets."""
        return lr if step else lr * self.start_factor


class ExponentialLR(_Chainable):
    """Multiply by ``gamma`` at every step: ``base_lr gamma^step``.

    Args:
        optimizer: Whose rates to set.
        gamma: Factor.
        last_epoch: See :class:`LRScheduler`.
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def at(self, step: int, base_lr: float) -> float:
        """The rate at a step."""
        return base_lr * self.gamma**step

    def following(self, lr: float, base_lr: float, step: int) -> float:
        """The rate at ``step``, from the one before."""
        return lr * self.gamma


class PolynomialLR(_Chainable):
    """Polynomial decay to zero: ``base_lr (1 - step / total_iters)^power``.

    Args:
        optimizer: Whose rates to set.
        total_iters: Steps to zero.
        power: 1 is a straight line.
        last_epoch: See :class:`LRScheduler`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def at(self, step: int, base_lr: float) -> float:
        """The rate at a step."""
        left: float = (1 - min(self.total_iters, step) / self.total_iters) ** self.power
        return base_lr * left

    def following(self, lr: float, base_lr: float, step: int) -> float:
        """The rate at ``step``, from the one before."""
        if step > self.total_iters or step == 0:
            return lr
        left, before = 1 - step / self.total_iters, 1 - (step - 1) / self.total_iters
        ratio: float = (left / before) ** self.power
        return lr * ratio


class CosineAnnealingLR(_Chainable):
    """Cosine annealing to ``eta_min`` in ``T_max`` steps, and up again.

    ``eta_min + (base_lr - eta_min) (1 + cos(pi step / T_max)) / 2``.

    Args:
        optimizer: Whose rates to set.
        T_max: Steps to the lowest rate.
        eta_min: The lowest rate.
        last_epoch: See :class:`LRScheduler`.

    Source:
        Loshchilov and Hutter 2017, without restarts.
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def at(self, step: int, base_lr: float) -> float:
        """The rate at a step."""
        return self.eta_min + (base_lr - self.eta_min) * self._height(step)

    def following(self, lr: float, base_lr: float, step: int) -> float:
        """The rate at ``step``, from the one before."""
        if (step - 1 - self.T_max) % (2 * self.T_max) == 0:  # it was at the bottom: no ratio
            return lr + (base_lr - self.eta_min) * (1 - math.cos(math.pi / self.T_max)) / 2
        ratio = self._height(step) / self._height(step - 1)
        return ratio * (lr - self.eta_min) + self.eta_min

    def _height(self, step: int) -> float:
        return (1 + math.cos(math.pi * step / self.T_max)) / 2
