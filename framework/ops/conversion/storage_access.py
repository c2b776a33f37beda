"""Access to storages: ``storage()``, ``untyped_storage()``, ``set_``, ``from_file``.

The handles themselves are in ``creation/storages.py`` and ``creation/typed_storages.py``.
"""

from __future__ import annotations

import math
from typing import Any

from ...autograd.view_history import check_writable
from ...devices.storage_bytes import length_of
from ...dtypes import get_default_dtype
from ...memory.ledger import SAVED, TEMPORARY
from ...modes import value_read
from ...spec import Spec
from ...tensor import Tensor
from ..creation.factory import dtype_of, new
from ..creation.storages import StorageHandle, UntypedStorage, need_dtype, on_storage, tensor_on
from ..creation.typed_storages import LEGACY_STORAGES, TypedStorage
from ..registry import function


@function()
def is_storage(obj: Any) -> bool:
    """True for what ``storage()`` and ``untyped_storage()`` return."""
    return isinstance(obj, StorageHandle)


@function(method=True, public=False)
def untyped_storage(input: Tensor) -> UntypedStorage:
    """Return the storage of this tensor as bytes."""
    value_read("untyped_storage")
    return UntypedStorage._handle(input._storage, input.device)


@function(method=True, public=False)
def storage(input: Tensor) -> TypedStorage:
    """Return the storage of this tensor as elements."""
    value_read("storage")
    return TypedStorage._handle(input._storage, input.device, input.dtype)


@function(method=True, public=False)
def _typed_storage(input: Tensor) -> TypedStorage:
    """Return the storage of this tensor as elements."""
    value_read("storage")
    return TypedStorage._handle(input._storage, input.device, input.dtype)


@function(method=True, public=False)
def storage_type(input: Tensor) -> Any:
    """Return the older class of this tensor's storage, such as ``FloatStorage``."""
    return LEGACY_STORAGES[storage(input).pickle_storage_type()]


@function(method=True, public=False)
def is_shared(input: Tensor) -> bool:
    """Whether other processes see what is written: on a GPU."""
    return input.device.type == "cuda"


@function(method=True, public=False)
def share_memory_(input: Tensor) -> Tensor:
    """Return the tensor if its memory is shared.

    Raises:
        RuntimeError: It is not: lowtide's memory is its process's own.
    """
    UntypedStorage._handle(input._storage, input.device).share_memory_()
    return input


@function()
def from_file(
    filename: Any,
    shared: bool | None = None,
    size: int = 0,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """Map a file as a 1-d tensor: its bytes are read when they are first used.

    Args:
        filename: Its path.
        shared: Writes reach the file, which is made and made longer as needed. Without it a written
            page is copied, and the file stays as it is.
        size: The number of elements.
        dtype: How to read the bytes; by default the default dtype.
        layout: Accepted.
        device: The CPU.
        pin_memory: Accepted; all host memory serves as well.
        requires_grad: Whether the result requires a gradient.

    Raises:
        RuntimeError: The file cannot be opened, or is shorter.

    Memory:
        The bytes stay the file's: the ledger does not count them.
    """
    wanted = get_default_dtype() if dtype is None else dtype_of("from_file", dtype)
    found = UntypedStorage.from_file(filename, bool(shared), size * wanted.itemsize)
    out = on_storage(found, wanted)
    if device is not None:
        out = out.to(device)
    return out.requires_grad_() if requires_grad else out


@function(method=True, public=False)
def is_set_to(input: Tensor, tensor: Tensor) -> bool:
    """True if two tensors have the same storage, offset, shape and strides."""
    return (
        input._storage.root is tensor._storage.root
        and input.shape == tensor.shape
        and input.stride() == tensor.stride()
        and input.storage_offset() == tensor.storage_offset()
    )


@function(method=True, public=False)
def set_(
    input: Tensor,
    source: Any = None,
    storage_offset: int | None = None,
    size: Any = None,
    stride: Any = None,
) -> Tensor:
    """Set this tensor to another's storage, shape and strides; without one, make it empty.

    Args:
        input: The tensor to set.
        source: A tensor, or a storage.
        storage_offset: Where it starts in the storage, in elements.
        size: The shape; by default that of the tensor, or all elements of the storage.
        stride: The steps; by default in C order.

    Raises:
        TypeError: ``source`` is neither.
        RuntimeError: It has another dtype or device, or fewer bytes; or a graph leads to this
            tensor.
    """
    if source is None:
        source = new(input._spec.like((0,)))
    if not isinstance(source, Tensor | StorageHandle):
        raise TypeError(
            f"set_(): argument 'source' must be Tensor or a storage, not {type(source).__name__}."
        )
    if isinstance(source, StorageHandle):
        need_dtype(source, input.dtype)
    elif source.dtype is not input.dtype:
        raise RuntimeError(
            f"set_: source must have dtype {input.dtype} on {input.device}; got {source.dtype} on "
            f"{source.device}. Convert it with .to()."
        )
    if source.device is not input.device:
        raise RuntimeError(
            f"set_: source must lie on {input.device}, as the tensor; got one of {input.dtype} on "
            f"{source.device}. Convert it with .to()."
        )
    if input._node is not None:
        raise RuntimeError(
            f"set_: this tensor was made by {input._node.name()}, which is not differentiable "
            "through set_. Detach it first."
        )
    check_writable(input, "set_")
    if isinstance(source, StorageHandle) or storage_offset is not None or size is not None:
        source = _window(source, input.dtype, storage_offset, size, stride)
    role = input._storage.role
    if role not in (SAVED, TEMPORARY) and source._storage.role == TEMPORARY:
        source._storage.set_role(role)
    input._array, input._spec, input._storage = source._array, source._spec, source._storage
    input._viewed = source._viewed
    input._storage.version += 1
    if input._viewed is not None and not source._requires_grad:
        input._viewed = None  # only a view of the bytes: no history to follow
    return input


def _window(source: Any, dtype: Any, offset: Any, size: Any, stride: Any) -> Tensor:
    # A tensor on the storage of a tensor or a handle: all of it, or the part asked for.
    bytes_ = source._storage
    available = length_of(bytes_) // dtype.itemsize
    if size is None:
        if offset is not None or stride is not None:
            raise TypeError(
                f"set_: storage_offset {offset} and stride {stride} need a size. Pass size=, the "
                "shape."
            )
        size = (available,)
    shape = (size,) if isinstance(size, int) else tuple(map(int, size))
    start = 0 if offset is None else int(offset)
    spec = Spec(shape, dtype, source.device)
    if stride:
        steps = tuple(map(int, stride))
    else:  # C order
        steps = tuple([math.prod(shape[d + 1 :]) for d in range(len(shape))])
    if len(steps) != len(shape) or min(steps, default=0) < 0 or min(shape, default=0) < 0:
        raise RuntimeError(
            f"set_: needs as many strides as sizes, none negative; got size {list(shape)} and "
            f"stride {list(steps)}."
        )
    if start < 0:
        raise RuntimeError(f"set_: Tensor: invalid storage offset {start}. Count from 0.")
    last = sum([(n - 1) * s for n, s in zip(shape, steps, strict=True)])
    if spec.numel and start + last >= available:
        raise RuntimeError(
            f"setStorage: sizes {list(shape)}, strides {list(steps)}, storage offset {start}, "
            f"requiring a storage of {start + last + 1} elements, are out of bounds for storage of "
            f"{available} elements. PyTorch makes the storage longer; here it keeps its size: make "
            "a longer one, lowtide.UntypedStorage(nbytes)."
        )
    if spec.numel == 0:
        start = min(start, available)
    strides = tuple([s * dtype.itemsize for s in steps])
    return tensor_on(bytes_, spec, start * dtype.itemsize, strides)
