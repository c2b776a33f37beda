"""Schedules that the tests of this folder run, for lowtide and for a library like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STEPS = 60
RATES = (0.1, 0.02)  # of the two parameter groups


class Wave:
    """A schedule function that is an object with state of its own."""

    def __init__(self, height: float) -> None:
        self.height = height

    def __call__(self, step: int) -> float:
        return 1.0 + self.height * (step % 7)


def halving(step: int) -> float:
    return 0.5 ** (step // 10)


def gently(step: int) -> float:
    return 0.95 + 0.001 * step


SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "LambdaLR": lambda s, o: s.LambdaLR(o, halving),
    "LambdaLR-each": lambda s, o: s.LambdaLR(o, [halving, Wave(0.1)]),
    "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, gently),
    "StepLR": lambda s, o: s.StepLR(o, 7, gamma=0.7),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [3, 20, 20, 41], gamma=0.5),
    "ConstantLR": lambda s, o: s.ConstantLR(o, factor=0.25, total_iters=11),
    "LinearLR": lambda s, o: s.LinearLR(o, start_factor=0.2, end_factor=0.9, total_iters=23),
    "LinearLR-down": lambda s, o: s.LinearLR(o, start_factor=1.0, end_factor=0.1, total_iters=50),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.93),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, total_iters=40, power=1.7),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 13, eta_min=0.001),
    "CosineAnnealingLR-long": lambda s, o: s.CosineAnnealingLR(o, 100),
    "CosineAnnealingWarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 9, eta_min=1e-3),
    "CosineAnnealingWarmRestarts-longer": lambda s, o: s.CosineAnnealingWarmRestarts(o, 5, 2),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, [0.5, 0.3], total_steps=STEPS + 5),
    "OneCycleLR-linear": lambda s, o: s.OneCycleLR(
        o, 0.5, epochs=7, steps_per_epoch=10, anneal_strategy="linear", pct_start=0.2
    ),
    "OneCycleLR-three": lambda s, o: s.OneCycleLR(
        o, 0.5, total_steps=STEPS + 1, three_phase=True, div_factor=10, final_div_factor=100
    ),
    "CyclicLR": lambda s, o: s.CyclicLR(o, 0.01, 0.1, step_size_up=8, step_size_down=5),
    "CyclicLR-2": lambda s, o: s.CyclicLR(o, [0.01, 0.02], 0.1, 6, mode="triangular2"),
    "CyclicLR-exp": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 6, mode="exp_range", gamma=0.97),
    "CyclicLR-own": lambda s, o: s.CyclicLR(
        o, 0.01, 0.1, 6, scale_fn=Wave(-0.05), scale_mode="iterations", cycle_momentum=False
    ),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o,
        [s.LinearLR(o, 0.1, total_iters=10), s.CosineAnnealingLR(o, 30), s.ExponentialLR(o, 0.9)],
        milestones=[10, 40],
    ),
    "SequentialLR-without-closed-form": lambda s, o: s.SequentialLR(
        o,
        [s.ConstantLR(o, 0.1, 5), s.LambdaLR(o, halving), s.MultiplicativeLR(o, gently)],
        milestones=[8, 30],
    ),
    "ChainedScheduler": lambda s, o: s.ChainedScheduler(
        [s.ConstantLR(o, 0.1, total_iters=6), s.ExponentialLR(o, 0.95), s.StepLR(o, 9, 0.8)]
    ),
    "ReduceLROnPlateau": lambda s, o: s.ReduceLROnPlateau(o, patience=3, cooldown=2, min_lr=1e-4),
    "ReduceLROnPlateau-max": lambda s, o: s.ReduceLROnPlateau(
        o, "max", factor=0.5, patience=1, threshold=0.1, threshold_mode="abs", min_lr=[0.01, 0.005]
    ),
}
CLOSED_FORM = [
    "StepLR",
    "MultiStepLR",
    "ConstantLR",
    "LinearLR",
    "ExponentialLR",
    "PolynomialLR",
    "CosineAnnealingLR",
    "LambdaLR",
    "CosineAnnealingWarmRestarts",
    "CosineAnnealingWarmRestarts-longer",
]


def measured(step: int) -> float:
    """A loss that falls, stays, rises and falls again."""
    return 1.0 / (1 + step) if step < 8 else 0.13 + 0.02 * ((step // 6) % 3)


def optimizer_of(lib: Any, name: str = "SGD") -> Any:
    """An optimizer with two groups that steps nothing."""
    params = [lib.zeros(1, requires_grad=True) for _ in RATES]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(params, RATES, strict=True)]
    return getattr(lib.optim, name)(groups, lr=0.5, **({"momentum": 0.9} if name == "SGD" else {}))


def values(optimizer: Any) -> list[list[float]]:
    """Rate and momentum of each group."""
    return [
        [float(g["lr"]), float(g["betas"][0] if "betas" in g else g["momentum"])]
        for g in optimizer.param_groups
    ]


def advance(optimizer: Any, scheduler: Any, steps: Any) -> list[list[list[float]]]:
    """Step both; what the groups hold after each step."""
    found = []
    for step in steps:
        optimizer.step()
        if type(scheduler).__name__ == "ReduceLROnPlateau":
            scheduler.step(measured(step))
        else:
            scheduler.step()
        found.append(values(optimizer))
    return found


def course(lib: Any, schedulers: Any, name: str, kind: str = "SGD") -> list[list[list[float]]]:
    """Values before any step, and after each of ``STEPS``."""
    optimizer = optimizer_of(lib, kind)
    scheduler = SCHEDULES[name](schedulers, optimizer)
    return [values(optimizer), *advance(optimizer, scheduler, range(STEPS))]
