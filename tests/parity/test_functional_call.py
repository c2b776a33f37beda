"""``functional_call`` with tied tensors beside PyTorch's."""

from __future__ import annotations

import random

import pytest

import lowtide as lt
from lowtide.func import functional_call
from tests.autograd.drawn_ties import drawn_call, drawn_module

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.parity,
]


def outcome(kit, call, seed):
    rng = random.Random(seed)
    module = drawn_module(rng, kit)
    passed, _, options = drawn_call(rng, kit, module)
    try:
        found = call(module, passed, kit.tensor(1.0), **options)
    except (ValueError, RuntimeError, KeyError) as error:
        return type(error)
    return {name: t.item() for name, t in found.items()}


@pytest.mark.parametrize("seed", range(300))
def test_tied_tensors(seed):
    ours = outcome(lt, functional_call, seed)
    theirs = outcome(torch, torch.func.functional_call, seed)
    if theirs is KeyError:  # two names of three are given, and PyTorch looks up the third
        assert ours is not KeyError
    else:
        assert ours == theirs
