"""Kernels of rows whose halves are converted a block of rows at a time.

A kernel that computes in float32 wants its float16 and bfloat16 operands converted, and its result
rounded. Converted as a whole they would be workspace of twice their bytes each. What is computed
for each row of the first dim by itself is converted, computed and rounded in blocks of rows: the
workspace is bounded however large the operands are, and a block stays in the caches.

Threads share each step of a block. ``mixed_dtype.py`` does the same for elementwise ops, by tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...dtypes import float32
from ...spec import Spec
from ..runtime import threads, thresholds
from .copy import copy

_MOST_THREADS = 4  # for which a block grows


def rows_of_block(rows: int, width: int) -> int:
    """Return how many rows of ``width`` elements a block has, of so many in all."""
    return max(1, min(rows, of_threads(thresholds.HALF_BLOCK) // max(1, width)))


def of_threads(block: int) -> int:
    """Return the elements of a block for all threads, by those for one."""
    return block * min(_MOST_THREADS, threads.LIMIT)


def room_specs(rows: int, *operands: Spec, step: int = 0) -> tuple[Spec, ...]:
    """Return the specs of the workspaces in which a block of each operand is float32.

    Args:
        rows: Rows of all.
        *operands: Results and inputs, (rows, *) or a view of that; halves are converted.
        step: Rows of a block; 0: as many as :func:`rows_of_block` says for the widest.
    """
    halves = [s for s in operands if s.dtype.is_half]
    widths = [s.numel // max(1, rows) for s in halves]
    step = step or rows_of_block(rows, max(widths))
    return tuple(
        Spec((step * width,), float32, s.device) for s, width in zip(halves, widths, strict=True)
    )


def is_half(array: Any) -> bool:
    """True for an array of float16 or bfloat16."""
    return array.dtype.itemsize == 2 and array.dtype.kind not in "iu"


def in_blocks(
    compute: Callable[..., None],
    results: Sequence[Any],
    inputs: Sequence[Any],
    rooms: Sequence[Any],
    axis: int = 0,
    step: int = 0,
) -> None:
    """Call ``compute(*results, *inputs)`` on blocks of rows, of float32.

    Args:
        compute: A kernel. A row of its results depends on that row of its inputs.
        results: Arrays (rows, *), which it writes.
        inputs: Arrays (rows, *).
        rooms: Workspace of :func:`room_specs`, for the halves among results and inputs in order.
        axis: 1 if the rows are the second dim of all arrays that have more than one.
        step: Rows of a block, as :func:`room_specs` was told.
    """
    arrays = [*results, *inputs]
    free = iter(rooms)
    homes = [next(free) if is_half(a) else None for a in arrays]
    rows = arrays[0].shape[axis]
    if not step:
        halves = [a for a, home in zip(arrays, homes, strict=True) if home is not None]
        step = rows_of_block(rows, max(a.size // max(1, rows) for a in halves))
    for start in range(0, rows, step):
        given = []
        parts = [_part(a, axis, slice(start, start + step)) for a in arrays]
        for k, (here, home) in enumerate(zip(parts, homes, strict=True)):
            if home is not None:
                converted = home[: here.size].reshape(here.shape)
                if k >= len(results):
                    copy(converted, here)
                here = converted
            given.append(here)
        compute(*given)
        for part, home, made in zip(parts[: len(results)], homes, given, strict=False):
            if home is not None:
                copy(part, made)


def _part(array: Any, axis: int, rows: slice) -> Any:
    return array[:, rows] if axis and array.ndim > 1 else array[rows]
