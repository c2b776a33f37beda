"""Messages over sockets: one connection between each two processes, without threads.

On one machine the connections are Unix sockets, else TCP. A message is a header (tag, length) and
its bytes. What arrives before it is asked for is kept; what was asked for is read where it belongs.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
import weakref
from collections import defaultdict, deque
from typing import Any

from .transport import DistNetworkError, Transfer

_HEADER = struct.Struct("<QQ")  # tag, bytes
_SPIN = 50e-6  # seconds to look again before a process sleeps: half of a message's way
_TAG_BITS = 40  # of a tag, below the number of the group
_ENDED = "its process ended or left the group"
_DRAIN = 2.0  # seconds that a process that leaves takes to send the rest
BUFFER = 4 << 20  # bytes that the system may hold of a connection


class _Incoming(Transfer):
    __slots__ = ("into",)

    def __init__(self, peer: int, into: memoryview) -> None:
        super().__init__(peer)
        self.into = into


class _Peer:
    """The connection to another process: what is being written to it and read from it."""

    def __init__(self, rank: int, sock: socket.socket) -> None:
        self.rank, self.sock = rank, sock
        self.outgoing: deque[tuple[memoryview, Transfer | None]] = deque()
        self.expected: dict[int, deque[_Incoming]] = defaultdict(deque)
        self.early: dict[int, deque[bytearray]] = defaultdict(deque)
        self.header = memoryview(bytearray(_HEADER.size))
        self.filled = 0  # bytes of the header, then of the message
        self.reading: tuple[int, memoryview, _Incoming | None, bytearray | None] | None = None
        self.watched = False  # it is asked whether it takes more
        self.deaf = False  # it takes nothing more
        self.gone: str | None = None  # why nothing more will come

    def write(self) -> None:
        """Write what the connection takes."""
        while self.outgoing:
            data, transfer = self.outgoing[0]
            try:
                sent = self.sock.send(data) if len(data) else 0
            except BlockingIOError:
                return
            except OSError:  # what it sent before it ended may still be read
                self.deaf = True
                self._fail_outgoing()
                return
            if sent < len(data):
                self.outgoing[0] = data[sent:], transfer
                continue
            self.outgoing.popleft()
            if transfer is not None:
                transfer.done = True

    def read(self) -> None:
        """Read what is there."""
        try:
            while self._read_some():
                pass
        except BlockingIOError:
            return
        except ConnectionError:
            self._end()
        except OSError as error:
            self.lose(error)

    def _read_some(self) -> bool:
        if self.reading is None:
            count = self.sock.recv_into(self.header[self.filled :])
            if not count:
                return self._end()
            self.filled += count
            if self.filled == _HEADER.size:
                self._begin(*_HEADER.unpack(self.header))
            return True
        tag, into, transfer, kept = self.reading
        if self.filled < len(into):
            count = self.sock.recv_into(into[self.filled :])
            if not count:
                return self._end()
            self.filled += count
        if self.filled == len(into):
            self.reading, self.filled = None, 0
            if transfer is not None:
                transfer.done = True
            elif kept is not None:
                self._keep(tag, kept)
        return True

    def _keep(self, tag: int, message: bytearray) -> None:
        # Meanwhile it may have been asked for.
        if self.expected.get(tag):
            _deliver(message, self._next(tag))
        else:
            self.early[tag].append(message)

    def _begin(self, tag: int, length: int) -> None:
        self.filled = 0
        if self.expected.get(tag):
            transfer = self._next(tag)
            if len(transfer.into) == length:
                self.reading = tag, transfer.into, transfer, None
                return
            transfer.error = _wrong_size(transfer, length)
            transfer.done = True
        kept = bytearray(length)
        self.reading = tag, memoryview(kept), None, kept

    def _next(self, tag: int) -> _Incoming:
        queue = self.expected[tag]
        transfer = queue.popleft()
        if not queue:
            del self.expected[tag]
        return transfer

    def _end(self) -> bool:
        self.lose(_ENDED)
        return False

    def receive(self, tag: int, into: memoryview) -> Transfer:
        """Ask for the next message of a tag."""
        transfer = _Incoming(self.rank, into)
        if tag in self.early:
            queue = self.early[tag]
            message = queue.popleft()
            if not queue:
                del self.early[tag]
            _deliver(message, transfer)
        elif self.gone is not None:
            _fail(transfer, self.gone)
        else:
            self.expected[tag].append(transfer)
        return transfer

    def lose(self, why: object) -> None:
        """End all transfers with an error: the connection is gone."""
        if self.gone is not None:
            return
        self.gone = str(why)
        with contextlib.suppress(OSError):
            self.sock.close()
        self._fail_outgoing()
        waiting: list[Transfer] = [t for queue in self.expected.values() for t in queue]
        if self.reading is not None and self.reading[2] is not None:
            waiting.append(self.reading[2])
        self.expected.clear()
        for transfer in waiting:
            _fail(transfer, self.gone)

    def _fail_outgoing(self) -> None:
        for _, transfer in self.outgoing:
            if transfer is not None:
                _fail(transfer, self.gone or _ENDED)
        self.outgoing.clear()


def _deliver(message: bytearray, transfer: _Incoming) -> None:
    if len(message) != len(transfer.into):
        transfer.error = _wrong_size(transfer, len(message))
    else:
        transfer.into[:] = message
    transfer.done = True


def _wrong_size(transfer: _Incoming, length: int) -> DistNetworkError:
    return DistNetworkError(
        f"rank {transfer.peer} sent {length} bytes where {len(transfer.into)} were expected"
    )


def _fail(transfer: Transfer, why: str) -> None:
    transfer.error = DistNetworkError(f"the connection to rank {transfer.peer} is gone: {why}")
    transfer.done = True


class SocketTransport:
    """A :class:`~.transport.Transport` of connected sockets.

    Args:
        rank: Of this process.
        connections: A connected socket for each other rank.
    """

    writes_late = True
    imagined = False

    def __init__(self, rank: int, connections: dict[int, socket.socket]) -> None:
        self.rank, self.size = rank, 1 + len(connections)
        self._peers: dict[int, _Peer] = {}
        self._poll = select.poll()
        self._by_file: dict[int, _Peer] = {}
        for other, sock in connections.items():
            sock.setblocking(False)
            if sock.family != getattr(socket, "AF_UNIX", None):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                sock.setsockopt(socket.SOL_SOCKET, option, BUFFER)
            peer = self._peers[other] = _Peer(other, sock)
            self._by_file[sock.fileno()] = peer
            self._poll.register(sock, select.POLLIN)
        _open.add(self)

    def send(self, peer: int, tag: int, data: memoryview) -> Transfer:
        """Begin to send bytes."""
        transfer = Transfer(peer)
        to = self._peers[peer]
        if to.gone is not None or to.deaf:
            _fail(transfer, to.gone or _ENDED)
            return transfer
        header = memoryview(_HEADER.pack(tag, len(data)))
        if len(data) <= 4096:  # one call of the system, and one packet
            to.outgoing.append((memoryview(b"".join((header, data))), transfer))
        else:
            to.outgoing += [(header, None), (data, transfer)]
        to.write()
        return transfer

    def receive(self, peer: int, tag: int, into: memoryview) -> Transfer:
        """Begin to receive a message of as many bytes as ``into`` has."""
        return self._peers[peer].receive(tag, into)

    def waiting(self, tag: int) -> int | None:
        """Return a rank of which a message with this tag is here; None if none is."""
        return next((rank for rank, peer in self._peers.items() if tag in peer.early), None)

    def progress(self, seconds: float, transfers: list[Transfer]) -> None:
        """Move what can be moved; wait up to ``seconds`` for something if nothing can."""
        begun = time.perf_counter()
        pending = [t for t in transfers if not t.done]
        while not self._move(0):
            if seconds <= 0 or any(t.done for t in pending):
                return
            if time.perf_counter() - begun > _SPIN:
                self._move(seconds)
                return

    def _move(self, seconds: float) -> bool:
        for file, peer in list(self._by_file.items()):
            if peer.gone is not None:
                self._forget(file)
                continue
            if peer.watched != bool(peer.outgoing):
                peer.watched = bool(peer.outgoing)
                self._poll.modify(file, select.POLLIN | select.POLLOUT * peer.watched)
        if not self._by_file:
            return False
        ready = self._poll.poll(seconds * 1000)
        for file, events in ready:
            peer = self._by_file[file]
            if events & select.POLLOUT:
                peer.write()
            if peer.gone is None and events & ~select.POLLOUT:
                peer.read()
            if peer.gone is not None:
                self._forget(file)
        return bool(ready)

    def _forget(self, file: int) -> None:
        del self._by_file[file]
        with contextlib.suppress(KeyError, OSError, ValueError):
            self._poll.unregister(file)

    def subgroup(self, number: int, ranks: list[int]) -> _Subgroup:
        """Return the transport of some ranks, over the same connections."""
        return _Subgroup(self, number, ranks)

    def close(self) -> None:
        """Send what is left, for some seconds at most, and close the connections."""
        deadline = time.monotonic() + _DRAIN
        while any(p.outgoing for p in self._peers.values()) and time.monotonic() < deadline:
            self._move(_DRAIN / 100)
        for peer in self._peers.values():
            peer.lose("this process left the group")

    def close_copies(self) -> None:
        """Close a forked child's copies, so that peers see when the parent ends."""
        for peer in self._peers.values():
            peer.gone = "this process was forked from a rank, and is none itself"
            peer.outgoing.clear()
            with contextlib.suppress(OSError):
                peer.sock.close()


class _Subgroup:
    """Some ranks of a transport, numbered from 0."""

    writes_late = True
    imagined = False

    def __init__(self, whole: SocketTransport, number: int, ranks: list[int]) -> None:
        self._whole, self._ranks, self._group = whole, ranks, number << _TAG_BITS
        self.rank, self.size = ranks.index(whole.rank), len(ranks)

    def send(self, peer: int, tag: int, data: memoryview) -> Transfer:
        """Begin to send bytes."""
        return self._own(peer, self._whole.send(self._ranks[peer], self._group | tag, data))

    def receive(self, peer: int, tag: int, into: memoryview) -> Transfer:
        """Begin to receive a message."""
        return self._own(peer, self._whole.receive(self._ranks[peer], self._group | tag, into))

    def _own(self, peer: int, transfer: Transfer) -> Transfer:
        transfer.peer = peer
        return transfer

    def waiting(self, tag: int) -> int | None:
        """Return a rank of which a message with this tag is here."""
        found = self._whole.waiting(self._group | tag)
        return None if found is None else self._ranks.index(found)

    def progress(self, seconds: float, transfers: list[Transfer]) -> None:
        """Move what can be moved, of other groups too."""
        self._whole.progress(seconds, transfers)

    def subgroup(self, number: int, ranks: list[int]) -> _Subgroup:
        """Return the transport of some ranks of this one."""
        return _Subgroup(self._whole, number, [self._ranks[r] for r in ranks])

    def close(self) -> None:
        """Close the connections, which are those of all groups."""
        self._whole.close()


_open: weakref.WeakSet[Any] = weakref.WeakSet()


def _after_fork() -> None:
    for transport in list(_open):
        transport.close_copies()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
