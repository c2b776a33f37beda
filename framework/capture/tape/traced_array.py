"""Arrays that note what a kernel does with them through NumPy, and compute nothing.

A kernel gets its arrays as :class:`TracedArray`. Each ufunc that writes to one, each copy and each
fill is noted. Whatever else could tell the kernel what numbers the arrays hold, or would allocate,
raises :class:`NotTraced`: such a kernel call stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...kernels.cpu.compiler.kernel import Packed

_VIEWS = frozenset(
    (
        np.reshape,
        np.ravel,
        np.swapaxes,
        np.moveaxis,
        np.transpose,
        np.expand_dims,
        np.squeeze,
        np.broadcast_to,
        np.may_share_memory,
        np.shape,
        np.ndim,
        np.size,
    )
)
_REDUCTIONS = frozenset((np.sum, np.max, np.amax, np.min, np.amin, np.prod))
_OWN = """
calls _reduce _copy __compiled_kernel__ __shared_kernel__ __class__ __array_interface__
__array_ufunc__ __array_function__ __array_finalize__ __array_priority__
"""
_PLAIN = """
shape strides dtype ndim size itemsize nbytes flags base T mT real imag reshape ravel swapaxes
transpose squeeze view sum max min prod fill
"""
_ATTRIBUTES = frozenset((_OWN + _PLAIN).split())


class NotTraced(Exception):
    """A kernel does something that is not noted."""


class UfuncCall(NamedTuple):
    """``ufunc(*inputs, out=out)``."""

    ufunc: Any
    inputs: tuple[Any, ...]
    out: Any


class Reduction(NamedTuple):
    """``ufunc.reduce(array, axes, out=out, keepdims=True)``: ``out`` has all dims."""

    ufunc: Any
    array: Any
    axes: tuple[int, ...]
    out: Any


class Copy(NamedTuple):
    """``out[...] = source``, which broadcasts; a number fills. With a mask, where it is true."""

    out: Any
    source: Any
    mask: Any = None


class KernelCall(NamedTuple):
    """A call of a compiled kernel.

    Attributes:
        call: By its address.
        asks: It returns a bool, on which Python decides what comes next. The loops are those that
            follow False.
    """

    call: Packed
    asks: bool


class TracedArray(np.ndarray):
    """An array whose uses are noted in ``calls``, a list that its views share."""

    calls: list[Any]

    def __array_finalize__(self, of: Any) -> None:
        self.calls = [] if of is None else getattr(of, "calls", [])

    def __getattribute__(self, name: str) -> Any:
        if name not in _ATTRIBUTES:
            raise NotTraced(name)
        return super().__getattribute__(name)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        """Note a call of a ufunc that writes to an array."""
        if out is None or not isinstance(out[0], np.ndarray) or len(out) > 1:
            raise NotTraced(f"{ufunc.__name__} without out")
        if method == "reduce":
            return self._reduce(ufunc, *inputs, out=out[0], **options)
        if method != "__call__" or not _plain(options, out[0]):
            raise NotTraced(f"{ufunc.__name__}.{method}")
        self.calls.append(UfuncCall(ufunc, inputs, out[0]))
        return out[0]

    def _reduce(
        self,
        ufunc: Any,
        array: Any,
        axis: Any = 0,
        dtype: Any = None,
        *,
        out: Any,
        keepdims: bool = False,
        **options: Any,
    ) -> Any:
        given = [options.pop("initial", np._NoValue), options.pop("where", True)]
        if given != [np._NoValue, True] or options or dtype not in (None, out.dtype):
            raise NotTraced(f"{ufunc.__name__}.reduce")
        if axis is None:
            axis = tuple(range(array.ndim))
        axes = tuple(sorted(d % array.ndim for d in (axis if isinstance(axis, tuple) else (axis,))))
        whole = out if keepdims else np.expand_dims(out, axes)
        self.calls.append(Reduction(ufunc, array, axes, whole))
        return out

    def __array_function__(self, function: Any, kinds: Any, args: Any, options: Any) -> Any:
        """Take views, note copies and reductions."""
        if function is np.copyto:
            return self._copy(*args, **options)
        if function in _VIEWS or function in _REDUCTIONS:
            return function._implementation(*args, **options)
        raise NotTraced(function.__name__)

    def __compiled_kernel__(self, kernel: Any, args: tuple[Any, ...]) -> Any:
        """Note a call of a compiled kernel that returns nothing, or False."""
        plain = tuple(a.view(np.ndarray) if isinstance(a, TracedArray) else a for a in args)
        found = kernel.packed(plain)
        if found is None or found.result:
            raise NotTraced(kernel.__name__)
        asks = found.result is not None
        if asks and any(not (isinstance(c, KernelCall) and c.asks) for c in self.calls):
            raise NotTraced("a question that comes after something was written")
        self.calls.append(KernelCall(found, asks))
        return found.result

    def __shared_kernel__(self, kernel: Any) -> Any:
        """Refuse: several threads are to run a kernel, as many as there are then."""
        raise NotTraced(kernel.__name__)

    def _copy(self, out: Any, source: Any, casting: Any = None, where: Any = True) -> None:
        self.calls.append(Copy(out, source, None if where is True else where))

    def __getitem__(self, key: Any) -> Any:
        """Take a view."""
        parts = key if isinstance(key, tuple) else (key,)
        if not all(p is None or p is Ellipsis or type(p) in (int, slice) for p in parts):
            raise NotTraced("an index")
        found = super().__getitem__(key)
        if not isinstance(found, TracedArray):
            raise NotTraced("a number")
        return found

    def __iter__(self) -> Iterator[Any]:
        """Take views of the first dim; the elements of one dim are numbers."""
        if self.ndim < 2:
            raise NotTraced("numbers of an array")
        return iter([self[k] for k in range(len(self))])

    def __setitem__(self, key: Any, value: Any) -> None:
        """Note a copy, or a fill."""
        parts = key if isinstance(key, tuple) else (key,)
        out = self[key] if Ellipsis in [p for p in parts if p is Ellipsis] else self[(*parts, ...)]
        if value is not out:
            self.calls.append(Copy(out, value))

    def fill(self, value: Any) -> None:
        """Note it."""
        self.calls.append(Copy(self, value))

    def _refuse(self, *_: Any) -> Any:
        raise NotTraced("numbers of an array")

    __bool__ = __int__ = __float__ = __complex__ = __index__ = _refuse
    __contains__ = __array__ = __reduce__ = __copy__ = __deepcopy__ = _refuse  # type: ignore[assignment]


def _plain(options: dict[str, Any], out: Any) -> bool:
    # Whether options change nothing, where operands are of one dtype.
    for name, value in options.items():
        if name not in ("casting", "subok", "dtype", "where"):
            return False
        if (name == "where" and value is not True) or (name == "dtype" and value != out.dtype):
            return False
    return True


def in_place_of(calls: list[Any], array: np.ndarray) -> TracedArray:
    """Return an array over the same memory whose uses are noted in ``calls``."""
    found = array.view(TracedArray)
    found.calls = calls
    return found
