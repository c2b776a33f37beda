"""Collectives that move tensors and compute nothing: who sends what to whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..tensor import Tensor
from .channel import Call, Steps

Made = Callable[[Call], Steps]


def nothing(call: Call) -> Steps:
    """Wait for all ranks."""
    yield []


def broadcast(flat: Tensor, root: int) -> Made:
    """Give all ranks the tensor of ``root``: each that has it sends it on, in a binomial tree."""

    def steps(call: Call) -> Steps:
        yield []  # all ranks agree before anything is written
        place = (call.rank - root) % call.size
        if place:
            above = place - (1 << (place.bit_length() - 1))
            yield [call.receive((above + root) % call.size, flat._array)]
        below = []
        step = 1 << place.bit_length()
        while place + step < call.size:
            below.append((place + step + root) % call.size)
            step *= 2
        yield [call.send(peer, flat._array) for peer in below]

    return steps


def all_gather(flat: Tensor, into: Sequence[Tensor]) -> Made:
    """Write each rank's tensor into the list of all ranks."""
    return all_to_all(into, None, flat)


def all_to_all(
    into: Sequence[Tensor], given: Sequence[Tensor] | None, same: Tensor | None = None
) -> Made:
    """Send an entry to each rank, and receive one from each.

    Args:
        into: Where each rank's goes.
        given: What each rank gets.
        same: What all ranks get, instead.
    """

    def steps(call: Call) -> Steps:
        yield []
        some = list(given or ())
        if same is not None:
            some = [same] * call.size
        own = some[call.rank]
        received = [
            call.receive(p, into[p]._array, like=_as_from(into[p], own))
            for p in call.peers
            if into[p].numel()
        ]
        sent = [call.send(p, some[p]._array) for p in call.peers if some[p].numel()]
        into[call.rank].copy_(own)
        yield [*received, *sent]

    return steps


def _as_from(into: Tensor, own: Tensor) -> Any:
    # What this rank sends itself, if it is as much.
    return own._array if own.numel() == into.numel() else None


def gather(flat: Tensor, into: Sequence[Tensor] | None, root: int) -> Made:
    """Write each rank's tensor into the list of ``root``."""

    def steps(call: Call) -> Steps:
        yield []
        if call.rank != root:
            yield [call.send(root, flat._array)]
            return
        assert into is not None
        received = [call.receive(p, into[p]._array, like=flat._array) for p in call.peers]
        into[root].copy_(flat)
        yield received

    return steps


def scatter(flat: Tensor, given: Sequence[Tensor] | None, root: int) -> Made:
    """Give each rank its entry of the list of ``root``."""

    def steps(call: Call) -> Steps:
        yield []
        if call.rank != root:
            yield [call.receive(root, flat._array)]
            return
        assert given is not None
        sent = [call.send(p, given[p]._array) for p in call.peers]
        flat.copy_(given[root])
        yield sent

    return steps
