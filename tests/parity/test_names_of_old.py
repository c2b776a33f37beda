"""Names that PyTorch keeps for older programs, low-discrepancy points, trees: beside PyTorch."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

OLD = "uniform normal constant eye dirac xavier_uniform xavier_normal kaiming_uniform "
OLD += "kaiming_normal orthogonal sparse"


@pytest.mark.parametrize("name", OLD.split())
def test_old_initializations_warn_and_fill(name: str) -> None:
    arguments = {"constant": (2.0,), "sparse": (0.5,)}.get(name, ())
    shape = (3, 3, 2) if name == "dirac" else (4, 4)
    for T in (lt, torch):
        filled = T.full(shape, 7.0)
        with pytest.warns(FutureWarning, match=name):
            assert getattr(T.nn.init, name)(filled, *arguments) is filled
        assert not (filled == 7).any()
    if name in ("constant", "eye", "dirac"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            a, b = (getattr(T.nn.init, name)(T.empty(shape), *arguments) for T in (lt, torch))
        assert np.array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("dimension", [1, 3, 40])
def test_sobol_points_are_the_same(dimension: int) -> None:
    engines = [T.quasirandom.SobolEngine(dimension) for T in (lt, torch)]

    def both(call: Any) -> None:
        a, b = (call(engine) for engine in engines)
        assert np.array_equal(a.numpy(), b.numpy())

    both(lambda e: e.draw())
    both(lambda e: e.draw(5))
    both(lambda e: e.fast_forward(7).draw(3))
    both(lambda e: e.reset().draw_base2(4))
    both(lambda e: e.draw(2, dtype={True: lt.float64}.get(engines[0] is e, torch.float64)))
    assert repr(engines[0]) == repr(engines[1])
    for engine in engines:
        with pytest.raises(ValueError, match="power of"):
            engine.draw_base2(3)
        with pytest.raises(ValueError, match="imension"):
            type(engine)(0)


def test_sobol_refuses_what_it_cannot_draw() -> None:
    for T in (lt, torch):
        engine = T.quasirandom.SobolEngine(2)
        with pytest.raises((ValueError, RuntimeError), match="negative|n is 0 or more"):
            engine.draw(-1)
        with pytest.raises((TypeError, NotImplementedError), match="int64|Long"):
            engine.draw(2, dtype=T.int64)
    with pytest.raises(ValueError, match=r"Go back with reset\(\)"):
        lt.quasirandom.SobolEngine(2).fast_forward(-1)


def test_sobol_engines_are_copied_where_they_are() -> None:
    found = []
    for T in (lt, torch):
        engine = T.quasirandom.SobolEngine(3)
        engine.draw(3)
        copies = [pickle.loads(pickle.dumps(engine)), copy.deepcopy(engine)]
        found.append([e.draw(2).tolist() for e in (engine, *copies)])
        assert found[-1][0] == found[-1][1] == found[-1][2]
    assert found[0] == found[1]


def test_scrambled_points_are_balanced_and_repeat() -> None:
    for T in (lt, torch):
        a = T.quasirandom.SobolEngine(2, scramble=True, seed=3).draw(16)
        b = T.quasirandom.SobolEngine(2, scramble=True, seed=3).draw(16)
        assert np.array_equal(a.numpy(), b.numpy())
        counts = [(a[:, 0] // 0.25 == k).sum().item() for k in range(4)]
        assert counts == [4, 4, 4, 4]


def test_trees_flatten_alike() -> None:
    tree = {"b": [1, (2, None)], "a": 3}
    found = []
    for T in (lt, torch):
        pytree = T.utils._pytree
        leaves, spec = pytree.tree_flatten(tree)
        doubled = pytree.tree_map(lambda x: x if x is None else x * 2, tree)
        found.append([leaves, pytree.tree_unflatten(leaves, spec), doubled])
    assert found[0] == found[1]


def test_containers_are_taken_apart_alike() -> None:
    for name, tree in {
        "dict": {"b": 1, "a": 2},
        "ordereddict": OrderedDict(b=1, a=2),
        "list": [1, 2],
        "tuple": (1, 2),
    }.items():
        found = []
        for T in (lt, torch):
            pytree = T.utils._pytree
            children, context = getattr(pytree, f"_{name}_flatten")(tree)
            found.append([children, context])
            assert getattr(pytree, f"_{name}_unflatten")(children, context) == tree
        assert found[0] == found[1]


def test_divergences_are_found_by_the_nearest_classes() -> None:
    found = []
    for T in (lt, torch):
        D = T.distributions
        Abstract = type("Abstract", (D.Distribution,), {"arg_constraints": {}})
        Below = type("Below", (Abstract,), {})
        Nearer = type("Nearer", (D.Normal,), {})
        D.register_kl(Abstract, D.Normal)(lambda p, q: "abstract")
        D.register_kl(Nearer, D.Normal)(lambda p, q: "left")
        D.register_kl(D.Normal, Nearer)(lambda p, q: "right")
        near = Nearer(0.0, 1.0)
        with pytest.warns(RuntimeWarning, match="mbiguous"):
            both = D.kl_divergence(near, near)
        below = D.kl_divergence(Below(validate_args=False), near)
        with pytest.raises(NotImplementedError, match="Cauchy and q type Poisson"):
            D.kl_divergence(D.Cauchy(0.0, 1.0), D.Poisson(1.0))
        found.append([both, below])
    assert found[0] == found[1]


def test_an_optimizer_by_its_class_alone_steps() -> None:
    found = []
    for T in (lt, torch):

        class Around(T.optim.Optimizer):  # as trainers wrap one: no __init__ of the base runs
            def __init__(self, inner: Any) -> None:
                self.inner = inner

            @property
            def param_groups(self) -> Any:
                return self.inner.param_groups

            def step(self, closure: Any = None) -> Any:
                return self.inner.step(closure)

        p = T.nn.Parameter(T.ones(2))
        inner = T.optim.SGD([p], lr=0.5)
        calls: list[int] = []
        inner.register_step_post_hook(lambda *_, calls=calls: calls.append(1))
        outer = Around(inner)
        schedule = T.optim.lr_scheduler.StepLR(outer, 1)
        (p * 2).sum().backward()
        outer.step()
        schedule.step()
        found.append([p.tolist(), calls, schedule.get_last_lr(), outer.param_groups[0]["lr"]])
    assert found[0] == found[1]


def test_states_of_devices_are_none_where_all_is_on_the_cpu() -> None:
    for T in (lt, torch):
        checkpoint = T.utils.checkpoint
        assert checkpoint.get_device_states(T.ones(2), [T.ones(1)], {"a": 3}) == ([], [])
        assert checkpoint.set_device_states([], []) is None
    with pytest.raises(ValueError, match="name cuda"):
        lt.utils.checkpoint.set_device_states([], [], device_type="abacus")
