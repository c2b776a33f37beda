"""Storage: one owned buffer, its bytes, its role, its version.

A storage of the host is an array of bytes, a subclass of ``numpy.ndarray``. Every array of a tensor
is a view of one, and NumPy keeps it as that view's ``base``. So the buffer goes back to the pool
when the last array that reads it is gone, wherever that array is held: by a tensor, the graph, or a
user who called ``.numpy()``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .interrupts import finalizer
from .memory.events import publish
from .memory.ledger import SAVED, TEMPORARY

if TYPE_CHECKING:
    from .memory.ledger import Ledger


class LedgerEntry:
    """Base class of storages: role, version and ledger.

    Attributes:
        ledger: The ledger of its device.
        role: Its present role (a number of ``memory.ledger.ROLES``).
        version: How often it was written in place. A graph that kept a value compares.
        pins: How many saved values of a graph hold it.
    """

    __slots__ = ()
    ledger: Ledger | None
    role: int
    version: int
    pins: int
    nbytes: int

    @property
    def root(self) -> Any:
        """The storage that owns the bytes: itself, but for an :class:`AliasStorage`."""
        return self

    def restore(self, version: int) -> bool:
        """Bring back the bytes of a version that were given up; False if they were not.

        Code that saved a value calls it if the version has changed since.
        """
        return False

    def alias(self) -> Any:
        """Return the storage of ``tensor.data``: these bytes, under a separate version."""
        return AliasStorage(self)

    def set_role(self, role: int) -> None:
        """Set the role of the bytes and update the ledger.

        At the peak itself, the peak's roles change along.
        """
        old, ledger = self.role, self.ledger
        if old == role:
            return
        if ledger is None:
            self.role = role  # type: ignore[misc]  # the slots are the subclasses'
            return
        n, roles = self.nbytes, ledger.roles
        self.role = role  # type: ignore[misc]  # no call before the ledger changes
        roles[old] -= n
        roles[role] += n
        # Not if the graph lets go of a value: it was a saved one when the peak came.
        if ledger.live == ledger.peak and not (old == SAVED and role == TEMPORARY):
            ledger.peak_roles = roles[:]
        if ledger.observers:
            publish(ledger, "role", self, old)


class Storage(np.ndarray, LedgerEntry):  # type: ignore[override]  # nbytes is numpy's property
    """A storage from a host pool, made by ``HostBackend.empty`` and freed when it dies."""

    __slots__ = ("ledger", "offset", "pins", "role", "stack", "version")
    ledger: Ledger
    stack: list[int]  # where the pool wants the offset back: the bin of this size
    offset: int

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return self.ledger.base + self.offset

    @finalizer
    def __del__(self) -> None:
        # Written out instead of calling the ledger and the pool: every tensor ends here.
        try:
            ledger = self.ledger
            role = self.role
        except AttributeError:  # interrupted between its birth and its booking, or a bare view
            return
        n = self.nbytes
        ledger.live -= n
        ledger.roles[role] -= n
        if ledger.observers:
            try:
                publish(ledger, "free", self)
            finally:
                self.stack.append(self.offset)
        else:
            self.stack.append(self.offset)  # no call before the ledger changes


class AliasStorage(LedgerEntry):
    """The bytes of another storage under a separate version: what ``Tensor.data`` gives.

    Writes through it are not counted by the graph that kept the values, which is what ``.data`` is
    for. Role, pins and ledger are those of the storage that owns the bytes, which it keeps alive.
    """

    __slots__ = ("__weakref__", "_root", "version")

    def __init__(self, root: Any) -> None:
        self._root = root.root
        self.version = 0

    root = property(lambda self: self._root)
    ledger = property(lambda self: self._root.ledger)
    nbytes = property(lambda self: self._root.nbytes)
    address = property(lambda self: self._root.address)
    role = property(
        lambda self: self._root.role, lambda self, role: setattr(self._root, "role", role)
    )
    pins = property(
        lambda self: self._root.pins, lambda self, pins: setattr(self._root, "pins", pins)
    )

    def set_role(self, role: int) -> None:
        """Set the role of the bytes and update the ledger."""
        self.root.set_role(role)


def may_share_memory(a: Any, b: Any) -> bool:
    """Whether two storages may have bytes in common: they are one, or both are someone else's."""
    a, b = a.root, b.root
    return a is b or (type(a) is type(b) is ExternalStorage)


class ExternalStorage(LedgerEntry):
    """A storage owned by someone else: a NumPy array that a tensor shares, a mapped file, a slice.

    The ledger does not count them: lowtide neither took them nor can give them back.
    """

    __slots__ = ("__weakref__", "ledger", "nbytes", "owner", "pins", "role", "version")

    def __init__(self, owner: Any, nbytes: int, role: int) -> None:
        self.owner = owner
        self.nbytes = nbytes
        self.role = role
        self.ledger = None
        self.version = 0
        self.pins = 0

    @property
    def address(self) -> int:
        """Address of the first byte."""
        found = getattr(self.owner, "__cuda_array_interface__", None)
        found = self.owner.__array_interface__ if found is None else found
        return int(found["data"][0])
