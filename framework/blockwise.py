"""Blockwise execution of optimizer recurrences: NumPy blocks with tensor methods, no allocation.

An optimizer writes parameters and state in place, and an allocation that is refused between two
such writes would leave a step half done. On the CPU a recurrence therefore runs on array blocks:
each :class:`ArrayBlock` is a part of an array with the few methods of a tensor that recurrences
use, and what they return lies in :class:`Scratch`, memory of a fixed size that a thread takes once.
So a line of tensor methods serves both, tensors (on other devices) and blocks, and its numbers are
the same bit for bit: as the ops do, blocks promote dtypes, compute half precision in float32, and
round after every method.

The scratch belongs to no tensor and is not in the ledger: it is a constant of the code, ``ROWS *
BLOCK * 8`` bytes for each thread that steps an optimizer, of which only what is used is touched.

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

BLOCK = 1 << 12  # elements of a block at most
ROWS = 20  # results of one recurrence, at most, and the four rows that conversions use
FIRST, SECOND, RESULT, MASK, FREE = range(5)  # the four rows, and the first for results
HOSTS = ("cpu", "meta")

_float32, _bool = np.dtype(np.float32), np.dtype(np.bool_)
_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def thread_scratch() -> Scratch:
    """Return the scratch memory of this thread, allocated at the first call."""
    return _mine.scratch


def blockwise_call(recurrence: Callable[..., None], tensors: Sequence[Any], numbers: Any) -> Any:
    """Return the function that runs a recurrence in place on the CPU (or meta).

    Everything that can fail happens here, and nothing is written yet.

    Args:
        recurrence: In methods that :class:`ArrayBlock` has; it may write all but the second.
        tensors: Of one shape; the first is a parameter, the second its gradient; None stays None.
        numbers: What follows the blocks among its arguments.

    Returns:
        (function, arguments): the call that does it. It takes no memory.

    Raises:
        RuntimeError: Several elements of what is to be written lie in one place.
    """
    scratch = thread_scratch()
    arrays = [None if t is None else _array(t) for t in tensors]
    for k, a in enumerate(arrays):
        if a is not None and k != 1:
            require_no_overlap(a, tensors[k])
    return _write, recurrence, tensors, arrays, tuple(numbers), scratch


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


def _array(tensor: Any) -> Any:
    tensor = tensor.detach()  # takes part in no graph, and sees the present values of a view's base
    return (view_as_real(tensor) if tensor.is_complex() else tensor)._array


def _write(
    recurrence: Any, tensors: Sequence[Any], arrays: list[Any], numbers: Any, scratch: Scratch
) -> None:
    for k, t in enumerate(tensors):
        if t is not None and k != 1:
            count_write(t._storage, "step")
    if not tensors[0].is_meta:
        run_kernel(by_blocks, *arrays, recurrence, numbers, scratch)


def by_blocks(*arguments: Any) -> None:
    """Run a recurrence block by block: ``by_blocks(*arrays, recurrence, numbers, scratch)``."""
    *arrays, recurrence, numbers, scratch = arguments
    for block in blocks(arrays):
        scratch.used = FREE
        recurrence(*[None if a is None else ArrayBlock(a, scratch) for a in block], *numbers)


def blocks(arrays: Sequence[Any], limit: int = BLOCK) -> Iterator[Sequence[Any]]:
    """Yield matching blocks of arrays of one shape, at most ``limit`` elements; None stays None."""
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


class Scratch:
    """Scratch memory for the results of a recurrence: rows of one block each.

    Attributes:
        used: How many rows hold something.
    """

    def __init__(self) -> None:
        self.used = FREE
        self._rows = np.empty((ROWS, BLOCK * 8), np.uint8)
        self._views: dict[Any, Any] = {}

    def row(self, k: int, dtype: Any, shape: tuple[int, ...]) -> Any:
        """View row ``k`` as an array of a dtype and shape."""
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
        """View the next free row as an array of a dtype and shape."""
        assert self.used < ROWS, "a recurrence has more results than the scratch has rows"
        self.used += 1
        return self.row(self.used - 1, dtype, shape)


class _Mine(threading.local):
    def __init__(self) -> None:
        self.scratch = Scratch()


_mine = _Mine()


class ArrayBlock:
    """A block of an array with the methods of a tensor: same names, arguments and results.

    Attributes:
        array: The block.
        scratch: Memory for results.
    """

    __slots__ = ("array", "scratch")

    def __init__(self, array: Any, scratch: Scratch) -> None:
        self.array = array
        self.scratch = scratch

    # Into a new block

    def __neg__(self) -> ArrayBlock:
        return self._new(np.negative)

    def abs(self) -> ArrayBlock:
        """Same as ``Tensor.abs``."""
        return self._new(np.absolute)

    def sqrt(self) -> ArrayBlock:
        """Same as ``Tensor.sqrt``."""
        return self._new(np.sqrt)

    def sign(self) -> ArrayBlock:
        """Same as ``Tensor.sign``: 0 for nan."""
        return self._new(_sign)

    def mul(self, other: Any) -> ArrayBlock:
        """Same as ``Tensor.mul``."""
        return self._new(np.multiply, other)

    def sub(self, other: Any) -> ArrayBlock:
        """Same as ``Tensor.sub``."""
        return self._new(np.subtract, other)

    def div(self, other: Any) -> ArrayBlock:
        """Same as ``Tensor.div``."""
        return self._new(np.true_divide, other)

    def maximum(self, other: Any) -> ArrayBlock:
        """Same as ``Tensor.maximum``."""
        return self._new(np.maximum, other)

    def add(self, other: Any, *, alpha: float = 1) -> ArrayBlock:
        """Same as ``Tensor.add``."""
        return self._new(np.add, _times(other, alpha))

    def addcmul(self, a: ArrayBlock, b: ArrayBlock, *, value: float = 1) -> ArrayBlock:
        """Same as ``Tensor.addcmul``: rounded once."""
        dtype = _promoted(_promoted(self.array.dtype, a.array.dtype), b.array.dtype)
        out = self.scratch.new(dtype, self.array.shape)
        wide = _computed(dtype)
        to = out if wide is dtype else self.scratch.row(RESULT, wide, out.shape)
        np.multiply(_as(a, wide, FIRST), _as(b, wide, SECOND), to)
        if value != 1:
            np.multiply(to, value, to)
        np.add(to, _as(self, wide, FIRST), to)
        if to is not out:
            copy(out, to)
        return ArrayBlock(out, self.scratch)

    def __lt__(self, bound: float) -> ArrayBlock:
        out = self.scratch.new(_bool, self.array.shape)
        np.less(self.array, bound, out)
        return ArrayBlock(out, self.scratch)

    def __gt__(self, bound: float) -> ArrayBlock:
        out = self.scratch.new(_bool, self.array.shape)
        np.greater(self.array, bound, out)
        return ArrayBlock(out, self.scratch)

    @property
    def dtype(self) -> Any:
        """The dtype of the elements, for :meth:`to` of another block."""
        return self.array.dtype

    def to(self, dtype: Any) -> ArrayBlock:
        """Convert to the dtype of another block (a copy)."""
        out = self.scratch.new(dtype, self.array.shape)
        copy(out, self.array)
        return ArrayBlock(out, self.scratch)

    def ones(self) -> ArrayBlock:
        """A block of ones of the same shape and dtype."""
        out = self.scratch.new(self.array.dtype, self.array.shape)
        out.fill(1)
        return ArrayBlock(out, self.scratch)

    def is_finite(self) -> bool:
        """True if no element is infinite or NaN."""
        mask = self.scratch.row(MASK, _bool, self.array.shape)
        return bool(np.isfinite(self.array, out=mask).all())

    # Into this one

    def sqrt_(self) -> ArrayBlock:
        """Same as ``Tensor.sqrt_``."""
        return self._into(np.sqrt)

    def sign_(self) -> ArrayBlock:
        """Same as ``Tensor.sign_``."""
        return self._into(_sign)

    def mul_(self, other: Any) -> ArrayBlock:
        """Same as ``Tensor.mul_``."""
        return self._into(np.multiply, other)

    def div_(self, other: Any) -> ArrayBlock:
        """Same as ``Tensor.div_``."""
        return self._into(np.true_divide, other)

    def add_(self, other: Any, *, alpha: float = 1) -> ArrayBlock:
        """Same as ``Tensor.add_``."""
        return self._into(np.add, _times(other, alpha))

    def addcmul_(self, a: ArrayBlock, b: ArrayBlock, *, value: float = 1) -> ArrayBlock:
        """Same as ``Tensor.addcmul_``."""
        return self._into(np.add, _times(a.mul(b), value))

    def addcdiv_(self, a: ArrayBlock, b: ArrayBlock, *, value: float = 1) -> ArrayBlock:
        """Same as ``Tensor.addcdiv_``."""
        return self._into(np.add, _times(a.div(b), value))

    def clamp_(self, min: float, max: float | None = None) -> ArrayBlock:
        """Same as ``Tensor.clamp_``."""
        self._into(np.maximum, min)
        return self if max is None else self._into(np.minimum, max)

    def rsqrt_(self) -> ArrayBlock:
        """Same as ``Tensor.rsqrt_``."""
        return self._into(_rsqrt)

    def copy_(self, other: ArrayBlock) -> ArrayBlock:
        """Same as ``Tensor.copy_``."""
        copy(self.array, other.array)
        return self

    def masked_fill_(self, mask: ArrayBlock, value: float) -> ArrayBlock:
        """Same as ``Tensor.masked_fill_``."""
        np.copyto(self.array, value, where=mask.array, casting="unsafe")
        return self

    def _new(self, compute: Any, *others: Any) -> ArrayBlock:
        dtype = self.array.dtype
        for other in others:
            if type(other) is ArrayBlock:
                dtype = _promoted(dtype, other.array.dtype)
        out = self.scratch.new(dtype, self.array.shape)
        self._compute(compute, others, dtype, out)
        return ArrayBlock(out, self.scratch)

    def _into(self, compute: Any, *others: Any) -> ArrayBlock:
        dtype = self.array.dtype
        for other in others:
            if type(other) is ArrayBlock:
                dtype = _promoted(dtype, other.array.dtype)
        self._compute(compute, others, dtype, self.array)
        return self

    def _compute(self, compute: Any, others: Any, dtype: Any, out: Any) -> None:
        # Operands in ``dtype``, float32 for halves of it; the result rounded to it, then to out's.
        scratch, shape = self.scratch, out.shape
        wide = _computed(dtype)
        to = out if out.dtype == wide else scratch.row(RESULT, wide, shape)
        operands = [_as(self, wide, FIRST)]
        for other in others:
            operands.append(_as(other, wide, SECOND) if type(other) is ArrayBlock else other)
        if compute is _sign:
            _sign(operands[0], to, scratch.row(MASK, _bool, shape))
        else:
            compute(*operands, out=to)
        if to is not out:
            if wide is not dtype and out.dtype != dtype:
                rounded = scratch.row(FIRST, dtype, shape)
                copy(rounded, to)
                to = rounded
            copy(out, to)


def _times(block: Any, factor: float) -> Any:
    return (
        block if factor == 1 else block.mul(factor) if type(block) is ArrayBlock else block * factor
    )


def _as(block: ArrayBlock, dtype: Any, row: int) -> Any:
    # The array of a block in a dtype.
    if block.array.dtype == dtype:
        return block.array
    converted = block.scratch.row(row, dtype, block.array.shape)
    copy(converted, block.array)
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
    "ArrayBlock",
    "Scratch",
    "blocks",
    "blockwise_call",
    "by_blocks",
    "thread_scratch",
]
