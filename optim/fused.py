"""Fused optimizer steps: one pass over each parameter, compiled.

The plain steps are lines of tensor ops, each a pass over memory. Here a step reads and writes
every element once and allocates nothing. Numba compiles the loop for the CPU; for GPUs it is
printed as CUDA C++ (``framework/kernels/cuda/printer.py``). On meta the same parameters take the
same road, so that predicted and measured bytes agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ..framework.autograd.saved import count_write
from ..framework.devices import backend, on_device
from ..framework.kernels.common.schedule import parallel_rows
from ..framework.kernels.cuda.printer import printed
from ..framework.kernels.runtime import thresholds
from ..framework.modes import run_kernel


def fits(elements: int, *tensors: Any) -> bool:
    """True for tensors that :func:`fits_host` takes, and for such on a GPU, however few.

    Args:
        elements: Of all that the optimizer steps.
        *tensors: A parameter, its gradient and its state; None for state that an option leaves out.
    """
    where = tensors[0].device
    if where.type in ("cpu", "meta"):
        return fits_host(elements, *tensors)
    return backend(where).kernel_key == "cuda" and _alike(tensors)


def fits_host(elements: int, *tensors: Any) -> bool:
    """True for contiguous tensors of one float type on the CPU (or meta); arguments as above."""
    if elements < thresholds.COMPILED_STEP or tensors[0].device.type not in ("cpu", "meta"):
        return False
    return _alike(tensors)


def _alike(tensors: Sequence[Any]) -> bool:
    first = tensors[0]._spec
    if first.dtype.name not in ("float32", "float64"):
        return False
    for t in tensors:
        if t is None:
            continue
        if t._spec is not first or t._viewed is not None or not t._array.flags.c_contiguous:
            return False
    return True


def planned(name: str, tensors: Sequence[Any], numbers: Sequence[float]) -> Any:
    """Return the call of a loop of ``framework/kernels/cpu/optim/elementwise.py``, in place.

    Args:
        name: Of the loop.
        tensors: The parameter, its gradient and its state, all of which :func:`fits` took.
        numbers: The loop's scalars; they take the tensors' dtype.

    Returns:
        (function, arguments): the call, which takes no memory. The loop is compiled by then.
    """
    arrays: list[Any] = []
    storages = []
    for t in tensors:
        if t is None:
            arrays.append(arrays[0][:0])
        else:
            arrays.append(t._array.reshape(-1))
            storages.append(t._storage)
    del storages[1]  # of the gradient
    if tensors[0].device.type == "meta":
        return _count, storages
    loop = _loop(name)
    flat = arrays[0]
    be = backend(tensors[0].device)
    if be.kernel_key == "cuda":
        kernel = printed(loop)
        run_kernel(on_device(be, kernel.prepare), be.xp, flat)  # it may fail: here
        return _run, storages, on_device(be, kernel), [be.xp, *arrays], list(numbers)
    kind = flat.dtype.type
    scalars = _scalars(kind, numbers)
    if (name, kind) not in _compiled:  # compiled at its first call, which may fail: here
        run_kernel(loop, *[a[:0] for a in arrays], *scalars)
        _compiled.add((name, kind))
    n = flat.size
    if n < thresholds.THREAD:
        return _run, storages, loop, arrays, scalars
    return _run, storages, parallel_rows, [loop, n, n, *arrays], scalars


def _run(storages: list[Any], loop: Any, arrays: list[Any], scalars: list[Any]) -> None:
    for storage in storages:
        count_write(storage, "step")
    run_kernel(loop, *arrays, *scalars)


def _count(storages: list[Any]) -> None:
    for storage in storages:
        count_write(storage, "step")


_compiled: set[tuple[str, Any]] = set()


@cache
def _loop(name: str) -> Any:
    from ..framework.kernels.cpu.optim import elementwise

    return getattr(elementwise, name)


_last: tuple[Any, Any, list[Any]] = (None, None, [])


def _scalars(kind: Any, numbers: Sequence[float]) -> list[Any]:
    # The parameters of a group take the same numbers, one after the other.
    global _last
    last_kind, last_numbers, scalars = _last
    if kind is last_kind and numbers == last_numbers:
        return scalars
    scalars = [kind(x) for x in numbers]
    _last = (kind, numbers, scalars)
    return scalars
