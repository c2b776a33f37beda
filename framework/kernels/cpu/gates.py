"""Compiled activations of flat float32 arrays: gelu, silu and their gradients, masks of relu.

One pass each, where the plain kernels take up to twelve and call the C library for each element.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .compiler import FUSED, compiled
from .scalars import exp32, tail32

_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_DENSITY = np.float32(0.3989422804014327)  # 1 / sqrt(2 pi)
_K0, _K1 = np.float32(0.7978845608028654), np.float32(0.044715)
_THREE = np.float32(3)


@compiled(fastmath=FUSED)
def gelu(out: Any, x: Any) -> None:  # pragma: no cover - compiled
    """``x * Phi(x)``."""
    for i in range(x.size):
        v = x[i]
        rest = tail32(abs(v), exp32(-_HALF * v * v))
        out[i] = v * (rest if v < _ZERO else _ONE - rest)


@compiled(fastmath=FUSED)
def gelu_grad(out: Any, grad: Any, x: Any) -> None:  # pragma: no cover - compiled
    """``grad * (Phi(x) + x * phi(x))``."""
    for i in range(x.size):
        v = x[i]
        e = exp32(-_HALF * v * v)
        rest = tail32(abs(v), e)
        share = rest if v < _ZERO else _ONE - rest
        out[i] = grad[i] * (share + v * (e * _DENSITY))


@njit(inline="always")
def _two_sigmoid(v: Any) -> Any:  # pragma: no cover - compiled
    # 1 + tanh(u) = 2 / (1 + exp(-2 u))
    u = (v * v * (_K0 * _K1) + _K0) * v
    return _TWO / (_ONE + exp32(-_TWO * u))


@compiled(fastmath=FUSED)
def gelu_tanh(out: Any, x: Any) -> None:  # pragma: no cover - compiled
    """``x * (1 + tanh(k0 (x + k1 x^3))) / 2``."""
    for i in range(x.size):
        out[i] = _two_sigmoid(x[i]) * x[i] * _HALF


@compiled(fastmath=FUSED)
def gelu_tanh_grad(out: Any, grad: Any, x: Any) -> None:  # pragma: no cover - compiled
    """``grad`` times the derivative of :func:`gelu_tanh`."""
    for i in range(x.size):
        v = x[i]
        s = _two_sigmoid(v)
        slope = (v * v * (_THREE * _K0 * _K1) + _K0) * v
        out[i] = s * (_HALF + _HALF * (_TWO - s) * slope) * grad[i]


@compiled(fastmath=FUSED)
def silu(out: Any, x: Any) -> None:  # pragma: no cover - compiled
    """``x / (1 + exp(-x))``."""
    for i in range(x.size):
        out[i] = x[i] / (_ONE + exp32(-x[i]))


@compiled(fastmath=FUSED)
def silu_grad(out: Any, grad: Any, x: Any) -> None:  # pragma: no cover - compiled
    """``grad * s * (1 + x * (1 - s))`` with ``s = 1 / (1 + exp(-x))``."""
    for i in range(x.size):
        s = _ONE / (_ONE + exp32(-x[i]))
        out[i] = ((_ONE - s) * x[i] + _ONE) * s * grad[i]


@compiled
def window(
    out: Any, grad: Any, x: Any, low: Any, high: Any, outside: Any
) -> None:  # pragma: no cover - compiled
    """``grad`` where ``low < x < high`` or x is NaN, elsewhere ``outside * grad``, or plain 0."""
    kind = x.dtype.type
    first, last, share = kind(low), kind(high), kind(outside)
    bounded_low, bounded_high = np.isfinite(first), np.isfinite(last)
    for i in range(x.size):
        beyond = (bounded_low & (x[i] <= first)) | (bounded_high & (x[i] >= last))
        rest = kind(0) if share == 0 else grad[i] * share
        out[i] = rest if beyond else grad[i]
