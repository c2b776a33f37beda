"""Making tensors: from data, filled, counted, like others.

A factory decides shape, dtype and device, takes memory from the device's pool, and fills it with
the device's own array module. Large ramps are written a chunk at a time in float64, so that their
temporaries stay small and the result is the correctly rounded one in any dtype.
"""

from __future__ import annotations

import math
import operator
import warnings
from typing import Any

import numpy as np

from ..autograd.views import check_writable
from ..devices import backend
from ..devices.device import device as as_device
from ..devices.device import get_default_device
from ..dtypes import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    as_dtype,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    get_default_dtype,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    uint8,
)
from ..dtypes import dtype as dtype_class
from ..memory.ledger import INPUT, TEMPORARY
from ..spec import Size, Spec
from ..tensor import Tensor, wrap
from .registry import FUNCTIONS, broadcast_shapes, function, op

_CHUNK = 4096  # elements of a ramp at a time on the host: 32 KiB in float64
_DEVICE_CHUNK = 1 << 20


def new(spec: Spec, role: int = TEMPORARY) -> Tensor:
    """An uninitialized tensor of a spec."""
    storage, array = backend(spec.device).empty(spec, role)
    return wrap(array, spec, storage)


# What the arguments of factories mean


def shape_of(name: str, size: Any) -> tuple[int, ...]:
    """The shape that ``f(2, 3)``, ``f((2, 3))`` or ``f([2, 3])`` asks for.

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
        bad = min(shape)
        raise RuntimeError(
            f"{name}: Trying to create tensor with negative dimension {bad}: {list(shape)}."
        )
    return shape


def _varargs(name: str, size: Any, keyword: Any) -> tuple[int, ...]:
    if keyword is not None:
        size = (tuple(keyword),)
    elif not size:
        raise TypeError(f"{name}() missing 1 required positional arguments: \"size\".")
    return shape_of(name, size)


def dtype_of(name: str, dtype: Any) -> dtype_class:
    """The dtype an argument names: a lowtide dtype, or a Python or NumPy type.

    Raises:
        TypeError: A string, which PyTorch does not take either, or an unknown type.
    """
    if isinstance(dtype, dtype_class):
        return dtype
    if isinstance(dtype, str):
        raise TypeError(f"{name}(): argument 'dtype' must be lowtide.dtype, not str.")
    return as_dtype(dtype)


def place_of(device: Any) -> as_device:
    """The device an argument names; None is the default device."""
    return get_default_device() if device is None else as_device(device)


def target(
    name: str, shape: tuple[int, ...], dtype: Any, default: dtype_class, device: Any, out: Any
) -> Tensor:
    """The tensor to fill: a new one, or ``out``, resized and counted as written."""
    if out is None:
        wanted = default if dtype is None else dtype_of(name, dtype)
        return new(Spec(shape, wanted, place_of(device)))
    if dtype is not None and dtype_of(name, dtype) is not out.dtype:
        raise RuntimeError(
            f"{name}: dtype {dtype_of(name, dtype)} does not match dtype of out parameter "
            f"({out.dtype}). Leave dtype away."
        )
    check_writable(out, name)
    if tuple(out.shape) != shape:
        out.resize_(shape)
    out._storage.version += 1
    return out  # type: ignore[no-any-return]


def put(t: Tensor, value: Any) -> Tensor:
    """Write one number everywhere, outside autograd.

    Raises:
        RuntimeError: The dtype cannot hold it.
    """
    be = backend(t.device)
    if be.xp is None:
        return t
    category = t.dtype.category
    try:
        if category == BOOL:
            value = bool(value)
        elif category == INT:
            value = int(value.real if isinstance(value, complex_type) else value)
        elif category == FLOAT:
            value = float(value)
    except (TypeError, ValueError, OverflowError):
        raise RuntimeError(
            f"value cannot be converted to type {t.dtype.name} without overflow; got {value}."
        ) from None
    try:
        with np.errstate(all="ignore"):
            t._array.fill(value)
    except OverflowError:
        raise RuntimeError(
            f"value cannot be converted to type {t.dtype.name} without overflow; got {value}."
        ) from None
    return t


complex_type = complex  # the builtin: a factory below has its name
_number = (bool, int, float, complex)


def scalar(value: Any) -> Any:
    """A Python number from a number, a NumPy scalar, or a tensor of one element."""
    if isinstance(value, Tensor | np.generic):
        return value.item()
    return value


# From data


@function()
def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Copy data into a new leaf tensor.

    Args:
        data: A number, nested lists or tuples of numbers, a NumPy array, or a tensor.
        dtype: Of the result; by default that of an array or tensor, and for Python numbers bool,
            int64, the default float, or its complex type.
        device: Of the result; by default the default device.
        requires_grad: Whether the result requires a gradient.
        pin_memory: Accepted; all host memory serves as well.

    Raises:
        ValueError: Lists of unequal length, or an integer beyond 64 bits.
        RuntimeError: No dtype fits, or the dtype asked for cannot hold a value.

    Example:
        >>> tensor([[1, 2], [3, 4]]).dtype, tensor([1.0]).dtype
        (lowtide.int64, lowtide.float32)
    """
    out = _copied(data, None if dtype is None else dtype_of("tensor", dtype), place_of(device))
    if requires_grad:
        out.requires_grad = True
    return out


def _copied(data: Any, wanted: dtype_class | None, where: as_device) -> Tensor:
    array, natural = _host_array(data)
    typed = isinstance(data, Tensor | np.ndarray | np.generic)
    if wanted is None:
        wanted = natural
    elif not typed:
        _check_range(array, wanted)
    if array.dtype.kind == "c" and wanted.category != COMPLEX:
        array = array.real
    spec = Spec(array.shape, wanted, where)
    with np.errstate(all="ignore"):
        storage, out = backend(where).from_host(array, spec, INPUT)
    return wrap(out, spec, storage)


def _host_array(data: Any) -> tuple[Any, dtype_class]:
    # A NumPy array of the data, and the dtype that the data has by itself.
    if isinstance(data, Tensor):
        data._need_values("tensor")
        return backend(data.device).to_host(data._array), data.dtype
    if isinstance(data, np.ndarray | np.generic):
        array = np.asarray(data)
        return array, as_dtype(array.dtype)
    if isinstance(data, str | bytes):
        raise TypeError(f"new(): invalid data type '{type(data).__name__}'.")
    leaf, depth = _first_leaf(data)
    declared: dtype_class | None = None
    if isinstance(leaf, Tensor):
        found: list[dtype_class] = []
        data = _without_tensors(data, found)
        declared = found[0]
        for d in found:
            declared = promote_types(declared, d)
    try:
        array = np.asarray(data)
    except ValueError:
        _check_regular(data)
        raise
    except OverflowError:
        raise ValueError("tensor: an integer is beyond 64 bits (Overflow when unpacking).") from None
    kind = array.dtype.kind
    if kind in "biufc" or declared is not None or hasattr(leaf, "dtype"):
        if declared is not None:
            return array, declared
        if hasattr(leaf, "dtype") or hasattr(data, "__array__"):
            return array, as_dtype(array.dtype)
        if kind == "u":
            raise ValueError("tensor: an integer is beyond 64 bits (Overflow when unpacking).")
        natural = {"b": bool_, "i": int64, "f": get_default_dtype()}.get(kind)
        return array, natural or get_default_dtype().to_complex()
    if kind in "US":
        raise ValueError(f"tensor: too many dimensions '{type(leaf).__name__}' in {depth} lists.")
    if kind == "O" and isinstance(leaf, int):
        raise ValueError("tensor: an integer is beyond 64 bits (Overflow when unpacking).")
    raise RuntimeError(f"tensor: Could not infer dtype of {type(leaf).__name__}.")


def _first_leaf(data: Any) -> tuple[Any, int]:
    depth = 0
    while isinstance(data, list | tuple) and data:
        data = data[0]
        depth += 1
    return (0.0 if isinstance(data, list | tuple) else data), depth


def _without_tensors(data: Any, found: list[dtype_class]) -> Any:
    if isinstance(data, list | tuple):
        return [_without_tensors(d, found) for d in data]
    if isinstance(data, Tensor):
        if data.numel() != 1:
            raise ValueError(
                "tensor: only one element tensors can be converted to Python scalars; got a "
                f"tensor of shape {tuple(data.shape)} in a list. Use lowtide.stack."
            )
        found.append(data.dtype)
        return data.item()
    by_category = (bool_, int64, get_default_dtype(), get_default_dtype().to_complex())
    found.append(by_category[_number.index(type(data))] if type(data) in _number else int64)
    return data


def _check_regular(data: Any) -> None:
    # Says where nested lists differ, in PyTorch's words.
    def walk(part: Any, shape: tuple[int, ...], dim: int) -> None:
        if dim == len(shape):
            if isinstance(part, list | tuple):
                raise TypeError(
                    f"tensor: a '{type(part).__name__}' object at dim {dim}, where others are "
                    "numbers (cannot be interpreted as one)."
                )
            return
        if not isinstance(part, list | tuple):
            raise TypeError(f"tensor: not a sequence at dim {dim}: {part!r}.")
        if len(part) != shape[dim]:
            raise ValueError(
                f"expected sequence of length {shape[dim]} at dim {dim} (got {len(part)})"
            )
        for p in part:
            walk(p, shape, dim + 1)

    shape = []
    part = data
    while isinstance(part, list | tuple):
        shape.append(len(part))
        if not part:
            break
        part = part[0]
    walk(data, tuple(shape), 0)


def _check_range(array: Any, wanted: dtype_class) -> None:
    kind = array.dtype.kind
    if kind == "c" and wanted.category < COMPLEX:
        raise TypeError(f"tensor: must be real number, not complex, for dtype {wanted}.")
    if wanted.category != INT or kind == "b" or not array.size:
        return
    limits = np.iinfo(wanted.np)
    least = limits.min or -int(limits.max) - 1  # negatives wrap in unsigned types
    if kind == "f" and not np.isfinite(array).all():
        bad: Any = array[~np.isfinite(array)].flat[0]
    else:
        low, high = array.min().item(), array.max().item()
        if low >= least and high <= limits.max:
            return
        bad = high if high > limits.max else low
    raise RuntimeError(
        f"tensor: value cannot be converted to type {wanted.name} without overflow; got {bad}."
    )


@function()
def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Turn data into a tensor, sharing memory with a tensor or NumPy array where possible."""
    if isinstance(data, Tensor):
        return data.to(device=device, dtype=dtype)  # type: ignore[attr-defined, no-any-return]
    if isinstance(data, np.ndarray):
        return from_numpy(data).to(device=place_of(device), dtype=dtype)  # type: ignore[no-any-return]
    return tensor(data, dtype=dtype, device=device)  # type: ignore[no-any-return]


@function()
def asarray(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Turn an object into a tensor: the array API's function.

    Args:
        obj: A tensor, an array, an object with DLPack or the buffer protocol, or nested lists.
        dtype: Of the result.
        device: Of the result.
        copy: True copies, False refuses to, None copies only if needed.
        requires_grad: Whether the result requires a gradient.

    Raises:
        ValueError: ``copy=False``, and the memory cannot be shared.
    """
    if isinstance(obj, Tensor | np.ndarray):
        out = as_tensor(obj, dtype=dtype, device=device)
        fresh = out is not obj if isinstance(obj, Tensor) else not np.shares_memory(
            out._array, obj
        ) if out.device.type == "cpu" else True
    elif hasattr(obj, "__dlpack__"):
        from ..interop import from_dlpack

        first = from_dlpack(obj)
        out = first.to(device=device, dtype=dtype)
        fresh = out is not first
    elif isinstance(obj, bytes | bytearray | memoryview):
        out = frombuffer(obj, dtype=dtype or get_default_dtype()).to(device=device)
        fresh = False
    else:
        if copy is False:
            raise ValueError("asarray: can't alias arbitrary sequence into a tensor. Drop copy=.")
        out, fresh = tensor(obj, dtype=dtype, device=device), True
    if copy is False and fresh:
        raise ValueError(
            f"asarray: cannot alias the input as {out.dtype} on {out.device}. Drop copy=False."
        )
    if copy and not fresh:
        out = out.clone()
    return out.detach().requires_grad_() if requires_grad else out  # type: ignore[no-any-return]


@function()
def from_numpy(ndarray: Any) -> Tensor:
    """Make a tensor that shares the memory of a NumPy array.

    Raises:
        TypeError: It is no array, or of an element type that lowtide does not have.
        ValueError: Its strides are negative or odd, or its bytes swapped. Copy it first.

    Memory:
        The bytes stay NumPy's: the ledger does not count them.
    """
    if not isinstance(ndarray, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(ndarray).__name__})")
    if not ndarray.dtype.isnative:
        raise ValueError(
            "given numpy array has byte order different from the native byte order. Convert it "
            "with .astype(dtype.newbyteorder('='))."
        )
    try:
        dtype = as_dtype(ndarray.dtype)
    except TypeError:
        raise TypeError(
            f"can't convert np.ndarray of type {ndarray.dtype.type.__module__}."
            f"{ndarray.dtype.type.__name__}. The only supported types are: float64, float32, "
            "float16, bfloat16, complex64, complex128, int64, int32, int16, int8, uint8, and bool."
        ) from None
    for n, step in zip(ndarray.shape, ndarray.strides, strict=True):
        if step < 0 and n > 1:
            raise ValueError(
                "At least one stride in the given numpy array is negative, and tensors with "
                "negative strides are not currently supported. Pass array.copy()."
            )
        if step % dtype.itemsize and n > 1:
            raise ValueError(
                "given numpy array strides not a multiple of the element byte size. Copy the "
                "numpy array to create a tensor."
            )
    if not ndarray.flags.writeable:
        warnings.warn(
            "The given NumPy array is not writable; writing to the tensor is undefined behavior. "
            "Copy the array to be safe.",
            UserWarning,
            stacklevel=2,
        )
    spec = Spec(ndarray.shape, dtype, as_device("cpu"))
    storage, array = backend(spec.device).adopt(ndarray.view(np.ndarray), INPUT)
    return wrap(array, spec, storage)


@function()
def frombuffer(
    buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """Make a 1-d tensor that shares the memory of an object with the buffer protocol.

    Args:
        buffer: The object.
        dtype: How to read its bytes.
        count: Elements to take; -1 takes all.
        offset: Bytes to skip.
        requires_grad: Whether the result requires a gradient.

    Raises:
        ValueError: The bytes asked for are not there, or not a whole number of elements.
    """
    wanted = dtype_of("frombuffer", dtype)
    length = memoryview(buffer).nbytes
    size = wanted.itemsize
    if length == 0 or count == 0:
        raise ValueError(f"both buffer length ({length}) and count ({count}) must not be 0")
    if not 0 <= offset < length:
        raise ValueError(
            f"offset must be non-negative and no greater than buffer length ({length}) - 1, but "
            f"got {offset}"
        )
    if count < 0 and (length - offset) % size:
        raise ValueError(
            f"buffer length ({length} bytes) after offset ({offset} bytes) must be a multiple of "
            f"element size ({size})"
        )
    if count > 0 and offset + count * size > length:
        raise ValueError(
            f"requested buffer length ({count} * {size} bytes) after offset ({offset} bytes) must "
            f"not be greater than actual buffer length ({length} bytes)"
        )
    out = from_numpy(np.frombuffer(buffer, wanted.np, count, offset))
    return out.requires_grad_() if requires_grad else out  # type: ignore[no-any-return]


# Filled


@function()
def empty(
    *size: Any, out: Tensor | None = None, dtype: Any = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Make a tensor with whatever values its memory had."""
    shape = shape_of("empty", size)
    t = target("empty", shape, dtype, get_default_dtype(), device, out)
    return t.requires_grad_() if requires_grad else t


@function()
def zeros(
    *size: Any, out: Tensor | None = None, dtype: Any = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False, **named: Any,
) -> Tensor:  # fmt: skip
    """Make a tensor of zeros."""
    shape = _varargs("zeros", size, _size_keyword("zeros", named))
    t = put(target("zeros", shape, dtype, get_default_dtype(), device, out), 0)
    return t.requires_grad_() if requires_grad else t


@function()
def ones(
    *size: Any, out: Tensor | None = None, dtype: Any = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False, **named: Any,
) -> Tensor:  # fmt: skip
    """Make a tensor of ones."""
    shape = _varargs("ones", size, _size_keyword("ones", named))
    t = put(target("ones", shape, dtype, get_default_dtype(), device, out), 1)
    return t.requires_grad_() if requires_grad else t


def _size_keyword(name: str, named: dict[str, Any]) -> Any:
    size = named.pop("size", None)
    if named:
        raise TypeError(f"{name}() got an unexpected keyword argument '{next(iter(named))}'.")
    return size


@function()
def full(
    size: Any, fill_value: Any, *, out: Tensor | None = None, dtype: Any = None,
    layout: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make a tensor of one value; its dtype follows the value's type unless given."""
    if not isinstance(size, list | tuple):
        raise TypeError(
            f"full(): argument 'size' must be tuple of ints, not {type(size).__name__}."
        )
    natural = fill_value.dtype if isinstance(fill_value, Tensor) else None
    value = scalar(fill_value)
    t = target("full", shape_of("full", (size,)), dtype, natural or _natural(value), device, out)
    put(t, value)
    return t.requires_grad_() if requires_grad else t


def _natural(*values: Any) -> dtype_class:
    # The dtype that Python numbers have together.
    category = max(
        next((k for k, kind in enumerate(_number) if isinstance(v, kind)), FLOAT) for v in values
    )
    default = get_default_dtype()
    return (bool_, int64, default, default.to_complex())[category]


@function()
def scalar_tensor(
    s: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make a 0-d tensor of the default dtype."""
    return full((), s, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad)


@function()
def eye(
    n: int, m: int | None = None, *, out: Tensor | None = None, dtype: Any = None,
    layout: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make an (n, m) matrix with ones on the diagonal; ``m`` defaults to ``n``."""
    m = n if m is None else m
    for what, value in (("n", n), ("m", m)):
        if value < 0:
            raise RuntimeError(f"eye: {what} must be greater or equal to 0, got {value}")
    t = put(target("eye", (n, m), dtype, get_default_dtype(), device, out), 0)
    xp = backend(t.device).xp
    if xp is not None and t.numel():
        k = range(min(n, m))
        a = t._array
        if a.flags.c_contiguous:
            a.reshape(-1)[: len(k) * m : m + 1] = 1
        else:
            a[xp.arange(len(k)), xp.arange(len(k))] = 1
    return t.requires_grad_() if requires_grad else t


@function()
def empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make an uninitialized tensor with given strides, counted in elements."""
    shape, steps = shape_of("empty_strided", (size,)), shape_of("empty_strided", (stride,))
    if len(shape) != len(steps):
        raise RuntimeError(
            f"empty_strided: mismatch in length of strides and shape; got {steps} and {shape}."
        )
    wanted = get_default_dtype() if dtype is None else dtype_of("empty_strided", dtype)
    where = place_of(device)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) if 0 not in shape else 0
    be = backend(where)
    storage, flat = be.empty(Spec((span,), wanted, where))
    strides = tuple(s * wanted.itemsize for s in steps)
    array = (be.xp or np).lib.stride_tricks.as_strided(flat, shape, strides)
    t = wrap(array, Spec(shape, wanted, where), storage)
    return t.requires_grad_() if requires_grad else t


# Counted


@function()
def arange(
    start: Any, end: Any = None, step: Any = 1, *, out: Tensor | None = None, dtype: Any = None,
    layout: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Count from ``start`` (0 if only one number is given) to before ``end`` by ``step``.

    Integers give int64, and any float among the three gives the default dtype.

    Raises:
        RuntimeError: ``step`` is 0 or leads away from ``end``, or the range is not finite.
    """
    if end is None:
        start, end = 0, start
    start, end, step = scalar(start), scalar(end), scalar(step)
    natural = _natural(start, end, step)
    natural = int64 if natural is bool_ else natural
    wanted = natural if dtype is None else dtype_of("arange", dtype)
    if dtype is None and out is not None:
        wanted = out.dtype
    if wanted is int64 and not math.isinf(start) and not math.isinf(end):
        start, end, step = int(start), int(end), int(step)
    if step == 0:
        raise RuntimeError("arange: step must be nonzero")
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"arange: unsupported range: {start} -> {end}")
    if (end - start) * step < 0:
        raise RuntimeError(
            "arange: upper bound and lower bound inconsistent with step sign; got "
            f"{start} -> {end} by {step}."
        )
    exact = all(isinstance(v, int) for v in (start, end, step))
    n = -((start - end) // step) if exact else math.ceil((end - start) / step)
    t = target("arange", (n,), dtype, wanted, device, out)
    _ramp(t, lambda k: _line(k, start, step), exact)
    return t.requires_grad_() if requires_grad else t


def _line(k: Any, start: Any, step: Any) -> Any:
    k *= step
    k += start
    return k


def _ramp(t: Tensor, values: Any, exact: bool = False) -> None:
    # values(k) for each position k, a chunk at a time, computed in float64 (int64 if exact).
    be = backend(t.device)
    xp = be.xp
    if xp is None:
        return
    array, n = t._array, t.numel()
    chunk = _CHUNK if xp is np else _DEVICE_CHUNK
    for first in range(0, n, chunk):
        last = min(n, first + chunk)
        k = xp.arange(first, last, dtype=xp.int64 if exact else xp.float64)
        with np.errstate(all="ignore"):
            xp.copyto(array[first:last], values(k), casting="unsafe")


@function()
def linspace(
    start: Any, end: Any, steps: int, *, out: Tensor | None = None, dtype: Any = None,
    layout: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make ``steps`` evenly spaced values from ``start`` to ``end``, both included."""
    start, end, steps = scalar(start), scalar(end), operator.index(steps)
    if steps < 0:
        raise RuntimeError(f"linspace: number of steps must be non-negative; got {steps}.")
    t = target("linspace", (steps,), dtype, _natural(start, end, 1.0), device, out)
    _ramp(t, _between(t, start, end, steps))
    return t.requires_grad_() if requires_grad else t


def _between(t: Tensor, start: Any, end: Any, steps: int) -> Any:
    xp = backend(t.device).xp
    if t.dtype.category == INT:
        start, end = int(start), int(end)
    step = (end - start) / max(steps - 1, 1)

    def values(k: Any) -> Any:  # from both ends, so that both are exact
        return xp.where(k < steps / 2, start + step * k, end - step * (steps - 1 - k))

    return values if steps > 1 else lambda k: k + start


@function()
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, out: Tensor | None = None,
    dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make ``steps`` values from ``base**start`` to ``base**end``, evenly spaced in the exponent."""
    start, end, steps = scalar(start), scalar(end), operator.index(steps)
    if steps < 0:
        raise RuntimeError(f"logspace: number of steps must be non-negative; got {steps}.")
    t = target("logspace", (steps,), dtype, _natural(start, end, 1.0), device, out)
    exponents = _between(t, start, end, steps)
    _ramp(t, lambda k: float(base) ** exponents(k))
    return t.requires_grad_() if requires_grad else t


def _triangle(name: str, host: Any, dtype: Any, device: Any) -> Tensor:
    wanted = int64 if dtype is None else dtype_of(name, dtype)
    return tensor(np.stack(host).astype(np.int64), dtype=wanted, device=device)  # type: ignore[no-any-return]


@function()
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None,
    layout: Any = None,
) -> Tensor:  # fmt: skip
    """List (row, column) of the lower triangle of a matrix, as a (2, N) tensor."""
    return _triangle("tril_indices", np.tril_indices(row, offset, col), dtype, device)


@function()
def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None,
    layout: Any = None,
) -> Tensor:  # fmt: skip
    """List (row, column) of the upper triangle of a matrix, as a (2, N) tensor."""
    return _triangle("triu_indices", np.triu_indices(row, offset, col), dtype, device)


# Like others


def like(name: str, input: Any, dtype: Any, device: Any, requires_grad: bool = False) -> Tensor:
    """An uninitialized tensor with another's shape, and its dtype and device unless given."""
    if not isinstance(input, Tensor):
        raise TypeError(
            f"{name}(): argument 'input' (position 1) must be Tensor, not {type(input).__name__}."
        )
    wanted = input.dtype if dtype is None else dtype_of(name, dtype)
    t = new(Spec(input.shape, wanted, input.device if device is None else as_device(device)))
    return t.requires_grad_() if requires_grad else t


@function()
def empty_like(
    input: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Make an uninitialized tensor of another's shape, dtype and device."""
    return like("empty_like", input, dtype, device, requires_grad)


@function()
def zeros_like(
    input: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Make zeros of another tensor's shape, dtype and device."""
    return put(like("zeros_like", input, dtype, device, requires_grad), 0)


@function()
def ones_like(
    input: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Make ones of another tensor's shape, dtype and device."""
    return put(like("ones_like", input, dtype, device, requires_grad), 1)


@function()
def full_like(
    input: Tensor, fill_value: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Make a tensor of one value in another's shape, dtype and device."""
    return put(like("full_like", input, dtype, device, requires_grad), scalar(fill_value))


@function(method=True, public=False)
def new_tensor(
    input: Tensor, data: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Copy data into a new tensor of this one's dtype and device."""
    wanted = input.dtype if dtype is None else dtype_of("new_tensor", dtype)
    out = _copied(data, wanted, input.device if device is None else as_device(device))
    return out.requires_grad_() if requires_grad else out


def _new_like(name: str, input: Tensor, size: Any, dtype: Any, device: Any) -> Tensor:
    wanted = input.dtype if dtype is None else dtype_of(name, dtype)
    where = input.device if device is None else as_device(device)
    return new(Spec(shape_of(name, size), wanted, where))


@function(method=True, public=False)
def new_empty(
    input: Tensor, *size: Any, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make an uninitialized tensor of this one's dtype and device."""
    t = _new_like("new_empty", input, size, dtype, device)
    return t.requires_grad_() if requires_grad else t


@function(method=True, public=False)
def new_zeros(
    input: Tensor, *size: Any, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make zeros of this tensor's dtype and device."""
    t = put(_new_like("new_zeros", input, size, dtype, device), 0)
    return t.requires_grad_() if requires_grad else t


@function(method=True, public=False)
def new_ones(
    input: Tensor, *size: Any, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make ones of this tensor's dtype and device."""
    t = put(_new_like("new_ones", input, size, dtype, device), 1)
    return t.requires_grad_() if requires_grad else t


@function(method=True, public=False)
def new_full(
    input: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Make a tensor of one value in this one's dtype and device."""
    t = put(_new_like("new_full", input, (size,), dtype, device), scalar(fill_value))
    return t.requires_grad_() if requires_grad else t


# Complex from its parts


def _complex_infer(real, imag):
    if real.dtype.category != FLOAT or imag.dtype.category != FLOAT:
        raise RuntimeError(
            "complex: Expected both inputs to be Half, Float or Double tensors but got "
            f"{real.dtype} and {imag.dtype}. Convert them with .to(lowtide.float32)."
        )
    if real.dtype is not imag.dtype:
        raise RuntimeError(
            f"complex: Expected object of scalar type {real.dtype} but got scalar type "
            f"{imag.dtype} for second argument. Convert one with .to()."
        )
    return Spec(broadcast_shapes("complex", real.shape, imag.shape), real.dtype.to_complex())


def _complex_samples(make):
    for a, b in (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2,)), ((0, 2), (1, 2))):
        yield (make(*a), make(*b)), {}


@op(name="complex", method=False, infer=_complex_infer, samples=_complex_samples)
def make_complex(xp, out, real, imag):
    """Make complex numbers of real and imaginary parts."""
    xp.copyto(out.real, real, casting="unsafe")  # "unsafe" for NumPy's sake: bfloat16 to float32
    xp.copyto(out.imag, imag, casting="unsafe")


@make_complex.vjp("real")
def _(g):
    return FUNCTIONS["real"](g)


@make_complex.vjp("imag")
def _(g):
    return FUNCTIONS["imag"](g)


@function()
def polar(abs: Tensor, angle: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Make complex numbers of absolute values and angles."""
    result = make_complex(abs * angle.cos(), abs * angle.sin())  # type: ignore[attr-defined]
    return result if out is None else out.copy_(result)  # type: ignore[attr-defined, no-any-return]


# PyTorch's older names


def legacy_tensor(cls: Any, *args: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """``Tensor(...)``: from data, from a tensor (the same memory), or from sizes.

    Args:
        cls: The class called.
        args: None for an empty tensor, data, a tensor, or integers.
        dtype: Of the result, by default the default dtype.
        device: Of the result.
    """
    typed = dtype is not None
    wanted = dtype if typed else get_default_dtype()
    where = as_device("cpu") if device is None else as_device(device)
    if len(args) == 1 and isinstance(args[0], Tensor):
        if typed and args[0].dtype is not wanted:
            raise TypeError(
                f"expected a tensor of {wanted} (got {args[0].dtype}). Use .to({wanted})."
            )
        out = args[0].detach()  # type: ignore[attr-defined]
    elif len(args) == 1 and not isinstance(args[0], int | np.integer | Size):
        if isinstance(args[0], float | complex_type) or not hasattr(args[0], "__len__"):
            raise TypeError(
                f"new(): data must be a sequence (got {type(args[0]).__name__}). Use "
                "lowtide.tensor()."
            )
        out = _copied(args[0], wanted, where)
    else:
        out = new(Spec(shape_of("new", args or (0,)), wanted, where))
    if cls is not Tensor:
        made = object.__new__(cls)
        for slot in _SLOTS:
            setattr(made, slot, getattr(out, slot))
        return made  # type: ignore[no-any-return]
    return out  # type: ignore[no-any-return]


_SLOTS = tuple(s for s in Tensor.__slots__ if not s.startswith("__"))


class _ByDtype(type):
    """Makes ``isinstance(x, FloatTensor)`` ask for x's dtype."""

    dtype: Any

    def __call__(cls, *args: Any, device: Any = None) -> Any:
        return legacy_tensor(Tensor, *args, dtype=cls.dtype, device=device)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Tensor) and x.dtype is cls.dtype and x.device.type == "cpu"


class _AnyTensor(type):
    def __call__(cls, data: Any, requires_grad: bool = False, volatile: Any = None) -> Any:
        out = data.detach() if isinstance(data, Tensor) else tensor(data)
        return out.requires_grad_(requires_grad)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Tensor)


class Variable(metaclass=_AnyTensor):
    """PyTorch's old wrapper: ``Variable(x, requires_grad=True)`` is a tensor."""


LEGACY_TYPES: dict[str, Any] = {}
for _name, _dtype in (
    ("Float", float32), ("Double", float64), ("Half", float16), ("BFloat16", bfloat16),
    ("Long", int64), ("Int", int32), ("Short", int16), ("Char", int8), ("Byte", uint8),
    ("Bool", bool_), ("ComplexFloat", complex64), ("ComplexDouble", complex128),
):  # fmt: skip
    LEGACY_TYPES[f"{_name}Tensor"] = _ByDtype(
        f"{_name}Tensor",
        (),
        {
            "dtype": _dtype,
            "__doc__": f"CPU tensors of {_dtype.name}: PyTorch's older constructor and type.",
            "__module__": __name__,
        },
    )
for _name in list(LEGACY_TYPES):
    if not _name.startswith("Complex"):
        FUNCTIONS[_name] = LEGACY_TYPES[_name]
