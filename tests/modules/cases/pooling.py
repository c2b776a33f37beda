"""Cases of pooling, padding and resizing."""

from __future__ import annotations

import numpy as np

from tests.modules.table import case, normal, uniform


def _unpooled(pool, size=None):
    """Pool with indices, then undo it: the layer under test is the one that undoes."""

    def forward(T, layer, x):
        values, indices = pool(T)(x)
        return layer(values, indices) if size is None else layer(values, indices, output_size=size)

    return forward


SAMPLES = np.random.default_rng(3).uniform(0, 1, (2, 3, 3))  # where windows of a plane begin


def _pool(name, *args):
    return lambda T: getattr(T.nn, name)(*args, return_indices=True)


CASES = [
    case("MaxPool1d", 2, x=normal(2, 3, 9)),
    case("MaxPool1d", 3, 1, 1, 2, True, x=normal(2, 3, 9)),
    case("MaxPool1d", 2, ceil_mode=True, x=normal(3, 9), note="single"),
    case("MaxPool2d", 2, x=normal(2, 3, 6, 8)),
    case("MaxPool2d", 3, stride=2, padding=1, x=normal(2, 3, 7, 8)),
    case("MaxPool2d", (3, 2), (2, 1), (1, 0), (1, 2), True, True, x=normal(2, 3, 8, 7)),
    case("MaxPool3d", 2, x=normal(2, 2, 4, 5, 4)),
    case("MaxPool3d", (1, 2, 3), 1, (0, 1, 1), return_indices=True, x=normal(1, 2, 3, 4, 5)),
    case("AvgPool1d", 3, x=normal(2, 3, 9)),
    case("AvgPool1d", 3, 2, 1, True, False, x=normal(2, 3, 10)),
    case("AvgPool2d", 2, x=normal(2, 3, 6, 8)),
    case("AvgPool2d", (3, 2), (2, 1), (1, 0), True, False, x=normal(2, 3, 8, 7)),
    case("AvgPool2d", 3, padding=1, divisor_override=4, x=normal(2, 3, 6, 7)),
    case("AvgPool3d", 2, x=normal(1, 2, 4, 5, 4)),
    case("AvgPool3d", (1, 2, 3), 2, (0, 1, 1), True, x=normal(1, 2, 3, 4, 5)),
    case("LPPool1d", 2, 3, x=uniform(2, 3, 9)),
    case("LPPool1d", 3, 2, 1, True, x=uniform(2, 3, 9)),
    case("LPPool2d", 2, (3, 2), x=uniform(2, 3, 6, 8)),
    case("LPPool2d", 1.5, 3, stride=2, ceil_mode=True, x=uniform(2, 3, 6, 8)),
    case("LPPool3d", 2, 2, x=uniform(1, 2, 4, 4, 5)),
    case("AdaptiveAvgPool1d", 4, x=normal(2, 3, 9)),
    case("AdaptiveAvgPool2d", 1, x=normal(2, 3, 5, 6)),
    case("AdaptiveAvgPool2d", (3, None), x=normal(2, 3, 7, 5)),
    case("AdaptiveAvgPool2d", (2, 3), x=normal(3, 4, 6), note="single"),
    case("AdaptiveAvgPool3d", (2, 3, 1), x=normal(1, 2, 5, 4, 3)),
    case("AdaptiveMaxPool1d", 4, x=normal(2, 3, 9)),
    case("AdaptiveMaxPool1d", 3, True, x=normal(2, 3, 9)),
    case("AdaptiveMaxPool2d", (3, None), x=normal(2, 3, 7, 5)),
    case("AdaptiveMaxPool2d", (2, 3), return_indices=True, x=normal(2, 3, 7, 5)),
    case("AdaptiveMaxPool3d", (2, 3, 1), x=normal(1, 2, 5, 4, 3)),
    case("MaxUnpool1d", 2, x=normal(2, 3, 8), forward=_unpooled(_pool("MaxPool1d", 2))),
    case("MaxUnpool2d", 2, x=normal(2, 3, 6, 8), forward=_unpooled(_pool("MaxPool2d", 2))),
    case(
        "MaxUnpool2d", 2, 2, x=normal(2, 3, 7, 9),
        forward=_unpooled(_pool("MaxPool2d", 2), (2, 3, 7, 9)), note="sized",
    ),
    case(
        "MaxUnpool2d", 3, 3, 1, x=normal(2, 3, 7, 7), forward=_unpooled(_pool("MaxPool2d", 3, 3, 1))
    ),
    case("MaxUnpool3d", 2, x=normal(1, 2, 4, 4, 6), forward=_unpooled(_pool("MaxPool3d", 2))),
    case("FractionalMaxPool2d", 2, (3, 4), None, True, SAMPLES[..., :2], x=normal(2, 3, 7, 9)),
    case("FractionalMaxPool2d", 3, 1, _random_samples=SAMPLES[..., :2], x=normal(2, 3, 5, 6)),
    case(
        "FractionalMaxPool2d", (2, 1), output_ratio=(0.5, 0.6), _random_samples=SAMPLES[:1, :, 1:],
        x=normal(3, 7, 9),
    ),
    case("FractionalMaxPool2d", 2, output_ratio=0.5, x=normal(2, 3, 7, 9), random=True),
    case(
        "FractionalMaxPool3d", (2, 1, 3), (3, 4, 2), return_indices=True, _random_samples=SAMPLES,
        x=normal(2, 3, 5, 6, 7),
    ),
    # Padding
    case("ConstantPad1d", 2, 0.5, x=normal(2, 3, 4)),
    case("ConstantPad2d", (1, 2, 0, 1), -1.5, x=normal(2, 3, 4)),
    case("ConstantPad2d", (1, -1, -2, 3), 0.0, x=normal(2, 3, 4, 5)),
    case("ConstantPad3d", (1, 0, 2, 1, 0, 1), 3.5, x=normal(2, 2, 3, 2)),
    case("ZeroPad1d", (1, 2), x=normal(2, 3, 4)),
    case("ZeroPad2d", 1, x=normal(2, 2, 3, 4)),
    case("ZeroPad3d", (1, 0, 2, 1, 0, 1), x=normal(2, 2, 3, 2)),
    *[
        case(f"{kind}Pad{nd}d", pad, x=normal(*((2, 2, 4, 3, 5)[: nd + 2])))
        for kind in ("Reflection", "Replication", "Circular")
        for nd, pad in ((1, 2), (1, (2, 1)), (2, 1), (2, (1, 2, 2, 0)), (3, 1),
                        (3, (1, 2, 0, 1, 1, 0)))
    ],
    # Resizing
    case("Upsample", 5, x=normal(2, 3, 3)),
    case("Upsample", scale_factor=2, x=normal(2, 3, 3, 4)),
    case("Upsample", (5, 7), mode="nearest-exact", x=normal(2, 3, 3, 4)),
    case("Upsample", scale_factor=1.7, mode="linear", x=normal(2, 3, 6)),
    case(
        "Upsample", scale_factor=(2, 1.5), mode="bilinear", align_corners=True, x=normal(2, 3, 3, 4)
    ),
    case(
        "Upsample", scale_factor=1.6, mode="bilinear", recompute_scale_factor=True,
        x=normal(2, 3, 3, 4),
    ),
    case("Upsample", (6, 5), mode="bicubic", x=normal(2, 3, 4, 4)),
    case("Upsample", None, 2, "trilinear", False, x=normal(1, 2, 3, 2, 3)),
    case("UpsamplingNearest2d", 5, x=normal(2, 3, 3, 4)),
    case("UpsamplingNearest2d", scale_factor=2, x=normal(2, 3, 3, 4)),
    case("UpsamplingBilinear2d", (5, 6), x=normal(2, 3, 3, 4)),
    case("UpsamplingBilinear2d", scale_factor=2, x=normal(2, 3, 3, 4)),
]  # fmt: skip
