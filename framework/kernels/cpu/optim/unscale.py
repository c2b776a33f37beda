"""The compiled loop of ``GradScaler``: unscale a gradient and look for infinities in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, compiled


@compiled(fastmath=FUSED)
def unscale(g: Any, found: Any, factor: Any) -> None:
    """``g *= factor``; ``found[0]`` becomes 1 where some product is infinite or NaN."""
    kind = g.dtype.type
    number = kind(factor)
    wrong = 0
    for i in range(g.size):
        x = g[i] * number
        g[i] = x
        wrong |= not np.isfinite(x)
    if wrong:
        found[0] = 1
