"""Convolutions of many sizes beside PyTorch's: the result, and each gradient alone.

Each library has a process of its own and they take turns, as in ``operators.py``. Printed are the
least times of each and their ratio (below 1: lowtide is faster), the worst first.

    python -m benchmarks.convolutions [--rounds N] [--threads N] [--only PART] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.operators import compare, options

# Images, channels, filters, size, window, stride, groups
SIZES = [
    (64, 32, 32, 32, 3, 1, 1),
    (64, 64, 64, 16, 3, 1, 1),
    (64, 128, 128, 8, 3, 1, 1),
    (8, 64, 64, 56, 3, 1, 1),
    (2, 64, 64, 128, 3, 1, 1),
    (8, 256, 256, 14, 3, 1, 1),
    (8, 512, 512, 7, 3, 1, 1),
    (1, 64, 64, 32, 3, 1, 1),
    (64, 32, 64, 32, 3, 2, 1),
    (8, 256, 512, 14, 3, 2, 1),
    (8, 64, 256, 56, 1, 1, 1),
    (8, 32, 64, 28, 5, 1, 1),
    (4, 3, 64, 224, 7, 2, 1),
    (32, 256, 256, 8, 3, 1, 256),
    (32, 512, 512, 4, 3, 1, 512),
    (32, 96, 96, 14, 3, 1, 96),
    (8, 768, 768, 7, 7, 1, 768),
    (32, 256, 256, 8, 3, 2, 256),
    (32, 96, 96, 32, 3, 2, 96),
]
SIDES = ("result", "input", "weight")


def name_of(size: tuple[int, ...], side: str) -> str:
    """The name of a case."""
    images, channels, filters, n, window, stride, groups = size
    kind = "depthwise" if groups > 1 else f"to {filters}"
    return f"{images}, {channels} {kind}, {n} x {n}, {window} x {window} by {stride}: {side}"


CASES = {name_of(size, side): (size, side) for size in SIZES for side in SIDES}


def build(library: Any, name: str) -> Callable[[], None]:
    """Return what is timed: a forward without a graph, or the gradient of one operand."""
    (images, channels, filters, n, window, stride, groups), side = CASES[name]
    draws = np.random.default_rng(0)
    shapes = (images, channels, n, n), (filters, channels // groups, window, window)
    x, weight = (library.tensor(draws.standard_normal(s).astype(np.float32)) for s in shapes)
    options = (None, stride, window // 2, 1, groups)
    function = library.nn.functional.conv2d
    if side == "result":

        def forward() -> None:
            function(x, weight, *options)

        return forward
    source = {"input": x, "weight": weight}[side].requires_grad_()
    out = function(x, weight, *options)
    grad = library.tensor(draws.standard_normal(tuple(out.shape)).astype(np.float32))

    def backward() -> None:
        library.autograd.grad(out, [source], grad, retain_graph=True)

    return backward


if __name__ == "__main__":
    compare(CASES, build, options(__doc__))
