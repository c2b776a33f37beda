"""Schedules after ``optimizer.add_param_group``: the rates of all groups go on."""

from __future__ import annotations

import copy
import random

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.optim import SGD
from lowtide.optim import lr_scheduler as schedules
from lowtide.optim.swa_utils import SWALR

FROM_RATE_TO_RATE = {  # the change of a rate is a factor, of its distance from 0.01
    "multiplicative": lambda o, r: schedules.MultiplicativeLR(o, lambda step: 0.8),
    "step": lambda o, r: schedules.StepLR(o, r.randrange(1, 4), 0.5),
    "milestones": lambda o, r: schedules.MultiStepLR(o, r.sample(range(12), 3), 0.5),
    "constant": lambda o, r: schedules.ConstantLR(o, 0.5, r.randrange(1, 12)),
    "linear": lambda o, r: schedules.LinearLR(o, 0.5, 1.0, r.randrange(1, 12)),
    "exponential": lambda o, r: schedules.ExponentialLR(o, 0.9),
    "polynomial": lambda o, r: schedules.PolynomialLR(o, r.randrange(15, 30)),
    "cosine": lambda o, r: schedules.CosineAnnealingLR(o, r.randrange(15, 30)),
    "plateau": lambda o, r: schedules.ReduceLROnPlateau(o, factor=0.5, patience=0, eps=0),
    "one after another": lambda o, r: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.5, 1.0, 3), schedules.ExponentialLR(o, 0.9)], [50]
    ),
    "chained": lambda o, r: schedules.ChainedScheduler(
        [schedules.ConstantLR(o, 0.5, r.randrange(1, 12)), schedules.ExponentialLR(o, 0.9)]
    ),
}
FROM_BASE = {  # as if the group had been there from the start
    "function": lambda o, r: schedules.LambdaLR(o, lambda step: 1 / (1 + step)),
    "restarts": lambda o, r: schedules.CosineAnnealingWarmRestarts(o, r.randrange(1, 6), 2),
    "cyclic": lambda o, r: schedules.CyclicLR(o, 0.1, 1.0, r.randrange(1, 6)),
    "cyclic, no momentum": lambda o, r: schedules.CyclicLR(
        o, 0.1, 1.0, r.randrange(1, 6), mode="triangular2", cycle_momentum=False
    ),
    "one cycle": lambda o, r: schedules.OneCycleLR(o, 1.0, r.randrange(40, 60)),
    "one cycle in three": lambda o, r: schedules.OneCycleLR(
        o, 1.0, 50, three_phase=True, cycle_momentum=False
    ),
    "second of a sequence": lambda o, r: schedules.SequentialLR(
        o, [schedules.LambdaLR(o, lambda step: 0.5), schedules.StepLR(o, 2, 0.5)], [25]
    ),
}
EVERY = {**FROM_RATE_TO_RATE, **FROM_BASE, "averaging": lambda o, r: SWALR(o, 0.05, 30)}


def leaf():
    return nn.Parameter(lt.zeros(1))


def optimizer_of(*rates):
    return SGD([{"params": [leaf()], "lr": lr} for lr in rates], momentum=0.9)


def advance(optimizer, scheduler, steps):
    seen = []
    for _ in range(steps):
        optimizer.step()
        if isinstance(scheduler, schedules.ReduceLROnPlateau):
            scheduler.step(1.0)
        else:
            scheduler.step()
        assert scheduler.get_last_lr() == [g["lr"] for g in optimizer.param_groups]
        seen.append([(g["lr"], g["momentum"]) for g in optimizer.param_groups])
    return seen


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("name", FROM_RATE_TO_RATE)
def test_a_new_group_goes_on_from_its_rate(name, seed):
    make = FROM_RATE_TO_RATE[name]
    before, after, rate = random.Random(seed).choice(
        [(b, a, lr) for b in range(8) for a in range(1, 8) for lr in (0.3, 2.0)]
    )
    optimizer, alone = optimizer_of(1.0), optimizer_of(1.0)
    scheduler = make(optimizer, random.Random(seed))
    advance(optimizer, scheduler, before)
    begun = optimizer.param_groups[0]["lr"]
    optimizer.add_param_group({"params": [leaf()], "lr": rate})
    want = advance(alone, make(alone, random.Random(seed)), before + after)[before:]
    for (old, new), (only,) in zip(advance(optimizer, scheduler, after), want, strict=True):
        assert old == only
        assert new[0] == pytest.approx(rate * old[0] / begun)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("name", FROM_BASE)
def test_a_new_group_is_as_if_it_had_always_been_there(name, seed):
    make = FROM_BASE[name]
    rng = random.Random(seed)
    before, after, rate = rng.randrange(24), rng.randrange(1, 15), rng.choice((0.3, 2.0))
    optimizer, twin = optimizer_of(1.0), optimizer_of(1.0, rate)
    scheduler = make(optimizer, random.Random(seed))
    advance(optimizer, scheduler, before)
    optimizer.add_param_group({"params": [leaf()], "lr": rate})
    want = advance(twin, make(twin, random.Random(seed)), before + after)[before:]
    for ours, theirs in zip(advance(optimizer, scheduler, after), want, strict=True):
        for mine, same in zip(ours, theirs, strict=True):
            assert mine == pytest.approx(same)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", EVERY)
def test_state_saved_after_a_group_was_added_goes_on(name, seed):
    rng = random.Random(seed)
    make = EVERY[name]
    optimizer = optimizer_of(1.0)
    scheduler = make(optimizer, random.Random(seed))
    advance(optimizer, scheduler, rng.randrange(5))
    groups = rng.randrange(1, 3)
    for _ in range(groups):
        optimizer.add_param_group({"params": [leaf()], "lr": 0.5})
        advance(optimizer, scheduler, rng.randrange(1, 4))
    other = optimizer_of(1.0)
    again = make(other, random.Random(seed))
    for _ in range(groups):
        other.add_param_group({"params": [leaf()], "lr": 0.5})
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again.load_state_dict(copy.deepcopy(scheduler.state_dict()))
    assert advance(other, again, 5) == advance(optimizer, scheduler, 5)


LISTS = {
    "lr_lambda": lambda o: schedules.LambdaLR(o, [lambda step: 1.0]),
    "lr_lambda, factor": lambda o: schedules.MultiplicativeLR(o, [lambda step: 1.0]),
    "base_lr": lambda o: schedules.CyclicLR(o, [0.1], 1.0),
    "max_lr": lambda o: schedules.CyclicLR(o, 0.1, [1.0]),
    "base_momentum": lambda o: schedules.CyclicLR(o, 0.1, 1.0, base_momentum=[0.8]),
    "max_lr, one cycle": lambda o: schedules.OneCycleLR(o, [1.0], 50),
    "max_momentum": lambda o: schedules.OneCycleLR(o, 1.0, 50, max_momentum=[0.9]),
    "swa_lr": lambda o: SWALR(o, [0.05]),
    "min_lrs": lambda o: schedules.ReduceLROnPlateau(o, patience=0, min_lr=[0.1]),
}


@pytest.mark.parametrize("option", LISTS)
def test_a_list_that_has_no_value_for_the_new_group_says_what_to_do(option):
    optimizer = optimizer_of(1.0)
    scheduler = LISTS[option](optimizer)
    advance(optimizer, scheduler, 2)
    optimizer.add_param_group({"params": [leaf()], "lr": 0.5})
    with pytest.raises((ValueError, RuntimeError), match=r"Append|Give|Set") as found:
        advance(optimizer, scheduler, 2)
    assert option.partition(",")[0] in str(found.value)
    assert "zip()" not in str(found.value)


def test_the_way_out_of_a_list_works():
    optimizer = optimizer_of(1.0)
    scheduler = schedules.LambdaLR(optimizer, [lambda step: 0.5])
    optimizer.add_param_group({"params": [leaf()], "lr": 2.0})
    with pytest.raises(ValueError, match=r"2 param groups now. Append one .* to .lr_lambdas"):
        advance(optimizer, scheduler, 1)
    scheduler.lr_lambdas.append(lambda step: 0.1)
    advance(optimizer, scheduler, 1)
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.2]
    optimizer = optimizer_of(1.0)
    scheduler = schedules.OneCycleLR(optimizer, [1.0], 50, cycle_momentum=False)
    optimizer.add_param_group({"params": [leaf()], "max_lr": 3.0})
    advance(optimizer, scheduler, 1)
    first, second = (g["lr"] for g in optimizer.param_groups)
    assert second == pytest.approx(3 * first)


def test_groups_that_are_missing_and_states_of_another_length():
    optimizer, one = optimizer_of(1.0, 2.0), optimizer_of(1.0)
    for make in (
        lambda o: schedules.ExponentialLR(o, 0.9),
        lambda o: schedules.LambdaLR(o, lambda step: 0.5),
    ):
        scheduler = make(one)
        scheduler.load_state_dict(make(optimizer).state_dict())
        with pytest.raises(ValueError, match="base_lrs of 2 param groups, its optimizer has 1"):
            advance(one, scheduler, 1)
    listed = schedules.LambdaLR(one, [lambda step: 0.5])
    with pytest.raises(ValueError, match="the state has 2 lr_lambdas, this scheduler has 1"):
        listed.load_state_dict(schedules.LambdaLR(optimizer, lambda step: 1.0).state_dict())
    several = schedules.ChainedScheduler([schedules.ExponentialLR(one, 0.9)])
    with pytest.raises(ValueError, match="the state is of 0 schedulers, this has 1"):
        several.load_state_dict({**several.state_dict(), "_schedulers": []})


def test_a_schedule_of_ones_own_sees_the_new_group_and_must_answer_for_it():
    class Own(schedules.LRScheduler):
        def get_lr(self):
            return [base / (1 + self.last_epoch) for base in self.base_lrs]

    class Fixed(schedules.LRScheduler):
        def get_lr(self):
            return [1.0]

    optimizer = optimizer_of(1.0)
    scheduler, fixed = Own(optimizer), Fixed(optimizer)
    optimizer.add_param_group({"params": [leaf()], "lr": 2.0})
    advance(optimizer, scheduler, 1)
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 1.0]
    with pytest.raises(ValueError, match=r"Fixed.get_lr\(\) must return one rate for each"):
        advance(optimizer, fixed, 1)
    assert fixed.last_epoch == 0
