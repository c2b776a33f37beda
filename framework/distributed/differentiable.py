"""Collective operations inside the graph: what they return has a gradient.

Of one process: a sum over ranks is a copy of its one tensor, whose gradient passes unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..tensor import Tensor
from .collectives import ReduceOp, _check, _only
from .process_group import only_rank, resolve


def all_reduce(tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None) -> Tensor:
    """Return the reduction of a tensor over all ranks."""
    resolve(group, "all_reduce")
    _check(tensor, "all_reduce", op)
    return tensor.clone()


def reduce(tensor: Tensor, dst: int, op: ReduceOp = ReduceOp.SUM, group: Any = None) -> Tensor:
    """Return the reduction of a tensor over all ranks, to rank ``dst``."""
    only_rank(dst, group, "reduce")
    return all_reduce(tensor, op, group)


def broadcast(tensor: Tensor, src: int, group: Any = None) -> Tensor:
    """Return the tensor of rank ``src``."""
    only_rank(src, group, "broadcast")
    return all_reduce(tensor, group=group)


def all_gather(tensor: Tensor, group: Any = None) -> tuple[Tensor, ...]:
    """Return the tensors of all ranks, one."""
    return (all_reduce(tensor, group=group),)


def gather(tensor: Tensor, dst: int = 0, group: Any = None) -> tuple[Tensor, ...]:
    """Return the tensors of all ranks, to rank ``dst``."""
    only_rank(dst, group, "gather")
    return all_gather(tensor, group)


def scatter(tensors: Sequence[Tensor], src: int = 0, group: Any = None) -> Tensor:
    """Return this rank's tensor of the list of rank ``src``."""
    only_rank(src, group, "scatter")
    return all_reduce(_only(tensors, "scatter", "tensors"), group=group)


def reduce_scatter(
    output: Tensor, input_list: Sequence[Tensor], op: ReduceOp = ReduceOp.SUM, group: Any = None
) -> Tensor:
    """Return this rank's entry of the lists of all ranks, reduced; ``output`` is not written."""
    return all_reduce(_only(input_list, "reduce_scatter", "input_list"), op, group)


def all_to_all(
    output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Any = None
) -> tuple[Tensor, ...]:
    """Return the tensors that all ranks send to this one."""
    return all_gather(_only(input_tensor_list, "all_to_all", "input_tensor_list"), group)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
) -> Tensor:
    """Return the parts that all ranks send to this one, behind one another."""
    return all_reduce(input, group=group)


class group:
    """Holder of the default group under ``distributed.nn``: None stands for it."""

    WORLD = None
