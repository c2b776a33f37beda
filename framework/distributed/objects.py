"""Collective operations on Python objects.

Objects travel in the format of ``lowtide.save``: tensors, numbers, strings and nestings of these.
Nothing is pickled, so what a rank receives runs no code.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ..dtypes import int64, uint8
from ..ops.creation.fill import empty, zeros
from ..ops.creation.from_data import from_numpy
from ..serialization.save_load import load, save
from ..tensor import Tensor
from . import collectives
from .process_group import ProcessGroup, resolve


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Write a copy of each rank's object into a list, on all ranks."""
    where = resolve(group, "all_gather_object")
    _room(where, object_list, "all_gather_object")
    own = _packed(obj)
    lengths = [empty(1, dtype=int64) for _ in range(where.size())]
    collectives.all_gather(lengths, _number(own.numel()), where)
    data = [empty(int(n), dtype=uint8) for n in lengths]
    collectives.all_to_all(data, [own] * where.size(), where)
    object_list[:] = map(_unpacked, data)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
) -> None:
    """Write a copy of each rank's object into a list of rank ``dst``, by default 0."""
    where = resolve(group, "gather_object")
    root = _root(where, dst, group_dst, "gather_object")
    if where.rank() == root:
        _room(where, object_gather_list, "gather_object")
    elif object_gather_list is not None:
        raise ValueError("gather_object: only rank dst gives object_gather_list; leave it out.")
    own = _packed(obj)
    lengths = [empty(1, dtype=int64) for _ in range(where.size())]
    collectives.all_gather(lengths, _number(own.numel()), where)
    receives = where.rank() == root
    data = [empty(int(n) if receives else 0, dtype=uint8) for n in lengths]
    nothing = empty(0, dtype=uint8)
    given = [own if rank == root else nothing for rank in range(where.size())]
    collectives.all_to_all(data, given, where)
    if receives and object_gather_list is not None:
        object_gather_list[:] = map(_unpacked, data)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> None:
    """Give all ranks the objects of rank ``src``, by default 0."""
    where = resolve(group, "broadcast_object_list")
    root = _root(where, src, group_src, "broadcast_object_list")
    if where.size() == 1:
        return
    sends = where.rank() == root
    own = _packed(list(object_list)) if sends else empty(0, dtype=uint8)
    length = _number(own.numel())
    collectives.broadcast(length, group=where, group_src=root)
    data = own if sends else empty(int(length), dtype=uint8)
    collectives.broadcast(data, group=where, group_src=root)
    if not sends:
        found = _unpacked(data)
        if len(found) != len(object_list):
            raise ValueError(
                f"broadcast_object_list: rank {root} sends {len(found)} objects, and object_list "
                f"has {len(object_list)} here. Give lists of one length."
            )
        object_list[:] = found


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
) -> None:
    """Write into the first entry of a list this rank's object of a list of rank ``src``."""
    where = resolve(group, "scatter_object_list")
    root = _root(where, src, group_src, "scatter_object_list")
    if where.rank() == root:
        _room(where, scatter_object_input_list, "scatter_object_list")
    if not scatter_object_output_list:
        raise ValueError("scatter_object_list: scatter_object_output_list must have an entry.")
    nothing = empty(0, dtype=uint8)
    given = [nothing] * where.size()
    if where.rank() == root and scatter_object_input_list is not None:
        given = [_packed(obj) for obj in scatter_object_input_list]
    lengths = zeros(where.size(), dtype=int64)
    for rank, some in enumerate(given):
        lengths[rank] = some.numel()
    collectives.broadcast(lengths, group=where, group_src=root)
    from_root = int(lengths[where.rank()])
    data = [empty(from_root if rank == root else 0, dtype=uint8) for rank in range(where.size())]
    collectives.all_to_all(data, given, where)
    scatter_object_output_list[0] = _unpacked(data[root])


def _packed(obj: Any) -> Tensor:
    file = io.BytesIO()
    save(obj, file)
    found: Tensor = from_numpy(np.frombuffer(file.getvalue(), np.uint8).copy())
    return found


def _unpacked(data: Tensor) -> Any:
    return load(io.BytesIO(data.numpy().tobytes()))


def _number(value: int) -> Tensor:
    found: Tensor = empty(1, dtype=int64)
    found.fill_(value)
    return found


def _root(where: ProcessGroup, rank: int | None, group_rank: int | None, op_name: str) -> int:
    if group_rank is not None:
        where.global_rank(group_rank, op_name)
        return group_rank
    return where.group_rank(rank or 0, op_name)


def _room(where: ProcessGroup, objects: list[Any] | None, op_name: str) -> None:
    if objects is None or len(objects) != where.size():
        raise ValueError(
            f"{op_name}: the list must have one entry a rank, so {where.size()}; it has"
            f" {'none' if objects is None else len(objects)}."
        )
