"""Clipping, vectors and initial values beside PyTorch's."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
from tests.parity.alike import agree, data, mlp  # noqa: E402  # it imports torch

pytestmark = [
    pytest.mark.parity,
]


# Gradients and vectors


@pytest.mark.parametrize("norm_type", [1, 2.0, 3, math.inf, "inf"])
@pytest.mark.parametrize("max_norm", [0.5, 100.0, 0])
def test_clipping_by_norm(norm_type, max_norm):
    def case(T):
        net = mlp(T)
        net(data(T, 5, 3)).sum().backward()
        total = T.nn.utils.clip_grad_norm_(net.parameters(), max_norm, norm_type)
        whole = T.nn.utils.get_total_norm([p.grad for p in net.parameters()], norm_type)
        return [total, whole, {n: p.grad for n, p in net.named_parameters()}]

    agree(case)


def test_clipping_by_value_and_edges():
    def case(T):
        net = mlp(T)
        net(data(T, 5, 3)).sum().backward()
        net.a.bias.grad = None
        T.nn.utils.clip_grad_value_(net.parameters(), 0.3)
        T.nn.utils.clip_grad_value_(net.b.weight, 0.1)
        nothing = T.nn.utils.clip_grad_norm_([net.a.bias], 1.0)
        return [nothing, {n: p.grad for n, p in net.named_parameters()}]

    agree(case)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("strict", [True, False])
def test_clipping_of_what_is_not_finite(bad, strict):
    def case(T):
        p = T.nn.Parameter(T.ones(2))
        p.grad = T.tensor([1.0, bad])
        return [T.nn.utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=strict), p.grad]

    agree(case)


def test_vectors():
    def case(T):
        net = mlp(T)
        vector = T.nn.utils.parameters_to_vector(net.parameters())
        T.nn.utils.vector_to_parameters(vector * 2, net.parameters())
        return [vector, net.state_dict()]

    agree(case)


def test_skipped_initialization():
    def case(T):
        net = T.nn.utils.skip_init(T.nn.Linear, 3, 2, bias=False, dtype=T.float64)
        return [repr(net), [(tuple(p.shape), p.device.type) for p in net.parameters()]]

    agree(case)
    agree(lambda T: T.nn.utils.skip_init(T.nn.ReLU))
    agree(lambda T: T.nn.utils.skip_init(dict))


# Initial values that do not depend on the random stream

INITS = {
    "eye": lambda T, i: i.eye_(T.empty(3, 5)),
    "eye of a vector": lambda T, i: i.eye_(T.empty(3)),
    "dirac": lambda T, i: i.dirac_(T.empty(4, 2, 3, 4)),
    "dirac, groups": lambda T, i: i.dirac_(T.empty(6, 2, 3), 3),
    "dirac, even": lambda T, i: i.dirac_(T.empty(2, 2, 2, 2, 2)),
    "dirac of a matrix": lambda T, i: i.dirac_(T.empty(2, 2)),
    "dirac, odd groups": lambda T, i: i.dirac_(T.empty(5, 2, 2), groups=2),
    "constant": lambda T, i: i.constant_(T.empty(2), 0.3),
    "fans": lambda T, i: [i._calculate_fan_in_and_fan_out(T.empty(*s))
                          for s in ((3, 4), (3, 4, 5), (3, 4, 5, 6), (0, 4))],
    "fans of a vector": lambda T, i: i._calculate_fan_in_and_fan_out(T.empty(3)),
    "fan": lambda T, i: [i._calculate_correct_fan(T.empty(3, 4, 5), m)
                         for m in ("fan_in", "fan_out", "FAN_IN")],
    "no fan": lambda T, i: i._calculate_correct_fan(T.empty(3, 4), "fan"),
    "gains": lambda T, i: [float(i.calculate_gain(n)) for n in (
        "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
        "conv_transpose3d", "sigmoid", "tanh", "relu", "leaky_relu", "selu")],
    "slopes": lambda T, i: [float(i.calculate_gain("leaky_relu", a)) for a in (0, 0.2, 1, -3.0)],
    "no gain": lambda T, i: i.calculate_gain("gelu"),
    "no slope": lambda T, i: i.calculate_gain("leaky_relu", "x"),
    "normal, no deviation": lambda T, i: i.normal_(T.empty(3), 2.0, 0.0),
    "negative deviation": lambda T, i: i.normal_(T.empty(3), 2.0, -1.0),
    "uniform, reversed": lambda T, i: i.uniform_(T.empty(3), 2.0, 1.0),
    "orthogonal vector": lambda T, i: i.orthogonal_(T.empty(3)),
    "orthogonal nothing": lambda T, i: i.orthogonal_(T.empty(0, 3)),
    "sparse volume": lambda T, i: i.sparse_(T.empty(3, 3, 3), 0.5),
    "all sparse": lambda T, i: i.sparse_(T.empty(3, 3), 1.0),
    "xavier vector": lambda T, i: i.xavier_normal_(T.empty(3)),
    "kaiming of nothing": lambda T, i: i.kaiming_uniform_(T.empty(0, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", INITS)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_initial_values(name):
    agree(lambda T: INITS[name](T, T.nn.init))
