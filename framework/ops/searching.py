"""The extreme along a dim that is not the last: rows beside each other, compared as they lie.

NumPy would transpose the array first.
"""

from __future__ import annotations

from math import prod

from .indexed import enough_to_add


def in_rows(input, *, dim, keepdim) -> bool:
    """True for a search along a dim that is not the last, where NumPy is as fast."""
    return dim is not None and dim < input.ndim - 1 and enough_to_add(input.numel, input.dtype)


def search_rows(values, indices, input, dim, largest) -> None:
    """Find the largest or smallest along ``dim`` of a contiguous array, and where it is first.

    Args:
        values: Written; None if only the places are wanted.
        indices: Written.
        input: At least one element along ``dim``.
        dim: Not the last.
        largest: Else smallest.
    """
    from ..kernels.cpu import selection, threads

    count, columns = prod(input.shape[:dim]), prod(input.shape[dim + 1 :])
    if not columns:
        return
    x = input.reshape(count, -1, columns)
    indices = indices.reshape(count, columns)
    values = input[:0] if values is None else values
    values = values.reshape(-1, columns)
    parts = min(threads.get_num_threads(), input.size // threads.SHARE)
    if parts <= 1:
        selection.search(values, indices, x, largest, 0, count, 0, columns)
    elif count >= parts:
        threads.split(
            lambda _, start, stop: selection.search(
                values, indices, x, largest, start, stop, 0, columns
            ),
            count, parts,
        )  # fmt: skip
    else:
        threads.split(
            lambda _, start, stop: selection.search(
                values, indices, x, largest, 0, count, start, stop
            ),
            columns, min(parts, columns),
        )  # fmt: skip
