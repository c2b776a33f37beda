"""Ten steps of every optimizer with every option equal PyTorch's, compiled and plain."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.runtime import thresholds
from tests.optim.cases import CASES, NOT_IN_TORCH, identity
from tests.optim.runs import advance, parameters, rosenbrock, run

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity
IN_TORCH = [c for c in CASES if c[0] not in NOT_IN_TORCH]


@pytest.fixture(params=["compiled", "plain"])
def road(request, monkeypatch):
    """Take the compiled loops for any size, or for none."""
    monkeypatch.setattr(thresholds, "COMPILED_STEP", 0 if request.param == "compiled" else 1 << 60)
    return request.param


@pytest.fixture
def double_scalars():
    """PyTorch keeps 0-d state in its default dtype; lowtide in Python numbers."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("case", IN_TORCH, ids=identity)
def test_ten_steps_in_float64(case, road, double_scalars):
    name, options = case
    got, _ = run(lt, name, options)
    expected, _ = run(torch, name, options)
    for key, value in expected.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("case", IN_TORCH, ids=identity)
def test_ten_steps_in_float32(case, road):
    name, options = case
    got, _ = run(lt, name, options, np.float32)
    expected, _ = run(torch, name, options, np.float32)
    for key, value in expected.items():
        assert got[key].dtype == np.float32
        np.testing.assert_allclose(got[key], value, rtol=0, atol=2e-5)


@pytest.mark.parametrize("case", IN_TORCH, ids=identity)
def test_a_state_dict_of_pytorch_continues_here(case, road, double_scalars):
    name, options = case
    theirs = parameters(torch, name)
    source = getattr(torch.optim, name)(list(theirs.values()), **options)
    advance(torch, source, theirs, range(5))
    ours = {k: lt.tensor(p.detach().numpy(), requires_grad=True) for k, p in theirs.items()}
    optimizer = getattr(lt.optim, name)(list(ours.values()), **options)
    optimizer.load_state_dict(converted(source.state_dict()))
    keys = {k: set(v) for k, v in source.state_dict()["state"].items()}
    # a counter that lowtide keeps and PyTorch does not, or the other way round, would show here
    assert {k: set(v) for k, v in optimizer.state_dict()["state"].items()} == keys
    advance(torch, source, theirs, range(5, 10))
    advance(lt, optimizer, ours, range(5, 10))
    for key, value in theirs.items():
        np.testing.assert_allclose(
            ours[key].detach().numpy(), value.detach().numpy(), rtol=1e-12, atol=1e-13
        )


@pytest.mark.parametrize("case", IN_TORCH, ids=identity)
def test_groups_have_the_keys_of_pytorch_and_print_alike(case):
    name, options = case
    mine = getattr(lt.optim, name)(list(parameters(lt, name).values()), **options)
    theirs = getattr(torch.optim, name)(list(parameters(torch, name).values()), **options)
    assert repr(mine) == repr(theirs)
    assert mine.state_dict()["param_groups"] == theirs.state_dict()["param_groups"]


@pytest.mark.parametrize("name", sorted({n for n, _ in IN_TORCH}))
def test_arguments_have_the_names_order_and_defaults_of_pytorch(name):
    mine, theirs = (inspect.signature(getattr(m.optim, name)).parameters for m in (lt, torch))
    assert [(p.name, p.default, p.kind) for p in mine.values()] == [
        (p.name, p.default, p.kind) for p in theirs.values()
    ]


BAD = [
    ("SGD", {"lr": -1}), ("SGD", {"lr": 0.1, "momentum": -1}), ("SGD", {"weight_decay": -1}),
    ("SGD", {"nesterov": True}), ("SGD", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}),
    ("Adam", {"lr": -1}), ("Adam", {"eps": -1}), ("Adam", {"betas": (1.0, 0.9)}),
    ("Adam", {"betas": (0.9, -0.1)}), ("Adam", {"weight_decay": -1}), ("AdamW", {"lr": -1}),
    ("NAdam", {"momentum_decay": -1}), ("NAdam", {"betas": (0.9, 1.0)}), ("RAdam", {"eps": -1}),
    ("Adamax", {"betas": (1.1, 0.9)}), ("Adagrad", {"lr_decay": -1}),
    ("Adagrad", {"initial_accumulator_value": -1}), ("Adadelta", {"rho": 1.5}),
    ("RMSprop", {"alpha": -1}), ("RMSprop", {"momentum": -1}), ("Rprop", {"etas": (1.1, 1.2)}),
    ("Rprop", {"lr": -1}), ("ASGD", {"weight_decay": -1}), ("Adafactor", {"beta2_decay": 1}),
    ("Adafactor", {"d": 0.5}), ("Adafactor", {"eps": (-1, 1e-3)}), ("Muon", {"momentum": -1}),
    ("Muon", {"adjust_lr_fn": "no"}), ("LBFGS", {"lr": -1}), ("Adam", {"lr": float("nan")}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), BAD, ids=str)
def test_bad_options_raise_what_pytorch_raises(name, options):
    errors = []
    for lib in (lt, torch):
        with pytest.raises((ValueError, TypeError, KeyError, RuntimeError)) as caught:
            getattr(lib.optim, name)([lib.zeros(2, 2, requires_grad=True)], **options)
        errors.append(caught.type)
    assert errors[0] is errors[1]


COMPLEX = [c for c in IN_TORCH if c[0] not in ("Adafactor", "Muon")]


@pytest.mark.parametrize("case", COMPLEX, ids=identity)
def test_complex_parameters_step_as_in_pytorch(case, double_scalars):
    name, options = case
    rng = np.random.default_rng(0)
    begin = rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4))
    grads = [rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4)) for _ in range(6)]
    ends = []
    for lib in (lt, torch):
        p = lib.tensor(begin, requires_grad=True)
        optimizer = getattr(lib.optim, name)([p], **options)
        for g in grads:
            p.grad = lib.tensor(g)
            optimizer.step()
        ends.append(p.detach().numpy())
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-12, atol=1e-13)


LBFGS_OPTIONS = [
    {"line_search_fn": "strong_wolfe"},
    {"line_search_fn": "strong_wolfe", "history_size": 3, "max_iter": 4},
    {"line_search_fn": "strong_wolfe", "lr": 0.1, "max_eval": 7},
    {"lr": 1e-3, "max_iter": 5},
    {"lr": 1e-3, "history_size": 2},
]


@pytest.mark.parametrize("options", LBFGS_OPTIONS, ids=str)
def test_lbfgs_walks_the_same_valley(options):
    mine, theirs = rosenbrock(lt, **options), rosenbrock(torch, **options)
    # products are summed in another order, and the valley magnifies the difference
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(mine[1], theirs[1], rtol=1e-7)
    np.testing.assert_allclose(mine[2], theirs[2], rtol=1e-7)
    assert mine[3:] == theirs[3:]


def converted(saved):
    """A state dict of PyTorch with lowtide's tensors."""
    if isinstance(saved, torch.Tensor):
        return lt.tensor(saved.detach().numpy())
    if isinstance(saved, dict):
        return {k: converted(v) for k, v in saved.items()}
    return [converted(v) for v in saved] if isinstance(saved, list) else saved
