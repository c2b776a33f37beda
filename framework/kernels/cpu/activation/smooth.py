"""Compiled activations of flat float32 arrays and their gradients, masks of relu.

One pass each, where the plain kernels take up to twelve and call the C library for each element.
The arriving gradient of all may be one number, in an array of one element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, compiled, inlined
from ..support.vector_math import exp32, expm1_32, log1p32, tail32

_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_DENSITY = np.float32(0.3989422804014327)  # 1 / sqrt(2 pi)
_K0, _K1 = np.float32(0.7978845608028654), np.float32(0.044715)
_THREE, _FOUR, _SIX, _FAR = np.float32(3), np.float32(4), np.float32(6), np.float32(20)


@compiled(fastmath=FUSED)
def gelu(out: Any, x: Any) -> None:
    """``x * Phi(x)``."""
    for i in range(x.size):
        v = x[i]
        rest = tail32(abs(v), exp32(-_HALF * v * v))
        out[i] = v * (rest if v < _ZERO else _ONE - rest)


@inlined
def _gelu_slope(v: Any) -> Any:
    e = exp32(-_HALF * v * v)
    rest = tail32(abs(v), e)
    below = rest if v < _ZERO else _ONE - rest
    return below + v * (e * _DENSITY)


@compiled(fastmath=FUSED)
def gelu_grad(out: Any, grad: Any, x: Any) -> None:
    """``grad * (Phi(x) + x * phi(x))``."""
    if grad.size == 1:
        g = grad[0]
        for i in range(x.size):
            out[i] = _gelu_slope(x[i]) * g
    else:
        for i in range(x.size):
            out[i] = _gelu_slope(x[i]) * grad[i]


@inlined
def _two_sigmoid(v: Any) -> Any:
    # 1 + tanh(u) = 2 / (1 + exp(-2 u))
    u = (v * v * (_K0 * _K1) + _K0) * v
    return _TWO / (_ONE + exp32(-_TWO * u))


@compiled(fastmath=FUSED)
def gelu_tanh(out: Any, x: Any) -> None:
    """``x * (1 + tanh(k0 (x + k1 x^3))) / 2``."""
    for i in range(x.size):
        out[i] = _two_sigmoid(x[i]) * x[i] * _HALF


@inlined
def _gelu_tanh_slope(v: Any) -> Any:
    s = _two_sigmoid(v)
    slope = (v * v * (_THREE * _K0 * _K1) + _K0) * v
    return s * (_HALF + _HALF * (_TWO - s) * slope)


@compiled(fastmath=FUSED)
def gelu_tanh_grad(out: Any, grad: Any, x: Any) -> None:
    """``grad`` times the derivative of :func:`gelu_tanh`."""
    if grad.size == 1:
        g = grad[0]
        for i in range(x.size):
            out[i] = _gelu_tanh_slope(x[i]) * g
    else:
        for i in range(x.size):
            out[i] = _gelu_tanh_slope(x[i]) * grad[i]


@compiled(fastmath=FUSED)
def silu(out: Any, x: Any) -> None:
    """``x / (1 + exp(-x))``."""
    for i in range(x.size):
        out[i] = x[i] / (_ONE + exp32(-x[i]))


@inlined
def _silu_slope(v: Any) -> Any:
    s = _ONE / (_ONE + exp32(-v))
    return ((_ONE - s) * v + _ONE) * s


@compiled(fastmath=FUSED)
def silu_grad(out: Any, grad: Any, x: Any) -> None:
    """``grad * s * (1 + x * (1 - s))`` with ``s = 1 / (1 + exp(-x))``."""
    if grad.size == 1:
        g = grad[0]
        for i in range(x.size):
            out[i] = _silu_slope(x[i]) * g
    else:
        for i in range(x.size):
            out[i] = _silu_slope(x[i]) * grad[i]


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


@compiled
def window(
    out: Any, grad: Any, x: Any, low: Any, high: Any, outside: Any, inside: Any, nan_inside: bool
) -> None:
    """``inside * grad`` where ``low < x < high``, else ``outside * grad``, or 0."""
    nan_outside = not nan_inside
    kind = x.dtype.type
    first, last, other, factor = kind(low), kind(high), kind(outside), kind(inside)
    bounded_low, bounded_high = np.isfinite(first), np.isfinite(last)
    if grad.size == 1:
        within = grad[0] * factor
        rest = kind(0) if other == 0 else grad[0] * other
        for i in range(x.size):
            beyond = (bounded_low & (x[i] <= first)) | (bounded_high & (x[i] >= last))
            beyond |= nan_outside & (x[i] != x[i])
            out[i] = rest if beyond else within
    else:
        for i in range(x.size):
            beyond = (bounded_low & (x[i] <= first)) | (bounded_high & (x[i] >= last))
            beyond |= nan_outside & (x[i] != x[i])
            rest = kind(0) if other == 0 else grad[i] * other
            out[i] = rest if beyond else grad[i] * factor


@compiled(fastmath=FUSED)
def leaky_relu(out: Any, x: Any, slope: float) -> None:
    """``max(x, 0) + slope * min(x, 0)``."""
    factor = np.float32(slope)
    for i in range(x.size):
        out[i] = x[i] if x[i] > _ZERO else x[i] * factor


@compiled(fastmath=FUSED)
def elu(out: Any, x: Any, below: float, above: float, inside: float) -> None:
    """``above * x`` over zero, else ``below * expm1(inside * x)``."""
    low, high, factor = np.float32(below), np.float32(above), np.float32(inside)
    for i in range(x.size):
        v = x[i]
        c = _ZERO if v > _ZERO else v
        out[i] = v * high if v > _ZERO else low * expm1_32(c * factor)


@compiled(fastmath=FUSED)
def elu_grad(out: Any, grad: Any, result: Any, below: float, above: float, inside: float) -> None:
    """``grad`` times the derivative of :func:`elu`, from its result."""
    low, high, factor = np.float32(below), np.float32(above), np.float32(inside)
    if grad.size == 1:
        g = grad[0]
        for i in range(result.size):
            out[i] = high * g if result[i] > _ZERO else (result[i] + low) * factor * g
    else:
        for i in range(result.size):
            below = (result[i] + low) * factor * grad[i]
            out[i] = high * grad[i] if result[i] > _ZERO else below


@compiled
def hardsigmoid(out: Any, x: Any) -> None:
    """``min(max(x + 3, 0), 6) / 6``."""
    for i in range(x.size):
        v = x[i] + _THREE
        v = _ZERO if v < _ZERO else v
        out[i] = (_SIX if v > _SIX else v) / _SIX


@compiled(fastmath=FUSED)
def hardswish(out: Any, x: Any) -> None:
    """``x * min(max(x + 3, 0), 6) / 6``."""
    for i in range(x.size):
        v = x[i] + _THREE
        v = _ZERO if v < _ZERO else v
        v = _SIX if v > _SIX else v
        out[i] = v * x[i] / _SIX


@inlined
def _hardswish_grad(g: Any, v: Any) -> Any:
    inner = g if v >= _THREE else (v / _THREE + _HALF) * g
    return _ZERO if v <= -_THREE else inner


@compiled(fastmath=FUSED)
def hardswish_grad(out: Any, grad: Any, x: Any) -> None:
    """``grad`` times the derivative of :func:`hardswish`."""
    if grad.size == 1:
        g = grad[0]
        for i in range(x.size):
            out[i] = _hardswish_grad(g, x[i])
    else:
        for i in range(x.size):
            out[i] = _hardswish_grad(grad[i], x[i])


@inlined
def _softsign_grad(g: Any, v: Any) -> Any:
    d = _ONE + abs(v)
    return g / (d * d)


@compiled(fastmath=FUSED)
def softsign_grad(out: Any, grad: Any, x: Any) -> None:
    """``grad / (1 + |x|)^2``."""
    if grad.size == 1:
        g = grad[0]
        for i in range(x.size):
            out[i] = _softsign_grad(g, x[i])
    else:
        for i in range(x.size):
            out[i] = _softsign_grad(grad[i], x[i])


@compiled(fastmath=FUSED)
def mish(out: Any, x: Any) -> None:
    """``x * tanh(log(1 + exp(x)))``; with ``n = e (e + 2)`` that tangent is ``n / (n + 2)``."""
    for i in range(x.size):
        e = exp32(_FAR if x[i] > _FAR else x[i])
        n = e * (e + _TWO)
        out[i] = n / (n + _TWO) * x[i]


@inlined
def _mish_slope(v: Any) -> Any:
    near = _FAR if v > _FAR else v  # in both: infinity times what is left far out is no number
    e = exp32(near)
    n = e * (e + _TWO)
    d = _ONE / (n + _TWO)
    return n * d + near * (_FOUR * e * (e + _ONE) * d * d)


@compiled(fastmath=FUSED)
def mish_grad(out: Any, grad: Any, x: Any) -> None:
    """``grad * (n / (n + 2) + 4 x e (e + 1) / (n + 2)^2)``."""
    if grad.size == 1:
        g = grad[0]
        for i in range(x.size):
            out[i] = _mish_slope(x[i]) * g
    else:
        for i in range(x.size):
            out[i] = _mish_slope(x[i]) * grad[i]


@compiled(fastmath=FUSED)
def softplus(out: Any, x: Any, beta: float, threshold: float) -> None:
    """``log(1 + exp(beta x)) / beta``, and x where ``beta x`` is beyond the threshold."""
    factor, bound = np.float32(beta), np.float32(threshold)
    for i in range(x.size):
        v = x[i] * factor
        high = _ZERO if v < _ZERO else v
        s = (log1p32(exp32(-abs(v))) + high) / factor
        out[i] = x[i] if v > bound else s


@inlined
def _softplus_grad(g: Any, v: Any, bound: Any) -> Any:
    s = g / (_ONE + exp32(-v))
    return g if v > bound else s


@compiled(fastmath=FUSED)
def softplus_grad(out: Any, grad: Any, x: Any, beta: float, threshold: float) -> None:
    """``grad / (1 + exp(-beta x))``, and ``grad`` beyond the threshold."""
    factor, bound = np.float32(beta), np.float32(threshold)
    if grad.size == 1:
        g = grad[0]
        for i in range(x.size):
            out[i] = _softplus_grad(g, x[i] * factor, bound)
    else:
        for i in range(x.size):
            out[i] = _softplus_grad(grad[i], x[i] * factor, bound)


@compiled(fastmath=FUSED)
def logsigmoid(out: Any, x: Any) -> None:
    """``min(x, 0) - log(1 + exp(-|x|))``."""
    for i in range(x.size):
        low = _ZERO if x[i] > _ZERO else x[i]
        out[i] = low - log1p32(exp32(-abs(x[i])))


@compiled(fastmath=FUSED)
def logsigmoid_grad(out: Any, grad: Any, result: Any) -> None:
    """``-expm1(result) * grad``: one minus the sigmoid."""
    if grad.size == 1:
        g = grad[0]
        for i in range(result.size):
            out[i] = -expm1_32(result[i]) * g
    else:
        for i in range(result.size):
            out[i] = -expm1_32(result[i]) * grad[i]


@compiled
def softshrink(out: Any, x: Any, width: float) -> None:
    """``x`` moved toward zero by ``width``, to zero if it is nearer."""
    most = np.float32(width)
    for i in range(x.size):
        v = -most if x[i] < -most else x[i]
        out[i] = x[i] - (most if v > most else v)


@compiled
def hardshrink(out: Any, x: Any, width: float) -> None:
    """Zero within ``width`` of zero, else ``x``."""
    most = np.float32(width)
    for i in range(x.size):
        out[i] = _ZERO if abs(x[i]) <= most else x[i]


@compiled
def shrink_grad(out: Any, grad: Any, result: Any) -> None:
    """Zero where the result is zero or NaN, else ``grad``."""
    if grad.size == 1:
        g = grad[0]
        for i in range(result.size):
            out[i] = g if abs(result[i]) > _ZERO else _ZERO
    else:
        for i in range(result.size):
            out[i] = grad[i] if abs(result[i]) > _ZERO else _ZERO
