"""Activations: what they keep, edges, in-place twins, messages."""

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework import ops

KEPT = {
    "relu": "out",
    "hardtanh": "out",
    "softshrink": "out",
    "hardshrink": "out",
    "hardsigmoid": "out",
    "gelu": "input",
    "silu": "input",
    "mish": "input",
    "elu": "out",
    "leaky_relu": "out",
    "softplus": "input",
    "logsigmoid": "out",
    "softsign": "input",
}


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


@pytest.mark.parametrize(
    "name", ["relu6", "elu", "selu", "celu", "silu", "mish", "hardswish", "hardsigmoid"]
)
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


NEGATIVE = {
    "leaky_relu": (lambda x, **k: F.leaky_relu(x, -0.4, **k), [-1.0, 0.5], [-0.4, 1.0]),
    "elu": (lambda x, **k: F.elu(x, -2.0, **k), [-1.0, 0.5], [-2 * np.exp(-1), 1.0]),
    "celu": (lambda x, **k: F.celu(x, -2.0, **k), [-1.0, 0.5], [np.exp(0.5), 1.0]),
}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", NEGATIVE)
def test_where_the_result_does_not_tell_the_side_the_gradient_is_still_right(name, inplace):
    function, values, slopes = NEGATIVE[name]
    x = lt.tensor(values, dtype=lt.float64, requires_grad=True)
    function(x * 1, inplace=inplace).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), slopes, rtol=1e-12)


def test_in_place_twins_that_keep_their_result_copy_nothing():
    for function in (F.relu, F.leaky_relu, F.elu, F.selu, F.celu, F.hardsigmoid):
        x = lt.ones(1000, requires_grad=True) * 1
        before = lt.memory_allocated("cpu")
        function(x, inplace=True)
        assert lt.memory_allocated("cpu") == before


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    "name",
    [
        "mish",
        "softplus",
        "logsigmoid",
        "hardswish",
        "softsign",
        "elu",
        "hardsigmoid",
        "gelu",
        "silu",
        "leaky_relu",
    ],
)
def test_the_backward_of_a_large_gate_needs_one_array(name, device):
    x = lt.ones(1 << 14, requires_grad=True, device=device)
    out, g = getattr(F, name)(x), lt.ones(1 << 14, device=device)
    before = lt.memory_allocated(device)
    lt.reset_peak_memory_stats(device)
    out.backward(g)
    assert lt.max_memory_allocated(device) - before == x.nbytes


def test_limits_of_hardtanh():
    assert F.hardtanh(lt.tensor([-3, 0, 9])).tolist() == [-1, 0, 1]
    assert F.relu6(lt.tensor([-3, 5, 9])).tolist() == [0, 5, 6]
    with pytest.raises(ValueError, match="greater than max_val"):
        F.hardtanh(lt.ones(1), 0.5, -0.5)
    with pytest.raises(RuntimeError, match="unsigned"):
        F.hardtanh(lt.ones(1, dtype=lt.uint8), -1.0, 1.0)
    with pytest.raises(RuntimeError, match="1D tensor"):
        F.prelu(lt.ones(2, 8, 3), lt.ones(2, 4))


def test_softsign_of_integers_and_of_complex_numbers():
    assert F.softsign(lt.tensor([-3, 1])).tolist() == [-0.75, 0.5]
    z = lt.tensor([3 + 4j], dtype=lt.complex128, requires_grad=True)
    (F.softsign(z).abs()).sum().backward()
    # |z| / (1 + |z|) grows along z by 1 / (1 + |z|) ** 2
    np.testing.assert_allclose(z.grad.numpy(), [(0.6 + 0.8j) / 36])
