"""``copy.deepcopy`` of tensors that share memory, beside PyTorch's: sharing, strides and bytes."""

from __future__ import annotations

import copy
import random

import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.parity,
]


def drawn(rng, kit):
    roots = [kit.zeros([rng.randrange(1, 5) for _ in range(2)]) for _ in range(2)]
    found = []
    for _ in range(rng.randrange(1, 7)):
        x = rng.choice(roots)
        for _ in range(rng.randrange(3)):
            n, kind = x.shape[0], rng.randrange(6)
            start = rng.randrange(n)
            if kind == 0:
                x = x.narrow(0, start, n - start)
            elif kind == 1:
                x = x.transpose(0, 1)
            elif kind == 2:
                x = x[:1].expand(rng.randrange(1, 5), *x.shape[1:])
            elif kind == 3:
                x = x.detach()
            elif kind == 4:
                x = kit.nn.Parameter(x)
            else:
                x = x.data
        found.append(x)
    return [x for x in found if x.is_leaf]


def outcome(kit, seed):
    copies = copy.deepcopy(drawn(random.Random(seed), kit))
    numbers = {}
    return [
        (
            numbers.setdefault(x.untyped_storage().data_ptr(), len(numbers)),
            x.untyped_storage().nbytes(),
            tuple(x.shape),
            # a clone, which a parameter's copy is, lies in C order here
            None if isinstance(x, kit.nn.Parameter) else (x.stride(), x.storage_offset()),
            x.requires_grad,
        )
        for x in copies
    ]


@pytest.mark.parametrize("seed", range(300))
def test_deepcopy(seed):
    assert outcome(lt, seed) == outcome(torch, seed)
