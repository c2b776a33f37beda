"""Cases of normalization and dropout."""

from __future__ import annotations

from tests.modules.table import case, normal

BOTH = ("train", "eval")


def _twice(T, layer, x, y):
    return layer(x), layer(y)  # the running averages see two batches


CASES = [
    case("BatchNorm1d", 4, x=normal(6, 4), modes=BOTH),
    case("BatchNorm1d", 4, x=normal(3, 4, 5), modes=BOTH, note="signal"),
    case("BatchNorm1d", 4, 1e-3, 0.3, x=(normal(6, 4), normal(5, 4)), modes=BOTH, forward=_twice),
    case(
        "BatchNorm1d", 4, momentum=None, x=(normal(6, 4), normal(5, 4)), modes=BOTH, forward=_twice
    ),
    case("BatchNorm1d", 4, affine=False, x=normal(6, 4), modes=BOTH),
    case("BatchNorm1d", 4, bias=False, x=normal(6, 4), modes=BOTH),
    case("BatchNorm1d", 4, track_running_stats=False, x=normal(6, 4), modes=BOTH),
    case("BatchNorm2d", 3, x=normal(2, 3, 4, 5), modes=BOTH),
    case("BatchNorm2d", 3, affine=False, track_running_stats=False, x=normal(2, 3, 4, 5)),
    case("BatchNorm3d", 2, x=normal(2, 2, 3, 2, 3), modes=BOTH),
    case("InstanceNorm1d", 3, x=normal(2, 3, 5)),
    case("InstanceNorm1d", 3, affine=True, x=normal(3, 5), note="single"),
    case("InstanceNorm1d", 3, track_running_stats=True, x=normal(2, 3, 5), modes=BOTH),
    case("InstanceNorm2d", 3, affine=True, x=normal(2, 3, 4, 3)),
    case("InstanceNorm2d", 3, affine=True, bias=False, x=normal(2, 3, 4, 3)),
    case(
        "InstanceNorm2d", 3, 1e-3, 0.2, True, True, x=(normal(2, 3, 4, 3), normal(3, 3, 2, 2)),
        modes=BOTH, forward=_twice,
    ),
    case("InstanceNorm3d", 2, affine=True, x=normal(2, 2, 3, 2, 3)),
    case("LayerNorm", 5, x=normal(3, 5)),
    case("LayerNorm", (3, 5), 1e-3, x=normal(2, 3, 5)),
    case("LayerNorm", 5, bias=False, x=normal(2, 3, 5)),
    case("LayerNorm", [5], elementwise_affine=False, x=normal(2, 3, 5)),
    case("RMSNorm", 5, x=normal(3, 5)),
    case("RMSNorm", (3, 5), 1e-3, x=normal(2, 3, 5)),
    case("RMSNorm", 5, elementwise_affine=False, x=normal(2, 3, 5)),
    case("GroupNorm", 2, 6, x=normal(2, 6, 4, 3)),
    case("GroupNorm", 3, 6, 1e-3, x=normal(4, 6)),
    case("GroupNorm", 1, 4, affine=False, x=normal(2, 4, 5)),
    case("GroupNorm", 2, 4, bias=False, x=normal(2, 4, 5)),
    case("LocalResponseNorm", 2, x=normal(2, 5, 3, 3)),
    case("LocalResponseNorm", 3, 0.5, 0.6, 2.0, x=normal(2, 5, 4)),
    # Dropout: in training only what the draws leave (tests/modules/test_dropout.py)
    *[
        case(name, *args, x=normal(*shape), modes=BOTH, random=True)
        for name, args, shape in (
            ("Dropout", (), (4, 5)),
            ("Dropout1d", (0.3,), (2, 3, 4)), ("Dropout2d", (0.3,), (2, 3, 4, 2)),
            ("Dropout3d", (0.3,), (2, 3, 2, 2, 2)), ("AlphaDropout", (0.3,), (4, 5)),
            ("FeatureAlphaDropout", (0.3,), (2, 3, 4)),
        )
    ],
    *[
        case(name, 0.0, x=normal(*shape))
        for name, shape in (
            ("Dropout", (4, 5)), ("Dropout1d", (3, 4)), ("Dropout2d", (2, 3, 4, 2)),
            ("Dropout3d", (3, 2, 2, 2)), ("AlphaDropout", (4, 5)),
        )
    ],
    case("Dropout", 1.0, x=normal(4, 5)),
    case("Dropout", 0.2, inplace=True, x=normal(4, 5), modes=BOTH, random=True),
    case("Dropout2d", 0.2, inplace=True, x=normal(2, 3, 4, 2), modes=BOTH, random=True),
]  # fmt: skip

INITS = [
    ("BatchNorm1d", (7,), {}),
    ("BatchNorm2d", (7,), {"affine": False}),
    ("BatchNorm3d", (7,), {}),
    ("InstanceNorm1d", (7,), {"affine": True, "track_running_stats": True}),
    ("LayerNorm", ((3, 4),), {}),
    ("RMSNorm", (4,), {}),
    ("GroupNorm", (2, 4), {}),
]
