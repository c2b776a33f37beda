"""Compiled reads and writes of elements at places that an index names, and choices by a mask.

Arrays are lines of memory with four steps (``framework/kernels/common/strided.py``). Element
``(a, b, c, d)`` of the walk lies at the scalar product with the steps; the index of that element
shifts one of the two arrays, by ``where`` elements per count. With several rows of indices, ``row``
elements apart, each has a size (below 0 it counts from the end) and its own shifts. Indices are in
range: the caller has checked. What is written to an element comes in the order of the walk, so a
repeated run gives the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .support.jit import compiled, inlined, part

unsigned = np.uint64  # an index of this type is not tested for being below 0


@inlined
def _shift(index: Any, i: int, row: int, sizes: Any, steps: Any) -> Any:
    total = 0
    for r in range(sizes.size):
        v = index[unsigned(i + r * row)]
        total += (v + sizes[r] if v < 0 else v) * steps[r]
    return total


@inlined
def _part(shape: Any, dim: int, n: int) -> Any:
    # The shape of ``n`` places along a dim.
    return (
        n if dim == 0 else shape[0],
        n if dim == 1 else shape[1],
        n if dim == 2 else shape[2],
        n if dim == 3 else shape[3],
    )


@part
def _move_lines(
    out: Any,
    x: Any,
    index: Any,
    shape: Any,
    to: Any,
    source: Any,
    at: Any,
    size: int,
    here: int,
    there: int,
) -> None:
    # The most frequent case by itself: the compiler makes twice as fast a loop of it.
    n0, n1, n2, n = shape
    for a in range(n0):
        for b in range(n1):
            for c in range(n2):
                v = index[unsigned(a * at[0] + b * at[1] + c * at[2])]
                v = v + size if v < 0 else v
                o = a * to[0] + b * to[1] + c * to[2] + v * here
                s = a * source[0] + b * source[1] + c * source[2] + v * there
                target, line = out[o : o + n], x[s : s + n]
                for d in range(n):
                    target[d] = line[d]


@compiled
def move(
    out: Any,
    x: Any,
    index: Any,
    shape: Any,
    to: Any,
    source: Any,
    at: Any,
    row: int,
    sizes: Any,
    out_where: Any,
    x_where: Any,
    dim: int,
    start: int,
    stop: int,
) -> None:
    """``out[o + place] = x[s + place]``: a gather or a scatter, by which of the two is shifted."""
    out, x = out[start * to[dim] :], x[start * source[dim] :]
    index = index[start * at[dim] :]
    shape = _part(shape, dim, stop - start)
    n0, n1, n2, n = shape
    if at[3] == 0 and to[3] == 1 and source[3] == 1 and sizes.size == 1:
        here, there = out_where[0], x_where[0]
        _move_lines(out, x, index, shape, to, source, at, sizes[0], here, there)
        return
    for a in range(n0):
        for b in range(n1):
            for c in range(n2):
                o = a * to[0] + b * to[1] + c * to[2]
                s = a * source[0] + b * source[1] + c * source[2]
                i = a * at[0] + b * at[1] + c * at[2]
                if at[3] == 0:
                    for r in range(sizes.size):
                        v = index[unsigned(i + r * row)]
                        v = v + sizes[r] if v < 0 else v
                        o += v * out_where[r]
                        s += v * x_where[r]
                    if to[3] == 1 and source[3] == 1:
                        target, line = out[o : o + n], x[s : s + n]
                        for d in range(n):
                            target[d] = line[d]
                    elif to[3] == 1 and source[3] == 0:
                        out[o : o + n] = x[s]
                    else:
                        for d in range(n):
                            out[o + d * to[3]] = x[s + d * source[3]]
                elif sizes.size == 1:
                    size, here, there = sizes[0], out_where[0], x_where[0]
                    target, line, named = out[o:], x[s:], index[i:]
                    if to[3] == 1 and at[3] == 1 and source[3] == 0 and there == 1 and here == 0:
                        for d in range(n):  # along the last dim
                            v = named[d]
                            target[d] = line[unsigned(v + size if v < 0 else v)]
                        continue
                    for d in range(n):
                        v = named[unsigned(d * at[3])]
                        v = v + size if v < 0 else v
                        place = unsigned(d * source[3] + v * there)
                        target[unsigned(d * to[3] + v * here)] = line[place]
                elif sizes.size == 2:
                    target, line, ones, twos = out[o:], x[s:], index[i:], index[i + row :]
                    for d in range(n):
                        v, w = ones[unsigned(d * at[3])], twos[unsigned(d * at[3])]
                        v = v + sizes[0] if v < 0 else v
                        w = w + sizes[1] if w < 0 else w
                        place = unsigned(d * source[3] + v * x_where[0] + w * x_where[1])
                        there = unsigned(d * to[3] + v * out_where[0] + w * out_where[1])
                        target[there] = line[place]
                else:
                    for d in range(n):
                        here = _shift(index, i + d * at[3], row, sizes, out_where)
                        there = _shift(index, i + d * at[3], row, sizes, x_where)
                        place = unsigned(s + d * source[3] + there)
                        out[unsigned(o + d * to[3] + here)] = x[place]


@part
def _add_lines(
    out: Any, x: Any, index: Any, shape: Any, to: Any, source: Any, at: Any, size: int, where: int
) -> None:
    n0, n1, n2, n = shape
    for a in range(n0):
        for b in range(n1):
            for c in range(n2):
                v = index[unsigned(a * at[0] + b * at[1] + c * at[2])]
                o = a * to[0] + b * to[1] + c * to[2] + (v + size if v < 0 else v) * where
                s = a * source[0] + b * source[1] + c * source[2]
                target, line = out[o : o + n], x[s : s + n]
                for d in range(n):
                    target[d] += line[d]


@compiled
def add(
    out: Any,
    x: Any,
    index: Any,
    shape: Any,
    to: Any,
    source: Any,
    at: Any,
    row: int,
    sizes: Any,
    where: Any,
    dim: int,
    start: int,
    stop: int,
) -> None:
    """``out[o + place] += x[s]``."""
    out, x = out[start * to[dim] :], x[start * source[dim] :]
    index = index[start * at[dim] :]
    shape = _part(shape, dim, stop - start)
    n0, n1, n2, n = shape
    if at[3] == 0 and to[3] == 1 and source[3] == 1 and sizes.size == 1:
        _add_lines(out, x, index, shape, to, source, at, sizes[0], where[0])
        return
    for a in range(n0):
        for b in range(n1):
            for c in range(n2):
                o = a * to[0] + b * to[1] + c * to[2]
                s = a * source[0] + b * source[1] + c * source[2]
                i = a * at[0] + b * at[1] + c * at[2]
                if at[3] == 0:
                    o += _shift(index, i, row, sizes, where)
                    if to[3] == 1 and source[3] == 1:
                        target, line = out[o : o + n], x[s : s + n]
                        for d in range(n):
                            target[d] += line[d]
                    elif to[3] == 1 and source[3] == 0:
                        target, value = out[o : o + n], x[s]
                        for d in range(n):
                            target[d] += value
                    else:
                        for d in range(n):
                            out[o + d * to[3]] += x[s + d * source[3]]
                elif sizes.size == 1:
                    size, step = sizes[0], where[0]
                    target, line, named = out[o:], x[s:], index[i:]
                    for d in range(n):
                        v = named[unsigned(d * at[3])]
                        v = v + size if v < 0 else v
                        target[unsigned(d * to[3] + v * step)] += line[unsigned(d * source[3])]
                else:
                    for d in range(n):
                        place = _shift(index, i + d * at[3], row, sizes, where)
                        out[unsigned(o + d * to[3] + place)] += x[unsigned(s + d * source[3])]


MULTIPLY, MAXIMUM, MINIMUM = 0, 1, 2


@compiled
def combine(
    out: Any,
    x: Any,
    index: Any,
    shape: Any,
    to: Any,
    source: Any,
    at: Any,
    size: int,
    where: int,
    how: int,
    dim: int,
    start: int,
    stop: int,
) -> None:
    """``out[o + place]`` times ``x[s]``, or the larger or smaller of them; NaN wins."""
    out, x = out[start * to[dim] :], x[start * source[dim] :]
    index = index[start * at[dim] :]
    shape = _part(shape, dim, stop - start)
    n0, n1, n2, n = shape
    for a in range(n0):
        for b in range(n1):
            for c in range(n2):
                o = a * to[0] + b * to[1] + c * to[2]
                s = a * source[0] + b * source[1] + c * source[2]
                i = a * at[0] + b * at[1] + c * at[2]
                if at[3] == 0 and to[3] == 1 and source[3] == 1:
                    k = index[i]
                    o += (k + size if k < 0 else k) * where
                    target, line = out[o : o + n], x[s : s + n]
                    if how == MULTIPLY:
                        for d in range(n):
                            target[d] *= line[d]
                    elif how == MAXIMUM:
                        for d in range(n):
                            u, v = target[d], line[d]
                            target[d] = v if (v > u) | (v != v) else u
                    else:
                        for d in range(n):
                            u, v = target[d], line[d]
                            target[d] = v if (v < u) | (v != v) else u
                    continue
                target, line, named = out[o:], x[s:], index[i:]
                for d in range(n):
                    k = named[unsigned(d * at[3])]
                    p = unsigned(d * to[3] + (k + size if k < 0 else k) * where)
                    u, v = target[p], line[unsigned(d * source[3])]
                    if how == MULTIPLY:
                        target[p] = u * v
                    elif how == MAXIMUM:
                        target[p] = v if (v > u) | (v != v) else u
                    else:
                        target[p] = v if (v < u) | (v != v) else u


@compiled
def choose(
    out: Any,
    mask: Any,
    x: Any,
    y: Any,
    shape: Any,
    to: Any,
    by: Any,
    x_step: Any,
    y_step: Any,
    stay: bool,
    dim: int,
    start: int,
    stop: int,
) -> None:
    """``x`` where ``mask`` is not 0, else ``y``, which is ``out`` if it is to ``stay``."""
    out, mask = out[start * to[dim] :], mask[start * by[dim] :]
    x, y = x[start * x_step[dim] :], y[start * y_step[dim] :]
    shape = _part(shape, dim, stop - start)
    n0, n1, n2, n = shape
    for a in range(n0):
        for b in range(n1):
            for c in range(n2):
                o = a * to[0] + b * to[1] + c * to[2]
                m = a * by[0] + b * by[1] + c * by[2]
                i = a * x_step[0] + b * x_step[1] + c * x_step[2]
                j = a * y_step[0] + b * y_step[1] + c * y_step[2]
                if to[3] == 1 and by[3] == 1 and x_step[3] == 1 and y_step[3] <= 1:
                    target, here, p = out[o : o + n], mask[m : m + n], x[i : i + n]
                    if y_step[3] == 1:
                        q = y[j : j + n]
                        for d in range(n):
                            u, v = p[d], q[d]
                            target[d] = u if here[d] else v
                    else:
                        v = y[j]
                        for d in range(n):
                            u = p[d]
                            target[d] = u if here[d] else v
                elif to[3] == 1 and by[3] == 1 and x_step[3] == 0 and y_step[3] <= 1:
                    target, here, u = out[o : o + n], mask[m : m + n], x[i]
                    if stay:
                        for d in range(n):
                            v = target[d]
                            target[d] = u if here[d] else v
                    elif y_step[3] == 1:
                        q = y[j : j + n]
                        for d in range(n):
                            v = q[d]
                            target[d] = u if here[d] else v
                    else:
                        v = y[j]
                        for d in range(n):
                            target[d] = u if here[d] else v
                else:
                    for d in range(n):
                        u, v = x[i + d * x_step[3]], y[j + d * y_step[3]]
                        out[o + d * to[3]] = u if mask[m + d * by[3]] else v


@compiled
def reverse(out: Any, x: Any) -> None:
    """Each row from its end."""
    rows, n = x.shape
    for i in range(rows):
        target, line = out[i], x[i]
        for j in range(n):
            target[j] = line[unsigned(n - 1 - j)]
