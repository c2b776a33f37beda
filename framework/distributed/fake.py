"""Worlds of one process: the other ranks are imagined, and no message is sent.

Collectives check their arguments, take their workspace and return at once, so a process sees the
bytes of any rank of a world of any size. What comes from other ranks is what this rank would send
them, where that is known; else memory stays as it was. So sums and averages are of no use as
values. ``init_process_group("fake", rank=3, world_size=64)`` makes such a world, and estimates
take place in one: a forked copy of a rank has no connections.
"""

from __future__ import annotations

import os

from .. import execution
from .transport import Transfer


class FakeTransport:
    """Messages that are not sent.

    Args:
        rank: Of this process.
        size: How many ranks it imagines, itself among them.
    """

    writes_late = True
    imagined = True

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def send(self, peer: int, tag: int, data: memoryview) -> Transfer:
        """Send nothing."""
        return _done(peer)

    def receive(self, peer: int, tag: int, into: memoryview) -> Transfer:
        """Leave memory as it is."""
        return _done(peer)

    def waiting(self, tag: int) -> int | None:
        """Return the next rank: every message has come."""
        return (self.rank + 1) % self.size

    def progress(self, seconds: float, transfers: list[Transfer]) -> None:
        """Do nothing: nothing is under way."""

    def subgroup(self, number: int, ranks: list[int]) -> FakeTransport:
        """Return the transport of some ranks."""
        return FakeTransport(ranks.index(self.rank), len(ranks))

    def close(self) -> None:
        """Do nothing: nothing is connected."""


def _done(peer: int) -> Transfer:
    transfer = Transfer(peer)
    transfer.done = True
    return transfer


def imagining() -> bool:
    """Whether this process computes nothing, so that it must not speak to other ranks."""
    return not execution.current.computes


def set_variables(rank: int, size: int) -> None:
    """Set the variables of a launcher, for programs that ask these or ``env://``.

    Args:
        rank: Of this process.
        size: How many ranks; all of them on one machine.
    """
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        os.environ[name] = os.environ[f"LOCAL_{name}"] = str(value)
    os.environ.update(GROUP_RANK="0", GROUP_WORLD_SIZE="1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
