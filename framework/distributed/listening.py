"""Sockets that processes of other machines reach, and the address at which they do."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from typing import Any


def listen_at(host: str, port: int) -> socket.socket:
    """Listen at a port for those who reach this machine as ``host``.

    A machine's own name often means its loopback address on the machine itself, as Debian sets it
    up, and another address elsewhere. And an address by which others reach a machine may be one of
    a router. In both cases the socket listens on all interfaces.

    Args:
        host: The name or address that others use.
        port: The port; 0 for a free one.

    Raises:
        OSError: The name is unknown, or the port is in use.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    everywhere = ("::" if family == socket.AF_INET6 else "0.0.0.0", port)
    if not (_is_address(host) or host == "localhost"):
        return _listening(family, kind, everywhere)
    try:
        return _listening(family, kind, address)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return _listening(family, kind, everywhere)


def _listening(family: int, kind: int, address: Any) -> socket.socket:
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def own_address() -> str:
    """Return the address of this machine that others reach.

    It is the one that its name means; if that is a loopback address, the one from which it would
    send to other networks; without a network, the loopback address.
    """
    with contextlib.suppress(OSError):
        found = socket.gethostbyname(socket.gethostname())
        if not ipaddress.ip_address(found).is_loopback:
            return found
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.255.255.255", 9))  # sends nothing
        return str(probe.getsockname()[0])
    return "127.0.0.1"
