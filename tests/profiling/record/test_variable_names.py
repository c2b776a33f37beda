"""Weights that no module holds bear the names of the program's variables."""

from __future__ import annotations

import types
import weakref

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.devices import backend
from lowtide.nn import functional as F
from lowtide.profiling import MemoryProfiler
from lowtide.profiling.record.variable_names import names


def weight(*shape):
    return lt.randn(*shape).requires_grad_()


def held(prof, by="module", **where):
    """What the peak's owners hold, without what was there before and bears no name."""
    found = prof.at_peak(by, device="cpu", **where).as_dict()
    return {n: b for n, b in found.items() if not n.startswith("(")}


def test_variables_lists_dicts_and_attributes_name_their_tensors():
    w1, layers = weight(4, 6), [(weight(6, 5), weight(5)), (weight(5, 3), weight(3))]
    heads = {"left": weight(3), "right": [weight(3)]}
    box = types.SimpleNamespace(scale=weight(1))
    unused = weight(100)
    with MemoryProfiler() as prof:
        h = (lt.randn(2, 4) @ w1).tanh()
        for w, b in layers:
            h = F.linear(h, w.t(), b)
        (h * heads["left"] * heads["right"][0] * box.scale).sum().backward()
    assert held(prof) == {
        "w1": 96,
        "layers.0.0": 120,
        "layers.0.1": 20,
        "layers.1.0": 60,
        "layers.1.1": 12,
        "heads.left": 12,
        "heads.right.0": 12,
        "box.scale": 4,
    }
    assert prof.at_peak("module", module="layers").total == 212
    del unused


def test_a_loop_variable_does_not_name_what_is_kept_elsewhere():
    def train(params):
        for p in params:
            assert p.grad is None
        loss = sum((p * p).sum() for p in params)
        loss.backward()

    with MemoryProfiler() as prof:
        train([weight(10), weight(20)])
    assert held(prof) == {"params.0": 40, "params.1": 80}


def test_the_line_is_that_of_the_birth():
    with MemoryProfiler() as prof:
        w = weight(30)
        (w * 2).sum().backward()
    (name,) = held(prof, ("module", "line"))
    assert name.startswith("w · ")
    assert name.rpartition(":")[0].endswith("test_variable_names.py")
    assert int(name.rpartition(":")[2]) == weight.__code__.co_firstlineno + 1


def test_what_an_optimizer_updates_is_a_parameter_and_its_state_is_beside_it():
    w, other = weight(30), weight(5)
    before = backend(lt.device("cpu")).ledger.by_role()["parameter"]
    optimizer = lt.optim.Adam([w])
    with MemoryProfiler() as prof:
        (w * other.sum()).sum().backward()
        optimizer.step()
    assert held(prof, ("role", "module")) == {
        "parameter · w": 120,
        "optimizer · w": 240,
        "temporary · other": 20,
    } | {n: b for n, b in held(prof, ("role", "module")).items() if "(" in n}
    assert backend(lt.device("cpu")).ledger.by_role()["parameter"] == before + 120
    with pytest.raises(ValueError, match="learning rate"):
        lt.optim.SGD([other], lr=-1.0)
    assert backend(lt.device("cpu")).ledger.by_role()["parameter"] == before + 120


def test_a_module_that_is_not_called_gives_its_parameters_their_paths():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with MemoryProfiler() as prof:
        h = F.linear(lt.randn(2, 3), net[0].weight, net[0].bias)
        F.linear(h, net[1].weight).sum().backward()
    assert held(prof, role="parameter") == {"net.0": 64, "net.1": 32}


def test_a_leaf_without_a_name_is_looked_for_twice_and_keeps_its_line():
    class Hidden:  # has no attributes that can be listed
        __slots__ = ("w",)

    hidden = Hidden()
    hidden.w = weight(25)
    with MemoryProfiler() as prof:
        for _ in range(4):
            (hidden.w * 2).sum().backward()
            hidden.w.grad = None
    assert held(prof) == {}
    assert list(prof._missed.values()) == [2]


def test_no_code_of_the_users_runs_in_the_search():
    class Trap(dict):
        def __getattr__(self, name):
            raise RuntimeError(name)

        items = __iter__ = __len__ = None

    class Lazy(list):
        def __iter__(self):
            raise RuntimeError("read from disk")

    trap, lazy = Trap(w=weight(5)), Lazy([weight(6)])
    with MemoryProfiler() as prof:
        (dict.__getitem__(trap, "w").sum() + lazy[0].sum()).backward()
    assert held(prof) == {"trap.w": 20, "lazy.0": 24}


def test_nothing_is_kept_alive_and_locals_stay_the_users(leak_check):
    def step(kept):
        w, big = weight(10), lt.ones(1000)
        mine = locals()
        alive = weakref.ref(big)
        loss = (w * w).sum()
        loss.backward()
        assert list(mine) == ["kept", "w", "big"]
        del mine, big
        return alive()

    def plain():
        w, big = weight(10), lt.ones(1000)
        alive = weakref.ref(big)
        (w * w).sum().backward()
        del big
        return alive()

    with MemoryProfiler() as prof:
        assert plain() is None
        step([])
    assert prof.at_peak("op")["ones"] == 4000


def test_names_are_found_in_the_outermost_frame_that_knows():
    thing = object()

    def inner(argument, missing):
        return names({id(argument): argument, id(missing): missing})

    other = object()
    assert set(inner(thing, other).values()) == {"thing", "other"}
    assert list(inner(thing, object()).values()) == ["thing", "missing"]


def test_what_only_looks_like_a_module_is_looked_into_as_any_object():
    class Fit:
        def __init__(self):
            self._parameters = {"slope": weight(3, 3)}
            self.layer = nn.Linear(3, 3)

    fit = Fit()
    with MemoryProfiler() as prof:
        fit.layer(lt.randn(2, 3) @ fit._parameters["slope"]).sum().backward()
    assert held(prof, role="parameter") == {"fit.layer": 48}
    assert held(prof)["fit._parameters.slope"] == 36
