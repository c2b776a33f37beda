"""Compiled optimizer steps: one pass over a parameter, its gradient and its state, in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from .compiler import FUSED, compiled


@compiled(fastmath=FUSED)
def adam(
    p: Any, g: Any, m: Any, v: Any, b1: Any, b2: Any, a1: Any, a2: Any, keep: Any, decay: Any,
    root: Any, eps: Any, rate: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """Adam, AdamW: ``p = keep p - rate m / (root sqrt(v) + eps)``; ``a1 = 1 - b1``, ``a2`` alike.

    ``keep`` is the decoupled decay's factor; ``decay`` times p is added to the gradient.
    """
    for i in range(p.size):
        x = p[i]
        d = g[i] + decay * x if decay != 0 else g[i]  # 0 times infinity is not 0
        x = x * keep
        first = m[i] * b1 + a1 * d
        second = v[i] * b2 + a2 * d * d
        m[i] = first
        v[i] = second
        p[i] = x - rate * (first / (np.sqrt(second) * root + eps))


@compiled(fastmath=FUSED)
def momentum(
    p: Any, g: Any, buffer: Any, decay: Any, sign: Any, share: Any, add: Any, look: Any, rate: Any
) -> None:  # pragma: no cover - compiled
    """SGD: ``buffer = share buffer + add d; p -= rate (buffer + look d)``; d is the gradient.

    With ``look`` 1 and ``share`` in front of the buffer this is Nesterov's form.
    """
    for i in range(p.size):
        d = sign * g[i] + decay * p[i] if decay != 0 else sign * g[i]
        b = buffer[i] * share + add * d
        buffer[i] = b
        p[i] -= rate * (d + share * b if look else b)
