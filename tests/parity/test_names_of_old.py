"""Names that PyTorch keeps for older programs, low-discrepancy points, trees: beside PyTorch."""

from __future__ import annotations

import warnings
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
