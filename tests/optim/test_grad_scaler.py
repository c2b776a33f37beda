"""GradScaler: what it knows of an optimizer is never taken for another's."""

from __future__ import annotations

import random

import pytest

import lowtide as lt
from lowtide.amp import GradScaler


def _made(value):
    p = lt.zeros(3, requires_grad=True)
    p.grad = lt.full((3,), value)
    return p, lt.optim.SGD([p], lr=1.0)


@pytest.mark.parametrize("seed", range(20))
def test_optimizers_made_in_turn_are_not_taken_for_those_that_went(seed):
    rng = random.Random(seed)
    scaler = GradScaler("cpu", init_scale=4.0)
    scaler.scale(lt.ones(()))
    infinite = False
    for _ in range(12):
        value = rng.choice([8.0, float("inf")])
        infinite |= value == float("inf")
        p, optimizer = _made(value)
        if rng.random() < 0.5:
            scaler.unscale_(optimizer)
            assert p.grad.tolist() == [value / 4] * 3
        scaler.step(optimizer)
        assert p.tolist() == ([0.0] if infinite_in(value) else [-2.0]) * 3
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.step(optimizer)
        del p, optimizer  # another one may get its place in memory
    scaler.update()
    assert scaler.get_scale() == (2.0 if infinite else 4.0)
    assert not scaler._held


def infinite_in(value):
    return value == float("inf")
