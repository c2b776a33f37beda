"""``functional_call`` with tied tensors, strict and not, and with what it cannot take."""

from __future__ import annotations

import random

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.func import functional_call
from lowtide.nn.utils import parametrize
from tests.autograd.drawn_ties import drawn_call, drawn_module, named


def expected(own, given, tie_weights, strict):
    """What the call sees by name; or the class of the error. The rule, written name by name."""
    seen = {}
    for name, t in own.items():
        names = [n for n in own if own[n] is t] if tie_weights else [name]
        values = [given[n] for n in names if n in given]
        if any(v is not values[0] for v in values):
            return ValueError
        seen[name] = values[0] if values else None
    if strict and any(v is None for v in seen.values()):
        return RuntimeError
    return {name: (own[name] if v is None else v).item() for name, v in seen.items()}


@pytest.mark.parametrize("seed", range(300))
def test_tied_tensors_are_one_and_strict_counts_each_once(seed):
    rng = random.Random(seed)
    module = drawn_module(rng, lt)
    passed, given, options = drawn_call(rng, lt, module)
    before = named(module)
    want = expected(before, given, **options)
    if isinstance(want, dict):
        found = functional_call(module, passed, lt.tensor(1.0), **options)
        assert {name: t.item() for name, t in found.items()} == want
    else:
        with pytest.raises(want, match=r"tied|strict mode"):
            functional_call(module, passed, lt.tensor(1.0), **options)
    assert all(t is before[name] for name, t in named(module).items())


WRONG = {
    "number": (5.0, TypeError, "must be a Tensor; got float"),
    "list": ([1.0], TypeError, "must be a Tensor; got list"),
    "class": (lt.Tensor, TypeError, "must be a Tensor; got type"),
}


@pytest.mark.parametrize("seed", range(70))
@pytest.mark.parametrize("value", WRONG)
def test_a_value_that_is_no_tensor_is_named(value, seed):
    rng = random.Random(seed)
    module = drawn_module(rng, lt)
    name = rng.choice(list(named(module)))
    before = named(module)
    bad, error, text = WRONG[value]
    with pytest.raises(error, match=text) as found:
        functional_call(module, {name: bad}, lt.tensor(1.0), tie_weights=rng.random() < 0.5)
    assert repr(name) in str(found.value)
    assert all(t is before[n] for n, t in named(module).items())


def tied():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    return model


def test_the_examples_of_the_reports():
    model, x = tied(), lt.ones(1, 2)
    complete = dict(model.named_parameters())
    assert list(complete) == ["0.weight"]
    functional_call(model, complete, x, strict=True)
    two = {"0.weight": lt.zeros(2, 2), "1.weight": lt.ones(2, 2)}
    with pytest.raises(ValueError, match=r"\['0.weight', '1.weight'\], which are tied"):
        functional_call(model, two, x)
    assert functional_call(model, two, x, tie_weights=False).tolist() == [[0, 0]]
    with pytest.raises(TypeError, match="'0.weight' must be a Tensor; got float"):
        functional_call(model, {"0.weight": 1.0}, x)


def test_arguments_that_are_no_dictionaries():
    model, x = tied(), lt.ones(1, 2)
    with pytest.raises(ValueError, match="list or tuple of dicts; got str"):
        functional_call(model, "weight", x)
    with pytest.raises(ValueError, match="element 1 is int"):
        functional_call(model, ({}, 5), x)
    with pytest.raises(TypeError, match="keys must be the names of tensors; got 3"):
        functional_call(model, {3: x}, x)


def test_names_that_are_no_tensors():
    model, x = tied(), lt.ones(1, 2)
    with pytest.raises(KeyError, match=r"no parameter or buffer '2.weight'. It has 0.weight"):
        functional_call(model, {"2.weight": x}, x)
    with pytest.raises(TypeError, match="'training' of Sequential is no tensor but bool"):
        functional_call(model, {"training": x}, x)
    assert model.training is True
    with pytest.raises(KeyError, match="and more: see named_parameters"):
        functional_call(nn.Sequential(*[nn.Linear(1, 1) for _ in range(9)]), {"": x}, x)


def test_none_stands_for_no_tensor():
    layer, x = nn.Linear(2, 2), lt.ones(1, 2)
    found = functional_call(layer, {"bias": None, "weight": lt.ones(2, 2)}, x)
    assert found.tolist() == [[2, 2]]
    assert layer.bias is not None


def test_a_parametrized_module_takes_its_originals():
    class Symmetric(nn.Module):
        def forward(self, w):
            return w + w.T

    layer = nn.Linear(2, 2, bias=False)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    name = "parametrizations.weight.original"
    found = functional_call(layer, {name: lt.ones(2, 2)}, lt.eye(2), strict=True)
    assert found.tolist() == [[2, 2], [2, 2]]
    with pytest.raises(KeyError, match=name):
        functional_call(layer, {"weight": lt.ones(2, 2)}, lt.eye(2))


def test_the_module_is_restored_when_a_later_name_is_wrong():
    model, x = tied(), lt.ones(1, 2)
    own = model[0].weight
    with pytest.raises(KeyError):
        functional_call(model, {"0.weight": x, "nope": x}, x)
    assert model[0].weight is own
    assert model[1].weight is own
