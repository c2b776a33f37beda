"""Activations: what they keep, edges, in-place twins, messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import ops

KEPT = {
    "relu": "out", "hardtanh": "out", "softshrink": "out", "hardshrink": "out",
    "hardsigmoid": "out", "gelu": "input", "silu": "input", "mish": "input", "elu": "input",
    "leaky_relu": "input", "softplus": "input", "logsigmoid": "input", "softsign": "input",
}  # fmt: skip


def leaf(*values):
    return lt.tensor(values, requires_grad=True)


@pytest.mark.parametrize(("name", "kept"), KEPT.items())
def test_one_value_is_kept(name, kept):
    out = getattr(ops, name)(leaf(0.3, -0.3))
    labels = [label for label, *_ in out.grad_fn.saved]
    assert [label.split(".")[-1] for label in labels] == [kept]


@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "softplus", "logsigmoid", "elu"])
def test_integers_are_refused(name):
    with pytest.raises(NotImplementedError, match="not implemented for 'int64'"):
        getattr(ops, name)(lt.tensor([1]))


def test_relu_at_zero_is_flat_and_passes_nan():
    x = leaf(0.0, float("nan"), 2.0)
    out = lt.relu(x)
    out.sum().backward()
    assert out[1].isnan().item()
    assert x.grad.tolist() == [0.0, 1.0, 1.0]


def test_relu_stops_an_infinite_gradient():
    x = leaf(-1.0, 1.0)
    lt.relu(x).backward(lt.tensor([float("inf"), 1.0]))
    assert x.grad.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [lt.float32, lt.float64, lt.float16])
def test_gelu_is_finite_far_out(approximate, dtype):
    out = ops.gelu(lt.tensor([-60.0, 60.0], dtype=dtype), approximate=approximate)
    assert out.tolist() == [0.0, 60.0]


def test_gelu_knows_two_formulas():
    with pytest.raises(RuntimeError, match="must be either none or tanh"):
        ops.gelu(lt.ones(1), approximate="sigmoid")


def test_softplus_and_logsigmoid_are_stable():
    x = lt.tensor([-1000.0, 1000.0])
    assert ops.softplus(x).tolist() == [0.0, 1000.0]
    assert ops.logsigmoid(x).tolist() == [-1000.0, 0.0]


@pytest.mark.parametrize("name", ["relu6", "elu", "selu", "celu", "silu", "mish", "hardswish",
                                  "hardsigmoid"])  # fmt: skip
def test_in_place_gives_the_same_values_and_gradients(name):
    function = getattr(ops, name)
    x, y = leaf(-4.0, -0.5, 0.5, 4.0), leaf(-4.0, -0.5, 0.5, 4.0)
    copy = x * 1
    written = function(copy, inplace=True)
    assert written is copy
    plain = function(y * 1)
    np.testing.assert_array_equal(written.detach().numpy(), plain.detach().numpy())
    written.sum().backward()
    plain.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.grad.numpy())


def test_glu_wants_an_even_size():
    with pytest.raises(RuntimeError, match="must be even, but dimension -1 is size 3"):
        ops.glu(lt.ones(2, 3))


def test_prelu_wants_one_weight_per_channel():
    with pytest.raises(RuntimeError, match="parameter numbers = 2 and channel size = 3"):
        ops.prelu(lt.ones(4, 3), lt.ones(2))


def test_softshrink_refuses_a_negative_width():
    with pytest.raises(RuntimeError, match="greater or equal to 0"):
        ops.softshrink(lt.ones(1), -1.0)
