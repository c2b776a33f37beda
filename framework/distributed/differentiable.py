"""Collective operations inside the graph: what they return has a gradient.

The gradient of each is the collective that carries gradients the other way: of a sum over ranks a
sum over ranks, of a broadcast a sum to the root. So every rank must run backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autograd.function import Function
from ..ops.creation.fill import empty
from ..ops.manipulation.cat import cat
from ..tensor import Tensor
from . import collectives
from .collectives import ReduceOp
from .process_group import ProcessGroup, resolve


class _AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, op: ReduceOp, group: Any) -> Tensor:
        ctx.op, ctx.group = op, group
        out = tensor.clone()
        collectives.all_reduce(out, op, group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _AllReduce.apply(grad, ctx.op, ctx.group), None, None


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, op: ReduceOp, group: Any) -> Tensor:
        ctx.root, ctx.group = root, group
        out = tensor.clone()
        collectives.reduce(out, op=op, group=group, group_dst=root)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Broadcast.apply(grad, ctx.root, ctx.group), None, None, None


class _Broadcast(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, group: Any) -> Tensor:
        ctx.root, ctx.group = root, group
        out = tensor.clone()
        collectives.broadcast(out, group=group, group_src=root)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        found = _Reduce.apply(grad, ctx.root, ReduceOp.SUM, ctx.group)
        return found if ctx.group.rank() == ctx.root else grad * 0, None, None


class _AllToAll(Function):
    """Entry i of the inputs goes to rank i; ``looks`` says what the outputs look like."""

    @staticmethod
    def forward(ctx: Any, group: Any, looks: list[Any], *tensors: Tensor) -> Any:
        ctx.group, ctx.looks = group, _looks(tensors)
        out = [empty(shape, dtype=dtype, device=device) for shape, dtype, device in looks]
        collectives.all_to_all(out, [t.contiguous() for t in tensors], group)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, None, *_AllToAll.apply(ctx.group, ctx.looks, *grads)


def _looks(tensors: Sequence[Tensor]) -> list[Any]:
    return [(tuple(t.shape), t.dtype, t.device) for t in tensors]


def all_reduce(tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None) -> Tensor:
    """Return the reduction of a tensor over all ranks."""
    where = resolve(group, "all_reduce")
    collectives.check(tensor, "all_reduce", op)
    return _tensor(_AllReduce.apply(tensor, op, where))


def reduce(tensor: Tensor, dst: int, op: ReduceOp = ReduceOp.SUM, group: Any = None) -> Tensor:
    """Return the reduction of a tensor over all ranks, to rank ``dst``."""
    where = resolve(group, "reduce")
    collectives.check(tensor, "reduce", op)
    return _tensor(_Reduce.apply(tensor, where.group_rank(dst, "reduce"), op, where))


def broadcast(tensor: Tensor, src: int, group: Any = None) -> Tensor:
    """Return the tensor of rank ``src``."""
    where = resolve(group, "broadcast")
    return _tensor(_Broadcast.apply(tensor, where.group_rank(src, "broadcast"), where))


def all_gather(tensor: Tensor, group: Any = None) -> tuple[Tensor, ...]:
    """Return the tensors of all ranks."""
    where = resolve(group, "all_gather")
    given = [tensor] * where.size()
    return tuple(_AllToAll.apply(where, _looks(given), *given))


def gather(tensor: Tensor, dst: int = 0, group: Any = None) -> tuple[Tensor, ...]:
    """Return the tensors of all ranks, to rank ``dst``; to others zeros."""
    where = resolve(group, "gather")
    root = where.group_rank(dst, "gather")
    found = all_gather(tensor, where)
    return found if where.rank() == root else tuple(t * 0 for t in found)


def scatter(tensors: Sequence[Tensor], src: int = 0, group: Any = None) -> Tensor:
    """Return this rank's tensor of the list of rank ``src``; others give a list like it."""
    where = resolve(group, "scatter")
    root = where.group_rank(src, "scatter")
    collectives.count(where, tensors, "scatter", "tensors")
    own: Tensor = all_to_all(tensors, tensors, where)[root]
    return own


def reduce_scatter(
    output: Tensor, input_list: Sequence[Tensor], op: ReduceOp = ReduceOp.SUM, group: Any = None
) -> Tensor:
    """Return this rank's entry of the lists of all ranks, reduced; ``output`` is not written."""
    where = resolve(group, "reduce_scatter")
    collectives.count(where, input_list, "reduce_scatter", "input_list")
    if op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise ValueError(f"reduce_scatter: {op.name} has no gradient here. Take SUM or AVG.")
    total, *more = all_to_all([output] * where.size(), input_list, where)
    for tensor in more:
        total = total + tensor
    return total / where.size() if op is ReduceOp.AVG else total


def all_to_all(
    output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Any = None
) -> tuple[Tensor, ...]:
    """Return the tensors that all ranks send to this one, which are like ``output_tensor_list``."""
    where = resolve(group, "all_to_all")
    for name, tensors in (("output", output_tensor_list), ("input", input_tensor_list)):
        collectives.count(where, tensors, "all_to_all", f"{name}_tensor_list")
    return tuple(_AllToAll.apply(where, _looks(output_tensor_list), *input_tensor_list))


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
) -> Tensor:
    """Return the parts that all ranks send to this one, one after the other."""
    where = resolve(group, "all_to_all_single")
    given = input.split(list(input_split_sizes or _equal(where, input)))
    like = output.split(list(output_split_sizes or _equal(where, output)))
    return _tensor(cat(all_to_all(like, given, where)))


def _equal(where: ProcessGroup, tensor: Tensor) -> list[int]:
    return [len(tensor) // where.size()] * where.size()


def _tensor(found: Any) -> Tensor:
    assert isinstance(found, Tensor)
    return found


class group:
    """Holder of the default group under ``distributed.nn``: None stands for it."""

    WORLD = None
