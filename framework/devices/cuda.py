"""The CUDA backend, built on CuPy, which only this module imports and only on first use.

Memory comes from CuPy's default pool, with the ledger in front: a :class:`CudaStorage` holds one
block, every array of a tensor names it as the owner of its memory, and its death gives the block
back and is booked. So the ledger is exact to the byte, as on the CPU, while the pool counts in its
own units of 512 bytes; the difference appears as rounding in ``memory_stats``. It is CuPy's default
pool, and not one of our own, because that is where CuPy's functions take what they need while a
kernel runs: two pools would each keep free blocks that the other needs. What a program allocates
with CuPy itself is in the pool's figures too, and not in the ledger's.

Everything runs on the stream that is current in CuPy. A tensor used on a second stream must be
kept alive until that stream has been waited for: freeing is not aware of streams.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import execution
from ..device import device
from ..errors import OutOfMemoryError
from ..interrupts import finalizer
from ..memory.events import publish
from ..memory.ledger import TEMPORARY, Ledger, format_bytes
from ..storage import ExternalStorage, LedgerEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..spec import Spec

_INSTALL = "Install it with: pip install 'lowtide[cuda]'"
_DRIVER = "CuPy for CUDA 13 needs an NVIDIA GPU and its driver, version 580 or newer"


class CudaStorage(LedgerEntry):
    """A block of a CuPy pool, owned by the arrays on it and freed with the last of them."""

    __slots__ = ("__weakref__", "ledger", "memory", "nbytes", "pins", "role", "version")

    def __init__(self, ledger: Ledger, memory: Any, nbytes: int, role: int) -> None:
        self.memory = memory
        self.nbytes = nbytes
        self.role = role
        self.version = 0
        self.pins = 0
        ledger.born(self, nbytes, role)
        if ledger.observers:
            publish(ledger, "alloc", self)

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return int(self.memory.ptr)

    @finalizer
    def __del__(self) -> None:
        try:
            ledger: Any = self.ledger
        except AttributeError:  # refused by the ledger: never booked
            return
        n = self.nbytes
        ledger.live -= n
        ledger.roles[self.role] -= n
        if ledger.observers:
            publish(ledger, "free", self)


class CudaPool:
    """A CuPy memory pool with the attributes that ``devices/memory_statistics.py`` reads.

    Args:
        pool: CuPy's; it answers for the GPU that is current.
        here: Makes a context in which that is ours.
    """

    def __init__(self, pool: Any, here: Callable[[], Any]) -> None:
        self._pool = pool
        self._here = here
        self._peak = 0
        self.cap = 0  # set by the ledger; CuPy cannot give back parts of a block

    @property
    def used(self) -> int:
        """Bytes of the blocks in use, rounded up to 512 each by CuPy."""
        with self._here():
            return int(self._pool.used_bytes())

    @property
    def top(self) -> int:
        """Bytes reserved from the driver."""
        with self._here():
            return int(self._pool.total_bytes())

    @property
    def peak(self) -> int:
        """Highest ``top`` since the last reset."""
        self._peak = max(self._peak, self.top)
        return self._peak

    @property
    def largest_free(self) -> int:
        """Free bytes in all; CuPy does not report the largest block."""
        with self._here():
            return int(self._pool.free_bytes())

    def reset_peak(self) -> None:
        """Reset the peak to what is reserved now."""
        self._peak = self.top

    def release(self) -> None:
        """Return the free blocks to the driver."""
        self._peak = self.peak
        with self._here():
            self._pool.free_all_blocks()


class CudaBackend:
    """The backend of one GPU: allocates, copies and runs kernels.

    Args:
        where: The device.
        cupy: The module.
        pool: A ``cupy.cuda.MemoryPool``; CuPy's default one if None.
    """

    def __init__(self, where: device, cupy: Any, pool: Any = None) -> None:
        assert where.index is not None
        self.device = where
        self.index: int = where.index
        self.xp: Any = cupy
        self.kernel_key = "cuda"
        self.ledger = Ledger(where)
        self._memory_pool = cupy.get_default_memory_pool() if pool is None else pool
        self.pool = self.ledger.pool = CudaPool(self._memory_pool, self._here)
        self._unowned = cupy.cuda.UnownedMemory
        self._pointer = cupy.cuda.MemoryPointer
        self._full = cupy.cuda.memory.OutOfMemoryError
        self._several = False  # with one device, it is always the current one

    @property
    def several(self) -> bool:
        """True if the machine has several GPUs, so that kernels must select theirs."""
        return self._several

    def on_device(self, f: Any) -> Any:
        """Wrap ``f``, which runs kernels, to run with this GPU as the current one."""

        @functools.wraps(f)
        def there(*args: Any, **kwargs: Any) -> Any:
            with self._here():
                return f(*args, **kwargs)

        return there

    def _here(self) -> contextlib.AbstractContextManager[Any]:
        return self.xp.cuda.Device(self.index) if self._several else contextlib.nullcontext()

    def empty(self, spec: Spec, role: int = TEMPORARY) -> tuple[Any, Any]:
        """Allocate an uninitialized contiguous array of ``spec`` from the pool.

        Returns:
            (storage, array).

        Raises:
            OutOfMemoryError: The GPU, or the limit set on the device, has no room.
        """
        ledger = self.ledger
        nbytes = spec.nbytes
        if ledger.live + nbytes > ledger.limit:
            ledger.refuse(nbytes)
        try:
            if self._several:
                with self._here():
                    memory = self._memory_pool.malloc(nbytes)
            else:
                memory = self._memory_pool.malloc(nbytes)
        except self._full as error:
            self._out_of_memory(nbytes, error)
        storage = CudaStorage(ledger, memory, nbytes, role)
        owned = self._unowned(memory.ptr, nbytes, storage, self.index)
        return storage, self.xp.ndarray(
            tuple(spec.shape), dtype=spec.np_dtype, memptr=self._pointer(owned, 0)
        )

    def strided_view(self, storage: Any, spec: Spec, place: Any) -> Any:
        """Return an array on bytes of a storage.

        Args:
            storage: One of this device.
            spec: Its shape and dtype.
            place: (offset in bytes, strides in bytes); None for the start, in C order.
        """
        offset, strides = place or (0, None)
        owner = storage.root
        owned = self._unowned(owner.memory.ptr, owner.nbytes, owner, self.index)
        return self.xp.ndarray(
            tuple(spec.shape),
            dtype=spec.np_dtype,
            memptr=self._pointer(owned, offset),
            strides=strides,
        )

    def adopt(self, array: Any, role: int) -> tuple[Any, Any]:
        """Wrap an array that someone else owns, sharing its memory."""
        return ExternalStorage(array, array.nbytes, role), array

    def from_host(self, array: Any, spec: Spec, role: int) -> tuple[Any, Any]:
        """Copy a NumPy array to the device, synchronously.

        CUDA may still be reading the array when the call returns, and the caller may write it.
        """
        storage, out = self.empty(spec, role)
        if spec.numel:
            with self._here():
                out.set(np.asarray(array).astype(spec.np_dtype, order="C", copy=False))
                self.xp.cuda.get_current_stream().synchronize()
        return storage, out

    def to_host(self, array: Any) -> Any:
        """Copy to a NumPy array, synchronously."""
        with self._here():
            return array.get()

    def item(self, array: Any) -> Any:
        """Return the only element of an array as a Python scalar, synchronously."""
        return self.to_host(array).item()

    def copy(self, out: Any, array: Any) -> None:
        """Copy within the device, converting the dtype."""
        with self._here():
            self.xp.copyto(out, array, casting="unsafe")

    def address(self, array: Any) -> int:
        """Address of the first element."""
        return int(array.data.ptr)

    def synchronize(self) -> None:
        """Wait until all work on the device is done."""
        self.xp.cuda.Device(self.index).synchronize()

    def use(self) -> None:
        """Make this GPU the current one of CuPy."""
        self.xp.cuda.Device(self.index).use()

    def memory_info(self) -> tuple[int, int]:
        """Return the bytes that are free and that there are, as the driver says."""
        with self._here():
            free, total = self.xp.cuda.runtime.memGetInfo()
        return int(free), int(total)

    def properties(self) -> dict[str, Any]:
        """Return what CuPy knows of this GPU, by CUDA's names; ``name`` and ``uuid`` as text."""
        found = self.xp.cuda.runtime.getDeviceProperties(self.index)
        for name in found.keys() & {"uuid", "luid"}:
            found[name] = bytes(found[name]).hex()
        return {k: v.decode() if isinstance(v, bytes) else v for k, v in found.items()}

    def release_cached(self) -> None:
        """Return the pool's free blocks to the driver."""
        self.pool.release()

    def budget_opened(self) -> None:
        """Do nothing: CuPy's pool gives back whole segments only."""

    def budget_closed(self) -> None:
        """Do nothing: CuPy's pool gives no pages back while a budget is open."""

    def reserved_bytes(self) -> int:
        """Bytes that the pool reserves from the driver."""
        return self.pool.top

    def _out_of_memory(self, nbytes: int, error: Exception) -> None:
        with self._here():
            free, total = self.xp.cuda.runtime.memGetInfo()
        raise self.ledger.exhausted(
            nbytes,
            f": CUDA out of memory, {format_bytes(free)} of {format_bytes(total)} free",
            "Free tensors, call lowtide.cuda.empty_cache(), or use a smaller batch.",
            OutOfMemoryError,
        ) from error


def cuda_backend(where: device) -> CudaBackend:
    """Create the backend of a GPU.

    Raises:
        RuntimeError: There is no CuPy, no driver, or no such GPU; the message says what to do.
    """
    try:
        import cupy
    except ImportError as error:
        raise RuntimeError(f"{where} needs CuPy, which is not installed. {_INSTALL}.") from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise RuntimeError(
            f"{where} is not usable: Found no NVIDIA driver on this system that works with CuPy "
            f"{cupy.__version__} ({error}). {_DRIVER}."
        ) from error
    assert where.index is not None
    if where.index >= count:
        raise RuntimeError(
            f"{where} is not there: invalid device ordinal; this machine has {count}. Use cuda:0 "
            f"to cuda:{count - 1}."
            if count
            else f"{where} is not there: no CUDA GPUs are available. {_DRIVER}."
        )
    made = CudaBackend(where, cupy)
    made._several = count > 1
    return made


def device_count() -> int:
    """Return the number of GPUs; 0 without CuPy, driver or GPU, and never an error."""
    return execution.current.device_count(_ask_driver)


def _ask_driver() -> int:
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # whatever CuPy raises where it is broken: there is no device for us
        return 0
