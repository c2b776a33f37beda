"""Collective operations on tensors, between the processes of a group.

Arguments are checked on each rank, and compared between ranks, before anything is written. With one
rank a reduction of one tensor is that tensor, a gathered list has one entry, and what is scattered
is what came in. ``async_op=True`` returns a ``Work``, whose ``wait`` ends what has begun.

An interrupted collective (Ctrl-C, a deadline, a rank that ends) leaves what it writes undefined,
and ends the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from math import prod
from typing import Any

from ..tensor import Tensor
from . import movement, reduction
from .buffers import Buffer, Parts
from .channel import Call, Steps
from .process_group import ProcessGroup, resolve
from .reduction import ReduceOp as ReduceOp
from .work import Work
from .workspace import Workspace

reduce_op = ReduceOp
_OF_BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_NOT_OF_COMPLEX = (ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, *_OF_BITS)


def all_reduce(
    tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Any:
    """Reduce a tensor over all ranks, in place, in the order of ranks."""
    where = resolve(group, "all_reduce")
    check(tensor, "all_reduce", op)
    work = begin_all_reduce(tensor, op, where, "all_reduce")
    if async_op:
        return work
    work.wait()
    return None


def begin_all_reduce(
    tensor: Tensor,
    op: ReduceOp,
    where: ProcessGroup,
    name: str,
    space: Workspace | None = None,
    block: int = reduction.BLOCK,
) -> Work:
    """Begin to reduce a tensor under a name that all ranks must agree about.

    Args:
        tensor: The tensor, reduced in place.
        op: How.
        where: The group.
        name: The name.
        space: Workspace that reductions share; a separate one if None.
        block: Bytes that are under way at a time.
    """
    buffer = Buffer(tensor, "all_reduce")
    if space is None:
        space = Workspace(_all_reduce_bytes([buffer], where))
    made = reduction.all_reduce(buffer.flat, op, space, block)
    work = where.run(_line(name, tensor, op.name), made, [buffer], [tensor], True, space)
    assert work is not None
    return work


def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Reduce each tensor of a list over all ranks, in place."""
    where = resolve(group, "all_reduce_coalesced")
    for tensor in tensors:
        check(tensor, "all_reduce_coalesced", op)
    buffers = [Buffer(tensor, "all_reduce_coalesced") for tensor in tensors]
    space = Workspace(_all_reduce_bytes(buffers, where))

    def steps(call: Any) -> Any:
        for buffer in buffers:
            yield from reduction.all_reduce(buffer.flat, op, space)(call)

    line = "all_reduce_coalesced " + ", ".join(_line("", t, op.name) for t in tensors)
    return where.run(line, steps, buffers, list(tensors), async_op, space)


def _all_reduce_bytes(buffers: list[Buffer], where: ProcessGroup) -> int:
    flats = [buffer.flat for buffer in buffers]
    sizes = [reduction.all_reduce_bytes(t.numel(), t.itemsize, where.size()) for t in flats]
    return max(sizes, default=0)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Any:
    """Reduce a tensor over all ranks into that of rank ``dst``; those of other ranks stay."""
    where = resolve(group, "reduce")
    root = _root(where, dst, group_dst, "reduce")
    check(tensor, "reduce", op)
    buffer = Buffer(tensor, "reduce" if where.rank() == root else None)
    size = where.size()
    space = Workspace(reduction.reduce_bytes(buffer.flat, size) if where.rank() == root else 0)
    made = reduction.reduce(buffer.flat, op, root, space)
    line = _line("reduce", tensor, op.name, root)
    return where.run(line, made, [buffer], [tensor], async_op, space)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Any:
    """Give all ranks the tensor of rank ``src``."""
    where = resolve(group, "broadcast")
    root = _root(where, src, group_src, "broadcast")
    check(tensor, "broadcast")
    buffer = Buffer(tensor, None if where.rank() == root else "broadcast")
    made = movement.broadcast(buffer.flat, root)
    return where.run(_line("broadcast", tensor, root=root), made, [buffer], [tensor], async_op)


def all_gather(
    tensor_list: Sequence[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False
) -> Any:
    """Write the tensor of each rank into a list of tensors, on all ranks."""
    where = resolve(group, "all_gather")
    check(tensor, "all_gather")
    _list(where, tensor_list, tensor, "all_gather", "tensor_list")
    own, into = Buffer(tensor), [Buffer(t, "all_gather") for t in tensor_list]
    made = movement.all_gather(own.flat, [b.flat for b in into])
    return where.run(_line("all_gather", tensor), made, into, list(tensor_list), async_op)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
) -> Any:
    """Write the tensors of all ranks behind or above one another into one, on all ranks."""
    name = "all_gather_into_tensor"
    where = resolve(group, name)
    check(input_tensor, name)
    _stacked(where, output_tensor, input_tensor, name, "output")
    own = Buffer(input_tensor)
    into = Parts(output_tensor, [input_tensor.numel()] * where.size(), name)
    made = movement.all_gather(own.flat, into.parts)
    return where.run(_line(name, input_tensor), made, [into], [output_tensor], async_op)


def all_gather_parts(
    parts: Sequence[Sequence[Tensor]], own: Sequence[Tensor], where: ProcessGroup, name: str
) -> None:
    """Write parts of any lengths into lists, on all ranks; several tensors travel at once.

    Args:
        parts: Of each tensor, a flat tensor for each rank, contiguous and on the CPU.
        own: Of each tensor, this rank's part, alike.
        where: The group.
        name: What ranks compare, beside the number of elements.
    """
    made = [movement.all_gather(flat, into) for flat, into in zip(own, parts, strict=True)]

    def steps(call: Call) -> Steps:
        yield []
        yield [transfer for one in made for posted in one(call) for transfer in posted]

    numel = sum(part.numel() for into in parts for part in into)
    where.run(f"gather {name[-60:]}, {len(made)} tensors of {numel}", steps, [], [], False)


def reduce_scatter_parts(
    out: Tensor, parts: Sequence[Tensor], where: ProcessGroup, name: str
) -> None:
    """Average parts of any lengths over all ranks, and give each rank its part.

    Args:
        out: Where this rank's goes; flat, contiguous and on the CPU, as all of them.
        parts: A flat tensor for each rank.
        where: The group.
        name: What ranks compare, beside the number of elements.
    """
    longest = max(parts, key=lambda t: t.numel())
    space = Workspace(reduction.reduce_bytes(longest, where.size()))
    made = reduction.reduce_scatter(out, list(parts), ReduceOp.AVG, space)
    numel = sum(part.numel() for part in parts)
    where.run(f"average {name[-60:]} of {numel}", made, [], [], False, space)


def gather(
    tensor: Tensor,
    gather_list: Sequence[Tensor] | None = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Any:
    """Write the tensor of each rank into a list of rank ``dst``."""
    where = resolve(group, "gather")
    root = _root(where, dst, group_dst, "gather", 0)
    check(tensor, "gather")
    into = _of_root(where, gather_list, tensor, root, "gather", "dst", "gather_list", "gather")
    own = Buffer(tensor)
    made = movement.gather(own.flat, [b.flat for b in into], root)
    line = _line("gather", tensor, root=root)
    return where.run(line, made, into, list(gather_list or ()), async_op)


def scatter(
    tensor: Tensor,
    scatter_list: Sequence[Tensor] | None = None,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Any:
    """Give each rank its tensor of a list of rank ``src``."""
    where = resolve(group, "scatter")
    root = _root(where, src, group_src, "scatter", 0)
    check(tensor, "scatter")
    given = _of_root(where, scatter_list, tensor, root, "scatter", "src", "scatter_list")
    own = Buffer(tensor, "scatter")
    made = movement.scatter(own.flat, [b.flat for b in given], root)
    return where.run(_line("scatter", tensor, root=root), made, [own], [tensor], async_op)


def reduce_scatter(
    output: Tensor,
    input_list: Sequence[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Reduce a list of tensors over all ranks, entry by entry, and give each rank its entry."""
    where = resolve(group, "reduce_scatter")
    check(output, "reduce_scatter", op)
    _list(where, input_list, output, "reduce_scatter", "input_list")
    out, given = Buffer(output, "reduce_scatter"), [Buffer(t) for t in input_list]
    space = Workspace(reduction.reduce_bytes(out.flat, where.size()))
    made = reduction.reduce_scatter(out.flat, [b.flat for b in given], op, space)
    line = _line("reduce_scatter", output, op.name)
    return where.run(line, made, [out], [output], async_op, space)


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Reduce a tensor over all ranks and give each rank its part, as long as ``output``."""
    name = "reduce_scatter_tensor"
    where = resolve(group, name)
    check(output, name, op)
    _stacked(where, input, output, name, "input")
    out = Buffer(output, name)
    given = Parts(input, [output.numel()] * where.size())
    space = Workspace(reduction.reduce_bytes(out.flat, where.size()))
    made = reduction.reduce_scatter(out.flat, given.parts, op, space)
    return where.run(_line(name, output, op.name), made, [out], [output], async_op, space)


def all_to_all(
    output_tensor_list: Sequence[Tensor],
    input_tensor_list: Sequence[Tensor],
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Send entry i of a list to rank i, and receive one from each."""
    where = resolve(group, "all_to_all")
    lists = {"output_tensor_list": output_tensor_list, "input_tensor_list": input_tensor_list}
    for argument, tensors in lists.items():
        count(where, tensors, "all_to_all", argument)
    own = where.rank()
    _same(output_tensor_list[own], input_tensor_list[own], "all_to_all")
    into = [Buffer(t, "all_to_all") for t in output_tensor_list]
    given = [Buffer(t) for t in input_tensor_list]
    made = movement.all_to_all([b.flat for b in into], [b.flat for b in given])
    line = f"all_to_all of {input_tensor_list[0].dtype}"
    return where.run(line, made, into, list(output_tensor_list), async_op)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Send part i of a tensor along dim 0 to rank i, and receive one part from each.

    Args:
        output: Where the parts go, one after the other.
        input: What is sent.
        output_split_sizes: Lengths along dim 0 of what each rank sends; equal ones if left out.
        input_split_sizes: Lengths along dim 0 of what each rank gets; equal ones if left out.
        group: The group; the default one if None.
        async_op: Return a ``Work`` at once.
    """
    name = "all_to_all_single"
    where = resolve(group, name)
    check(input, name)
    check(output, name)
    if output.dtype != input.dtype or output.shape[1:] != input.shape[1:]:
        raise ValueError(
            f"{name}: output and input must have one dtype, and one shape but for dim 0; they have "
            f"{output.dtype} {tuple(output.shape)} and {input.dtype} {tuple(input.shape)}."
        )
    into = Parts(output, _splits(where, output, output_split_sizes, "output_split_sizes"), name)
    given = Parts(input, _splits(where, input, input_split_sizes, "input_split_sizes"))
    own = where.rank()
    if into.parts[own].numel() != given.parts[own].numel():
        raise ValueError(
            f"{name}: rank {own} sends itself {given.parts[own].numel()} elements, and expects "
            f"{into.parts[own].numel()}. Give output_split_sizes what the ranks send."
        )
    made = movement.all_to_all(into.parts, given.parts)
    line = f"{name} of {input.dtype} (any, {', '.join(map(str, input.shape[1:]))})"
    return where.run(line, made, [into], [output], async_op)


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
    """Wait until all ranks have called it."""
    return resolve(group, "barrier").run("barrier", movement.nothing, [], [], async_op)


def monitored_barrier(
    group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait for all ranks, with a separate timeout; the error names those that did not come."""
    where = resolve(group, "monitored_barrier")
    where.channel.start("monitored_barrier", movement.nothing).wait(timeout)


# What is checked


def _line(name: str, tensor: Tensor, op: str = "", root: int | None = None) -> str:
    # What all ranks must agree about.
    words = [name, op, "of", str(tensor.dtype).rpartition(".")[2], str(tuple(tensor.shape))]
    words += [] if root is None else [f"root {root}"]
    return " ".join(word for word in words if word)


def check(tensor: Any, op_name: str, op: Any = ReduceOp.SUM) -> None:
    """Raise an error unless ``tensor`` is one, and of a dtype that ``op`` reduces."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{op_name}: expected a tensor; got {type(tensor).__name__}.")
    if tensor.is_sparse:
        raise ValueError(f"{op_name}: sparse tensors are not sent; call to_dense() first.")
    ReduceOp(op)
    if op in _NOT_OF_COMPLEX and tensor.is_complex():
        raise ValueError(
            f"{op_name}: {op.name} does not work on complex tensors; got {tensor.dtype}. Take"
            " SUM or AVG, or reduce lowtide.view_as_real(tensor)."
        )
    if op in _OF_BITS and tensor.is_floating_point():
        raise RuntimeError(f"{op_name}: {op.name} works on integers; got {tensor.dtype}.")
    if op is ReduceOp.AVG and not (tensor.is_floating_point() or tensor.is_complex()):
        raise RuntimeError(
            f"{op_name}: AVG works on floating-point numbers; got {tensor.dtype}. Take SUM, and "
            "divide."
        )
    if op is ReduceOp.PREMUL_SUM:
        raise NotImplementedError(f"{op_name}: PREMUL_SUM has no factor here; multiply first.")


def _root(
    where: ProcessGroup,
    rank: int | None,
    group_rank: int | None,
    op_name: str,
    default: int | None = None,
) -> int:
    # The rank in the group of one that is named in the world or in the group.
    if rank is not None and group_rank is not None:
        raise ValueError(f"{op_name}: name the rank in the world or in the group, not both.")
    if group_rank is None and rank is not None:
        return where.group_rank(rank, op_name)
    found = default if group_rank is None else group_rank
    if found is None:
        raise ValueError(f"{op_name}: which rank? Name it.")
    where.global_rank(found, op_name)
    return found


def count(where: ProcessGroup, tensors: Sequence[Tensor], op_name: str, argument: str) -> None:
    """Raise an error unless a list has a tensor for each rank."""
    size = where.size()
    if len(tensors) != size:
        raise ValueError(
            f"{op_name}: {argument} must have one tensor a rank, so {size}; it has {len(tensors)}."
        )
    for tensor in tensors:
        check(tensor, op_name)


def _list(
    where: ProcessGroup, tensors: Sequence[Tensor], like: Tensor, op_name: str, argument: str
) -> None:
    count(where, tensors, op_name, argument)
    for tensor in tensors:
        _same(tensor, like, op_name)


def _of_root(
    where: ProcessGroup,
    tensors: Sequence[Tensor] | None,
    like: Tensor,
    root: int,
    op_name: str,
    which: str,
    argument: str,
    writer: str | None = None,
) -> list[Buffer]:
    # The buffers of a list that rank ``root`` gives and no other.
    if where.rank() != root:
        if tensors:
            raise ValueError(f"{op_name}: only rank {which} gives {argument}; leave it out.")
        return []
    if tensors is None:
        raise ValueError(f"{op_name}: rank {which} needs {argument}, one tensor a rank.")
    _list(where, tensors, like, op_name, argument)
    return [Buffer(tensor, writer) for tensor in tensors]


def _same(target: Tensor, source: Tensor, op_name: str) -> None:
    _fits(target, source, [tuple(source.shape)], op_name, "output")


def _stacked(
    where: ProcessGroup, large: Tensor, small: Tensor, op_name: str, argument: str
) -> None:
    check(large, op_name)
    shape, size = tuple(small.shape), where.size()
    behind = (size * shape[0], *shape[1:]) if shape else (size,)
    _fits(large, small, list(dict.fromkeys([behind, (size, *shape)])), op_name, argument)


def _fits(
    target: Tensor, source: Tensor, shapes: list[tuple[int, ...]], op_name: str, argument: str
) -> None:
    if tuple(target.shape) not in shapes or target.dtype != source.dtype:
        raise ValueError(
            f"{op_name}: the {argument} must have shape {' or '.join(map(str, shapes))} and dtype"
            f" {source.dtype}; it has {tuple(target.shape)} and {target.dtype}."
        )


def _splits(
    where: ProcessGroup, tensor: Tensor, lengths: Sequence[int] | None, argument: str
) -> list[int]:
    # How many elements of a tensor each rank has.
    size, length = where.size(), len(tensor)
    each = prod(tensor.shape[1:])
    if not lengths:
        if length % size:
            raise ValueError(
                f"all_to_all_single: dim 0 has length {length}, which {size} ranks do not divide. "
                f"Give {argument}."
            )
        return [length // size * each] * size
    if len(lengths) != size or sum(lengths) != length or min(lengths) < 0:
        raise ValueError(
            f"all_to_all_single: {argument}={list(lengths)} must have {size} lengths, one a rank, "
            f"and their sum must be {length}, the length of dim 0."
        )
    return [n * each for n in lengths]
