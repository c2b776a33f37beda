"""Cases of convolutions, columns and shuffles."""

from __future__ import annotations

from tests.modules.table import case, normal


def _sized(*size):
    def forward(T, layer, x):
        return layer(x, output_size=size)

    return forward


CASES = [
    case("Conv1d", 4, 6, 3, x=normal(2, 4, 9)),
    case("Conv1d", 4, 6, 3, 2, 1, 2, 2, False, x=normal(2, 4, 12)),
    case("Conv1d", 4, 6, 4, padding="same", x=normal(2, 4, 9)),
    case("Conv1d", 4, 6, 3, padding="valid", x=normal(4, 9), note="single"),
    case("Conv2d", 4, 6, 3, x=normal(2, 4, 7, 8)),
    case("Conv2d", 4, 6, 1, bias=False, x=normal(2, 4, 5, 4)),
    case("Conv2d", 4, 6, (3, 2), stride=(2, 1), padding=(1, 0), x=normal(2, 4, 7, 8)),
    case("Conv2d", 4, 8, 3, padding=1, groups=4, x=normal(2, 4, 5, 6)),
    case("Conv2d", 4, 4, 3, padding=1, groups=4, x=normal(2, 4, 5, 6)),
    case("Conv2d", 4, 6, 3, padding=2, dilation=2, groups=2, x=normal(2, 4, 7, 8)),
    case("Conv2d", 4, 6, (3, 4), padding="same", dilation=(1, 2), x=normal(2, 4, 7, 9)),
    case("Conv2d", 3, 5, 3, padding=1, x=normal(3, 6, 5), note="single"),
    *[
        case("Conv2d", 2, 3, 3, padding=(1, 2), padding_mode=mode, x=normal(2, 2, 5, 6))
        for mode in ("reflect", "replicate", "circular")
    ],
    case("Conv2d", 2, 3, (2, 3), padding="same", padding_mode="reflect", x=normal(2, 2, 5, 6)),
    case("Conv1d", 2, 3, 3, padding=2, padding_mode="circular", x=normal(2, 2, 6)),
    case("Conv3d", 2, 4, 3, padding=1, x=normal(1, 2, 4, 5, 4)),
    case("Conv3d", 2, 4, (1, 2, 3), (1, 2, 1), (0, 1, 1), groups=2, x=normal(2, 2, 3, 4, 5)),
    case("Conv3d", 1, 2, 2, padding=1, padding_mode="replicate", x=normal(1, 1, 3, 3, 4)),
    case("ConvTranspose1d", 4, 6, 3, x=normal(2, 4, 5)),
    case("ConvTranspose1d", 4, 6, 3, 2, 1, 1, 2, True, 2, x=normal(2, 4, 5)),
    case("ConvTranspose2d", 4, 6, 3, stride=2, padding=1, output_padding=1, x=normal(2, 4, 4, 5)),
    case("ConvTranspose2d", 4, 6, (2, 3), groups=2, bias=False, x=normal(2, 4, 4, 5)),
    case("ConvTranspose2d", 4, 6, 2, stride=2, x=normal(4, 3, 4), note="single"),
    case("ConvTranspose2d", 2, 3, 3, stride=2, x=normal(2, 2, 4, 3), forward=_sized(10, 7)),
    case(
        "ConvTranspose2d",
        2,
        3,
        3,
        stride=3,
        padding=1,
        x=normal(2, 2, 4, 3),
        forward=_sized(2, 3, 12, 8),
    ),
    case("ConvTranspose3d", 2, 4, 2, stride=2, x=normal(1, 2, 3, 2, 3)),
    case("ConvTranspose3d", 2, 4, (1, 2, 3), padding=(0, 1, 1), groups=2, x=normal(2, 2, 3, 4, 3)),
    case("Unfold", 2, x=normal(2, 3, 4, 5)),
    case("Unfold", (2, 3), 2, 1, (2, 1), x=normal(2, 3, 6, 7)),
    case("Unfold", 2, x=normal(3, 4, 5), note="single"),
    case("Fold", (4, 5), 2, x=normal(2, 12, 12)),
    case("Fold", (6, 7), (2, 3), dilation=2, padding=1, stride=(2, 1), x=normal(2, 18, 15)),
    case("PixelShuffle", 2, x=normal(2, 8, 3, 2)),
    case("PixelShuffle", 3, x=normal(9, 2, 3), note="single"),
    case("PixelUnshuffle", 2, x=normal(2, 3, 4, 6)),
    case("ChannelShuffle", 3, x=normal(2, 6, 2, 3)),
    case("Flatten", x=normal(2, 3, 4)),
    case("Flatten", 0, 1, x=normal(2, 3, 4)),
    case("Unflatten", 1, (2, 3), x=normal(4, 6, 2)),
    case("Unflatten", -1, [2, -1], x=normal(4, 6)),
]

INITS = [
    ("Conv1d", (20, 30, 5), {}),
    ("Conv2d", (16, 24, 3), {"groups": 2}),
    ("Conv3d", (8, 12, 3), {}),
    ("ConvTranspose1d", (20, 30, 5), {}),
    ("ConvTranspose2d", (16, 24, 3), {"groups": 2}),
    ("ConvTranspose3d", (8, 12, 3), {}),
]
