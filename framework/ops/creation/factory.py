"""Helpers of tensor factories: argument parsing, allocation, filling."""

from __future__ import annotations

import operator
from math import inf
from typing import Any

import numpy as np

from ... import dtypes
from ...autograd.view_history import check_writable
from ...device import device as as_device
from ...device import get_default_device
from ...devices import backend, on_device
from ...dtypes import dtype as dtype_class
from ...kernels.common.wrapping import fitting
from ...memory.ledger import TEMPORARY
from ...memory.short_traceback import shorten
from ...memory_format import strided
from ...modes import local, run_kernel
from ...spec import Spec
from ...tensor import Tensor, wrap
from ..limited_dtypes import refuse


def new(spec: Spec, role: int = TEMPORARY) -> Tensor:
    """Allocate an uninitialized tensor of a spec."""
    try:
        storage, array = backend(spec.device).empty(spec, role)
    except MemoryError as error:
        shorten(error)
        raise
    return made(array, spec, storage)


def made(array: Any, spec: Spec, storage: Any) -> Tensor:
    """Finish a tensor that no op computed; under ``inference_mode`` it is an inference tensor."""
    t = wrap(array, spec, storage)
    if local.state.inference:
        t._extra = {"inference": True}
    return t


def shape_of(name: str, size: Any) -> tuple[int, ...]:
    """Parse the shape of ``f(2, 3)``, ``f((2, 3))`` or ``f([2, 3])``.

    Raises:
        TypeError: A size is no integer.
        RuntimeError: A size is negative.
    """
    if len(size) == 1 and isinstance(size[0], list | tuple):
        size = size[0]
    try:
        shape = tuple(map(operator.index, size))
    except TypeError:
        listed = ", ".join(type(n).__name__ for n in size)
        raise TypeError(f"{name}(): argument 'size' must be tuple of ints, not {listed}.") from None
    if any(n < 0 for n in shape):
        raise RuntimeError(
            f"{name}: Trying to create tensor with negative dimension {min(shape)}: {list(shape)}."
        )
    return shape


def size_of(name: str, size: tuple[Any, ...], named: dict[str, Any]) -> tuple[int, ...]:
    """Parse the shape of a factory that also accepts ``size=``.

    Raises:
        TypeError: No size, or another name.
    """
    keyword = named.pop("size", None)
    if named:
        raise TypeError(f"{name}() got an unexpected keyword argument '{next(iter(named))}'.")
    if keyword is not None:
        size = (tuple(keyword),)
    elif not size:
        raise TypeError(f'{name}() missing 1 required positional arguments: "size".')
    return shape_of(name, size)


def bounds_of(name: str, last: str, start: Any, end: Any) -> tuple[Any, Any]:
    """Parse the bounds of ``f(end)``, ``f(start, end)`` or ``f(end=...)``.

    Raises:
        TypeError: None is given.
    """
    if end is not None:
        return (0 if start is None else start), end
    if start is None:
        raise TypeError(f'{name}() missing 1 required positional argument: "{last}". Pass it.')
    return 0, start


def dtype_of(name: str, dtype: Any) -> dtype_class:
    """Parse a dtype argument: a lowtide dtype, or a Python or NumPy type.

    Raises:
        TypeError: A string, which PyTorch does not take either, or an unknown type.
    """
    if isinstance(dtype, dtype_class):
        return dtype
    if isinstance(dtype, str):
        raise TypeError(f"{name}(): argument 'dtype' must be lowtide.dtype, not str.")
    return dtypes.as_dtype(dtype)


def need_strided(name: str, layout: Any) -> None:
    """Raise an error for a layout that a factory cannot fill.

    Raises:
        NotImplementedError: It is not ``strided``.
    """
    if layout is not None and layout is not strided:
        raise NotImplementedError(
            f"{name} makes strided tensors; got layout {layout}. For a sparse one without elements "
            "use sparse_coo_tensor(size=...), else .to_sparse()."
        )


def place_of(device: Any) -> as_device:
    """Parse a device argument; None is the default device."""
    return get_default_device() if device is None else as_device(device)


_COMPUTED = (
    "arange",
    "eye",
    "linspace",
    "logspace",
    "rand",
    "randint",
    "randn",
    "randperm",
    "range",
)


def check_made(name: str, dtype: dtype_class) -> None:
    """Raise an error for a factory that computes what a type for storage does not have.

    Raises:
        NotImplementedError: It does.
    """
    can = "randint" if dtype.limited == "unsigned" else "eye"
    if dtype.limited and name in _COMPUTED and name != can:
        refuse(name, dtype)


def target(
    name: str, shape: tuple[int, ...], dtype: Any, default: dtype_class, device: Any, out: Any
) -> Tensor:
    """Return the tensor to fill: a new one, or ``out``, resized and marked as written."""
    if out is None:
        wanted = default if dtype is None else dtype_of(name, dtype)
        check_made(name, wanted)
        return new(Spec(shape, wanted, place_of(device)))
    check_made(name, out.dtype)
    if dtype is not None and dtype_of(name, dtype) is not out.dtype:
        raise RuntimeError(
            f"{name}: dtype {dtype_of(name, dtype)} does not match dtype of out parameter "
            f"({out.dtype}). Leave dtype away."
        )
    check_writable(out, name)
    if tuple(out.shape) != shape:
        out.resize_(shape)
    out._storage.version += 1
    return out


def put(t: Tensor, value: Any) -> Tensor:
    """Fill a tensor with one number, outside of autograd.

    Raises:
        RuntimeError: The dtype cannot hold it.
    """
    if backend(t.device).xp is not None and (type(value) is not int or value not in (0, 1)):
        value = fitted(value, t.dtype)  # 0 and 1 every dtype holds
    return written(t, fill, value)


def written(t: Tensor, f: Any, *args: Any) -> Tensor:
    """Write values of a tensor by ``f(array, *args)``, recorded by checkpointed regions.

    A region of activation checkpointing notes it, and can have them written again.
    """
    be = backend(t.device)
    if be.xp is not None:
        run_kernel(on_device(be, f), t._array, *args)
    recorder = local.state.recorder
    if recorder is not None and t._viewed is None and t._storage.version == 0:
        recorder.filled(f.__name__.strip("_"), t, f, args)
    return t


def fill(array: Any, value: Any) -> None:
    """Fill an array with one number."""
    array.fill(value)


def leave_uninitialized(array: Any) -> None:
    """Leave an array uninitialized, as ``empty`` does."""


def fitted(value: Any, dtype: dtype_class) -> Any:
    """Convert a Python number to an element of a dtype: bool, int, float or complex.

    Raises:
        TypeError: It is no number.
        RuntimeError: The dtype cannot hold it.
    """
    if isinstance(value, str) or not isinstance(value, NUMBERS):
        raise TypeError(f"argument 'fill_value' must be Number, not {type(value).__name__}.")
    category = dtype.category
    try:
        if category == dtypes.BOOL:
            return bool(value)
        if category == dtypes.INT:
            return fitting(int(value.real if isinstance(value, complex) else value), dtype.np)
        if category == dtypes.FLOAT:
            value = float(value)  # type: ignore[arg-type]
            infinite = abs(value) == inf and dtype is not dtypes.float8_e4m3fn  # it has none
            if abs(value) > _LARGEST.get(dtype, inf) and not infinite:
                raise OverflowError
        return value
    except (TypeError, ValueError, OverflowError):
        raise RuntimeError(
            f"value cannot be converted to type {dtype.name} without overflow; got {value}."
        ) from None


_LARGEST = {
    d: dtypes.finfo(d).max
    for d in dtypes.ALL
    if d.category == dtypes.FLOAT and d is not dtypes.float64
}
NUMBERS = (bool, int, float, complex)  # Python's, by category


def scalar(value: Any) -> Any:
    """Convert a number, a NumPy scalar or a one-element tensor to a Python number."""
    if isinstance(value, Tensor | np.generic):
        return value.item()
    return value


def natural_dtype(*values: Any) -> dtype_class:
    """Return the common dtype of Python numbers."""
    kinds = [[k for k, kind in enumerate(NUMBERS) if isinstance(v, kind)] for v in values]
    category = max(found[0] if found else dtypes.FLOAT for found in kinds)
    default = dtypes.get_default_dtype()
    return (dtypes.bool_, dtypes.int64, default, default.to_complex())[category]


def like(
    name: str, input: Any, dtype: Any, device: Any, requires_grad: bool = False, layout: Any = None
) -> Tensor:
    """Allocate a tensor with another's shape, and its dtype and device unless given."""
    if not isinstance(input, Tensor):
        raise TypeError(
            f"{name}(): argument 'input' (position 1) must be Tensor, not {type(input).__name__}."
        )
    wanted = input.dtype if dtype is None else dtype_of(name, dtype)
    need_strided(name, layout)
    if input.layout is not strided and layout is not strided:
        raise NotImplementedError(
            f"{name} would fill the zeros of a {input.layout.name} tensor. Pass "
            "layout=lowtide.strided for a dense result."
        )
    t = new(Spec(input.shape, wanted, input.device if device is None else as_device(device)))
    return t.requires_grad_() if requires_grad else t
