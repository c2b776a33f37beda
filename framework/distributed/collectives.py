"""Collective operations on tensors, in a group of one process.

With one rank a reduction of one tensor is that tensor, a gathered list has one entry, and what is
scattered is what came in. Arguments are checked as for many ranks. ``async_op=True`` returns a
``Work`` that is done already.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

from ..modes import no_grad
from ..tensor import Tensor
from .process_group import Work, only_rank, resolve


class ReduceOp(enum.Enum):
    """How the tensors of all ranks become one."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7
    PREMUL_SUM = 8

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"ReduceOp: {value!r} is none of {[op.name for op in cls]}.")


reduce_op = ReduceOp
ReduceOp.RedOpType = ReduceOp  # type: ignore[attr-defined]  # PyTorch's enum below its class
_OF_BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_NOT_OF_COMPLEX = (ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, *_OF_BITS)


def all_reduce(
    tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Any:
    """Reduce a tensor over all ranks, in place: with one rank, leave it as it is."""
    resolve(group, "all_reduce")
    _check(tensor, "all_reduce", op)
    return _done(async_op, tensor)


def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Reduce each tensor of a list over all ranks, in place."""
    resolve(group, "all_reduce_coalesced")
    for tensor in tensors:
        _check(tensor, "all_reduce_coalesced", op)
    return _done(async_op, *tensors)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Any:
    """Reduce a tensor over all ranks into that of rank ``dst``."""
    only_rank(_one_of(dst, group_dst, "reduce"), group, "reduce")
    _check(tensor, "reduce", op)
    return _done(async_op, tensor)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Any:
    """Give all ranks the tensor of rank ``src``."""
    only_rank(_one_of(src, group_src, "broadcast"), group, "broadcast")
    _check(tensor, "broadcast")
    return _done(async_op, tensor)


def all_gather(
    tensor_list: Sequence[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False
) -> Any:
    """Write the tensor of each rank into a list of tensors, on all ranks."""
    resolve(group, "all_gather")
    _check(tensor, "all_gather")
    _copy(_only(tensor_list, "all_gather", "tensor_list"), tensor, "all_gather")
    return _done(async_op, *tensor_list)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
) -> Any:
    """Write the tensors of all ranks behind or above one another into one, on all ranks."""
    resolve(group, "all_gather_into_tensor")
    _check(input_tensor, "all_gather_into_tensor")
    _copy(output_tensor, input_tensor, "all_gather_into_tensor", stacked=True)
    return _done(async_op, output_tensor)


def gather(
    tensor: Tensor,
    gather_list: Sequence[Tensor] | None = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Any:
    """Write the tensor of each rank into a list of rank ``dst``."""
    only_rank(_one_of(dst, group_dst, "gather", 0), group, "gather")
    _check(tensor, "gather")
    if gather_list is None:
        raise ValueError("gather: rank dst needs gather_list, one tensor a rank.")
    _copy(_only(gather_list, "gather", "gather_list"), tensor, "gather")
    return _done(async_op, *gather_list)


def scatter(
    tensor: Tensor,
    scatter_list: Sequence[Tensor] | None = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Any:
    """Give each rank its tensor of a list of rank ``src``."""
    only_rank(_one_of(src, group_src, "scatter", 0), group, "scatter")
    if scatter_list is None:
        raise ValueError("scatter: rank src needs scatter_list, one tensor a rank.")
    _copy(tensor, _only(scatter_list, "scatter", "scatter_list"), "scatter")
    return _done(async_op, tensor)


def reduce_scatter(
    output: Tensor,
    input_list: Sequence[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Reduce a list of tensors over all ranks, entry by entry, and give each rank its entry."""
    resolve(group, "reduce_scatter")
    source = _only(input_list, "reduce_scatter", "input_list")
    _check(source, "reduce_scatter", op)
    _copy(output, source, "reduce_scatter")
    return _done(async_op, output)


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Reduce a tensor over all ranks and give each rank its part of the rows."""
    resolve(group, "reduce_scatter_tensor")
    _check(input, "reduce_scatter_tensor", op)
    _copy(output, input, "reduce_scatter_tensor", stacked=True)
    return _done(async_op, output)


def all_to_all(
    output_tensor_list: Sequence[Tensor],
    input_tensor_list: Sequence[Tensor],
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Send entry i of a list to rank i, and receive one from each."""
    resolve(group, "all_to_all")
    source = _only(input_tensor_list, "all_to_all", "input_tensor_list")
    _copy(_only(output_tensor_list, "all_to_all", "output_tensor_list"), source, "all_to_all")
    return _done(async_op, *output_tensor_list)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Send part i of a tensor's rows to rank i, and receive one part from each."""
    resolve(group, "all_to_all_single")
    _check(input, "all_to_all_single")
    for name, sizes, tensor in (
        ("output_split_sizes", output_split_sizes, output),
        ("input_split_sizes", input_split_sizes, input),
    ):
        if sizes and list(sizes) != [len(tensor)]:
            raise ValueError(
                f"all_to_all_single: {name}={list(sizes)} of a tensor of {len(tensor)} rows and "
                "one rank; leave it out."
            )
    _copy(output, input, "all_to_all_single")
    return _done(async_op, output)


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
    """Wait for all ranks: return at once."""
    resolve(group, "barrier")
    return _done(async_op)


def monitored_barrier(
    group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait for all ranks and name those that do not come: return at once."""
    resolve(group, "monitored_barrier")


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> NoReturn:
    """Refused: there is no other rank to send to."""
    _no_peer("send", group)


def recv(
    tensor: Tensor,
    src: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_src: int | None = None,
) -> NoReturn:
    """Refused: there is no other rank to receive from."""
    _no_peer("recv", group)


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> NoReturn:
    """Refused: there is no other rank to send to."""
    _no_peer("isend", group)


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_src: int | None = None,
) -> NoReturn:
    """Refused: there is no other rank to receive from."""
    _no_peer("irecv", group)


def batch_isend_irecv(p2p_op_list: Sequence[Any]) -> list[Work]:
    """Refused unless the list is empty: there is no other rank."""
    if p2p_op_list:
        _no_peer("batch_isend_irecv", None)
    return []


def _no_peer(op_name: str, group: Any) -> NoReturn:
    resolve(group, op_name)
    raise ValueError(
        f"{op_name}: the group has one process, and no rank to exchange with. PyTorch waits for"
        " good here; guard the call with get_world_size() > 1."
    )


def _check(tensor: Any, op_name: str, op: Any = ReduceOp.SUM) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{op_name}: expected a tensor; got {type(tensor).__name__}.")
    if op in _NOT_OF_COMPLEX and tensor.is_complex():
        raise ValueError(
            f"{op_name}: {op.name} does not work on complex tensors; got {tensor.dtype}. Take"
            " SUM or AVG, or reduce lowtide.view_as_real(tensor)."
        )
    if op in _OF_BITS and tensor.is_floating_point():
        raise RuntimeError(f"{op_name}: {op.name} works on integers; got {tensor.dtype}.")
    ReduceOp(op)


def _one_of(
    rank: int | None, group_rank: int | None, op_name: str, default: int | None = None
) -> int:
    if rank is not None and group_rank is not None:
        raise ValueError(f"{op_name}: name the rank in the world or in the group, not both.")
    found = rank if rank is not None else group_rank if group_rank is not None else default
    if found is None:
        raise ValueError(f"{op_name}: which rank? Name it.")
    return found


def _only(tensors: Sequence[Tensor], op_name: str, argument: str) -> Tensor:
    if len(tensors) != 1:
        raise ValueError(
            f"{op_name}: {argument} must have one tensor a rank, so 1; it has {len(tensors)}."
        )
    _check(tensors[0], op_name)
    return tensors[0]


def _copy(target: Tensor, source: Tensor, op_name: str, stacked: bool = False) -> None:
    _check(target, op_name)
    shapes = [tuple(source.shape)] + ([(1, *source.shape)] if stacked else [])
    if tuple(target.shape) not in shapes or target.dtype != source.dtype:
        raise ValueError(
            f"{op_name}: the output must have shape {' or '.join(map(str, shapes))} and dtype"
            f" {source.dtype}; it has {tuple(target.shape)} and {target.dtype}."
        )
    with no_grad():
        target.copy_(source.reshape(target.shape))


def _done(async_op: bool, *result: Tensor) -> Work | None:
    return Work(result) if async_op else None
