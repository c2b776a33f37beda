"""The model of a step's time: what it adds up, for numbers that are easy to follow."""

from __future__ import annotations

import pytest

from benchmarks.scaling import Costs, Link, Step, step_seconds, work_of

COSTS = Costs(message=1.0, byte=0.5, call=10.0, wake=2.0)
LINK = Link("slow", 1.0, 100.0)


def test_a_reduction_costs_messages_and_bytes() -> None:
    assert work_of(8, 2, COSTS) == 10 + 3 * 1 + 8 * 0.5
    assert work_of(8, 4, COSTS) == 10 + 3 * 3 + 12 * 0.5


def test_one_process_communicates_nothing() -> None:
    assert step_seconds(Step(1000.0, 100.0, [(8, 500.0)]), 1, COSTS, LINK) == 1000.0


def test_processes_of_one_machine_share_its_cores() -> None:
    step = Step(1000.0, 100.0, [(8, 500.0), (8, 900.0)])
    assert step_seconds(step, 2, COSTS, None, 2) == 1000 + 2 * 17 + 3 * 2
    assert step_seconds(step, 2, COSTS, None, 1) == 2 * (1000 + 2 * 17) + 3 * 2


@pytest.mark.parametrize(
    ("buckets", "end"),
    [
        ([(8, 100.0)], 900 + 17),  # the link is free long before backward ends
        ([(8, 900.0)], 900 + 17 + 200 + 8),  # the last bucket is waited for
        ([(2000, 100.0), (8, 900.0)], 100 + 1013 + 200 + 2000 + 208),  # one after the other
    ],
)
def test_the_link_moves_buckets_while_backward_goes_on(
    buckets: list[tuple[int, float]], end: float
) -> None:
    assert step_seconds(Step(1000.0, 100.0, buckets), 2, COSTS, LINK) == end + 100 + 6
