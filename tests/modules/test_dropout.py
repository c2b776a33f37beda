"""Dropout layers in training: which elements go, and what becomes of the others."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide import nn

SHAPES = {"Dropout1d": (40, 25, 3), "Dropout2d": (40, 25, 3, 2), "Dropout3d": (40, 25, 3, 2, 2)}


def test_dropout_zeroes_a_share_and_scales_the_rest():
    x = lt.ones(100, 100)
    out = nn.Dropout(0.3)(x)
    assert sorted(set(out.reshape(-1).tolist())) == pytest.approx([0.0, 1 / 0.7])
    # 10,000 draws: the share is within four standard deviations, 4 * sqrt(.21 / 10000).
    assert abs((out == 0).float().mean().item() - 0.3) < 0.019


@pytest.mark.parametrize("name", SHAPES)
def test_channels_go_as_a_whole(name):
    shape = SHAPES[name]
    out = getattr(nn, name)(0.3)(lt.ones(shape)).reshape(shape[0] * shape[1], -1)
    assert (out == out[:, :1]).all().item()
    assert abs((out[:, 0] == 0).float().mean().item() - 0.3) < 0.06


@pytest.mark.parametrize(
    "name",
    ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"],
)
def test_evaluation_returns_the_input_itself(name):
    x = lt.randn(2, 3, 4, 5, 6)[:, :, 0, 0] if name == "Dropout1d" else lt.randn(2, 3, 4, 5)
    assert getattr(nn, name)(0.5).eval()(x) is x


@pytest.mark.parametrize("name", ["AlphaDropout", "FeatureAlphaDropout"])
def test_alpha_dropout_keeps_mean_and_variance(name):
    out = getattr(nn, name)(0.2)(lt.randn(300, 300))
    assert abs(out.mean().item()) < 0.03
    assert abs(out.var().item() - 1) < 0.05


def test_backward_has_the_mask_of_forward():
    x = lt.ones(50, 50, requires_grad=True)
    out = nn.Dropout(0.4)(x)
    (g,) = lt.autograd.grad(out.sum(), [x])
    assert g.tolist() == out.tolist()  # of ones, the gradient is the result


def test_in_place_writes_into_the_input():
    x = lt.ones(10, 10)
    assert nn.Dropout(0.5, inplace=True)(x) is x
    assert set(x.reshape(-1).tolist()) == {0.0, 2.0}


def test_training_keeps_no_mask():
    x = lt.ones(1000, requires_grad=True)
    before = lt.memory_allocated("cpu")
    out = nn.Dropout(0.5)(x)
    assert lt.memory_allocated("cpu") - before == 4000  # the result alone
    assert out.requires_grad


def test_a_seed_repeats_the_mask():
    layer, x = nn.Dropout(0.5), lt.ones(64)
    lt.manual_seed(3)
    first = layer(x).tolist()
    second = layer(x).tolist()
    lt.manual_seed(3)
    assert layer(x).tolist() == first != second


@pytest.mark.parametrize("p", [-0.1, 1.1])
def test_a_share_outside_of_0_to_1_is_refused(p):
    with pytest.raises(ValueError, match=f"between 0 and 1, but got {p}"):
        nn.Dropout2d(p)
