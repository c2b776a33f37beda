"""Values dropped at random, at every allocation: the same bits, and nothing is left.

Programs, layers and ops are those of the tests of checkpointing.
"""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
from lowtide import checkpointing as ck
from lowtide.framework import testing
from lowtide.framework.errors import GradientError
from lowtide.framework.ops.registry import OPS
from tests.budget.storm import storm
from tests.checkpointing import test_every_op as ops
from tests.checkpointing import test_random_modules as layers
from tests.checkpointing import test_random_programs as programs
from tests.checkpointing.twice import copying, live, outcome, plain

COUNT = 60  # programs a test


def stormy(step, budgets, seed, device="cpu"):
    def run(region):
        budgets.append(storm((0.1, 0.3, 1.0)[seed % 3], seed, device))
        with budgets[-1]:
            return step(region)

    return run


GROUPS = [0, *[pytest.param(k, marks=pytest.mark.deep) for k in range(1, 9)]]


@pytest.mark.parametrize("first", GROUPS)
@pytest.mark.parametrize("region", [plain, lt.checkpoint])
def test_random_programs(first, region, no_collector):
    different, left, budgets = [], {}, []
    for seed in range(first * COUNT, (first + 1) * COUNT):
        step, before = programs.program(seed), live()
        if outcome(step, copying) != outcome(stormy(step, budgets, seed), region):
            different.append(seed)
        if live() != before:
            left[seed] = live() - before
    assert (different, left) == ([], {})
    assert sum(b.evictions for b in budgets) > COUNT


@pytest.mark.parametrize(
    ("where", "first"),
    [("cpu", 0), *[pytest.param(w, 1, marks=pytest.mark.deep) for w in ("cpu", "sim")]],
)
def test_random_layers_with_policies_stashes_and_hooks(where, first, tmp_path, no_collector):
    disk = ck.offload_to_disk(tmp_path, min_bytes=0)
    different, left, budgets, same = [], {}, [], 0
    for seed in range(first * COUNT, (first + 1) * COUNT):
        before, wrote = live(where), []

        def step(region, seed=seed, wrote=wrote):
            with lt.device(where):
                program = layers.Program(seed, region is not plain, disk)
                try:
                    return program.run()
                finally:
                    wrote[:] = [program.wrote_outside]

        try:
            expected = outcome(step, plain)
        except RuntimeError:  # a write that autograd refuses, or shapes that do not fit
            continue
        try:
            found = outcome(stormy(step, budgets, seed, where), lt.checkpoint)
        except GradientError:
            if wrote == [False]:
                different.append(seed)
            continue
        same += 1
        if found != expected:
            different.append(seed)
        if live(where) != before:
            left[seed] = live(where) - before
    assert (different, left) == ([], {})
    assert same > COUNT // 3
    assert sum(b.evictions for b in budgets) > COUNT


@pytest.mark.deep
@pytest.mark.parametrize("group", range(ops.GROUPS))
def test_every_op(group):
    different, dropped = {}, 0
    for name in ops.names_of(group):
        for number, _ in enumerate(testing.samples(OPS[name], testing.Make())):
            with np.errstate(all="ignore"):
                expected = ops.Run(name, number, False).finish()
                budget = storm(0.5, number)
                with budget:
                    found = ops.Run(name, number, False).finish()
            dropped += budget.evictions
            wrong = [k for k, (e, f) in enumerate(zip(expected, found, strict=True)) if e != f]
            if wrong:
                different[name, number] = wrong
    assert different == {}
    assert dropped > 100
