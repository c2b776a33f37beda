"""The array class of the device ``sim``: a NumPy array with the interface of ``cupy.ndarray``.

What it is made of stays inside: :func:`lower` takes the NumPy array out for NumPy to compute with,
and refuses the operands that CuPy refuses; :func:`lift` wraps what NumPy returned.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np


class SimArray:
    """An array of the device ``sim`` with the interface of ``cupy.ndarray``."""

    __slots__ = ("__weakref__", "_a")
    __array_priority__ = 100
    __array_ufunc__ = None  # NumPy's operators and functions leave it alone
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: Any) -> None:
        self._a = array

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to "
            "construct a NumPy array explicitly."
        )

    @property
    def flags(self) -> SimFlags:
        """Memory layout: C or Fortran order."""
        return SimFlags(self._a)

    @property
    def T(self) -> SimArray:
        """The transpose."""
        return SimArray(self._a.T)

    @property
    def mT(self) -> SimArray:
        """The transpose of the last two axes."""
        return SimArray(np.swapaxes(self._a, -1, -2))

    @property
    def real(self) -> SimArray:
        """The real part, a view."""
        return SimArray(self._a.real)

    @real.setter
    def real(self, value: Any) -> None:
        self._a.real = lower(value)

    @property
    def imag(self) -> SimArray:
        """The imaginary part, a view if complex."""
        return SimArray(self._a.imag)

    @imag.setter
    def imag(self, value: Any) -> None:
        self._a.imag = lower(value)

    @property
    def base(self) -> Any:
        """The array it is a view of."""
        return lift(self._a.base)

    def get(self) -> Any:
        """Copy to a NumPy array, the only way out of the device."""
        return self._a.copy()

    def set(self, array: Any) -> None:
        """Copy a NumPy array of the same shape and dtype in, the only way into the device."""
        if array.shape != self._a.shape or array.dtype != self._a.dtype:
            raise ValueError(f"set() takes {self._a.shape} {self._a.dtype}; got {array.shape}.")
        self._a[...] = array

    def item(self) -> Any:
        """Return the only element as a Python scalar."""
        return self._a.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists."""
        return self._a.tolist()

    def take(self, indices: Any, axis: Any = None, out: Any = None) -> Any:
        """Take elements by index along an axis, or of the flat array; indices wrap around."""
        with np.errstate(all="ignore"):
            return lift(np.take(self._a, lower(indices), axis=axis, out=lower(out), mode="wrap"))

    def __getitem__(self, index: Any) -> Any:
        return lift(self._a[wrapped(index, self._a.shape)])

    def __setitem__(self, index: Any, value: Any) -> None:
        with np.errstate(all="ignore"):
            self._a[wrapped(index, self._a.shape)] = lower(value)

    def __len__(self) -> int:
        return len(self._a)

    def __iter__(self) -> Any:
        return map(lift, iter(self._a))

    def __bool__(self) -> bool:
        return bool(self._a)

    def __int__(self) -> int:
        return int(self._a)

    def __float__(self) -> float:
        return float(self._a)

    def __complex__(self) -> complex:
        return complex(self._a)

    def __index__(self) -> int:
        return operator.index(self._a)

    def __repr__(self) -> str:
        return f"sim{self._a!r}"


class SimFlags:
    """The flags that CuPy's arrays have."""

    __slots__ = ("c_contiguous", "f_contiguous", "owndata")

    def __init__(self, array: Any) -> None:
        self.c_contiguous: bool = array.flags.c_contiguous
        self.f_contiguous: bool = array.flags.f_contiguous
        self.owndata: bool = array.flags.owndata


def _attribute(name: str) -> property:
    return property(lambda self: getattr(self._a, name))


def _method(name: str) -> Any:
    def method(self: SimArray, *args: Any, **kwargs: Any) -> Any:
        given = [lower(a) for a in args]
        with np.errstate(all="ignore"):
            return lift(getattr(self._a, name)(*given, **{k: lower(v) for k, v in kwargs.items()}))

    method.__name__ = name
    return method


def _operator(name: str) -> Any:
    def method(self: SimArray, *args: Any) -> Any:
        for a in args:
            if isinstance(a, list | tuple):
                raise TypeError(f"Unsupported type {type(a)}: CuPy's operators take no lists.")
        with np.errstate(all="ignore"):
            out = getattr(self._a, name)(*map(lower, args))
        return self if out is self._a else lift(out)

    return method


for _name in ("shape", "dtype", "strides", "ndim", "size", "nbytes", "itemsize"):
    setattr(SimArray, _name, _attribute(_name))
for _name in """all any argmax argmin argpartition argsort astype choose clip compress conj
    conjugate copy cumprod cumsum diagonal dot fill flatten max mean min nonzero partition prod
    ravel repeat reshape round searchsorted sort squeeze std sum swapaxes trace transpose var
    view""".split():  # noqa: SIM905
    setattr(SimArray, _name, _method(_name))
for _name in """add sub mul truediv floordiv mod pow matmul and or xor lshift rshift""".split():  # noqa: SIM905
    for _form in ("", "r", "i"):
        if _name + _form != "matmuli":
            setattr(SimArray, f"__{_form}{_name}__", _operator(f"__{_form}{_name}__"))
for _name in "neg pos abs invert eq ne lt le gt ge".split():  # noqa: SIM905
    setattr(SimArray, f"__{_name}__", _operator(f"__{_name}__"))


def lower(x: Any, deep: bool = False) -> Any:
    """Unwrap to a NumPy array or scalar, refusing what CuPy refuses.

    ``deep``: lists and tuples of arrays are arguments here, as in ``concatenate``.
    """
    if isinstance(x, SimArray):
        return x._a
    if isinstance(x, np.ndarray):
        raise TypeError(
            "Unsupported type <class 'numpy.ndarray'>: a kernel on sim (as on cuda) takes arrays "
            "of its device and Python scalars. Move it with xp.asarray() or tensor.to()."
        )
    if isinstance(x, list | tuple):
        if deep:
            return type(x)(lower(v, deep) for v in x)
        if any(isinstance(v, SimArray | np.ndarray) for v in x):
            raise TypeError(f"Unsupported type {type(x)}: CuPy takes no list of arrays here.")
    return x


def lift(x: Any) -> Any:
    """Wrap a NumPy array; a NumPy scalar becomes a 0-d array, as a reduction's result is."""
    if isinstance(x, np.ndarray):
        return SimArray(x)
    if isinstance(x, np.generic):
        return SimArray(np.asarray(x))
    if isinstance(x, tuple | list):
        return type(x)(map(lift, x)) if type(x) in (tuple, list) else tuple(map(lift, x))
    return x


def wrapped(index: Any, shape: tuple[int, ...]) -> Any:
    """Unwrap arrays in an index, integer indices taken modulo the size of their axis."""
    parts = index if isinstance(index, tuple) else (index,)
    parts = tuple(np.asarray(p) if isinstance(p, list) else lower(p) for p in parts)
    used = sum(
        p.ndim if isinstance(p, np.ndarray) and p.dtype == bool else p is not None
        for p in parts
        if p is not Ellipsis
    )
    axis = 0
    out: list[Any] = []
    for p in parts:
        if p is Ellipsis:
            axis += len(shape) - used
        elif isinstance(p, np.ndarray) and p.dtype == bool:
            axis += p.ndim
        elif p is not None:
            if isinstance(p, np.ndarray) and axis < len(shape) and shape[axis]:
                p = p % shape[axis]
            axis += 1
        out.append(p)
    return tuple(out) if isinstance(index, tuple) else out[0]
