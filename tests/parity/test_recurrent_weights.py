"""``_flat_weights`` of recurrent layers, beside PyTorch's: drawn layers, and changes of them."""

from __future__ import annotations

import copy
import random
import warnings

import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity
STEPS = ("none", "double", "copied", "replaced", "loaded", "weight_norm", "parametrized")


def weights(kit, seed, step):
    rng = random.Random(seed)
    kind = rng.choice(["RNN", "LSTM", "GRU"])
    options = {
        "num_layers": rng.randrange(1, 4),
        "bias": rng.random() < 0.7,
        "bidirectional": rng.random() < 0.5,
    }
    if kind == "LSTM" and rng.random() < 0.4:
        options["proj_size"] = 2
    make = getattr(kit.nn, kind)
    m = make(3, 4, **options)
    if step == "double":
        m = m.double()
    elif step == "copied":
        m = copy.deepcopy(m)
    elif step == "replaced":
        m.weight_hh_l0 = kit.nn.Parameter(kit.ones(1))
    elif step == "loaded":
        m.load_state_dict(make(3, 4, **options).state_dict(), assign=rng.random() < 0.5)
    elif step == "weight_norm":
        m = kit.nn.utils.weight_norm(m, "weight_hh_l0")
    elif step == "parametrized":
        m = kit.nn.utils.parametrizations.weight_norm(m, "weight_hh_l0")
    m.flatten_parameters()
    names = m._flat_weights_names
    shapes = [tuple(w.shape) for w in m._flat_weights]
    same = [
        w is getattr(m, n)
        for n, w in zip(names, m._flat_weights, strict=True)
        if n in dict(m.named_parameters())
    ]
    return names, shapes, same, m._all_weights, [[tuple(w.shape) for w in a] for a in m.all_weights]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("seed", range(30))
def test_flat_weights(seed, step):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert weights(lt, seed, step) == weights(torch, seed, step)
