"""Compiled average pooling of volumes, and its gradient.

A plane is a volume of depth 1, a signal also of height 1. The lines of a row of windows are added
up as a whole, and then the columns of that one line, which has zeros at both ends in place of
padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import compiled

unsigned = np.uint64  # an index of this type is not tested for being below 0


@compiled
def _gather(target: Any, line: Any, width: int, step: int) -> None:
    # target[s] = line[s * step] + ... over ``width`` columns; known steps become vectors.
    if width == 2 and step == 2:
        for s in range(target.size):
            target[s] = line[unsigned(2 * s)] + line[unsigned(2 * s + 1)]
        return
    if width == step:  # windows side by side
        for s in range(target.size):
            total = line[unsigned(s * step)]
            for k in range(1, width):
                total += line[unsigned(s * step + k)]
            target[s] = total
        return
    for s in range(target.size):
        target[s] = line[unsigned(s * step)]
    for k in range(1, width):
        here = line[k:]
        if step == 1:
            for s in range(target.size):
                target[s] += here[s]
        elif step == 2:
            for s in range(target.size):
                target[s] += here[unsigned(2 * s)]
        else:
            for s in range(target.size):
                target[s] += here[unsigned(s * step)]


@compiled
def _scatter(line: Any, source: Any, width: int, step: int) -> None:
    # line[s * step + k] += source[s]
    if width == step:
        for s in range(source.size):
            for k in range(width):
                line[unsigned(s * step + k)] = source[s]
        return
    for k in range(width):
        here = line[k:]
        if step == 1:
            for s in range(source.size):
                here[s] += source[s]
        else:
            for s in range(source.size):
                here[unsigned(s * step)] += source[s]


@compiled
def _divide(target: Any, source: Any, divisor: Any) -> None:
    # By one number, or by one for each column.
    if divisor.size == 1:
        by = divisor[0]
        for s in range(target.size):
            target[s] = source[s] / by
    else:
        for s in range(target.size):
            target[s] = source[s] / divisor[s]


@compiled
def avg_pool(
    out: Any, x: Any, divisor: Any, kernel: Any, stride: Any, padding: Any, start: int, stop: int
) -> None:
    """Fill planes ``start`` to ``stop`` with the sum of each window over its divisor.

    Args:
        out: (count, layers, rows, columns).
        x: (count, depth, height, width).
        divisor: (layers, rows, columns), or (1, 1, 1) if all windows have the same.
        kernel: Three sizes.
        stride: Three steps.
        padding: Before the first element of three dims.
        start: The first plane.
        stop: Behind the last.
    """
    _, depth, height, width = x.shape
    _, layers, rows, columns = out.shape
    pad = padding[2]
    line = np.zeros(max((columns - 1) * stride[2] + kernel[2], pad + width), x.dtype)
    total = line[pad : pad + width]
    for c in range(start, stop):
        for place in range(layers * rows):
            q, r = place // rows, place % rows
            begun = False
            for i in range(kernel[0] * kernel[1]):
                z = q * stride[0] - padding[0] + i // kernel[1]
                y = r * stride[1] - padding[1] + i % kernel[1]
                if 0 <= z < depth and 0 <= y < height:
                    source = x[c, z, y]
                    if begun:
                        for j in range(width):
                            total[j] += source[j]
                    else:
                        for j in range(width):
                            total[j] = source[j]
                        begun = True
            if not begun:
                total[:] = 0
            target = out[c, q, r]
            _gather(target, line, kernel[2], stride[2])
            _divide(target, target, divisor[q % divisor.shape[0], r % divisor.shape[1]])


@compiled
def avg_pool_grad(
    dx: Any, g: Any, divisor: Any, kernel: Any, stride: Any, padding: Any, start: int, stop: int
) -> None:
    """The gradient of :func:`avg_pool`, for planes ``start`` to ``stop``."""
    _, depth, height, width = dx.shape
    _, layers, rows, columns = g.shape
    pad = padding[2]
    line = np.empty(max((columns - 1) * stride[2] + kernel[2], pad + width), g.dtype)
    share = np.empty(columns, g.dtype)
    for c in range(start, stop):
        dx[c, :, :, :] = 0
        for place in range(layers * rows):
            q, r = place // rows, place % rows
            _divide(share, g[c, q, r], divisor[q % divisor.shape[0], r % divisor.shape[1]])
            line[:] = 0
            _scatter(line, share, kernel[2], stride[2])
            for i in range(kernel[0] * kernel[1]):
                z = q * stride[0] - padding[0] + i // kernel[1]
                y = r * stride[1] - padding[1] + i % kernel[1]
                if 0 <= z < depth and 0 <= y < height:
                    target = dx[c, z, y]
                    for j in range(width):
                        target[j] += line[pad + j]
