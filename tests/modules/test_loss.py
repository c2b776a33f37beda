"""Losses: old arguments, weights as buffers, the adaptive softmax, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.memory.ledger import BUFFER


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"size_average": True}, "mean"),
        ({"size_average": False}, "sum"),
        ({"reduce": False}, "none"),
        ({"reduce": True}, "mean"),
        ({"size_average": False, "reduce": False}, "none"),
    ],
)
@pytest.mark.parametrize("name", ["MSELoss", "NLLLoss", "KLDivLoss", "MarginRankingLoss"])
def test_the_old_arguments_set_reduction_with_a_warning(name, old, new):
    with pytest.warns(UserWarning, match="please use reduction"):
        assert getattr(nn, name)(**old).reduction == new


def test_weights_are_buffers_and_move_with_the_module():
    loss = nn.CrossEntropyLoss(lt.tensor([1.0, 2.0, 3.0]))
    assert list(loss.state_dict()) == ["weight"]
    assert loss.weight._storage.role == BUFFER
    assert loss.double().weight.dtype is lt.float64
    assert list(nn.CrossEntropyLoss().state_dict()) == []


def test_cross_entropy_is_what_numpy_says():
    rng = np.random.default_rng(0)
    x, y, w = rng.standard_normal((5, 4)), rng.integers(0, 4, 5), rng.uniform(0.5, 2, 4)
    logs = x - np.log(np.exp(x).sum(1, keepdims=True))
    expected = -(logs[range(5), y] * w[y]).sum() / w[y].sum()
    found = nn.CrossEntropyLoss(lt.tensor(w))(lt.tensor(x), lt.tensor(y))
    assert found.item() == pytest.approx(expected, rel=1e-12)


def adaptive():
    return nn.AdaptiveLogSoftmaxWithLoss(8, 12, [4, 7], div_value=2.0).double()


def test_the_adaptive_softmax_is_a_distribution():
    layer, x = adaptive(), lt.randn(5, 8, dtype=lt.float64)
    logs = layer.log_prob(x)
    assert logs.shape == (5, 12)
    np.testing.assert_allclose(logs.exp().sum(1).detach().numpy(), 1.0, rtol=1e-12)


def test_the_adaptive_loss_picks_from_that_distribution():
    layer, x = adaptive(), lt.randn(6, 8, dtype=lt.float64)
    targets = lt.tensor([0, 3, 4, 6, 7, 11])
    output, loss = layer(x, targets)
    expected = layer.log_prob(x).gather(1, targets.unsqueeze(1)).squeeze(1)
    np.testing.assert_allclose(output.detach().numpy(), expected.detach().numpy(), rtol=1e-12)
    assert loss.item() == pytest.approx(-expected.mean().item(), rel=1e-12)


def test_the_adaptive_prediction_is_the_most_probable_class():
    layer, x = adaptive(), lt.randn(200, 8, dtype=lt.float64) * 8
    found = layer.predict(x)
    assert found.tolist() == layer.log_prob(x).argmax(1).tolist()
    assert {int(c >= 4) for c in found.tolist()} == {0, 1}  # the head's own, and a tail's


@pytest.mark.parametrize("cutoffs", [[], [4, 4], [7, 4], [0, 4], [12], [4, 13], [2.5]])
def test_bad_cutoffs_are_refused(cutoffs):
    with pytest.raises(ValueError, match="cutoffs should be"):
        nn.AdaptiveLogSoftmaxWithLoss(8, 12, cutoffs)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((5, 8), [0, 1, 2, 3], "same size in the batch dimension; got 5 and 4"),
        ((8,), [0], r"\(N, in_features\) with target \(N,\)"),
        ((2, 8), [0, 12], r"values in range \[0, 12\] were found"),
        ((2, 8), [-1, 3], r"values in range \[-1, 3\] were found"),
    ],
)
def test_a_bad_adaptive_target_is_refused(x, y, message):
    with pytest.raises(RuntimeError, match=message):
        adaptive()(lt.zeros(x, dtype=lt.float64), lt.tensor(y))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.MultiMarginLoss(p=3), "only p == 1 and p == 2 supported; got 3"),
        (lambda: nn.MultiMarginLoss(weight=lt.ones(2, 2)), "have 1 dimension; got 2"),
        (lambda: nn.TripletMarginLoss(margin=0), "margin must be greater than 0; got 0"),
        (lambda: nn.TripletMarginWithDistanceLoss(margin=-1.0), "margin must be greater than 0"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_unknown_reduction_is_refused_when_called():
    loss = nn.L1Loss(reduction="average")
    with pytest.raises(ValueError, match="average is not a valid value for reduction"):
        loss(lt.ones(2), lt.zeros(2))
