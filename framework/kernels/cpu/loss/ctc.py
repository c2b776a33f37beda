"""Compiled recursions over the alignments of a sequence with its labels, a sequence at a time.

A position of ``labels`` is entered from itself, from the one before, and from the one before that
where ``ways`` is 0 (it is minus infinity elsewhere). Minus infinity is the logarithm of nothing:
``_sum`` takes and gives it without a NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..support.jit import FUSED, compiled, inlined
from ..support.vector_math import exp32, log1p32

_NEVER, _ZERO, _ONE = np.float32(-np.inf), np.float32(0), np.float32(1)
_NAN = np.float32(np.nan)
_HALF, _LN2 = np.float32(0.5), np.float32(0.6931471805599453)


@inlined
def _sum(a: Any, b: Any, c: Any) -> Any:
    # log(exp(a) + exp(b) + exp(c)); the largest has an exponential of 1 beside the others
    low, high = (a, b) if b > a else (b, a)
    middle, top = (high, c) if c > high else (c, high)
    base = _ZERO if top == _NEVER else top
    others = exp32(low - base) + exp32(middle - base)  # 0 to 2
    halved = others > _HALF
    t = (others + _ONE) * _HALF - _ONE if halved else others  # in [-1/4, 1/2]
    return top + (log1p32(t) + (_LN2 if halved else _ZERO))


@compiled(fastmath=FUSED)
def _pair(a: Any, b: Any) -> Any:
    return _sum(a, b, _NEVER)  # not inlined: compiled once


@compiled(fastmath=FUSED)
def forward(
    out: Any,
    alpha: Any,
    ways: Any,
    log_probs: Any,
    labels: Any,
    lengths: Any,
    ends: Any,
    first: int,
    last: int,
) -> None:
    """The loss and the log probability of each step and position, of sequences ``first:last``.

    Args:
        out: (N,), float32.
        alpha: (T, N, L), float32.
        ways: (N, L), workspace.
        log_probs: (T, N, C), float32.
        labels: (N, L), int64: classes, and the blank at even positions.
        lengths: (N,), int64: steps of each sequence.
        ends: (N,), int64: labels of each without blanks.
        first: Of the sequences.
        last: One past it.
    """
    steps = log_probs.shape[0]
    wide = labels.shape[1]
    for n in range(first, last):
        label, way = labels[n], ways[n]
        for s in range(wide):
            enters = s % 2 == 1 and s > 2 and label[s] != label[s - 2]
            way[s] = _ZERO if enters else _NEVER
        for t in range(steps):
            row, emitted = alpha[t, n], log_probs[t, n]
            if t == 0:
                row[:] = _NEVER
                row[0] = _ZERO
                if wide > 1 and lengths[n] > 0:
                    row[1] = _ZERO
            else:
                old = alpha[t - 1, n]
                if t >= lengths[n]:
                    for s in range(wide):
                        row[s] = old[s]
                    continue
                row[0] = old[0]
                if wide > 1:
                    row[1] = _pair(old[1], old[0])
                here, by_one, by_two, w = row[2:], old[1:-1], old[:-2], way[2:]
                same = old[2:]
                for s in range(wide - 2):
                    here[s] = _sum(same[s], by_one[s], by_two[s] + w[s])
            if t < lengths[n]:
                for s in range(wide):
                    row[s] += emitted[label[s]]
        row, end = alpha[steps - 1, n], 2 * ends[n]
        out[n] = -_pair(row[end], row[end - 1] if end else _NEVER)


@compiled(fastmath=FUSED)
def backward(
    out: Any, beta: Any, new: Any, ways: Any, grad: Any, log_probs: Any, labels: Any, lengths: Any,
    ends: Any, loss: Any, alpha: Any, first: int, last: int,
) -> None:  # fmt: skip
    """Minus the probability of each class at each step, times ``grad``, of some sequences.

    Args:
        out: (T, N, C), float32.
        beta: (N, L), workspace, and the two after it.
        new: (N, L).
        ways: (N, L).
        grad: (N,).
        log_probs: As :func:`forward`'s, and the three after it.
        labels: (N, L).
        lengths: (N,).
        ends: (N,).
        loss: What that found, (N,).
        alpha: (T, N, L).
        first: Of the sequences.
        last: One past it.
    """
    steps = log_probs.shape[0]
    wide = labels.shape[1]
    for n in range(first, last):
        label, way, after, now = labels[n], ways[n], beta[n], new[n]
        possible = not np.isinf(loss[n])
        if not possible:  # there is no gradient, unless zero_infinity cut it off
            for t in range(steps):
                out[t, n] = _NAN if t < lengths[n] and grad[n] != _ZERO else _ZERO
            continue
        total, factor = loss[n], -grad[n]
        for s in range(wide):  # whether one may go on from here to the label after the next
            leaves = s % 2 == 1 and s + 2 < wide and label[s + 2] != label[s]
            way[s] = _ZERO if leaves else _NEVER
        for t in range(steps - 1, -1, -1):
            row, emitted, line = out[t, n], log_probs[t, n], alpha[t, n]
            row[:] = _ZERO
            if t >= lengths[n]:
                continue
            if t == lengths[n] - 1:
                now[:] = _NEVER
                now[2 * ends[n]] = _ZERO
                if ends[n] > 0:
                    now[2 * ends[n] - 1] = _ZERO
            else:
                same, by_one, by_two = after[:-2], after[1:-1], after[2:]
                for s in range(wide - 2):
                    now[s] = _sum(same[s], by_one[s], by_two[s] + way[s])
                if wide > 1:
                    now[wide - 2] = _pair(after[wide - 2], after[wide - 1])
                now[wide - 1] = after[wide - 1]
            for s in range(wide):  # alpha counts this step's emission, beta does not yet
                after[s] = exp32(line[s] + now[s] + total) * factor
            for s in range(wide):
                row[label[s]] += after[s]
            for s in range(wide):
                after[s] = now[s] + emitted[label[s]]
