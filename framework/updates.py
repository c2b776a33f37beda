"""Updates of tensors in place: the call of one, prepared so that it cannot fail when it runs.

An optimizer writes parameters and state in place, and an allocation that is refused between two
such writes would leave a step half done. So :func:`planned_update` returns a call: everything that
can fail has happened by then, and nothing is written yet.

On the CPU and on GPUs an update (``kernels/formula/update.py``) of contiguous tensors of one type,
float32 or float64, is a compiled loop: one pass, without temporaries. All else (half precision,
strides, several dtypes, other devices) runs calls of NumPy on blocks of the arrays, in scratch of a
block's size. There half precision is computed in float32 and rounded once, where it is written.

On the CPU the scratch belongs to the thread, is taken once, and is not in the ledger: it is at most
``ROWS * BLOCK * 8`` bytes. On other devices it is a tensor that lives while the update runs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from .autograd.saved import count_write
from .devices import backend, on_device
from .dtypes import bool_, float32, float64
from .kernels.common.copy import copy
from .kernels.common.schedule import parallel_rows
from .kernels.cuda.printer import printed
from .kernels.formula.update import Update, UpdateVariant, update
from .kernels.runtime import thresholds
from .listed_updates import LOOPED, ListedUpdate, listable
from .modes import run_kernel
from .ops.creation.fill import empty
from .ops.views.tiled import limit_of
from .ops.views.view_as_real import view_as_real

BLOCK = 1 << 12  # elements of a block on the CPU, at most
ROWS = 20  # buffers of one update, at most
HOSTS = ("cpu", "meta")


def planned_update(
    change: Update, tensors: Sequence[Any], numbers: dict[str, float], elements: int | None = None
) -> tuple[Any, ...]:
    """Return the call that applies an update to tensors in place.

    Args:
        change: The update.
        tensors: Its inputs, of one shape; None for those that these numbers leave out. A complex
            tensor is a pair of real ones.
        numbers: Its numbers.
        elements: Of all tensors that are stepped together: whether a compiled loop is worth it.
            Default: those of the first.

    Returns:
        (function, arguments). On the CPU it takes no memory.

    Raises:
        RuntimeError: Several elements of what is to be written lie in one place, or the tensors
            differ in shape or device.
    """
    variant, scalars = change.of_call(numbers)
    first, places = tensors[0], variant.places
    device = first._spec.device
    storages = [tensors[k]._storage for k in variant.written_places]
    if elements is None:
        elements = first.numel()
    kind = first._spec.dtype
    if device.type == "cpu" and kind in LOOPED and listable(elements):
        update = ListedUpdate(variant, scalars, kind)
        if update.takes and update.add([tensors[k] for k in places]) and update.prepare() is None:
            return (update.run,)
    looped = kind is float32 or not variant.only_float32
    flat = flat_arrays(elements, [tensors[k] for k in places]) if looped else None
    if flat is not None:
        if device.type == "meta":
            return _count, storages
        return compiled_call(storages, device, variant.loop, flat, scalars)
    for k in places:
        _require_alike(change, first, tensors[k])
    for k in variant.written_places:
        require_no_overlap(tensors[k]._array, tensors[k])
    if device.type == "meta" or not first.numel():
        return _count, storages
    return _blockwise(variant, [tensors[k] for k in places], storages, scalars)


def planned_updates(
    change: Update, each: Sequence[Sequence[Any]], numbers: dict[str, float]
) -> list[tuple[Any, ...]]:
    """Return the calls that apply an update to many tensors: one call for all that can be listed.

    Args:
        change: The update.
        each: For each tensor, what :func:`planned_update` takes.
        numbers: Its numbers.
    """
    lists: dict[Any, tuple[ListedUpdate, list[Sequence[Any]]]] = {}
    alone = []
    for tensors in each:
        first = tensors[0]
        if first.dtype not in LOOPED or first.device.type != "cpu" or not listable(first.numel()):
            alone.append(tensors)
            continue
        if first.dtype not in lists:
            lists[first.dtype] = ListedUpdate(*change.of_call(numbers), first.dtype), []
        update, members = lists[first.dtype]
        added = update.takes and update.add([tensors[k] for k in update.places])
        (members if added else alone).append(tensors)
    calls: list[tuple[Any, ...]] = []
    for update, members in lists.values():
        while (k := update.prepare()) is not None:
            update.drop(k)
            alone.append(members.pop(k))
        calls.append((update.run,))
    return calls + [planned_update(change, tensors, numbers) for tensors in alone]


def _require_alike(change: Update, first: Any, t: Any) -> None:
    if t.shape != first.shape or t._spec.device is not first._spec.device:
        raise RuntimeError(
            f"{change.name}: tensors have one shape and one device; got {tuple(first.shape)} on "
            f"{first.device} and {tuple(t.shape)} on {t.device}. Convert one, or expand() it."
        )


def flat_arrays(elements: int, tensors: Sequence[Any]) -> list[Any] | None:
    """Return flat views of tensors that compiled loops take, or None.

    These are contiguous tensors of one shape and one float type, on the CPU, on meta or on a GPU.

    Args:
        elements: Of all that is stepped together: on the CPU, too few are not worth a loop.
        tensors: As an update takes them.
    """
    spec = tensors[0]._spec
    if spec.dtype not in LOOPED or not _compiles(elements, spec.device):
        return None
    found = []
    for t in tensors:
        array = t._array
        if t._spec is not spec or t._viewed is not None or not array.flags.c_contiguous:
            return None
        found.append(array.reshape(-1))
    return found


def _compiles(elements: int, device: Any) -> bool:
    if device.type in HOSTS:
        return elements >= thresholds.COMPILED_STEP
    key: str = backend(device).kernel_key
    return key == "cuda"


def require_no_overlap(array: Any, tensor: Any) -> None:
    """Raise an error for writing to a tensor whose elements share memory, as if expanded.

    Raises:
        RuntimeError: They do.
    """
    if not array.size or 0 not in array.strides:
        return
    if any(s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor, of shape "
            f"{tuple(tensor.shape)} and strides {tensor.stride()}, refers to a single memory "
            "location. Please clone() the tensor before performing the operation."
        )


# Compiled loops


def compiled_call(
    storages: list[Any], device: Any, loop: Any, arrays: list[Any], scalars: tuple[float, ...]
) -> tuple[Any, ...]:
    """Return the call of a loop over flat arrays of one dtype.

    Args:
        storages: What it writes.
        device: Where.
        loop: ``loop(*arrays, *numbers)``; it is compiled when this returns.
        arrays: They may have no elements.
        scalars: The numbers.
    """
    flat = arrays[0]
    if device.type != "cpu":
        be = backend(device)
        kernel = printed(loop)
        run_kernel(on_device(be, kernel.prepare), be.xp, flat)  # it may fail: here
        return _run, storages, on_device(be, kernel), (be.xp, *arrays, *scalars)
    key = loop, flat.itemsize
    if key not in _compiled:  # compiled at its first call, which may fail: here
        run_kernel(loop, *[a[:0] for a in arrays], *scalars)
        _compiled.add(key)
    n = flat.size
    if n < thresholds.THREAD:
        return _run, storages, loop, (*arrays, *scalars)
    return _run, storages, parallel_rows, (loop, n, n, *arrays, *scalars)


_compiled: set[tuple[Any, int]] = set()


def _run(storages: list[Any], function: Any, arguments: tuple[Any, ...]) -> None:
    for storage in storages:
        count_write(storage, "step")
    run_kernel(function, *arguments)


def _count(storages: list[Any]) -> None:
    for storage in storages:
        count_write(storage, "step")


# Calls of NumPy on blocks


def _blockwise(
    variant: UpdateVariant, tensors: list[Any], storages: list[Any], scalars: tuple[float, ...]
) -> tuple[Any, ...]:
    tensors = [t.detach() for t in tensors]  # in no graph, and with the base's present values
    tensors = [view_as_real(t) if t.is_complex() else t for t in tensors]
    device = tensors[0].device
    kind = float64 if any(t.dtype is float64 for t in tensors) else float32
    rows = [t.dtype is not kind for t in tensors].count(True) + variant.calls.buffers.count("float")
    masks = variant.calls.buffers.count("bool")
    arrays = [t._array for t in tensors]
    if device.type in HOSTS:
        scratch = _thread_scratch(kind.np, rows, masks)
        return _run, storages, in_blocks, (*arrays, variant, scalars, np, BLOCK, *scratch)
    limit = min(tensors[0].numel(), limit_of(tensors[0]))
    wanted = ((rows, limit), kind), ((masks, limit), bool_)
    _scratch_tensors(wanted, device)  # what a memory limit refuses, it refuses here
    be = backend(device)
    run = on_device(be, in_blocks)
    return _with_scratch, wanted, device, storages, run, (*arrays, variant, scalars, be.xp, limit)


def _scratch_tensors(wanted: Any, device: Any) -> list[Any]:
    return [empty(shape, dtype=kind, device=device) for shape, kind in wanted]


def _with_scratch(
    wanted: Any, device: Any, storages: list[Any], run: Any, arguments: tuple[Any, ...]
) -> None:
    scratch = _scratch_tensors(wanted, device)
    _run(storages, run, (*arguments, *[t._array for t in scratch]))


class _Mine(threading.local):
    def __init__(self) -> None:
        self.scratch = np.empty((ROWS, BLOCK * 8), np.uint8)


_mine = _Mine()


def _thread_scratch(kind: Any, rows: int, masks: int) -> tuple[Any, Any]:
    # Of this thread: rows of numbers, and behind them rows of bools.
    assert rows + masks <= ROWS, "an update has more buffers than the scratch has rows"
    scratch = _mine.scratch
    numbers = scratch[:rows, : BLOCK * kind.itemsize].view(kind)
    return numbers, scratch[rows : rows + masks, :BLOCK].view(np.bool_)


def in_blocks(*arguments: Any) -> None:
    """Apply an update to arrays of one shape, block by block.

    Args:
        *arguments: The arrays, the variant, its numbers, the array module, the largest number of
            elements of a block, and scratch: rows of numbers of the dtype that is computed in, and
            rows of bools, as long as a block.
    """
    *arrays, variant, scalars, xp, limit, rows, masks = arguments
    converted = [k for k, a in enumerate(arrays) if a.dtype != rows.dtype]
    rounded = [k for k in converted if variant.elements[k] in variant.written]
    shape = None
    for block in blocks(arrays, limit):
        if block[0].shape != shape:
            shape = block[0].shape
            buffers, stand_ins = _of_shape(shape, variant.calls.buffers, rows, masks)
        operands = list(block)
        for k, stand_in in zip(converted, stand_ins, strict=True):
            _convert(xp, stand_in, block[k])
            operands[k] = stand_in
        variant.numpy(xp, *buffers, *operands, *scalars)
        for k in rounded:
            _convert(xp, block[k], operands[k])


def _of_shape(shape: Any, kinds: list[str], rows: Any, masks: Any) -> tuple[list[Any], list[Any]]:
    # Buffers of these kinds, and what is left of the rows.
    n = prod(shape)
    numbers, bools = ([row[:n].reshape(shape) for row in of] for of in (rows, masks))
    buffers = [bools.pop() if kind == "bool" else numbers.pop() for kind in kinds]
    return buffers, numbers


def _convert(xp: Any, out: Any, array: Any) -> None:
    if xp is np:
        copy(out, array)
    else:
        xp.copyto(out, array, casting="unsafe")


def blocks(arrays: Sequence[Any], limit: int) -> Iterator[Sequence[Any]]:
    """Yield matching blocks of arrays of one shape, of at most ``limit`` elements."""
    n = arrays[0].size
    if n <= limit:
        yield arrays
        return
    if all(a.flags.c_contiguous for a in arrays):
        arrays = [a.reshape(-1) for a in arrays]
    rows = arrays[0].shape[0]
    step = limit * rows // n
    for k in range(0, rows, max(step, 1)):
        if step:
            yield [a[k : k + step] for a in arrays]
        else:  # one row is too long by itself
            yield from blocks([a[k] for a in arrays], limit)


@update
def scale(x: Any, *, factor: Any) -> Any:
    """``x *= factor``."""
    return factor * x


__all__ = [
    "HOSTS",
    "blocks",
    "compiled_call",
    "flat_arrays",
    "planned_update",
    "planned_updates",
    "require_no_overlap",
    "scale",
]
