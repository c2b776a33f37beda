"""Collective operations on Python objects, in a group of one process.

PyTorch pickles what travels; here nothing travels, but what arrives is a copy all the same, so that
a program that writes into it does what it does with many ranks.
"""

from __future__ import annotations

import copy
from typing import Any

from .process_group import only_rank, resolve


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Write a copy of each rank's object into a list, on all ranks."""
    resolve(group, "all_gather_object")
    _room(object_list, "all_gather_object")
    object_list[0] = copy.deepcopy(obj)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
) -> None:
    """Write a copy of each rank's object into a list of rank ``dst``."""
    only_rank(dst or group_dst or 0, group, "gather_object")
    _room(object_gather_list, "gather_object")
    assert object_gather_list is not None
    object_gather_list[0] = copy.deepcopy(obj)


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    use_batch: bool = False,
) -> None:
    """Give all ranks the objects of rank ``src``: with one rank, leave them."""
    only_rank(src or group_src or 0, group, "broadcast_object_list")


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
) -> None:
    """Write into a list of one entry this rank's object of a list of rank ``src``, as a copy."""
    only_rank(src or group_src or 0, group, "scatter_object_list")
    _room(scatter_object_input_list, "scatter_object_list")
    if not scatter_object_output_list:
        raise ValueError("scatter_object_list: scatter_object_output_list must have an entry.")
    assert scatter_object_input_list is not None
    scatter_object_output_list[0] = copy.deepcopy(scatter_object_input_list[0])


def _room(objects: list[Any] | None, op_name: str) -> None:
    if objects is None or len(objects) != 1:
        raise ValueError(
            f"{op_name}: the list must have one entry a rank, so 1; it has"
            f" {'none' if objects is None else len(objects)}."
        )
