"""Tiling: matching views of tensors, a tile at a time, to bound temporaries.

A line of tensor ops over a parameter has results as large as the parameter. Over tiles of it, in
turn, the results are as large as a tile, whatever the parameter's size, and stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ... import execution
from ...autograd import given_ops
from ...kernels.runtime import thresholds
from ..creation.fill import empty
from .view_as_real import view_as_real


def limit_of(tensor: Any) -> int:
    """Return the maximal number of elements in a tile, on a tensor's device."""
    return thresholds.tile_elements(tensor.device.type in ("cpu", "meta"))


def tiles(*tensors: Any) -> Iterator[Sequence[Any]]:
    """Yield matching detached views of tensors of one shape, each no larger than a tile.

    Args:
        *tensors: The first decides; complex ones are viewed as real; None stays None.
    """
    views = [
        None if t is None else view_as_real(t.detach()) if t.is_complex() else t.detach()
        for t in tensors
    ]
    yield from execution.current.tiles(_cut, views, limit_of(tensors[0]))


given_ops.tiles = tiles


def reserve(tensor: Any, count: int) -> None:
    """Allocate and free so many tiles, so that a memory limit refuses them before any write."""
    size = count * min(tensor.numel(), limit_of(tensor))
    empty(size, dtype=tensor.dtype, device=tensor.device)


def _cut(views: list[Any], limit: int) -> Iterator[Sequence[Any]]:
    n = views[0].numel()
    if n <= limit:
        yield views
        return
    if all(t is None or t.is_contiguous() for t in views):
        views = [None if t is None else t.view(-1) for t in views]
    rows = views[0].shape[0]
    step = limit * rows // n
    for k in range(0, rows, max(step, 1)):
        if step:
            yield [None if t is None else t[k : k + step] for t in views]
        else:  # one row is too long by itself
            row = [None if t is None else t[k] for t in views]
            yield from execution.current.tiles(_cut, row, limit)
