"""Second gradients through slopes that do not depend on values: zeros and None as PyTorch has."""

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.parity

ACTIVATIONS = {
    "relu": lambda m, x: m.nn.functional.relu(x),
    "relu_": lambda m, x: m.nn.functional.relu(x * 1.0, inplace=True),
    "relu6": lambda m, x: m.nn.functional.relu6(x),
    "leaky_relu": lambda m, x: m.nn.functional.leaky_relu(x),
    "hardtanh": lambda m, x: m.nn.functional.hardtanh(x),
    "threshold": lambda m, x: m.nn.functional.threshold(x, 0.1, 0.2),
    "hardswish": lambda m, x: m.nn.functional.hardswish(x),
    "softshrink": lambda m, x: m.nn.functional.softshrink(x, 0.1),
    "hardshrink": lambda m, x: m.nn.functional.hardshrink(x, 0.1),
    "rrelu": lambda m, x: m.nn.functional.rrelu(x),
    "clamp": lambda m, x: x.clamp(-0.5, 0.5),
    "abs": lambda m, x: x.abs(),
    "where": lambda m, x: m.where(x > 0, x, x * 2),
    "maximum": lambda m, x: m.maximum(x, m.zeros_like(x)),
    "identity": lambda m, x: x,
    "tanh": lambda m, x: x.tanh(),
}
LAYERS = {
    "linear": lambda m, x, w, b: m.nn.functional.linear(x, w, b),
    "matmul": lambda m, x, w, b: x @ w.mT + b,
    "addmm": lambda m, x, w, b: m.addmm(b, x, w.mT),
}


def kinds(grads):
    return [None if g is None else bool((g != 0).any()) for g in grads]


def second(m, layer, activation, backward):
    """What each leaf gets: nothing, zeros (False) or values (True)."""
    draws = np.random.default_rng(0)
    leaves = [
        m.tensor(draws.standard_normal(s) * 0.7, requires_grad=True) for s in ((5, 4), (6, 4), (6,))
    ]
    loss = ACTIVATIONS[activation](m, LAYERS[layer](m, *leaves)).sum()
    firsts = m.autograd.grad(loss, leaves, create_graph=True)
    found = [[g.requires_grad for g in firsts]]
    for first in firsts:
        if not first.requires_grad:
            continue
        penalty = first.square().sum()
        if backward:
            for leaf in leaves:
                leaf.grad = None
            penalty.backward(retain_graph=True)
            found.append(kinds([leaf.grad for leaf in leaves]))
        else:
            grads = m.autograd.grad(penalty, leaves, retain_graph=True, allow_unused=True)
            found.append(kinds(grads))
    return found


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_the_same_leaves_get_zeros_and_none(layer, activation, backward):
    ours, theirs = (second(m, layer, activation, backward) for m in (lt, torch))
    assert ours == theirs
