"""A key-value store in one process, which others reach by TCP."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from .stores import Deadline, Store, Table, default_timeout, is_owner
from .transport import DistNetworkError, DistStoreError

_LENGTH = struct.Struct("<I")
_LARGEST = 1 << 28  # bytes of a message
_AGAIN = 0.05  # seconds between attempts to connect
_ANSWER = 30.0  # seconds for an answer that waits for nothing
_WORKERS = "lowtide/workers"  # the key that counts the processes


class TCPStore(Store):
    """Store that one process keeps, and others reach at its address.

    Values live in the memory of the process that is the master, as long as its store does.

    Args:
        host_name: The master's address.
        port: Its port; 0 for a free one, in the master.
        world_size: How many processes use the store; None if that is not known.
        is_master: Whether this process keeps the values.
        timeout: How long ``get``, ``wait`` and connecting may take.
        wait_for_workers: Wait here until all processes have made their store, if ``world_size`` is
            given.
        multi_tenant: No meaning: each master has a port that no other has.
        master_listen_fd: A listening socket for the master.
        use_libuv: No meaning.

    Attributes:
        host: The master's address.
        port: Its port.

    Raises:
        DistNetworkError: The master cannot listen there, or cannot be reached.
        DistStoreError: Some processes did not come in time.
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = default_timeout,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        super().__init__()
        self.timeout = timeout
        self.host, self.port, self.world_size = host_name, port, world_size
        self._lock = threading.Lock()
        self._line = _Line()
        weakref.finalize(self, self._line.close)
        self._server: _Server | None = None
        if is_master:
            self._server = _Server(host_name, port, master_listen_fd)
            self.port = self._server.port
            weakref.finalize(self, self._server.close)
        if world_size is not None and world_size > 0 and wait_for_workers:
            self._await_all(world_size)

    def _await_all(self, size: int) -> None:
        if self.add(_WORKERS, 1) == size:
            self.set(f"{_WORKERS}/all", b"1")
        if not self._await([f"{_WORKERS}/all"], self.timeout):
            here = int(self.get(_WORKERS))
            raise DistStoreError(
                f"TCPStore: {here} of {size} processes have made a store at {self.host}:"
                f"{self.port} in {self.timeout.total_seconds():g} s. Were all started?"
            )

    def clone(self) -> TCPStore:
        """Return a store of the same values with a connection of its own, for another thread."""
        return TCPStore(self.host, self.port, timeout=self.timeout, wait_for_workers=False)

    @property
    def libuvBackend(self) -> bool:
        """False: a thread serves each connection."""
        return False

    def _run(self, name: str, *args: Any) -> Any:
        return self._asked([name, *args], _ANSWER)

    def _await(self, keys: Sequence[str], timeout: timedelta) -> bool:
        seconds = timeout.total_seconds()
        return bool(self._asked(["wait", list(keys), seconds], seconds + _ANSWER))

    def list_keys(self) -> list[str]:
        """Return all keys but those of the store itself."""
        return [key for key in super().list_keys() if not key.startswith(_WORKERS)]

    def _asked(self, question: list[Any], seconds: float) -> Any:
        with self._lock:
            connection = self._connected()
            try:
                connection.settimeout(seconds)
                _send(connection, question)
                answer = _receive(connection)
            except (OSError, ValueError) as error:
                self._line.close()
                raise DistNetworkError(
                    f"TCPStore: the master at {self.host}:{self.port} does not answer: {error}. "
                    "Has its process ended?"
                ) from error
            except BaseException:  # interrupted: the answer to this would be taken for another's
                self._line.close()
                raise
        if "error" in answer:
            raise DistStoreError(f"TCPStore: {answer['error']}")
        return answer["value"]

    def _connected(self) -> socket.socket:
        line = self._line
        if line.connection is None or not is_owner(line.process):  # a fork makes its own
            line.close()
            line.connection, line.process = self._connect(), os.getpid()
        return line.connection

    def _connect(self) -> socket.socket:
        deadline = Deadline(self.timeout)
        while True:
            try:
                left = max(_AGAIN, deadline.left)
                return socket.create_connection((self.host, self.port), timeout=left)
            except OSError as error:
                if not deadline.left:
                    raise DistNetworkError(
                        f"TCPStore: no master at {self.host}:{self.port}: {error}. Was it started, "
                        "with is_master=True?"
                    ) from error
            time.sleep(_AGAIN)


class _Line:
    """A connection to the master, which one process uses; None before the first question."""

    def __init__(self) -> None:
        self.connection: socket.socket | None = None
        self.process = 0

    def close(self) -> None:
        """Close it."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class _Server:
    """The values, and a thread for each connection."""

    def __init__(self, host: str, port: int, listening: int | None) -> None:
        self._process = os.getpid()
        self._table, self._changed = Table(), threading.Condition()
        try:
            if listening is None:
                self._listener = _listening(host, port)
            else:
                self._listener = socket.socket(fileno=listening)
        except OSError as error:
            raise DistNetworkError(
                f"TCPStore: the master cannot listen at {host}:{port}: {error}. Give another port."
            ) from error
        self.port = int(self._listener.getsockname()[1])
        self._connections: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="lowtide-store", daemon=True).start()

    def close(self) -> None:
        """End all connections; those who ask get an error."""
        if not is_owner(self._process):
            return
        for one in (self._listener, *list(self._connections)):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while True:
                _send(connection, self._answer(*_receive(connection)))
        except (OSError, ValueError, TypeError):  # it has ended, or is none of ours
            pass
        finally:
            self._connections.discard(connection)
            connection.close()

    def _answer(self, name: str, *args: Any) -> dict[str, Any]:
        with self._changed:
            if name == "wait":
                keys, seconds = args
                there = self._changed.wait_for(lambda: self._table.check(keys), seconds)
                return {"value": there}
            if not hasattr(Table, name):
                return {"error": f"there is no call {name!r}"}
            try:
                value = getattr(self._table, name)(*args)
            except (TypeError, ValueError) as error:
                return {"error": f"{name}: {error}"}
            self._changed.notify_all()
            return {"value": value}


def _listening(host: str, port: int) -> socket.socket:
    family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


# Messages: JSON, in which bytes are text with a mark


def _send(connection: socket.socket, message: Any) -> None:
    data = json.dumps(message, default=_as_text).encode()
    if len(data) > _LARGEST:
        raise ValueError(f"a message of {len(data)} bytes is larger than {_LARGEST}")
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive(connection: socket.socket) -> Any:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > _LARGEST:
        raise ValueError(f"a message of {length} bytes")
    return json.loads(_exactly(connection, length), object_hook=_as_bytes)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        some = connection.recv(count)
        if not some:
            raise ConnectionError("the connection was closed")
        parts.append(some)
        count -= len(some)
    return b"".join(parts)


def _as_text(value: Any) -> dict[str, str]:
    return {"bytes": value.decode("latin-1")}


def _as_bytes(found: dict[str, Any]) -> Any:
    return found["bytes"].encode("latin-1") if set(found) == {"bytes"} else found
