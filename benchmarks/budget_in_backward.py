"""How low a byte budget can go when optimizers step in backward, and what that costs.

For each model of ``benchmarks/budget.py``: the least budget that ``fit`` finds, without and with
``in_backward``, as MiB and as a share of the plain step's activations (as in
``benchmarks/budget.py``); then, at the least budget that does without, the operations that both
plans add, and the median time of a step under each, in turns, as ratios to the plain step's. The
parameters must be the same bits after all of them.

    python -m benchmarks.budget_in_backward [--only NAME ...] [--steps N]
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from statistics import median
from typing import Any

import lowtide as lt
from benchmarks.budget import MODELS, Model, imagine
from lowtide.profiling.estimate.fork_sandbox import run_apart


def floor(model: Model, start: int, optimizers: Any) -> int:
    """The least budget that does."""
    try:
        return int(lt.fit(model.step, budget=start + 1, in_backward=optimizers).floor)
    except lt.InfeasibleBudget as error:
        return error.floor


def timed(model: Model, plans: list[Any], steps: int) -> list[float]:
    """Median seconds of a step under each plan, in turns; in a copy of the process."""

    def work() -> list[float]:
        taken: list[list[float]] = [[] for _ in plans]
        for _ in range(steps + 1):
            for plan, seconds in zip(plans, taken, strict=True):
                began = time.perf_counter()
                with plan or nullcontext():
                    model.step()
                seconds.append(time.perf_counter() - began)
                model.optimizer.zero_grad()
        return [median(seconds[1:]) for seconds in taken]

    return run_apart(work)


def digest(model: Model, plan: Any) -> str:
    """The parameters after two steps under a plan."""

    def work() -> str:
        lt.manual_seed(1)
        with plan or nullcontext():
            for _ in range(2):
                model.step()
        return model.digest()

    return run_apart(work)


def row(name: str, steps: int) -> None:
    """Print the row of a model."""
    lt.manual_seed(0)
    model = MODELS[name]()
    model.step()  # the optimizer's state exists
    model.optimizer.zero_grad()
    plain = imagine(model, None)
    start, above = plain["start"], plain["peak"] - plain["start"]
    alone, lower = floor(model, start, ()), floor(model, start, model.optimizer)
    limit = int(1.01 * alone)
    plans = [
        None,
        lt.fit(model.step, budget=limit),
        lt.fit(model.step, budget=limit, in_backward=model.optimizer),
        lt.fit(model.step, budget=int(1.01 * lower), in_backward=model.optimizer),
    ]
    times = timed(model, plans, steps)
    same = len({digest(model, plan) for plan in plans}) == 1
    figures = [f"{n / 2**20:>7.1f} {(n - start) / above:>6.1%}" for n in (alone, lower)]
    for plan, seconds in zip(plans[1:], times[1:], strict=True):
        figures.append(f"{plan.added:>+7.1%} {seconds / times[0]:>5.2f}")
    print(f"{name:>8} {'  '.join(figures)}{'' if same else '  OTHER BITS'}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    print("least MiB and share, without and with; added operations and time: without, with, lowest")
    for name in options.only:
        row(name, options.steps)


if __name__ == "__main__":
    main()
