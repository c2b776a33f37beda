"""Messages by an MPI library, through mpi4py.

MPI only moves bytes here. What is computed, in which order, and what is checked is the same as over
sockets (``channel.py``, ``reduction.py``), so any MPI library gives the same bits.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from typing import Any

from .transport import DistNetworkError, Transfer

_SPIN = 50e-6  # seconds to test again before a process sleeps
_SLEEP = 20e-6
_IDLE = 1e-3  # seconds without a message, after which a rank asks whether others have left
_LEFT = 1  # tag of the message by which a process says that it leaves
_TAGS = 1 << 14  # different tags at a time: MPI guarantees 32,767


class MpiTransport:
    """A :class:`~.transport.Transport` of an MPI communicator."""

    writes_late = False
    imagined = False
    left_open = False  # a message that was under way was given up

    def __init__(self, communicator: Any) -> None:
        from mpi4py import MPI

        self._mpi, self._comm = MPI, communicator
        self.rank: int = communicator.Get_rank()
        self.size: int = communicator.Get_size()
        self._open: list[tuple[Any, Transfer, memoryview, bool]] = []
        self._process = os.getpid()
        self._gone: dict[int, str] = {}

    @classmethod
    def world(cls) -> MpiTransport:
        """Return the transport of all processes; start MPI if it has not started."""
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI

        if not MPI.Is_initialized():
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
            atexit.register(_finalize, os.getpid())
        made = cls(MPI.COMM_WORLD.Dup())
        atexit.register(made.close)
        return made

    def send(self, peer: int, tag: int, data: memoryview) -> Transfer:
        """Begin to send bytes."""
        return self._begin(self._comm.Isend, peer, tag, data, False)

    def receive(self, peer: int, tag: int, into: memoryview) -> Transfer:
        """Begin to receive a message of as many bytes as ``into`` has."""
        return self._begin(self._comm.Irecv, peer, tag, into, True)

    def _begin(self, call: Any, peer: int, tag: int, data: memoryview, incoming: bool) -> Transfer:
        transfer = Transfer(peer)
        if self._process != os.getpid():
            raise DistNetworkError("this process was forked from a rank, and is none itself")
        if peer in self._gone:
            self._fail(transfer)
        else:
            request = call([data, self._mpi.BYTE], peer, self._tag(tag))
            self._open.append((request, transfer, data, incoming))
        return transfer

    def _tag(self, tag: int) -> int:
        # Messages between two ranks arrive in order, so a number may come again.
        return _LEFT + 1 + (tag + (tag >> 39) * 7) % _TAGS

    def waiting(self, tag: int) -> int | None:
        """Return a rank of which a message with this tag is coming; None if none is."""
        status = self._mpi.Status()
        if self._comm.Iprobe(self._mpi.ANY_SOURCE, self._tag(tag), status):
            found: int = status.Get_source()
            return found
        return None

    def progress(self, seconds: float, transfers: list[Transfer]) -> None:
        """Test what is open; wait up to ``seconds`` for something if nothing moved."""
        begun = time.perf_counter()
        pending = [t for t in transfers if not t.done]
        while not self._test() and seconds > 0 and not any(t.done for t in pending):
            now = time.perf_counter()
            if now - begun > seconds:
                return
            if now - begun > _IDLE:
                self._note_left()
            if now - begun > _SPIN:
                time.sleep(_SLEEP)

    def _test(self) -> bool:
        status = self._mpi.Status()
        still = []
        moved = False
        for entry in self._open:
            request, transfer, data, incoming = entry
            try:
                done = request.Test(status)
            except self._mpi.Exception as error:  # a message of another size, or a lost process
                transfer.error = DistNetworkError(
                    f"MPI and rank {transfer.peer}: {error.Get_error_string()}"
                )
                done = True
            else:
                if done and incoming and (count := status.Get_count(self._mpi.BYTE)) != len(data):
                    transfer.error = DistNetworkError(
                        f"rank {transfer.peer} sent {count} bytes where {len(data)} were expected"
                    )
            if done:
                transfer.done = moved = True
            else:
                still.append(entry)
        self._open = still
        return moved

    def _note_left(self) -> None:
        # A rank that ended has said so: what is waited for from it will not come.
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _LEFT, status):
            source = status.Get_source()
            self._comm.Recv([bytearray(1), self._mpi.BYTE], source, _LEFT)
            self._gone[source] = "its process ended or left the group"
        if not self._gone:
            return
        still = []
        for entry in self._open:
            request, transfer, _, incoming = entry
            if incoming and transfer.peer in self._gone and not request.Test():
                request.Cancel()
                request.Free()
                self._fail(transfer)
            else:
                still.append(entry)
        self._open = still

    def _fail(self, transfer: Transfer) -> None:
        transfer.error = DistNetworkError(
            f"the connection to rank {transfer.peer} is gone: {self._gone[transfer.peer]}"
        )
        transfer.done = True

    def subgroup(self, number: int, ranks: list[int]) -> MpiTransport:
        """Return the transport of some ranks, with a separate communicator."""
        group = self._comm.Get_group().Incl(ranks)
        return MpiTransport(self._comm.Create_group(group, number % _TAGS))

    def close(self) -> None:
        """Tell the others that this process sends no more."""
        if self._process != os.getpid() or self._mpi.Is_finalized() or self.rank in self._gone:
            return
        for peer in range(self.size):
            if peer not in (self.rank, *self._gone):
                self._comm.Isend([bytearray(1), self._mpi.BYTE], peer, _LEFT).Free()
        self._gone.update(dict.fromkeys(range(self.size), "this process left the group"))
        for request, transfer, _, incoming in self._open:
            if not transfer.done:
                MpiTransport.left_open = MpiTransport.left_open or not incoming
                if incoming:
                    request.Cancel()
                request.Free()
                self._fail(transfer)
        self._open.clear()


def _finalize(process: int) -> None:
    from mpi4py import MPI

    if os.getpid() != process or not MPI.Is_initialized() or MPI.Is_finalized():
        return
    if MpiTransport.left_open:  # MPI would wait for good for the rank that should have received it
        sys.stdout.flush()
        sys.stderr.flush()
        _remove_segments()
        MPI.COMM_WORLD.Abort(1)
    MPI.Finalize()


def _remove_segments() -> None:
    # Abort leaves what MPI shares between the processes of a machine: files in shared memory.
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        mapped = {line.split(None, 5)[-1].strip() for line in maps if " /dev/shm/" in line}
        for path in mapped:
            with contextlib.suppress(OSError):
                os.unlink(path)
