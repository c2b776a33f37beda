"""A GPU on a machine without one: CUDA's asynchrony under the package's own code.

A :class:`Gpu` stands where CuPy's module stands. ``CudaBackend``, ``StreamCopier`` and what is
above them run on it as they are; what they ask for is only queued (``queues.py``): kernels on the
current stream, copies on theirs. A program that may go wrong in some order raises ``Race``, and the
work is done in an order of one's choice: copies as late as is legal, or as early, or drawn at
random.

- A block of the device is free once nobody in Python has it, as in CuPy's pool, and then a kernel
  of the stream it was taken on overwrites it at once: the pool may give it to one.
- Copies of memory that is not pinned "might be synchronous": so here they are not, and memory of
  the host that is freed before it was waited for is an error.
- Kernels keep nothing alive, and work asked for by a forked process is an error.

Sources: CUDA Runtime API, API synchronization behavior; CuPy 14.2, ``cupy/cuda/memory.pyx`` (arenas
by stream, frees that know of none) and ``stream.pyx``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import devices
from lowtide.framework.checkpointing import offload as offload_module
from lowtide.framework.devices.cuda import CudaBackend
from lowtide.framework.devices.sim.array import SimArray
from lowtide.framework.devices.sim.backend import SIM
from lowtide.framework.memory.events import observe
from lowtide.framework.ops.kernel_choice import Kernel
from lowtide.framework.ops.registry import OPS
from tests.checkpointing.queues import (
    COPY_BACK,
    COPY_OUT,
    KERNEL,
    POISON,
    Event,
    Memory,
    Order,
    Queues,
    Race,
    Stream,
    Work,
    check_process,
)
from tests.devices import cuda_on_cpu

FROM_HOST, TO_HOST = 1, 2  # kinds of cudaMemcpy
UNIT = 512  # bytes: what the pool rounds to
GRAIN = 64  # bytes: what pinned blocks are rounded to

Array = Any


# Memory


class Block:
    """Bytes of the device that are taken; its end gives them back."""

    def __init__(self, pool: MemoryPool, ptr: int, size: int, key: Any) -> None:
        self.pool, self.ptr, self.size, self.key = pool, ptr, size, key
        pool.used += size

    def __del__(self) -> None:
        self.pool.used -= self.size
        if self.size:
            self.pool.free.setdefault((*self.key, self.size), []).append(self.ptr)
            self.pool.gpu.poison(self.ptr, self.size, self.key[1])


class MemoryPool:
    """CuPy's manners: arenas by stream, a block is free once nobody in Python has it."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.free: dict[Any, list[int]] = {}
        self.used = self.total = 0

    def malloc(self, nbytes: int) -> Block:
        """Take a block; the one freed last, if it fits."""
        size = -(-nbytes // UNIT) * UNIT
        key = (self.gpu.here.device, self.gpu.get_current_stream())
        if not size:
            return Block(self, 0, 0, key)
        free = self.free.get((*key, size))
        if free:
            return Block(self, free.pop(), size, key)
        at = self.gpu.top
        if at + size > self.gpu.device_memory.end:
            raise MemoryError(f"Out of memory allocating {size:,} bytes")
        self.gpu.top += size
        self.total += size
        return Block(self, at, size, key)

    def used_bytes(self) -> int:
        """Bytes of the blocks in use."""
        return self.used

    def total_bytes(self) -> int:
        """Bytes ever handed out."""
        return self.total

    def free_bytes(self) -> int:
        """The others."""
        return self.total_bytes() - self.used

    def free_all_blocks(self) -> None:
        """Give nothing back."""


class UnownedMemory:
    """A piece of memory, kept alive by its owner."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    """A place in it."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


class _Owned(np.ndarray):
    """Bytes of the device; arrays on them keep whose they are."""

    owner: Any


_here: list[Gpu] = []  # the one in use


class GpuArray(SimArray):
    """An array of the device. Who looks at its values outside of a kernel waits for the stream."""

    __slots__ = ("_raw",)

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: Any = None,
        strides: Any = None,
        order: str = "C",
    ) -> None:
        memory = _here[-1].device_memory
        dtype = np.dtype(dtype)
        if memptr.ptr == 0:
            self._raw = np.empty(shape, dtype)
            return
        owned = memory.bytes.view(_Owned)
        owned.owner = memptr
        self._raw = np.ndarray(shape, dtype, owned, memptr.ptr - memory.start, strides)

    @property
    def _a(self) -> Array:  # type: ignore[override]
        gpu = _here[-1]
        if not gpu.inside:
            gpu.looked.append("an array")
            gpu.launch("look", lambda: None, [self], [])  # and perhaps write
            gpu.wait(gpu.get_current_stream())
        return self._raw

    @property
    def base(self) -> Any:
        """The array it is a view of; as CuPy's an attribute, for which nothing waits."""
        base = self._raw.base
        return None if base is None or isinstance(base, _Owned) else array_on(base)

    def get(self, stream: Any = None, order: str = "C", out: Any = None) -> Array:
        """Copy to the host, and wait for it."""
        gpu = _here[-1]
        stream = stream or gpu.get_current_stream()
        gpu.looked.append("get")
        there = np.empty(self._raw.shape, self._raw.dtype) if out is None else out
        raw = _unowned(self._raw)
        gpu.launch("get", lambda: np.copyto(there, raw), [], [self], stream=stream)
        gpu.wait(stream)
        return there

    def set(self, array: Array, stream: Any = None) -> None:
        """Copy from the host. ``array`` is free again once the stream was waited for."""
        gpu = _here[-1]
        assert (array.dtype, array.shape) == (self._raw.dtype, self._raw.shape)
        raw = _unowned(self._raw)
        gpu.launch("set", lambda: np.copyto(raw, array), [self], [], stream=stream)

    def fill(self, value: Any) -> None:
        """Queue a kernel that writes one value."""
        self[...] = value

    def __setitem__(self, index: Any, value: Any) -> None:
        gpu = _here[-1]
        if gpu.inside:
            super().__setitem__(index, value)
            return
        raw = SimArray(_unowned(self._raw))
        given = SimArray(_unowned(value._raw)) if isinstance(value, GpuArray) else value
        reads = [value] if isinstance(value, GpuArray) else []
        gpu.launch("setitem", lambda: raw.__setitem__(index, given), [self], [self, *reads])

    @property
    def data(self) -> Any:
        """Where it lies, as CuPy's arrays say it."""
        at = int(self._raw.__array_interface__["data"][0])
        return MemoryPointer(UnownedMemory(at, self._raw.nbytes, self, 0), 0)

    def _view(self, f: Callable[[Any], Any]) -> Any:
        # f of the NumPy array is a view, as the rules of strides tell; else a copy, which waits.
        made = f(self._raw)
        if made.size == 0 or np.may_share_memory(made, self._raw):
            return array_on(made)
        return SimArray(f(self._a))

    def __getitem__(self, index: Any) -> Any:
        if _here[-1].inside:
            return super().__getitem__(index)
        return self._view(lambda a: a[index])


def array_on(raw: Array) -> GpuArray:
    """A NumPy array on the device's bytes as an array of the device."""
    made = object.__new__(GpuArray)
    made._raw = raw
    return made


def _unowned(raw: Array) -> Array:
    # The same bytes, without keeping them: a queue does not.
    memory = _here[-1].device_memory
    at = int(raw.__array_interface__["data"][0]) - memory.start
    if raw.size == 0 or not 0 <= at < memory.bytes.size:
        return raw
    return np.ndarray(raw.shape, raw.dtype, memory.bytes, at, raw.strides)


for _name in ("shape", "dtype", "strides", "ndim", "size", "nbytes", "itemsize"):
    setattr(GpuArray, _name, property(lambda self, n=_name: getattr(self._raw, n)))
for _name in ("T", "mT", "real", "imag"):
    setattr(GpuArray, _name, property(lambda self, n=_name: self._view(lambda a: getattr(a, n))))
for _name in ("reshape", "view", "transpose", "swapaxes", "squeeze", "ravel", "diagonal"):
    setattr(
        GpuArray, _name, lambda self, *a, n=_name, **k: self._view(lambda x: getattr(x, n)(*a, **k))
    )


class _Flags:
    def __init__(self, raw: Array) -> None:
        self.c_contiguous, self.f_contiguous = raw.flags.c_contiguous, raw.flags.f_contiguous
        self.owndata = False


GpuArray.flags = property(lambda self: _Flags(self._raw))  # type: ignore[assignment, method-assign]


# The module


class _Device:
    def __init__(self, gpu: Gpu, index: int) -> None:
        self.gpu, self.index = gpu, index

    def __enter__(self) -> None:
        self.before, self.gpu.here.device = self.gpu.here.device, self.index

    def __exit__(self, *_: object) -> None:
        self.gpu.here.device = self.before

    def synchronize(self) -> None:
        """The host waits for everything."""
        for stream in self.gpu.streams:
            self.gpu.wait(stream)


class Gpu(Queues):
    """CuPy's module, as far as the package uses it, over queues.

    Args:
        order: In which order the work is done.
        size: Bytes of the device's memory.

    Attributes:
        looked: What the host waited for without saying so.
        borrowed: Memory of the host that is not pinned, and in use by a copy.
        faults: What was found where an exception would only be printed.
        peeked: Ops whose kernels asked for values on the host, where a GPU's queue would run dry.
    """

    __version__ = "14.2.0"
    __name__ = "cupy"
    ndarray = GpuArray

    def __init__(self, order: Order, size: int = 1 << 24) -> None:
        super().__init__(order)
        self.cuda = self.runtime = self.memory = self
        self.OutOfMemoryError = MemoryError
        self.CUDARuntimeError = RuntimeError
        self.UnownedMemory, self.MemoryPointer, self.Event = UnownedMemory, MemoryPointer, Event
        self.device_memory = Memory(size, UNIT)
        self.top = self.device_memory.start
        self.pool = MemoryPool(self)
        self.pinned: list[Memory] = []
        self.looked: list[str] = []
        self.borrowed: list[tuple[int, int, Work]] = []
        self.faults: list[str] = []
        self.peeked: set[str] = set()
        self.runs = ""  # the op that runs

    def __getattr__(self, name: str) -> Any:
        return getattr(SIM, name)

    # CuPy's names

    def Device(self, index: int) -> _Device:
        """One of the devices."""
        return _Device(self, index)

    def get_default_memory_pool(self) -> MemoryPool:
        """The one that everything takes from; what kernels take themselves is not modelled."""
        return self.pool

    def PinnedMemory(self, size: int) -> Memory:
        """Pinned memory of the host."""
        check_process()
        self.pinned.append(Memory(size, GRAIN))
        return self.pinned[-1]

    def memGetInfo(self) -> tuple[int, int]:
        """Bytes of the device that are free, and all."""
        check_process()
        return self.device_memory.end - self.top, self.device_memory.bytes.size

    def memcpyAsync(self, to: int, start: int, nbytes: int, kind: int, ptr: int) -> None:
        """Queue a copy of bytes between the host and the device."""
        host, there = (to, start) if kind == TO_HOST else (start, to)
        assert kind in (FROM_HOST, TO_HOST)
        assert self.device_memory.start <= there < there + nbytes <= self.device_memory.end
        memory = next((m for m in self.pinned if m.start <= host < m.end), None)
        if memory is None:
            ours = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(host), np.uint8)
        else:
            ours = memory.at(host, nbytes)
        theirs = self.device_memory.at(there, nbytes)
        source, target = (theirs, ours) if kind == TO_HOST else (ours, theirs)
        work = self.queue(
            "memcpy",
            COPY_OUT if kind == TO_HOST else COPY_BACK,
            self.streams[ptr],
            lambda: np.copyto(target, source),
            nbytes,
        )
        self.device_memory.touch(work, there, there + nbytes, writes=kind == FROM_HOST)
        if memory is None:
            self.borrowed.append((host, host + nbytes, work))
        else:
            memory.touch(work, host, host + nbytes, writes=kind == TO_HOST)
        self.order.asked(self)

    def copyto(self, dst: Any, src: Any, casting: str = "same_kind", where: Any = None) -> None:
        """Queue a copy within the device."""
        if self.inside or not isinstance(dst, GpuArray):
            SIM.copyto(dst, src, casting=casting)
            return
        self.call("copyto", lambda a, b: SIM.copyto(a, b, casting=casting), 1, [dst, src])

    def RawModule(self, code: str, options: tuple[str, ...] = ()) -> Any:
        """Kernels in CUDA C++, compiled for the CPU; a call queues one on the model in use."""
        module = cuda_on_cpu.RawModule(code, options)

        def get_function(name: str) -> Any:
            run = module.get_function(name)

            def call(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
                arrays = [a for a in arguments if isinstance(a, SimArray)]
                gpu = _here[-1]
                if gpu.inside or not all(isinstance(a, GpuArray) for a in arrays):
                    # Values that a function of CuPy made are there at once, here.
                    now = [SimArray(a._a) if isinstance(a, SimArray) else a for a in arguments]
                    run(grid, block, tuple(now))
                    return
                given = tuple(
                    SimArray(_unowned(a._raw)) if isinstance(a, GpuArray) else a for a in arguments
                )
                gpu.launch(name, lambda: run(grid, block, given), arrays, [])

            return call

        return SimpleNamespace(get_function=get_function)

    # Queues

    def call(self, name: str, f: Callable[..., Any], results: int, arrays: list[Any]) -> None:
        """Queue a kernel that writes its first ``results`` arguments and reads the others."""
        given = [SimArray(_unowned(a._raw)) if isinstance(a, GpuArray) else a for a in arrays]
        self.launch(name, lambda: f(*given), arrays[:results], arrays[results:])

    def compute(self, op: Any, arrays: Any, attributes: Any) -> None:
        """Run a kernel."""
        before, self.runs = self.runs, op.name
        try:
            op.plain(SIM, *arrays, **attributes)
        finally:
            self.runs = before

    def launch(
        self,
        name: str,
        run: Callable[[], Any],
        writes: list[Any],
        reads: list[Any],
        stream: Stream | None = None,
    ) -> None:
        """Queue a kernel on the current stream."""
        stream = stream or self.get_current_stream()
        nbytes = sum(a._raw.nbytes for a in writes if isinstance(a, GpuArray))
        work = self.queue(name, KERNEL, stream, run, nbytes)
        for arrays, written in ((reads, False), (writes, True)):
            for a in arrays:
                if isinstance(a, GpuArray) and a._raw.size:
                    low, high = np.lib.array_utils.byte_bounds(a._raw)
                    self.device_memory.touch(work, low, high, written)
        self.order.asked(self)

    def poison(self, address: int, nbytes: int, stream: Stream) -> None:
        """Queue a kernel that overwrites what was freed."""
        there = self.device_memory.at(address, nbytes)
        work = self.queue("reuse", KERNEL, stream, lambda: there.fill(POISON), 0)
        try:
            self.device_memory.touch(work, address, address + nbytes, writes=True)
        except Race as error:  # in a finalizer Python would only print it
            self.faults.append(f"A block is free for reuse too early: {error}")
        self.order.asked(self)

    def freed(self, event: str, _: str, nbytes: int, __: int, address: int, ___: int) -> None:
        """Note that memory of the host was freed, which a copy may still be using."""
        if event == "free":
            for first, end, work in self.borrowed:
                known = work.number <= self.host[work.stream.index]
                if not known and first < address + nbytes and address < end:
                    self.faults.append(f"Host memory is freed while {work} may still use it.")


@functools.cache
def _queued(op: Any) -> Callable[..., Any]:
    """The plain kernel of an op, queued."""
    results = len(op.returns) + len(op.aux) + len(op.scratch)

    def kernel(xp: Any, *arrays: Any, **attributes: Any) -> Any:
        if not isinstance(xp, Gpu):  # in a process that only predicts
            return op.plain(xp, *arrays, **attributes)
        if op.view:
            before, xp.inside = xp.inside, True
            try:
                return array_on(op.plain(SIM, *arrays, **attributes)._a)
            finally:
                xp.inside = before
        if op.adopt:  # the shape of its results depends on values: the host waits
            return op.plain(
                SIM,
                *[SimArray(a._a) if isinstance(a, GpuArray) else a for a in arrays],
                **attributes,
            )
        xp.call(op.name, lambda *a: xp.compute(op, a, attributes), results, list(arrays))
        return None

    return kernel


def _peeking(f: Any) -> Any:
    def peek(self: Any, *args: Any) -> Any:
        if _here[-1].runs:
            _here[-1].peeked.add(_here[-1].runs)
        return f(self, *args)

    return peek


@contextlib.contextmanager
def running(gpu: Gpu, count: int = 1) -> Iterator[list[lt.device]]:
    """Let ``count`` devices of the package be the model; they are given.

    After an exception they stay until ``end_failed()``: its traceback keeps tensors of theirs.

    Raises:
        Race: Memory was given back too early.
    """
    if cuda_on_cpu.COMPILER is None:
        pytest.skip("there is no g++, which compiles the optimizers' kernels")
    end_failed()
    found = [lt.device(f"cuda:{7 + k}") for k in range(count)]
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for k, d in enumerate(found):
            be = CudaBackend(d, gpu)
            be.index, be._several = k, count > 1
            patch.setitem(devices._backends, d, be)
        patch.setattr(offload_module, "_host_transfers", {})
        patch.setattr(offload_module, "_slabs", {})
        patch.setattr(offload_module, "_SLAB", 1 << 18)
        for op in OPS.values():
            patch.setattr(
                op, "kernels", [Kernel(_queued(op), "cuda", layout=op.layout), *op.kernels]
            )
        for name in ("__bool__", "__int__", "__float__", "__index__", "item", "get", "tolist"):
            patch.setattr(SimArray, name, _peeking(getattr(SimArray, name)))
        stack.callback(_forget_plans, found)
        _here.append(gpu)
        stack.callback(_here.remove, gpu)
        stack.enter_context(observe(devices.backend(lt.device("cpu")).ledger, gpu.freed))
        try:
            yield found
            for stream in list(gpu.streams):
                gpu.wait(stream)
        except BaseException:
            _failed.append(stack.pop_all())
            raise
    if gpu.faults:
        raise Race("\n".join(gpu.faults))


_failed: list[contextlib.ExitStack] = []


def end_failed() -> None:
    """Take the models away in which something was raised, once nothing of theirs is alive."""
    if _failed:
        gc.collect()
        while _failed:
            _failed.pop().close()


def _forget_plans(found: list[lt.device]) -> None:
    for op in OPS.values():
        for key in [k for k, p in op.plans.items() if p.backend.device in found]:
            del op.plans[key]


__all__ = ["Gpu", "GpuArray", "end_failed", "running"]
