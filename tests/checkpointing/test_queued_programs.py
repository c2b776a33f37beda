"""Programs drawn at random, with offload in their regions, on a GPU whose work is queued.

The programs are those of ``test_random_programs.py``: writes in place, views, regions in regions,
gradients of gradients. A thousand of them were run when this was written.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import lowtide as lt
from lowtide.checkpointing import offload, policy
from tests.checkpointing.asynchronous import Gpu, end_failed, running
from tests.checkpointing.queues import COPY_BACK, COPY_OUT, KERNEL, Drawn, Late, Order
from tests.checkpointing.test_random_programs import program
from tests.checkpointing.twice import copying, outcome

COUNT = 40  # programs


def offloading(seed: int) -> Callable[..., Any]:
    """What a program calls in the place of ``checkpoint``: a policy is drawn for each region."""
    r = random.Random(seed)

    def region(f: Any, *args: Any, **kwargs: Any) -> Any:
        kind, ahead = r.randrange(6), r.choice([0, 1, 2, 5])
        away = offload(ahead=ahead, min_bytes=0)
        if kind == 0:
            with away:
                return f(*args, **kwargs)
        chosen: Any = away
        if kind == 1:
            chosen = None
        elif kind == 2:
            pageable = offload(pin_memory=False, ahead=ahead, min_bytes=0)
            chosen = policy(
                {"op:sin|tanh|exp": away, "op:matmul|relu": "recompute", "op:sigmoid": pageable}
            )
        return lt.checkpoint(f, *args, policy=chosen, **kwargs)

    return region


def result(seed: int, order: Order, region: Any, around: Any) -> tuple[Any, int]:
    """A program's numbers, and how many copies there were."""
    gpu = Gpu(order)
    with running(gpu) as (d,), d, around:  # gradients, and those of gradients, are inside too
        found = outcome(program(seed), region)
    return found, sum(w.kind != KERNEL for w in gpu.queued)


@pytest.mark.deep
@pytest.mark.parametrize(
    "order",
    [
        Order(),
        pytest.param(Late(KERNEL, COPY_BACK, COPY_OUT), marks=pytest.mark.deep),
        pytest.param(Drawn(0), marks=pytest.mark.deep),
    ],
    ids=repr,
)
def test_programs_do_what_they_do_with_copies(order: Order) -> None:
    failed, copies = {}, 0
    for seed in range(COUNT):
        expected, _ = result(seed, Order(), copying, lt.enable_grad())
        around = offload(ahead=seed % 4, min_bytes=0) if seed % 2 else lt.enable_grad()
        try:
            found, count = result(seed, order, offloading(seed), around)
        except (AssertionError, RuntimeError) as error:  # a race, or a write that was refused
            failed[seed] = str(error)
            end_failed()
            continue
        copies += count
        if found != expected:
            failed[seed] = "other numbers"
    assert not failed
    assert copies > 10 * COUNT
