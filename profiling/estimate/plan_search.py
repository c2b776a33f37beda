"""The search for the values that a plan keeps: sets from linear programs, then a local search.

Every set is judged by a run of the step without kernels, whose peak is exact. The search ends where
the proved bound says that there is little to gain, or when runs bring nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ...framework.autograd.remat.replay_costs import EvictionRule
from ...framework.kernels.runtime import kernel_seconds
from .imagined_step import Imagined
from .keep_sets import flipped, keep_sets
from .step_program import StepProgram

ALIKE = 1.02  # times with a smaller ratio count as equal
ENOUGH = 0.005  # operations above the proved bound, as a share, at which the search ends
CLOSE = 1.01  # times the operations of the best way: the next linear program has more room
FLIPS = 4  # sets of values that are imagined at a time
POOL = 8  # ways from which the local search goes on
GAP = 0.02  # of the operations: the further above the proved bound, the longer it searches
MOST_GAPS = 8


class Way(NamedTuple):
    """A way to run the step that fits: its seconds, operations and evictions; rule and limit."""

    cost: tuple[float, int, int]
    rule: EvictionRule
    limit: int


class Ways:
    """The ways found so far.

    Args:
        imagine_each: Runs the step without kernels with each pair of limit and rule.
        pace: Seconds of Python that a kernel call costs (:meth:`Imagined.cost`).
    """

    def __init__(
        self, imagine_each: Callable[[list[tuple[int, EvictionRule]]], list[Imagined]], pace: float
    ) -> None:
        self.imagine_each = imagine_each
        self.pace = pace
        self.known = kernel_seconds.of_machine()
        self.found: list[Way] = []

    @property
    def least_time(self) -> float:
        """Predicted seconds of the fastest way; infinite without any."""
        return min([way.cost[0] for way in self.found], default=float("inf"))

    def run(self, ways: list[tuple[int, EvictionRule]]) -> list[Imagined | None]:
        """Imagine the step with each limit and rule; None where it does not fit."""
        results: list[Imagined | None] = []
        for (limit, rule), found in zip(ways, self.imagine_each(ways), strict=True):
            fits = found.peak <= limit
            if fits:
                self.found.append(Way(found.cost(self.known, self.pace), rule, limit))
            results.append(found if fits else None)
        return results

    def cheapest(self, count: int) -> list[Way]:
        """Return the ways that compute least, each with another number of operations."""
        distinct: dict[int, Way] = {}
        for way in sorted(self.found, key=lambda way: way.cost[1:]):
            distinct.setdefault(way.cost[1], way)
        return list(distinct.values())[:count]

    def best(self, most: float) -> Way:
        """Return the way that computes least, of those that take about the least time.

        Predicted times within 2 % of each other count as equal.

        Args:
            most: Seconds that it may take.
        """
        most = min(most, ALIKE * self.least_time)
        ways = (way for way in self.found if way.cost[0] <= most)
        return min(ways, key=lambda way: (way.cost[1:], way.cost[0]))


def search(
    ways: Ways,
    program: StepProgram,
    limit: int,
    plain: Imagined,
    bound: int,
    tries: int,
    most: float,
) -> None:
    """Look for values that are better dropped last, until there is little to gain.

    First the sets that linear programs propose. Then a few values more or less at a time, from one
    of the cheapest ways found so far: not the cheapest alone, from which the search gets stuck.

    Args:
        ways: Found so far; what is found is added.
        program: Of the step.
        limit: Bytes.
        plain: The step without a budget.
        bound: Operations that every way adds.
        tries: Runs without a gain after which the search ends, for each 2 % above the bound.
        most: Seconds that the best way may take.
    """

    def enough() -> bool:
        return ways.best(most).cost[1] - plain.flops - bound <= ENOUGH * plain.flops

    first = replace(ways.best(most).rule, reads=plain.reads)
    close = False

    def works(keep: frozenset[int]) -> bool:
        return close

    for keep in keep_sets(program, limit, works):
        if enough():
            return
        best = ways.best(most).cost[1]
        rules = (
            first,
            replace(first, distance=0.5),
            replace(first, seconds=None, distance=0.5, bytes_weight=0.0),
        )
        found = ways.run([(limit, replace(rule, keep=keep)) for rule in rules])
        close = any(f is not None and f.flops <= CLOSE * best for f in found)
    draw, idle, last = random.Random(0), 0, ways.cheapest(1)
    while not enough():
        above = (ways.best(most).cost[1] - plain.flops - bound) / plain.flops
        if idle >= tries * min(max(1, round(above / GAP)), MOST_GAPS):
            return
        pool = ways.cheapest(POOL)
        drawn = [draw.choice(pool).rule for _ in range(FLIPS)]
        ways.run(
            [
                (limit, replace(r, keep=flipped(program, r.keep, draw), reads=plain.reads))
                for r in drawn
            ]
        )
        cheapest = ways.cheapest(1)
        idle = idle + FLIPS if cheapest == last else 0
        last = cheapest


__all__ = ["Way", "Ways", "search"]
