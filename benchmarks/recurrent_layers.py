"""Recurrent layers over sequences beside PyTorch's, forward and backward together.

Each library has a process of its own and they take turns, as in ``operators.py``. Printed are the
least times of each and their ratio (below 1: lowtide is faster), the worst first.

    python -m benchmarks.recurrent_layers [--rounds N] [--threads N] [--only PART] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.operators import compare, options

# Steps, batch, features, hidden
SIZES = [(64, 64, 128, 256), (100, 16, 64, 128), (32, 128, 256, 512), (20, 32, 300, 800)]
LAYERS = ("RNN", "GRU", "LSTM")

CASES = {
    f"{layer}: {steps} steps of {batch} x {features}, {hidden} units": (layer, *size)
    for layer in LAYERS
    for size in SIZES
    for steps, batch, features, hidden in [size]
}


def build(library: Any, name: str) -> Callable[[], None]:
    """Return what is timed: a layer's forward and backward on one batch."""
    layer, steps, batch, features, hidden = CASES[name]
    library.manual_seed(0)
    model = getattr(library.nn, layer)(features, hidden)
    x = library.randn(steps, batch, features)

    def run() -> None:
        for p in model.parameters():
            p.grad = None
        model(x)[0].sum().backward()

    return run


if __name__ == "__main__":
    compare(CASES, build, options(__doc__))
