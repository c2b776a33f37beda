"""Workspace of reductions: what lives does not depend on when messages arrive."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

import lowtide as lt
import lowtide.distributed as dist
from lowtide.framework.distributed.workspace import Workspace
from lowtide.nn.parallel import DistributedDataParallel

from .ranks import Failed, outcomes, results
from .test_data_parallel import network


def test_parts_are_given_in_turn() -> None:
    space = Workspace(100, 2)
    turns = [space.ask() for _ in range(4)]
    assert [t.done for t in turns] == [True, True, False, False]
    space.give_back(turns[2])  # it no longer waits
    space.give_back(turns[1])
    assert turns[3].done
    assert len({t.part.data_ptr() for t in (turns[0], turns[3]) if t.part is not None}) == 2
    a, b = turns[3].tensors(2, lt.zeros(3, dtype=lt.float64))
    assert (a.shape, a.dtype, b.shape) == ((3,), lt.float64, (3,))
    assert b.data_ptr() - a.data_ptr() == 24


def test_a_handle_keeps_its_workspace_until_somebody_waits() -> None:
    def rank_of(rank: int, size: int) -> list[int]:
        t = lt.ones(1 << 20)
        before = lt.memory_allocated()
        work = dist.all_reduce(t, async_op=True)
        assert work is not None
        deadline = time.monotonic() + 60
        while not work.is_completed() and time.monotonic() < deadline:
            time.sleep(0.001)
        held = lt.memory_allocated() - before
        work.wait()
        return [held, lt.memory_allocated() - before]

    assert results(2, rank_of) == [[2 << 20, 0]] * 2


def test_a_pass_takes_the_same_bytes_however_late_a_rank_is() -> None:
    def rank_of(rank: int, size: int) -> set[Any]:
        model = DistributedDataParallel(network(700))
        found = set()
        x = lt.randn(64, 20)
        for late in (-1, None, 0, 1, 2, None):  # the first pass tells the order of others
            for p in model.parameters():
                p.grad = None
            loss = model(x).sum()
            if rank == late:
                time.sleep(0.05)
            lt.reset_peak_memory_stats()
            loss.backward()
            if late != -1:
                found.add((lt.max_memory_allocated(), *lt.memory_stats()["peak_by_role"].values()))
        return found

    assert all(len(found) == 1 for found in results(3, rank_of))


@pytest.mark.deep
def test_a_reduction_that_waits_for_workspace_names_who_is_missing() -> None:
    def rank_of(rank: int, size: int) -> None:
        model = DistributedDataParallel(
            lt.nn.Sequential(*[lt.nn.Linear(300, 300) for _ in range(5)])
        )
        loss = model(lt.randn(4, 300)).sum()
        if rank == 1:
            time.sleep(4)
            return
        loss.backward()

    found = outcomes(2, rank_of, timeout=timedelta(seconds=1.5))
    assert isinstance(found[0], Failed)
    assert "rank 0 waited 1.5 s for rank 1" in found[0].message


def test_the_reductions_of_a_pass_share_two_parts() -> None:
    def rank_of(rank: int, size: int) -> int:
        layers = [lt.nn.Linear(400, 400, bias=False) for _ in range(8)]
        model = DistributedDataParallel(lt.nn.Sequential(*layers))
        x = lt.randn(4, 400)
        for _ in range(2):  # the first pass tells the order
            model.zero_grad()
            loss = model(x).sum()
            lt.reset_peak_memory_stats()
            loss.backward()
        return lt.memory_stats()["peak_by_role"]["communication"]

    # Of eight gradients of 400 x 400, two have half of one each under way.
    assert results(2, rank_of) == [2 * 4 * 400 * 400 // 2] * 2
