"""What moves bytes between the processes of a group: messages that neither side waits for.

Collectives (``channel.py``) are written in terms of a :class:`Transport` alone: a socket to each
peer (``sockets.py``) or MPI (``mpi.py``). A message has a source, a destination and a tag. Messages
of one tag from one rank to another arrive in the order in which they were sent.
"""

from __future__ import annotations

from typing import Protocol

NOBODY = -1  # peer of a transfer that waits for no other rank


class DistError(RuntimeError):
    """An error of communication between processes."""


class DistBackendError(DistError):
    """A collective failed: a deadline passed, ranks called different ones, or one is gone."""


class DistNetworkError(DistError):
    """A connection could not be made, or broke."""


class DistStoreError(DistError):
    """A store did not have a key in time."""


class Transfer:
    """A message under way.

    Attributes:
        peer: Rank of the other side; ``NOBODY`` for what this rank waits for by itself.
        done: Whether its bytes are sent, or here.
        error: What went wrong, if something did.
    """

    __slots__ = ("done", "error", "peer")

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.done = False
        self.error: Exception | None = None


class Transport(Protocol):
    """Messages between the processes of a group.

    Attributes:
        rank: Of this process.
        size: How many processes there are.
        writes_late: A receive may be posted into memory that is still being sent, if what arrives
            depends on its having been sent. MPI forbids that.
        imagined: There are no other processes, and no message is sent.
    """

    rank: int
    size: int
    writes_late: bool
    imagined: bool

    def send(self, peer: int, tag: int, data: memoryview) -> Transfer:
        """Begin to send bytes, which must stay as they are until the transfer is done."""

    def receive(self, peer: int, tag: int, into: memoryview) -> Transfer:
        """Begin to receive a message of exactly as many bytes as ``into`` has."""

    def waiting(self, tag: int) -> int | None:
        """Return a rank of which a message with this tag is here or coming; None if none is."""

    def progress(self, seconds: float, transfers: list[Transfer]) -> None:
        """Move what can be moved; wait up to ``seconds`` for something if nothing can.

        Args:
            seconds: 0 returns at once.
            transfers: What the caller waits for.
        """

    def subgroup(self, number: int, ranks: list[int]) -> Transport:
        """Return the transport of some ranks, which all of them ask for with the same number."""

    def close(self) -> None:
        """End all connections; transfers that are not done end with an error."""
