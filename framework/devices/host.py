"""The NumPy backends: ``cpu``, and ``meta``, which has no values.

Both hand out views of one reserved mapping. That of the CPU is written; its pages come from the
system when first touched. That of meta is read-only and as large as the address space allows:
its arrays have true shapes, strides and offsets, every view op runs on them as on real ones, and
no page behind them ever exists.

The mapping of the CPU asks for huge pages. On the machine this was written on, the first touch of
10 million floats took 12 ms instead of 45, and adding such arrays 2.8 ms instead of 3.3. The
price: the last page touched may reach up to 2 MiB past the last block.
"""

from __future__ import annotations

import contextlib
import mmap
import resource
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import execution
from ..device import device
from ..errors import OutOfMemoryError
from ..kernels.common.copy import copy
from ..kernels.common.float8 import saturated_copy, saturates
from ..memory.events import publish
from ..memory.ledger import TEMPORARY, Ledger, format_bytes
from ..memory.machine import LEAST_STEP, Guard, NoRoomError, machine
from ..memory.pages import PAGE
from ..memory.pool import NO_CAP, Pool
from ..memory.short_traceback import shorten
from ..modes import local, value_read
from ..storage import ExternalStorage, Storage

if TYPE_CHECKING:
    from ..spec import Spec

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # the constant came with Python 3.13
_POPULATE_WRITE = 23  # of madvise; Python has no name for it
_FOR_OTHERS = 1 << 27  # bytes of addresses: stacks of threads, workspace of BLAS, Python's objects
_ndarray = np.ndarray
_new_array = np.ndarray.__new__
_byte = np.dtype(np.uint8)


def reserve(largest: int, writable: bool) -> mmap.mmap:
    """Reserve up to ``largest`` bytes of address space, or as many as there are.

    Private, so that a forked worker writes its own copy. Under ``ulimit -v`` some are left for the
    interpreter, for libraries and their threads.
    """
    page = mmap.PAGESIZE
    size = -(-min(largest, _addresses_left()) // page) * page
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    while True:
        try:
            mapping = mmap.mmap(-1, size, flags=flags, prot=prot)
        except (OSError, OverflowError):
            size = size // 2 // page * page
            if size < 1 << 24:
                raise
        else:
            if writable:
                _advise_huge(mapping, True)
            return mapping


def _addresses_left() -> int:
    # What a limit on addresses (ulimit -v) leaves for a pool.
    try:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * mmap.PAGESIZE
    except (OSError, ValueError):  # not Linux
        return 1 << 62
    if limit == resource.RLIM_INFINITY:
        return 1 << 62
    return max(limit - taken - max((limit - taken) // 16, _FOR_OTHERS), 1 << 24)


def _advise_huge(mapping: mmap.mmap, wanted: bool) -> None:
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            mapping.madvise(mmap.MADV_HUGEPAGE if wanted else mmap.MADV_NOHUGEPAGE)


class HostBackend:
    """The backend of one host device: allocates, copies and runs kernels.

    Attributes:
        device: Its name.
        xp: The array module that kernels compute with, or None: nothing is computed.
        kernel_key: Which fast kernels it takes ("cpu", "cuda").
        ledger: Its live bytes.
        pool: Its addresses.
        storage_class: Of the storages that it creates.
        several: False: there is one.
    """

    several = False

    def __init__(self, name: str, largest: int, computes: bool) -> None:
        self.device = device(name)
        self.xp: Any = np if computes else None
        self.kernel_key = "cpu"
        self.storage_class: Any = Storage
        self.ledger = Ledger(self.device)
        self.arena = reserve(largest, writable=computes)
        self.ledger.base = int(
            np.frombuffer(self.arena, np.uint8, 1).__array_interface__["data"][0]
        )
        release, touch = (self._unmap, self._touch) if computes else (None, None)
        self.pool = self.ledger.pool = Pool(len(self.arena), release, touch=touch)
        self._huge = computes
        self._bins = self.pool.bins
        self._guard: Guard | None = None
        if computes:
            self.limit_to_machine(True)

    def on_device(self, f: Any) -> Any:
        """Return ``f``: all kernels run on the host."""
        return f

    def empty(self, spec: Spec, role: int = TEMPORARY) -> tuple[Any, Any]:
        """Allocate an uninitialized contiguous array of ``spec`` from the pool.

        Returns:
            (storage, array).

        Raises:
            OutOfMemoryError: The mapping, or the limit set on the device, has no room.
        """
        # Every result of every op comes from here, so the fast paths of the ledger and the pool are
        # written out (Ledger.born, Pool.take). A block is taken off its stack and recorded without
        # a call, so neither an interrupt nor another thread comes between.
        ledger = self.ledger
        nbytes = spec.nbytes
        if ledger.live + nbytes > ledger.limit:
            ledger.refuse(nbytes)
        while True:
            try:
                stack = self._bins[spec.block]
                offset = stack[-1]
                storage = _new_array(self.storage_class, spec.flat, _byte, self.arena, offset)
                if stack[-1] is not offset:
                    continue  # another thread was faster
            except LookupError:  # no block is free
                self._search(spec)
                continue
            del stack[-1]
            storage.ledger = ledger
            storage.stack = stack
            storage.offset = offset
            storage.role = role
            storage.version = 0
            storage.pins = 0
            roles = ledger.roles
            roles[role] += nbytes
            live = ledger.live + nbytes  # read again: another thread may have allocated meanwhile
            ledger.live = live
            ledger.allocations += 1
            if live > ledger.peak:
                ledger.peak = live
                ledger.peak_roles = roles[:]
            break
        if ledger.observers:
            publish(ledger, "alloc", storage)
        return storage, _ndarray(spec.shape, spec.np_dtype, storage)

    def strided_view(self, storage: Any, spec: Spec, place: Any) -> Any:
        """Return an array on bytes of a storage.

        Args:
            storage: One of this device.
            spec: Its shape and dtype.
            place: (offset in bytes, strides in bytes); None for the start, in C order.
        """
        owner = storage.root
        if place is None:
            return _ndarray(spec.shape, spec.np_dtype, owner)
        return _ndarray(spec.shape, spec.np_dtype, owner, *place)

    def adopt(self, array: Any, role: int) -> tuple[Any, Any]:
        """Wrap an array that someone else owns, sharing its memory."""
        return ExternalStorage(array, array.nbytes, role), array

    def from_host(self, array: Any, spec: Spec, role: int) -> tuple[Any, Any]:
        """Copy a NumPy array to the device."""
        try:
            storage, out = self.empty(spec, role)
        except MemoryError as error:
            shorten(error)
            raise
        if self.xp is not None:
            with np.errstate(all="ignore"):  # what does not fit is not reported
                if saturates(out.dtype, getattr(array, "dtype", None)):
                    saturated_copy(out, array)
                else:
                    np.copyto(out, array, casting="unsafe")
        capture = local.state.capture
        if capture is not None:
            capture.filled_from_python(storage)
        return storage, out

    def to_host(self, array: Any) -> Any:
        """Return the NumPy array without a copy."""
        value_read("its array")
        return array

    def item(self, array: Any) -> Any:
        """Return the only element of an array as a Python scalar."""
        value = array.item()
        capture = local.state.capture
        return value if capture is None else capture.read_number(array, value)

    def copy(self, out: Any, array: Any) -> None:
        """Copy within the device, converting the dtype."""
        copy(out, array)

    def address(self, array: Any) -> int:
        """Address of the first element."""
        return int(array.__array_interface__["data"][0])

    def synchronize(self) -> None:
        """Do nothing: all work on the host is synchronous."""

    def release_cached(self) -> None:
        """Return the pages of free blocks to the operating system."""
        self.pool.trim()

    def _unmap(self, offset: int, size: int) -> None:
        # Give back whole pages.
        if not execution.current.computes:
            return
        if self._huge and self.pool.cap != NO_CAP:
            # Where single pages go back, a huge one would bring its neighbors along.
            self._use_huge_pages(False)
        self.arena.madvise(mmap.MADV_DONTNEED, offset, size)

    def _touch(self, offset: int, size: int) -> None:
        # A third less time than a fault for each page, where the kernel can (Linux 5.14).
        if execution.current.computes:
            begin, end = offset // PAGE * PAGE, -(-(offset + size) // PAGE) * PAGE
            with contextlib.suppress(OSError):
                self.arena.madvise(_POPULATE_WRITE, begin, min(end, len(self.arena)) - begin)

    def budget_opened(self) -> None:
        """Follow the beginning of a byte budget: free pages above it go back at once."""
        if self.pool.held > self.pool.cap:
            self.pool.trim()

    def budget_closed(self) -> None:
        """Follow the end of a byte budget."""
        if self.pool.cap == NO_CAP and self.xp is not None and not self._huge:
            self._use_huge_pages(True)

    def _use_huge_pages(self, wanted: bool) -> None:
        _advise_huge(self.arena, wanted)
        self._huge = wanted

    def reserved_bytes(self) -> int:
        """Bytes of pages handed out so far and not returned to the system."""
        return self.pool.held

    @property
    def machine_bytes(self) -> int | None:
        """Bytes that the machine allows this process; None if the backend does not ask it."""
        return None if self.pool.grant is None else machine().total

    def limit_to_machine(self, limited: bool) -> None:
        """Let the pool grow only into memory that the machine has, or into all its addresses."""
        self.pool.grant = self._grant if limited else None
        self.pool.granted = min(LEAST_STEP, self.pool.capacity) if limited else self.pool.capacity

    def _grant(self, more: int) -> int:
        if not execution.current.computes:  # nothing is written, so no page is taken
            return self.pool.capacity
        if self._guard is None:
            self._guard = Guard(machine(), lambda: self.pool.used, self.release_cached)
        return self._guard.grant(more)

    def _search(self, spec: Spec) -> None:
        try:
            lacking = self.pool.search(spec.block, within=True)
            if lacking and not self.ledger.make_less(lacking, PAGE):
                self.pool.search(spec.block)
        except NoRoomError as machine_is:
            if self.ledger.make_less(spec.nbytes):
                return  # the caller searches again
            raise self.ledger.exhausted(
                spec.nbytes,
                f": {machine_is}",
                "Check the shape, free tensors or use a smaller batch; "
                "lowtide.profiling.advise(step, limit=bytes) says which change fits. To allocate "
                "at the risk of being killed, call lowtide.set_memory_limit(math.inf, device).",
                OutOfMemoryError,
            ) from None
        except MemoryError:
            if self.ledger.make_extent(spec.block):
                return
            size = format_bytes(self.pool.capacity)
            raise self.ledger.exhausted(
                spec.nbytes,
                f": the pool's address space of {size} is full",
                "Free tensors or use a smaller batch.",
                OutOfMemoryError,
            ) from None


def cpu_backend() -> HostBackend:
    """Create the CPU backend, which reserves address space of four times the RAM."""
    import os

    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return HostBackend("cpu", 4 * physical, computes=True)


def meta_backend() -> HostBackend:
    """Create the meta backend, whose tensors have no values; 64 TiB of addresses if possible."""
    return HostBackend("meta", 1 << 46, computes=False)


__all__ = ["HostBackend", "Storage", "cpu_backend", "meta_backend", "reserve"]
