"""Recurrent layers and cells against PyTorch in float64: results, and gradients of everything."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import lowtide as lt
from lowtide.nn.utils import rnn as rnn_utils

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

KINDS = ("RNN", "LSTM", "GRU")


def pair(name, *args, **kwargs):
    """The same module of both frameworks, with the same weights, in float64."""
    ours = getattr(lt.nn, name)(*args, dtype=lt.float64, **kwargs)
    theirs = getattr(torch.nn, name)(*args, dtype=torch.float64, **kwargs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    weights = {k: lt.tensor(v.numpy()) for k, v in theirs.state_dict().items()}
    ours.load_state_dict(weights)
    assert repr(ours) == repr(theirs)
    return ours, theirs


def both(array):
    """A leaf of each framework."""
    return lt.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)


def same(ours, theirs, what=""):
    assert tuple(ours.shape) == tuple(theirs.shape), what
    np.testing.assert_allclose(
        ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-10, atol=1e-12, err_msg=what
    )


def flatten(x):
    if isinstance(x, tuple | list):
        return [t for part in x for t in flatten(part)]
    return [] if x is None else [x]


def compare(ours, theirs, outs, wanted, leaves):
    """Results, then the gradients of a weighted sum of them."""
    outs, wanted = flatten(outs), flatten(wanted)
    assert len(outs) == len(wanted)
    total, expected = 0.0, 0.0
    for k, (a, b) in enumerate(zip(outs, wanted, strict=True)):
        same(a, b, f"result {k}")
        weight = np.random.default_rng(k).normal(size=tuple(a.shape))
        total = total + (a * lt.tensor(weight)).sum()
        expected = expected + (b * torch.tensor(weight)).sum()
    total.backward()
    expected.backward()
    for k, (a, b) in enumerate(leaves):
        same(a.grad, b.grad, f"gradient of input {k}")
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        same(a.grad, b.grad, f"gradient of {name}")


def state(kind, shape, projected=None, seed=5):
    """Leaves (ours, theirs) for the initial state: one, or the two of an LSTM."""
    rng = np.random.default_rng(seed)
    shapes = [shape] if kind != "LSTM" else [(*shape[:-1], projected or shape[-1]), shape]
    leaves = [both(rng.normal(size=s)) for s in shapes]
    if kind != "LSTM":
        return leaves[0], leaves
    return tuple(zip(*leaves, strict=True)), leaves


GRID = list(
    itertools.product(KINDS, (1, 2), (False, True), (False, True), (False, True), (False, True))
)


@pytest.mark.parametrize(("kind", "layers", "bias", "first", "two_ways", "given"), GRID)
def test_layers(kind, layers, bias, first, two_ways, given):
    ours, theirs = pair(kind, 3, 4, layers, bias=bias, batch_first=first, bidirectional=two_ways)
    x = both(np.random.default_rng(0).normal(size=(2, 5, 3) if first else (5, 2, 3)))
    leaves, hx = [x], (None, None)
    if given:
        hx, more = state(kind, (layers * (1 + two_ways), 2, 4))
        leaves += more
    compare(ours, theirs, ours(x[0], hx[0]), theirs(x[1], hx[1]), leaves)


@pytest.mark.parametrize("two_ways", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_projected_lstm(layers, two_ways):
    ours, theirs = pair("LSTM", 3, 5, layers, proj_size=2, bidirectional=two_ways)
    x = both(np.random.default_rng(0).normal(size=(4, 2, 3)))
    hx, more = state("LSTM", (layers * (1 + two_ways), 2, 5), 2)
    compare(ours, theirs, ours(x[0], hx[0]), theirs(x[1], hx[1]), [x, *more])


def test_relu_recurrence():
    ours, theirs = pair("RNN", 3, 4, 2, nonlinearity="relu")
    x = both(np.random.default_rng(0).normal(size=(4, 2, 3)))
    compare(ours, theirs, ours(x[0]), theirs(x[1]), [x])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_unbatched_input(kind, first, given):
    ours, theirs = pair(kind, 3, 4, 2, batch_first=first, bidirectional=True)
    x = both(np.random.default_rng(0).normal(size=(5, 3)))
    leaves, hx = [x], (None, None)
    if given:
        hx, more = state(kind, (4, 4))
        leaves += more
    compare(ours, theirs, ours(x[0], hx[0]), theirs(x[1], hx[1]), leaves)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    ("lengths", "in_order"), [((5, 3, 3, 1), True), ((2, 5, 1, 3), False), ((4, 4, 4, 4), True)]
)
@pytest.mark.parametrize("first", [False, True])
def test_packed_sequences(kind, lengths, in_order, given, first):
    ours, theirs = pair(kind, 3, 4, 2, bidirectional=True)
    array = np.random.default_rng(0).normal(size=(4, 5, 3) if first else (5, 4, 3))
    x = both(array)
    leaves, hx = [x], (None, None)
    if given:
        hx, more = state(kind, (4, 4, 4))
        leaves += more
    options = {"batch_first": first, "enforce_sorted": in_order}
    a = rnn_utils.pack_padded_sequence(x[0], list(lengths), **options)
    b = torch.nn.utils.rnn.pack_padded_sequence(x[1], list(lengths), **options)
    assert a.batch_sizes.tolist() == b.batch_sizes.tolist()
    if not in_order:
        assert a.sorted_indices.tolist() == b.sorted_indices.tolist()
        assert a.unsorted_indices.tolist() == b.unsorted_indices.tolist()
    same(a.data, b.data)
    (a, last_a), (b, last_b) = ours(a, hx[0]), theirs(b, hx[1])
    padding = {"batch_first": first, "padding_value": -1.0, "total_length": 6}
    a, ends_a = rnn_utils.pad_packed_sequence(a, **padding)
    b, ends_b = torch.nn.utils.rnn.pad_packed_sequence(b, **padding)
    assert ends_a.tolist() == ends_b.tolist() == list(lengths)
    compare(ours, theirs, (a, last_a), (b, last_b), leaves)


def test_projected_lstm_on_packed_sequences():
    ours, theirs = pair("LSTM", 3, 5, 2, proj_size=2, bidirectional=True)
    x = both(np.random.default_rng(0).normal(size=(5, 3, 3)))
    hx, more = state("LSTM", (4, 3, 5), 2)
    a = rnn_utils.pack_padded_sequence(x[0], [2, 5, 4], enforce_sorted=False)
    b = torch.nn.utils.rnn.pack_padded_sequence(x[1], [2, 5, 4], enforce_sorted=False)
    (a, last_a), (b, last_b) = ours(a, hx[0]), theirs(b, hx[1])
    compare(ours, theirs, (a.data, last_a), (b.data, last_b), [x, *more])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2, 3), (3,)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_cells(kind, shape, bias, given):
    ours, theirs = pair(f"{kind}Cell", 3, 4, bias=bias)
    x = both(np.random.default_rng(0).normal(size=shape))
    leaves, hx = [x], (None, None)
    if given:
        hx, more = state(kind, (*shape[:-1], 4))
        leaves += more
    outs, wanted = ours(x[0], hx[0]), theirs(x[1], hx[1])
    # A second step, so that gradients flow through the state.
    compare(ours, theirs, ours(x[0], outs), theirs(x[1], wanted), leaves)


def test_relu_cell():
    ours, theirs = pair("RNNCell", 3, 4, nonlinearity="relu")
    x = both(np.random.default_rng(0).normal(size=(2, 3)))
    compare(ours, theirs, ours(x[0]), theirs(x[1]), [x])


@pytest.mark.parametrize("kind", KINDS)
def test_second_gradients(kind):
    ours, theirs = pair(kind, 3, 4, 2, bidirectional=True)
    array = np.random.default_rng(0).normal(size=(4, 2, 3))
    found = []
    for T, module in ((lt, ours), (torch, theirs)):
        x = T.tensor(array, requires_grad=True)
        out = module(x)[0]
        parameters = list(module.parameters())
        first = T.autograd.grad((out**2).sum(), [x, *parameters], create_graph=True)
        total = sum((g**2).sum() for g in first)
        second = T.autograd.grad(total, [x, *parameters])
        found.append([*first, *second])
    for k, (a, b) in enumerate(zip(*found, strict=True)):
        same(a, b, f"gradient {k}")


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_kernels_in_float32(kind):
    # Large enough for the compiled steps; rounding differs, so the tolerance is that of float32.
    ours = getattr(lt.nn, kind)(24, 40, 2, bidirectional=True)
    theirs = getattr(torch.nn, kind)(24, 40, 2, bidirectional=True)
    ours.load_state_dict({k: lt.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    array = np.random.default_rng(0).normal(size=(12, 20, 24)).astype(np.float32)
    x = both(array)
    lengths = [12] * 7 + [9] * 8 + [2] * 5
    a = rnn_utils.pack_padded_sequence(x[0], lengths)
    b = torch.nn.utils.rnn.pack_padded_sequence(x[1], lengths)
    a, b = ours(a)[0].data, theirs(b)[0].data
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-5)
    (a**2).sum().backward()
    (b**2).sum().backward()
    pairs = [x, *zip(ours.parameters(), theirs.parameters(), strict=True)]
    for ours_leaf, theirs_leaf in pairs:
        g, h = ours_leaf.grad.numpy(), theirs_leaf.grad.numpy()
        np.testing.assert_allclose(g, h, rtol=1e-3, atol=1e-4 * np.abs(h).max())


BAD = {
    "dims": lambda T, m: m(T.zeros(2, 2, 2, 3)),
    "features": lambda T, m: m(T.zeros(5, 2, 4)),
    "state": lambda T, m: m(T.zeros(5, 2, 3), T.zeros(1, 3, 4)),
    "state dims": lambda T, m: m(T.zeros(5, 2, 3), T.zeros(1, 4)),
    "unbatched state": lambda T, m: m(T.zeros(5, 3), T.zeros(1, 2, 4)),
    "no steps": lambda T, m: m(T.zeros(0, 2, 3)),
    "dtype": lambda T, m: m(T.zeros(5, 2, 3, dtype=T.float64)),
    "dropout": lambda T, m: T.nn.RNN(3, 4, dropout=2.0),
    "sizes": lambda T, m: T.nn.LSTM(3, 0),
    "size type": lambda T, m: T.nn.LSTM(3, 4.0),
    "layers": lambda T, m: T.nn.LSTM(3, 4, 0),
    "projection": lambda T, m: T.nn.LSTM(3, 4, proj_size=4),
    "negative projection": lambda T, m: T.nn.LSTM(3, 4, proj_size=-1),
    "projected gru": lambda T, m: T.nn.GRU(3, 4, proj_size=2),
    "nonlinearity": lambda T, m: T.nn.RNN(3, 4, nonlinearity="gelu"),
    "cell": lambda T, m: T.nn.LSTMCell(3, 4)(T.zeros(2, 2, 3)),
    "cell features": lambda T, m: T.nn.GRUCell(3, 4)(T.zeros(2, 5)),
    "cell state": lambda T, m: T.nn.RNNCell(3, 4)(T.zeros(2, 3), T.zeros(3, 4)),
    "cell nonlinearity": lambda T, m: T.nn.RNNCell(3, 4, nonlinearity="gelu")(T.zeros(2, 3)),
    "lengths": lambda T, m: pack(T)(T.zeros(5, 2, 3), [5]),
    "zero length": lambda T, m: pack(T)(T.zeros(5, 2, 3), [5, 0]),
    "order": lambda T, m: pack(T)(T.zeros(5, 2, 3), [3, 5]),
    "long": lambda T, m: pack(T)(T.zeros(5, 2, 3), T.zeros(2, 2)),
    "none": lambda T, m: rnn(T).pad_sequence([]),
    "side": lambda T, m: rnn(T).pad_sequence([T.zeros(3)], padding_side="top"),
    "total": lambda T, m: rnn(T).pad_packed_sequence(
        pack(T)(T.zeros(5, 2, 3), [5, 3]), total_length=4
    ),
}


def rnn(T):
    return rnn_utils if T is lt else T.nn.utils.rnn


def pack(T):
    return rnn(T).pack_padded_sequence


@pytest.mark.parametrize("name", BAD)
def test_error_types(name):
    errors = []
    for T in (lt, torch):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the types are compared below
            BAD[name](T, T.nn.RNN(3, 4))
        errors.append(caught.type)
    assert errors[0].__name__ == errors[1].__name__
    assert issubclass(errors[0], errors[1])


def test_dropout_on_one_layer_warns_as_there():
    for T in (lt, torch):
        with pytest.warns(UserWarning, match="dropout option adds dropout after all but last"):
            T.nn.LSTM(3, 4, dropout=0.5)


def test_padding_and_packing_of_lists():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(n, 2)) for n in (3, 5, 1)]
    ours = [lt.tensor(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    utils = torch.nn.utils.rnn
    for options in ({}, {"batch_first": True, "padding_value": -2.0}, {"padding_side": "left"}):
        same(rnn_utils.pad_sequence(ours, **options), utils.pad_sequence(theirs, **options))
    a = rnn_utils.pack_sequence(ours, enforce_sorted=False)
    b = utils.pack_sequence(theirs, enforce_sorted=False)
    same(a.data, b.data)
    for x, y in zip(rnn_utils.unpack_sequence(a), utils.unpack_sequence(b), strict=True):
        same(x, y)
    (a.data**3).sum().backward()
    (b.data**3).sum().backward()
    for x, y in zip(ours, theirs, strict=True):
        same(x.grad, y.grad)
