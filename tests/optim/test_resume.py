"""A run that stops and goes on from its saved state ends where the whole run does, bit for bit."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.runtime import thresholds
from lowtide.optim import lr_scheduler
from lowtide.optim.swa_utils import SWALR
from tests.optim.cases import CASES, ROUNDED, identity
from tests.optim.runs import advance, parameters
from tests.optim.schedules import SCHEDULES, STEPS, optimizer_of
from tests.optim.schedules import advance as go


@pytest.mark.quick(60)
@pytest.mark.parametrize("road", ["compiled", "plain"])
@pytest.mark.parametrize("case", [*CASES, *ROUNDED], ids=identity)
def test_an_optimizer_stopped_in_the_middle(case, road, monkeypatch):
    monkeypatch.setattr(thresholds, "COMPILED_STEP", 0 if road == "compiled" else 1 << 60)
    name, options = case
    kind = getattr(lt.optim, name)
    whole = parameters(lt, name, np.float32)
    optimizer = kind(list(whole.values()), **options)
    advance(lt, optimizer, whole, range(5))
    halfway = {k: p.detach().clone() for k, p in whole.items()}
    saved = copy.deepcopy(optimizer.state_dict())
    advance(lt, optimizer, whole, range(5, 10))
    resumed = {k: p.requires_grad_() for k, p in halfway.items()}
    again = kind(list(resumed.values()))  # the options come with the state
    again.load_state_dict(saved)
    advance(lt, again, resumed, range(5, 10))
    for key, p in whole.items():
        assert p.detach().numpy().tobytes() == resumed[key].detach().numpy().tobytes()


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_stopped_in_the_middle(search):
    def steps(p, optimizer, count):
        def closure():
            optimizer.zero_grad()
            loss = ((p[1:] - p[:-1] ** 2) ** 2).sum() + ((p - 1) ** 2).sum()
            loss.backward()
            return loss

        return [optimizer.step(closure).item() for _ in range(count)]

    options = {"lr": 0.1, "max_iter": 3, "history_size": 4, "line_search_fn": search}
    p = lt.tensor([0.2, -0.5, 1.7], requires_grad=True)
    optimizer = lt.optim.LBFGS([p], **options)
    steps(p, optimizer, 3)
    q = p.detach().clone().requires_grad_()
    again = lt.optim.LBFGS([q])
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert steps(p, optimizer, 3) == steps(q, again, 3)
    assert p.tolist() == q.tolist()


MORE = {
    "SWALR": lambda s, o: SWALR(o, swa_lr=0.03, anneal_epochs=20),
    "SWALR-linear": lambda s, o: SWALR(o, swa_lr=0.03, anneal_epochs=20, anneal_strategy="linear"),
}


@pytest.mark.parametrize("at", [1, 9, 31])
@pytest.mark.parametrize("name", [*SCHEDULES, *MORE])
def test_a_schedule_stopped_in_the_middle(name, at):
    make = {**SCHEDULES, **MORE}[name]
    optimizer = optimizer_of(lt)
    scheduler = make(lr_scheduler, optimizer)
    go(optimizer, scheduler, range(at))
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    expected = go(optimizer, scheduler, range(at, STEPS))
    optimizer = optimizer_of(lt)
    scheduler = make(lr_scheduler, optimizer)
    optimizer.load_state_dict(saved[0])
    scheduler.load_state_dict(saved[1])
    assert go(optimizer, scheduler, range(at, STEPS)) == expected


@pytest.mark.parametrize("name", [*SCHEDULES, *MORE])
def test_the_state_of_a_schedule_survives_json(name):
    make = {**SCHEDULES, **MORE}[name]
    optimizer = optimizer_of(lt)
    scheduler = make(lr_scheduler, optimizer)
    go(optimizer, scheduler, range(5))
    saved = json.loads(json.dumps(scheduler.state_dict()))
    groups = copy.deepcopy(optimizer.state_dict())
    expected = go(optimizer, scheduler, range(5, 30))
    optimizer = optimizer_of(lt)
    scheduler = make(lr_scheduler, optimizer)
    optimizer.load_state_dict(groups)
    scheduler.load_state_dict(saved)
    assert go(optimizer, scheduler, range(5, 30)) == expected


ALL = ["SGD", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop",
       "Rprop", "Lion", "Adafactor", "Adam8bit", "Muon"]  # fmt: skip


def _stepped(kind, shapes):
    options = {"momentum": 0.9} if kind in ("SGD", "RMSprop") else {}
    if kind == "Adam8bit":
        options = {"min_8bit_size": 16}  # else small parameters have no scales
    params = [lt.zeros(shape, requires_grad=True) for shape in shapes]
    made = getattr(lt.optim, kind)(params, lr=0.1, **options)
    for p in params:
        p.grad = lt.ones(p.shape)
    made.step()
    return made


@pytest.mark.quick(25)
@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("kind", ALL)
def test_a_state_of_another_shape_is_refused_when_it_is_loaded(kind, seed):
    rng = np.random.default_rng([seed, ALL.index(kind)])
    ndim = 2 if kind == "Muon" else int(rng.integers(1, 4))
    shapes = [tuple(rng.integers(2, 100 if ndim == 2 else 6, ndim).tolist()) for _ in range(3)]
    saved = _stepped(kind, shapes).state_dict()
    again = _stepped(kind, shapes)
    again.load_state_dict(saved)  # of the same shapes: taken
    changed = int(rng.integers(3))
    others = list(shapes)
    others[changed] = tuple(n + 1 for n in shapes[changed])
    other = _stepped(kind, others)
    before = str(other.state_dict())
    with pytest.raises(ValueError, match=rf"has \w+ of shape .* for parameter {changed} of shape"):
        other.load_state_dict(saved)
    assert str(other.state_dict()) == before
    other.step()
