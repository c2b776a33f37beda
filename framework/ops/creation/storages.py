"""``UntypedStorage`` and ``TypedStorage``: handles of the bytes that tensors share.

lowtide's own storages (``framework/storage.py``) belong to the pool, which counts their bytes. A
handle reads and writes those bytes and keeps them alive; it cannot make them more or fewer. A slice
of a handle is a handle of the same bytes.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np

from ...device import device
from ...devices import backend
from ...devices.storage_bytes import bytes_of, length_of, window_on
from ...devices.storage_copy import copied_storage
from ...dtypes import dtype as dtype_class
from ...dtypes import get_default_dtype, uint8
from ...memory.ledger import INPUT
from ...spec import Spec
from ...storage import AliasStorage, ExternalStorage
from ...tensor import Tensor
from ..registry import public
from .factory import dtype_of, made, new, place_of
from .mapped_files import mapped_bytes

_weak: dict[int, weakref.ref[Any]] = {}  # what _weak_ref gave away


class StorageHandle:
    """What both kinds of handles do. Handles of the same memory are equal.

    Attributes:
        device: Where the bytes lie.
        filename: The file that ``from_file(shared=True)`` mapped; else None.
    """

    device: device
    filename: str | None = None
    is_sparse = is_sparse_csr = is_hpu = False
    _storage: Any
    _dtype: dtype_class

    def _of(self, storage: Any) -> Any:
        """Return a handle of this kind of another storage of the device."""
        raise NotImplementedError

    # What it is

    @property
    def is_cuda(self) -> bool:
        """Whether the bytes lie on a GPU."""
        return self.device.type == "cuda"

    @property
    def _cdata(self) -> int:
        return id(self._storage.root)

    def nbytes(self) -> int:
        """The number of bytes."""
        return length_of(self._storage)

    def element_size(self) -> int:
        """Bytes of one element."""
        return self._dtype.itemsize

    def size(self) -> int:
        """The number of elements; of bytes, where no dtype is known."""
        return self.nbytes() // self._dtype.itemsize

    __len__ = size

    def data_ptr(self) -> int:
        """Address of the first byte; 0 if there is none, and on meta."""
        if self.device.type == "meta" or not self.nbytes():
            return 0
        return int(self._storage.address)

    def get_device(self) -> int:
        """The number of the GPU; -1 on the host."""
        return -1 if self.device.index is None else self.device.index

    def is_pinned(self, device: Any = None) -> bool:
        """Return False: host memory is pinned only during copies."""
        return False

    def pin_memory(self, device: Any = None) -> Any:
        """Return the handle itself; copies to devices use pinned memory automatically."""
        return self

    def is_shared(self) -> bool:
        """Whether other processes see what is written: only of a file mapped so, and on a GPU."""
        return self.filename is not None or self.is_cuda

    def share_memory_(self) -> Any:
        """Return the handle if its bytes are shared.

        Raises:
            RuntimeError: They are not: lowtide's memory is its process's own.
        """
        if self.is_shared():
            return self
        raise RuntimeError(
            f"{type(self).__name__}.share_memory_: the bytes belong to this process, and other "
            "processes get copies. Map a file that both open: "
            f"lowtide.from_file(path, shared=True, size=n) shares {self.nbytes()} bytes."
        )

    def resizable(self) -> bool:
        """Return False: a storage keeps its size."""
        return False

    def resize_(self, size: int) -> Any:
        """Return the handle if it has this size.

        Raises:
            RuntimeError: It has another: bytes belong to the pool, which knows their number.
        """
        if size == self.size():
            return self
        raise RuntimeError(
            f"{type(self).__name__}.resize_({size}): a storage keeps its size, here {self.size()}. "
            "To free its bytes drop all tensors that share them, or tensor.set_(); for other bytes "
            "use tensor.set_(other)."
        )

    def untyped(self) -> UntypedStorage:
        """Return the same storage as bytes."""
        return UntypedStorage._handle(self._storage, self.device, self.filename)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StorageHandle):
            return NotImplemented
        same = self._storage.root is other._storage.root and type(self) is type(other)
        return same and self._dtype is other._dtype

    def __hash__(self) -> int:
        return hash((id(self._storage.root), self._dtype))

    def __repr__(self) -> str:
        return f"lowtide.{type(self).__name__}(device={self.device}) of size {self.size()}"

    # Its elements

    def _elements(self) -> Tensor:
        size = self._dtype.itemsize
        return tensor_on(self._storage, Spec((self.size(),), self._dtype, self.device), 0, (size,))

    def _values(self, what: str) -> Tensor:
        if self.device.type == "meta":
            raise NotImplementedError(
                f"{type(self).__name__}.{what}: a storage on meta has a size and no bytes. Move "
                "its tensor to a device: lowtide.empty_like(tensor, device='cpu')."
            )
        return self._elements()

    def _index(self, index: int) -> int:
        n = self.size()
        if not -n <= index < n:
            raise IndexError(f"index {index} out of range for storage of size {n}")
        return index % n

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(index, slice):
            index = self._index(index)
            if self._dtype is uint8:
                value = int(value) % 256  # as a byte of C
        self._values("__setitem__")[index] = value

    def __iter__(self) -> Any:
        return iter(self.tolist())

    def tolist(self) -> list[Any]:
        """Return the elements as a list."""
        found: list[Any] = self._values("tolist").tolist()
        return found

    def fill_(self, value: Any) -> Any:
        """Write ``value`` to all elements."""
        self._values("fill_").fill_(value)
        return self

    def copy_(self, source: Any, non_blocking: bool = False) -> Any:
        """Copy the bytes of another storage, which must be as many."""
        if self.nbytes() != source.nbytes():
            raise RuntimeError(
                f"size does not match, self was {self.nbytes()} bytes but src was "
                f"{source.nbytes()} bytes. Take a slice of the longer: untyped()[:n]."
            )
        self.untyped()._values("copy_").copy_(source.untyped()._values("copy_"))
        return self

    def clone(self) -> Any:
        """Return a copy."""
        return self._of(self._values("clone").clone()._storage)

    def to(self, *, device: Any, non_blocking: bool = False) -> Any:
        """Return the bytes on a device: the handle itself if they lie there."""
        where = place_of(device)
        if where is self.device:
            return self
        moved = self._values("to").to(where)
        found = self._of(moved._storage)
        found.device = moved.device
        return found

    def cpu(self) -> Any:
        """Return the bytes on the host."""
        return self.to(device="cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Any:
        """Return the bytes on a GPU."""
        return self.to(device="cuda" if device is None else device)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy the bytes, once for all tensors and handles that share them."""
        return self._of(copied_storage(self._storage.root, self.device, memo))

    def __copy__(self) -> Any:
        """Copy the bytes, as PyTorch does; a handle of the same bytes is ``untyped_storage()``."""
        return self.__deepcopy__({})

    # Weak references, as a number

    def _weak_ref(self) -> int:
        root = self._storage.root
        _weak[id(root)] = weakref.ref(root)
        return id(root)

    @staticmethod
    def _expired(cdata: int) -> bool:
        found = _weak.get(cdata)
        return found is None or found() is None

    @staticmethod
    def _free_weak_ref(cdata: int) -> None:
        _weak.pop(cdata, None)


@public
class UntypedStorage(StorageHandle):
    """The storage of a tensor as bytes, shared by its views.

    Args:
        args: Nothing, the number of bytes, or their values.
        device: Where they shall lie.
    """

    _dtype = uint8

    def __init__(self, *args: Any, device: Any = None) -> None:
        found = elements("UntypedStorage", args, uint8, device)
        self._storage, self.device = found._storage, found.device

    @classmethod
    def _handle(cls, storage: Any, where: device, filename: str | None = None) -> UntypedStorage:
        found = object.__new__(cls)
        found._storage, found.device, found.filename = storage, where, filename
        return found

    def _of(self, storage: Any) -> UntypedStorage:
        return UntypedStorage._handle(storage, self.device)

    def __getitem__(self, index: Any) -> Any:
        """Return a byte, or the storage of a range of bytes: the same memory."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self.size())
            if step != 1:
                raise RuntimeError(
                    f"Trying to slice with a step of {step}, but only a step of 1 is supported"
                )
            self._values("__getitem__")
            part = bytes_of(self._storage, self.device)[start : max(start, stop)]
            return self._of(ExternalStorage(part, part.nbytes, self._storage.role))
        if not isinstance(index, int | np.integer):
            raise TypeError(f"can't index a lowtide.UntypedStorage with {type(index).__name__}")
        return self._values("__getitem__")[self._index(int(index))].item()

    @staticmethod
    def new() -> UntypedStorage:
        """Return a storage without bytes."""
        return UntypedStorage()

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """Return the name of the class."""
        return "lowtide.UntypedStorage"

    def byteswap(self, dtype: Any) -> None:
        """Reverse the bytes of each element, in place."""
        self._values("byteswap")
        parts = 2 if dtype.is_complex else 1  # a complex number is two numbers
        line = self._values("byteswap").view(-1, dtype.itemsize // parts)
        line.copy_(line.flip(1))

    @classmethod
    def from_file(cls, filename: Any, shared: bool = False, nbytes: int = 0) -> UntypedStorage:
        """Map a file: its bytes are read when they are first used.

        Args:
            filename: Its path.
            shared: Writes reach the file, which is made and made longer as needed. Without it a
                written page is copied, and the file stays as it is.
            nbytes: How many bytes, from the first.

        Raises:
            RuntimeError: The file cannot be opened, or is shorter.

        Memory:
            The bytes stay the file's: the ledger does not count them.
        """
        array = mapped_bytes(filename, shared, nbytes)
        where = device("cpu")
        storage, _ = backend(where).adopt(array, INPUT)
        return cls._handle(storage, where, str(filename) if shared else None)

    @staticmethod
    def from_buffer(
        buffer: Any, byte_order: str, count: int = -1, offset: int = 0, *, dtype: Any = None
    ) -> UntypedStorage:
        """Copy bytes of an object with the buffer protocol.

        Args:
            buffer: The object.
            byte_order: In which it has them: 'native', 'little' or 'big'.
            count: Elements to take; -1 takes all.
            offset: Bytes to skip.
            dtype: Of the elements, whose bytes are put in this machine's order.
        """
        if byte_order not in ("native", "little", "big"):
            raise ValueError(
                f"from_buffer: byte_order is 'native', 'little' or 'big'; got {byte_order!r}."
            )
        wanted = dtype_of("from_buffer", uint8 if dtype is None else dtype)
        raw = memoryview(buffer).cast("B")
        stop = len(raw) if count < 0 else offset + count * wanted.itemsize
        if not 0 <= offset <= stop <= len(raw) or (stop - offset) % wanted.itemsize:
            raise ValueError(
                f"from_buffer: {count} elements of {wanted} from byte {offset} are not there in "
                f"{len(raw)} bytes. Give a count and an offset within the buffer."
            )
        out = UntypedStorage(stop - offset)
        if len(out):
            bytes_of(out._storage, out.device)[...] = np.frombuffer(raw[offset:stop], np.uint8)
            if byte_order not in ("native", sys.byteorder):
                out.byteswap(wanted)
        return out


def elements(name: str, args: tuple[Any, ...], dtype: dtype_class, where: Any) -> Tensor:
    """Return new memory for a storage's constructor: without elements, of a size, of values."""
    place = place_of(where)
    if len(args) > 1:
        raise TypeError(f"{name}() takes a size or a sequence; got {len(args)} arguments.")
    if not args or isinstance(args[0], int | np.integer):
        n = int(args[0]) if args else 0
        if n < 0:
            raise RuntimeError(f"{name}: a size cannot be negative; got {n}.")
        return new(Spec((n,), dtype, place))
    if isinstance(args[0], Tensor | StorageHandle) or not hasattr(args[0], "__len__"):
        raise TypeError(
            f"{name}() takes a size or a sequence; got {type(args[0]).__name__}. A tensor's is "
            "tensor.untyped_storage()."
        )
    values = np.array(list(args[0]))
    if dtype is uint8:
        values = values.astype(np.int64).astype(np.uint8)
    spec = Spec((len(values),), dtype, place)
    storage, out = backend(place).from_host(values, spec, INPUT)
    return made(out, spec, storage)


def on_storage(source: StorageHandle, dtype: dtype_class | None) -> Tensor:
    """Return the tensor of all elements of a storage, sharing its bytes.

    Raises:
        RuntimeError: The storage has another dtype.
    """
    if isinstance(source, UntypedStorage):
        wanted = dtype or get_default_dtype()
    else:
        wanted = dtype or source._dtype
        need_dtype(source, wanted)
    return tensor_on(
        source._storage,
        Spec((source.nbytes() // wanted.itemsize,), wanted, source.device),
        0,
        (wanted.itemsize,),
    )


def tensor_on(storage: Any, spec: Spec, offset: int, strides: tuple[int, ...]) -> Tensor:
    """Return a tensor on bytes of a storage, from ``offset`` and with ``strides`` in bytes.

    Its version is its own: PyTorch, too, counts writes by tensor and views, not by storage.
    """
    alias = AliasStorage(storage)
    return made(window_on(alias, spec, offset, strides), spec, alias)


def need_dtype(source: StorageHandle, wanted: dtype_class) -> None:
    """Check that a storage of elements has those that a tensor wants."""
    if not isinstance(source, UntypedStorage) and source._dtype is not wanted:
        raise RuntimeError(
            f"Expected a Storage of {wanted} or an UntypedStorage, but got one of "
            f"{source._dtype}. Take its bytes with .untyped()."
        )
