"""Minimum and maximum along a dim that is not the last, row by row.

NumPy would transpose the array first. Numbers of half precision are compared by their bits, along
any dim.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from ...dtypes import int16, int32, int64
from ...kernels.common.strided import INFINITY, bits
from ...kernels.runtime import threads
from ..indexing.cpu_routes import SUMMED, enough, enough_to_add


def in_rows(input, *, dim, keepdim) -> bool:
    """True for many elements and a dim that is not the last, or half precision."""
    if dim is None or not input.ndim:
        return False
    if input.dtype.is_half:
        return enough(input.numel, input.dtype)
    return dim < input.ndim - 1 and enough_to_add(input.numel, input.dtype)


def of_halves(input, *, dim, keepdim) -> bool:
    """True for half precision and adjacent dims."""
    beside = dim == tuple(range(dim[0], dim[0] + len(dim))) if dim else False
    return beside and input.dtype.is_half and enough(input.numel, input.dtype)


def sortable(input, *, dim, **_) -> bool:
    """True if there are kernels that sort along ``dim``, and enough elements."""
    known = input.dtype.is_half or input.dtype.name in SUMMED
    if not (known and input.ndim and enough(input.numel, input.dtype)):
        return False
    return input.shape[dim] < 1 << 31


def key_dtype(input):
    """Return the dtype of sort keys, as wide as the input's."""
    return {2: int16, 8: int64}.get(input.dtype.itemsize, int32)


def search_rows(values, indices, input, dim, largest) -> None:
    """Find the maximum or minimum along ``dim`` of a contiguous array, and its first index.

    Args:
        values: Written; None if only the places are wanted.
        indices: Written; in half precision None if only the values are wanted.
        input: At least one element along ``dim``.
        dim: As :func:`in_rows` or :func:`of_halves` allows it.
        largest: Else smallest.
    """
    from ...kernels.cpu.reduction import sort, topk

    first, last = (dim, dim) if isinstance(dim, int) else (dim[0], dim[-1])
    count, columns = prod(input.shape[:first]), prod(input.shape[last + 1 :])
    if not columns:
        return
    x = input.reshape(count, -1, columns)
    indices = (np.empty(0, np.int64) if indices is None else indices).reshape(-1, columns)
    values = (input[:0] if values is None else values).reshape(-1, columns)
    kernel = partial(topk.search, values, indices, x, largest)
    if input.itemsize == 2:
        infinity = INFINITY[input.dtype.name]
        kernel = partial(sort.extreme, bits(values), indices, bits(x), infinity, largest)

    def rows(start, stop):
        kernel(start, stop, 0, columns)

    def beside(start, stop):
        kernel(0, count, start, stop)

    if count >= threads.workers(input.size, input.size):
        threads.parallel_for(rows, input.size, count)
    else:
        threads.parallel_for(beside, input.size, columns)
