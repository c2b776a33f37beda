"""Pruning: masks, what is trained and saved, several methods, and what is refused."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.nn.utils import prune


@pytest.fixture
def layer() -> nn.Linear:
    layer = nn.Linear(4, 2)
    with lt.no_grad():
        layer.weight.copy_(lt.tensor([[1.0, -2.0, 3.0, -4.0], [5.0, 6.0, -7.0, 0.5]]))
    return layer


def test_the_smallest_entries_go(layer: nn.Linear) -> None:
    assert prune.l1_unstructured(layer, "weight", 0.25) is layer
    assert layer.weight_mask.tolist() == [[0, 1, 1, 1], [1, 1, 1, 0]]
    assert layer.weight.tolist() == [[0, -2, 3, -4], [5, 6, -7, 0]]
    assert [n for n, _ in layer.named_parameters()] == ["bias", "weight_orig"]
    assert sorted(layer.state_dict()) == ["bias", "weight_mask", "weight_orig"]
    layer(lt.ones(1, 4)).sum().backward()
    assert layer.weight_orig.grad.tolist() == layer.weight_mask.tolist()
    assert prune.is_pruned(nn.Sequential(layer))


def test_masks_add_up(layer: nn.Linear) -> None:
    prune.l1_unstructured(layer, "weight", 2)
    prune.l1_unstructured(layer, "weight", 1 / 3)  # of the six that are left
    assert layer.weight_mask.tolist() == [[0, 0, 0, 1], [1, 1, 1, 0]]
    prune.ln_structured(layer, "weight", 1, 1, 0)
    assert layer.weight_mask.tolist() == [[0, 0, 0, 0], [1, 1, 1, 0]]
    (hook,) = layer._forward_pre_hooks.values()
    assert [type(m).__name__ for m in hook] == ["L1Unstructured", "L1Unstructured", "LnStructured"]


def test_removal_leaves_the_zeros(layer: nn.Linear) -> None:
    before = layer.weight
    prune.custom_from_mask(layer, "weight", lt.tensor([[1, 0, 1, 0], [0, 1, 0, 1]]))
    assert prune.remove(layer, "weight") is layer
    assert layer.weight is before
    assert layer.weight.tolist() == [[1, 0, 3, 0], [0, 6, 0, 0.5]]
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    assert not prune.is_pruned(layer)
    assert not layer._forward_pre_hooks


def test_several_parameters_as_one(layer: nn.Linear) -> None:
    other = nn.Linear(2, 1, bias=False)
    with lt.no_grad():
        other.weight.copy_(lt.tensor([[0.1, 9.0]]))
    pairs = [(layer, "weight"), (other, "weight")]
    prune.global_unstructured(pairs, prune.L1Unstructured, amount=0.3)
    assert other.weight_mask.tolist() == [[0, 1]]
    assert layer.weight_mask.tolist() == [[0, 1, 1, 1], [1, 1, 1, 0]]
    with pytest.raises(TypeError, match='Only "unstructured" PRUNING_TYPE'):
        prune.global_unstructured(pairs, prune.LnStructured, amount=1, n=2)


def test_random_methods_prune_as_many(layer: nn.Linear) -> None:
    prune.random_unstructured(layer, "weight", 3)
    assert layer.weight_mask.sum().item() == 5
    other = nn.Conv2d(2, 4, 3)
    prune.random_structured(other, "weight", 0.5, 0)
    assert sorted(other.weight_mask.sum((1, 2, 3)).tolist()) == [0, 0, 18, 18]
    prune.identity(other, "bias")
    assert other.bias_mask.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("amount", "error", "words"),
    [
        (9, ValueError, "should be smaller than the number of parameters to prune=8"),
        (1.5, ValueError, "either be a float in the range"),
        (-1, ValueError, "either be a float in the range"),
        ("a", TypeError, "Must be int or float"),
    ],
)
def test_wrong_amounts_change_nothing(layer: nn.Linear, amount, error, words: str) -> None:
    with pytest.raises(error, match=words):
        prune.l1_unstructured(layer, "weight", amount)
    assert not prune.is_pruned(layer)
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    layer(lt.ones(1, 4))


def test_wrong_calls_are_refused(layer: nn.Linear) -> None:
    with pytest.raises(ValueError, match="has to be pruned before pruning can be removed"):
        prune.remove(layer, "weight")
    with pytest.raises(ValueError, match="only be applied to multidimensional tensors"):
        prune.ln_structured(layer, "bias", 1, 2, 0)
    with pytest.raises(AttributeError):
        prune.identity(layer, "nonsense")
    with pytest.raises(ValueError, match="should have the same shape"):
        prune.l1_unstructured(layer, "weight", 1, importance_scores=lt.ones(2))
    with pytest.raises(AssertionError, match="custom_from_mask: the mask is"):
        prune.custom_from_mask(layer, "weight", lt.ones(2))
    assert sorted(layer.state_dict()) == ["bias", "weight"]
