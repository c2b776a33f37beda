"""Decompositions and linear systems of many sizes beside PyTorch's, with gradients and without.

Each library has a process of its own and they take turns, as in ``operators.py``. Printed are the
least times of each and their ratio (below 1: lowtide is faster), the worst first.

    python -m benchmarks.decompositions [--rounds N] [--threads N] [--only PART] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.operators import compare, options

SHAPES = [(32, 32), (128, 128), (256, 256), (512, 512), (64, 32, 32), (16, 128, 128)]
NAMES = "inv solve cholesky qr eigh svd det slogdet lu_factor solve_triangular".split()
SLOW = {("svd", (512, 512))}  # half a second in each library


def name_of(name: str, shape: tuple[int, ...], gradients: bool) -> str:
    """The name of a case."""
    return f"{name} {' x '.join(map(str, shape))}{', gradients' if gradients else ''}"


CASES = {
    name_of(name, shape, gradients): (name, shape, gradients)
    for name in NAMES
    for shape in SHAPES
    for gradients in (False, True)
    if (name, shape) not in SLOW
}


def build(library: Any, case: str) -> Callable[[], None]:
    """Return what is timed: a call without a graph, or with one and its backward."""
    name, shape, gradients = CASES[case]
    draws = np.random.default_rng(0)
    n = shape[-1]
    matrix = draws.standard_normal(shape).astype(np.float32)
    # Definite, and of a size whose determinant is a float32
    matrix = (matrix @ np.swapaxes(matrix, -1, -2) / n + np.eye(n)).astype(np.float32) / 2
    a = library.tensor(matrix).requires_grad_(gradients)
    operands = [a]
    if name.startswith("solve"):
        operands.append(library.tensor(draws.standard_normal((*shape[:-1], 8)).astype(np.float32)))
    named = {"upper": True} if name == "solve_triangular" else {}
    function = getattr(library.linalg, name)

    def run() -> None:
        found = function(*operands, **named)
        if isinstance(found, tuple):
            found = found[1 if name == "slogdet" else 0]
        if gradients:
            a.grad = None
            found.sum().backward()

    return run


if __name__ == "__main__":
    compare(CASES, build, options(__doc__))
