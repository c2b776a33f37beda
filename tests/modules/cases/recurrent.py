"""Cases of recurrent layers and cells."""

from __future__ import annotations

from tests.modules.table import case, normal

KINDS = ("RNN", "LSTM", "GRU")


def _states(kind, *shape):
    """Draws of the initial state; those of an LSTM are two."""
    return (normal(*shape), normal(*shape)) if kind == "LSTM" else normal(*shape)


def _packed(lengths, **options):
    def forward(T, layer, x, hx):
        rnn = T.nn.utils.rnn
        out, last = layer(rnn.pack_padded_sequence(x, lengths, **options), hx)
        padded, ends = rnn.pad_packed_sequence(out, padding_value=-1.0)
        return padded, ends, last

    return forward


def _padded(T, layer, *sequences):
    rnn = T.nn.utils.rnn
    packed = rnn.pack_sequence(list(sequences), enforce_sorted=False)
    return rnn.unpack_sequence(layer(packed)[0])


def _twice(T, layer, x, hx):
    return layer(x, layer(x, hx))


CASES = [
    *[case(kind, 3, 4, x=normal(5, 2, 3)) for kind in KINDS],
    *[
        case(kind, 3, 4, x=(normal(5, 2, 3), _states(kind, 1, 2, 4)), note="begun")
        for kind in KINDS
    ],
    *[
        case(kind, 3, 4, 2, bias=False, batch_first=True, bidirectional=True, x=normal(2, 5, 3))
        for kind in KINDS
    ],
    *[
        case(kind, 3, 4, 2, x=(normal(5, 3), _states(kind, 2, 4)), note="unbatched")
        for kind in KINDS
    ],
    *[
        case(
            kind, 3, 4, 2, bidirectional=True, x=(normal(5, 3, 3), _states(kind, 4, 3, 4)),
            forward=_packed([5, 2, 2]), note="packed",
        )
        for kind in KINDS
    ],
    case(
        "GRU", 3, 4, x=(normal(5, 3, 3), normal(1, 3, 4)), meta=False,
        forward=_packed([2, 5, 1], enforce_sorted=False), note="unsorted",
    ),
    case("GRU", 2, 3, x=(normal(3, 2), normal(5, 2)), forward=_padded, meta=False, note="list"),
    case("RNN", 3, 4, 2, "relu", x=normal(4, 2, 3)),
    case("LSTM", 3, 5, 2, proj_size=2, bidirectional=True, x=normal(4, 2, 3)),
    case("LSTM", 3, 4, 3, dropout=0.3, x=normal(4, 2, 3), modes=("train", "eval"), random=True),
    *[case(f"{kind}Cell", 3, 4, x=(normal(2, 3), _states(kind, 2, 4)), forward=_twice)
      for kind in KINDS],
    *[case(f"{kind}Cell", 3, 4, bias=False, x=normal(2, 3)) for kind in KINDS],
    case("LSTMCell", 3, 4, x=normal(3), note="unbatched"),
    case("RNNCell", 3, 4, nonlinearity="relu", x=(normal(2, 3), normal(2, 4))),
]  # fmt: skip

INITS = [
    *[(kind, (20, 40, 2), {"bidirectional": True}) for kind in KINDS],
    ("LSTM", (20, 40), {"proj_size": 10}),
    *[(f"{kind}Cell", (20, 40), {}) for kind in KINDS],
]
