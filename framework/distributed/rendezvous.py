"""How the processes of a group find one another: at rank 0's address, in a file, or in a store.

Rank 0 listens at the master's address. Every other rank tells it where itself listens, and rank 0
answers with all addresses. Then each rank connects to those below it: by a Unix socket on one
machine, else by TCP.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .listening import listen_at, own_address
from .place import Place
from .sockets import BUFFER, SocketTransport
from .transport import DistNetworkError

_LENGTH = struct.Struct("<I")
_LARGEST = 1 << 24  # bytes of a greeting: addresses of some hundred thousand ranks
_AGAIN = 0.05  # seconds between attempts to connect
_HELD = 5.0  # seconds for which a port may be in use
_ADDRESS = "lowtide/address"  # the key of rank 0's address in a store
_GREETING = 10.0  # seconds that a new connection has to identify itself


def meet(place: Place, seconds: float) -> SocketTransport:
    """Connect all ranks; return this one's transport.

    Raises:
        DistNetworkError: A rank did not come in time, came twice, or expects another group.
    """
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        if place.rank == 0:
            table, own = _gather(place, deadline, stack)
        else:
            table, own = _announce(place, deadline, stack)
        connections = _connect(place, table, own, deadline)
    return SocketTransport(place.rank, connections)


# The table of addresses


def _gather(place: Place, deadline: float, stack: Any) -> tuple[dict[str, Any], list[Any]]:
    # Rank 0: hears from all others, and answers them.
    master = stack.enter_context(_master(place, deadline))
    found, own = _listeners(place.host or own_address())
    for listener in own:
        stack.enter_context(listener)
    ranks: dict[int, Any] = {0: found}
    heard: dict[int, socket.socket] = {}
    while len(ranks) < place.size:
        absent = sorted(set(range(place.size)) - set(ranks))
        where = place.host or place.file or "the address in the store"
        connection = _accept([master], deadline, f"{_ranks(absent)} did not come to {where}")
        stack.enter_context(connection)
        try:
            hello = _hear(connection, min(deadline, time.monotonic() + _GREETING))
        except DistNetworkError:
            continue  # a connection that was closed at once
        if why := _refusal(place, hello, ranks):
            _tell(connection, {"refused": why})
            if hello.get("job") != place.job:
                continue
            for other in heard.values():
                _tell(other, {"refused": why})
            raise DistNetworkError(f"init_process_group: {why}.")
        ranks[hello["rank"]] = hello["at"]
        heard[hello["rank"]] = connection
    table = {"ranks": [ranks[r] for r in range(place.size)], "key": secrets.token_hex(16)}
    for connection in heard.values():
        _tell(connection, table)
    return table, own


def _refusal(place: Place, hello: dict[str, Any], ranks: dict[int, Any]) -> str:
    rank, size = hello.get("rank"), hello.get("size")
    if hello.get("job") != place.job:
        return "another job meets at this address; give this one another MASTER_PORT"
    if size != place.size:
        return f"rank {rank} says world_size={size}, and rank 0 says {place.size}"
    if rank in ranks:
        return f"two processes say that they are rank {rank}"
    return ""


def _announce(place: Place, deadline: float, stack: Any) -> tuple[dict[str, Any], list[Any]]:
    # All others: tell rank 0 where they are.
    connection = stack.enter_context(_to_master(place, deadline))
    found, own = _listeners(connection.getsockname()[0])
    for listener in own:
        stack.enter_context(listener)
    _tell(connection, {"rank": place.rank, "size": place.size, "job": place.job, "at": found})
    table = _hear(connection, deadline)
    if "refused" in table:
        raise DistNetworkError(f"init_process_group: {table['refused']}.")
    return table, own


def _master(place: Place, deadline: float) -> socket.socket:
    if not place.file and place.store is None:
        return _bound(place.host, place.port, deadline)
    address = own_address()
    listener = _bound(address, 0, deadline)
    if place.store is not None:
        place.store.set(_ADDRESS, f"{address} {listener.getsockname()[1]}")
        return listener
    path = Path(place.file)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(f"{address} {listener.getsockname()[1]}\n", encoding="utf-8")
    draft.replace(path)
    return listener


def _bound(host: str, port: int, deadline: float) -> socket.socket:
    # Rank 0 of a group that has just ended may hold the port for another moment.
    deadline = min(deadline, time.monotonic() + _HELD)
    while True:
        try:
            return listen_at(host, port)
        except OSError as error:
            if time.monotonic() > deadline or error.errno != errno.EADDRINUSE:
                raise DistNetworkError(
                    f"init_process_group: rank 0 cannot listen at {host}:{port}: {error}. Is "
                    "another job using it? Give another MASTER_PORT."
                ) from error
            time.sleep(_AGAIN)


def _to_master(place: Place, deadline: float) -> socket.socket:
    last: object = "nobody wrote the file"
    while True:
        host, port = place.host, place.port
        if place.file:
            host, port = _read(place.file)
        elif place.store is not None:
            last = "nobody wrote to the store"
            host, port = _stored(place.store)
        if host:
            try:
                return socket.create_connection((host, port), timeout=max(_AGAIN, 1))
            except OSError as error:
                last = error
        if time.monotonic() > deadline:
            where = place.file or (f"{host}:{port}" if host else "an address in the store")
            raise DistNetworkError(
                f"init_process_group: rank {place.rank} did not reach rank 0 at {where}: {last}. "
                "Are MASTER_ADDR and MASTER_PORT the same for all ranks, and was rank 0 started?"
            )
        time.sleep(_AGAIN)


def _stored(store: Any) -> tuple[str, int]:
    # An address of before, which rank 0 has not replaced yet, refuses connections.
    if not store.check([_ADDRESS]):
        return "", 0
    host, port = store.get(_ADDRESS).decode().split()
    return host, int(port)


def _read(file: str) -> tuple[str, int]:
    with contextlib.suppress(OSError, ValueError):
        host, port = Path(file).read_text(encoding="utf-8").split()
        return host, int(port)
    return "", 0


# Where each rank listens


def _listeners(address: str) -> tuple[dict[str, Any], list[socket.socket]]:
    # What to tell others of where this process listens, and the sockets that do.
    tcp = _bound(address, 0, time.monotonic())
    found: dict[str, Any] = {"tcp": [address, tcp.getsockname()[1]], "host": _machine()}
    if not found["host"]:
        return found, [tcp]
    name = f"\0lowtide-{secrets.token_hex(16)}"  # in no folder: nothing is left behind
    near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    near.bind(name)
    near.listen(1024)
    found["unix"] = name[1:]
    return found, [tcp, near]


def _machine() -> str:
    # What processes have in common that reach one another by Unix sockets without a file.
    if not sys.platform.startswith("linux"):
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return ""


def _connect(
    place: Place, table: dict[str, Any], own: list[socket.socket], deadline: float
) -> dict[int, socket.socket]:
    # A connection to each rank: made to those below, accepted from those above.
    found: dict[int, socket.socket] = {}
    here = table["ranks"][place.rank]["host"]
    try:
        for rank in range(place.rank):
            found[rank] = _reach(table["ranks"][rank], here, rank, deadline)
            _tell(found[rank], {"rank": place.rank, "key": table["key"]})
        while len(found) < place.size - 1:
            absent = sorted(set(range(place.size)) - set(found) - {place.rank})
            connection = _accept(own, deadline, f"{_ranks(absent)} did not connect")
            try:
                hello = _hear(connection, min(deadline, time.monotonic() + _GREETING))
            except DistNetworkError:
                hello = {}
            if hello.get("key") == table["key"]:
                found[hello["rank"]] = connection
            else:
                connection.close()
    except BaseException:
        for connection in found.values():
            connection.close()
        raise
    return found


def _reach(at: dict[str, Any], here: str, rank: int, deadline: float) -> socket.socket:
    try:
        if here and at["host"] == here:
            near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            near.connect("\0" + at["unix"])
            return near
        left = max(_AGAIN, deadline - time.monotonic())
        return socket.create_connection(tuple(at["tcp"]), timeout=left)
    except OSError as error:
        raise DistNetworkError(
            f"init_process_group: rank {rank} listens at {at['tcp']}, and cannot be reached: "
            f"{error}. Does a firewall stand between?"
        ) from error


def _accept(listeners: list[socket.socket], deadline: float, what: str) -> socket.socket:
    left = max(0.0, deadline - time.monotonic())
    ready, _, _ = select.select(listeners, [], [], left)
    if not ready:
        raise DistNetworkError(
            f"init_process_group: {what} in time. Were all ranks started, with the same "
            "MASTER_ADDR, MASTER_PORT and WORLD_SIZE?"
        )
    found: socket.socket = ready[0].accept()[0]
    return found


def _tell(connection: socket.socket, what: Any) -> None:
    data = json.dumps(what).encode()
    with contextlib.suppress(OSError):  # a rank that left is missed later
        connection.sendall(_LENGTH.pack(len(data)) + data)


def _hear(connection: socket.socket, deadline: float) -> dict[str, Any]:
    try:
        (length,) = _LENGTH.unpack(b"".join(_bytes(connection, _LENGTH.size, deadline)))
        if length > _LARGEST:
            raise ValueError(f"a greeting of {length} bytes")
        found = json.loads(b"".join(_bytes(connection, length, deadline)))
    except (OSError, ValueError) as error:
        raise DistNetworkError(f"init_process_group: rank 0 gave no answer: {error}.") from error
    if not isinstance(found, dict):
        raise DistNetworkError("init_process_group: what answers there is no rank of lowtide.")
    return found


def _bytes(connection: socket.socket, count: int, deadline: float) -> Iterator[bytes]:
    while count:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        some = connection.recv(count)
        if not some:
            raise ValueError("the connection was closed")
        count -= len(some)
        yield some


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
