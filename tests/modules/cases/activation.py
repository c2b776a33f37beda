"""Cases of activations."""

from __future__ import annotations

from tests.modules.table import case, normal


def _plain(layer, *args, **kwargs):
    return case(layer, *args, x=normal(3, 7), **kwargs)


ELEMENTWISE = [
    ("ReLU",), ("ReLU6",), ("LeakyReLU",), ("LeakyReLU", 0.2), ("PReLU",), ("Hardtanh",),
    ("Hardtanh", -0.4, 0.7), ("ELU",), ("ELU", 1.7), ("CELU",), ("CELU", 0.6), ("SELU",), ("GELU",),
    ("GELU", "tanh"), ("SiLU",), ("Mish",), ("Hardswish",), ("Sigmoid",),
    ("LogSigmoid",), ("Tanh",), ("Tanhshrink",), ("Softsign",), ("Softplus",),
    ("Softplus", 2.0, 1.0), ("Hardshrink",), ("Hardshrink", 0.3), ("Softshrink",),
    ("Softshrink", 0.2), ("Threshold", 0.1, -2.0), ("Softmax", -1), ("Softmax", 0), ("Softmin", 1),
    ("LogSoftmax", 1), ("LogSoftmax", 0),
]  # fmt: skip

IN_PLACE = [
    ("ReLU",),
    ("ReLU6",),
    ("LeakyReLU", 0.2),
    ("Hardtanh",),
    ("ELU",),
    ("CELU", 0.6),
    ("SELU",),
    ("SiLU",),
    ("Mish",),
    ("Hardswish",),
    ("Threshold", 0.1, 20.0),
]

CASES = [
    *[_plain(*spec) for spec in ELEMENTWISE],
    *[_plain(*spec, inplace=True) for spec in IN_PLACE],
    _plain("Hardsigmoid", second=False),
    _plain("Hardsigmoid", second=False, inplace=True),
    case("PReLU", 3, 0.1, x=normal(2, 3, 4)),
    case("RReLU", x=normal(3, 7), modes=("train", "eval"), random=True),
    case("RReLU", 0.1, 0.3, inplace=True, x=normal(3, 7), modes=("train", "eval"), random=True),
    case("GLU", x=normal(3, 8)),
    case("GLU", 1, x=normal(2, 4, 3)),
    case("Softmax2d", x=normal(2, 3, 2, 4)),
    case("Softmax2d", x=normal(3, 2, 4), note="single"),
]

INITS = [("PReLU", (5,), {}), ("PReLU", (), {"init": 0.5})]
