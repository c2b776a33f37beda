"""Anomaly detection names the op and the line of the program that made it."""

from __future__ import annotations

import inspect

import pytest

import lowtide as lt
from lowtide.autograd import Function, detect_anomaly, set_detect_anomaly


class Bad(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * float("nan")


class Fails(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise ValueError("inside backward")


def leaf() -> lt.Tensor:
    return lt.tensor([1.0, 2.0], requires_grad=True)


def test_nan_is_reported_with_op_and_line():
    with detect_anomaly():
        y = Bad.apply(leaf())
        line = inspect.currentframe().f_lineno - 1
        with pytest.raises(RuntimeError) as caught:
            y.sum().backward()
    message = str(caught.value)
    assert "Function 'BadBackward' returned nan values in its 0th output." in message
    assert f"{__file__}:{line}" in message
    assert "Bad.apply(leaf())" in message


def test_nan_of_an_op_is_reported_with_its_name():
    with detect_anomaly():
        y = leaf() * float("nan")
        with pytest.raises(RuntimeError, match="'MulBackward0' returned nan values in its 0th"):
            y.sum().backward()


def test_nan_passes_without_the_mode_and_with_check_nan_off():
    x = leaf()
    Bad.apply(x).sum().backward()
    with detect_anomaly(check_nan=False):
        Bad.apply(x).sum().backward()
    assert all(v != v for v in x.grad.tolist())


def test_an_error_in_backward_carries_the_forward_line():
    with detect_anomaly():
        y = Fails.apply(leaf())
        with pytest.raises(ValueError, match="inside backward") as caught:
            y.sum().backward()
    (note,) = caught.value.__notes__
    assert "Error detected in FailsBackward" in note
    assert __file__ in note


def test_a_graph_made_outside_the_mode_is_still_checked():
    y = Bad.apply(leaf())
    with detect_anomaly(), pytest.raises(RuntimeError, match="No forward pass information"):
        y.sum().backward()


def test_the_mode_turns_on_and_off():
    assert not lt.is_anomaly_enabled()
    with detect_anomaly():
        assert lt.is_anomaly_enabled()
        with set_detect_anomaly(False):
            assert not lt.is_anomaly_enabled()
    assert not lt.is_anomaly_enabled()
    set_detect_anomaly(True)
    assert lt.is_anomaly_enabled()
    set_detect_anomaly(False)
    assert not lt.is_anomaly_enabled()


def test_the_mode_decorates():
    @detect_anomaly()
    def train() -> bool:
        return lt.is_anomaly_enabled()

    assert train()
    assert not lt.is_anomaly_enabled()


def test_gradients_are_the_same_under_the_mode():
    x = leaf()
    with detect_anomaly():
        (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
