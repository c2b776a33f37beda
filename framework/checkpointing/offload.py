"""Offload to host memory: saved values leave the GPU and return for backward.

Copies run on separate streams beside the kernels, one stream out and one back, and the order
of events is always the same, so bytes are too. The host never waits, but for memory not pinned:

- **Out.** The copy of a value begins once the kernels queued so far are done. The value stays on
  the device until ``ahead`` more values have been sent; only then do the kernels' stream wait for
  the copy, and the memory go back to the pool, whose frees know nothing of streams.
- **Back.** When backward takes a value, the ``ahead`` values sent before it are fetched too: they
  are wanted next. One that has not left yet is simply taken back.

Where a device has no streams (``sim``, ``meta``), the copies happen at once, and all else is the
same. Values on the CPU are there already, and stay.

Pinned host memory comes from slabs that are never given back: pinning is slow, and doing it for
each copy would cost more than the copies. The CPU's ledger counts what is in use of them. A block
is free again while the GPU may still be reading it: each device has slabs of its own, and its
streams keep the order. ``tests/checkpointing/asynchronous.py`` is a model of CUDA in which all of
this is held for every order in which a GPU may run it.

Not optimal: how far ahead is fixed, not computed from the speeds of copies and kernels.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from typing import Any

import numpy as np

from ..autograd.saved import Pin
from ..device import device as _device
from ..devices import backend
from ..errors import GradientError, OutOfMemoryError
from ..interrupts import finalizer
from ..memory.block import Block
from ..memory.events import publish
from ..memory.ledger import SAVED, TEMPORARY
from ..memory.pool import ALIGNMENT, Pool
from ..modes import local, run_kernel
from ..storage import LedgerEntry
from ..tensor import Tensor
from .stash import Stash, Stashed, UncopiedStorage, array_of, new_storage, written_since

_SLAB = 1 << 28  # bytes pinned at a time, at least
_FROM_HOST, _TO_HOST = 1, 2  # kinds of cudaMemcpy
_HOST = _device("cpu")


class offload(Stash):
    """Offload saved values of a GPU to host memory; a stash (decision, policy or context manager).

    Args:
        pin_memory: Take pinned memory: only to and from such do copies run beside kernels; for
            others the host waits.
        ahead: How many values are on their way at a time, in either direction.
        min_bytes: Smaller values stay on the device.

    Memory:
        On the device: up to ``ahead`` values that have not left yet, and in backward up to
        ``ahead`` that are back early. On the CPU's ledger: all of them, as saved activations. On
        meta the device's bytes are counted, and no host's.

    Example:
        >>> import lowtide as lt
        >>> x = lt.ones(2000, device="sim", requires_grad=True)
        >>> with lt.checkpointing.offload(ahead=0):
        ...     y = x.exp().sum()
        >>> lt.memory_allocated("sim") < 2 * 8000 + 100
        True
        >>> y.backward()
    """

    def __init__(
        self, pin_memory: bool = True, ahead: int = 2, min_bytes: int | str = 4096
    ) -> None:
        super().__init__(min_bytes)
        if not isinstance(ahead, int) or ahead < 0:
            raise ValueError(f"offload: ahead is a number of values, at least 0; got {ahead!r}.")
        self.pin_memory = pin_memory
        self.ahead = ahead
        self._at_once: offload | None = None

    def __repr__(self) -> str:
        return f"offload(pin_memory={self.pin_memory}, ahead={self.ahead})"

    speed = 1e10

    def at_once(self) -> Stash:
        """Return a stash like this that keeps nothing on the device until more is sent."""
        if self.ahead == 0:
            return self
        if self._at_once is None:
            self._at_once = offload(self.pin_memory, 0, self.min_bytes)
        return self._at_once

    def stash(self, tensor: Tensor) -> Stashed:
        """Offload the storage of ``tensor``."""
        device = tensor._spec.device
        if device == _HOST:
            return UncopiedStorage(tensor._storage)
        return OffloadedStorage(
            tensor._storage, device, host_transfers(device), self.ahead, self.pin_memory
        )


class save_on_cpu(offload):
    """Save all tensors for backward in host memory, and copy them back for backward.

    PyTorch's name for ``offload`` as a context manager. Leaves and parameters, which live anyway,
    are not copied, and a storage is copied once, however many views of it are saved.

    Args:
        pin_memory: Take pinned memory, so that copies run beside kernels and the host does not
            wait for them.
        device_type: Accepted for PyTorch's signature; values of every device but the CPU are sent.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        del device_type
        super().__init__(pin_memory, min_bytes=0)

    def __enter__(self) -> Any:
        if local.state.hooks_disabled is not None:
            raise RuntimeError(local.state.hooks_disabled)
        return super().__enter__()


class HostTransfers:
    """Copies in progress between a device and the host."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.leaving: deque[Any] = deque()  # weak references, in the order of sending
        self.last: Any = None  # the one sent last, weakly
        self._copiers: dict[Any, Any] = {}  # by backend: a process that predicts has a stand-in

    @property
    def copier(self) -> Any:
        """The copier of the device, which also makes kernels wait for copies."""
        be = backend(self.device)
        found = self._copiers.get(be)
        if found is None:
            found = self._copiers[be] = _copier_for(be)
        return found


_host_transfers: dict[Any, HostTransfers] = {}


def host_transfers(device: Any) -> HostTransfers:
    """Return the transfers of a device in this process."""
    found = _host_transfers.get(device)
    if found is None:
        found = _host_transfers[device] = HostTransfers(device)
    return found


def _copier_for(be: Any) -> Any:
    if be.device.type != "cuda":
        return SyncCopier(be)
    return StreamCopier(be) if _has_cuda(be) else NoopCopier()


def _has_cuda(be: Any) -> bool:
    # A forked process cannot use CUDA: a stand-in takes the backend's place there, to predict.
    return hasattr(be.xp, "cuda")


class OffloadedStorage:
    """A storage that is offloaded to the host.

    It is here (the copy out may run), then away, coming back, and away again.

    Attributes:
        nbytes: Bytes that it keeps of the host's.
    """

    __slots__ = (
        "__weakref__", "ahead", "back", "before", "device", "given", "here", "host", "nbytes",
        "pin", "size", "spoiled", "ticket", "transfers", "version",
    )  # fmt: skip

    def __init__(
        self, storage: Any, device: Any, road: HostTransfers, ahead: int, pinned: bool
    ) -> None:
        self.here: Any = None
        self.pin: Pin | None = None  # on what is here, or coming back
        self.back: Any = None  # (storage, ticket)
        self.given: Any = _gone  # weakly, what was brought back last
        self.spoiled: str | None = None  # why it cannot come back
        self.device = device
        self.transfers = road
        self.ahead = ahead
        self.version = storage.version
        self.size = int(storage.nbytes)
        self.host = None if device.type == "meta" else _room(device, self.size, pinned)
        self.nbytes = 0 if self.host is None else self.size
        self.ticket = road.copier.send(storage, self.host)
        self.pin = Pin(storage)
        self.here = storage
        self.before = road.last
        me = road.last = weakref.ref(self)
        road.leaving.append(me)
        while len(road.leaving) > ahead:
            first = road.leaving.popleft()()
            if first is not None:
                first.leave()

    def leave(self) -> None:
        """Free the device memory once the copy is done."""
        if self.here is not None:
            # First: an interrupted wait has let nothing go.
            self.transfers.copier.wait(self.ticket)
            if self.here.version != self.version:  # the copy may have seen the write
                self.spoiled = str(written_since(self.here, self.version))
            self.here = self.ticket = self.pin = None

    before_write = leave

    def restore(self) -> Any:
        """Copy the bytes back into a new storage of the device.

        Raises:
            GradientError: It was written in place before it had left.
        """
        if self.here is not None:
            if self.here.version != self.version:
                raise written_since(self.here, self.version)
            return self.here
        if self.back is None:
            self._fetch()
        storage = self._arrived()
        self.look_ahead()
        return storage

    def _fetch(self) -> None:
        if self.spoiled is not None:
            raise GradientError(self.spoiled)
        storage, _ = new_storage(self.device, self.size, role=TEMPORARY)
        pin = Pin(storage)
        self.back = (storage, self.transfers.copier.fetch(self.host, storage))
        self.pin = pin

    def _arrived(self) -> Any:
        storage, ticket = self.back
        self.transfers.copier.wait(ticket)
        self.given = weakref.ref(storage)
        self.back = self.pin = None
        return storage

    def look_ahead(self) -> None:
        """Prefetch the storage that was offloaded just before: backward needs it next."""
        other: OffloadedStorage = self
        for _ in range(self.ahead):
            found = None if other.before is None else other.before()
            if found is None:
                return
            other = found
            there = (other.here, other.back, other.given(), other.spoiled)
            if all(x is None for x in there):
                try:
                    other._fetch()
                except OutOfMemoryError:  # then when it is wanted
                    return

    def __del__(self, ending: Any = sys.is_finalizing) -> None:
        if ending():  # the driver may be gone already
            return
        self.leave()
        if self.back is not None:
            self._arrived()


def _gone() -> None:
    """Return no reference: nothing has been fetched yet."""


# Lanes


class SyncCopier:
    """Synchronous copies, for a device without streams."""

    def __init__(self, be: Any) -> None:
        self.be = be

    def send(self, storage: Any, host: Any) -> Any:
        """Copy a storage to the host."""
        be = self.be
        if be.xp is not None:
            run_kernel(_download, array_of(host, _HOST), array_of(storage, be.device), be)

    def fetch(self, host: Any, storage: Any) -> Any:
        """Copy a storage back to the device."""
        be = self.be
        if be.xp is not None:
            run_kernel(_upload, array_of(storage, be.device), array_of(host, _HOST))

    def wait(self, ticket: Any) -> None:
        """Wait for a copy; synchronous copies are done already."""


def _download(out: Any, array: Any, be: Any) -> None:
    np.copyto(out, be.to_host(array))


def _upload(out: Any, array: Any) -> None:
    out.set(array)


class NoopCopier:
    """Copies nothing: for a GPU whose memory is only counted."""

    def __init__(self) -> None:
        self.kept: list[Any] = []  # events of the GPU: the end of one would call the driver

    def send(self, storage: Any, host: Any) -> Any:
        """Do nothing."""

    def fetch(self, host: Any, storage: Any) -> Any:
        """Do nothing."""

    def wait(self, ticket: Any) -> None:
        """Do nothing."""
        self.kept.append(ticket)


class StreamCopier:
    """Asynchronous copies on streams of a GPU, in the order of the requests."""

    def __init__(self, be: Any) -> None:
        self.be = be
        self.cuda = be.xp.cuda
        with be._here():
            self.out = self.cuda.Stream(non_blocking=True)
            self.back = self.cuda.Stream(non_blocking=True)

    def send(self, storage: Any, host: Any) -> Any:
        """Start copying a storage to the host, after the kernels queued so far."""
        with self.be._here():
            now = self.cuda.get_current_stream()
            self.out.wait_event(self._so_far(now))
            self.out.wait_event(self._so_far(self.back))  # they may be reading the host's block
            self._copy(host, storage, _TO_HOST, self.out, host)
            return self._so_far(self.out), now

    def fetch(self, host: Any, storage: Any) -> Any:
        """Start copying it back, after all copies out and the last use of the new memory."""
        with self.be._here():
            now = self.cuda.get_current_stream()
            self.back.wait_event(self._so_far(self.out))
            self.back.wait_event(self._so_far(now))
            self._copy(storage, host, _FROM_HOST, self.back, host)
            return self._so_far(self.back), now

    def wait(self, ticket: Any) -> None:
        """Make later kernels wait for a copy."""
        done, asked = ticket
        with self.be._here():
            now = self.cuda.get_current_stream()
            now.wait_event(done)
            if now != asked:  # whose memory it is: the pool gives it to that stream again
                asked.wait_event(done)

    def _copy(self, to: Any, start: Any, kind: int, stream: Any, host: Any) -> None:
        nbytes = int(start.nbytes)
        self.cuda.runtime.memcpyAsync(to.address, start.address, nbytes, kind, stream.ptr)
        if not isinstance(
            host, PinnedBlock
        ):  # CUDA may or may not have waited; then others may have it
            stream.synchronize()

    def _so_far(self, stream: Any) -> Any:
        event = self.cuda.Event(disable_timing=True)
        event.record(stream)
        return event


# Room on the host


class PinnedBlock(LedgerEntry):
    """A block of pinned host memory, counted in the ledger of the CPU."""

    __slots__ = (
        "__weakref__",
        "address",
        "block",
        "ledger",
        "nbytes",
        "pins",
        "role",
        "slab",
        "version",
    )

    def __init__(self, ledger: Any, nbytes: int, slab: Any, block: Block) -> None:
        self.slab = slab
        self.block = block
        self.nbytes = nbytes
        self.role = SAVED
        self.version = self.pins = 0
        self.address = slab.ptr + block.offset
        ledger.born(self, nbytes, SAVED)
        if ledger.observers:
            publish(ledger, "alloc", self)

    @finalizer
    def __del__(self) -> None:
        try:
            ledger: Any = self.ledger
        except AttributeError:  # refused by it: never booked
            return
        n = self.nbytes
        ledger.live -= n
        ledger.roles[self.role] -= n
        if ledger.observers:
            publish(ledger, "free", self)


_slabs: dict[Any, list[tuple[Any, Pool]]] = {}  # by device


def _room(device: Any, nbytes: int, pinned: bool) -> Any:
    if device.type != "cuda" or not pinned:
        return new_storage(_HOST, nbytes)[0]
    size = -(-nbytes // ALIGNMENT) * ALIGNMENT
    ledger, slabs = backend(_HOST).ledger, _slabs.setdefault(device, [])
    for slab, pool in slabs:
        try:
            block = Block(pool, size)
        except MemoryError:
            continue
        return PinnedBlock(ledger, nbytes, slab, block)
    room = max(_SLAB, size)
    slab, pool = _slab(backend(device), room), Pool(room)
    slabs.append((slab, pool))
    return PinnedBlock(ledger, nbytes, slab, Block(pool, size))


def _slab(be: Any, size: int) -> Any:
    if not _has_cuda(be):
        return _FakePinnedMemory()
    with be._here():
        return be.xp.cuda.PinnedMemory(size)


class _FakePinnedMemory:
    """A fake pinned slab: addresses without memory."""

    ptr = 0


__all__ = [
    "HostTransfers",
    "OffloadedStorage",
    "StreamCopier",
    "SyncCopier",
    "host_transfers",
    "offload",
    "save_on_cpu",
]
