"""The least that must be recomputed within a budget, whatever is dropped and when: a proof.

At one instant of backward, each value that a later node reads is live, or its call runs again
later; and what a call reads that runs again is live then, or recomputed as well. What is live then
fits into the budget, beside what no choice can drop. The least operations under these rules are a
linear program, and what it proves holds for every way of dropping and recomputing that runs the
step's kernels in their order. (Packed or offloaded values are other ways: the proof is not of
them.) The largest of the bounds at several instants counts.
"""

from __future__ import annotations

from .binary_program import BinaryProgram
from .step_program import Instant, StepProgram

CLOSELY = 8  # instants: those at which most bytes are too many
WHOLE = 2  # of them, solved in whole numbers
MOST_VARIABLES = 16_000  # of all of them
PATIENCE = 3.0  # seconds for each


def least_replayed(program: StepProgram, budget: int) -> int:
    """Return operations that every way of running the step within the budget does again.

    Args:
        program: Of the step.
        budget: Bytes, with which the step can run.
    """
    over = []
    for at in program.instants:
        wanted = _wanted(program, at)
        excess = sum(program.values[k].nbytes for k in wanted) + at.need - budget
        if wanted and excess > 0 and at.need <= budget:
            over.append((excess, at.node, at, wanted))
    problems: list[BinaryProgram] = []
    for _, _, at, wanted in sorted(over, reverse=True, key=lambda found: found[:2])[:CLOSELY]:
        problems.append(_problem(program, at, wanted, budget))
        if sum(map(len, problems)) > MOST_VARIABLES:
            break
    bounds = sorted(((_proved(p, whole=False), k) for k, p in enumerate(problems)), reverse=True)
    whole = [_proved(problems[k], whole=True) for _, k in bounds[:WHOLE]]
    return int(max([bound for bound, _ in bounds] + whole, default=0.0))


def _proved(problem: BinaryProgram, whole: bool) -> float:
    # Less what the solver may be off by; 0 where it proves nothing.
    return max(problem.solve(PATIENCE, whole).bound * (1 - 1e-6), 0.0)


def _wanted(program: StepProgram, at: Instant) -> list[int]:
    # What could be dropped then, and is read later.
    readers = program.readers
    return [k for k in sorted(at.droppable) if k in readers and readers[k][-1] > at.node]


def _problem(
    program: StepProgram, instant: Instant, wanted: list[int], budget: int
) -> BinaryProgram:
    # Of the wanted values, and of all that they are made from.
    problem = BinaryProgram()
    again: dict[int, int] = {}  # variables, by call and by value
    live: dict[int, int] = {}
    stack = list(wanted)
    while stack:
        k = stack.pop()
        if k in live or k in instant.there:
            continue
        live[k] = problem.variable()
        call = program.values[k].call
        if call not in again:
            again[call] = problem.variable(float(program.calls[call].flops))
            stack += program.calls[call].reads
    for k in wanted:
        problem.at_least(1, [(live[k], 1), (again[program.values[k].call], 1)])
    for call, runs in again.items():
        for read in program.calls[call].reads:
            if read in live:
                made = again[program.values[read].call]
                problem.at_least(0, [(live[read], 1), (made, 1), (runs, -1)])
    room = budget - instant.need
    scale = float(max(program.values[k].nbytes for k in live))
    sizes = [(column, program.values[k].nbytes / scale) for k, column in live.items()]
    problem.at_most(room / scale, sizes)
    return problem


__all__ = ["least_replayed"]
