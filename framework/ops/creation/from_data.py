"""Tensors from data: Python numbers and lists, NumPy arrays, buffers, DLPack."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ...device import device as as_device
from ...devices import backend
from ...dtypes import COMPLEX, INT, as_dtype, bool_, get_default_dtype, int64, promote_types, uint64
from ...dtypes import dtype as dtype_class
from ...memory.ledger import INPUT
from ...spec import Spec
from ...tensor import Tensor, wrap
from ..dispatch import OPERANDS
from ..registry import function
from .factory import NUMBERS, dtype_of, made, place_of
from .storages import StorageHandle, UntypedStorage, on_storage


@function()
def tensor(
    data: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
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
    if isinstance(data, StorageHandle):
        return as_tensor(data, dtype=dtype, device=device)  # the same memory, as PyTorch does it
    out = copied(data, None if dtype is None else dtype_of("tensor", dtype), place_of(device))
    if requires_grad:
        out.requires_grad = True
    return out


OPERANDS[np.ndarray] = tensor


def copied(data: Any, wanted: dtype_class | None, where: as_device) -> Tensor:
    """Return a new tensor with the values of ``data``, in its own dtype if ``wanted`` is None."""
    array, natural = _host_array(data, wanted)
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
    return made(out, spec, storage)


def _host_array(data: Any, wanted: dtype_class | None) -> tuple[Any, dtype_class]:
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
        array = _integers(data) if wanted is uint64 else np.asarray(data)
    except ValueError:
        _check_regular(data)
        raise
    except OverflowError:
        raise ValueError(
            "tensor: an integer is beyond 64 bits (Overflow when unpacking)."
        ) from None
    kind = array.dtype.kind
    if kind in "biufc" or declared is not None or hasattr(leaf, "dtype"):
        if declared is not None:
            return array, declared
        if hasattr(leaf, "dtype") or hasattr(data, "__array__"):
            return array, as_dtype(array.dtype)
        if kind == "u" and wanted is not uint64:
            raise ValueError("tensor: an integer is beyond 64 bits (Overflow when unpacking).")
        natural = {"b": bool_, "i": int64, "u": uint64, "f": get_default_dtype()}.get(kind)
        return array, natural or get_default_dtype().to_complex()
    if kind in "US":
        raise ValueError(f"tensor: too many dimensions '{type(leaf).__name__}' in {depth} lists.")
    if kind == "O" and isinstance(leaf, int):
        raise ValueError("tensor: an integer is beyond 64 bits (Overflow when unpacking).")
    raise RuntimeError(f"tensor: Could not infer dtype of {type(leaf).__name__}.")


def _integers(data: Any) -> Any:
    # NumPy makes floats of integers on both sides of 2 ** 63; these keep their digits.
    array = np.asarray(data)
    if array.dtype.kind == "f" and isinstance(_first_leaf(data)[0], int):
        exact = np.asarray(data, dtype=object)
        if all(type(x) in (int, bool) and abs(x) < 1 << 64 for x in exact.flat):
            return (exact % (1 << 64)).astype(np.uint64)  # a negative one wraps around
    return array


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
    found.append(by_category[NUMBERS.index(type(data))] if type(data) in NUMBERS else int64)
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
                f"tensor: expected sequence of length {shape[dim]} at dim {dim} (got {len(part)}): "
                "the parts of a list have one length. Pad the shorter ones."
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
    """Convert data to a tensor, sharing memory with a tensor or NumPy array where possible."""
    if isinstance(data, Tensor):
        return data.to(device=device, dtype=dtype)
    if isinstance(data, np.ndarray):
        return from_numpy(data).to(device=place_of(device), dtype=dtype)
    if isinstance(data, StorageHandle):
        out = on_storage(data, _element_of(data, dtype))
        return out if device is None else out.to(device)
    return tensor(data, dtype=dtype, device=device)


@function()
def asarray(
    obj: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    copy: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Convert an object to a tensor, as the array API specifies.

    Args:
        obj: A tensor, an array, a storage, an object with DLPack or the buffer protocol, or nested
            lists.
        dtype: Of the result.
        device: Of the result.
        copy: True copies, False refuses to, None copies only if needed.
        requires_grad: Whether the result requires a gradient.

    Raises:
        ValueError: ``copy=False``, and the memory cannot be shared.
    """
    if isinstance(obj, Tensor | np.ndarray):
        out = as_tensor(obj, dtype=dtype, device=device)
        fresh = (
            out is not obj
            if isinstance(obj, Tensor)
            else not np.shares_memory(out._array, obj)
            if out.device.type == "cpu"
            else True
        )
    elif isinstance(obj, StorageHandle):
        out = as_tensor(obj, dtype=dtype, device=device)
        fresh = out.device is not obj.device
    elif hasattr(obj, "__dlpack__"):
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
    return out.detach().requires_grad_() if requires_grad else out


def _element_of(data: StorageHandle, dtype: Any) -> dtype_class | None:
    # Bytes without a dtype are read as int64, which is what PyTorch does.
    if dtype is not None:
        return dtype_of("asarray", dtype)
    return int64 if isinstance(data, UntypedStorage) else None


@function()
def from_numpy(ndarray: Any) -> Tensor:
    """Create a tensor that shares the memory of a NumPy array.

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
    return made(array, spec, storage)


@function()
def frombuffer(
    buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """Create a 1-d tensor that shares the memory of an object with the buffer protocol.

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
    return out.requires_grad_() if requires_grad else out


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Create a tensor that shares the memory of another library's array.

    Args:
        ext_tensor: An object with ``__dlpack__`` and ``__dlpack_device__``.
        device: Where the result shall be.
        copy: True copies; False refuses to.

    Raises:
        TypeError: It has no ``__dlpack__``.
        BufferError: ``copy=False``, and it lies on another device.
    """
    if not hasattr(ext_tensor, "__dlpack__") or not hasattr(ext_tensor, "__dlpack_device__"):
        raise TypeError(
            "from_dlpack takes an object with __dlpack__ and __dlpack_device__; got "
            f"{type(ext_tensor).__name__}. Use lowtide.as_tensor."
        )
    kind, index = ext_tensor.__dlpack_device__()
    out = _shared(ext_tensor, int(kind), int(index))
    if device is not None and out.to(device) is not out:
        if copy is False:
            raise BufferError(f"copy=False, but the data is on {out.device}, not on {device}.")
        return out.to(device)
    return out.clone() if copy else out


def _shared(ext_tensor: Any, kind: int, index: int) -> Tensor:
    if kind == 1:
        array = np.from_dlpack(ext_tensor)
        if not array.flags.writeable:  # an exporter of DLPack 0 cannot say that it may be written
            array = _writable(array)
        out: Tensor = from_numpy(array)
        return out
    if kind == 2:
        where = as_device("cuda", index)
        be = backend(where)
        array = be.xp.from_dlpack(ext_tensor)
        storage, shared = be.adopt(array, INPUT)
        return wrap(shared, Spec(array.shape, as_dtype(array.dtype), where), storage)
    raise BufferError(f"from_dlpack reads memory of the cpu and of cuda; got device type {kind}.")


def _writable(array: Any) -> Any:
    interface = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    return np.asarray(_Shared(interface, array))


class _Shared:
    """A writable view of another array's memory, which keeps that array alive."""

    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__array_interface__ = interface
        self.owner = owner
