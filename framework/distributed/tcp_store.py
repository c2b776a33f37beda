"""A key-value store in one process, which others reach by TCP."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from .stores import Store, default_timeout
from .transport import DistStoreError

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
        from . import store_connections

        super().__init__()
        self.timeout = timeout
        self.host, self.port, self.world_size = host_name, port, world_size
        if is_master:
            server = store_connections.Server(host_name, port, master_listen_fd)
            self.port = server.port
            weakref.finalize(self, server.close)
        self._connection = store_connections.Connection(host_name, self.port)
        weakref.finalize(self, self._connection.close)
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
        return self._connection.ask([name, *args], _ANSWER, self.timeout)

    def _await(self, keys: Sequence[str], timeout: timedelta) -> bool:
        seconds = timeout.total_seconds()
        question = ["wait", list(keys), seconds]
        return bool(self._connection.ask(question, seconds + _ANSWER, self.timeout))

    def list_keys(self) -> list[str]:
        """Return all keys but those of the store itself."""
        return [key for key in super().list_keys() if not key.startswith(_WORKERS)]
