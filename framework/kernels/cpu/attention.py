"""Compiled rows of attention scores, float32: softmax and its gradient.

Softmax along another dim than the last is that of the rows of a matrix in each of several
(``along``): a line of sums, one for each column, takes the place of the sum.

A row stays in the first cache while it is scaled, masked, exponentiated and summed. The largest
element is found among integers that are ordered as the floats are: that vectorizes, and a NaN,
which comes last in this order, is not lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .support.jit import FUSED, SUMS, compiled, inlined
from .support.memory import vector_at
from .support.vector_math import as_bits, as_float, exp32

_ZERO, _ONE, _LOWEST = np.float32(0), np.float32(1), np.float32(-np.inf)
SEEN, ADDED = 1, 2  # a mask of bools, True where a row looks; one that is added to the scores
LANES = 64  # a causal row is computed up to a multiple: loops of other lengths are mispredicted
_MAGNITUDE, _SIGN = np.int32(0x7FFFFFFF), np.int32(31)


@inlined
def _ordered(b: Any) -> Any:
    return np.int32(b ^ (np.int32(b >> _SIGN) & _MAGNITUDE))


@compiled
def _largest(row: Any) -> Any:
    best = np.int32(-(2**31))
    for j in range(row.size):
        b = _ordered(as_bits(row[j]))
        best = b if b > best else best
    return as_float(_ordered(best))


@compiled(fastmath=SUMS)
def _sum(row: Any) -> Any:
    total = _ZERO
    for j in range(row.size):
        total += row[j]
    return total


@compiled(fastmath=FUSED)
def _scaled(row: Any, keep: Any, scale: Any, mask: int, kind: int, n: int, whole: int) -> Any:
    # Scales and masks a row up to ``whole``, minus infinity from ``n`` on; returns its largest
    # element. ``keep`` tells the compiler what a bool is.
    if kind == SEEN:
        seen = vector_at(mask, whole, keep)
        for j in range(whole):
            row[j] = row[j] * scale if seen[j] else _LOWEST
    elif kind == ADDED:
        added = vector_at(mask, whole, row)
        for j in range(whole):
            row[j] = row[j] * scale + added[j]
    else:
        for j in range(whole):
            row[j] *= scale
    if n < whole:
        rest = np.int32(n % LANES)
        tail = row[n - n % LANES : whole]
        for j in range(tail.size):
            tail[j] = _LOWEST if np.int32(j) >= rest else tail[j]
    m = _largest(row[:whole])
    return _ZERO if m == _LOWEST else m  # nothing to attend to: the result is zero


@compiled(fastmath=FUSED)
def soften(
    s: Any, lse: Any, keep: Any, scale: Any, rescale: Any, mask: Any, first: int, causal: bool
) -> None:
    """Softmax of each row of ``s * scale``, times ``keep * rescale`` where there is a ``keep``.

    Args:
        s: Scores (rows, columns); overwritten.
        lse: (rows,). Gets the logarithm of each row's sum, of exponentials beside the largest.
        keep: Which probabilities dropout keeps, bool (rows, columns); (0, 0) if all.
        scale: Factor of the scores.
        rescale: Factor of the probabilities that are kept.
        mask: Address of the first row's mask; bytes from row to row; what it is: ``SEEN``,
            ``ADDED`` or 0 if there is none.
        first: Number of the first row among those of its head.
        causal: Row ``i`` of the head sees no column behind ``i``.
    """
    rows, columns = s.shape
    for i in range(rows):
        n = min(columns, first + i + 1) if causal else columns
        whole = min(columns, (n + LANES - 1) // LANES * LANES)
        row = s[i]
        m = _scaled(row, keep, scale, mask[0] + i * mask[1], mask[2], n, whole)
        for j in range(whole):
            row[j] = exp32(row[j] - m)
        total = _sum(row[:whole])
        if total == _ZERO:
            total = _ONE
        lse[i] = np.log(total)
        factor = rescale / total
        if keep.size:
            for j in range(n):
                row[j] = row[j] * factor if keep[i, j] else _ZERO
        else:
            for j in range(n):
                row[j] *= factor
        for j in range(whole, columns):
            row[j] = _ZERO


@compiled(fastmath=FUSED)
def probabilities(
    s: Any, dropped: Any, lse: Any, keep: Any, scale: Any, rescale: Any, mask: Any, first: int,
    causal: bool,
) -> None:  # fmt: skip
    """Make ``s`` probabilities again; ``dropped`` are those times ``keep * rescale``.

    Scaled scores are rounded and their largest found as by :func:`soften`: fused with the
    subtraction, a product of 1e10 would differ from it by hundreds.
    """
    rows, columns = s.shape
    for i in range(rows):
        n = min(columns, first + i + 1) if causal else columns
        whole = min(columns, (n + LANES - 1) // LANES * LANES)
        row, low = s[i], lse[i]
        m = _scaled(row, keep, scale, mask[0] + i * mask[1], mask[2], n, whole)
        for j in range(whole):
            row[j] = exp32((row[j] - m) - low)
        for j in range(whole, columns):
            row[j] = _ZERO
        if keep.size:
            for j in range(columns):
                dropped[i, j] = row[j] * rescale if keep[i, j] else _ZERO


@compiled(fastmath=FUSED)
def scores_grad(t: Any, p: Any, dot: Any, keep: Any, scale: Any, rescale: Any) -> None:
    """From gradients of (dropped) probabilities to those of scores: ``(t - dot) p scale``."""
    rows, columns = t.shape
    for i in range(rows):
        d = dot[i]
        if keep.size:
            for j in range(columns):
                v = t[i, j] * rescale if keep[i, j] else _ZERO
                t[i, j] = (v - d) * p[i, j] * scale
        else:
            for j in range(columns):
                t[i, j] = (t[i, j] - d) * p[i, j] * scale


@compiled(fastmath=FUSED)
def add_to_mask(t: Any, scale: Any, mask: int, step: int) -> None:
    """Add each row of ``t`` to one of the mask's gradient, then scale it.

    ``mask`` is the address of the first, ``step`` bytes lie from one to the next; they may be 0.
    """
    rows, columns = t.shape
    for i in range(rows):
        total, row = vector_at(mask + i * step, columns, t), t[i]
        for j in range(columns):
            total[j] += row[j]
            row[j] *= scale


@compiled(fastmath=FUSED)
def softmax(out: Any, x: Any) -> None:
    """Softmax of each row."""
    rows, n = x.shape
    for i in range(rows):
        m = _largest(x[i])
        for j in range(n):
            out[i, j] = exp32(x[i, j] - m)
        factor = _ONE / _sum(out[i])
        for j in range(n):
            out[i, j] *= factor


@compiled(fastmath=FUSED)
def log_softmax(out: Any, x: Any) -> None:
    """Logarithm of the softmax of each row."""
    rows, n = x.shape
    for i in range(rows):
        m = _largest(x[i])
        for j in range(n):
            out[i, j] = exp32(x[i, j] - m)
        low = np.log(_sum(out[i]))
        for j in range(n):
            out[i, j] = (x[i, j] - m) - low


@compiled(fastmath=FUSED, overlaps=False)
def log_softmax_grad(out: Any, grad: Any, result: Any) -> None:
    """``grad - exp(result) * sum(grad)`` of each row."""
    rows, n = grad.shape
    for i in range(rows):
        total = _sum(grad[i])
        for j in range(n):
            out[i, j] = grad[i, j] - exp32(result[i, j]) * total


@compiled(fastmath=SUMS)
def sum_of_products(a: Any, b: Any) -> Any:
    """The inner product of two rows."""
    total = _ZERO
    for j in range(a.size):
        total += a[j] * b[j]
    return total


@compiled(fastmath=FUSED, overlaps=False)
def softmax_grad(out: Any, grad: Any, result: Any) -> None:
    """``(grad - sum(grad * result)) * result`` of each row."""
    rows, n = grad.shape
    for i in range(rows):
        total = sum_of_products(grad[i], result[i])
        for j in range(n):
            out[i, j] = (grad[i, j] - total) * result[i, j]


@compiled(fastmath=FUSED)
def softmax_along(out: Any, line: Any, x: Any) -> None:
    """Softmax of each column of (count, n, columns)."""
    count, n, columns = x.shape
    for i in range(count):
        _exponents(out[i], line[i], x[i])
        for j in range(columns):
            line[i, j] = 0
        for k in range(n):
            for j in range(columns):
                line[i, j] += out[i, k, j]
        for k in range(n):
            for j in range(columns):
                out[i, k, j] /= line[i, j]


@compiled(fastmath=FUSED)
def _exponents(out: Any, line: Any, x: Any) -> None:
    # exp(x - line) where line is the largest of each column, NaN if there is one.
    n, columns = x.shape
    for j in range(columns):
        line[j] = x[0, j]
    for k in range(1, n):
        for j in range(columns):
            v, m = x[k, j], line[j]
            line[j] = v if (v > m) | (v != v) else m
    for k in range(n):
        for j in range(columns):
            out[k, j] = exp32(x[k, j] - line[j])


@compiled(fastmath=FUSED)
def log_softmax_along(out: Any, largest: Any, line: Any, x: Any) -> None:
    """Logarithm of the softmax of each column of (count, n, columns)."""
    count, n, columns = x.shape
    for i in range(count):
        _exponents(out[i], largest[i], x[i])
        for j in range(columns):
            line[i, j] = 0
        for k in range(n):
            for j in range(columns):
                line[i, j] += out[i, k, j]
        for j in range(columns):
            line[i, j] = np.log(line[i, j])
        for k in range(n):
            for j in range(columns):
                out[i, k, j] = (x[i, k, j] - largest[i, j]) - line[i, j]


@compiled(fastmath=FUSED, overlaps=False)
def softmax_grad_along(out: Any, line: Any, grad: Any, result: Any) -> None:
    """The gradient of :func:`softmax_along`."""
    count, n, columns = grad.shape
    for i in range(count):
        for j in range(columns):
            line[i, j] = 0
        for k in range(n):
            for j in range(columns):
                line[i, j] += grad[i, k, j] * result[i, k, j]
        for k in range(n):
            for j in range(columns):
                out[i, k, j] = (grad[i, k, j] - line[i, j]) * result[i, k, j]


@compiled(fastmath=FUSED, overlaps=False)
def log_softmax_grad_along(out: Any, line: Any, grad: Any, result: Any) -> None:
    """The gradient of :func:`log_softmax_along`."""
    count, n, columns = grad.shape
    for i in range(count):
        for j in range(columns):
            line[i, j] = 0
        for k in range(n):
            for j in range(columns):
                line[i, j] += grad[i, k, j]
        for k in range(n):
            for j in range(columns):
                out[i, k, j] = grad[i, k, j] - exp32(result[i, k, j]) * line[i, j]
