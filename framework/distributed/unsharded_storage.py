"""Memory of a tensor whose rows are gathered: it can be given up, and filled again.

A graph that keeps such a tensor need not keep its bytes: they go after the forward, and come back
from the other ranks when backward, or a replay, asks for them. The addresses stay, so whatever
refers to the tensor need not know. While the bytes are gone, the version is one that nothing was
saved with. So code that keeps values finds out when it compares versions, and calls ``restore``.
"""

from __future__ import annotations

import mmap
import sys
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ..device import device
from ..devices import backend
from ..dtypes import float32
from ..interrupts import finalizer
from ..memory.events import publish
from ..memory.ledger import COMMUNICATION
from ..spec import Spec
from ..storage import LedgerEntry
from ..tensor import Tensor, wrap

STAYS = 64 << 10  # bytes of a tensor up to which they stay until its graph goes
_GONE = -1  # the version while the bytes are gone
_DROP: Any = getattr(mmap, "MADV_DONTNEED", None)


class UnshardedStorage(LedgerEntry):
    """Bytes of role ``communication`` on the CPU.

    Args:
        spec: Of the tensor that lies in it.
        fill: Fills flat tensors of released storages again; raises an error if the bytes would be
            others by now.

    Attributes:
        nbytes: Its bytes, also while they are gone.
        address: Where they begin.
        array: The tensor's array.
        used: Whether there was ever one.
        THERE: The version of what was gathered.
    """

    used: ClassVar[bool] = False
    THERE: ClassVar[int] = 0

    __slots__ = (
        "__weakref__",
        "_fill",
        "_map",
        "_owner",
        "address",
        "array",
        "ledger",
        "nbytes",
        "pins",
        "role",
        "spec",
        "version",
    )

    def __init__(self, spec: Spec, fill: Callable[[Tensor], None]) -> None:
        self.ledger = None
        UnshardedStorage.used = True
        self.spec, self.nbytes = spec, spec.nbytes
        self.role, self.version, self.pins = COMMUNICATION, _GONE, 0
        self._fill = fill
        self._owner: Any = None
        # Private: what a forked copy of the process writes is its own.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._map = mmap.mmap(-1, max(1, spec.nbytes), flags=flags)
        self.array = np.frombuffer(self._map, spec.np_dtype, spec.numel).reshape(spec.shape)
        self.address = self.array.__array_interface__["data"][0]

    def flat(self) -> Tensor:
        """Return a flat tensor on the bytes, outside of any graph."""
        spec = Spec((self.spec.numel,), self.spec.dtype, self.spec.device)
        return wrap(self.array.reshape(-1), spec, self)

    def tensor(self) -> Tensor:
        """Return a tensor on the bytes, outside of any graph."""
        return wrap(self.array, self.spec, self)

    def shown_as(self, tensor: Tensor) -> None:
        """Note the tensor that users see: it raises an error while the bytes are gone."""
        self._owner = weakref.ref(tensor)

    def book(self) -> None:
        """Book the bytes, which are to be filled, unless an interrupt left them booked.

        Raises:
            MemoryLimitError: There is no room.
        """
        if self.ledger is not None:
            return
        ledger = backend(self.spec.device).ledger
        ledger.born(self, self.nbytes, COMMUNICATION)
        if ledger.observers:
            publish(ledger, "alloc", self)

    def filled(self) -> None:
        """Note that the bytes are there."""
        self.version = self.THERE
        self._show(self.array)

    @property
    def there(self) -> bool:
        """Whether the bytes are there."""
        return self.version == self.THERE

    def count_others(self) -> int:
        """Return how many references there are that are no pin's: each pin has one."""
        return sys.getrefcount(self) - self.pins

    def release(self) -> None:
        """Give the bytes up; ``restore`` brings them back."""
        self.version = _GONE
        self._show(Gone(self.spec))
        self._book_out()
        if _DROP is not None:
            self._map.madvise(_DROP)

    def restore(self, version: int) -> bool:
        """Bring back the bytes of a version; False if they are there, and others.

        Raises:
            GradientError: The shards were written since.
            MemoryLimitError: There is no room.
        """
        if self.version != _GONE or version != self.THERE:
            return False
        self.book()
        try:
            self._fill(self.flat())
        except BaseException:
            self._book_out()
            raise
        self.filled()
        return True

    def alias(self) -> UnshardedStorage:
        """Return the storage of ``tensor.data``: itself, whose version tells what is there."""
        return self

    def _show(self, array: Any) -> None:
        tensor = self._owner() if self._owner is not None else None
        if tensor is not None:
            tensor._array = array

    def _book_out(self) -> None:
        ledger: Any = self.ledger
        if ledger is None:
            return
        n, role = self.nbytes, self.role
        self.ledger = None  # no call before the ledger changes
        ledger.live -= n
        ledger.roles[role] -= n
        if ledger.observers:
            publish(ledger, "free", self)

    @finalizer
    def __del__(self) -> None:
        self._book_out()


class Gone:
    """What a tensor has in place of an array while its bytes are gone; reading it fails."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    def _read_error(self) -> RuntimeError:
        return RuntimeError(
            f"a sharded parameter of shape {tuple(self._spec.shape)} was read outside of its "
            "module's forward, when the rows of other ranks are gone. Read it inside forward, or "
            "between module.unshard() and module.reshard()."
        )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._read_error()

    def __getattr__(self, name: str) -> Any:
        if name == "_spec" or name.startswith("__"):
            raise AttributeError(name)
        raise self._read_error()


def _of_one_tensor() -> int:
    # How many of them are the calls' own depends on the version of Python.
    probe = UnshardedStorage(Spec((0,), float32, device("cpu")), lambda t: None)
    tensor = probe.tensor()
    count = probe.count_others()
    del tensor
    return count


_ONE_TENSOR = _of_one_tensor()  # what count_others says if only graphs and one tensor refer to it


def release_unused(tensor: Tensor) -> None:
    """Give up the bytes of a gathered tensor, unless they are few or another tensor has them."""
    storage = tensor._storage
    if storage.nbytes > STAYS and storage.there and storage.count_others() <= _ONE_TENSOR:
        storage.release()
