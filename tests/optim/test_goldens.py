"""Optimizers and schedules give the recorded results of PyTorch (and of NumPy, for Lion)."""

from __future__ import annotations

import json

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.runtime import thresholds
from lowtide.optim import lr_scheduler
from tests.optim.cases import CASES, identity
from tests.optim.goldens import LBFGS, PLACE
from tests.optim.runs import rosenbrock, run
from tests.optim.schedules import SCHEDULES, course

GOLDEN = json.loads(PLACE.read_text(encoding="utf-8"))


@pytest.fixture(params=["compiled", "plain"])
def road(request, monkeypatch):
    """Take the compiled loops for any size, or for none."""
    monkeypatch.setattr(thresholds, "COMPILED_STEP", 0 if request.param == "compiled" else 1 << 60)
    return request.param


def test_nothing_is_missing_and_nothing_too_much():
    assert set(GOLDEN["cases"]) == {identity(c) for c in CASES}
    assert set(GOLDEN["schedules"]) == set(SCHEDULES)
    assert len(GOLDEN["lbfgs"]) == len(LBFGS)


def test_every_optimizer_has_a_case():
    exported = {n for n, v in vars(lt.optim).items() if isinstance(v, type)}
    optimizers = {n for n in exported if issubclass(getattr(lt.optim, n), lt.optim.Optimizer)}
    others = {"Optimizer", "LBFGS", "SparseAdam"}  # SparseAdam: tests/parity/test_sparse.py
    assert optimizers - others == {name for name, _ in CASES}


def test_every_schedule_has_a_case():
    exported = {n for n, v in vars(lr_scheduler).items() if isinstance(v, type) and n[0] != "_"}
    assert exported - {"LRScheduler"} == {n.partition("-")[0] for n in SCHEDULES}


@pytest.mark.quick(30)
@pytest.mark.parametrize("case", CASES, ids=identity)
def test_ten_steps(case, road):
    got, _ = run(lt, *case)
    for key, expected in GOLDEN["cases"][identity(case)].items():
        np.testing.assert_allclose(got[key].ravel(), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("k", range(len(LBFGS)))
def test_lbfgs(k):
    losses = rosenbrock(lt, **LBFGS[k])[0]
    np.testing.assert_allclose(losses, GOLDEN["lbfgs"][k], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_sixty_steps_of_a_schedule(name):
    got = course(lt, lr_scheduler, name)
    np.testing.assert_allclose(got, GOLDEN["schedules"][name], rtol=1e-12)
