"""NumPy's elementwise functions, computed by several threads: a module of arrays for kernels.

A kernel takes the module of arrays that it computes with, ``xp``. Elementwise kernels of large
results get this one in place of NumPy: what it has is NumPy's, and for the ufuncs named in
``SHARED`` it hands parts of the arrays to threads.

- Where arrays lie close, or in rows, threads of compiled code call NumPy's own inner loops
  (``kernels/cpu/elementwise/ufunc_loops.py``), which costs microseconds. Where rows lie apart or an
  operand is repeated, arithmetic has loops of its own (``arithmetic_rows.py``), which call nothing.
- Else, from ``thresholds.NUMPY_THREADS`` elements on, threads of Python call the ufunc on slices.

The numbers are NumPy's, bit for bit, however many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from ..runtime import threads, thresholds
from .copy import Layout, copy, merged, rows_known
from .schedule import parallel_range, parallel_slices

_LINE = 1 << 12  # elements of a row where arrays have none of their own
_SHORT = 64  # elements of a row below which a call for each costs too much
_SHORTEST = 2  # the same of rows that no function is called for
_FEW = 16  # places along a dim that make chunks that are even enough
# Those with loops of our own for rows that lie apart, and their dtypes.
_ARITHMETIC = frozenset({"add", "subtract", "multiply", "divide"})
_ARITHMETIC_DTYPES = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
# Ufuncs whose loops with an operand that is repeated are slower than with an array of it.
_FILLED = frozenset({"maximum", "minimum", "fmax", "fmin"})
_TESTS = """
equal greater greater_equal less less_equal logical_and logical_not logical_or logical_xor not_equal
"""
_FLOATS = """
absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh cbrt ceil copysign cos cosh divide
exp exp2 expm1 fabs floor fmax fmin fmod heaviside hypot isfinite isinf isnan log log10 log1p log2
logaddexp logaddexp2 maximum minimum multiply negative nextafter power reciprocal remainder rint
sign signbit sin sinh sqrt square subtract tan tanh trunc
"""
_INTEGERS = """
absolute add bitwise_and bitwise_or bitwise_xor invert maximum minimum multiply negative sign square
subtract
"""
_OF_FLOATS = frozenset((_FLOATS + _TESTS).split())
_OF_INTEGERS = frozenset((_INTEGERS + _TESTS).split())
SHARED = _OF_FLOATS | _OF_INTEGERS
_NAMES = {"f": _OF_FLOATS, "i": _OF_INTEGERS, "u": _OF_INTEGERS, "b": _OF_INTEGERS}


def with_shared_ufuncs(kernel: Callable[..., None], shape: tuple[int, ...]) -> Any:
    """Return an elementwise kernel that computes by several threads; the given one if it is small.

    Args:
        kernel: Takes the module of arrays that it computes with.
        shape: Of its results; its inputs broadcast to that. A plan decides once, from this: small
            calls pay nothing.
    """
    if prod(shape) < thresholds.SHARED_UFUNC:
        return kernel

    def shared(xp: Any, *arrays: Any, **attributes: Any) -> None:
        kernel(_module if xp is np else xp, *arrays, **attributes)

    shared.__wrapped__ = kernel  # type: ignore[attr-defined]  # an estimate asks whose it is
    return shared


def is_numpy(xp: Any) -> bool:
    """Whether a module of arrays computes on the host."""
    return xp is np or xp is _module


class _Module:
    """NumPy, whose ``SHARED`` ufuncs take ``(*inputs, out)`` by several threads."""

    __name__ = "numpy"

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if isinstance(found, np.ufunc) and found.__name__ in SHARED:
            found = partial(_shared, found)
        setattr(self, name, found)
        return found

    def copyto(self, out: Any, source: Any, casting: Any = "same_kind", where: Any = True) -> None:
        """Copy; with a mask, on slices by threads of Python where the arrays are large."""
        if where is True and getattr(source, "dtype", None) == out.dtype:
            copy(out, source)
            return
        copied = partial(_copied, casting=casting)
        if out.size < thresholds.NUMPY_THREADS or not _by_slices(copied, (source, where), out):
            copied(source, where, out=out)


def _copied(source: Any, where: Any, out: Any, casting: Any) -> None:
    np.copyto(out, source, casting=casting, where=where)


_module = _Module()


def _shared(ufunc: Any, *inputs: Any, out: Any = None, **options: Any) -> Any:
    # As the ufunc takes it: the result may be the last positional argument.
    if out is None and len(inputs) > ufunc.nin:
        *inputs, out = inputs  # type: ignore[assignment]
    if options or not isinstance(out, np.ndarray) or out.size < thresholds.SHARED_UFUNC:
        return ufunc(*inputs, out=out, **options)
    ones = [_one(x) for x in inputs]
    if all(x is not None for x in ones):
        copy(out, ufunc(*ones, out=np.empty((1,) * out.ndim, out.dtype)))
        return out
    small = out.size < thresholds.NUMPY_THREADS
    if not _by_loops(ufunc, inputs, out) and (small or not _by_slices(ufunc, inputs, out)):
        ufunc(*inputs, out=out)
    return out


def _one(x: Any) -> Any:
    # The only element of an operand, as of a gradient that repeats a number; None if it has more.
    if not isinstance(x, np.ndarray):
        return x
    return None if any(x.strides) or not x.size else x[(slice(0, 1),) * x.ndim]


def _by_loops(ufunc: Any, inputs: Any, out: Any) -> bool:
    # Whether compiled code did it: the ufunc's own loop, called on rows, or a loop of arithmetic.
    name = ufunc.__name__
    fills = name in _FILLED
    arrays = [x for x in (*inputs, out) if isinstance(x, np.ndarray)]
    repeated = any(x.size < out.size for x in arrays)  # slow in NumPy
    apart = not all(x.flags.c_contiguous for x in arrays)
    work = 2 * out.size if apart else out.size
    several = threads.workers(work, out.size, thresholds.UFUNC_THREAD) > 1
    own = name in _ARITHMETIC and (apart or repeated) and out.dtype in _ARITHMETIC_DTYPES
    if not (fills or repeated or own or several):
        return False
    if not rows_known() or not out.flags.aligned:
        return False
    dtype = next((x.dtype for x in inputs if isinstance(x, np.ndarray) and x.ndim), None)
    if dtype is None or name not in _NAMES.get(dtype.kind, ()):
        return False
    arrays = [_operand(x, dtype, out) for x in inputs]
    if any(a is None for a in arrays):
        return False
    from ..cpu.elementwise.arithmetic_rows import LOOPS, OPERATIONS
    from ..cpu.elementwise.ufunc_loops import address, loop_of, walk

    arrays.append(out)
    own = own and dtype == out.dtype
    layouts = tuple([Layout(a.shape, a.strides, a.itemsize) for a in arrays])
    rows = _rows(layouts, _SHORTEST if own else _SHORT)
    loop: Any = (OPERATIONS[name],) if own else loop_of(ufunc, dtype, len(inputs), out.dtype)
    if loop is None or rows is None:
        return False
    blocks, outer, inner, n, count = rows
    for k, a in enumerate(arrays):
        if fills and a.ndim == 0 and n <= _LINE:
            arrays[k] = _line(dtype, a.tobytes())
            inner = (*inner[:k], a.itemsize, *inner[k + 1 :])
    at = [address(a) for a in arrays]
    words = tuple([*at, at[-1]][:3]), blocks, outer, inner
    run = LOOPS[dtype] if own else walk
    parallel_range(run, out.size, -(-out.size // n), *loop, *words, n, count, out.size)
    return True


def _operand(x: Any, dtype: Any, out: Any) -> Any:
    # An operand in the dtype; None if NumPy would convert it, or would have to copy it.
    if type(x) in (float, int, bool):  # not NumPy's numbers, which have a dtype of their own
        if dtype.kind != "f" and (dtype.kind == "b" or type(x) is float):
            return None
        try:
            return np.array(x, dtype)  # a number is of the other operand's dtype
        except OverflowError:
            return None
    if not isinstance(x, np.ndarray) or x.dtype != dtype or not x.flags.aligned:
        return None
    if x is out or not np.may_share_memory(x, out):
        return x
    return x if (x.ctypes.data, x.strides) == (out.ctypes.data, out.strides) else None


@lru_cache(maxsize=1024)
def _rows(layouts: tuple[Layout, ...], least: int) -> tuple[Any, Any, Any, int, int] | None:
    # Bytes from block to block of rows, from row to row and within rows, of three operands,
    # elements of a row, and rows of a block; None where there are no rows, or shorter ones than
    # `least`. The last operand is the result.
    out = layouts[-1]
    spread = [Layout(out.shape, _spread(a, out.shape), a.itemsize) for a in layouts]
    _, sizes, steps = merged(out, *spread)
    n = sizes[-1] if len(sizes) > 1 else _LINE
    if not 1 <= len(sizes) <= 3 or n < least:
        return None
    inner = [s[-1] for s in steps]
    if any(step not in (0, a.itemsize) for step, a in zip(inner, layouts, strict=True)):
        return None
    count = sizes[-2] if len(sizes) == 3 else 1 << 62
    outer = [s[-2] if len(sizes) > 1 else s[0] * n for s in steps]
    blocks = [s[0] if len(sizes) == 3 else 0 for s in steps]
    three = [(*found, found[-1])[:3] for found in (blocks, outer, inner)]
    return three[0], three[1], three[2], n, count


def _spread(a: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    # The strides of an array that is broadcast to a shape.
    more = len(shape) - len(a.shape)
    own = [0 if n == 1 else s for n, s in zip(a.shape, a.strides, strict=True)]
    return (*[0] * more, *own)


@lru_cache(maxsize=16)
def _line(dtype: Any, number: bytes) -> Any:
    # A row of one number.
    return np.full(_LINE, np.frombuffer(number, dtype)[0])


def _by_slices(function: Any, inputs: Any, out: Any) -> bool:
    # Whether threads of Python did it, each on slices of the arrays.
    longest = max(range(out.ndim), key=lambda d: out.shape[d])
    axis = next((d for d, n in enumerate(out.shape) if n >= _FEW), longest)
    n, after = out.shape[axis], out.ndim - axis
    axes = [_place(a, n, after) for a in (out, *inputs)]
    if threads.workers(out.size, n) <= 1:
        return False
    parallel_slices(lambda out, *some: function(*some, out=out), (out, *inputs), axes, n, out.size)
    return True


def _place(array: Any, n: int, after: int) -> int | None:
    # Which dim of an operand is the one that is cut; None if it is the same for all chunks.
    ndim = getattr(array, "ndim", 0)
    k = ndim - after
    return k if 0 <= k < ndim and array.shape[k] == n else None
