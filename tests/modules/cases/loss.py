"""Cases of losses and distances."""

from __future__ import annotations

import numpy as np

from tests.modules.table import (
    case,
    constant,
    given,
    integers,
    log_probabilities,
    normal,
    signs,
    uniform,
)

THREE = np.array([0.5, 2.0, 1.0])
FOUR = np.array([0.5, 2.0, 1.0, 1.5])
REDUCTIONS = ("mean", "sum", "none")
LABELS = given([[2, 0, -1, 1], [1, -1, 0, 3], [3, 2, 1, 0]])


def _each(layer, *args, x, **kwargs):
    """The case with every reduction."""
    return [case(layer, *args, reduction=r, x=x, **kwargs) for r in REDUCTIONS]


def cosine(T):
    return lambda a, b: 1.0 - T.nn.functional.cosine_similarity(a, b)


def _from_logits(T, layer, x, *others):
    # PyTorch gives the gradient for the logits behind log_probs, as if their sum were 1.
    return layer(T.log_softmax(x, -1), *others)


def two_at_a_time(T):
    return T.nn.LinearCrossEntropyOptions(batch_chunk_size=2)


PAIR = (normal(4, 3), normal(4, 3))
TOKENS = (normal(5, 3), integers(4, 5))
LOGITS = (normal(5, 4), integers(4, 5))
TRIPLE = (normal(4, 6), normal(4, 6), normal(4, 6))

CASES = [
    *_each("L1Loss", x=PAIR),
    *_each("MSELoss", x=PAIR),
    *_each("SmoothL1Loss", beta=0.7, x=PAIR),
    case("SmoothL1Loss", beta=0.0, x=PAIR),
    *_each("HuberLoss", delta=0.6, x=PAIR),
    # Of classes
    *_each("CrossEntropyLoss", x=LOGITS),
    case("CrossEntropyLoss", x=(normal(2, 4, 3, 2), integers(4, 2, 3, 2)), note="images"),
    case("CrossEntropyLoss", x=(normal(4), given(2)), note="single"),
    case("CrossEntropyLoss", FOUR, ignore_index=1, label_smoothing=0.1, x=LOGITS),
    case("CrossEntropyLoss", FOUR, reduction="none", x=LOGITS),
    case("CrossEntropyLoss", x=(normal(5, 4), uniform(5, 4)), note="probabilities"),
    case("CrossEntropyLoss", FOUR, label_smoothing=0.2, x=(normal(5, 4), constant(uniform(5, 4)))),
    *_each("LinearCrossEntropyLoss", 3, 4, x=TOKENS),
    case("LinearCrossEntropyLoss", 3, 4, bias=True, weight=FOUR, ignore_index=1, x=TOKENS),
    case("LinearCrossEntropyLoss", 3, 4, weight=FOUR, label_smoothing=0.1, reduction="none",
         x=TOKENS),
    case("LinearCrossEntropyLoss", 3, 4, x=(normal(3), given(2)), note="single"),
    case("LinearCrossEntropyLoss", 3, 4, bias=True, x=(normal(5, 3), uniform(5, 4)),
         note="probabilities"),
    case("LinearCrossEntropyLoss", 3, 4, out_features=(2, 3), bias=True, weight=FOUR,
         x=(normal(5, 3), integers(4, 5, 2, 3))),
    case("LinearCrossEntropyLoss", 3, 4, bias=True, options=two_at_a_time, x=TOKENS, second=False),
    *_each("NLLLoss", x=(log_probabilities(5, 4), integers(4, 5))),
    case("NLLLoss", FOUR, ignore_index=2, x=(normal(2, 4, 3), integers(4, 2, 3))),
    *_each("MultiMarginLoss", x=LOGITS, second=False),
    case("MultiMarginLoss", 2, 0.7, FOUR, x=LOGITS, second=False),
    *_each("MultiLabelMarginLoss", x=(normal(3, 4), LABELS), second=False),
    *_each("MultiLabelSoftMarginLoss", x=(normal(3, 4), constant(integers(2, 3, 4))),
           forward=lambda T, layer, x, y: layer(x, y.to(x.dtype))),
    case(
        "MultiLabelSoftMarginLoss", FOUR, x=(normal(3, 4), constant(uniform(3, 4)))
    ),
    *_each(
        "CTCLoss", x=(normal(7, 3, 5), integers(5, 3, 3, low=1), given([7, 6, 7]),
                      given([3, 2, 1])),
        forward=_from_logits, second=False, low=False, meta=False,
    ),
    case(
        "CTCLoss", 4, forward=_from_logits, second=False, low=False, meta=False, note="in a row",
        x=(normal(6, 2, 5), given([1, 2, 3, 0, 1]), given([6, 5]), given([3, 2])),
    ),
    case(
        "CTCLoss", zero_infinity=True, forward=_from_logits, second=False, low=False, meta=False,
        x=(normal(3, 2, 5), given([[1, 1, 1], [2, 3, 1]]), given([3, 3]), given([3, 2])),
    ),
    # Of probabilities
    *_each("BCELoss", x=(uniform(4, 3), constant(uniform(4, 3)))),
    case("BCELoss", THREE, x=(uniform(4, 3), constant(uniform(4, 3)))),
    *_each("BCEWithLogitsLoss", x=(normal(4, 3), constant(uniform(4, 3)))),
    case("BCEWithLogitsLoss", THREE, pos_weight=THREE, x=(normal(4, 3), constant(uniform(4, 3)))),
    *[
        case("KLDivLoss", reduction=r, x=(log_probabilities(4, 3), uniform(4, 3)))
        for r in ("batchmean", "sum", "none")
    ],
    case("KLDivLoss", log_target=True, reduction="batchmean",
         x=(log_probabilities(4, 3), log_probabilities(4, 3))),
    *_each("PoissonNLLLoss", x=(normal(4, 3), constant(uniform(4, 3, high=5.0)))),
    case("PoissonNLLLoss", False, True, x=(uniform(4, 3), constant(uniform(4, 3, high=5.0)))),
    *_each("GaussianNLLLoss", x=(normal(4, 3), normal(4, 3), uniform(4, 3))),
    case("GaussianNLLLoss", full=True, eps=0.3, x=(normal(4, 3), normal(4, 3), uniform(4, 1))),
    # Of margins
    *_each("SoftMarginLoss", x=(normal(4, 3), signs(4, 3))),
    *_each("HingeEmbeddingLoss", x=(normal(4, 3), signs(4, 3))),
    case("HingeEmbeddingLoss", 0.4, x=(normal(4, 3), signs(4, 3))),
    *_each("MarginRankingLoss", 0.2, x=(normal(6), normal(6), signs(6))),
    *_each("CosineEmbeddingLoss", 0.1, x=(normal(5, 6), normal(5, 6), signs(5))),
    *_each("TripletMarginLoss", x=TRIPLE),
    case("TripletMarginLoss", 2.0, 3.0, 1e-5, True, x=TRIPLE),
    *_each("TripletMarginWithDistanceLoss", x=TRIPLE),
    case(
        "TripletMarginWithDistanceLoss", distance_function=cosine, margin=0.5, swap=True, x=TRIPLE
    ),
    # Distances
    case("CosineSimilarity", x=PAIR),
    case("CosineSimilarity", 0, 1e-3, x=(normal(4, 3), normal(4, 1))),
    case("PairwiseDistance", x=PAIR),
    case("PairwiseDistance", 1.0, 1e-3, True, x=PAIR),
]  # fmt: skip
