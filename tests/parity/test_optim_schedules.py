"""Every schedule gives PyTorch's rates and momenta, step by step and by its closed form."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest

import lowtide as lt
from lowtide.optim import lr_scheduler as mine
from lowtide.optim.swa_utils import SWALR
from tests.optim.schedules import CLOSED_FORM, SCHEDULES, course, optimizer_of, values

torch = pytest.importorskip("torch")
theirs = torch.optim.lr_scheduler
pytestmark = pytest.mark.parity
NAMES = sorted({n.partition("-")[0] for n in SCHEDULES})


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_sixty_steps_of_rates_and_momenta(name, kind):
    with warnings.catch_warnings():  # PyTorch's SequentialLR warns of its own epoch argument
        warnings.simplefilter("ignore")
        expected = course(torch, theirs, name, kind)
    np.testing.assert_allclose(course(lt, mine, name, kind), expected, rtol=1e-12)


@pytest.mark.parametrize("name", CLOSED_FORM)
def test_step_to_an_epoch(name):
    found = []
    for lib, schedulers in ((lt, mine), (torch, theirs)):
        optimizer = optimizer_of(lib)
        scheduler = SCHEDULES[name](schedulers, optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            steps = []
            for epoch in (3, 0, 17, 59, 24):
                scheduler.step(epoch)
                steps.append(values(optimizer))
            optimizer.step()
            scheduler.step()
            steps.append(values(optimizer))
        found.append(steps)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


@pytest.mark.parametrize("epoch", [0.5, 8.9, 9.0, 30.25])
@pytest.mark.parametrize("longer", [1, 2])
def test_warm_restarts_take_parts_of_epochs(epoch, longer):
    found = []
    for lib, schedulers in ((lt, mine), (torch, theirs)):
        optimizer = optimizer_of(lib)
        scheduler = schedulers.CosineAnnealingWarmRestarts(optimizer, 9, longer)
        scheduler.step(epoch)
        found.append(values(optimizer))
        scheduler.step()
        found[-1] += values(optimizer)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


@pytest.mark.parametrize("options", [{}, {"anneal_strategy": "linear"}, {"anneal_epochs": 0}])
def test_swalr(options):
    found = []
    for lib, kind in ((lt, SWALR), (torch, torch.optim.swa_utils.SWALR)):
        optimizer = optimizer_of(lib)
        scheduler = kind(optimizer, swa_lr=[0.05, 0.01], **options)
        steps = [values(optimizer)]
        for _ in range(15):
            optimizer.step()
            scheduler.step()
            steps.append(values(optimizer))
        found.append(steps)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


WITHOUT_LAST_EPOCH = {"ChainedScheduler", "ReduceLROnPlateau", "SequentialLR"}


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_LAST_EPOCH))
def test_resuming_by_last_epoch(name):
    options = {
        "LambdaLR": {"lr_lambda": lambda k: 0.9**k},
        "MultiplicativeLR": {"lr_lambda": lambda k: 0.9},
        "StepLR": {"step_size": 3},
        "MultiStepLR": {"milestones": [4, 9]},
        "ExponentialLR": {"gamma": 0.9},
        "CosineAnnealingLR": {"T_max": 8},
        "CosineAnnealingWarmRestarts": {"T_0": 6},
        "OneCycleLR": {"max_lr": 1.0, "total_steps": 30},
        "CyclicLR": {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 4},
    }.get(name, {})
    found = []
    for lib, schedulers in ((lt, mine), (torch, theirs)):
        optimizer = optimizer_of(lib)
        for group in optimizer.param_groups:
            group["initial_lr"] = 0.3
            group.update(max_lr=1.0, min_lr=0.01, max_momentum=0.9, base_momentum=0.8)
        scheduler = getattr(schedulers, name)(optimizer, last_epoch=3, **options)
        steps = [values(optimizer)]
        for _ in range(8):
            optimizer.step()
            scheduler.step()
            steps.append(values(optimizer))
        found.append(steps)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_arguments_have_the_names_order_and_defaults_of_pytorch(name):
    ours, other = (inspect.signature(getattr(m, name)).parameters for m in (mine, theirs))
    assert [(p.name, p.default) for p in ours.values()] == [
        (p.name, p.default) for p in other.values()
    ]


BAD = [
    lambda s, o: s.StepLR(3, 1),
    lambda s, o: s.StepLR(o, 3, last_epoch=2),
    lambda s, o: s.LambdaLR(o, [lambda k: 1]),
    lambda s, o: s.MultiplicativeLR(o, 0.5),
    lambda s, o: s.ConstantLR(o, 1.5),
    lambda s, o: s.LinearLR(o, 0.0),
    lambda s, o: s.LinearLR(o, 0.5, 1.5),
    lambda s, o: s.CosineAnnealingWarmRestarts(o, 0),
    lambda s, o: s.CosineAnnealingWarmRestarts(o, 5, 0),
    lambda s, o: s.CosineAnnealingWarmRestarts(o, 5, eta_min="x"),
    lambda s, o: s.OneCycleLR(o, 0.1),
    lambda s, o: s.OneCycleLR(o, 0.1, total_steps=0),
    lambda s, o: s.OneCycleLR(o, 0.1, epochs=1.5, steps_per_epoch=2),
    lambda s, o: s.OneCycleLR(o, 0.1, total_steps=5, pct_start=2.0),
    lambda s, o: s.OneCycleLR(o, 0.1, total_steps=5, anneal_strategy="x"),
    lambda s, o: s.OneCycleLR(o, [0.1], total_steps=5),
    lambda s, o: s.CyclicLR(o, 0.1, 0.2, mode="x"),
    lambda s, o: s.CyclicLR(o, [0.1], 0.2),
    lambda s, o: s.ReduceLROnPlateau(o, factor=1.0),
    lambda s, o: s.ReduceLROnPlateau(o, mode="x"),
    lambda s, o: s.ReduceLROnPlateau(o, threshold_mode="x"),
    lambda s, o: s.ReduceLROnPlateau(o, min_lr=[0.1]),
    lambda s, o: s.SequentialLR(o, [], []),
    lambda s, o: s.SequentialLR(o, [s.ExponentialLR(o, 0.9)], [3]),
    lambda s, o: s.SequentialLR(o, [3], []),
    lambda s, o: s.ChainedScheduler([]),
    lambda s, o: s.ChainedScheduler([s.ReduceLROnPlateau(o)]),
]


@pytest.mark.parametrize("k", range(len(BAD)))
def test_bad_options_raise_what_pytorch_raises(k):
    errors = []
    for lib, schedulers in ((lt, mine), (torch, theirs)):
        with pytest.raises((ValueError, TypeError, KeyError, RuntimeError)) as caught:
            BAD[k](schedulers, optimizer_of(lib))
        errors.append(caught.type)
    assert errors[0] is errors[1]
