"""Cases of attention and of the Transformer."""

from __future__ import annotations

import numpy as np

from tests.modules.table import case, given, normal

BOTH = ("train", "eval")
CAUSAL = given(np.triu(np.full((4, 4), -np.inf), 1))
HIDDEN = given(np.triu(np.ones((4, 5), bool), 2))
PADDING = given(np.array([[False] * 5, [False, False, True, False, True]]))
X, MEMORY = normal(4, 2, 6), normal(5, 2, 6)


def _attend(**options):
    """Self-attention, or attention of the first to the second input; then the masks."""

    def forward(T, layer, x, memory=None, *masks):
        source = x if memory is None else memory
        names = ("attn_mask", "key_padding_mask")
        found = {n: m for n, m in zip(names, masks, strict=False) if m is not None}
        return layer(x, source, source, **found, **options)

    return forward


def _causal(T, layer, x, mask):
    return layer(x, mask, is_causal=True)


def _of_layers(kind, **options):
    """What makes a layer of a kind."""

    def make(T):
        return getattr(T.nn, f"Transformer{kind}Layer")(*SMALL, **options)

    make.__name__ = f"{kind}({options})"
    return make


def _norm(T):
    return T.nn.LayerNorm(6)


NO_SECOND = {"second": False}  # PyTorch's fused attention has no second gradient
SMALL = (6, 2, 8, 0.0)

CASES = [
    case("MultiheadAttention", 6, 2, x=X, forward=_attend()),
    case(
        "MultiheadAttention",
        6,
        2,
        x=X,
        forward=_attend(need_weights=False),
        note="no weights",
        **NO_SECOND,
    ),
    case(
        "MultiheadAttention",
        6,
        2,
        batch_first=True,
        x=(normal(2, 4, 6), normal(2, 5, 6), HIDDEN),
        forward=_attend(average_attn_weights=False),
    ),
    case(
        "MultiheadAttention", 6, 2, x=(X, MEMORY, HIDDEN, PADDING), forward=_attend(), note="masks"
    ),
    case(
        "MultiheadAttention",
        6,
        2,
        add_bias_kv=True,
        add_zero_attn=True,
        bias=False,
        x=(X, MEMORY, HIDDEN, PADDING),
        forward=_attend(need_weights=False),
        **NO_SECOND,
    ),
    case("MultiheadAttention", 6, 3, kdim=3, vdim=7, x=(X, normal(5, 2, 3), normal(5, 2, 7))),
    case("MultiheadAttention", 6, 3, x=normal(4, 6), forward=_attend(), note="single"),
    case("TransformerEncoderLayer", *SMALL, x=X, **NO_SECOND),
    case("TransformerEncoderLayer", *SMALL, "gelu", norm_first=True, x=(X, CAUSAL), **NO_SECOND),
    case(
        "TransformerEncoderLayer",
        *SMALL,
        batch_first=True,
        bias=False,
        x=(normal(2, 5, 6), None, PADDING),
        **NO_SECOND,
    ),
    case(
        "TransformerEncoderLayer",
        *SMALL,
        x=(X, CAUSAL),
        forward=_causal,
        note="causal",
        **NO_SECOND,
    ),
    case("TransformerEncoderLayer", 6, 2, 8, x=X, modes=BOTH, random=True, **NO_SECOND),
    case("TransformerDecoderLayer", *SMALL, x=(X, MEMORY), **NO_SECOND),
    case(
        "TransformerDecoderLayer",
        *SMALL,
        norm_first=True,
        x=(X, MEMORY, CAUSAL, HIDDEN, None, PADDING),
        **NO_SECOND,
    ),
    # bfloat16 moves an activation over the edge of relu
    case("TransformerEncoder", _of_layers("Encoder"), 2, x=X, low=False, **NO_SECOND),
    case(
        "TransformerEncoder",
        _of_layers("Encoder", batch_first=True),
        1,
        _norm,
        False,
        x=normal(2, 4, 6),
        **NO_SECOND,
    ),
    case("TransformerDecoder", _of_layers("Decoder"), 2, _norm, x=(X, MEMORY), **NO_SECOND),
    case("Transformer", 6, 2, 1, 2, 8, 0.0, x=(MEMORY, X), **NO_SECOND),
    case(
        "Transformer",
        6,
        2,
        1,
        1,
        8,
        0.0,
        "gelu",
        batch_first=True,
        norm_first=True,
        x=(normal(2, 5, 6), normal(2, 4, 6)),
        **NO_SECOND,
    ),
]

INITS = [
    ("MultiheadAttention", (32, 4), {"add_bias_kv": True}),
    ("MultiheadAttention", (32, 4), {"kdim": 20, "vdim": 24}),
    ("TransformerEncoderLayer", (32, 4, 64), {}),
    ("Transformer", (32, 4, 1, 1, 64), {}),
]
