"""Convolution layers: padding modes, requested sizes, and what they refuse."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide import nn

F = nn.functional


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [(1, 2), "same"])
def test_a_padding_mode_is_a_padded_input(mode, padding):
    layer = nn.Conv2d(2, 3, (2, 4), padding=padding, padding_mode=mode)
    x = lt.randn(2, 2, 5, 6)
    # "same" puts the odd one after: 1 = 0 + 1 for the height, 3 = 1 + 2 for the width.
    sides = (1, 2, 0, 1) if padding == "same" else (2, 2, 1, 1)
    expected = F.conv2d(F.pad(x, sides, mode), layer.weight, layer.bias)
    assert layer(x).tolist() == expected.tolist()


def test_same_keeps_the_size():
    for kernel, dilation in ((1, 1), (2, 1), (3, 2), (4, 3)):
        layer = nn.Conv1d(2, 3, kernel, padding="same", dilation=dilation)
        assert layer(lt.randn(1, 2, 9)).shape == (1, 3, 9)


@pytest.mark.parametrize("size", [(7, 9), (8, 10), (2, 3, 8, 9)])
def test_a_transposed_convolution_gives_the_requested_size(size):
    layer = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1)
    assert layer(lt.randn(2, 4, 4, 5), output_size=size).shape == (2, 3, *size[-2:])


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((6, 9), "dimension 0 can only be 7 to 8"),
        ((7, 11), "dimension 1 can only be 9 to 10"),
        ((7,), "must have 2 or 4 elements"),
    ],
)
def test_a_size_that_cannot_be_is_refused(size, message):
    layer = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1)
    with pytest.raises(ValueError, match=message):
        layer(lt.randn(2, 4, 4, 5), output_size=size)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Conv2d(4, 6, 3, groups=0), "groups must be a positive integer; got 0"),
        (lambda: nn.Conv2d(4, 6, 3, groups=3), "in_channels must be divisible by groups"),
        (lambda: nn.Conv1d(4, 6, 3, groups=4), "out_channels must be divisible by groups"),
        (lambda: nn.Conv2d(4, 6, 3, padding="full"), "must be 'same' or 'valid'; got 'full'"),
        (lambda: nn.Conv2d(4, 6, 3, 2, "same"), "not supported for strided"),
        (lambda: nn.Conv2d(4, 6, 3, padding_mode="mirror"), "padding_mode must be one of"),
        (lambda: nn.ConvTranspose2d(4, 6, 3, padding_mode="reflect"), 'only "zeros"'),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_weights_are_drawn_before_biases():
    lt.manual_seed(4)
    layer = nn.Conv2d(3, 5, 3)
    lt.manual_seed(4)
    weight, bias = lt.empty(5, 3, 3, 3), lt.empty(5)
    bound = 27**-0.5  # sqrt(6 / ((1 + 5) * fan_in)), which is 1 / sqrt(fan_in)
    nn.init.uniform_(weight, -bound, bound)
    nn.init.uniform_(bias, -bound, bound)
    assert lt.allclose(layer.weight, weight)
    assert lt.allclose(layer.bias, bias)
