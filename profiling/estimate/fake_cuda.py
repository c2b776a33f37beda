"""Fake CUDA backend for forked processes, in which CUDA must not be called.

A forked process cannot use CUDA. So there the ledger goes on, kernels and the driver are left
alone, and arrays of the GPU's tensors become arrays of a mapping without pages
(``fake_kernels.py``).
"""

from __future__ import annotations

import gc
import weakref
from functools import partial
from typing import Any

import numpy as np

from ...framework import devices
from ...framework.autograd import saved
from ...framework.devices import cuda, host
from ...framework.ops.plan import Plan
from ...framework.ops.registry import OPS
from ...framework.tensor import Tensor


class NullArrayModule:
    """An array module (``xp``) whose functions must not be called.

    What makes views has NumPy's functions: the arrays are NumPy's, without pages behind them.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


NOTHING = NullArrayModule()
UNKNOWN_SIZE = 1 << 46  # bytes of a GPU whose size is not given


class FakeCudaBackend(host.HostBackend):
    """A fake backend of a GPU: its ledger and addresses, but no memory and no kernels."""

    def __init__(self, d: Any, real: Any = None, total_bytes: int | None = None) -> None:
        super().__init__(str(d), UNKNOWN_SIZE, computes=False)
        self.kernel_key = "cuda"
        self.xp = NOTHING
        self.total_bytes = UNKNOWN_SIZE if total_bytes is None else total_bytes
        if total_bytes is not None:
            self.ledger.own_limit = total_bytes
        if real is not None:
            real.ledger.base = self.ledger.base
            self.ledger = real.ledger
            for op in OPS.values():  # plans that call the GPU
                for key in [k for k, p in op.plans.items() if p.backend is real]:
                    del op.plans[key]

    def use(self) -> None:
        """Do nothing: there is no driver that would have to know."""

    def memory_info(self) -> tuple[int, int]:
        """Return the bytes that would be free and that there would be, by the ledger."""
        return max(self.total_bytes - self.ledger.live, 0), self.total_bytes

    def properties(self) -> dict[str, Any]:
        """Return the properties of a GPU that is imagined, by CUDA's names."""
        return {
            "name": "imagined GPU",
            "totalGlobalMem": self.total_bytes,
            "major": 9,
            "minor": 0,
            "multiProcessorCount": 132,
            "warpSize": 32,
            "maxThreadsPerMultiProcessor": 2048,
        }

    def strided_view(self, storage: Any, spec: Any, place: Any) -> Any:
        """Return an array on bytes of a storage, also of one allocated before the fork."""
        if isinstance(storage.root, cuda.CudaStorage):
            storage = _block_of(storage.root, self)
        return super().strided_view(storage, spec, place)


class FakeCudaStorage(np.ndarray):
    """A fake storage of a GPU, kept alive by the arrays on it."""

    owner: Any

    @property
    def root(self) -> FakeCudaStorage:
        """Itself: it owns its bytes."""
        return self


_kept: list[Any] = []  # the GPU's memory: giving it back would call the driver


def on_no_gpu() -> int:
    """Replace arrays and plans made on GPUs by fake ones with the same strides.

    Returns:
        How many GPUs there are.
    """
    gpus = sum(isinstance(be, FakeCudaBackend) for be in devices.live_backends())
    if not gpus:
        return 0
    gc.unfreeze()  # else those put aside would not be found
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance would ask a weak proxy's object, which may be dead
        if issubclass(kind, Tensor) and isinstance(thing._storage, cuda.CudaStorage):
            thing._array = _stand_in(thing._array, thing._storage, thing._spec.device)
        elif issubclass(kind, saved.Held) and isinstance(thing.storage, cuda.CudaStorage):
            thing.array = _stand_in(thing.array, thing.storage, thing.spec.device)
        elif issubclass(kind, Plan) and isinstance(thing.backend, cuda.CudaBackend):
            # Of a call that a region of activation checkpointing may make again.
            thing.backend = devices.backend(thing.backend.device)
            thing.xp = NOTHING
            thing.run = partial(thing.kernel, NOTHING, **thing.attributes)
    return gpus


def _stand_in(array: Any, storage: Any, d: Any) -> Any:
    fake: Any = devices.backend(d)
    block = _block_of(storage, fake)
    offset = int(array.data.ptr - storage.memory.ptr)
    return np.ndarray(tuple(array.shape), array.dtype, block, offset, tuple(array.strides))


_blocks: weakref.WeakValueDictionary[int, FakeCudaStorage] = (
    weakref.WeakValueDictionary()
)  # by storage


def _block_of(storage: Any, be: FakeCudaBackend) -> FakeCudaStorage:
    block = _blocks.get(id(storage))
    if block is None:
        _kept.append(storage.memory)
        offset = be.pool.take(-(-storage.nbytes // 64) * 64)
        block = np.ndarray.__new__(FakeCudaStorage, (storage.nbytes,), np.uint8, be.arena, offset)
        block.owner = storage
        _blocks[id(storage)] = block
    return block
