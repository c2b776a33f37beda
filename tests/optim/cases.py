"""What the tests of this folder run on: each optimizer with its options, and one problem.

The problem has no model: its gradients are a NumPy function of the parameters and the step, so that
a difference in a result is a difference in an optimizer.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

STEPS = 10
SHAPES = {"matrix": (3, 4), "vector": (5,)}


def grid(**options: Any) -> list[dict[str, Any]]:
    """All combinations of lists of values."""
    return [dict(zip(options, v, strict=True)) for v in itertools.product(*options.values())]


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "SGD": [
        *grid(lr=[0.1], momentum=[0, 0.9], weight_decay=[0, 0.1], maximize=[False, True]),
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.5},
        *grid(lr=[0.1], momentum=[0.9], nesterov=[True], weight_decay=[0, 0.1]),
    ],
    "Adam": [
        *grid(lr=[0.1], amsgrad=[False, True], weight_decay=[0, 0.1], maximize=[False, True]),
        {"lr": 0.01, "betas": (0.5, 0.9), "eps": 1e-3},
        {"lr": 0.1, "decoupled_weight_decay": True, "weight_decay": 0.1},
    ],
    "AdamW": grid(
        lr=[0.1], amsgrad=[False, True], weight_decay=[0.01, 0.3], maximize=[False, True]
    ),
    "NAdam": grid(
        lr=[0.1],
        weight_decay=[0, 0.1],
        momentum_decay=[4e-3, 0.1],
        decoupled_weight_decay=[False, True],
        maximize=[False, True],
    ),
    "RAdam": [
        *grid(
            lr=[0.1],
            weight_decay=[0, 0.1],
            decoupled_weight_decay=[False, True],
            maximize=[False, True],
        ),
        {"lr": 0.1, "betas": (0.9, 0.9)},
    ],
    "Adamax": grid(lr=[0.1], weight_decay=[0, 0.1], maximize=[False, True], eps=[1e-8, 0.1]),
    "Adagrad": [
        *grid(lr=[0.1], lr_decay=[0, 0.1], weight_decay=[0, 0.1], maximize=[False, True]),
        {"lr": 0.1, "initial_accumulator_value": 0.5},
    ],
    "Adadelta": grid(lr=[1.0], rho=[0.9, 0.5], weight_decay=[0, 0.1], maximize=[False, True]),
    "RMSprop": grid(
        lr=[0.1],
        momentum=[0, 0.9],
        centered=[False, True],
        weight_decay=[0, 0.1],
        maximize=[False, True],
    ),
    "Rprop": [
        *grid(lr=[0.1], maximize=[False, True]),
        {"lr": 0.1, "etas": (0.3, 1.5), "step_sizes": (0.05, 0.2)},
    ],
    "ASGD": grid(
        lr=[0.1], lambd=[1e-4, 0.1], t0=[1e6, 3.0], weight_decay=[0, 0.1], maximize=[False, True]
    ),
    "Adafactor": [
        *grid(lr=[0.1], weight_decay=[0, 0.1], maximize=[False, True]),
        {"lr": 0.1, "d": 2.0, "beta2_decay": -0.5, "eps": (1e-4, 1e-2)},
    ],
    "Adam8bit": grid(lr=[0.1], weight_decay=[0, 0.1], maximize=[False, True]),
    "AdamW8bit": grid(lr=[0.1], weight_decay=[0.01, 0.3]),
    "Lion": grid(lr=[0.01], weight_decay=[0, 0.1], maximize=[False, True]),
    "Muon": [
        *grid(lr=[0.1], nesterov=[True, False], adjust_lr_fn=[None, "match_rms_adamw"]),
        {"lr": 0.1, "weight_decay": 0.0, "ns_steps": 3},
    ],
}
CASES = [(name, options) for name, found in OPTIONS.items() for options in found]
ROUNDED: list[tuple[str, dict[str, Any]]] = [  # state in eight bits, however small the parameter
    (name, {"lr": 0.1, "weight_decay": 0.1, "min_8bit_size": 0})
    for name in ("Adam8bit", "AdamW8bit")
]
MATRICES_ONLY = {"Muon"}
EXACT = {"Adam8bit": "Adam", "AdamW8bit": "AdamW"}  # whose steps they make for small parameters
NOT_IN_TORCH = {"Lion", *EXACT}


def identity(case: Any) -> str:
    """A test's name for a case."""
    name, options = case
    return "-".join([name, *(f"{k}={v}" for k, v in options.items() if k != "lr")])


def start(name: str, dtype: Any = np.float64) -> dict[str, Any]:
    """The parameters before the first step."""
    rng = np.random.default_rng(3)
    found = {k: rng.standard_normal(s).astype(dtype) for k, s in SHAPES.items()}
    if name in MATRICES_ONLY:
        del found["vector"]
    return found


def gradient(key: str, values: Any, step: int) -> Any:
    """The gradient at ``values``: a bowl with ripples, and noise that a step repeats."""
    noise = np.random.default_rng([step, len(key)]).standard_normal(values.shape)
    return (values + np.cos(3 * values) + 0.1 * noise).astype(values.dtype)
