"""Embeddings: pretrained tables, padding, norms, frequencies, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn

ROWS = [0, 5, 2, 2, 1, 0, 4, 2]


def test_a_pretrained_table_is_shared_and_frozen():
    table = lt.randn(6, 4)
    layer = nn.Embedding.from_pretrained(table)
    assert not layer.weight.requires_grad
    assert (layer.num_embeddings, layer.embedding_dim) == (6, 4)
    table[2] = 7.0
    assert layer(lt.tensor([2])).tolist() == [[7.0] * 4]


def test_a_pretrained_table_can_be_trained():
    for cls in (nn.Embedding, nn.EmbeddingBag):
        assert cls.from_pretrained(lt.randn(6, 4), freeze=False).weight.requires_grad
        assert not cls.from_pretrained(lt.randn(6, 4)).weight.requires_grad


def test_a_pretrained_table_keeps_its_padding_row():
    table = lt.ones(3, 2)
    assert nn.Embedding.from_pretrained(table, padding_idx=1)(lt.tensor(1)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("cls", [nn.Embedding, nn.EmbeddingBag])
def test_the_padding_row_starts_as_zero(cls):
    layer = cls(5, 3, padding_idx=-2)
    assert layer.padding_idx == 3
    assert layer.weight[3].tolist() == [0.0] * 3
    assert layer.weight.abs().sum(1).ne(0).tolist() == [True, True, True, False, True]


def test_the_padding_row_gets_no_gradient():
    layer = nn.Embedding(6, 4, padding_idx=2)
    layer(lt.tensor(ROWS)).sum().backward()
    assert layer.weight.grad[:, 0].tolist() == [2.0, 1.0, 0.0, 0.0, 1.0, 1.0]


def test_rows_longer_than_max_norm_are_shrunk_in_place():
    layer = nn.Embedding(4, 3, max_norm=1.0)
    with lt.no_grad():
        layer.weight.fill_(1.0)
    out = layer(lt.tensor([0, 2]))
    np.testing.assert_allclose(np.linalg.norm(out.detach().numpy(), axis=1), 1.0, rtol=1e-5)
    assert layer.weight[1].tolist() == [1.0] * 3  # not looked up, not changed


def test_frequencies_scale_gradients_of_bags_as_of_rows():
    # PyTorch's CPU kernel divides by the counts of other rows; the definition is by row.
    bag = nn.EmbeddingBag(6, 4, scale_grad_by_freq=True, mode="sum")
    factors = lt.randn(4, 4)
    out = bag(lt.tensor(ROWS), lt.tensor([0, 3, 3, 6]))
    (out * factors).sum().backward()
    counts = np.bincount(ROWS, minlength=6)
    expected = np.zeros((6, 4))
    for row, number in zip(ROWS, [0, 0, 0, 2, 2, 2, 3, 3], strict=True):
        expected[row] += factors[number].numpy() / counts[row]
    np.testing.assert_allclose(bag.weight.grad.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_an_empty_bag_is_zero():
    for mode in ("sum", "mean", "max"):
        out = nn.EmbeddingBag(6, 4, mode=mode)(lt.tensor(ROWS), lt.tensor([0, 3, 3, 6]))
        assert out[1].tolist() == [0.0] * 4


@pytest.mark.parametrize("cls", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"padding_idx": 5}, "padding_idx must be within num_embeddings; got 5 for 5 rows"),
        ({"padding_idx": -6}, "padding_idx must be within"),
        ({"_weight": np.zeros((4, 3))}, r"got \(4, 3\), expected \(5, 3\)"),
    ],
)
def test_bad_arguments_are_refused(cls, arguments, message):
    if "_weight" in arguments:
        arguments = {"_weight": lt.tensor(arguments["_weight"])}
    with pytest.raises(AssertionError, match=message):
        cls(5, 3, **arguments)


@pytest.mark.parametrize("cls", [nn.Embedding, nn.EmbeddingBag])
def test_a_pretrained_table_is_a_matrix(cls):
    with pytest.raises(AssertionError, match="2-dimensional"):
        cls.from_pretrained(lt.zeros(3))
