"""Edges of softmax and log_softmax."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.dtypes import float16, float32, float64, int64, tolerance


def test_softmax_of_large_scores_does_not_overflow():
    x = lt.tensor([[1e4, 1e4 - 1.0], [-1e4, 1e4]], dtype=float64)
    _, atol = tolerance(float64)
    expected = [[1 / (1 + np.exp(-1)), 1 / (1 + np.e)], [0.0, 1.0]]
    np.testing.assert_allclose(x.softmax(1).array, expected, atol=atol)
    assert np.isfinite(x.log_softmax(1).array).all()


def test_softmax_keeps_only_its_result():
    x = lt.tensor(np.zeros((3, 4)), requires_grad=True)
    for out in (x.softmax(1), x.log_softmax(1)):
        (kept,) = out.grad_fn.saved
        assert kept.label.endswith("softmax.out")


def test_a_row_without_finite_scores_is_nan():
    x = lt.tensor([[float("-inf")] * 2, [0.0, float("-inf")]])
    assert np.isnan(x.softmax(1)[0].array).all()
    assert x.softmax(1)[1].tolist() == [1.0, 0.0]


def test_softmax_converts_first_if_asked():
    x = lt.tensor(np.arange(4, dtype=np.float16))
    assert x.softmax(0).dtype is float16
    assert x.softmax(0, dtype=float32).dtype is float32
    assert lt.tensor([1, 2]).softmax(0, dtype=float32).dtype is float32


def test_softmax_of_nothing_is_nothing():
    assert lt.tensor(np.zeros((0, 3))).softmax(0).shape == (0, 3)
    assert lt.tensor(np.zeros((3, 0))).log_softmax(1).shape == (3, 0)
    assert lt.tensor(5.0).softmax(0).item() == 1.0


def test_softmin_prefers_the_smallest():
    x = lt.tensor([0.0, 1.0], dtype=float64)
    np.testing.assert_array_equal(lt.softmin(x, 0).array, (-x).softmax(0).array)


def test_integers_and_wrong_dims_are_refused():
    with pytest.raises(NotImplementedError, match=r"needs a floating dtype. Pass dtype=float32"):
        lt.tensor([1, 2]).to(int64).softmax(0)
    with pytest.raises(IndexError, match=r"range of \[-2, 1\], but got 2"):
        lt.tensor(np.ones((2, 2))).softmax(2)
