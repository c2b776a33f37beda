"""Reductions in the order of ranks: the same bits whatever the number of pieces or the transport.

Each rank adds up one part of the tensor: it receives that part of every other rank, computes
``((part of rank 0 + part of rank 1) + part of rank 2) + ...`` in the tensor's dtype, and sends the
result to all. MPI and NCCL add in an order of their own, which depends on sizes. Large tensors go
through in blocks, so the workspace is at most ``BLOCK`` bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ..memory.ledger import WORKSPACE
from ..ops.creation.fill import empty
from ..ops.elementwise.comparison import maximum, minimum
from ..tensor import Tensor
from .channel import Call, Steps

SMALL = 16 << 10  # bytes of a tensor that every rank sends to all as it is: one message's time
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


def blocks(flat: Tensor, copies: int = 1) -> Iterator[tuple[int, int]]:
    """Yield the blocks of a flat tensor, of which so many copies come together."""
    step = max(1, BLOCK // flat.itemsize // copies)
    for start in range(0, flat.numel(), step):
        yield start, min(flat.numel(), start + step)


def all_reduce(flat: Tensor, op: ReduceOp) -> Callable[[Call], Steps]:
    """Reduce a flat tensor of every rank, in place.

    Args:
        flat: Contiguous, of one dim, on the CPU.
        op: How.
    """

    def steps(call: Call) -> Steps:
        if call.size > 1 and flat.numel() * flat.itemsize <= SMALL:
            yield from _from_all(call, flat, flat, op, [flat] * call.size)
        elif call.size > 1:
            for start, stop in blocks(flat):
                yield from _block(call, flat, start, stop, op)

    return steps


def _block(call: Call, flat: Tensor, start: int, stop: int, op: ReduceOp) -> Steps:
    bounds = [part_of(rank, call.size, start, stop) for rank in range(call.size)]
    parts = [flat[a:b] for a, b in bounds]
    later = call.channel.transport.writes_late
    # What comes back into a part depends on that part's having arrived where it is reduced.
    results = [call.receive(p, parts[p]._array, 2) for p in call.peers] if later else []
    own = parts[call.rank]
    yield from _from_all(call, own, own, op, parts)
    if not later:
        results = [call.receive(p, parts[p]._array, 2) for p in call.peers]
    yield [*results, *[call.send(p, own._array, 2) for p in call.peers]]


def _from_all(
    call: Call, own: Tensor, out: Tensor, op: ReduceOp, to_send: list[Tensor], kind: int = 1
) -> Steps:
    # Send a part to each rank, receive from each what this one reduces, and reduce it into out.
    space = _workspace(call.size - 1, own)
    received = [call.receive(p, space[k]._array, kind) for k, p in enumerate(call.peers)]
    sent = [call.send(p, to_send[p]._array, kind) for p in call.peers]
    yield [*received, *sent]
    every = {peer: space[k] for k, peer in enumerate(call.peers)}
    every[call.rank] = own
    in_order(out, [every[rank] for rank in range(call.size)], op)


def _workspace(count: int, like: Tensor) -> Tensor:
    space: Tensor = empty(count, like.numel(), dtype=like.dtype, device="cpu")
    space._storage.set_role(WORKSPACE)
    return space


def in_order(out: Tensor, parts: list[Tensor], op: ReduceOp) -> None:
    """Reduce parts, that of rank 0 first, into ``out``, which may be one of them.

    If it is none, the parts stay as they are; else they are workspace.
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
        out.div_(len(parts))


def reduce(flat: Tensor, op: ReduceOp, root: int) -> Callable[[Call], Steps]:
    """Reduce a flat tensor of every rank into that of rank ``root``; the others stay."""

    def steps(call: Call) -> Steps:
        for start, stop in blocks(flat, call.size - 1) if call.size > 1 else ():
            own = flat[start:stop]
            if call.rank != root:
                yield [call.send(root, own._array)]
                continue
            space = _workspace(call.size - 1, own)
            yield [call.receive(p, space[k]._array) for k, p in enumerate(call.peers)]
            every = {peer: space[k] for k, peer in enumerate(call.peers)}
            every[root] = own
            in_order(own, [every[rank] for rank in range(call.size)], op)

    return steps


def reduce_scatter(out: Tensor, given: list[Tensor], op: ReduceOp) -> Callable[[Call], Steps]:
    """Reduce entry r of every rank's list into ``out`` of rank r.

    Args:
        out: Flat.
        given: A flat tensor of the same size for each rank.
        op: How.
    """

    def steps(call: Call) -> Steps:
        own = given[call.rank]
        for start, stop in blocks(own, max(1, call.size - 1)):
            some = [g[start:stop] for g in given]
            yield from _from_all(call, some[call.rank], out[start:stop], op, some)

    return steps
