"""Updates of many tensors by one compiled call.

An optimizer gives all its parameters the same update with the same numbers. A call for each takes
longer than the update itself, where parameters are small. So :class:`ListedUpdate` collects tensors
and runs one kernel over a table of their memory (``kernels/cpu/optim/tensor_table.py``). One tensor
is a list, too (``updates.planned_update``): so the numbers are the same, bit for bit.

It takes contiguous tensors on the CPU, of float32 or float64. What it cannot take, it says before
anything is written. The table is made anew for each step, and nothing of it is kept: a tensor may
have other memory by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from . import execution
from .autograd.saved import count_writes
from .dtypes import float32, float64
from .kernels.common.schedule import parallel_range
from .kernels.formula.update import UpdateVariant
from .kernels.runtime import thresholds
from .modes import local, run_kernel

LOOPED = (float32, float64)  # dtypes of which there are compiled loops


class ListedUpdate:
    """One update of many tensors.

    Args:
        variant: The update, for the outcome of its tests.
        scalars: Its numbers (``Update.of_call`` returns both).
        dtype: Of all tensors.

    Attributes:
        places: Which of the update's inputs it reads or writes. Each tensor's inputs are given in
            this order.
        dtype: Of all tensors.
        takes: Whether there is a compiled loop for that dtype.
    """

    def __init__(self, variant: UpdateVariant, scalars: tuple[float, ...], dtype: Any) -> None:
        self.places, self._loop, self._scalars = variant.places, variant.listed, scalars
        self._written = variant.written_among
        self.takes = dtype is float32 or (dtype in LOOPED and not variant.only_float32)
        self.dtype = dtype
        self._arrays: list[Any] = []  # held: another thread may give a tensor other memory
        self._storages: list[Any] = []
        self._specs: list[Any] = []
        self._elements = self._rows = 0
        self._table: Any = None

    def add(self, tensors: Sequence[Any]) -> bool:
        """Add a tensor with what its update takes; False if it needs a separate call.

        Args:
            tensors: The inputs at ``places``.
        """
        spec = tensors[0]._spec
        arrays = []
        for t in tensors:
            if t._spec is not spec or t._viewed is not None:
                return False
            arrays.append(t._array)
        self._arrays += arrays
        for k in self._written:
            self._storages.append(tensors[k]._storage)
        self._specs.append(spec)
        self._elements += spec.numel
        self._rows += -(-spec.numel // thresholds.CHUNK)
        return True

    def prepare(self) -> int | None:
        """Do all that may fail; return the index of a tensor that needs a separate call, if any.

        It is to be dropped then, and this to be called again.
        """
        arrays, kind = len(self.places), self.dtype.np
        objects = np.array(list(map(id, self._arrays)), np.int64)
        self._table = np.empty((self._rows, arrays + 1), np.int64)
        found: int = _locate()(objects, self._table, id(kind), kind.itemsize, thresholds.CHUNK)
        if found < 0:
            return -1 - found
        key = self._loop, kind
        if key not in _compiled:  # compiled at its first call, which may fail: here
            run_kernel(self._loop, _like(kind), self._table, *self._scalars, 0, 0)
            _compiled.add(key)
        return None

    def drop(self, k: int) -> None:
        """Leave a tensor out."""
        arrays, written = len(self.places), len(self._written)
        del self._arrays[k * arrays : (k + 1) * arrays]
        del self._storages[k * written : (k + 1) * written]
        spec = self._specs.pop(k)
        self._elements -= spec.numel
        self._rows -= -(-spec.numel // thresholds.CHUNK)

    def clear(self) -> None:
        """Let go of all tensors."""
        self._arrays.clear()
        self._storages.clear()

    def run(self) -> None:
        """Write. It cannot fail, and takes no memory."""
        count_writes(self._storages, "step")
        n, rows = self._elements, self._rows
        given = (_like(self.dtype.np), self._table, *self._scalars)
        if n < thresholds.THREAD or len(set(map(id, self._storages))) < len(self._storages):
            # Tensors of one storage may share elements: one after the other.
            run_kernel(self._loop, *given, 0, rows)
        else:
            run_kernel(parallel_range, self._loop, n, rows, *given)


def listable(elements: int) -> bool:
    """Whether updates of so many elements may be listed at all."""
    if elements < thresholds.COMPILED_STEP or not execution.current.computes:
        return False
    # A call that is recorded keeps no addresses: there an update is a call on arrays.
    return local.state.capture is None and _locate() is not None


@cache
def _locate() -> Any:
    # The function that finds arrays in memory; None if they may lie otherwise than it reads them.
    from .kernels.cpu.optim import tensor_table

    return tensor_table.locate if tensor_table.layout_known() else None


_compiled: set[tuple[Any, Any]] = set()


@cache
def _like(kind: Any) -> Any:
    return np.empty(0, kind)
