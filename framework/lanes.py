"""Recurrences of tensor methods that take no memory: a block at a time, in room taken beforehand.

An optimizer writes parameters and state in place, and an allocation that is refused between two
such writes would leave a step half done. On the CPU a recurrence therefore runs on *lanes*: each is
a block of an array with the few methods of a tensor that recurrences use, and what they return lies
in :class:`Room`, memory of a fixed size that a thread takes once. So a line of tensor methods
serves both, tensors (on other devices) and lanes, and its numbers are the same bit for bit: as the
ops do, lanes promote dtypes, compute half precision in float32, and round after every method.

The room is no tensor's and not in the ledger: it is a constant of the code, ``ROWS * BLOCK * 8``
bytes for each thread that steps an optimizer, of which only what is used is ever touched.

Not optimal: one thread, and several passes over a block, which stays in the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from .autograd.saved import count_write
from .kernels.common.copy import copy
from .modes import run_kernel
from .ops.views.view_as_real import view_as_real

BLOCK = 1 << 12  # elements of a lane at most
ROWS = 20  # results of one recurrence, at most, and the four rows that conversions use
FIRST, SECOND, RESULT, MASK, FREE = range(5)  # the four rows, and the first for results
HOSTS = ("cpu", "meta")

_float32, _bool = np.dtype(np.float32), np.dtype(np.bool_)
_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def take_room() -> Room:
    """This thread's room; it is made now if there is none, and made again never."""
    return _mine.room


def on_lanes(recurrence: Callable[..., None], tensors: Sequence[Any], numbers: Any) -> Any:
    """Return the function that runs a recurrence in place on the CPU (or meta).

    Everything that can fail happens here, and nothing is written yet.

    Args:
        recurrence: In methods that :class:`Lane` has; it may write all lanes but the second.
        tensors: Of one shape; the first is a parameter, the second its gradient; None stays None.
        numbers: What follows the lanes among its arguments.

    Returns:
        (function, arguments): the call that does it. It takes no memory.

    Raises:
        RuntimeError: Several elements of what is to be written lie in one place.
    """
    room = take_room()
    arrays = [None if t is None else _array(t) for t in tensors]
    for k, a in enumerate(arrays):
        if a is not None and k != 1:
            need_places_of_their_own(a, tensors[k])
    return _write, recurrence, tensors, arrays, tuple(numbers), room


def need_places_of_their_own(array: Any, tensor: Any) -> None:
    """Refuse to write a tensor whose elements share places, as an expanded one's do.

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


def _array(tensor: Any) -> Any:
    tensor = tensor.detach()  # takes part in no graph, and sees the present values of a view's base
    return (view_as_real(tensor) if tensor.is_complex() else tensor)._array


def _write(
    recurrence: Any, tensors: Sequence[Any], arrays: list[Any], numbers: Any, room: Room
) -> None:
    for k, t in enumerate(tensors):
        if t is not None and k != 1:
            count_write(t._storage, "step")
    if not tensors[0].is_meta:
        run_kernel(by_blocks, *arrays, recurrence, numbers, room)


def by_blocks(*arguments: Any) -> None:
    """Run a recurrence: ``by_blocks(*arrays, recurrence, numbers, room)``; it must be quiet."""
    *arrays, recurrence, numbers, room = arguments
    for block in blocks(arrays):
        room.used = FREE
        recurrence(*[None if a is None else Lane(a, room) for a in block], *numbers)


def blocks(arrays: Sequence[Any], limit: int = BLOCK) -> Iterator[Sequence[Any]]:
    """Matching parts of arrays of one shape, of at most ``limit`` elements; None stays None."""
    n = arrays[0].size
    if n <= limit:
        yield arrays
        return
    if all(a is None or a.flags.c_contiguous for a in arrays):
        arrays = [None if a is None else a.reshape(-1) for a in arrays]
    rows = arrays[0].shape[0]
    step = limit * rows // n
    for k in range(0, rows, max(step, 1)):
        if step:
            yield [None if a is None else a[k : k + step] for a in arrays]
        else:  # one row is too long by itself
            yield from blocks([None if a is None else a[k] for a in arrays], limit)


class Room:
    """Where the results of a recurrence lie: rows of a block each.

    Attributes:
        used: How many rows hold something.
    """

    def __init__(self) -> None:
        self.used = FREE
        self._rows = np.empty((ROWS, BLOCK * 8), np.uint8)
        self._views: dict[Any, Any] = {}

    def row(self, k: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """An array in a row."""
        key = k, dtype, shape
        found = self._views.get(key)
        if found is None:
            if len(self._views) > 256:
                self._views.clear()
            n = dtype.itemsize
            for side in shape:
                n *= side
            found = self._views[key] = self._rows[k, :n].view(dtype).reshape(shape)
        return found

    def new(self, dtype: Any, shape: tuple[int, ...]) -> Any:
        """An array in a row that nobody uses."""
        assert self.used < ROWS, "a recurrence has more results than the room has rows"
        self.used += 1
        return self.row(self.used - 1, dtype, shape)


class _Mine(threading.local):
    def __init__(self) -> None:
        self.room = Room()


_mine = _Mine()


class Lane:
    """A block of an array, with methods of a tensor: their names, arguments and numbers.

    Attributes:
        array: The block.
        room: Where results lie.
    """

    __slots__ = ("array", "room")

    def __init__(self, array: Any, room: Room) -> None:
        self.array = array
        self.room = room

    # Into a new lane

    def __neg__(self) -> Lane:
        return self._new(np.negative)

    def abs(self) -> Lane:
        """As a tensor's."""
        return self._new(np.absolute)

    def sqrt(self) -> Lane:
        """As a tensor's."""
        return self._new(np.sqrt)

    def sign(self) -> Lane:
        """As a tensor's: 0 for nan."""
        return self._new(_sign)

    def mul(self, other: Any) -> Lane:
        """As a tensor's."""
        return self._new(np.multiply, other)

    def sub(self, other: Any) -> Lane:
        """As a tensor's."""
        return self._new(np.subtract, other)

    def div(self, other: Any) -> Lane:
        """As a tensor's."""
        return self._new(np.true_divide, other)

    def maximum(self, other: Any) -> Lane:
        """As a tensor's."""
        return self._new(np.maximum, other)

    def add(self, other: Any, *, alpha: float = 1) -> Lane:
        """As a tensor's."""
        return self._new(np.add, _times(other, alpha))

    def addcmul(self, a: Lane, b: Lane, *, value: float = 1) -> Lane:
        """As a tensor's: rounded once."""
        dtype = _promoted(_promoted(self.array.dtype, a.array.dtype), b.array.dtype)
        out = self.room.new(dtype, self.array.shape)
        wide = _computed(dtype)
        to = out if wide is dtype else self.room.row(RESULT, wide, out.shape)
        np.multiply(_as(a, wide, FIRST), _as(b, wide, SECOND), to)
        if value != 1:
            np.multiply(to, value, to)
        np.add(to, _as(self, wide, FIRST), to)
        if to is not out:
            copy(out, to)
        return Lane(out, self.room)

    def __lt__(self, bound: float) -> Lane:
        out = self.room.new(_bool, self.array.shape)
        np.less(self.array, bound, out)
        return Lane(out, self.room)

    def __gt__(self, bound: float) -> Lane:
        out = self.room.new(_bool, self.array.shape)
        np.greater(self.array, bound, out)
        return Lane(out, self.room)

    @property
    def dtype(self) -> Any:
        """For :meth:`to` of another lane."""
        return self.array.dtype

    def to(self, dtype: Any) -> Lane:
        """A copy in another lane's dtype."""
        out = self.room.new(dtype, self.array.shape)
        copy(out, self.array)
        return Lane(out, self.room)

    def ones(self) -> Lane:
        """A lane of ones, alike."""
        out = self.room.new(self.array.dtype, self.array.shape)
        out.fill(1)
        return Lane(out, self.room)

    def is_finite(self) -> bool:
        """True if no element is infinite or NaN."""
        mask = self.room.row(MASK, _bool, self.array.shape)
        return bool(np.isfinite(self.array, out=mask).all())

    # Into this one

    def sqrt_(self) -> Lane:
        """As a tensor's."""
        return self._into(np.sqrt)

    def sign_(self) -> Lane:
        """As a tensor's."""
        return self._into(_sign)

    def mul_(self, other: Any) -> Lane:
        """As a tensor's."""
        return self._into(np.multiply, other)

    def div_(self, other: Any) -> Lane:
        """As a tensor's."""
        return self._into(np.true_divide, other)

    def add_(self, other: Any, *, alpha: float = 1) -> Lane:
        """As a tensor's."""
        return self._into(np.add, _times(other, alpha))

    def addcmul_(self, a: Lane, b: Lane, *, value: float = 1) -> Lane:
        """As a tensor's."""
        return self._into(np.add, _times(a.mul(b), value))

    def addcdiv_(self, a: Lane, b: Lane, *, value: float = 1) -> Lane:
        """As a tensor's."""
        return self._into(np.add, _times(a.div(b), value))

    def clamp_(self, min: float, max: float | None = None) -> Lane:
        """As a tensor's."""
        self._into(np.maximum, min)
        return self if max is None else self._into(np.minimum, max)

    def rsqrt_(self) -> Lane:
        """As a tensor's."""
        return self._into(_rsqrt)

    def copy_(self, other: Lane) -> Lane:
        """As a tensor's."""
        copy(self.array, other.array)
        return self

    def masked_fill_(self, mask: Lane, value: float) -> Lane:
        """As a tensor's."""
        np.copyto(self.array, value, where=mask.array, casting="unsafe")
        return self

    def _new(self, compute: Any, *others: Any) -> Lane:
        dtype = self.array.dtype
        for other in others:
            if type(other) is Lane:
                dtype = _promoted(dtype, other.array.dtype)
        out = self.room.new(dtype, self.array.shape)
        self._compute(compute, others, dtype, out)
        return Lane(out, self.room)

    def _into(self, compute: Any, *others: Any) -> Lane:
        dtype = self.array.dtype
        for other in others:
            if type(other) is Lane:
                dtype = _promoted(dtype, other.array.dtype)
        self._compute(compute, others, dtype, self.array)
        return self

    def _compute(self, compute: Any, others: Any, dtype: Any, out: Any) -> None:
        # Operands in ``dtype``, float32 for halves of it; the result rounded to it, then to out's.
        room, shape = self.room, out.shape
        wide = _computed(dtype)
        to = out if out.dtype == wide else room.row(RESULT, wide, shape)
        operands = [_as(self, wide, FIRST)]
        for other in others:
            operands.append(_as(other, wide, SECOND) if type(other) is Lane else other)
        if compute is _sign:
            _sign(operands[0], to, room.row(MASK, _bool, shape))
        else:
            compute(*operands, out=to)
        if to is not out:
            if wide is not dtype and out.dtype != dtype:
                rounded = room.row(FIRST, dtype, shape)
                copy(rounded, to)
                to = rounded
            copy(out, to)


def _times(lane: Any, factor: float) -> Any:
    return lane if factor == 1 else lane.mul(factor) if type(lane) is Lane else lane * factor


def _as(lane: Lane, dtype: Any, row: int) -> Any:
    # A lane's array in a dtype.
    if lane.array.dtype == dtype:
        return lane.array
    converted = lane.room.row(row, dtype, lane.array.shape)
    copy(converted, lane.array)
    return converted


def _sign(x: Any, out: Any, mask: Any) -> None:
    np.sign(x, out)
    np.isnan(out, mask)
    np.copyto(out, 0, where=mask)


def _rsqrt(x: Any, out: Any) -> None:
    np.sqrt(x, out)
    np.reciprocal(out, out)


def _promoted(a: Any, b: Any) -> Any:
    if a == b:
        return a
    if a.itemsize == b.itemsize:  # float16 with bfloat16: neither holds the other
        return _float32
    return a if a.itemsize > b.itemsize else b


def _computed(dtype: Any) -> Any:
    # What a kernel computes in.
    return _float32 if dtype in _HALVES else dtype


__all__ = [
    "BLOCK",
    "HOSTS",
    "Lane",
    "Room",
    "blocks",
    "by_blocks",
    "on_lanes",
    "take_room",
]
