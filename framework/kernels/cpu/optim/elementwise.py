"""Compiled optimizer steps: one pass over a parameter, its gradient and its state, in place.

Each loop is a recurrence that its optimizer's docstring states. In all of them ``sign`` is -1 to
maximize, ``decay`` the L2 penalty that enters the gradient, ``keep`` the factor of decoupled decay,
``a1`` is 1 - b1. An array that an option makes unnecessary is passed empty, and not touched.
The conditions are the same for all elements, and the compiler takes them out of the loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, compiled


@compiled
def _gradient(g: Any, x: Any, sign: Any, decay: Any) -> Any:
    return sign * g + decay * x if decay != 0 else sign * g  # 0 times infinity is not 0


@compiled(fastmath=FUSED)
def sgd(p: Any, g: Any, sign: Any, decay: Any, rate: Any) -> None:
    """``p -= rate d``; d is the gradient."""
    for i in range(p.size):
        p[i] -= rate * _gradient(g[i], p[i], sign, decay)


@compiled(fastmath=FUSED)
def momentum(
    p: Any, g: Any, buffer: Any, sign: Any, decay: Any, keep: Any, add: Any, look: Any, rate: Any
) -> None:
    """``buffer = keep buffer + add d; p -= rate buffer``, or ``rate (d + look buffer)``."""
    for i in range(p.size):
        d = _gradient(g[i], p[i], sign, decay)
        b = buffer[i] * keep + add * d
        buffer[i] = b
        p[i] -= rate * (d + look * b if look != 0 else b)


@compiled(fastmath=FUSED)
def adam(
    p: Any, g: Any, m: Any, v: Any, top: Any, sign: Any, decay: Any, keep: Any, b1: Any, a1: Any,
    b2: Any, a2: Any, root: Any, eps: Any, rate: Any,
) -> None:  # fmt: skip
    """Adam, AdamW: ``p = keep p - rate m / (root sqrt(v) + eps)``; with ``top``, AMSGrad."""
    highest = top.size == p.size
    for i in range(p.size):
        x = p[i]
        d = _gradient(g[i], x, sign, decay)
        x = x * keep
        first = m[i] * b1 + a1 * d
        second = v[i] * b2 + a2 * d * d
        m[i] = first
        v[i] = second
        if highest:
            second = np.maximum(top[i], second)
            top[i] = second
        p[i] = x - rate * (first / (np.sqrt(second) * root + eps))


@compiled(fastmath=FUSED)
def nadam(
    p: Any, g: Any, m: Any, v: Any, sign: Any, decay: Any, keep: Any, b1: Any, a1: Any, b2: Any,
    a2: Any, root: Any, eps: Any, rate: Any, mean_rate: Any,
) -> None:  # fmt: skip
    """``p = keep p - (rate d + mean_rate m) / (root sqrt(v) + eps)``."""
    for i in range(p.size):
        x = p[i]
        d = _gradient(g[i], x, sign, decay)
        first = m[i] * b1 + a1 * d
        second = v[i] * b2 + a2 * d * d
        m[i] = first
        v[i] = second
        p[i] = x * keep - (rate * d + mean_rate * first) / (np.sqrt(second) * root + eps)


@compiled(fastmath=FUSED)
def radam(
    p: Any, g: Any, m: Any, v: Any, sign: Any, decay: Any, keep: Any, b1: Any, a1: Any, b2: Any,
    a2: Any, adaptive: Any, eps: Any, rate: Any,
) -> None:  # fmt: skip
    """``p = keep p - rate m``, divided by ``sqrt(v) + eps`` where ``adaptive`` is not 0."""
    for i in range(p.size):
        x = p[i]
        d = _gradient(g[i], x, sign, decay)
        first = m[i] * b1 + a1 * d
        second = v[i] * b2 + a2 * d * d
        m[i] = first
        v[i] = second
        step = first / (np.sqrt(second) + eps) if adaptive != 0 else first
        p[i] = x * keep - rate * step


@compiled(fastmath=FUSED)
def adamax(
    p: Any, g: Any, m: Any, u: Any, sign: Any, decay: Any, b1: Any, a1: Any, b2: Any, eps: Any,
    rate: Any,
) -> None:  # fmt: skip
    """``u = max(b2 u, |d| + eps); p -= rate m / u``."""
    for i in range(p.size):
        d = _gradient(g[i], p[i], sign, decay)
        first = m[i] * b1 + a1 * d
        highest = np.maximum(b2 * u[i], abs(d) + eps)
        m[i] = first
        u[i] = highest
        p[i] -= rate * (first / highest)


@compiled(fastmath=FUSED)
def adagrad(p: Any, g: Any, total: Any, sign: Any, decay: Any, eps: Any, rate: Any) -> None:
    """``total += d^2; p -= rate d / (sqrt(total) + eps)``."""
    for i in range(p.size):
        d = _gradient(g[i], p[i], sign, decay)
        t = total[i] + d * d
        total[i] = t
        p[i] -= rate * (d / (np.sqrt(t) + eps))


@compiled(fastmath=FUSED)
def adadelta(
    p: Any, g: Any, v: Any, w: Any, sign: Any, decay: Any, rho: Any, rest: Any, eps: Any, rate: Any
) -> None:
    """``s = sqrt(w + eps) / sqrt(v + eps) d; w = rho w + rest s^2; p -= rate s``."""
    for i in range(p.size):
        d = _gradient(g[i], p[i], sign, decay)
        second = v[i] * rho + rest * d * d
        v[i] = second
        step = np.sqrt(w[i] + eps) / np.sqrt(second + eps) * d
        w[i] = w[i] * rho + rest * step * step
        p[i] -= rate * step


@compiled(fastmath=FUSED)
def rmsprop(
    p: Any, g: Any, v: Any, mean: Any, buffer: Any, sign: Any, decay: Any, alpha: Any, rest: Any,
    keep: Any, eps: Any, rate: Any,
) -> None:  # fmt: skip
    """``p -= rate d / (sqrt(v - mean^2) + eps)``, the quotient summed in ``buffer`` if it is there.

    An empty ``mean`` counts as 0.
    """
    centered, summed = mean.size == p.size, buffer.size == p.size
    for i in range(p.size):
        d = _gradient(g[i], p[i], sign, decay)
        second = v[i] * alpha + rest * d * d
        v[i] = second
        if centered:
            first = mean[i] * alpha + rest * d
            mean[i] = first
            second = second - first * first
        step = d / (np.sqrt(second) + eps)
        if summed:
            step = buffer[i] * keep + step
            buffer[i] = step
        p[i] -= rate * step


@compiled(fastmath=FUSED)
def rprop(
    p: Any, g: Any, before: Any, size: Any, sign: Any, shrink: Any, grow: Any, least: Any, most: Any
) -> None:
    """A step of ``size`` against the gradient's sign; where that turned, no step, and shrink."""
    for i in range(p.size):
        d = sign * g[i]
        turned = d * before[i]
        s = size[i]
        if turned > 0:
            s = s * grow
        elif turned < 0:
            s = s * shrink
            d = d * 0
        s = min(max(s, least), most)
        size[i] = s
        before[i] = d
        if d > 0:
            p[i] -= s
        elif d < 0:
            p[i] += s


@compiled(fastmath=FUSED)
def asgd(
    p: Any, g: Any, mean: Any, sign: Any, decay: Any, keep: Any, rate: Any, share: Any
) -> None:
    """``p = keep p - rate d; mean += share (p - mean)``, and ``mean = p`` where share is 1."""
    for i in range(p.size):
        x = p[i] * keep - rate * _gradient(g[i], p[i], sign, decay)
        p[i] = x
        mean[i] = x if share == 1 else mean[i] + share * (x - mean[i])


@compiled(fastmath=FUSED)
def lion(
    p: Any, g: Any, m: Any, sign: Any, keep: Any, b1: Any, a1: Any, b2: Any, a2: Any, rate: Any
) -> None:
    """``p = keep p - rate sign(b1 m + a1 d); m = b2 m + a2 d``."""
    for i in range(p.size):
        d = sign * g[i]
        step = np.sign(m[i] * b1 + a1 * d)
        m[i] = m[i] * b2 + a2 * d
        p[i] = p[i] * keep - rate * step


@compiled(fastmath=FUSED)
def unscale(g: Any, found: Any, factor: Any) -> None:
    """``g *= factor``; ``found[0]`` becomes 1 where some product is infinite or NaN."""
    wrong = 0
    for i in range(g.size):
        x = g[i] * factor
        g[i] = x
        wrong |= not np.isfinite(x)
    if wrong:
        found[0] = 1
