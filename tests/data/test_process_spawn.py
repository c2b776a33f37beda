"""Processes that run one function: their arguments, their errors, their ends."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

import lowtide as lt
from lowtide import multiprocessing as mp


def double(i: int, tensor: Any, results: Any) -> None:
    tensor.mul_(2)
    results.put((i, tensor.tolist(), lt.get_num_threads() > 0))


def fail_second(i: int) -> None:
    if i == 1:
        raise ValueError(f"number {i} has a stone in its shoe")
    time.sleep(60)


def die(i: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(i: int) -> None:
    os._exit(3)


def test_arguments_are_copies_and_results_come_back() -> None:
    results = mp.get_context("spawn").Queue()
    tensor = lt.ones(2)
    assert mp.spawn(double, (tensor, results), nprocs=2) is None
    found = sorted(results.get(timeout=600) for _ in range(2))
    assert found == [(0, [2.0, 2.0], True), (1, [2.0, 2.0], True)]
    assert tensor.tolist() == [1.0, 1.0]


def test_an_error_ends_the_others_and_is_told() -> None:
    context = mp.start_processes(fail_second, nprocs=2, join=False, start_method="fork")
    assert context is not None
    assert len(context.pids()) == 2
    with pytest.raises(mp.ProcessRaisedException, match="a stone in its shoe") as caught:
        context.join()
    assert caught.value.error_index == 1
    assert not any(process.is_alive() for process in context.processes)


@pytest.mark.parametrize(
    ("function", "code", "name"), [(die, -signal.SIGKILL, "SIGKILL"), (leave, 3, None)]
)
def test_an_end_without_an_error_is_told(function: Any, code: int, name: str | None) -> None:
    with pytest.raises(mp.ProcessExitedException) as caught:
        mp.start_processes(function, start_method="fork")
    assert caught.value.exit_code == code
    assert caught.value.signal_name == name


def test_what_cannot_be_started_leaves_no_process() -> None:
    with pytest.raises(Exception, match="pickle"):
        mp.spawn(lambda i: None, nprocs=1)
    assert mp.active_children() == []
    with pytest.raises(ValueError, match="call start_processes"):
        mp.spawn(leave, start_method="fork")


def test_strategies_of_sharing() -> None:
    assert mp.get_sharing_strategy() in mp.get_all_sharing_strategies()
    mp.set_sharing_strategy("file_descriptor")
    with pytest.raises(ValueError, match="carrier"):
        mp.set_sharing_strategy("carrier")
    assert mp.get_all_start_methods()
