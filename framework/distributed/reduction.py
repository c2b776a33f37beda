"""Reductions in the order of ranks: the same bits whatever the number of pieces or the transport.

Each rank adds up one part of the tensor: it receives that part of every other rank, computes
``((part of rank 0 + part of rank 1) + part of rank 2) + ...`` in the tensor's dtype, and sends the
result to all. MPI and NCCL add in an order that depends on sizes. Large tensors go
through in blocks, so the workspace is at most ``BLOCK`` bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from ..ops.elementwise.comparison import maximum, minimum
from ..tensor import Tensor
from .channel import Call, Steps
from .workspace import Turn, Workspace

SMALL = 16 << 10  # bytes of a tensor that every rank sends to all as it is: one message's time
SMALL_SPACE = 1 << 20  # bytes that all ranks' tensors then have together, at most
BLOCK = 4 << 20  # bytes of a tensor that are under way at a time


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


ReduceOp.RedOpType = ReduceOp  # type: ignore[attr-defined]  # PyTorch's enum below its class
_COMBINE: dict[ReduceOp, Callable[[Tensor, Tensor], Any]] = {  # in place
    ReduceOp.SUM: lambda total, part: total.add_(part),
    ReduceOp.AVG: lambda total, part: total.add_(part),
    ReduceOp.PRODUCT: lambda total, part: total.mul_(part),
    ReduceOp.MIN: lambda total, part: minimum(total, part, out=total),
    ReduceOp.MAX: lambda total, part: maximum(total, part, out=total),
    ReduceOp.BAND: lambda total, part: total.bitwise_and_(part),
    ReduceOp.BOR: lambda total, part: total.bitwise_or_(part),
    ReduceOp.BXOR: lambda total, part: total.bitwise_xor_(part),
}


def part_of(rank: int, size: int, start: int, stop: int) -> tuple[int, int]:
    """Return which elements of [start, stop) a rank reduces: parts of one length, the last less."""
    each = -(-(stop - start) // size)
    return min(stop, start + rank * each), min(stop, start + (rank + 1) * each)


def _block_length(itemsize: int, copies: int = 1, block: int = BLOCK) -> int:
    return max(1, block // itemsize // max(1, copies))


def blocks(flat: Tensor, length: int) -> Iterator[tuple[int, int]]:
    """Yield the blocks of a flat tensor, of so many elements each."""
    for start in range(0, flat.numel(), length):
        yield start, min(flat.numel(), start + length)


def _is_small(nbytes: int, size: int) -> bool:
    return nbytes <= min(SMALL, SMALL_SPACE // size)


def all_reduce_bytes(numel: int, itemsize: int, size: int, block: int = BLOCK) -> int:
    """Return the bytes of workspace that :func:`all_reduce` of a tensor takes among so many."""
    if not _is_small(numel * itemsize, size):
        numel = -(-min(numel, _block_length(itemsize, 1, block)) // size)
    return (size - 1) * numel * itemsize


def reduce_bytes(flat: Tensor, size: int) -> int:
    """Return the bytes that :func:`reduce` in its root and :func:`reduce_scatter` take."""
    copies = size - 1
    return copies * min(flat.numel(), _block_length(flat.itemsize, copies)) * flat.itemsize


def all_reduce(
    flat: Tensor, op: ReduceOp, space: Workspace, block: int = BLOCK
) -> Callable[[Call], Steps]:
    """Reduce a flat tensor of every rank, in place.

    Args:
        flat: Contiguous, of one dim, on the CPU.
        op: How.
        space: Workspace of ``all_reduce_bytes``.
        block: Bytes that are under way at a time, the same in all ranks.
    """

    def steps(call: Call) -> Steps:
        if call.size == 1:
            return
        turn = space.ask()
        try:
            while not turn.done:
                yield [turn]
            if _is_small(flat.numel() * flat.itemsize, call.size):
                to_send = dict.fromkeys(call.contributors, flat)
                yield from _from_all(call, flat, flat, op, to_send, turn)
            else:
                for start, stop in blocks(flat, _block_length(flat.itemsize, 1, block)):
                    yield from _block(call, flat, start, stop, op, turn)
        finally:
            space.give_back(turn)

    return steps


def _block(call: Call, flat: Tensor, start: int, stop: int, op: ReduceOp, turn: Turn) -> Steps:
    peers = call.contributors
    bounds = {rank: part_of(rank, call.size, start, stop) for rank in (*peers, call.rank)}
    parts = {rank: flat[a:b] for rank, (a, b) in bounds.items()}
    later = call.channel.transport.writes_late
    # What comes back into a part depends on that part's having arrived where it is reduced.
    results = [call.receive(p, parts[p]._array, 2) for p in peers] if later else []
    own = parts[call.rank]
    yield from _from_all(call, own, own, op, parts, turn)
    if not later:
        results = [call.receive(p, parts[p]._array, 2) for p in peers]
    yield [*results, *[call.send(p, own._array, 2) for p in peers]]


def _from_all(
    call: Call, own: Tensor, out: Tensor, op: ReduceOp, to_send: Mapping[int, Tensor], turn: Turn
) -> Steps:
    # Send a part to each rank, receive from each what this one reduces, and reduce it into out.
    every = _space(call, own, turn)
    received = [call.receive(p, t._array, like=own._array) for p, t in every.items()]
    sent = [call.send(p, to_send[p]._array) for p in every]
    yield [*received, *sent]
    every[call.rank] = own
    in_order(out, [every[rank] for rank in sorted(every)], op, call.size)


def _space(call: Call, own: Tensor, turn: Turn) -> dict[int, Tensor]:
    # Where what each other rank sends goes.
    peers = call.contributors
    return dict(zip(peers, turn.tensors(len(peers), own), strict=True))


def in_order(out: Tensor, parts: list[Tensor], op: ReduceOp, count: int) -> None:
    """Reduce parts, that of rank 0 first, into ``out``, which may be one of them.

    If it is none, the parts stay as they are; else they are workspace. AVG divides by ``count``.
    """
    total = parts[0]
    if not any(part is out for part in parts):
        total = out.copy_(total)
    for part in parts[1:]:
        if part is out:  # a sum or a product of two does not depend on their order
            _COMBINE[op](out, total)
            total = out
        else:
            _COMBINE[op](total, part)
    if op is ReduceOp.AVG:
        out.div_(count)


def reduce(flat: Tensor, op: ReduceOp, root: int, space: Workspace) -> Callable[[Call], Steps]:
    """Reduce a flat tensor of every rank into that of rank ``root``; the others stay."""

    def steps(call: Call) -> Steps:
        turn = space.ask()
        length = _block_length(flat.itemsize, call.size - 1)
        for start, stop in blocks(flat, length) if call.size > 1 else ():
            own = flat[start:stop]
            if call.rank != root:
                yield [call.send(root, own._array)]
                continue
            every = _space(call, own, turn)
            yield [call.receive(p, t._array, like=own._array) for p, t in every.items()]
            every[root] = own
            in_order(own, [every[rank] for rank in sorted(every)], op, call.size)

    return steps


def reduce_scatter(
    out: Tensor, given: list[Tensor], op: ReduceOp, space: Workspace
) -> Callable[[Call], Steps]:
    """Reduce entry r of every rank's list into ``out`` of rank r.

    Args:
        out: Flat.
        given: A flat tensor for each rank; entry r has one length in all ranks.
        op: How.
        space: Workspace of ``reduce_bytes``.
    """

    def steps(call: Call) -> Steps:
        turn = space.ask()
        longest = max(given, key=lambda t: t.numel())
        for start, stop in blocks(longest, _block_length(longest.itemsize, call.size - 1)):
            some = {rank: given[rank][start:stop] for rank in (*call.contributors, call.rank)}
            yield from _from_all(call, some[call.rank], out[start:stop], op, some, turn)

    return steps
