"""Cases of linear layers, embeddings and the adaptive softmax."""

from __future__ import annotations

import numpy as np

from tests.modules.table import case, given, integers, normal, uniform

WEIGHTS = np.random.default_rng(5).standard_normal((6, 4))
ROWS = given([0, 5, 2, 2, 1, 0, 4, 2])
OFFSETS = given([0, 3, 3, 6])


def _log_prob(T, layer, x):
    return layer.log_prob(x), layer.predict(x)


def _both(T, layer, x, y):
    output, loss = layer(x, y)
    return output, loss


CASES = [
    case("Identity", 3, unused=True, x=normal(2, 3)),
    case("Linear", 5, 3, x=normal(4, 5)),
    case("Linear", 5, 3, bias=False, x=normal(2, 4, 5)),
    case("Linear", 5, 1, x=normal(5)),
    case("Bilinear", 4, 3, 5, x=(normal(6, 4), normal(6, 3))),
    case("Bilinear", 4, 3, 2, bias=False, x=(normal(2, 3, 4), normal(2, 3, 3))),
    case("Embedding", 6, 4, x=integers(6, 2, 5)),
    case("Embedding", 6, 4, padding_idx=2, x=ROWS),
    case("Embedding", 6, 4, padding_idx=-1, x=ROWS),
    case("Embedding", 6, 4, max_norm=0.7, x=ROWS, low=False),
    case("Embedding", 6, 4, max_norm=0.7, norm_type=1.0, x=ROWS, low=False),
    case("Embedding", 6, 4, scale_grad_by_freq=True, x=ROWS, second=False),
    case("Embedding", 6, 4, _weight=WEIGHTS, _freeze=True, x=ROWS),
    case("EmbeddingBag", 6, 4, x=integers(6, 3, 5)),
    case("EmbeddingBag", 6, 4, mode="sum", x=(ROWS, OFFSETS), second=False),
    case("EmbeddingBag", 6, 4, mode="mean", x=(ROWS, OFFSETS), second=False, note="offsets"),
    case("EmbeddingBag", 6, 4, mode="max", x=(ROWS, OFFSETS), second=False),
    case("EmbeddingBag", 6, 4, mode="sum", padding_idx=2, x=(ROWS, OFFSETS), second=False),
    case("EmbeddingBag", 6, 4, mode="mean", padding_idx=2, x=(ROWS, OFFSETS), second=False),
    case(
        "EmbeddingBag", 6, 4, mode="sum", x=(ROWS, OFFSETS, uniform(8)), second=False,
        note="factors",
    ),
    case(
        "EmbeddingBag", 6, 4, include_last_offset=True, x=(ROWS, given([0, 3, 3, 6, 8])),
        second=False,
    ),
    case("EmbeddingBag", 6, 4, max_norm=0.7, x=(ROWS, OFFSETS), second=False, low=False),
    case(
        "EmbeddingBag", 6, 4, scale_grad_by_freq=True, mode="sum", x=(ROWS, OFFSETS), second=False,
        differs="PyTorch's CPU kernel divides by the frequencies of other rows",
    ),
    case(
        "AdaptiveLogSoftmaxWithLoss", 8, 12, [4, 7], div_value=2.0, x=(normal(6, 8),
        given([0, 3, 4, 6, 7, 11])), meta=False, forward=_both,
    ),
    case(
        "AdaptiveLogSoftmaxWithLoss", 8, 12, [4, 7], div_value=2.0, head_bias=True,
        x=(normal(8), given(5)), meta=False, forward=_both, note="single",
    ),
    case(
        "AdaptiveLogSoftmaxWithLoss", 8, 12, [4, 7], 2.0, x=normal(6, 8), meta=False,
        forward=_log_prob, low=False,
    ),
]  # fmt: skip

INITS = [
    ("Linear", (60, 50), {}),
    ("Linear", (60, 50), {"bias": False}),
    ("Bilinear", (20, 15, 10), {}),
    ("Embedding", (60, 50), {}),
    ("Embedding", (60, 50, 3), {}),
    ("EmbeddingBag", (60, 50), {"padding_idx": 2}),
    ("AdaptiveLogSoftmaxWithLoss", (40, 90, [30, 60]), {"head_bias": True}),
]
