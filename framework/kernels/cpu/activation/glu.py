"""Compiled gated linear units of float32 rows, and their gradient: one pass each."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, compiled
from ..support.vector_math import exp32

_ONE = np.float32(1)


@compiled(fastmath=FUSED)
def glu(out: Any, x: Any) -> None:
    """``x[:, 0] / (1 + exp(-x[:, 1]))`` of (rows, 2, elements)."""
    for r in range(x.shape[0]):
        value, gate, row = x[r, 0], x[r, 1], out[r]
        for j in range(row.size):
            row[j] = value[j] / (_ONE + exp32(-gate[j]))


@compiled(fastmath=FUSED)
def glu_grad(out: Any, grad: Any, x: Any) -> None:
    """The gradient of :func:`glu` in both halves."""
    for r in range(x.shape[0]):
        value, gate, above = x[r, 0], x[r, 1], grad[r]
        first, second = out[r, 0], out[r, 1]
        for j in range(above.size):
            first[j] = _ONE / (_ONE + exp32(-gate[j]))
        for j in range(above.size):
            second[j] = (_ONE - first[j]) * first[j] * value[j] * above[j]
        for j in range(above.size):
            first[j] *= above[j]
