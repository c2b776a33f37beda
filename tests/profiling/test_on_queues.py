"""Predictions for a GPU, whose work is queued, in a process that may not use it.

The GPU is the model of ``tests/checkpointing/asynchronous.py``, under the package's own backend:
it refuses whatever a forked process asks of it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import lowtide as lt
from lowtide.checkpointing import offload, offload_to_disk, pack, policy, save_matmuls
from lowtide.profiling import MemoryProfiler, estimate
from tests.checkpointing.asynchronous import Gpu, running
from tests.checkpointing.nets import gpt
from tests.checkpointing.queues import Order
from tests.profiling.predictions import measured, predicted

AROUND = {
    "plain": lambda _: lt.enable_grad(),
    "offload": lambda _: offload(min_bytes=0),
    "offload, not pinned": lambda _: offload(pin_memory=False, min_bytes=0, ahead=0),
    "disk": lambda tmp_path: offload_to_disk(tmp_path, min_bytes=0),
    "recompute": lambda _: lt.checkpointing(),
    "pack": lambda _: lt.checkpointing(pack()),
    "matmuls": lambda _: lt.checkpointing(save_matmuls),
    "all": lambda _: lt.checkpointing(
        policy({"op:linear": offload(min_bytes=0), "op:gelu": pack(), "op:layer_norm": "recompute"})
    ),
}

EACH = [pytest.param(n, marks=() if n in ("plain", "all") else pytest.mark.deep) for n in AROUND]


def figures(take: Any, step: Any, where: str) -> dict[str, Any]:
    found = take(step, where)
    if where != "cpu":
        found.pop("pool")  # CuPy's: it is not predicted
    return found


@pytest.fixture
def d() -> Iterator[lt.device]:
    with running(Gpu(Order(), size=1 << 26)) as (found,):
        yield found
        gc.collect()


def compare(step: Any, d: lt.device) -> None:
    for where in (str(d), "cpu"):
        assert figures(predicted, step, where) == figures(measured, step, where)


@pytest.mark.quick(1)
@pytest.mark.parametrize("around", EACH)
@pytest.mark.parametrize(
    "used", [False, pytest.param(True, marks=pytest.mark.deep)], ids=["fresh", "used"]
)
def test_a_step_takes_what_was_predicted(
    around: str, used: bool, d: lt.device, tmp_path: Any
) -> None:
    model, x = gpt()
    model, x = model.to(d), x.to(d)
    optimizer = lt.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with AROUND[around](tmp_path):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    if used:  # streams and slabs are there, and the process that predicts must not touch them
        step()
    compare(step, d)
    found = estimate(step)
    with MemoryProfiler() as prof:
        step()
    assert prof.peak_bytes == found.peak_bytes
    assert prof.at_peak("op").as_dict() == found.at_peak("op").as_dict()


@pytest.mark.parametrize("around", EACH)
@pytest.mark.deep
def test_the_backward_pass_of_a_graph_that_is_there(
    around: str, d: lt.device, tmp_path: Any
) -> None:
    model, x = gpt()
    model, x = model.to(d), x.to(d)
    with AROUND[around](tmp_path):
        loss = model(x).square().mean()
    compare(lambda: loss.backward(retain_graph=True), d)
