"""Pooling layers: indices and their undoing, windows at random steps, what they refuse."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide import nn


def at(x, index, nd):
    """The elements of each plane (or volume) that ``index`` names."""
    lead = tuple(x.shape[:-nd])
    return x.reshape(*lead, -1).gather(-1, index.reshape(*lead, -1)).reshape(tuple(index.shape))


@pytest.mark.parametrize(
    ("layer", "shape", "nd"),
    [
        (nn.MaxPool1d(3, 2, 1, return_indices=True), (2, 3, 9), 1),
        (nn.MaxPool2d((2, 3), return_indices=True), (3, 8, 9), 2),
        (nn.MaxPool3d(2, 1, return_indices=True), (2, 3, 4, 5, 4), 3),
        (nn.AdaptiveMaxPool2d((3, 4), return_indices=True), (2, 3, 8, 9), 2),
        (nn.FractionalMaxPool2d(2, (3, 5), return_indices=True), (2, 3, 8, 9), 2),
        (nn.FractionalMaxPool3d(2, output_ratio=0.5, return_indices=True), (3, 6, 7, 8), 3),
    ],
    ids=repr,
)
def test_indices_say_where_the_maxima_are(layer, shape, nd):
    x = lt.randn(shape)
    values, index = layer(x)
    assert index.dtype is lt.int64
    assert at(x, index, nd).tolist() == values.tolist()


def test_unpooling_puts_maxima_back_and_zeros_elsewhere():
    x = lt.tensor([[[[1.0, 5.0, 2.0, 0.0], [3.0, 4.0, 8.0, 7.0]]]])
    values, index = nn.MaxPool2d(2, return_indices=True)(x)
    assert nn.MaxUnpool2d(2)(values, index).tolist() == [
        [[[0.0, 5.0, 0.0, 0.0], [0.0, 0.0, 8.0, 0.0]]]
    ]


def test_random_windows_cover_both_ends_and_differ_between_planes():
    # Along a rising line the maximum of a window is its last element.
    x = lt.arange(40.0).expand(2, 3, 40, 40)
    ends = nn.FractionalMaxPool2d(3, 16)(x)[:, :, 0].reshape(6, 16)
    steps = ends[:, 1:] - ends[:, :-1]
    assert ends[:, -1].tolist() == [39.0] * 6
    assert ends[:, 0].tolist() == [2.0] * 6
    assert set(steps[:, :-1].reshape(-1).tolist()) == {2.0, 3.0}  # 37 / 15 is between them
    assert len({tuple(row) for row in ends.tolist()}) > 1


def test_a_seed_repeats_the_windows():
    layer, x = nn.FractionalMaxPool2d(2, output_ratio=0.6), lt.randn(1, 2, 20, 20)
    lt.manual_seed(1)
    first, second = layer(x).tolist(), layer(x).tolist()
    lt.manual_seed(1)
    assert layer(x).tolist() == first != second


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.FractionalMaxPool2d(2), "either an output size, or a pooling ratio"),
        (lambda: nn.FractionalMaxPool2d(2, 3, 0.5), "only one of output_size and output_ratio"),
        (lambda: nn.FractionalMaxPool3d(2, output_ratio=(0.5, 1.5, 0.5)), "between 0 and 1"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_windows_that_do_not_fit_are_refused():
    with pytest.raises(RuntimeError, match="too large relative to"):
        nn.FractionalMaxPool2d(3, 4)(lt.zeros(1, 1, 5, 5))


@pytest.mark.parametrize("name", ["MaxUnpool2d", "AvgPool1d", "ConvTranspose3d"])
def test_a_wrong_number_of_sizes_names_the_layer(name):
    arguments = (2, 2, (1, 2, 3, 4)) if name == "ConvTranspose3d" else ((1, 2, 3),)
    with pytest.raises(RuntimeError, match=f"{name}: kernel_size"):
        getattr(nn, name)(*arguments)
