"""Arrays of any strides as lines of memory, for compiled kernels that take one shape of argument.

An array is passed as the elements of memory from its first one on, and as how many of them lie
between neighbors of each dim: 0 along a dim that it is broadcast over. An expanded index or
gradient is then never copied, and a kernel is compiled once for a dtype, whatever the layouts. A
nest of loops over several arrays is as deep as their common layout asks for, at most ``DEPTH``.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...storage import Storage
from ..runtime import threads, thresholds
from .schedule import parallel_range

DEPTH = 4  # loops in the kernels that take walks
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def strided(xp, array, shape, strides):
    """A writable view of ``array`` with any shape and strides (in bytes), from its first element.

    ``numpy.broadcast_to`` and ``numpy.diagonal`` give read-only views, which a write in place
    through the view could not use.
    """
    storage = array.base
    if type(storage) is Storage and array.size:
        # The same array over the storage's bytes: a fifth of the time of as_strided.
        start = array.__array_interface__["data"][0] - storage.__array_interface__["data"][0]
        return np.ndarray(shape, array.dtype, storage, start, strides)
    if array.itemsize == 1:  # NumPy reads no typestring of an 8-bit float
        return xp.lib.stride_tricks.as_strided(array.view("u1"), shape, strides).view(array.dtype)
    return xp.lib.stride_tricks.as_strided(array, shape, strides)


def line(array):
    """(memory, steps) of an array, or None where no step can be counted in elements."""
    size = array.itemsize
    if array.flags.c_contiguous and array.size:
        return array.reshape(-1), [s // size for s in array.strides]
    steps = [s // size if n > 1 else 0 for n, s in zip(array.shape, array.strides, strict=True)]
    if any(n > 1 and (s < 0 or s % size) for n, s in zip(array.shape, array.strides, strict=True)):
        return None
    length = 1 + sum([(n - 1) * s for n, s in zip(array.shape, steps, strict=True)])
    return strided(np, array, (length if array.size else 0,), (size,)), steps


def bits(memory):
    """The same memory as unsigned numbers, for kernels that only move elements; None if too wide.

    So one compiled kernel serves all dtypes of a size.
    """
    kind = _BITS.get(memory.itemsize)
    return None if kind is None else memory.view(kind)


INFINITY = {
    "float16": 0x7C00,
    "bfloat16": 0x7F80,
    "float32": 0x7F800000,
    "float64": 0x7FF << 52,
}
"""The bits of infinity, by the name of the dtype: all that is above them is NaN."""


def walk(shape, *steps):
    """The fewest nested loops that visit ``shape`` in order: (shape, steps of each array).

    Neighboring dims become one where all arrays allow it. None if more than ``DEPTH`` remain.
    """
    loops = []
    for n, *here in zip(shape, *steps, strict=True):
        if n == 1:
            continue
        if loops and loops[-1][1] == [n * s for s in here]:
            loops[-1] = (loops[-1][0] * n, here)
        else:
            loops.append((n, here))
    if len(loops) > DEPTH:
        return None
    loops = [(1, [0] * len(steps))] * (DEPTH - len(loops)) + loops
    return tuple([n for n, _ in loops]), [
        tuple([here[k] for _, here in loops]) for k in range(len(steps))
    ]


def run(kernel, shape, written, work, lines, steps, *numbers):
    """Call ``kernel(*lines, shape, *steps, *numbers, dim, start, stop)``, by threads if worth it.

    Args:
        kernel: Compiled; it visits the places ``start`` to ``stop`` along ``dim``.
        shape: Of :func:`walk`, as are ``steps``.
        written: Which of the lines it writes. Threads share a dim in which that line advances, so
            that no two write to one element; without such a dim one thread does all.
        work: How much an element is, in additions of one array to another.
        lines: Memory of each array.
        steps: Of each.
        *numbers: What else it takes.
    """
    arguments = *lines, shape, *steps, *numbers
    work *= prod(shape)
    several = threads.workers(work, max(shape), thresholds.SHARED)
    dim = next((d for d in range(DEPTH) if steps[written][d] and shape[d] >= several), None)
    if several <= 1 or dim is None:
        kernel(*arguments, 0, 0, shape[0])
    else:
        parallel_range(kernel, work, shape[dim], *arguments, dim)
