"""Access to storages: ``storage()``, ``untyped_storage()``, ``set_``.

PyTorch's ``untyped_storage()`` and ``storage()`` are read-only handles here: lowtide's own storages
(``framework/storage.py``) belong to the pool, which counts their bytes.
"""

from __future__ import annotations

from typing import Any

from ...autograd.view_history import check_writable
from ...device import device
from ...devices.storage_copy import copied_storage
from ...dtypes import dtype as dtype_class
from ...dtypes import uint8
from ...memory.ledger import SAVED, TEMPORARY
from ...tensor import Tensor
from ..creation.factory import new
from ..registry import function, public


@public
class UntypedStorage:
    """The storage of a tensor as bytes, shared by its views.

    Handles of the same memory are equal.

    Attributes:
        device: Where the bytes lie.
        dtype: The type of the elements that ``size()`` counts.
    """

    dtype: dtype_class = uint8

    def __init__(self, storage: Any, where: device) -> None:
        self._storage = storage
        self.device = where

    def nbytes(self) -> int:
        """The number of bytes."""
        return int(self._storage.nbytes)

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def size(self) -> int:
        """The number of elements; of bytes, where no dtype is known."""
        return self.nbytes() // self.dtype.itemsize

    __len__ = size

    def data_ptr(self) -> int:
        """Address of the first byte; 0 if there is none, and on meta."""
        if self.device.type == "meta" or not self.nbytes():
            return 0
        return int(self._storage.address)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UntypedStorage):
            return NotImplemented
        return self._storage.root is other._storage.root and self.dtype is other.dtype

    def __hash__(self) -> int:
        return hash((id(self._storage.root), self.dtype))

    def __deepcopy__(self, memo: dict[int, Any]) -> UntypedStorage:
        """Copy the bytes, once for all tensors and handles that share them."""
        return self._of(copied_storage(self._storage.root, self.device, memo))

    def __copy__(self) -> UntypedStorage:
        """Copy the bytes, as PyTorch does; a handle of the same bytes is ``untyped_storage()``."""
        return self.__deepcopy__({})

    def _of(self, storage: Any) -> UntypedStorage:
        return type(self)(storage, self.device)

    def __repr__(self) -> str:
        return f"lowtide.{type(self).__name__}(device={self.device}) of size {self.size()}"


@public
class TypedStorage(UntypedStorage):
    """The storage of a tensor as elements, shared by its views."""

    def __init__(self, storage: Any, where: device, dtype: dtype_class) -> None:
        super().__init__(storage, where)
        self.dtype = dtype

    def _of(self, storage: Any) -> TypedStorage:
        return TypedStorage(storage, self.device, self.dtype)

    def untyped(self) -> UntypedStorage:
        """Return the same storage as bytes."""
        return UntypedStorage(self._storage, self.device)


@function()
def is_storage(obj: Any) -> bool:
    """True for what ``storage()`` and ``untyped_storage()`` return."""
    return isinstance(obj, UntypedStorage)


@function(method=True, public=False)
def untyped_storage(input: Tensor) -> UntypedStorage:
    """Return the storage of this tensor as bytes."""
    return UntypedStorage(input._storage, input.device)


@function(method=True, public=False)
def storage(input: Tensor) -> TypedStorage:
    """Return the storage of this tensor as elements."""
    return TypedStorage(input._storage, input.device, input.dtype)


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
def set_(input: Tensor, source: Tensor | None = None) -> Tensor:
    """Set this tensor to another's storage, shape and strides; without one, make it empty.

    Raises:
        TypeError: ``source`` is no tensor. PyTorch takes a storage, too.
        RuntimeError: It has another dtype or device, or a graph leads to this tensor.
    """
    if source is None:
        source = new(input._spec.like((0,)))
    if not isinstance(source, Tensor):
        raise TypeError(
            f"set_(): argument 'source' must be Tensor, not {type(source).__name__}. For other "
            "strides call as_strided on a tensor of that storage."
        )
    if source.dtype is not input.dtype or source.device is not input.device:
        raise RuntimeError(
            f"set_: source must have dtype {input.dtype} on {input.device}; got {source.dtype} on "
            f"{source.device}. Convert it with .to()."
        )
    if input._node is not None:
        raise RuntimeError(
            f"set_: this tensor was made by {input._node.name()}, which is not differentiable "
            "through set_. Detach it first."
        )
    check_writable(input, "set_")
    role = input._storage.role
    if role not in (SAVED, TEMPORARY) and source._storage.role == TEMPORARY:
        source._storage.set_role(role)
    input._array, input._spec, input._storage = source._array, source._spec, source._storage
    input._viewed = source._viewed
    input._storage.version += 1
    if input._viewed is not None and not source._requires_grad:
        input._viewed = None  # only a window on the bytes: no history to follow
    return input
