"""Schedules, steps and rows of ``torch.profiler``: beside PyTorch's."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest

import lowtide as lt
import lowtide.profiler  # not there before it is imported

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

FRAMEWORKS = (lt, torch)


def test_schedules_choose_the_same_steps() -> None:
    for wait, warmup, active, repeat, skip, at_once in itertools.product(
        range(3), range(3), range(1, 4), range(3), range(3), range(2)
    ):
        given = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat}
        given |= {"skip_first": skip, "skip_first_wait": at_once}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, that there is no warm-up
            plans = [T.profiler.schedule(**given) for T in FRAMEWORKS]
        ours, theirs = ([plan(i).name for i in range(25)] for plan in plans)
        assert ours == theirs, given


def stepped(T: Any, **schedule: int) -> list[Any]:
    handed: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = T.profiler.schedule(**schedule) if schedule else None
        with T.profiler.profile(
            activities=[T.profiler.ProfilerActivity.CPU],
            schedule=plan,
            on_trace_ready=lambda p: handed.append(p.step_num),
        ) as prof:
            for i in range(7):
                with T.profiler.record_function(f"stretch {i}"):
                    T.ones(2).exp()
                prof.step()
    kept = {"aten::exp", "ProfilerStep*", *(f"stretch {i}" for i in range(7))}
    rows = {a.key: a.count for a in prof.key_averages() if a.key in kept}
    return [handed, rows]


@pytest.mark.parametrize(
    "schedule",
    [
        {},
        {"wait": 1, "warmup": 1, "active": 2, "repeat": 2},
        {"wait": 0, "warmup": 0, "active": 3, "repeat": 1},
        {"wait": 2, "warmup": 0, "active": 1, "repeat": 0, "skip_first": 1},
    ],
    ids=str,
)
def test_the_same_steps_are_handed_over_with_the_same_rows(schedule: dict[str, int]) -> None:
    ours, theirs = (stepped(T, **schedule) for T in FRAMEWORKS)
    assert ours == theirs


def test_columns_have_the_same_names() -> None:
    titles = []
    for T in FRAMEWORKS:
        with T.profiler.profile(
            activities=[T.profiler.ProfilerActivity.CPU], profile_memory=True, record_shapes=True
        ) as prof:
            T.ones(3).exp()
        table = prof.key_averages(group_by_input_shape=True).table(sort_by="cpu_time_total")
        (line,) = [line for line in table.splitlines() if "# of Calls" in line]
        titles.append([title.strip() for title in line.split("  ") if title.strip()])
    assert titles[0] == titles[1]
