"""Copies between arrays of the CPU: NumPy's ``copyto``, and a compiled one where that is slow.

NumPy copies in the order of one of the arrays. Where neighbors in the result are far apart in the
source it meets each cache line many times over, and a source that repeats one element is converted
element by element. Its float16 and bfloat16 are converted one at a time.
``cpu/elementwise/copy.py`` says what is done instead.

Two arrays of the same shape are first brought to as few dims as possible, the result's largest
stride first: dims that lie within each other in both are one.
"""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..runtime import threads, thresholds
from .float8 import saturated_copy, saturates
from .schedule import parallel_range, parallel_rows, parallel_slices

_SHORT = 1 << 10  # elements below which three dims are not worth a call
_SHORT_ROW = 64  # bytes of a row below which a call for each costs too much
_LONG_ROW = 512  # bytes of a row above which NumPy's copy is as fast
_BLOCK = 1 << 13  # elements, or bytes, of a row of what has none of its own
_SIDE = 16  # of the squares that are transposed at a time

_float32, _float16 = np.dtype(np.float32), np.dtype(np.float16)
_bfloat16 = np.dtype(ml_dtypes.bfloat16)
_WORDS = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}
_MOVED = {4: np.dtype(np.float32), 8: np.dtype(np.float64)}  # by whose loops rows are moved
_STANDING = {_float32: _float32, _float16: _WORDS[2], _bfloat16: np.dtype(np.int16)}
_CONVERSIONS: dict[
    Any, tuple[Any, ...]
] = {  # (to, from): the types that stand for them in ``cpu/elementwise/copy.py``
    pair: tuple(_STANDING[t] for t in pair)
    for half in (_float16, _bfloat16)
    for pair in ((_float32, half), (half, _float32))
}


def copy(out: Any, array: Any) -> None:
    """Fill ``out`` with ``array``, broadcast and converted: what does not fit is not reported."""
    if saturates(out.dtype, getattr(array, "dtype", None)):
        saturated_copy(out, array)
    elif out.size < thresholds.COMPILED_MOVE or not _copied(out, array):
        np.copyto(out, array, casting="unsafe")


def place(xp: Any, out: Any, array: Any) -> None:
    """Fill ``out``, a part of a result, with an array of its dtype, on the device of ``xp``."""
    if xp is np:
        copy(out, array)
    else:
        xp.copyto(out, array)


def line_copier(to: Any, source: Any) -> Any:
    """What copies between arrays of these dtypes that are alike, contiguous and aligned."""
    if not _converts(to, source):
        return copy
    first, second = _CONVERSIONS[to, source]
    move = _mover(first, second)

    def run(out: Any, array: Any) -> None:
        move(out.view(first).reshape(1, 1, -1), array.view(second).reshape(1, 1, -1))

    return run


def word(dtype: Any) -> Any:
    """What stands for float32 and 16-bit floats in compiled kernels; None for all others."""
    if dtype == _float16:
        from ..cpu.elementwise.copy import float16_in_hardware

        if not float16_in_hardware():
            return None
    return _STANDING.get(dtype)


def _converts(to: Any, source: Any) -> bool:
    # Whether there is a compiled conversion.
    return (to, source) in _CONVERSIONS and word(to) is not None and word(source) is not None


def _copied(out: Any, array: Any) -> bool:
    # Whether something better than NumPy's copy did it.
    if not isinstance(array, np.ndarray) or not (out.flags.aligned and array.flags.aligned):
        return False
    as_is = out.dtype == array.dtype
    if as_is and out.itemsize in _WORDS:
        words = (_WORDS[out.itemsize],) * 2
    elif not as_is and _converts(out.dtype, array.dtype):
        words = _CONVERSIONS[out.dtype, array.dtype]
    else:
        return False
    if np.may_share_memory(out, array):  # NumPy sees to what overlaps
        return False
    to, source = out.view(words[0]), array.view(words[1])
    if to.flags.c_contiguous and source.flags.c_contiguous and to.shape == source.shape:
        if as_is and _rows_copied(to, source, [to.size], [to.itemsize], [to.itemsize]):
            return True
        shape = (1, 1, -1) if to.size % _BLOCK else (-1, 1, _BLOCK)
        to, source = to.reshape(shape), source.reshape(shape)
        if as_is:
            by_threads(np.copyto, _work(to), to, source)
        else:
            _move(to, source)
        return True
    if as_is and out.size < 2 * thresholds.COMPILED_MOVE:
        return False
    if to.shape != source.shape:
        source = np.broadcast_to(source, to.shape)
    return _by_planes(to, source, as_is)


def _by_planes(out: Any, array: Any, as_is: bool) -> bool:
    # The same for any strides, three dims at a time.
    layouts = [Layout(a.shape, a.strides, a.itemsize) for a in (out, array)]
    axes, sizes, (steps, own) = _pair_merged(*layouts)
    if not sizes:
        return False
    if as_is and steps[-1] == array.itemsize:  # rows that lie alike
        return _rows_copied(out, array, sizes, steps, own)
    order = _planes(sizes, steps, array.itemsize)
    outer = [sizes[k] for k in order[:-3]]
    if prod(outer) * _SHORT > out.size:
        return False
    if as_is and steps[-1]:  # else only transpositions gain
        if len(order) < 2 or steps[order[-2]] != array.itemsize:
            return False
        if min(sizes[k] for k in order[-2:]) < _SIDE:
            return False
    if len(sizes) == 1 and sizes[0] % _BLOCK == 0:
        sizes, order, outer = [sizes[0] // _BLOCK, 1, _BLOCK], [0, 1, 2], []
    out, array = (a.transpose(axes).reshape(sizes).transpose(order) for a in (out, array))
    while out.ndim < 3:
        out, array = out[None], array[None]
    for at in product(*[range(n) for n in outer]):
        _move(out[at], array[at])
    return True


def _rows_copied(out: Any, array: Any, sizes: Any, steps: Any, own: Any) -> bool:
    # Whether compiled code copied rows that lie alike: by several threads, or very short ones.
    several = threads.workers(out.size, out.size, thresholds.UFUNC_THREAD) > 1
    nbytes = sizes[-1] * out.itemsize
    calls_pay = len(sizes) == 1 or nbytes >= _SHORT_ROW
    if (calls_pay and not several) or len(sizes) > 3 or not rows_known():
        return False
    if len(sizes) == 1:
        n, rows, to, source = _BLOCK, 1, (_BLOCK, 0), (_BLOCK, 0)
    else:
        n, rows = sizes[-1] * out.itemsize, sizes[-2]
        to, source = (0, *own)[-3:-1], (0, *steps)[-3:-1]
    from ..cpu.elementwise import arithmetic_rows, copy

    start, kind, size = array.ctypes.data, _MOVED.get(out.itemsize), out.itemsize
    units = -(-out.nbytes // n)
    if len(sizes) > 1 and nbytes <= _LONG_ROW and kind is not None:
        at = start, start, out.ctypes.data
        between = [(a, a, b) for a, b in zip(source, to, strict=True)]
        words = arithmetic_rows.MOVE, at, *between, (size, size, size), n // size, rows, out.size
        parallel_range(arithmetic_rows.LOOPS[kind], _work(out), units, *words)
    elif calls_pay:
        places = copy.memcpy(), (out.ctypes.data, *to), (start, *source)
        parallel_range(copy.copy_rows, out.size, units, *places, rows, n, out.nbytes)
    else:
        return False
    return True


@cache
def rows_known() -> bool:
    """Whether compiled kernels here take the addresses of rows."""
    from ..cpu.compiler import library

    return library.supported()


def _move(out: Any, array: Any) -> None:
    by_threads(_mover(out.dtype, array.dtype), _work(out), out, array)


def _mover(to: Any, source: Any) -> Any:
    from ..cpu.elementwise.copy import mover

    return mover(to, source)


def _work(out: Any) -> int:
    # In additions: a copy keeps memory busier than those.
    return out.size * thresholds.THREAD // thresholds.COPY_THREAD


def by_threads(run: Any, work: int, *arrays: Any) -> None:
    """Call ``run(*arrays)`` for arrays of three dims and one shape, cut along the longest."""
    shape = arrays[0].shape
    longest = max(range(3), key=shape.__getitem__)
    if longest == 0 or shape[0] >= _SIDE:
        parallel_rows(run, work, shape[0], *arrays)
        return
    parallel_slices(run, arrays, (longest,) * len(arrays), shape[longest], work)


class Layout(NamedTuple):
    """How an array lies, without its memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


@lru_cache(maxsize=1024)
def _pair_merged(out: Layout, array: Layout) -> Any:
    return merged(out, array, out)


def merged(out: Any, *arrays: Any) -> tuple[list[int], list[int], list[tuple[int, ...]]]:
    """The fewest dims that tell where all elements of arrays of one shape lie.

    Returns:
        The axes in the order in which they become these dims, the sizes of the dims, and for each
        array its steps along them. No sizes where neighbors in ``out`` lie apart.
    """
    axes = [k for k, n in enumerate(out.shape) if n != 1]
    axes.sort(key=lambda k: -out.strides[k])
    sizes: list[int] = []
    steps: list[tuple[int, ...]] = []
    for k in axes:
        n, step = out.shape[k], tuple([a.strides[k] for a in (out, *arrays)])
        if sizes and steps[-1] == tuple([s * n for s in step]):
            sizes[-1] *= n
            steps[-1] = step
        else:
            sizes.append(n)
            steps.append(step)
    if not steps or steps[-1][0] != out.itemsize:
        sizes = []
    ones = [k for k, n in enumerate(out.shape) if n == 1]
    return [*ones, *axes], sizes, [tuple([s[i + 1] for s in steps]) for i in range(len(arrays))]


def _planes(sizes: list[int], steps: tuple[int, ...], itemsize: int) -> list[int]:
    """The dims in the order (those of a loop in Python, planes, rows, columns)."""
    rest = sorted(range(len(sizes) - 1), key=sizes.__getitem__)
    if steps[-1] not in (itemsize, 0) and itemsize in steps:
        rows = steps.index(itemsize)
        rest.remove(rows)
        rest.append(rows)
    return [*rest, len(sizes) - 1]
