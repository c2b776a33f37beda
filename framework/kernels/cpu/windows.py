"""Compiled loops over windows: max pooling of planes, and its gradient."""

from __future__ import annotations

from typing import Any

from .compiler import compiled


@compiled
def max_pool(
    out: Any, index: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> None:  # pragma: no cover - compiled
    """The largest element of each window of (planes, height, width), and its number; NaN wins."""
    planes, height, width = x.shape
    rows, columns = out.shape[1], out.shape[2]
    kh, kw = kernel
    dh, dw = dilation
    for c in range(planes):
        for r in range(rows):
            top = r * stride[0] - padding[0]
            for s in range(columns):
                left = s * stride[1] - padding[1]
                found = False
                best = x[c, 0, 0]
                where = 0
                for i in range(kh):
                    y = top + i * dh
                    if y < 0 or y >= height:
                        continue
                    for j in range(kw):
                        z = left + j * dw
                        if z < 0 or z >= width:
                            continue
                        v = x[c, y, z]
                        if not found or v > best or v != v:
                            best = v
                            where = i * kw + j
                            found = True
                out[c, r, s] = best
                index[c, r, s] = where


@compiled
def max_pool_grad(
    out: Any, grad: Any, index: Any, kw: int, stride: Any, padding: Any, dilation: Any
) -> None:  # pragma: no cover - compiled
    """Add each gradient to the element of its window that won."""
    planes, rows, columns = grad.shape
    for c in range(planes):
        for y in range(out.shape[1]):
            for z in range(out.shape[2]):
                out[c, y, z] = 0
        for r in range(rows):
            for s in range(columns):
                k = index[c, r, s]
                y = r * stride[0] - padding[0] + (k // kw) * dilation[0]
                z = s * stride[1] - padding[1] + (k % kw) * dilation[1]
                out[c, y, z] += grad[c, r, s]
