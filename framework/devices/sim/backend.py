"""The backend of ``sim``, a simulated GPU.

Its arrays lie in host memory and NumPy computes, but nothing passes that CuPy would refuse. A
:class:`SimArray` does not turn into a NumPy array by itself, functions refuse NumPy's arrays and
lists of numbers, reductions return 0-d arrays and not scalars, and only functions and arguments
that CuPy has exist. An index array out of range wraps around silently, as it does on a GPU: so an
op that forgot to check is found by comparing with the CPU. It has an arena and a ledger of its
own. ``tests/devices/test_twins.py`` runs every op here and on the CPU.

What exists was taken from CuPy 14.2 and is listed in ``functions.py``. Where CuPy exists but
fails (N-d bfloat16 products, ``at`` for element types without atomics), so does this.

Not simulated: streams, and that of several values assigned to one element any may win.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..host import HostBackend
from .array import SimArray, lift, lower, wrapped
from .functions import (
    ATOMIC,
    CONSTANTS,
    FFT,
    FUNCTIONS,
    LINALG,
    RENAMED,
    SCATTERS,
    SEQUENCES,
    SPECIAL,
    UFUNCS,
)


class SimBackend(HostBackend):
    """The backend of the simulated GPU, on the host's allocator."""

    def __init__(self, largest: int) -> None:
        super().__init__("sim", largest, computes=True)
        self.xp = SIM
        self.kernel_key = "sim"  # no fast kernel: the plain ones must do

    def empty(self, spec: Any, role: int = 0) -> tuple[Any, Any]:
        """Allocate an uninitialized contiguous array of ``spec`` from the pool."""
        storage, array = super().empty(spec, role)
        return storage, SimArray(array)

    def strided_view(self, storage: Any, spec: Any, place: Any) -> Any:
        """Return an array on bytes of a storage."""
        return SimArray(super().strided_view(storage, spec, place))

    def from_host(self, array: Any, spec: Any, role: int) -> tuple[Any, Any]:
        """Copy a NumPy array to the device."""
        storage, out = self.empty(spec, role)
        np.copyto(out._a, array, casting="unsafe")
        return storage, out

    def to_host(self, array: Any) -> Any:
        """Copy to a NumPy array."""
        return array.get()

    def copy(self, out: Any, array: Any) -> None:
        """Copy within the device, converting the dtype."""
        with np.errstate(all="ignore"):
            np.copyto(lower(out), lower(array), casting="unsafe")

    def address(self, array: Any) -> int:
        """Address of the first element."""
        return int(array._a.__array_interface__["data"][0])


def sim_backend() -> SimBackend:
    """Create the simulated backend, with as much memory as the machine's RAM."""
    import os

    return SimBackend(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


class SimModule:
    """The functions of one CuPy module, with argument checks."""

    def __init__(self, module: Any, functions: dict[str, Any], **extra: Any) -> None:
        self._module = module
        self._functions = functions
        self.__dict__.update(extra)

    def __getattr__(self, name: str) -> Any:
        allowed = self._functions.get(name)
        if allowed is None:
            raise AttributeError(
                f"module 'cupy' has no attribute {name!r} (or lowtide's stand-in for it on sim "
                "does not know it). Use a function that NumPy and CuPy both have, or declare a "
                "kernel for the cpu beside the plain one."
            )
        made = _checked(name, allowed, self._module)
        self.__dict__[name] = made
        return made


@functools.cache
def special() -> SimModule:
    """Return ``cupyx.scipy.special``'s share of SciPy's special functions."""
    from importlib import import_module

    return SimModule(import_module("scipy.special"), SPECIAL)


def _array(obj: Any, dtype: Any = None, copy: Any = True, order: str = "K", ndmin: int = 0) -> Any:
    """Copy a NumPy array, a list or a scalar to the device."""
    source = obj._a if isinstance(obj, SimArray) else obj
    return SimArray(np.array(source, dtype=dtype, order=order, ndmin=ndmin))  # type: ignore[call-overload]


def _asarray(a: Any, dtype: Any = None, order: str = "K") -> Any:
    """Return an array of the device unchanged, else copy to the device."""
    if isinstance(a, SimArray) and (dtype is None or a._a.dtype == dtype):
        return a
    return _array(a, dtype=dtype, order=order)


def _asnumpy(a: Any) -> Any:
    """Copy to a NumPy array."""
    return a.get() if isinstance(a, SimArray) else np.asarray(a)


def _as_strided(x: Any, shape: Any = None, strides: Any = None) -> Any:
    """A view with other shape and strides."""
    return SimArray(np.lib.stride_tricks.as_strided(x._a, shape, strides))


def _sliding_window_view(x: Any, window_shape: Any, axis: Any = None, **_: Any) -> Any:
    """A view of all windows."""
    return SimArray(np.lib.stride_tricks.sliding_window_view(x._a, window_shape, axis))


def _checked(name: str, allowed: frozenset[str], module: Any) -> Any:
    plain = getattr(module, name)
    deep = name in SEQUENCES
    open_ended = "**kwargs" in allowed

    @functools.wraps(plain, updated=())
    def function(*args: Any, **kwargs: Any) -> Any:
        unknown = set(kwargs) - allowed
        if unknown and not open_ended:
            raise TypeError(
                f"{name}() got an unexpected keyword argument {sorted(unknown)[0]!r}: CuPy's "
                f"takes {', '.join(sorted(allowed))}."
            )
        given = [lower(a, deep) for a in args]
        named = {RENAMED.get((name, k), k): lower(v, deep) for k, v in kwargs.items()}
        if name == "take":
            named["mode"] = "wrap"
        if name in ("min", "amin") and getattr(named.get("out"), "size", 1) == 0:
            raise TypeError(f"{name}: CuPy takes an empty `out` for a dtype.")
        if name in ("matmul", "einsum", "tensordot"):
            _refuse_batched_bfloat16(name, given)
        _refuse_types(name, given)
        with np.errstate(all="ignore"):  # a GPU warns of nothing
            return lift(plain(*given, **named))

    return function


def _refuse_batched_bfloat16(name: str, given: list[Any]) -> None:
    arrays = [a for a in given if isinstance(a, np.ndarray)]
    if any(a.dtype.name == "bfloat16" and a.ndim > 2 for a in arrays):
        raise TypeError(f"{name}: CuPy has no batched product of bfloat16. Compute in float32.")


_SORTING = frozenset(
    ["argpartition", "argsort", "lexsort", "median", "partition", "quantile", "sort", "unique"]
)
_FLOAT8 = frozenset(["float8_e4m3fn", "float8_e5m2"])


def _refuse_types(name: str, given: Any) -> None:
    names = {a.dtype.name for a in given if isinstance(a, np.ndarray)}
    if name in _SORTING and "bfloat16" in names:
        raise NotImplementedError(f"{name}: Sorting arrays with dtype 'bfloat16' is not supported")
    found = names & _FLOAT8
    if found and name not in _VIEWING:
        raise ValueError(f"{name}: Unsupported dtype {found.pop()}")


# What makes views, or copies bytes: it takes every dtype.
_VIEWING = frozenset(
    ["ascontiguousarray", "broadcast_to", "copyto", "empty_like", "expand_dims", "moveaxis",
     "ravel", "reshape", "rollaxis", "squeeze", "swapaxes", "transpose"]
)  # fmt: skip


class SimUfunc:
    """A universal function with only those methods that CuPy has."""

    def __init__(self, name: str) -> None:
        self._plain = getattr(np, name)
        self.name = self.__name__ = name
        self.nin, self.nout, self.nargs = self._plain.nin, self._plain.nout, self._plain.nargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute elementwise; takes ``out``, ``where``, ``dtype`` and ``casting``."""
        unknown = set(kwargs) - {"out", "where", "dtype", "casting"}
        if unknown:
            raise TypeError(f"{self.name}() got an unexpected keyword argument {unknown.pop()!r}.")
        for a in args:
            if isinstance(a, list | tuple):
                raise TypeError(f"Unsupported type {type(a)}: CuPy's ufuncs take no lists.")
        if not any(isinstance(a, SimArray) for a in args):
            raise TypeError(f"{self.name} on sim needs an array of the device among its inputs.")
        named = {k: lower(v, deep=k == "out") for k, v in kwargs.items()}
        given = [lower(a) for a in args]
        _refuse_types(self.name, given)
        with np.errstate(all="ignore"):
            return lift(self._plain(*given, **named))

    def _only(self, method: str, *names: str) -> None:
        if self.name not in names:
            raise NotImplementedError(f"`cupy_{self.name}.{method}` is not supported yet")

    def reduce(
        self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        """Reduce by addition or multiplication."""
        self._only("reduce", "add", "multiply")
        return lift(self._plain.reduce(lower(array), axis, dtype, lower(out), keepdims))

    def accumulate(self, array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        """Accumulate by addition or multiplication."""
        self._only("accumulate", "add", "multiply")
        return lift(self._plain.accumulate(lower(array), axis, dtype, lower(out)))

    def reduceat(
        self, array: Any, indices: Any, axis: int = 0, dtype: Any = None, out: Any = None
    ) -> Any:
        """Reduce slices by addition."""
        self._only("reduceat", "add")
        return lift(self._plain.reduceat(lower(array), lower(indices), axis, dtype, lower(out)))

    def outer(self, a: Any, b: Any, **kwargs: Any) -> Any:
        """Apply to all pairs."""
        return lift(self._plain.outer(lower(a), lower(b), **kwargs))

    def at(self, a: Any, indices: Any, b: Any = None) -> None:
        """Update elements in place at indices, atomically."""
        self._only("at", *SCATTERS)
        if a.dtype.char not in ATOMIC:
            raise TypeError(f"`{self.name}.at` supports no {a.dtype}: CuPy has no atomics for it.")
        inside = wrapped(indices, a.shape)
        with np.errstate(all="ignore"):
            self._plain.at(lower(a), inside, lower(b))


_strides = SimModule(np, {}, as_strided=_as_strided, sliding_window_view=_sliding_window_view)
SIM: Any = SimModule(
    np,
    FUNCTIONS,
    **{name: SimUfunc(name) for name in UFUNCS if hasattr(np, name)},
    **{name: getattr(np, name) for name in CONSTANTS if hasattr(np, name)},
    __name__="sim",
    ndarray=SimArray,
    array=_array,
    asarray=_asarray,
    asnumpy=_asnumpy,
    linalg=SimModule(np.linalg, LINALG, LinAlgError=np.linalg.LinAlgError),
    fft=SimModule(np.fft, FFT),
    lib=SimModule(np, {}, stride_tricks=_strides),
)
