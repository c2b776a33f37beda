"""Connections of a ``TCPStore``: the master's, which serves the values, and those that ask.

Imported when a store is made: a program of one process needs no sockets.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from datetime import timedelta
from typing import Any

from .listening import listen_at
from .stores import Deadline, Table, is_owner
from .transport import DistNetworkError, DistStoreError

_LENGTH = struct.Struct("<I")
_LARGEST = 1 << 28  # bytes of a message
_AGAIN = 0.05  # seconds between attempts to connect


class Connection:
    """A connection to the master, made at the first question; a forked process makes another.

    Args:
        host: The master's address.
        port: Its port.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process = 0

    def ask(self, question: list[Any], seconds: float, timeout: timedelta) -> Any:
        """Return the master's answer.

        Args:
            question: A call of the table, or ``wait``, and its arguments.
            seconds: How long the answer may take.
            timeout: How long connecting may take.

        Raises:
            DistNetworkError: There is no master, or it does not answer.
            DistStoreError: The call makes no sense.
        """
        with self._lock:
            connection = self._connected(timeout)
            try:
                connection.settimeout(seconds)
                _send(connection, question)
                answer = _receive(connection)
            except (OSError, ValueError) as error:
                self.close()
                raise DistNetworkError(
                    f"TCPStore: the master at {self._host}:{self._port} does not answer: {error}. "
                    "Has its process ended?"
                ) from error
            except BaseException:  # interrupted: the answer to this would be taken for another's
                self.close()
                raise
        if "error" in answer:
            raise DistStoreError(f"TCPStore: {answer['error']}")
        return answer["value"]

    def _connected(self, timeout: timedelta) -> socket.socket:
        if self._socket is None or not is_owner(self._process):
            self.close()
            self._socket, self._process = self._connect(timeout), os.getpid()
        return self._socket

    def _connect(self, timeout: timedelta) -> socket.socket:
        deadline = Deadline(timeout)
        while True:
            try:
                left = max(_AGAIN, deadline.left)
                return socket.create_connection((self._host, self._port), timeout=left)
            except OSError as error:
                if not deadline.left:
                    raise DistNetworkError(
                        f"TCPStore: no master at {self._host}:{self._port}: {error}. Was it "
                        "started, with is_master=True?"
                    ) from error
            time.sleep(_AGAIN)

    def close(self) -> None:
        """Close it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Server:
    """The values, and a thread for each connection.

    Args:
        host: Where to listen.
        port: At which port; 0 for a free one.
        listening: A listening socket instead; None for none.

    Attributes:
        port: The port.

    Raises:
        DistNetworkError: It cannot listen there.
    """

    def __init__(self, host: str, port: int, listening: int | None) -> None:
        self._process = os.getpid()
        self._table, self._changed = Table(), threading.Condition()
        try:
            if listening is None:
                self._listener = listen_at(host, port)
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
