"""A byte budget with a disk: operations and time beside a budget that only recomputes.

For each share of what a plain GPT step takes above what lived before, as ``benchmarks.budget``
defines it: three plans of :func:`lowtide.fit`, without a disk, with one that is said to move
1 GB/s, and with one whose speed is measured. Each step runs in turns with the plain one, in a
forked copy, and its peak is checked.

    python -m benchmarks.budget_disk [--dir DIR] [--shares 0.5 0.3 ...] [--steps N]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import nullcontext
from statistics import median
from typing import Any

import lowtide as lt
from benchmarks.budget import MODELS, imagine
from lowtide.checkpointing import offload_to_disk
from lowtide.framework.memory.ledger import format_bytes
from lowtide.profiling.estimate.fork_sandbox import run_apart


def times(model: Any, plans: list[Any], steps: int) -> list[tuple[float, int, int]]:
    """(Median seconds, peak, values stashed in a step) of a plain step and of plans, in turns."""

    def work() -> list[tuple[float, int, int]]:
        taken: list[list[float]] = [[] for _ in range(len(plans) + 1)]
        peaks, stashed = [0] * len(taken), [0] * len(taken)
        for turn in range(steps + 1):  # the first is not counted
            for k, plan in enumerate([None, *plans]):
                lt.reset_peak_memory_stats()
                before = 0 if plan is None else plan.stashed
                began = time.perf_counter()
                with plan or nullcontext():
                    model.step()
                if turn:
                    taken[k].append(time.perf_counter() - began)
                peaks[k] = max(peaks[k], lt.max_memory_allocated())
                stashed[k] = 0 if plan is None else plan.stashed - before
        return list(zip(map(median, taken), peaks, stashed, strict=True))

    return run_apart(work)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="a folder of the disk")
    parser.add_argument("--shares", nargs="*", type=float, default=[0.6, 0.5, 0.4, 0.3, 0.25])
    parser.add_argument("--steps", type=int, default=5, help="timed, each")
    args = parser.parse_args()
    lt.manual_seed(0)
    model = MODELS["gpt"]()
    model.step()
    model.optimizer.zero_grad()
    plain = imagine(model, None)
    start, above = plain["start"], plain["peak"] - plain["start"]
    measured = offload_to_disk(args.dir)
    print(f"the disk of {args.dir} moves {format_bytes(round(measured.speed))} a second")
    ways = {
        "replay": (),
        "disk, 1 GB/s": offload_to_disk(args.dir, speed=10**9),
        "disk, measured": measured,
    }
    print(
        f"{'budget':>7} {'way':>15} {'operations':>11} {'stashed':>8} {'predicted':>10} {'time':>6}"
    )
    for share in args.shares:
        limit = int(start + share * above)
        plans = [lt.fit(model.step, budget=limit, stash=way) for way in ways.values()]
        (alone, _, _), *found = times(model, plans, args.steps)
        for name, plan, (took, peak, stashed) in zip(ways, plans, found, strict=True):
            if peak > limit:
                raise AssertionError(f"{name} passed the budget: {peak} of {limit}")
            predicted = (plan.seconds or 0.0) / (plan.plain_seconds or 1.0)
            print(
                f"{share:>7.0%} {name:>15} {plan.added:>+11.1%} {stashed:>8} {predicted:>10.2f} "
                f"{took / alone:>6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
