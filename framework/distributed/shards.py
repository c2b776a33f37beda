"""Shards: rows of a tensor that is shared out among the ranks of a group along its first dim.

Rank r has the rows from ``r * ceil(n / N)`` on, ``ceil(n / N)`` of them or what is left: no row is
padding, and ranks beyond the last row have none.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..tensor import Tensor

if TYPE_CHECKING:
    from .process_group import ProcessGroup


class Shard(NamedTuple):
    """Which rows of which tensor a rank has.

    Attributes:
        shape: Of the tensor of all ranks.
        group: The ranks.
        name: Of the tensor.
    """

    shape: tuple[int, ...]
    group: ProcessGroup
    name: str

    def rows(self, rank: int) -> tuple[int, int]:
        """Return the first row of a rank, and the first row that is no longer its own."""
        return rows_of(self.shape[0], rank, self.group.size())

    @property
    def own(self) -> tuple[int, int]:
        """The rows of this rank."""
        return self.rows(self.group.rank())

    @property
    def row_size(self) -> int:
        """Elements of a row."""
        return prod(self.shape[1:])

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Return the part of each rank, of a flat tensor of all rows."""
        bounds = [self.rows(rank) for rank in range(self.group.size())]
        return [flat[a * self.row_size : b * self.row_size] for a, b in bounds]


def rows_of(count: int, rank: int, size: int) -> tuple[int, int]:
    """Return the rows [first, last) of a rank, of so many rows shared out among ``size`` ranks."""
    each = -(-count // size)
    return min(count, rank * each), min(count, (rank + 1) * each)


def mark(tensor: Tensor, shard: Shard) -> None:
    """Note that a tensor is a shard."""
    if tensor._extra is None:
        tensor._extra = {}
    tensor._extra["shard"] = shard


def shard_of(tensor: Any) -> Shard | None:
    """Return what a tensor is a shard of; None if it is all there is."""
    extra = getattr(tensor, "_extra", None)
    return None if extra is None else extra.get("shard")


def refuse_shards(tensors: Iterable[Any], who: str, way_out: str) -> None:
    """Raise an error for what needs all of a tensor, and gets a part of it.

    Raises:
        ValueError: A tensor is a shard, of a group of more than one rank.
    """
    for t in tensors:
        shard = shard_of(t)
        if shard is not None and shard.group.size() > 1:
            raise ValueError(
                f"{who}: {shard.name} is sharded: this rank has rows {shard.own} of shape "
                f"{shard.shape}. {way_out}"
            )
