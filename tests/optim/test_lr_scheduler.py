"""Schedulers: closed forms, warnings, tensors as rates, user functions, combinations."""

from __future__ import annotations

import math

import pytest

import lowtide as lt
from lowtide.optim import SGD, Adagrad, Adam, lr_scheduler
from lowtide.optim.swa_utils import SWALR
from tests.optim.schedules import Wave, advance, optimizer_of, values


def one(lr=1.0, **options):
    """An optimizer of one parameter."""
    return SGD([lt.zeros(1, requires_grad=True)], lr=lr, **options)


def rates_of(scheduler, steps):
    """Its rate before and after each of some steps."""
    found = [scheduler.get_last_lr()[0]]
    for _ in range(steps):
        scheduler.optimizer.step()
        scheduler.step()
        found.append(scheduler.get_last_lr()[0])
    return found


# By hand: the schedules' definitions

BY_HAND = {
    "StepLR": (lambda o: lr_scheduler.StepLR(o, 3, 0.5), lambda k: 0.5 ** (k // 3)),
    "ExponentialLR": (lambda o: lr_scheduler.ExponentialLR(o, 0.9), lambda k: 0.9**k),
    "ConstantLR": (lambda o: lr_scheduler.ConstantLR(o, 0.25, 4), lambda k: 0.25 if k < 4 else 1.0),
    "LinearLR": (lambda o: lr_scheduler.LinearLR(o, 0.2, 1.0, 8), lambda k: min(1, 0.2 + 0.1 * k)),
    "PolynomialLR": (
        lambda o: lr_scheduler.PolynomialLR(o, 10, 2.0),
        lambda k: max(0, 1 - k / 10) ** 2,
    ),
    "CosineAnnealingLR": (
        lambda o: lr_scheduler.CosineAnnealingLR(o, 6, 0.1),
        lambda k: 0.1 + 0.9 * (1 + math.cos(math.pi * k / 6)) / 2,
    ),
    "CosineAnnealingWarmRestarts": (
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
        lambda k: (1 + math.cos(math.pi * (k % 5) / 5)) / 2,
    ),
    "LambdaLR": (lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (k + 1)), lambda k: 1 / (k + 1)),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_rates_follow_the_definition(name):
    make, expected = BY_HAND[name]
    assert rates_of(make(one()), 15) == pytest.approx([expected(k) for k in range(16)], abs=1e-12)


@pytest.mark.parametrize("name", sorted({*BY_HAND} - {"LambdaLR", "CosineAnnealingWarmRestarts"}))
def test_the_closed_form_agrees_with_the_steps(name):
    scheduler = BY_HAND[name][0](one())
    for step in range(12):
        assert scheduler.at(step, 1.0) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-12)
        scheduler.optimizer.step()
        scheduler.step()


def test_a_factor_of_zero_ends():
    assert rates_of(lr_scheduler.ConstantLR(one(), 0.0, 2), 3) == [0.0, 0.0, 1.0, 1.0]


def test_momentum_goes_down_as_the_rate_goes_up():
    optimizer = one(momentum=0.9)
    scheduler = lr_scheduler.CyclicLR(optimizer, 0.1, 0.5, step_size_up=4)
    found = [values(optimizer)[0]] + [v[0] for v in advance(optimizer, scheduler, range(8))]
    assert [r for r, _ in found] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert [m for _, m in found] == pytest.approx(
        [0.9, 0.875, 0.85, 0.825, 0.8, 0.825, 0.85, 0.875, 0.9]
    )


def test_a_cycle_of_an_optimizer_without_momentum_is_refused():
    optimizer = Adagrad([lt.zeros(1, requires_grad=True)])
    for make in (
        lambda: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5),
        lambda: lr_scheduler.CyclicLR(optimizer, 0.1, 0.2),
    ):
        with pytest.raises(ValueError, match="cycle_momentum"):
            make()
    lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5, cycle_momentum=False)


def test_one_cycle_ends_where_it_says_and_refuses_to_go_on():
    scheduler = lr_scheduler.OneCycleLR(one(momentum=0.9), 1.0, total_steps=10)
    found = rates_of(scheduler, 9)
    assert found[0] == pytest.approx(1 / 25)
    assert max(found) == pytest.approx(1.0)
    assert found[-1] == pytest.approx(1 / 25 / 1e4)
    scheduler.step()
    with pytest.raises(ValueError, match="total steps is 10"):
        scheduler.step()


# Warnings and misuse


def test_a_scheduler_stepped_before_its_optimizer_warns():
    scheduler = lr_scheduler.StepLR(one(), 3)
    with pytest.warns(UserWarning, match=r"before `optimizer.step\(\)`"):
        scheduler.step()


def test_asking_for_the_next_rate_warns():
    scheduler = lr_scheduler.ExponentialLR(one(), 0.5)
    with pytest.warns(UserWarning, match="get_last_lr"):
        scheduler.get_lr()


def test_an_epoch_warns():
    scheduler = lr_scheduler.ExponentialLR(one(), 0.5)
    scheduler.optimizer.step()
    with pytest.warns(UserWarning, match="deprecated"):
        scheduler.step(3)
    assert scheduler.get_last_lr() == [0.125]


def test_a_schedule_without_get_lr_says_so():
    with pytest.raises(NotImplementedError, match="get_lr"):
        lr_scheduler.LRScheduler(one())


def test_a_schedule_of_pytorch_style_works():
    class Warmup(lr_scheduler.LRScheduler):
        def __init__(self, optimizer, steps, last_epoch=-1):
            self.steps = steps
            super().__init__(optimizer, last_epoch)

        def get_lr(self):
            share = min(1.0, (self.last_epoch + 1) / self.steps)
            return [base * share for base in self.base_lrs]

    assert rates_of(Warmup(one(2.0), 4), 5) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


# Tensors, functions, groups


def test_a_rate_that_is_a_tensor_stays_that_tensor():
    rate = lt.tensor(1.0)
    optimizer = Adam([lt.zeros(1, requires_grad=True)], lr=rate)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.5
    assert scheduler.get_last_lr() == [0.5]


def test_attributes_of_function_objects_are_saved_and_plain_functions_are_not():
    def make(height):
        return lr_scheduler.LambdaLR(optimizer_of(lt), [Wave(height), lambda k: 1.0])

    source, target = make(0.5), make(0.1)
    saved = source.state_dict()
    assert saved["lr_lambdas"] == [{"height": 0.5}, None]
    target.load_state_dict(saved)
    assert target.lr_lambdas[0].height == 0.5


def test_a_scale_function_object_is_saved_and_missed():
    def make(scale_fn):
        return lr_scheduler.CyclicLR(one(), 0.1, 0.5, 4, scale_fn=scale_fn, cycle_momentum=False)

    saved = make(Wave(0.5)).state_dict()
    target = make(Wave(0.1))
    target.load_state_dict(saved)
    assert target._scale_fn_custom.height == 0.5
    with pytest.warns(UserWarning, match="scale_fn"):
        make(None).load_state_dict(saved)


def test_each_group_keeps_its_base_rate():
    optimizer = optimizer_of(lt)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    assert scheduler.base_lrs == [0.1, 0.02]
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.05, 0.01]


# Combinations


def test_chained_factors_multiply():
    optimizer = one()
    scheduler = lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.1, 2), lr_scheduler.ExponentialLR(optimizer, 0.5)]
    )
    assert rates_of(scheduler, 3) == pytest.approx([0.1, 0.05, 0.25, 0.125])


def test_sequential_schedules_begin_at_their_milestones():
    optimizer = one()
    scheduler = lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.5, 1.0, 2), lr_scheduler.ExponentialLR(optimizer, 0.5)],
        [2],
    )
    assert rates_of(scheduler, 4) == pytest.approx([0.5, 0.75, 1.0, 0.5, 0.25])


def test_schedules_of_two_optimizers_cannot_be_combined():
    a, b = (lr_scheduler.ExponentialLR(one(), 0.5) for _ in range(2))
    with pytest.raises(ValueError, match="belongs to another"):
        lr_scheduler.ChainedScheduler([a, b])
    with pytest.raises(ValueError, match="belongs to another"):
        lr_scheduler.SequentialLR(a.optimizer, [a, b], [3])


# Plateau


def test_a_plateau_lowers_the_rate_after_patience_and_waits_in_cooldown():
    optimizer = one()
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=2)
    found = []
    for value in (1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, lt.tensor(0.1)):
        scheduler.step(value)
        found.append(scheduler.get_last_lr()[0])
    assert found == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]
    assert scheduler.best == pytest.approx(0.1)
    assert scheduler.in_cooldown


def test_a_plateau_keeps_to_the_least_rate_and_follows_new_groups():
    optimizer = one()
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, min_lr=0.05)
    optimizer.add_param_group({"params": [lt.zeros(1, requires_grad=True)], "lr": 0.2})
    for _ in range(4):
        scheduler.step(1.0)
    assert scheduler.get_last_lr() == [0.05, 0.05]
    strict = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, min_lr=[0.0, 0.0])
    optimizer.add_param_group({"params": [lt.zeros(1, requires_grad=True)], "lr": 0.2})
    strict.step(1.0)
    with pytest.raises(RuntimeError, match="min_lrs"):
        strict.step(1.0)


def test_swalr_goes_from_the_present_rate_to_its_own():
    scheduler = SWALR(one(), swa_lr=0.2, anneal_epochs=4, anneal_strategy="linear")
    assert rates_of(scheduler, 6) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
    for bad in ({"anneal_strategy": "x"}, {"anneal_epochs": -1}, {"anneal_epochs": 1.5}):
        with pytest.raises(ValueError, match="anneal"):
            SWALR(one(), swa_lr=0.2, **bad)
