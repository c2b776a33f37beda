"""Attention and Transformer layers against PyTorch in float64: results and all gradients."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


def pair(name, *args, **kwargs):
    """The same module of both frameworks, with the same weights, in float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's advice about its shortcuts
        theirs = getattr(torch.nn, name)(*args, dtype=torch.float64, **kwargs)
    ours = getattr(lt.nn, name)(*args, dtype=lt.float64, **kwargs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    rng = np.random.default_rng(7)
    weights = {k: rng.normal(size=tuple(v.shape)) * 0.4 for k, v in theirs.state_dict().items()}
    theirs.load_state_dict({k: torch.tensor(v) for k, v in weights.items()})
    ours.load_state_dict({k: lt.tensor(v) for k, v in weights.items()})
    assert repr(ours) == repr(theirs)
    return ours, theirs


def same(ours, theirs, what=""):
    assert tuple(ours.shape) == tuple(theirs.shape), what
    np.testing.assert_allclose(
        ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-9, atol=1e-11, err_msg=what
    )


def compare(ours, theirs, inputs, masks=None, train=True):
    """Call both on leaves of the same values; compare results and gradients.

    ``inputs`` are arrays or numbers of earlier arrays, for one tensor in several places.
    """
    masks = masks or {}
    ours.train(train)
    theirs.train(train)
    found = []
    for T, module in ((lt, ours), (torch, theirs)):
        leaves = [T.tensor(a, requires_grad=True) for a in inputs if not isinstance(a, int)]
        args = [leaves[a] if isinstance(a, int) else None for a in inputs]
        fresh = iter(leaves)
        args = [next(fresh) if a is None else a for a in args]
        given = {k: T.tensor(m) if isinstance(m, np.ndarray) else m for k, m in masks.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = module(*args, **given)
        outs = [o for o in (out if isinstance(out, tuple) else (out,)) if o is not None]
        loss = 0.0
        for k, o in enumerate(outs):
            loss = loss + (o * T.tensor(np.random.default_rng(k).normal(size=tuple(o.shape)))).sum()
        parameters = dict(module.named_parameters())
        grads = T.autograd.grad(loss, [*leaves, *parameters.values()], allow_unused=True)
        found.append((outs, dict(zip([*range(len(leaves)), *parameters], grads, strict=True))))
    (a, da), (b, db) = found
    assert len(a) == len(b)
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        same(x, y, f"result {k}")
    for name in db:
        assert (da[name] is None) == (db[name] is None), name
        if db[name] is not None:
            same(da[name], db[name], f"gradient of {name}")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


L, S, N, E, H = 4, 5, 2, 6, 2
CAUSAL = np.triu(np.full((L, L), -np.inf), 1)
HIDDEN = np.triu(np.ones((L, S), bool), 2)
PADDING = np.array([[False] * 5, [False, False, True, False, True]])

OPTIONS = [
    {},
    {"bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"kdim": 3, "vdim": 7},
    {"kdim": 3, "vdim": 7, "bias": False, "add_bias_kv": True},
]
MASKS = {
    "none": {},
    "bool": {"attn_mask": HIDDEN},
    "float": {"attn_mask": normal(L, S, seed=3)},
    "per head": {"attn_mask": normal(N * H, L, S, seed=3)},
    "padding": {"key_padding_mask": PADDING},
    "both": {"key_padding_mask": PADDING, "attn_mask": HIDDEN},
    "float padding": {"key_padding_mask": normal(N, S, seed=4), "attn_mask": normal(L, S, seed=3)},
}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("first", "weights"), list(itertools.product((False, True), repeat=2)))
def test_attention(options, mask, first, weights):
    ours, theirs = pair("MultiheadAttention", E, H, batch_first=first, **options)
    sizes = (L, E), (S, options.get("kdim", E)), (S, options.get("vdim", E))
    arrays = [normal(*((N, n, e) if first else (n, N, e)), seed=n + e) for n, e in sizes]
    if "kdim" not in options:
        arrays[2] = 1  # the value is the key
    compare(ours, theirs, arrays, {**MASKS[mask], "need_weights": weights})


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_self_attention(train, first, average):
    ours, theirs = pair("MultiheadAttention", E, H, batch_first=first)
    x = normal(*((N, L, E) if first else (L, N, E)))
    options = {"attn_mask": CAUSAL, "average_attn_weights": average}
    compare(ours, theirs, [x, 0, 0], options, train)


@pytest.mark.parametrize("weights", [False, True])
def test_causal_hint_and_unbatched_attention(weights):
    ours, theirs = pair("MultiheadAttention", E, H)
    options = {"attn_mask": CAUSAL, "is_causal": True, "need_weights": weights}
    compare(ours, theirs, [normal(L, N, E), 0, 0], options)
    compare(ours, theirs, [normal(L, E), 0, 0], options)
    mask = {"key_padding_mask": PADDING[1], "need_weights": weights}
    compare(ours, theirs, [normal(L, E), normal(S, E, seed=1), 1], mask)


LAYER = [
    {},
    {"norm_first": True},
    {"batch_first": True},
    {"activation": "gelu", "bias": False},
    {"layer_norm_eps": 1e-2, "norm_first": True, "batch_first": True, "bias": False},
]
SOURCE = {
    "none": {},
    "mask": {"src_mask": CAUSAL},
    "bool": {"src_mask": CAUSAL < 0},
    "hint": {"src_mask": CAUSAL, "is_causal": True},
    "padding": {"src_key_padding_mask": PADDING[:, 1:]},
    "both": {"src_key_padding_mask": PADDING[:, 1:], "src_mask": CAUSAL < 0},
}


@pytest.mark.parametrize("options", LAYER, ids=str)
@pytest.mark.parametrize("mask", SOURCE)
def test_encoder_layer(options, mask):
    ours, theirs = pair("TransformerEncoderLayer", E, H, 8, 0.0, **options)
    x = normal(*((N, L, E) if options.get("batch_first") else (L, N, E)))
    compare(ours, theirs, [x], SOURCE[mask])


def test_encoder_layer_in_evaluation_ignores_dropout():
    ours, theirs = pair("TransformerEncoderLayer", E, H, 8, 0.5)
    compare(ours, theirs, [normal(L, N, E)], train=False)
    compare(ours, theirs, [normal(L, E)], train=False)


@pytest.mark.parametrize("options", LAYER, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_decoder_layer(options, masked):
    ours, theirs = pair("TransformerDecoderLayer", E, H, 8, 0.0, **options)
    first = options.get("batch_first")
    arrays = [normal(*((N, n, E) if first else (n, N, E)), seed=n) for n in (L, S)]
    masks = {
        "tgt_mask": CAUSAL < 0,
        "memory_mask": HIDDEN,
        "tgt_key_padding_mask": PADDING[:, :4],
        "memory_key_padding_mask": PADDING,
    }
    compare(ours, theirs, arrays, masks if masked else {"tgt_mask": CAUSAL, "tgt_is_causal": True})


def stack(T, kind, norm=True, **options):
    layer = getattr(T.nn, f"Transformer{kind}Layer")(E, H, 8, 0.0, dtype=T.float64, **options)
    after = T.nn.LayerNorm(E, dtype=T.float64) if norm else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = getattr(T.nn, f"Transformer{kind}")(layer, 2, after)
    rng = np.random.default_rng(7)
    state = module.state_dict()
    module.load_state_dict({k: T.tensor(rng.normal(size=tuple(v.shape))) for k, v in state.items()})
    return module


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("mask", ["none", "mask", "bool", "padding", "both"])
def test_encoder(norm, mask):
    masks = {"mask" if k == "src_mask" else k: v for k, v in SOURCE[mask].items()}
    ours, theirs = stack(lt, "Encoder", norm), stack(torch, "Encoder", norm)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    compare(ours, theirs, [normal(L, N, E)], masks)


def test_decoder():
    ours, theirs = stack(lt, "Decoder", norm_first=True), stack(torch, "Decoder", norm_first=True)
    arrays = [normal(n, N, E, seed=n) for n in (L, S)]
    compare(ours, theirs, arrays, {"tgt_mask": CAUSAL, "memory_key_padding_mask": PADDING})


@pytest.mark.parametrize("first", [False, True])
def test_transformer(first):
    ours, theirs = pair("Transformer", E, H, 2, 2, 8, 0.0, batch_first=first)
    arrays = [normal(*((N, n, E) if first else (n, N, E)), seed=n) for n in (S, L)]
    mask = lt.nn.Transformer.generate_square_subsequent_mask(L, dtype=lt.float64).numpy()
    np.testing.assert_array_equal(mask, CAUSAL)
    masks = {"tgt_mask": mask, "src_key_padding_mask": PADDING, "memory_key_padding_mask": PADDING}
    compare(ours, theirs, arrays, masks)


BAD = {
    "heads": lambda T: T.nn.MultiheadAttention(6, 4),
    "no size": lambda T: T.nn.MultiheadAttention(0, 1),
    "activation": lambda T: T.nn.TransformerEncoderLayer(6, 2, activation="tanh"),
    "dims": lambda T: T.nn.MultiheadAttention(6, 2)(*[T.zeros(1, 2, 3, 6)] * 3),
    "mask": lambda T: T.nn.MultiheadAttention(6, 2)(*[T.zeros(3, 2, 6)] * 3, attn_mask=T.zeros(2)),
    "size": lambda T: T.nn.MultiheadAttention(6, 2)(*[T.zeros(3, 2, 5)] * 3),
    "hint": lambda T: T.nn.MultiheadAttention(6, 2)(*[T.zeros(3, 2, 6)] * 3, is_causal=True),
    "batch": lambda T: small(T)(T.zeros(3, 2, 6), T.zeros(3, 1, 6)),
    "features": lambda T: small(T)(T.zeros(3, 2, 5), T.zeros(3, 2, 5)),
}


def small(T):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return T.nn.Transformer(6, 2, 1, 1, 8)


@pytest.mark.parametrize("name", BAD)
def test_error_types(name):
    errors = []
    for T in (lt, torch):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the types are compared below
            BAD[name](T)
        errors.append(caught.type)
    assert errors[0] is errors[1]
