"""Unpooling: maxima return to their places, and wrong sizes are refused."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.nn import functional as F


def test_maxima_return_and_the_rest_is_zero():
    x = lt.tensor([[[1.0, 5.0, 2.0, 0.0]]])
    out, index = F.max_pool1d(x, 2, return_indices=True)
    assert F.max_unpool1d(out, index, 2).tolist() == [[[0.0, 5.0, 2.0, 0.0]]]


def test_output_size_chooses_among_sizes_that_pool_alike():
    x = lt.rand(1, 1, 5, 5)
    out, index = F.max_pool2d(x, 2, return_indices=True)
    back = F.max_unpool2d(out, index, 2, output_size=x.shape)
    assert back.shape == x.shape
    found = back.numpy() != 0
    np.testing.assert_array_equal(back.numpy()[found], x.numpy()[found])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"output_size": (9,)}, ValueError, "invalid output_size"),
        ({"output_size": (4, 4)}, ValueError, "1 or 3 elements"),
        ({"indices": lt.zeros(1, 1, 2, dtype=lt.int32)}, RuntimeError, "should be type int64"),
        ({"indices": lt.zeros(1, 1, 3, dtype=lt.int64)}, RuntimeError, "shape of indices"),
        ({"indices": lt.full((1, 1, 2), 9)}, RuntimeError, "out of bounds"),
    ],
)
def test_mistakes_are_named(change, error, message):
    given = {"input": lt.ones(1, 1, 2), "indices": lt.zeros(1, 1, 2, dtype=lt.int64)} | change
    with pytest.raises(error, match=message):
        F.max_unpool1d(given.pop("input"), given.pop("indices"), 2, **given)
