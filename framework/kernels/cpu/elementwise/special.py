"""Compiled functions of float32 numbers that the C library takes one at a time, flat; ``lerp``.

The arriving gradient of all may be one number, in an array of one element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, compiled, inlined
from ..support.vector_math import erf32, exp32, log1p32, log32

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_HEIGHT = np.float32(1.1283791670955126)  # 2 / sqrt(pi)


@compiled(fastmath=FUSED)
def sigmoid(out: Any, x: Any) -> None:
    """``1 / (1 + exp(-x))``."""
    for i in range(x.size):
        out[i] = _ONE / (_ONE + exp32(-x[i]))


@compiled
def sigmoid_grad(out: Any, grad: Any, result: Any) -> None:
    """``grad * (1 - result) * result``."""
    if grad.size == 1:
        g = grad[0]
        for i in range(result.size):
            out[i] = (_ONE - result[i]) * result[i] * g
    else:
        for i in range(result.size):
            out[i] = (_ONE - result[i]) * result[i] * grad[i]


@compiled(fastmath=FUSED)
def erf(out: Any, x: Any) -> None:
    """The error function."""
    for i in range(x.size):
        out[i] = erf32(x[i])


@inlined
def _bell(v: Any) -> Any:
    return exp32(-(v * v)) * _HEIGHT


@compiled(fastmath=FUSED)
def erf_grad(out: Any, grad: Any, x: Any) -> None:
    """``grad * 2 / sqrt(pi) * exp(-x^2)``."""
    if grad.size == 1:
        g = grad[0]
        for i in range(x.size):
            out[i] = _bell(x[i]) * g
    else:
        for i in range(x.size):
            out[i] = _bell(x[i]) * grad[i]


@compiled(fastmath=FUSED)
def xlogy(out: Any, x: Any, y: Any) -> None:
    """``x * log(y)``, which is 0 where x is 0 and y is a number."""
    for i in range(x.size):
        v = x[i] * log32(y[i])
        out[i] = _ZERO if (x[i] == _ZERO) & (y[i] == y[i]) else v


@compiled(fastmath=FUSED)
def lerp(out: Any, x: Any, y: Any, weight: Any) -> None:
    """``x + weight * (y - x)``, counted from ``y`` where the weight is at least a half."""
    for i in range(x.size):
        w, d = weight[i], y[i] - x[i]
        late = abs(w) >= _HALF
        share = w - _ONE if late else w
        out[i] = (y[i] if late else x[i]) + share * d


@compiled(fastmath=FUSED)
def logaddexp(out: Any, x: Any, y: Any) -> None:
    """``log(exp(x) + exp(y))``."""
    for i in range(x.size):
        a, b = x[i], y[i]
        high = b if b > a else a
        low = a if b > a else b
        gap = _ZERO if low == high else low - high  # not inf - inf
        v = high + log1p32(exp32(gap))
        out[i] = a + b if (a != a) | (b != b) else v
