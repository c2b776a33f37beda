"""``copy.deepcopy`` of tensors that share memory: the copies share as the originals do.

Nests of tensors on few storages are drawn. What the copies share is found by writing to each
storage's copy and reading all of them, and their bytes by the ledger.
"""

import copy
import pickle
import random

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.devices import backend

DTYPES = (lt.float32, lt.float64, lt.int16, lt.bfloat16, lt.complex64)


def viewed(rng, x):
    """``x`` through up to three views."""
    for _ in range(rng.randrange(4)):
        d = rng.randrange(x.ndim) if x.ndim else None
        if d is None:
            x = x.expand(rng.randrange(1, 4))
            continue
        n = x.shape[d]
        start = rng.randrange(n + 1)
        x = rng.choice(
            (
                lambda x=x, d=d, start=start, n=n: x.narrow(d, start, rng.randrange(n - start + 1)),
                lambda x=x, d=d: x.transpose(d, 0),
                lambda x=x: x.unsqueeze(0).expand(rng.randrange(1, 5), *x.shape),
                lambda x=x, d=d, n=n: x.select(d, rng.randrange(n)) if n else x,
                lambda x=x: x[::2],
                lambda x=x: x.detach(),
                lambda x=x: x.data,
                lambda x=x: x.view_as(x),
            )
        )()
    return x


def drawn_nest(rng, device):
    """A nest of lists and dicts, and the tensors in it in order."""
    roots = []
    for _ in range(rng.randrange(1, 4)):
        shape = [rng.randrange(1, 5) for _ in range(rng.randrange(1, 4))]
        if device == "cpu" and rng.random() < 0.2:
            roots.append(lt.from_numpy(np.zeros([2 * n for n in shape], "f4")[1::2]))
        else:
            roots.append(lt.zeros(shape, dtype=rng.choice(DTYPES), device=device))
    tensors = [viewed(rng, rng.choice(roots)) for _ in range(rng.randrange(1, 8))]
    tensors += rng.choices(tensors, k=rng.randrange(2))
    nest = []
    for k, t in enumerate(tensors):
        place = rng.randrange(3)
        nest.append((t, [t], {"k": [t, k]})[place])
    return nest, tensors


def flat(nest):
    for part in nest:
        if isinstance(part, dict):
            part = part["k"][0]
        yield part[0] if isinstance(part, list) else part


def own_bytes(tensors):
    return {id(t._storage.root): t.untyped_storage().nbytes() for t in tensors}


def groups(tensors):
    seen = {}
    return [seen.setdefault(id(t._storage.root), len(seen)) for t in tensors]


@pytest.mark.parametrize("device", ["cpu", "meta", "sim"])
@pytest.mark.parametrize("seed", range(100))
def test_copies_share_as_the_originals_do(seed, device):
    rng = random.Random(seed)
    with lt.no_grad():
        nest, tensors = drawn_nest(rng, device)
        ledger = backend(tensors[0].device).ledger
        before = ledger.live
        copies = list(flat(copy.deepcopy(nest)))
        assert groups(copies) == groups(tensors)
        assert [c is d for c in copies for d in copies] == [
            a is b for a in tensors for b in tensors
        ]
        assert ledger.live - before == sum(own_bytes(copies).values())
        for t, c in zip(tensors, copies, strict=True):
            assert (c.shape, c.dtype, c.device) == (t.shape, t.dtype, t.device)
            assert c._storage.root is not t._storage.root
            if t.numel():
                assert c.storage_offset() == t.storage_offset()
                assert [s for s, n in zip(c.stride(), c.shape, strict=True) if n > 1] == [
                    s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1
                ]
        if device == "meta":
            return
        for k in range(len(copies)):  # the same writes on either side are seen by the same
            for each in (tensors, copies):
                if each[k].numel():
                    each[k][(0,) * each[k].ndim] = k + 1
            assert [c.tolist() for c in copies] == [t.tolist() for t in tensors]


@pytest.mark.parametrize("seed", range(100))
def test_a_tied_model_and_its_state_stay_tied(seed):
    rng = random.Random(seed)
    layers = [nn.Linear(4, 4, bias=rng.random() < 0.5) for _ in range(rng.randrange(2, 6))]
    for layer in layers[1:]:
        if rng.random() < 0.5:
            layer.weight = rng.choice(layers).weight
    model = nn.Sequential(*layers)
    model.register_buffer("mine", rng.choice(layers).weight.detach()[1:])
    ledger = backend(lt.device("cpu")).ledger
    state = model.state_dict()
    before = ledger.live
    copied = copy.deepcopy(state)
    assert groups(copied.values()) == groups(state.values())
    assert ledger.live - before == sum(own_bytes(state.values()).values())
    twin = copy.deepcopy(model)
    assert len(list(twin.parameters())) == len(list(model.parameters()))
    twin.load_state_dict(copied)


def test_the_examples_of_the_reports():
    x = lt.arange(6.0)
    a, b = copy.deepcopy([x, x[1:]])
    a[1] = 9
    assert (b.tolist(), x.tolist()) == ([9, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5])
    ledger = backend(lt.device("cpu")).ledger
    wide = lt.zeros(1).expand(512, 512)
    before = ledger.live
    kept = copy.deepcopy(wide)
    assert (ledger.live - before, kept.stride()) == (4, (0, 0))
    base = lt.zeros(1000)
    before = ledger.live
    small = copy.deepcopy(base[3:5])  # as in PyTorch: all of the base
    assert (ledger.live - before, small.storage_offset()) == (4000, 3)


def test_a_gradient_that_is_a_view_shares_with_its_base():
    x = lt.ones(3, requires_grad=True)
    flat_gradient = lt.arange(6.0)
    x.grad = flat_gradient[3:]
    y, g = copy.deepcopy([x, flat_gradient])
    y.grad.fill_(7)
    assert (g.tolist(), flat_gradient.tolist()) == ([0, 1, 2, 7, 7, 7], [0, 1, 2, 3, 4, 5])


def test_parameters_are_copied_alone():
    p = nn.Parameter(lt.zeros(10)[4:6])
    ledger = backend(lt.device("cpu")).ledger
    before = ledger.live
    q, data = copy.deepcopy([p, p.data])
    assert ledger.live - before == 8 + 40
    q.data.fill_(1)
    assert data.tolist() == [0, 0]


def test_storages_are_copied_with_their_tensors():
    x = lt.arange(4.0)
    y, untyped, typed = copy.deepcopy([x, x[2:].untyped_storage(), x.storage()])
    assert untyped == y.untyped_storage()
    assert typed == y.storage()
    assert copy.copy(untyped) != untyped
    assert copy.copy(typed).size() == 4


def test_a_version_of_its_own_stays_one():
    x = lt.ones(2, requires_grad=True)
    y, data = copy.deepcopy([x, x.data])
    product = y * y
    data.add_(1)  # .data is what writes are not noticed through
    with pytest.warns(UserWarning, match="data"):
        product.sum().backward()
    assert y.grad.tolist() == [4, 4]


def test_a_sparse_copy_keeps_its_gradient_and_attributes():
    x = lt.eye(3).to_sparse().requires_grad_()
    x.note = ["mine"]
    lt.sparse.sum(x).backward()
    y = copy.deepcopy(x)
    assert y.grad is not x.grad
    assert y.grad.to_dense().tolist() == x.grad.to_dense().tolist()
    assert (y.note, y.note is x.note) == (["mine"], False)


@pytest.mark.parametrize("seed", range(200))
def test_a_pickle_writes_one_element_of_an_expanded_dim(seed):
    rng = random.Random(seed)
    _, tensors = drawn_nest(rng, rng.choice(("cpu", "sim")))
    for t in tensors:
        t = t.detach()
        wide = t.unsqueeze(0).expand(1000, *t.shape)
        text = pickle.dumps(wide)
        assert len(text) < 800 + t.numel() * t.itemsize
        found = pickle.loads(text)
        assert (found.dtype, found.shape, found.device) == (wide.dtype, wide.shape, wide.device)
        assert found.stride(0) == 0
        assert found[:2].tolist() == wide[:2].tolist()
