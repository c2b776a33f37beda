"""Compiled passes over one tile of logits, float32: what ``linear_cross_entropy`` does to it.

A tile has some rows (tokens) and some columns (classes) of logits that are not kept. Forward folds
it into the running sum of exponentials of each row; backward turns it into the gradient of the
logits. Both overwrite it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.schedule import parallel_slices
from ..attention import _largest, _sum, sum_of_products
from ..support.jit import FUSED, compiled
from ..support.vector_math import exp32

_ZERO = np.float32(0)


def over_rows(pass_: Any, cut: tuple[Any, ...], *whole: Any) -> None:
    """Call ``pass_(*cut, *whole)`` on several threads, each with some rows of what is ``cut``."""
    rows = cut[0].shape[0]
    arrays = (*cut, *whole)
    axes = (0,) * len(cut) + (None,) * len(whole)
    parallel_slices(pass_, arrays, axes, rows, 4 * cut[0].size)


@compiled(fastmath=FUSED)
def meet(
    tile: Any,
    total: Any,
    top: Any,
    picked: Any,
    below: Any,
    target: Any,
    first: int,
    weights: Any,
    seen: Any,
) -> None:
    """Fold a tile into ``total``, the sum of ``exp(logit - top)`` of each row so far.

    ``top`` is the largest logit so far; ``picked`` becomes the logit of the class ``target``, if
    that is one of the tile's columns, which begin with class ``first``. ``weights`` has a number
    for each column if labels are smoothed; then ``below`` is the sum of ``(logit - top) weight`` so
    far, and ``seen`` the sum of the weights before these. (Not of the logits, which may be large.)
    """
    rows, n = tile.shape
    beside = np.empty(weights.size, np.float32)
    for i in range(rows):
        row = tile[i]
        here = target[i] - first
        if 0 <= here < n:
            picked[i] = row[here]
        before, m = top[i], _largest(row)
        if not m > before and m == m:
            m = before
        top[i] = m
        if before != m:  # zero where nothing was summed yet
            total[i] *= exp32(before - m)
        if weights.size and before != m and seen != _ZERO:
            below[i] += (before - m) * seen
        if m == -np.inf:
            m = _ZERO  # subtracting it would make NaN
        if weights.size:
            for j in range(n):
                beside[j] = row[j] - m
            below[i] += sum_of_products(weights, beside)
        for j in range(n):
            row[j] = exp32(row[j] - m)
        total[i] += _sum(row)


@compiled(fastmath=FUSED)
def slopes(
    tile: Any,
    top: Any,
    total: Any,
    scale: Any,
    hit: Any,
    spread: Any,
    target: Any,
    first: int,
    weights: Any,
) -> None:
    """Turn logits into ``p scale - spread weights``, less ``hit`` at the target.

    ``p``, the softmax, is ``exp(tile - top) / total``.

    ``weights`` has a number for each column, or none where nothing is spread. Rows without any of
    the three factors are zero, whatever their logits.
    """
    rows, n = tile.shape
    for i in range(rows):
        row, m, factor = tile[i], top[i], scale[i]
        if factor == _ZERO and hit[i] == _ZERO and spread[i] == _ZERO:
            for j in range(n):
                row[j] = _ZERO
            continue
        factor /= total[i]
        for j in range(n):
            row[j] = exp32(row[j] - m) * factor
        if weights.size:
            for j in range(n):
                row[j] -= spread[i] * weights[j]
        here = target[i] - first
        if 0 <= here < n:
            row[here] -= hit[i]
