"""Parametrizations beside PyTorch's: keys, repr, values, gradients, errors."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from tests.parity.alike import agree, data, fill  # noqa: E402  # it imports torch

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # PyTorch deprecates its older forms
]


def linear(T):
    return T.nn.Linear(4, 3, dtype=T.float64)


def transposed(T):
    return T.nn.ConvTranspose2d(4, 3, 2, dtype=T.float64)


PARAMETRIZED = {
    "weight norm": (lambda T, p: p.weight_norm(linear(T)), (5, 4)),
    "weight norm, dim 1": (lambda T, p: p.weight_norm(linear(T), dim=1), (5, 4)),
    "weight norm, no dim": (lambda T, p: p.weight_norm(linear(T), dim=None), (5, 4)),
    "weight norm of both": (
        lambda T, p: p.weight_norm(p.weight_norm(linear(T)), "bias"),
        (5, 4),
    ),
    "weight norm, transposed": (lambda T, p: p.weight_norm(transposed(T), dim=1), (2, 4, 3, 3)),
    "older weight norm": (lambda T, p: T.nn.utils.weight_norm(linear(T)), (5, 4)),
    "older weight norm, no dim": (lambda T, p: T.nn.utils.weight_norm(linear(T), dim=None), (5, 4)),
    "spectral norm": (lambda T, p: p.spectral_norm(linear(T)), (5, 4)),
    "spectral norm of a vector": (lambda T, p: p.spectral_norm(linear(T), "bias"), (5, 4)),
    "spectral norm, transposed": (
        lambda T, p: p.spectral_norm(transposed(T), n_power_iterations=2),
        (2, 4, 3, 3),
    ),
    "older spectral norm": (lambda T, p: T.nn.utils.spectral_norm(linear(T)), (5, 4)),
    "older spectral norm, transposed": (
        lambda T, p: T.nn.utils.spectral_norm(transposed(T), n_power_iterations=3),
        (2, 4, 3, 3),
    ),
    "both": (lambda T, p: p.weight_norm(p.spectral_norm(linear(T)), "bias"), (5, 4)),
}


def states_of(module):
    return {k: v.detach().numpy().copy() for k, v in module.state_dict().items()}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", PARAMETRIZED)
def test_normalized_weights(name, training):
    # Keys, repr, three forwards and backwards, and the vectors of the power iteration after them.
    make, shape = PARAMETRIZED[name]
    start = states_of(make(torch, torch.nn.utils.parametrizations))

    def case(T):
        net = make(T, T.nn.utils.parametrizations)
        net.load_state_dict({k: T.tensor(v) for k, v in start.items()})
        net.train(training)
        outputs = []
        for _ in range(3):
            x = data(T, *shape)
            y = net(x)
            (y * y).sum().backward()
            outputs += [y, x.grad]
        return [
            net,
            outputs,
            net.weight,
            net.state_dict(),
            {n: p.grad for n, p in net.named_parameters()},
        ]

    agree(case)


@pytest.mark.parametrize("trivialized", [True, False])
@pytest.mark.parametrize("shape", [(4, 4), (4, 3), (3, 4)])
@pytest.mark.parametrize("name", ["matrix_exp", "cayley", "householder"])
def test_orthogonal_weights(name, shape, trivialized):
    def make(T):
        net = T.nn.Linear(*shape, dtype=T.float64)
        if not trivialized:  # something that is orthogonal, the same in both
            with T.no_grad():
                net.weight.copy_(T.eye(*net.weight.shape))
        return T.nn.utils.parametrizations.orthogonal(
            net, orthogonal_map=name, use_trivialization=trivialized
        )

    start = states_of(make(torch))
    rng = np.random.default_rng(2)
    key = "parametrizations.weight.original"
    noise = rng.normal(size=start[key].shape)
    tall = noise.shape[0] >= noise.shape[1]
    start[key] += np.tril(noise, -1) if tall else np.triu(noise, 1)

    def case(T):
        net = make(T)
        net.load_state_dict({k: T.tensor(v) for k, v in start.items()})
        y = net(data(T, 5, shape[0]))
        (y**3).sum().backward()
        return [
            net,
            y,
            net.weight,
            net.state_dict(),
            {n: p.grad for n, p in net.named_parameters()},
        ]

    agree(case)


def test_an_orthogonal_square_weight_starts_the_same():
    def case(T):
        net = fill(T, linear(T))
        net = fill(T, T.nn.Linear(4, 4, dtype=T.float64))
        T.nn.utils.parametrizations.orthogonal(net)
        return [net.weight, net.state_dict()]

    agree(case)


def symmetric(T):
    class Symmetric(T.nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).transpose(-1, -2)

        def right_inverse(self, a):
            return a.triu()

    return Symmetric()


def shrinks(T):
    class Shrinks(T.nn.Module):
        def forward(self, x):
            return x[:1]

    return Shrinks()


PARAMETRIZATIONS = {
    "register": lambda T, P, m: m.weight,
    "assign": lambda T, P, m: setattr(m, "weight", T.eye(3, dtype=T.float64) * 2),
    "assign parameter": lambda T, P, m: setattr(m, "weight", T.nn.Parameter(T.eye(3))),
    "again": lambda T, P, m: P.register_parametrization(m, "weight", symmetric(T)) and None,
    "shrinking": lambda T, P, m: P.register_parametrization(m, "weight", shrinks(T)),
    "shrinking, new": lambda T, P, m: P.register_parametrization(m, "bias", shrinks(T)),
    "shrinking, unsafe": lambda T, P, m: (
        P.register_parametrization(m, "bias", shrinks(T), unsafe=True).bias
    ),
    "of nothing": lambda T, P, m: P.register_parametrization(m, "zzz", symmetric(T)),
    "is": lambda T, P, m: [
        P.is_parametrized(m),
        P.is_parametrized(m, "weight"),
        P.is_parametrized(m, "bias"),
        P.is_parametrized(T.nn.ReLU()),
    ],
    "remove": lambda T, P, m: P.remove_parametrizations(m, "weight") and m.weight,
    "remove and restore": lambda T, P, m: (
        P.remove_parametrizations(m, "weight", leave_parametrized=False).weight
    ),
    "remove nothing": lambda T, P, m: P.remove_parametrizations(m, "bias"),
    "copy": lambda T, P, m: copy.deepcopy(m).weight,
    "type": lambda T, P, m: P.type_before_parametrizations(m).__name__,
    "half": lambda T, P, m: m.half().weight,
    "state": lambda T, P, m: (
        m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}) and m.weight
    ),
    "missing": lambda T, P, m: m.load_state_dict({"bias": T.ones(3), "weight": T.ones(3, 3)}),
    "pickle": lambda T, P, m: __import__("pickle").dumps(m),
}


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_parametrizations(name):
    def case(T):
        P = T.nn.utils.parametrize
        m = fill(T, T.nn.Linear(3, 3, dtype=T.float64))
        P.register_parametrization(m, "weight", symmetric(T))
        returned = PARAMETRIZATIONS[name](T, P, m)
        return [returned, m, m.state_dict(), [n for n, _ in m.named_parameters()]]

    agree(case)
