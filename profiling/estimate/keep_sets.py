"""Which saved values of a step are best kept: found by a linear program over stages.

The program of a step (``step_program.py``) is cut into stages, where few bytes cross. Backward goes
through them from the last to the first. A choice says of each saved value whether it is kept, and
of each call in which stages of backward it runs again:

- what a stage reads is kept, or its call runs again in that stage or, if several stages read it, in
  the first of them;
- what a call reads that runs again is kept, or recomputed in the same stage;
- the kept bytes, what the stage itself reads, and what lives in its nodes fit into the budget.

Of those, the choice that costs least. It is coarse: it does not see when within a stage values come
and go. So it is only where the search begins; every choice is tried in a complete run without
kernels before it counts, and the budget that the linear program is given is corrected by how it
went. From the best ones on, a local search flips a few values at a time.

Source:
    Jain et al., "Checkmate", 2020, for the linear program; here of stages in place of nodes, of
    values that evictions and replays then bring about.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from .binary_program import BinaryProgram
from .step_program import StepProgram

STAGES = (12, 24, 6)
TRIES = 2  # with each number of stages
FLIPPED = (1, 1, 2, 3)  # values at a time, in the local search
NEIGHBORS = (2, 2, 3)  # the same of values that stand side by side
SIDE_BY_SIDE = 0.5  # how often they do
FEW = 40  # saved values, up to which all are flipped; or else the larger half
MOST_VARIABLES = 15_000
PATIENCE = 3.0  # seconds for one linear program


def keep_sets(
    program: StepProgram, budget: int, works: Callable[[frozenset[int]], bool]
) -> Iterator[frozenset[int]]:
    """Yield sets of values to keep: of the numbers under which :class:`EvictionRule` knows them.

    Args:
        program: Of the step.
        budget: Bytes.
        works: Asked after each set: whether the step fits with it, at a cost close to the least
            known. The next linear program has more room if it does not, or else less.
    """
    seen: set[frozenset[int]] = set()
    for count in STAGES:
        cuts = _cuts(program, count)
        if len(program.calls) * (len(cuts) + 1) > MOST_VARIABLES:
            continue
        room = budget
        for _ in range(TRIES):
            chosen = _choose(program, cuts, room)
            if chosen is None:
                break
            if chosen not in seen:
                seen.add(chosen)
                yield chosen
            room += int((0.03 if works(chosen) else -0.03) * budget)


def _cuts(program: StepProgram, count: int) -> list[int]:
    # Numbers of the values after which a stage ends: equal bytes made, few of them crossing.
    values = program.values
    last = list(range(len(values)))  # by value: the last one made from it
    for call in program.calls:
        for read in call.reads:
            last[read] = max(last[read], *call.values)
    change = [0] * (len(values) + 1)
    for k, value in enumerate(values):
        change[k] += value.nbytes
        change[last[k]] -= value.nbytes
    crossing = list(accumulate(change))
    made = list(accumulate(value.nbytes for value in values))
    share = made[-1] / count if made else 0.0
    found: list[int] = []
    for stage in range(1, count):
        near = [
            k
            for k in range(found[-1] + 1 if found else 0, len(values) - 1)
            if abs(made[k] - stage * share) <= share / 2
        ]
        if near:
            found.append(min(near, key=lambda k: (crossing[k], abs(made[k] - stage * share))))
    return found


class _Stages:
    # Of each value and node: its stage; of each saved value: the stages that read it.

    def __init__(self, program: StepProgram, cuts: list[int]) -> None:
        self.count = len(cuts) + 1
        self.of_value = [sum(k > cut for cut in cuts) for k in range(len(program.values))]
        latest = [-1] * len(program.base)  # by node: of what it reads
        for value, nodes in program.readers.items():
            for node in nodes:
                latest[node] = max(latest[node], self.of_value[value])
        stage = self.count - 1
        of_node = []
        for found in latest:
            stage = stage if found < 0 else min(stage, found)
            of_node.append(stage)
        self.base = [0] * self.count
        for node, needed in enumerate(program.base):
            self.base[of_node[node]] = max(self.base[of_node[node]], needed)
        # Backward runs from the last stage down: it is read from `first` to `last`, downward.
        self.first = {v: max(of_node[n] for n in nodes) for v, nodes in program.readers.items()}
        self.last = {v: min(of_node[n] for n in nodes) for v, nodes in program.readers.items()}

    def reads(self, value: int, stage: int) -> bool:
        return value in self.first and self.last[value] <= stage <= self.first[value]


def _choose(program: StepProgram, cuts: list[int], budget: int) -> frozenset[int] | None:
    stages = _Stages(program, cuts)
    problem = BinaryProgram()
    kept = [problem.variable() for _ in program.values]
    again = [[problem.variable(call.cost) for _ in range(stages.count)] for call in program.calls]

    def made_in(value: int, stage: int) -> int:
        return again[program.values[value].call][stage]

    for value, first in stages.first.items():
        problem.at_least(1, [(kept[value], 1), (made_in(value, first), 1)])
    for number, call in enumerate(program.calls):
        for stage in range(stages.count):
            for read in call.reads:
                if stages.reads(read, stage) and stage < stages.first[read]:
                    continue  # there since the first stage that reads it
                problem.at_least(
                    0,
                    [(kept[read], 1), (again[number][stage], -1), (made_in(read, stage), 1)],
                )
    for stage in range(stages.count):
        here = sum(program.values[v].nbytes for v in stages.first if stages.reads(v, stage))
        room = budget - stages.base[stage] - here
        if room < 0:
            return None
        crossing: list[tuple[int, float]] = [
            (kept[k], float(value.nbytes))
            for k, value in enumerate(program.values)
            if not stages.reads(k, stage)
            and stage >= min(stages.of_value[k], stages.last.get(k, stages.count))
        ]
        if crossing:
            scale = max(size for _, size in crossing)
            problem.at_most(room / scale, [(k, size / scale) for k, size in crossing])
    chosen: Any = problem.solve(PATIENCE).chosen
    if chosen is None:
        return None
    return frozenset(program.saved[k] for k in program.saved if chosen[kept[k]])


def flipped(program: StepProgram, keep: frozenset[int], draw: random.Random) -> frozenset[int]:
    """Return a set of values to keep that differs in a few of the larger values.

    They are drawn at random, or stand side by side in the order in which they were saved.
    """
    sizes = {number: program.values[k].nbytes for k, number in program.saved.items()}
    larger = sorted(sizes, key=lambda number: (-sizes[number], number))
    larger = larger[: max(FEW, len(larger) // 2)]
    if len(larger) > 1 and draw.random() < SIDE_BY_SIDE:
        larger.sort()
        first = draw.randrange(len(larger) - 1)
        return keep ^ frozenset(larger[first : first + draw.choice(NEIGHBORS)])
    count = min(draw.choice(FLIPPED), len(larger))
    return keep ^ frozenset(draw.sample(larger, count))


__all__ = ["flipped", "keep_sets"]
